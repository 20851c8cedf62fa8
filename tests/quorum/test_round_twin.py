"""A round against a slow and obvious twin, which keeps what happened and works everything out from that."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.quorum.round import (
    BALLOT,
    BATCH,
    CHECK,
    COUNTER,
    READ,
    VOTE,
    WRITE,
    Ask,
    Check,
    Effects,
    End,
    Ended,
    Failure,
    Learn,
    Policy,
    Retry,
    Round,
)
from lockstep.values.errors import (
    DiskRefused,
    LockstepError,
    NotReplica,
    PeerTimeout,
    PeerUnreachable,
    RangeLacking,
    StaleEpoch,
)
from lockstep.values.ids import NodeId

from .quorums import Made

NODES = (1, 2, 3, 4, 5)
ERRORS = (
    DiskRefused("full"),
    NotReplica("no"),
    PeerTimeout("late"),
    PeerUnreachable("down"),
    RangeLacking("x"),
)


class Twin:
    """What happened to each node, newest last: asked, accepted at an epoch, refused, failed, withdrawn."""

    def __init__(self, policy: Policy, plan: Made, suspects: Collection[NodeId]) -> None:
        self.policy = policy
        self.plan = plan
        self.suspects = suspects
        self.happened: list[tuple[str, int, object]] = []

    def last(self, node: int, *words: str) -> object | None:
        found = [(word, told) for word, who, told in self.happened if who == node]
        return found[-1][1] if found and found[-1][0] in words else None

    def asked(self, node: int) -> bool:
        return self.last(node, "asked") is not None

    def counts(self, node: int) -> bool:
        epochs: list[object] = []
        for word, who, told in self.happened:
            if who == node and word == "withdrawn":
                epochs = []
            if who == node and word == "accepted":
                epochs.append(told)
        return any(isinstance(epoch, int) and epoch >= self.plan.needs_epoch for epoch in epochs)

    def enough(self, nodes: Iterable[int]) -> bool:
        held = set(nodes)
        return all(
            sum(1 for one in self.plan.targets if one.node in held and need.dc in ("", one.dc)) >= need.count
            for need in self.plan.needs
        )

    def counting(self) -> set[int]:
        return {node for node in NODES if self.counts(node)}

    def lost(self, *words: str) -> set[int]:
        """Nodes of which one of these was the last that was heard."""
        return {
            node
            for node in NODES
            for error in [self.last(node, *words)]
            if error is not None
            and not (isinstance(error, LockstepError) and self.policy.judge(error) is not Failure.FINAL)
        }

    def not_awaited(self) -> set[int]:
        """Nodes whose answer does not count, or that nobody waits for where another request was first."""
        gone = self.lost("refused")
        for node in NODES if self.policy.contends else ():
            error = self.last(node, "failed")
            if isinstance(error, LockstepError) and self.policy.judge(error) is Failure.PASSING:
                gone.add(node)
            if node in self.suspects and self.last(node, "accepted") is None:
                gone.add(node)
        return gone

    def may_come(self, lost: set[int]) -> bool:
        """Whether any set of the others, had they all accepted, would be enough."""
        others = [target.node for target in self.plan.targets if target.node not in lost]
        return any(
            self.enough(some)
            for size in range(len(others) + 1)
            for some in itertools.combinations(others, size)
        )


def plans(epoch: int) -> st.SearchStrategy[Made]:
    """Attainable ones, made at an epoch and perhaps changed at it."""

    @st.composite
    def made(draw: st.DrawFn) -> Made:
        nodes = draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=5, unique=True))
        dcs = [(node, draw(st.sampled_from("ab"))) for node in nodes]
        sizes = {dc: sum(1 for _, one in dcs if one == dc) for dc in "ab"}
        if draw(st.booleans()):
            needs = [("", draw(st.integers(1, len(nodes))))]
        else:
            needs = [(dc, draw(st.integers(1, size))) for dc, size in sizes.items() if size]
        return Made(dcs, needs, epoch, draw(st.sampled_from((epoch, max(0, epoch - 2)))))

    return made()


class Play:
    """One round and its twin, driven as the contract says."""

    def __init__(self, policy: Policy, plan: Made, suspects: Collection[NodeId] = ()) -> None:
        self.round = Round(policy, plan, suspects=suspects)
        self.twin = Twin(policy, plan, suspects)
        self.learning = 0
        self.waiting = False
        self.checks = False
        self.ended: End | None = None
        self.carry_out(self.round.begin())

    def carry_out(self, effects: Effects) -> None:
        assert self.ended is None or not effects, "nothing is asked for after the end"
        for effect in effects:
            if isinstance(effect, Ask):
                assert effect.targets, "somebody is asked"
                for target in effect.targets:
                    assert not self.twin.asked(target.node), "nobody is asked who is being asked"
                    assert target in self.round.plan.targets, "replicas of the plan are asked"
                    self.twin.happened.append(("asked", target.node, True))
            elif isinstance(effect, Retry):
                assert not self.waiting, "one timer at a time"
                self.waiting = True
            elif isinstance(effect, Learn):
                assert not self.learning and self.round.policy.follows
                self.learning = effect.epoch
            elif isinstance(effect, Check):
                self.checks = True
            else:
                assert isinstance(effect, Ended)
                self.ended = effect.end
        self.agrees()

    def agrees(self) -> None:
        round_, twin = self.round, self.twin
        round_.validate()
        twin.plan = round_.plan
        assert round_.end is self.ended
        assert set(round_.outstanding) == {node for node in NODES if twin.asked(node)}
        assert set(round_.counting()) == twin.counting()
        assert {target.node for target in round_.lacking()} == {
            target.node for target in twin.plan.targets if not twin.counts(target.node)
        }
        if self.ended is End.ENOUGH:
            assert twin.enough(twin.counting())
        if self.ended is End.REFUSED:
            assert not twin.may_come(twin.not_awaited())
        if self.ended is End.FAILED and round_.policy is not COUNTER:
            assert twin.may_come(twin.lost("refused")) and not twin.may_come(twin.lost("refused", "failed"))
        if self.ended is None:
            assert twin.may_come(twin.lost("refused", "failed")), "what is without hope has ended"
            assert not twin.lost("refused") or twin.may_come(twin.not_awaited()), (
                "who was beaten begins again"
            )
            if not self.checks and not self.learning:
                assert self.waiting or not twin.enough(twin.counting()), "what is enough is told"
                assert round_.outstanding or self.waiting or round_.policy is COUNTER, "something is awaited"

    def step(self, data: st.DataObject) -> None:
        if self.checks:
            self.checks = False
            self.confirm(data)
            return
        round_, policy = self.round, self.round.policy
        choices = [("answer", target) for target in round_.plan.targets if target.node in round_.outstanding]
        if self.waiting:
            choices.append(("again", None))  # type: ignore[arg-type]
        if self.learning:
            choices += [("learned", None), ("not learned", None)]  # type: ignore[list-item]
        if policy.replaces and policy is not COUNTER:
            choices.append(("slow", None))  # type: ignore[arg-type]
        if not choices:
            return
        what, target = data.draw(st.sampled_from(choices))
        if what == "answer":
            self.answer(data, target)
        elif what == "slow":
            self.carry_out(round_.slow(data.draw(st.integers(1, 3))))
        elif what == "again":
            self.waiting = False
            newest = data.draw(st.one_of(st.just(round_.plan), plans(round_.plan.epoch + 1)))
            self.carry_out(round_.planned(newest, paused=True) if policy.follows else round_.again())
        elif what == "learned":
            newest, self.learning = data.draw(plans(self.learning)), 0
            self.carry_out(round_.learned(newest))
        else:
            self.learning = 0
            self.carry_out(round_.not_learned())

    def confirm(self, data: st.DataObject) -> None:
        round_ = self.round
        if round_.policy.follows:
            newest = data.draw(st.one_of(st.just(round_.plan), plans(round_.plan.epoch + 2)))
            self.carry_out(round_.confirmed(newest))
        elif round_.policy is READ and data.draw(st.booleans()):
            digest = data.draw(st.sampled_from([t for t in round_.order if t.node in round_.accepted]))
            self.twin.happened.append(("withdrawn", digest.node, True))
            self.carry_out(round_.withdrawn([digest]))
        else:
            self.carry_out(round_.confirmed(round_.plan))

    def answer(self, data: st.DataObject, target: object) -> None:
        round_, epoch = self.round, self.round.plan.epoch
        node = next(one for one in round_.plan.targets if one is target)
        kinds = ["accepted", "failed", "stale"]
        if round_.policy in (BALLOT, VOTE, COUNTER):
            kinds.append("refused")
        what = data.draw(st.sampled_from(kinds))
        if what == "accepted":
            at = data.draw(st.integers(epoch - 3, epoch + 3)) if round_.policy.follows else epoch
            self.twin.happened.append(("accepted", node.node, at))
            self.carry_out(round_.answered(NodeId(node.node), at))
        elif what == "refused":
            self.twin.happened.append(("refused", node.node, True))
            self.carry_out(round_.refused(NodeId(node.node)))
        else:
            known = epoch + data.draw(st.integers(-1 if round_.policy.follows else 1, 3))
            error = data.draw(st.sampled_from(ERRORS)) if what == "failed" else StaleEpoch(known)
            self.twin.happened.append(("failed", node.node, error))
            self.carry_out(round_.failed(node, error))


@pytest.mark.slow
@given(st.data(), st.sampled_from((WRITE, READ, BALLOT, VOTE, BATCH, COUNTER)))
@settings(max_examples=150, deadline=None)
def test_a_round_decides_as_its_twin(data: st.DataObject, policy: Policy) -> None:
    suspects = data.draw(st.sets(st.sampled_from(NODES))) if policy.contends else ()
    play = Play(policy, data.draw(plans(5)), suspects)
    for _ in range(data.draw(st.integers(1, 30))):
        if play.ended is not None:
            break
        play.step(data)
    if play.ended is None:
        play.carry_out(play.round.expired())
        assert play.ended is End.LATE
    for target in play.round.plan.targets:
        assert play.round.failed(target, PeerUnreachable("late")) == ()
        assert play.round.answered(target.node, 99) == (), "what has ended asks for nothing"


def test_what_was_accepted_at_the_epoch_of_the_change_counts_beside_what_is_older() -> None:
    made = Made([(1, ""), (2, ""), (3, "")], [("", 2)], epoch=5, needs_epoch=3)
    round_ = Round(WRITE, made)
    round_.begin()
    round_.answered(NodeId(1), 2)
    assert round_.answered(NodeId(2), 3) is not CHECK and round_.counting() == [2]
    assert round_.answered(NodeId(3), 3) is CHECK and round_.counting() == [2, 3]
