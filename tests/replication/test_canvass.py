"""One question to the replicas of a partition: how it ends, and who is asked once more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination.ballot_rounds import PaxosRound
from lockstep.internode import verbs
from lockstep.internode.repeated_log import RepeatedLog
from lockstep.internode.waiters import Deadlines
from lockstep.quorum.round import BALLOT, VOTE, Count, End, Policy, Round, Target
from lockstep.replica.messages import WriteReply
from lockstep.values.errors import DiskRefused, LockstepError, Overloaded, PeerUnreachable, StaleEpoch
from lockstep.values.ids import NodeId

from .support import real_runtime, run

TARGETS = tuple(Target(NodeId(n), (f"n{n}", 1), "dc1") for n in (1, 2, 3))
YES, NO = WriteReply(7), WriteReply(0)
Here = Callable[[], WriteReply]


class Asked:
    """A paxos_round of three replicas, of which two must agree; this node is the first of them."""

    def __init__(self, here: Here = lambda: YES, left_s: float = 60.0, policy: Policy = BALLOT) -> None:
        runtime = real_runtime()
        self.sent: list[list[int]] = []
        self._here = here
        internode = SimpleNamespace(
            submit_each=self._submit_each, repeated_log=RepeatedLog(lambda event, **facts: None)
        )
        self.in_flight, self.slow = Deadlines(runtime.clock), Deadlines(runtime.clock)
        owner = SimpleNamespace(
            runtime=runtime,
            context=SimpleNamespace(internode=internode, own_id=lambda: 1),
            in_flight=self.in_flight,
            slow=self.slow,
            reach=lambda name: None,
            ballots=SimpleNamespace(answer=self._answer),
        )
        self.paxos_round = PaxosRound(
            owner,  # type: ignore[arg-type]
            Round(policy, Count(TARGETS, 2)),
            verbs.CAS_PREPARE,
            YES,
            runtime.clock.monotonic_s() + left_s,
            lambda reply: reply.accepted_epoch > 0,
        )

    def _submit_each(
        self, targets: Sequence[Target], verb: int, body: bytes, deadline_s: float, waiter: PaxosRound
    ) -> None:
        assert verb == verbs.CAS_PREPARE and waiter is self.paxos_round and deadline_s == waiter.deadline_s
        self.sent.append([target.node for target in targets])

    async def _answer(self, request: Any) -> WriteReply:
        return self._here()

    def hears(self, node: int, answer: WriteReply | LockstepError) -> None:
        target = TARGETS[node - 1]
        if isinstance(answer, LockstepError):
            self.paxos_round.failed(target, answer)
        else:
            self.paxos_round.replied(target, answer, 5)

    async def ends(self, *answers: tuple[int, WriteReply | LockstepError]) -> End:
        running = asyncio.ensure_future(self.paxos_round.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        for node, answer in answers:
            self.hears(node, answer)
        found = await running
        assert len(self.in_flight) == len(self.slow) == 0, "it waits for nothing any more"
        return found


def refuses() -> WriteReply:
    raise DiskRefused("full")


@pytest.mark.parametrize(
    ("here", "answers", "end", "granted", "refused", "failed"),
    [
        (lambda: YES, [(2, YES)], End.ENOUGH, [1, 2], [], []),
        (lambda: NO, [(3, YES), (2, YES)], End.ENOUGH, [2, 3], [1], []),
        (lambda: YES, [(2, NO), (3, NO)], End.REFUSED, [1], [2, 3], []),
        (lambda: NO, [(3, NO)], End.REFUSED, [], [1, 3], []),
        (lambda: YES, [(2, DiskRefused("full")), (3, YES)], End.ENOUGH, [1, 3], [], [2]),
        (lambda: YES, [(2, DiskRefused("full")), (3, DiskRefused("full"))], End.FAILED, [1], [], [2, 3]),
        (lambda: YES, [(2, NO), (3, DiskRefused("full"))], End.FAILED, [1], [2], [3]),
        (refuses, [(2, YES), (3, YES)], End.ENOUGH, [2, 3], [], [1]),
        (refuses, [(2, DiskRefused("full"))], End.FAILED, [], [], [1, 2]),
    ],
)
def test_it_ends_when_enough_agree_or_the_others_cannot_suffice(
    here: Here,
    answers: list[tuple[int, WriteReply | LockstepError]],
    end: End,
    granted: list[int],
    refused: list[int],
    failed: list[int],
) -> None:
    async def test() -> None:
        asked = Asked(here)
        assert await asked.ends(*answers) is end
        paxos_round = asked.paxos_round
        assert (sorted(paxos_round.granted), sorted(paxos_round.refused)) == (granted, refused)
        assert sorted(paxos_round.round.failures) == failed and asked.sent == [[2, 3]]
        asked.hears(2, YES)
        asked.hears(3, DiskRefused("late"))
        assert sorted(paxos_round.granted) == granted and sorted(paxos_round.round.failures) == failed, (
            "it has ended"
        )

    run(test)


@pytest.mark.parametrize(
    ("here", "answers", "sent"),
    [
        (lambda: YES, [(2, YES)], [[2]]),
        (lambda: NO, [(2, YES), (3, YES)], [[2], [3]]),
        (lambda: YES, [(2, NO), (3, YES)], [[2], [3]]),
        (lambda: YES, [(2, DiskRefused("full")), (3, YES)], [[2], [3]]),
    ],
)
def test_votes_are_asked_of_as_many_as_suffice_and_of_another_for_each_who_does_not_agree(
    here: Here, answers: list[tuple[int, WriteReply | LockstepError]], sent: list[list[int]]
) -> None:
    async def test() -> None:
        asked = Asked(here, policy=VOTE)
        assert await asked.ends(*answers) is End.ENOUGH
        assert asked.sent == sent

    run(test)


def test_another_is_asked_when_votes_take_long() -> None:
    async def test() -> None:
        asked = Asked(policy=VOTE)
        running = asyncio.ensure_future(asked.paxos_round.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert asked.sent == [[2]] and len(asked.slow) == 1
        asked.paxos_round.waited_long()
        assert asked.sent == [[2], [3]]
        asked.hears(3, YES)
        assert await running is End.ENOUGH
        asked.paxos_round.waited_long()
        assert asked.sent == [[2], [3]], "it has ended"

    run(test)


def test_a_replica_that_knows_of_a_change_ends_it_and_is_named() -> None:
    async def test() -> None:
        asked = Asked(lambda: NO)
        assert await asked.ends((3, StaleEpoch(9, "moved"))) is End.STALE
        assert asked.paxos_round.round.source == (9, TARGETS[2]) and not asked.paxos_round.round.failures

    run(test)


def test_after_the_deadline_it_is_late() -> None:
    async def test() -> None:
        asked = Asked(lambda: NO, left_s=0.0)
        assert await asked.ends((2, PeerUnreachable("down"))) is End.LATE
        asked.paxos_round.expired()

    run(test)


def test_those_whose_failure_may_pass_are_asked_again_together() -> None:
    async def test() -> None:
        asked = Asked(lambda: NO)
        running = asyncio.ensure_future(asked.paxos_round.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked.hears(2, PeerUnreachable("down"))
        timer = asked.paxos_round.retry
        asked.hears(3, PeerUnreachable("down"))
        assert timer is not None and asked.paxos_round.retry is timer, "one timer for both"
        assert not running.done(), "they may come back"
        timer.cancel()
        asked.paxos_round.again()
        assert asked.sent == [[2, 3], [2, 3]] and not asked.paxos_round.round.failures
        asked.hears(2, YES)
        asked.hears(3, PeerUnreachable("down"))
        assert asked.paxos_round.retry is not timer
        asked.paxos_round.again()
        assert asked.sent[2] == [3], "the other one has answered"
        asked.hears(3, YES)
        assert await running is End.ENOUGH
        asked.paxos_round.again()
        assert len(asked.sent) == 3

    run(test)


def test_this_node_is_asked_again_too_and_who_failed_for_good_is_not() -> None:
    async def test() -> None:
        answers = [Overloaded("busy"), YES]

        def here() -> WriteReply:
            answer = answers.pop(0)
            if isinstance(answer, LockstepError):
                raise answer
            return answer

        asked = Asked(here)
        running = asyncio.ensure_future(asked.paxos_round.run())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asked.hears(2, DiskRefused("full"))
        assert not running.done() and sorted(asked.paxos_round.round.failures) == [1, 2]
        asked.paxos_round.again()
        assert asked.sent == [[2, 3]] and sorted(asked.paxos_round.round.failures) == [2]
        asked.hears(3, YES)
        assert await running is End.ENOUGH and not answers

    run(test)
