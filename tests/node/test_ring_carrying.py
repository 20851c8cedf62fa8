"""The ring that metadata make, and what members of a cluster without a log accept."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.ring_entries import EndRing, FoundRing, refuse_needing_a_log
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry, Transformation
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.metadata.transformations import Founder, Initialize, Register
from lockstep.node.kinds import every_kind
from lockstep.node.ring.carrying import carried_by, judge, ring_after, ring_of
from lockstep.ring.member import Effects, RingMember, first_kept
from lockstep.ring.messages import Accept, Message, Proposal, Propose
from lockstep.ring.ring import Delta, Mode, Ring, Status, applied
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.codec import encode
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId

REGISTRY: Registry = every_kind()


def founding(mode: str = "quorum", count: int = 4) -> FoundRing:
    hosts = tuple(
        Founder(f"host-{n}", f"10.0.0.{n}", 7000, 9042, 7080, "dc1", "r1", (n * 100,), "1")
        for n in range(1, count + 1)
    )
    return FoundRing(Initialize("cluster", "c", hosts), mode)


class History:
    """One node's metadata, and the ring that it had before each entry."""

    def __init__(self, mode: str = "quorum") -> None:
        self.value = empty_cluster(REGISTRY.parts)
        self.deltas: list[Delta] = []
        self.number = 0
        self.add(founding(mode))

    def judged(self, transformation: Transformation) -> tuple[LogEntry, ClusterMetadata]:
        self.number += 1
        kind, body = REGISTRY.encode(transformation)
        tip = Tip(self.value, REGISTRY)
        outcome = tip.judge(self.number.to_bytes(16, "big"), kind, body, "a test", 7, 1)
        if isinstance(outcome, Refused):
            raise outcome.rejection
        assert isinstance(outcome, Appended)
        return outcome.entry, tip.value

    def proposed(self, transformation: Transformation) -> Proposal:
        entry, after = self.judged(transformation)
        delta = carried_by(self.value, after, entry)
        return Proposal(delta.op, "1", (), delta, ends=entry.kind == EntryKind.END_RING)

    def add(self, transformation: Transformation) -> Ring:
        entry, after = self.judged(transformation)
        if self.value.epoch:
            delta = carried_by(self.value, after, entry)
            proposal = Proposal(delta.op, "1", (), delta, ends=entry.kind == EntryKind.END_RING)
            assert judge(self.value, REGISTRY, proposal) == "", "members accept what follows"
            made = ring_after(self.value, after)
            assert applied(ring_of(self.value), delta) == made, "the change makes the ring"
            self.deltas.append(delta)
        ring = ring_after(self.value, after) if self.value.epoch else ring_of(after)
        self.value = after
        ring.validate()
        return ring

    def statuses(self) -> dict[str, str]:
        return {member.node: member.status.value for member in ring_of(self.value).members}

    def run(self, operation: int) -> list[dict[str, str]]:
        """Advance it to its end; what the members were on the way, each once."""
        seen = [self.statuses()]
        while (running := self.value.operations_by_id.get(operation)) is not None:
            self.add(AdvanceOperation(operation, running.stage, running.step))
            if self.statuses() != seen[-1]:
                seen.append(self.statuses())
        return seen


def newcomer(number: int, replaces: int = 0) -> Register:
    return Register(
        f"host-{number}", f"10.0.0.{number}", 7000, 9042, 7080, "dc1", "r1", "1", replaces=NodeId(replaces)
    )


def test_a_ring_is_founded_without_voters() -> None:
    made = History()
    ring = ring_of(made.value)
    assert (ring.mode, ring.sequence, ring.voters) == (Mode.QUORUM, 1, ("1", "2", "3", "4"))
    assert made.value.is_on_ring and not made.value.voters and not made.value.service.members
    assert ring_of(History("unanimous").value).fingerprint != ring.fingerprint


def test_an_operation_is_two_changes_of_the_members_of_a_ring() -> None:
    made = History()
    made.add(newcomer(5))
    assert made.statuses()["5"] == Status.ADMITTED
    made.add(PrepareOperation(Bootstrap(NodeId(5), (550,))))
    member = ring_of(made.value).by_name["5"]
    assert (member.status, member.tokens, member.pending) == (Status.JOINING, (), (550,))
    assert [step["5"] for step in made.run(1)] == ["joining", "normal"]
    made.add(PrepareOperation(Decommission(NodeId(2))))
    assert [step["2"] for step in made.run(2)] == ["leaving", "left"]
    made.add(PrepareOperation(Move(NodeId(3), (300, 330))))
    assert ring_of(made.value).by_name["3"].pending == (330,)
    assert [step["3"] for step in made.run(3)] == ["moving", "normal"]
    made.add(newcomer(6, replaces=4))
    made.add(PrepareOperation(Replace(NodeId(6), NodeId(4))))
    member = ring_of(made.value).by_name["6"]
    assert (member.replaces, member.pending) == ("4", (400,))
    assert [(step["6"], step["4"]) for step in made.run(4)] == [
        ("replacing", "normal"),
        ("normal", "left"),
    ]
    assert ring_of(made.value).voters == ("1", "3", "5", "6")


def test_a_cancelled_join_leaves_a_node_that_was_let_in() -> None:
    made = History()
    made.add(newcomer(5))
    made.add(PrepareOperation(Bootstrap(NodeId(5), (550,))))
    made.add(CancelOperation(1, "a test"))
    assert made.run(1)[-1]["5"] == Status.ADMITTED
    assert made.value.directory.by_id[NodeId(5)].state is NodeState.NONE


def test_a_fingerprint_stands_for_the_whole_metadata() -> None:
    one, other = History(), History()
    one.add(newcomer(5))
    other.number += 1
    other.add(newcomer(5))
    assert one.statuses() == other.statuses()
    assert ring_of(one.value).fingerprint != ring_of(other.value).fingerprint


def test_a_member_accepts_only_what_its_own_metadata_accept() -> None:
    made = History()
    proposal = made.proposed(newcomer(5))
    assert judge(made.value, REGISTRY, proposal) == ""
    wrong = msgspec.structs.replace(proposal.delta, target=bytes(32))
    assert "outcome" in judge(made.value, REGISTRY, msgspec.structs.replace(proposal, delta=wrong))
    assert "outcome" in judge(made.value, REGISTRY, msgspec.structs.replace(proposal, ends=True))
    broken = msgspec.structs.replace(proposal.delta, carried=b"\xc1")
    assert "cannot be read" in judge(made.value, REGISTRY, msgspec.structs.replace(proposal, delta=broken))


def test_what_needs_a_log_is_refused() -> None:
    with pytest.raises(Rejected, match="runs on the ring without one"):
        refuse_needing_a_log(EntryKind.SNAPSHOT)
    with pytest.raises(Rejected, match="agrees by one of"):
        History("by chance")
    made = History()
    entry, after = made.judged(newcomer(5))
    kind, body = REGISTRY.encode(TakeSnapshot(bytes(32), 1, 0))
    forged = msgspec.structs.replace(entry, kind=kind, body=body)
    delta = msgspec.structs.replace(carried_by(made.value, after, entry), carried=encode(forged))
    assert "snapshot" in judge(made.value, REGISTRY, Proposal(delta.op, "1", (), delta))


class Table:
    """Members of one ring, each with metadata of its own; a step is carried out before the next one."""

    def __init__(self, made: History) -> None:
        self.made = made
        self.values = dict.fromkeys(ring_of(made.value).voters, made.value)
        self.members = {name: self._member(name) for name in self.values}
        for member in self.members.values():
            member.start()

    def _member(self, name: str) -> RingMember:
        kept = first_kept(ring_of(self.values[name]))
        return RingMember(
            name, kept, (), {}, 0, lambda _ring, proposal: judge(self.values[name], REGISTRY, proposal)
        )

    def settle(self, name: str, effects: Effects, passes: Callable[[str, str, Message], bool]) -> list[str]:
        """Let through what passes, and what comes of it; the names of what was found to be agreed on."""
        waiting: list[tuple[str, str, Message]] = [(name, to, one) for to, one in effects.messages]
        decided = [delta.op for delta in effects.decided]
        while waiting:
            source, target, message = waiting.pop(0)
            if target in self.members and passes(source, target, message):
                found = self.members[target].received(source, message, 0)
                decided += [delta.op for delta in found.decided]
                waiting += [(target, to, one) for to, one in found.messages]
        return decided


def without(*lost: str) -> Callable[[str, str, Message], bool]:
    return lambda source, target, _message: not {source, target} & set(lost)


@pytest.mark.parametrize(
    ("mode", "lost", "agreed"),
    [
        ("quorum", (), True),
        ("quorum", ("4",), True),
        ("quorum", ("3", "4"), False),
        ("unanimous", (), True),
        ("unanimous", ("4",), False),
    ],
)
def test_an_entry_is_agreed_on_by_whom_the_mode_names(mode: str, lost: tuple[str, ...], agreed: bool) -> None:
    made = History(mode)
    table = Table(made)
    proposal = made.proposed(newcomer(5))
    decided = table.settle("1", table.members["1"].offer(proposal.delta, 0), without(*lost))
    assert decided == ([proposal.op] if agreed else [])
    held = table.members["2"].standing.pending
    assert (held is not None) is (agreed or mode == "unanimous")
    followed = table.members["2"].follow(proposal.delta, 0)
    assert followed.kept is not None and table.members["2"].ring.sequence == 2
    assert table.members["2"].standing.pending is None


def test_an_operator_ends_a_ring_whose_initiator_is_gone() -> None:
    made = History()
    table = Table(made)
    proposal = made.proposed(newcomer(5))
    offered = table.members["1"].offer(proposal.delta, 0)
    # One other member has accepted it: the two are no majority.
    to_few = lambda _, target, message: not (isinstance(message, Propose) and target in ("3", "4"))  # noqa: E731
    assert table.settle("1", offered, to_few) == []
    ending = made.proposed(EndRing(proposal.op))
    assert ending.is_end and judge(made.value, REGISTRY, ending) == ""
    refused, effects = table.members["2"].abort(proposal.op, proposal.base, 0, ending)
    assert refused == ""
    decided = table.settle("2", effects, without("1"))
    decided += table.settle("2", table.members["2"].tick(500, (0.0, 0.0)), without("1"))
    assert decided == [ending.op]


def test_what_a_majority_may_have_decided_is_finished_and_not_ended() -> None:
    made = History()
    table = Table(made)
    proposal = made.proposed(newcomer(5))
    offered = table.members["1"].offer(proposal.delta, 0)
    # All have accepted it, and their answers are lost.
    assert table.settle("1", offered, lambda _s, _t, message: not isinstance(message, Accept)) == []
    ending = made.proposed(EndRing(proposal.op))
    _, effects = table.members["2"].abort(proposal.op, proposal.base, 0, ending)
    decided = table.settle("2", effects, without("1"))
    decided += table.settle("2", table.members["2"].tick(500, (0.0, 0.0)), without("1"))
    assert decided == [proposal.op]
