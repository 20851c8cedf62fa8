"""Whether any read can miss an acknowledged write, over every version of every range of a run.

For two versions of a range, `distance` changes apart, and two consistency levels that promise to meet (the
documented pairs, and all that do in a settled group of the same replication), every set of nodes that
satisfies the read under one version is compared with every set that satisfies the write under the other.
Distances 0 and 1 must be safe: barriers let coordinators be at most one change apart. From 2 on the same
comparison must find misses in what moved, or it would not be looking.

Invariant: what a request must hear is asked of the code that plans requests; whether sets meet is counted.

Every quorum of a request as a bit mask, and whether any two of them can miss each other.

Invariant: `missing_pairs` looks at each pair of the given sets; nothing is derived from the arithmetic that
the product uses. `missing_classes` is the same question over counts per class of interchangeable nodes, for
unions too large to list.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import DcOf, Requirement
from lockstep.quorum.needs import needs_of
from lockstep.schema.model import Replication
from lockstep.values.ids import Consistency, NodeId

#: Unions up to this many nodes are listed set by set: 4096 sets, at most 16 million pairs.
LISTED_NODES_MAX = 12
#: Of what layouts and flaws have in common, each case is compared once: more than one whole check has.
_CASES_KEPT = 1 << 14
#: Pairs compared in one step: the block of results stays in the cache of a core.
_BLOCK_PAIRS = 1 << 17

Masks = np.ndarray[Any, np.dtype[np.uint16]]
Counts = np.ndarray[Any, np.dtype[np.int8]]


class Side(msgspec.Struct, frozen=True):
    """One side of a pair: which nodes (by position in the union) may answer, and what must be met.

    `homes` gives the data centre of every node of the union.
    """

    members: tuple[int, ...]
    homes: tuple[str, ...]
    needs: tuple[Requirement, ...]


def quorum_masks(side: Side) -> Masks:
    """Each set of members that meets every need, supersets too; shape (sets,), bit i is node i."""
    size = len(side.homes)
    assert size <= LISTED_NODES_MAX, "too many nodes to list every set"
    allowed = sum(1 << node for node in side.members)
    masks = np.arange(1 << size, dtype=np.uint16)
    masks = masks[(masks & np.uint16(~allowed & 0xFFFF)) == 0]
    for need in side.needs:
        counted = sum(1 << n for n in side.members if need.dc in ("", side.homes[n]))
        masks = masks[_bits(masks & np.uint16(counted)) >= need.count]
    return np.asarray(masks, dtype=np.uint16)


def _bits(masks: Masks) -> Counts:
    found: Counts = _BITS[masks]
    return found


#: How many bits each mask has.
_BITS: Counts = np.array([mask.bit_count() for mask in range(1 << LISTED_NODES_MAX)], dtype=np.int8)


def missing_pairs(readers: Masks, writers: Masks) -> int:
    """How many pairs (reader set, writer set) have no node in common; every pair is compared."""
    if not len(readers) or not len(writers):
        return 0
    rows = max(1, _BLOCK_PAIRS // len(writers))
    met = 0
    for at in range(0, len(readers), rows):
        block = readers[at : at + rows, np.newaxis] & writers[np.newaxis, :]
        met += int(np.count_nonzero(block))
    return len(readers) * len(writers) - met


def missing_example(readers: Masks, writers: Masks) -> tuple[int, int] | None:
    """The first pair of masks without a common node, smallest sets first."""
    by_size = np.argsort(_bits(writers), kind="stable")
    for reader in readers[np.argsort(_bits(readers), kind="stable")]:
        apart = np.flatnonzero((writers[by_size] & reader) == 0)
        if len(apart):
            return int(reader), int(writers[by_size][apart[0]])
    return None


class Classes(msgspec.Struct, frozen=True):
    """Nodes of the union grouped by (asked by the read, asked by the write, data centre)."""

    sizes: tuple[int, ...]
    read: tuple[bool, ...]
    written: tuple[bool, ...]
    homes: tuple[str, ...]


def classes_of(reading: Side, writing: Side) -> Classes:
    found: dict[tuple[bool, bool, str], int] = {}
    for node, home in enumerate(reading.homes):
        key = (node in reading.members, node in writing.members, home)
        found[key] = found.get(key, 0) + 1
    keys = sorted(found)
    return Classes(
        tuple(found[key] for key in keys),
        tuple(key[0] for key in keys),
        tuple(key[1] for key in keys),
        tuple(key[2] for key in keys),
    )


def quorum_counts(classes: Classes, asked: Sequence[bool], needs: Sequence[Requirement]) -> Counts:
    """Each choice of how many nodes of every class answer that meets the needs; shape (choices, classes)."""
    limits = [size if use else 0 for size, use in zip(classes.sizes, asked, strict=True)]
    grids = np.meshgrid(*(np.arange(limit + 1, dtype=np.int8) for limit in limits), indexing="ij")
    counts: Counts = np.stack([grid.ravel() for grid in grids], axis=1)
    for need in needs:
        columns = [at for at, home in enumerate(classes.homes) if need.dc in ("", home)]
        counts = counts[counts[:, columns].sum(axis=1) >= need.count]
    return counts


def missing_classes(classes: Classes, readers: Counts, writers: Counts) -> int:
    """How many pairs of choices leave room for disjoint sets: in every class both fit side by side."""
    if not len(readers) or not len(writers):
        return 0
    sizes = classes.sizes
    rows = max(1, _BLOCK_PAIRS // len(writers))
    missing = 0
    for at in range(0, len(readers), rows):
        room = np.ones((len(readers[at : at + rows]), len(writers)), dtype=bool)
        for column in range(len(sizes)):
            together = readers[at : at + rows, column, np.newaxis] + writers[np.newaxis, :, column]
            room &= together <= sizes[column]
        missing += int(room.sum())
    return missing


DISTANCE_MAX = 3
#: Up to this distance no read may miss a write.
SAFE_DISTANCE = 1

READ_LEVELS = (
    Consistency.ONE, Consistency.TWO, Consistency.THREE, Consistency.QUORUM, Consistency.ALL,
    Consistency.LOCAL_ONE, Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM, Consistency.SERIAL,
    Consistency.LOCAL_SERIAL,
)  # fmt: skip
WRITE_LEVELS = (Consistency.ANY, *READ_LEVELS)

_QUORUMS = (Consistency.QUORUM, Consistency.SERIAL)
_LOCAL_QUORUMS = (Consistency.LOCAL_QUORUM, Consistency.LOCAL_SERIAL)

#: Number of nodes by (reads then, written then, reads now, written now, data centre).
Shape = tuple[tuple[tuple[bool, bool, bool, bool, str], int], ...]
#: (level, replication, local dc, group, dc of a node, writing) -> (needs, nodes that may answer).
NeedsOf = Callable[
    [Consistency, Replication, str, ReplicaGroup, DcOf, bool],
    tuple[tuple[Requirement, ...], tuple[NodeId, ...]],
]


class Case(msgspec.Struct, frozen=True):
    """A comparison up to the names of the nodes; equal cases have equal results."""

    homes: tuple[str, ...]
    readers: tuple[int, ...]
    read_needs: tuple[Requirement, ...]
    writers: tuple[int, ...]
    write_needs: tuple[Requirement, ...]

    def sides(self) -> tuple[Side, Side]:
        return (
            Side(self.readers, self.homes, self.read_needs),
            Side(self.writers, self.homes, self.write_needs),
        )


class Outcome(msgspec.Struct, frozen=True):
    """`listed` and `classed`: pairs compared set by set and class by class; `missing` of the former,
    or of the latter where the union is too large to list."""

    listed: int
    classed: int
    missing: int


class Missed(msgspec.Struct, frozen=True):
    """A promise that does not hold, with one pair of sets as proof."""

    replication: Replication
    distance: int
    levels: str
    readers: tuple[NodeId, ...]
    writers: tuple[NodeId, ...]

    def text(self) -> str:
        factors = ", ".join(f"{dc or 'rf'} {factor}" for dc, factor in self.replication.factors)
        return (
            f"{self.levels}, {self.distance} changes apart, {factors}: readers {list(self.readers)} "
            f"miss a write acknowledged by {list(self.writers)}"
        )


#: Levels, and a set of readers and one of writers without a common node (empty where none was listed).
Miss = tuple[str, tuple[NodeId, ...], tuple[NodeId, ...]]


class Judged(msgspec.Struct, frozen=True):
    """All promised levels of one pair of versions; the misses name the nodes of its first occurrence."""

    comparisons: int
    pairs: int
    misses: tuple[Miss, ...]


class Checker:
    """Compares versions and keeps counts; each case is compared once and counted as often as it occurs."""

    def __init__(self, needs: NeedsOf = needs_of) -> None:
        self._needs = needs
        self._known: dict[Case, Outcome] = {}
        self._shapes: dict[tuple[Replication, Shape], Judged] = {}
        self._promises: dict[tuple[Replication, Consistency, str, Consistency, str], bool] = {}
        self.listed_pairs = 0
        self.classed_pairs = 0
        #: Pairs that equal cases stand for, the compared ones included.
        self.represented_pairs = 0
        self.comparisons = 0
        #: distance -> comparisons in which some pair misses.
        self.unsafe: dict[int, int] = dict.fromkeys(range(DISTANCE_MAX + 1), 0)
        self.checked: dict[int, int] = dict.fromkeys(range(DISTANCE_MAX + 1), 0)
        self.missed: list[Missed] = []

    @property
    def cases(self) -> int:
        return len(self._known)

    def versions(self, replication: Replication, versions: Sequence[ReplicaGroup], dc_of: DcOf) -> None:
        """Compare every two versions of one range that are at most DISTANCE_MAX changes apart."""
        for at, one in enumerate(versions):
            for distance in range(min(DISTANCE_MAX, len(versions) - 1 - at) + 1):
                other = versions[at + distance]
                self._compare(replication, distance, one, other, dc_of)
                if distance:
                    self._compare(replication, distance, other, one, dc_of)

    def _compare(
        self,
        replication: Replication,
        distance: int,
        reading: ReplicaGroup,
        writing: ReplicaGroup,
        dc_of: DcOf,
    ) -> None:
        shape = (replication, _shape(reading, writing, dc_of))
        judged = self._shapes.get(shape)
        if judged is None:
            judged = self._shapes[shape] = self._judge(replication, reading, writing, dc_of)
        self.comparisons += judged.comparisons
        self.represented_pairs += judged.pairs
        self.checked[distance] += judged.comparisons
        self.unsafe[distance] += len(judged.misses)
        if distance <= SAFE_DISTANCE:
            self.missed.extend(
                Missed(replication, distance, levels, readers, writers)
                for levels, readers, writers in judged.misses
            )

    def _judge(
        self, replication: Replication, reading: ReplicaGroup, writing: ReplicaGroup, dc_of: DcOf
    ) -> Judged:
        comparisons = pairs = 0
        misses: list[Miss] = []
        for read_level, read_dc, write_level, write_dc in self._promised(replication):
            needs, readers = self._needs(read_level, replication, read_dc, reading, dc_of, False)
            write_needs, writers = self._needs(write_level, replication, write_dc, writing, dc_of, True)
            order, case = _case(readers, needs, writers, write_needs, dc_of)
            outcome = self._outcome(case)
            comparisons += 1
            pairs += outcome.listed or outcome.classed
            if outcome.missing:
                read_text, write_text = _level_text(read_level, read_dc), _level_text(write_level, write_dc)
                misses.append((f"{read_text} reads, {write_text} writes", *_proof(case, order)))
        return Judged(comparisons, pairs, tuple(misses))

    def _outcome(self, case: Case) -> Outcome:
        found = self._known.get(case)
        if found is None:
            found = self._known[case] = compare(case)
            self.listed_pairs += found.listed
            self.classed_pairs += found.classed
        return found

    def _promised(self, replication: Replication) -> Iterator[tuple[Consistency, str, Consistency, str]]:
        """Level pairs, each with its coordinator's data centre, that always meet in a settled group."""
        dcs = [dc for dc, factor in replication.factors if factor > 0]
        for read_level in READ_LEVELS:
            for read_dc in dcs if _is_local(read_level) else dcs[:1]:
                for write_level in WRITE_LEVELS:
                    for write_dc in dcs if _is_local(write_level) else dcs[:1]:
                        key = (replication, read_level, read_dc, write_level, write_dc)
                        if key not in self._promises:
                            self._promises[key] = _documented(*key[1:]) or _meets_when_settled(*key)
                        if self._promises[key]:
                            yield read_level, read_dc, write_level, write_dc


@functools.lru_cache(_CASES_KEPT)
def compare(case: Case) -> Outcome:
    """Compare all pairs of the case: set by set up to LISTED_NODES_MAX nodes, by classes in any case."""
    reading, writing = case.sides()
    classes = classes_of(reading, writing)
    read_counts = quorum_counts(classes, classes.read, case.read_needs)
    write_counts = quorum_counts(classes, classes.written, case.write_needs)
    classed = len(read_counts) * len(write_counts)
    by_class = missing_classes(classes, read_counts, write_counts)
    if len(case.homes) > LISTED_NODES_MAX:
        return Outcome(0, classed, by_class)
    readers, writers = quorum_masks(reading), quorum_masks(writing)
    missing = missing_pairs(readers, writers)
    assert bool(missing) == bool(by_class), f"the two counts disagree about {case}"
    return Outcome(len(readers) * len(writers), classed, missing)


def _shape(reading: ReplicaGroup, writing: ReplicaGroup, dc_of: DcOf) -> Shape:
    """How many nodes of each data centre read and write in which version: all that a verdict depends on."""
    counts: dict[tuple[bool, bool, bool, bool, str], int] = {}
    for node in dict.fromkeys((*reading.writes, *writing.writes)):
        key = (
            node in reading.reads, node in reading.writes, node in writing.reads, node in writing.writes,
            dc_of(node),
        )  # fmt: skip
        counts[key] = counts.get(key, 0) + 1
    return tuple(sorted(counts.items()))


def _case(
    readers: Sequence[NodeId],
    read_needs: tuple[Requirement, ...],
    writers: Sequence[NodeId],
    write_needs: tuple[Requirement, ...],
    dc_of: DcOf,
) -> tuple[tuple[NodeId, ...], Case]:
    """The union in an order by class, and the case with positions in it, so that equal shapes are equal."""
    union = dict.fromkeys((*readers, *writers))
    order = sorted(union, key=lambda node: (node not in readers, node not in writers, dc_of(node), node))
    place = {node: at for at, node in enumerate(order)}
    return tuple(order), Case(
        tuple(dc_of(node) for node in order),
        tuple(sorted(place[node] for node in readers)),
        read_needs,
        tuple(sorted(place[node] for node in writers)),
        write_needs,
    )


def _documented(read_level: Consistency, read_dc: str, write_level: Consistency, write_dc: str) -> bool:
    """The pairs that the documentation promises whatever the factors, so that a wrong count cannot hide."""
    levels = {read_level, write_level}
    return (
        levels <= set(_QUORUMS)
        or (levels <= set(_LOCAL_QUORUMS) and read_dc == write_dc)
        or levels == {Consistency.EACH_QUORUM, Consistency.LOCAL_QUORUM}
        or levels == {Consistency.ALL, Consistency.ONE}
    )


def _meets_when_settled(
    replication: Replication, read_level: Consistency, read_dc: str, write_level: Consistency, write_dc: str
) -> bool:
    """Whether the two levels always meet among exactly the replicas that the replication names."""
    homes: dict[NodeId, str] = {}
    for dc, factor in replication.factors:
        for _ in range(factor):
            homes[NodeId(len(homes) + 1)] = dc
    nodes = tuple(homes)
    group = ReplicaGroup(nodes, nodes, 1)
    dc_of = homes.__getitem__
    needs, readers = needs_of(read_level, replication, read_dc, group, dc_of, False)
    write_needs, writers = needs_of(write_level, replication, write_dc, group, dc_of, True)
    _, case = _case(readers, needs, writers, write_needs, dc_of)
    outcome = compare(case)
    return bool(outcome.classed) and not outcome.missing


def _is_local(level: Consistency) -> bool:
    return level in (Consistency.LOCAL_ONE, Consistency.LOCAL_QUORUM, Consistency.LOCAL_SERIAL)


def _level_text(level: Consistency, dc: str) -> str:
    return f"{level.name} in {dc}" if dc and _is_local(level) else level.name


def _proof(case: Case, order: tuple[NodeId, ...]) -> tuple[tuple[NodeId, ...], tuple[NodeId, ...]]:
    if len(case.homes) > LISTED_NODES_MAX:
        return (), ()
    reading, writing = case.sides()
    found = missing_example(quorum_masks(reading), quorum_masks(writing))
    assert found is not None, "a case with a miss has an example"
    readers, writers = (tuple(node for at, node in enumerate(order) if mask >> at & 1) for mask in found)
    return readers, writers
