"""A proposal that is decided, and applied, in one round: who is told what, and when it is not done."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.consensus.paxos import Ballot, Proposal
from lockstep.coordination.deciding import Reached, decide_at_once, suits
from lockstep.internode import verbs
from lockstep.internode.repeated_log import RepeatedLog
from lockstep.internode.waiters import Deadlines
from lockstep.quorum.round import Count, End, Target
from lockstep.replica.messages import CommitReply, CommitRequest, Place, ProposeReply, ProposeRequest
from lockstep.values.codec import decoder
from lockstep.values.errors import DiskRefused, LockstepError, StaleEpoch
from lockstep.values.ids import Consistency, NodeId

from .support import real_runtime, run

AT = Ballot(7, 1)
OWN = Proposal(AT, AT, b"value")
APPLIED = ProposeReply(5, True, AT, True)
ACCEPTED = ProposeReply(5, True, AT)
REFUSED = ProposeReply(5, False, Ballot(9, 1))
_REQUEST = decoder(ProposeRequest)


class _Plan(Count):
    """Of the first `count` nodes, of which this one is the first, unless it is none."""

    def __init__(self, count: int, required: int, *, local: bool = True, epoch: int = 5) -> None:
        super().__init__([Target(NodeId(n), (f"n{n}", 1), "dc1") for n in range(1, count + 1)], required)
        self.epoch = self.needs_epoch = epoch
        self.local = self.targets[0] if local else None
        self.remote = tuple(target for target in self.targets if target is not self.local)
        self.shard: tuple[int, int] | None = None


class _Request:
    """A request on three replicas at this node; `first` is what this node answers to the proposal."""

    def __init__(
        self, first: ProposeReply | LockstepError = ACCEPTED, level: int = 2, nodes: int = 3
    ) -> None:
        runtime = real_runtime()
        self.first = first
        self.here: list[str] = []
        self.sent: list[tuple[list[int], bool]] = []
        self.came: list[End] = []
        self.hinted = False
        self.is_changed = False
        self.waiter: Any = None
        self.plan = _Plan(nodes, nodes // 2 + 1)
        self._level = _Plan(nodes, level)
        self.deadline_s = runtime.clock.monotonic_s() + 60
        self.place = Place(1, 2, b"k")
        internode = SimpleNamespace(
            submit_each=self._submit_each, repeated_log=RepeatedLog(lambda event, **facts: None)
        )
        self.owner = SimpleNamespace(
            runtime=runtime,
            context=SimpleNamespace(internode=internode, own_id=lambda: 1),
            in_flight=Deadlines(runtime.clock),
            slow=Deadlines(runtime.clock),
            reach=lambda name: None,
            ballots=SimpleNamespace(answer=self._answer),
            plans=SimpleNamespace(write_plan=lambda table_id, token, consistency: self._level),
        )

    def changed(self, plan: Any) -> bool:
        return self.is_changed

    def did(self, activity: str, nodes: Any = ()) -> None: ...

    def leave_hints(self, plan: Any, decided: Proposal, paxos_round: Any) -> None:
        self.hinted = True

    async def came_of(self, plan: Any, paxos_round: Any, end: End) -> None:
        self.came.append(end)

    async def _answer(self, request: Any) -> Any:
        self.here.append(type(request).__name__)
        if isinstance(request, CommitRequest):
            return CommitReply(5)
        assert not request.decides, "this node's vote comes first, and decides nothing"
        if isinstance(self.first, LockstepError):
            raise self.first
        return self.first

    def _submit_each(
        self, targets: Sequence[Target], verb: int, body: bytes, deadline_s: float, waiter: Any
    ) -> None:
        assert verb == verbs.CAS_PROPOSE and self.here == ["ProposeRequest"], "it has accepted"
        self.waiter = waiter
        self.sent.append(([target.node for target in targets], _REQUEST.decode(body).decides))

    async def ends(self, *answers: tuple[int, ProposeReply | LockstepError]) -> Reached | None:
        running = asyncio.ensure_future(
            decide_at_once(self, self.plan, OWN, Consistency.QUORUM)  # type: ignore[arg-type]
        )
        for _ in range(4):
            await asyncio.sleep(0)
        for node, answer in answers:
            target = self.plan.targets[node - 1]
            if isinstance(answer, LockstepError):
                self.waiter.failed(target, answer)
            else:
                self.waiter.replied(target, answer, 5)
            for _ in range(4):
                await asyncio.sleep(0)
        found = await running
        await asyncio.sleep(0)
        return found


def test_it_is_held_when_another_one_has_applied_it_and_this_node_does_so() -> None:
    async def test() -> None:
        request = _Request()
        assert await request.ends((2, APPLIED)) is Reached.HELD
        assert request.sent == [([2, 3], True)] and request.here == ["ProposeRequest", "CommitRequest"]
        assert request.hinted and not request.came

    run(test)


def test_a_level_of_all_waits_for_all() -> None:
    async def test() -> None:
        request = _Request(level=3)
        assert await request.ends((2, APPLIED), (3, APPLIED)) is Reached.HELD

    run(test)


@pytest.mark.parametrize(
    ("answers", "level", "reached", "came"),
    [
        ([(2, REFUSED), (3, APPLIED)], 2, Reached.HELD, []),
        ([(2, DiskRefused("full")), (3, APPLIED)], 2, Reached.HELD, []),
        ([(2, REFUSED), (3, REFUSED)], 2, Reached.AGAIN, [End.REFUSED]),
        ([(2, DiskRefused("full")), (3, DiskRefused("full"))], 2, Reached.AGAIN, [End.FAILED]),
        ([(2, APPLIED), (3, REFUSED)], 3, Reached.DECIDED, []),
        ([(2, APPLIED), (3, DiskRefused("full"))], 3, Reached.DECIDED, []),
        ([(2, StaleEpoch(9, "moved"))], 2, Reached.AGAIN, [End.STALE]),
        # One that does not know that its vote decides has accepted, and not applied.
        ([(2, ACCEPTED), (3, ACCEPTED)], 2, Reached.DECIDED, []),
    ],
)
def test_what_others_answer(
    answers: list[tuple[int, ProposeReply | LockstepError]], level: int, reached: Reached, came: list[End]
) -> None:
    async def test() -> None:
        request = _Request(level=level)
        assert await request.ends(*answers) is reached
        assert request.came == came
        applied = request.here.count("CommitRequest")
        assert applied == (reached is not Reached.AGAIN), (
            "this node applies what is decided, and nothing else"
        )

    run(test)


@pytest.mark.parametrize("first", [REFUSED, DiskRefused("full"), StaleEpoch(9, "moved")])
def test_nobody_is_told_when_this_node_has_not_accepted(first: ProposeReply | LockstepError) -> None:
    async def test() -> None:
        request = _Request(first)
        assert await request.ends() is None and not request.sent

    run(test)


def test_a_change_of_what_matters_leaves_the_outcome_to_the_next_promises() -> None:
    async def test() -> None:
        request = _Request()
        running = asyncio.ensure_future(request.ends((2, APPLIED)))
        for _ in range(3):
            await asyncio.sleep(0)
        request.is_changed = True
        assert await running is Reached.AGAIN
        request = _Request()
        request.is_changed = True
        assert await request.ends() is None and not request.sent

    run(test)


@pytest.mark.parametrize(
    ("plan", "level", "expected"),
    [
        (_Plan(3, 2), _Plan(3, 2), True),
        (_Plan(2, 2), _Plan(2, 2), True),
        (_Plan(3, 2), _Plan(3, 3), True),
        (_Plan(4, 3), _Plan(4, 3), False),  # A replica is being filled.
        (_Plan(3, 2, local=False), _Plan(3, 2, local=False), False),
        (_Plan(3, 2), _Plan(3, 1), False),
        (_Plan(3, 2), _Plan(3, 2, epoch=6), False),
        (_Plan(1, 1), _Plan(1, 1), False),
    ],
)
def test_when_it_suits(plan: _Plan, level: _Plan, *, expected: bool) -> None:
    assert suits(plan, level) is expected  # type: ignore[arg-type]
