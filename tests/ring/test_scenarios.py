"""Concurrent initiators, a crash at every step of everybody, and gossip that is shuffled and lost."""

from __future__ import annotations

import random
from itertools import pairwise, permutations

import pytest

from lockstep.ring.changes import Change, Kind, Step
from lockstep.ring.limits import RING_ASK_MS, RING_DELTAS_KEPT, RING_PROPOSAL_MS, RING_RETRY_MS
from lockstep.ring.member import Effects, Ended, Outcome, RingMember, first_kept
from lockstep.ring.messages import Deltas, Summary
from lockstep.ring.ring import Delta, Mode, Ring, delta_on

from .play import Table
from .rings import founders, walk


class Struck(Table):
    """A table at which one node crashes at one of its steps: before its write, or after so many messages."""

    def __init__(self, victim: str, step: int, after: int) -> None:
        super().__init__()
        self._victim = victim
        self._left = step
        self._after = after
        self.struck = False
        self.rings: dict[int, bytes] = {}
        self.ended: list[Ended] = []

    def _done(self, name: str, effects: Effects, *, quiet: bool = False) -> None:
        if name == self._victim and self._left == 0 and not self.struck:
            self.struck = True
            if self._after >= 0:
                whole = len(self.waiting) + self._after
                super()._done(name, effects, quiet=quiet)
                del self.waiting[whole:]
            self.members.pop(name, None)
        else:
            self._left -= name == self._victim
            super()._done(name, effects, quiet=quiet)
            self.ended += effects.ended
        ring = self.kept[name].ring
        assert self.rings.setdefault(ring.sequence, ring.fingerprint) == ring.fingerprint, "one chain"

    def settle(self) -> None:
        """Time passes until nobody has anything to say, and all compare their rings."""
        for wait_ms in (RING_RETRY_MS, RING_RETRY_MS, RING_ASK_MS, RING_PROPOSAL_MS, RING_ASK_MS):
            self.do_go()
            self.do_wait(str(wait_ms))
            self.do_go()
            for one, other in permutations(list(self.members), 2):
                if one in self.members:
                    self.do_gossip(one, other)
                    self.do_go()


def strike(mode: Mode, victim: str, step: int, after: int) -> tuple[bool, Table]:
    """A newcomer and a member propose, somebody crashes at one step and comes back; then all is settled."""
    table = Struck(victim, step, after)
    table.do_ring(mode, "3")
    table.do_node("n4")
    for name, words in (("n4", "join n4"), ("n1", "move n1")):
        if name in table.members:
            table.do_propose(name, *words.split())
            if mode is Mode.UNANIMOUS:
                table.do_go()
    table.settle()
    hit, table.struck = table.struck, True
    if victim not in table.members:
        table.do_start(victim)
    table.settle()
    for member in table.members.values():
        member.validate()
        assert mode is Mode.QUORUM or member.standing.pending is None, "no promise is left"
    assert len({member.ring.fingerprint for member in table.members.values()}) == 1
    made = {entry.op for entry in table.members["n1"].ring.members if entry.op}
    assert not made & {one.op for one in table.ended if one.outcome is Outcome.ABORTED}
    # Whatever happened, the ring can be changed now.
    before = table.members["n2"].ring.sequence
    table.do_propose("n2", "move", "n2")
    table.settle()
    assert table.members["n2"].ring.sequence == before + 1
    return hit, table


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("victim", ["n1", "n2", "n4"])
def test_28_a_crash_at_every_step_leaves_one_ring(mode: Mode, victim: str) -> None:
    """Scenario 28: each step of initiators and of an acceptor, before its write and after each message."""
    struck = 0
    for after in (-1, 0, 1, 99):
        for step in range(200):
            hit, _ = strike(mode, victim, step, after)
            if not hit:
                break
            struck += 1
        else:
            raise AssertionError("a node never comes to rest")
    assert struck > 40


@pytest.mark.parametrize("mode", Mode)
@pytest.mark.parametrize("count", [2, 3, 10])
def test_27_of_concurrent_initiators_one_at_a_time_commits_and_all_succeed_in_the_end(
    mode: Mode, count: int
) -> None:
    """Scenario 27."""
    table = Struck("nobody", 0, 0)
    table.do_ring(mode, str(max(count, 3)))
    waiting = {f"n{number}" for number in range(1, count + 1)}
    for attempt in range(20 * count):
        ready = [name for name in sorted(waiting) if not table.members[name].standing.proposing]
        # Those that failed together try again at times of their own.
        for name in ready if attempt == 0 else ready[:1]:
            table.do_propose(name, "move", name)
        before = table.members["n1"].ring.sequence
        table.settle()
        assert {member.ring.sequence for member in table.members.values()} <= {before, before + 1}
        ring = table.members["n1"].ring
        waiting -= {name for name in waiting if ring.by_name[name].op.startswith(f"{name}/")}
        if not waiting:
            break
    assert not waiting
    standing = [member.standing for member in table.members.values()]
    assert not any(one.pending or one.proposing for one in standing)
    assert len({one.ring.fingerprint for one in standing}) == 1


def deltas_of(rings: list[Ring]) -> list[Delta]:
    found: list[Delta] = []
    for before, later in pairwise(rings):
        entries = [entry for entry in later.members if before.by_name.get(entry.node) != entry]
        found.append(delta_on(before, f"op{len(found)}", entries))
    return found


@pytest.mark.parametrize("steps", [50, RING_DELTAS_KEPT + 6])
def test_31_shuffled_repeated_and_lost_gossip_brings_everybody_to_one_ring(steps: int) -> None:
    """Scenario 31: one member hears nothing of all changes, others hear of a third less, in any order."""
    draw = random.Random(steps)
    rings = walk(founders(5), draw, steps)
    deltas = deltas_of(rings)
    assert {ring.sequence for ring in rings} == set(range(1, steps + 2))
    members = {
        f"n{number}": RingMember(f"n{number}", first_kept(rings[0]), (), {}, 0) for number in range(1, 6)
    }
    told = [
        (name, delta) for name in ("n1", "n2", "n3", "n4") for delta in deltas + deltas if draw.random() < 0.7
    ]
    draw.shuffle(told)
    chain = {ring.fingerprint for ring in rings}
    for name, delta in told:
        assert not members[name].received("n9", Deltas((delta,)), 0).alarms
        assert members[name].ring.fingerprint in chain
    for delta in deltas:
        members["n1"].received("n9", Deltas((delta,)), 0)
    for _ in range(4):
        for one in members.values():
            for name, other in members.items():
                answer = one.received(name, Summary(other.ring.sequence, other.ring.fingerprint), 0)
                for _, message in answer.messages:
                    if draw.random() >= 0.3:
                        assert not other.received("n9", message, 0).alarms
                        assert other.ring.fingerprint in chain
    assert {member.ring.fingerprint for member in members.values()} == {rings[-1].fingerprint}


def test_31_a_proposal_of_before_is_refused_when_the_ring_looks_as_it_did() -> None:
    """Scenario 31: somebody joins and leaves in between."""
    table = Table()
    for line in ("ring unanimous 3", "node n4", "propose n4 join n4"):
        table.play(line)
    late = [one for one in table.waiting if one[1] == "n2"]
    for line in ("lose n4 n2", "wait 11000", "go", "node n5"):
        table.play(line)
    for words in ("n5 join n5", "n1 finish join n5", "n5 leave n5", "n1 finish leave n5"):
        table.play(f"propose {words}")
        table.play("go")
        for one in list(table.members):
            for other in list(table.members):
                table.play(f"gossip {one} {other}")
                table.play("go")
    ring = table.members["n2"].ring
    assert ring.voters == ("n1", "n2", "n3") and ring.sequence == 5
    table.waiting += late
    assert "reject n4/1/1" in table.play("pass n4 n2")
    assert table.members["n2"].standing.pending is None


def test_30_several_at_once_are_one_change() -> None:
    """Scenario 30: two that are lost are removed by one delta on one ring."""
    ring = founders(5)
    changes = [Change(Kind.REMOVE, Step.BEGIN, name) for name in ("n4", "n5")]
    table = Table()
    for line in ("ring quorum 5", "crash n4", "crash n5", "propose n1 remove n4; remove n5", "go"):
        table.play(line)
    assert table.members["n1"].ring.sequence == ring.sequence + len(changes) - 1
