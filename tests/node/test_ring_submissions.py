"""What a submitter on the ring is told where two nodes may take themselves for the one that changes go to:
what was refused stays out of the ring, and what may be proposed yet is not said to be refused.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from lockstep.internode import verbs
from lockstep.node.log.messages import Submit, Submitted
from lockstep.node.log.submission import _GROUP, _ON_RING, Group, GroupSubmitter
from lockstep.node.node import Node
from lockstep.runtime.real import real_runtime
from lockstep.values.codec import encode
from lockstep.values.errors import LeadershipLost, LockstepError, OutcomeUnknown, PeerTimeout, Rejected
from tests.node.support import Outcome, Town, keyspace
from tests.node.test_upgrade import RingTown

REFUSED_ID = b"a-refused-change"


def ask(town: Town, number: int, submit: Submit, to: int = 1) -> Outcome:
    def send(node: Node) -> Any:
        target = town.node(to).context.address
        return node.context.internode.request(target, verbs.SUBMIT, submit, 2000)

    return town.finish(town.begin(number, send))


def question(town: Town, name: str, term: int, entry_id: bytes = REFUSED_ID) -> Submit:
    change = keyspace(name)
    kind = town.node(1).log.registry.kind_of(change)
    return Submit(entry_id, kind, encode(change), "test", town.newest.epoch, term)


def term(town: Town, number: int = 1) -> int:
    processor = town.node(number).log.member.processor
    assert processor is not None
    return processor.leading_term()


def test_a_copy_that_comes_in_a_later_life_or_turn_is_not_judged() -> None:
    """It was refused in the life before; since then it would be accepted."""
    with RingTown(founders=3) as town:
        town.found()
        town.changes(2, "taken")
        copy = question(town, "taken", term(town))
        assert isinstance(ask(town, 2, copy).error, Rejected)
        town.process(1).crash("power")
        town.until(lambda: town.node(2).log.member.leads)
        turn = term(town, 2)
        town.start(1)
        town.until(lambda: town.ready(1) and town.node(1).log.member.leads)
        town.until(lambda: not town.node(2).log.member.leads)
        copy = Submit(copy.entry_id, copy.kind, encode(keyspace("free")), "test", copy.base_epoch, copy.term)
        told: Submitted = ask(town, 2, copy).value
        assert told.epoch == 0 and told.term == term(town) != copy.term
        town.changes(3, "after")
        assert REFUSED_ID not in town.ids() and "free" not in town.newest.schema.by_name
        # The same of another node, when changes go through it once more.
        town.process(1).crash("power")
        town.until(lambda: town.node(2).log.member.leads)
        again: Submitted = ask(town, 3, question(town, "free", turn, b"another-change-x"), to=2).value
        assert again.epoch == 0 and again.term == term(town, 2) > turn


@pytest.mark.parametrize(
    ("group", "second", "expected"),
    [
        (_ON_RING, ("b", 1), OutcomeUnknown),
        (_ON_RING, ("a", 1), Rejected),
        (_GROUP, ("b", 1), Rejected),
    ],
)
@pytest.mark.parametrize("lost", [LeadershipLost(None), PeerTimeout("silent"), TimeoutError()])
def test_a_refusal_is_no_last_word_while_another_may_propose_it(
    group: Group,
    second: tuple[str, int],
    expected: type[LockstepError],
    lost: Exception,
    tmp_path: Path,
) -> None:
    asked: list[Exception] = [lost, Rejected("not now")]
    members = iter([[("a", 1)], [second]])

    async def attempt(_address: object, _limit_ms: int) -> int:
        raise asked.pop(0)

    submitter = GroupSubmitter(real_runtime(str(tmp_path)), group, lambda: next(members))
    with pytest.raises(expected) as told:
        asyncio.run(submitter.settle(attempt, 5000))
    assert type(told.value) is expected
