"""Counts of acknowledgements, and proofs that reads meet writes, made once for all replica lists of one
shape.

Invariant: a level's count comes from the replication factor, as in Cassandra, not from the group at hand; a
write adds one for each write replica that reads do not ask (per data centre for the levels that count per
data centre), so a write acknowledged during a change also holds before and after it. Lists have equal shapes
exactly when nodes can be renamed within their data centres so that they become the same sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import msgspec

from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.strategies import NETWORK_TOPOLOGY
from lockstep.schema.model import Replication
from lockstep.values.ids import Consistency, NodeId

DcOf = Callable[[NodeId], str]

_FIXED = {
    Consistency.ANY: 1,
    Consistency.ONE: 1,
    Consistency.LOCAL_ONE: 1,
    Consistency.TWO: 2,
    Consistency.THREE: 3,
}
#: Levels whose reads are monotonic: once returned, a value is seen by every later read of the level.
MONOTONIC_LEVELS = (Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM)
LOCAL_LEVELS = (Consistency.LOCAL_ONE, Consistency.LOCAL_QUORUM, Consistency.LOCAL_SERIAL)


class Requirement(msgspec.Struct, frozen=True, array_like=True):
    """`count` acknowledgements from nodes of data centre `dc`; dc "" means from any replica."""

    dc: str
    count: int


class Counterexample(msgspec.Struct, frozen=True):
    """A read quorum and a write quorum that do not meet."""

    levels: str
    dc: str
    readers: tuple[NodeId, ...]
    writers: tuple[NodeId, ...]

    def text(self) -> str:
        where = f" in data centre {self.dc}" if self.dc else ""
        return (
            f"{self.levels}{where}: readers {list(self.readers)} would miss "
            f"a write acknowledged by {list(self.writers)}"
        )


def majority(factor: int) -> int:
    return factor // 2 + 1


def dc_factors(replication: Replication) -> tuple[tuple[str, int], ...]:
    """(data centre, factor) where the strategy counts per data centre; empty for SimpleStrategy."""
    if replication.strategy != NETWORK_TOPOLOGY:
        return ()
    return tuple((dc, factor) for dc, factor in replication.factors if factor > 0)


def local_factor(replication: Replication, dc: str) -> int:
    """Factor that LOCAL_* levels count in `dc`: the whole factor under SimpleStrategy, as Cassandra does."""
    if replication.strategy != NETWORK_TOPOLOGY:
        return replication.total
    return dict(replication.factors).get(dc, 0)


def required_reads(
    consistency: Consistency, replication: Replication, local_dc: str
) -> tuple[Requirement, ...]:
    """What a read must hear; every requirement must be met, from read replicas only.

    SimpleStrategy has no counts per data centre: EACH_QUORUM is QUORUM there and LOCAL_QUORUM counts
    the whole factor but only local replicas, as in Cassandra.
    """
    if consistency in _FIXED:
        dc = local_dc if consistency in LOCAL_LEVELS else ""
        return (Requirement(dc, _FIXED[consistency]),)
    if consistency is Consistency.ALL:
        return (Requirement("", replication.total),)
    if consistency in LOCAL_LEVELS:
        return (Requirement(local_dc, majority(local_factor(replication, local_dc))),)
    if consistency is Consistency.EACH_QUORUM and replication.strategy == NETWORK_TOPOLOGY:
        return tuple(Requirement(dc, majority(factor)) for dc, factor in dc_factors(replication))
    return (Requirement("", majority(replication.total)),)


def required_writes(
    consistency: Consistency, replication: Replication, local_dc: str, group: ReplicaGroup, dc_of: DcOf
) -> tuple[Requirement, ...]:
    """What a write must hear from `group.writes`: the level's counts plus the write-only replicas.

    EACH_QUORUM also hears those in a data centre that gets its first replica, or loses its last one.
    """
    write_only = [dc_of(node) for node in group.write_only]
    needs = tuple(
        Requirement(need.dc, need.count + (write_only.count(need.dc) if need.dc else len(write_only)))
        for need in required_reads(consistency, replication, local_dc)
    )
    if not write_only or consistency is not Consistency.EACH_QUORUM:
        return needs
    if replication.strategy != NETWORK_TOPOLOGY:
        return needs
    counted = [need.dc for need in needs]
    others = sorted({dc for dc in write_only if dc not in counted})
    return needs + tuple(Requirement(dc, write_only.count(dc)) for dc in others)


class Passing(msgspec.Struct, frozen=True):
    """Where a range whose group is still the old one is going: the replicas `new`, counted by `later`."""

    new: Sequence[NodeId]
    later: Replication


def required_while_filling(
    consistency: Consistency,
    replication: Replication,
    local_dc: str,
    group: ReplicaGroup,
    dc_of: DcOf,
    passing: Passing,
) -> tuple[Requirement, ...]:
    """What a write must hear while replicas are filled for other counts: what both settings ask for.

    Nobody copies what is written from now on, so it must be on a quorum of the new replicas by itself. A
    LOCAL_QUORUM in a data centre that gets rid of its replicas is a quorum of the others too.
    """
    needs = required_writes(consistency, replication, local_dc, group, dc_of)
    if consistency not in MONOTONIC_LEVELS:
        return needs
    most = {need.dc: need.count for need in needs}
    wanted = list(required_reads(consistency, passing.later, local_dc))
    if consistency is Consistency.LOCAL_QUORUM and not local_factor(passing.later, local_dc):
        wanted.append(Requirement("", majority(passing.later.total)))
    for need in wanted:
        members = [node for node in group.writes if not need.dc or dc_of(node) == need.dc]
        going = sum(node not in passing.new for node in members)
        assert 0 <= going <= len(members), "who goes is a member"
        count = min(need.count, len(members) - going) + going
        most[need.dc] = max(count, most.get(need.dc, 0))
    return tuple(Requirement(dc, count) for dc, count in most.items())


def reads_like_writes(consistency: Consistency, group: ReplicaGroup, recounts: bool) -> bool:
    """Whether a read hears as many of the group's write replicas as a write must, and repairs the others.

    While a replica is pending, what a quorum read returns must also survive the read switch. While the
    number of replicas changes (`recounts`), so must ALL: a write that one replica took is otherwise missed by
    a reader of before.
    """
    if not group.write_only:
        return False
    return consistency in MONOTONIC_LEVELS or (consistency is Consistency.ALL and recounts)


def intersects(
    readers: Iterable[NodeId], read_count: int, writers: Iterable[NodeId], write_count: int
) -> bool:
    """True when every choice of `read_count` readers meets every choice of `write_count` writers.

    Two disjoint choices exist exactly when both counts can be met and together fit into the union;
    a count that cannot be met never succeeds and so breaks nothing.
    """
    assert read_count >= 0 and write_count >= 0, "counts of answers"
    read_set, write_set = frozenset(readers), frozenset(writers)
    if read_count > len(read_set) or write_count > len(write_set):
        return True
    return read_count + write_count > len(read_set | write_set)


def adjacent_safe(
    before: ReplicaGroup,
    after: ReplicaGroup,
    replication: Replication,
    dc_of: DcOf,
    later: Replication | None = None,
) -> Counterexample | None:
    """None when coordinators one version apart cannot miss each other's acknowledged writes.

    `later` is what counts follow at `after` where the range changes its replication. Checked in both
    directions, and within each version: QUORUM with QUORUM (SERIAL counts the same), ALL with ONE and ONE
    with ALL, and per data centre LOCAL_QUORUM with LOCAL_QUORUM and LOCAL_QUORUM with EACH_QUORUM.
    """
    assert {*before.reads} <= {*before.writes} and {*after.reads} <= {*after.writes}, "readers get writes"
    one, two = (before, replication), (after, replication if later is None else later)
    for reading, writing in ((one, one), (one, two), (two, one), (two, two)):
        found = _missed_globally(*reading, *writing, later is not None) or _missed_in_a_dc(
            *reading, *writing, dc_of
        )
        if found is not None:
            return found
    return None


def _missed_globally(
    reading: ReplicaGroup,
    read_as: Replication,
    writing: ReplicaGroup,
    written_as: Replication,
    recounts: bool,
) -> Counterexample | None:
    read_total, write_total, pending = read_as.total, written_as.total, len(writing.write_only)
    everyone, all_count = reading.reads, read_total
    if reads_like_writes(Consistency.ALL, reading, recounts):
        everyone, all_count = reading.writes, read_total + len(reading.write_only)
    for levels, readers, read_count, write_count in (
        ("QUORUM-QUORUM", reading.reads, majority(read_total), majority(write_total)),
        ("ONE-ALL", reading.reads, 1, write_total),
        ("ALL-ONE", everyone, all_count, 1),
    ):
        acknowledgements = write_count + pending
        if not intersects(readers, read_count, writing.writes, acknowledgements):
            return _counterexample(levels, "", readers, read_count, writing.writes, acknowledgements)
    return None


def _missed_in_a_dc(
    reading: ReplicaGroup,
    read_as: Replication,
    writing: ReplicaGroup,
    written_as: Replication,
    dc_of: DcOf,
) -> Counterexample | None:
    """A data centre without a factor has nobody who reads there, and EACH_QUORUM asks only its pending
    replicas; SimpleStrategy counts its whole factor, and its EACH_QUORUM is QUORUM."""
    written = dict(dc_factors(written_as))
    for dc in dict(dc_factors(read_as)) | written:
        readers = [node for node in reading.reads if dc_of(node) == dc]
        writers = [node for node in writing.writes if dc_of(node) == dc]
        pending = sum(dc_of(node) == dc for node in writing.write_only)
        read_count = majority(local_factor(read_as, dc))
        local = majority(local_factor(written_as, dc)) + pending
        each = local if dc in written else pending
        if not intersects(readers, read_count, writers, local):
            return _counterexample("LOCAL_QUORUM-LOCAL_QUORUM", dc, readers, read_count, writers, local)
        counted = written_as.strategy == NETWORK_TOPOLOGY == read_as.strategy
        if counted and not intersects(readers, read_count, writers, each):
            return _counterexample("LOCAL_QUORUM-EACH_QUORUM", dc, readers, read_count, writers, each)
    return None


def sure_copies(members: int, factor: int) -> int:
    """On how many of a group's members each write is that a quorum acknowledged. All movements keep this up.

    A group smaller than a quorum acknowledges none; what it has from before is on all of it.
    """
    assert members >= 0 and factor >= 0, "numbers of replicas"
    return min(members, majority(factor))


def _counterexample(
    levels: str,
    dc: str,
    readers: Sequence[NodeId],
    read_count: int,
    writers: Sequence[NodeId],
    write_count: int,
) -> Counterexample:
    """Disjoint choices: readers that get no writes first, then writers that were not chosen."""
    chosen = sorted(readers, key=lambda node: (node in writers, node))[:read_count]
    left = [node for node in writers if node not in chosen]
    acknowledged = sorted(left, key=lambda node: (node in readers, node))[:write_count]
    assert (len(chosen), len(acknowledged)) == (read_count, write_count), "two choices that do not meet"
    return Counterexample(levels, dc, tuple(sorted(chosen)), tuple(sorted(acknowledged)))


#: By data centre, for how many nodes each combination of the lists is the one they are in.
Shape = tuple[tuple[str, int], ...]


def shape_of(lists: Sequence[Sequence[NodeId]], dc_of: Callable[[NodeId], str]) -> Shape:
    """The shape of these lists taken together; their order counts, that of the nodes in them does not."""
    assert lists, "a shape is that of some lists"
    member = dict.fromkeys(lists[0], 1)
    bit = 1
    for nodes in lists[1:]:
        bit <<= 1
        for node in nodes:
            member[node] = member.get(node, 0) | bit
    return tuple(sorted(zip(map(dc_of, member), member.values(), strict=True)))
