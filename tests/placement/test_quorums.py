"""Counts per level, the closed formula against all choices, and which versions may coexist."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import (
    Passing,
    Requirement,
    adjacent_safe,
    intersects,
    reads_like_writes,
    required_reads,
    required_while_filling,
    required_writes,
)
from lockstep.schema.model import Replication
from lockstep.values.ids import Consistency, NodeId
from tests.placement.twins import intersects_by_search

RF3 = Replication("SimpleStrategy", (("", 3),))
TWO_DCS = Replication("NetworkTopologyStrategy", (("dc1", 3), ("dc2", 2)))


def one_dc(_node: NodeId) -> str:
    return "dc1"


def by_tens(node: NodeId) -> str:
    return f"dc{node // 10}"


def group(reads: list[int], writes: list[int]) -> ReplicaGroup:
    return ReplicaGroup(tuple(map(NodeId, reads)), tuple(map(NodeId, writes)), 1)


nodes = st.lists(st.integers(1, 7).map(NodeId), max_size=5)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(nodes, st.integers(0, 6), nodes, st.integers(0, 6))
def test_the_formula_equals_trying_every_choice(
    readers: list[NodeId], read_count: int, writers: list[NodeId], write_count: int
) -> None:
    assert intersects(readers, read_count, writers, write_count) == intersects_by_search(
        readers, read_count, writers, write_count
    )


@pytest.mark.parametrize(
    ("level", "expected"),
    [
        (Consistency.ONE, [("", 1)]),
        (Consistency.TWO, [("", 2)]),
        (Consistency.THREE, [("", 3)]),
        (Consistency.QUORUM, [("", 3)]),
        (Consistency.SERIAL, [("", 3)]),
        (Consistency.ALL, [("", 5)]),
        (Consistency.LOCAL_ONE, [("dc1", 1)]),
        (Consistency.LOCAL_QUORUM, [("dc1", 2)]),
        (Consistency.LOCAL_SERIAL, [("dc1", 2)]),
        (Consistency.EACH_QUORUM, [("dc1", 2), ("dc2", 2)]),
    ],
)
def test_reads_need_the_level_of_the_factor(level: Consistency, expected: list[tuple[str, int]]) -> None:
    assert required_reads(level, TWO_DCS, "dc1") == tuple(Requirement(*need) for need in expected)


def test_a_write_also_needs_each_replica_that_reads_do_not_ask() -> None:
    changing = group([10, 11, 12, 20, 21], [10, 11, 12, 20, 21, 13, 22])
    counts = {
        level: required_writes(level, TWO_DCS, "dc1", changing, by_tens)
        for level in (Consistency.ONE, Consistency.QUORUM, Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM)
    }
    assert counts[Consistency.ONE] == (Requirement("", 3),)
    assert counts[Consistency.QUORUM] == (Requirement("", 5),)
    assert counts[Consistency.LOCAL_QUORUM] == (Requirement("dc1", 3),)
    assert counts[Consistency.EACH_QUORUM] == (Requirement("dc1", 3), Requirement("dc2", 3))


#: A replaces nobody, then D replaces A: the four versions of one range at factor 3.
VERSIONS = {
    "split": group([1, 2, 3], [1, 2, 3]),
    "write both": group([1, 2, 3], [1, 2, 3, 4]),
    "read new": group([4, 2, 3], [4, 2, 3, 1]),
    "new only": group([4, 2, 3], [4, 2, 3]),
}


def test_neighbouring_versions_are_safe_and_all_others_are_not() -> None:
    names = list(VERSIONS)
    unsafe = {
        (a, b)
        for a, b in itertools.combinations(names, 2)
        if adjacent_safe(VERSIONS[a], VERSIONS[b], RF3, one_dc) is not None
    }
    assert unsafe == {("split", "read new"), ("split", "new only"), ("write both", "new only")}


def test_a_counterexample_names_choices_that_really_miss_each_other() -> None:
    found = adjacent_safe(VERSIONS["write both"], VERSIONS["new only"], RF3, one_dc)
    assert found is not None
    assert not set(found.readers) & set(found.writers)
    assert found.levels.startswith("QUORUM")
    assert "would miss" in found.text()


def test_a_quorum_within_a_data_centre_is_proved_by_itself() -> None:
    """No other pair of levels shows it: SimpleStrategy has no EACH_QUORUM of its own."""
    before, after = group([11, 13, 20], [11, 13, 20]), group([10, 12], [10, 12, 13, 22])
    later = Replication("SimpleStrategy", (("", 3),))
    found = adjacent_safe(
        before, after, Replication("NetworkTopologyStrategy", (("dc1", 3), ("dc2", 3))), by_tens, later
    )
    assert found is not None
    assert (found.levels, found.dc) == ("LOCAL_QUORUM-LOCAL_QUORUM", "dc1")
    assert {by_tens(node) for node in (*found.readers, *found.writers)} == {"dc1"}


def test_a_read_is_like_a_write_only_while_replicas_are_pending() -> None:
    settled, pending = group([1, 2, 3], [1, 2, 3]), group([1, 2, 3], [1, 2, 3, 4])
    assert not any(
        reads_like_writes(level, settled, recounts) for level in Consistency for recounts in (False, True)
    )
    assert reads_like_writes(Consistency.QUORUM, pending, recounts=False)
    assert not reads_like_writes(Consistency.ONE, pending, recounts=True)
    assert not reads_like_writes(Consistency.ALL, pending, recounts=False)
    assert reads_like_writes(Consistency.ALL, pending, recounts=True)


def test_a_local_write_while_filling_hears_a_quorum_of_its_own_data_centre() -> None:
    whole = [11, 12, 13, 21, 22]
    later = Passing([NodeId(node) for node in whole], TWO_DCS)
    for dc, count in (("dc1", 2), ("dc2", 2)):
        needs = required_while_filling(
            Consistency.LOCAL_QUORUM, TWO_DCS, dc, group(whole, whole), by_tens, later
        )
        assert needs == (Requirement(dc, count),)


@settings(max_examples=200, deadline=None)
@given(st.permutations(range(1, 7)), st.integers(1, 3), st.integers(0, 2))
def test_write_both_stages_are_safe_for_any_number_of_replaced_replicas(
    order: list[int], factor: int, replaced: int
) -> None:
    old = order[:factor]
    gained = order[factor : factor + min(replaced, factor)]
    new = gained + old[len(gained) :]
    lost = [node for node in old if node not in new]
    replication = Replication("SimpleStrategy", (("", factor),))
    path = [group(old, old), group(old, old + gained), group(new, new + lost), group(new, new)]
    for before, after in itertools.pairwise(path):
        assert adjacent_safe(before, after, replication, one_dc) is None


# Counts that change with the replicas


def replication_at(strategy: str, **factors: int) -> Replication:
    named = tuple(sorted((dc if dc != "all" else "", factor) for dc, factor in factors.items() if factor))
    return Replication(strategy, named)


def allowed(needs: tuple[Requirement, ...], nodes: tuple[NodeId, ...]) -> list[frozenset[NodeId]]:
    """Every set of answers that meets the needs."""
    found = []
    for count in range(len(nodes) + 1):
        for chosen in itertools.combinations(nodes, count):
            met = (sum(need.dc in ("", by_tens(n)) for n in chosen) >= need.count for need in needs)
            if all(met):
                found.append(frozenset(chosen))
    return found


def missed_by_search(
    reading: ReplicaGroup,
    read_as: Replication,
    read_level: Consistency,
    writing: ReplicaGroup,
    written_as: Replication,
    write_level: Consistency,
    dc: str,
) -> bool:
    """The slow, obvious twin: whether some answers to a read have nobody who acknowledged the write."""
    writers = required_writes(write_level, written_as, dc, writing, by_tens)
    if read_level is Consistency.ALL and reads_like_writes(read_level, reading, recounts=True):
        readers, asked = required_writes(read_level, read_as, dc, reading, by_tens), reading.writes
    else:
        readers, asked = required_reads(read_level, read_as, dc), reading.reads
    acknowledged = allowed(writers, writing.writes)
    return any(read.isdisjoint(write) for read in allowed(readers, asked) for write in acknowledged)


PAIRS = (
    (Consistency.QUORUM, Consistency.QUORUM),
    (Consistency.ONE, Consistency.ALL),
    (Consistency.ALL, Consistency.ONE),
    (Consistency.LOCAL_QUORUM, Consistency.LOCAL_QUORUM),
    (Consistency.LOCAL_QUORUM, Consistency.EACH_QUORUM),
)


@pytest.mark.parametrize(
    ("old", "before", "new", "after"),
    [
        ([10], {"dc1": 1}, [10, 11], {"dc1": 2}),
        ([10, 11], {"dc1": 2}, [10, 11, 12], {"dc1": 3}),
        ([10, 11], {"dc1": 2}, [10], {"dc1": 1}),
        ([10, 11, 12], {"dc1": 3}, [10, 12], {"dc1": 2}),
        ([10, 11], {"dc1": 2}, [10, 11, 20], {"dc1": 2, "dc2": 1}),
        ([10, 20], {"dc1": 1, "dc2": 1}, [10], {"dc1": 1}),
        ([10, 20], {"dc1": 1, "dc2": 1}, [10, 20, 21], {"dc1": 1, "dc2": 2}),
    ],
)
def test_every_step_of_a_change_of_factors_is_safe_at_every_level(
    old: list[int], before: dict[str, int], new: list[int], after: dict[str, int]
) -> None:
    strategy = "NetworkTopologyStrategy"
    one, other = replication_at(strategy, **before), replication_at(strategy, **after)
    gained, lost = [n for n in new if n not in old], [n for n in old if n not in new]
    path = [
        (group(old, old), one),
        (group(old, old + gained), one),
        (group(new, new + lost), other),
        (group(new, new), other),
    ]
    for (a, counts_a), (b, counts_b) in itertools.pairwise(path):
        assert adjacent_safe(a, b, counts_a, by_tens, counts_b) is None
        for (reading, r), (writing, w) in itertools.product([(a, counts_a), (b, counts_b)], repeat=2):
            for read_level, write_level in PAIRS:
                for dc in ("dc1", "dc2"):
                    local = read_level is Consistency.LOCAL_QUORUM
                    if local and dc not in dict(r.factors):
                        continue
                    missed = missed_by_search(reading, r, read_level, writing, w, write_level, dc)
                    assert not missed, (reading, writing, read_level, write_level, dc)


@pytest.mark.parametrize("seed", range(60))
def test_the_proof_for_two_replications_finds_what_a_search_finds(seed: int) -> None:
    rng = random.Random(seed)
    strategy = "NetworkTopologyStrategy"
    nodes = [10, 11, 12, 20, 21]

    def drawn() -> tuple[ReplicaGroup, Replication]:
        reads = rng.sample(nodes, rng.randint(1, 3))
        others = [n for n in nodes if n not in reads]
        writes = reads + rng.sample(others, rng.randint(0, min(2, len(others))))
        factors = {"dc1": rng.randint(0, 3), "dc2": rng.randint(0, 2)}
        if not sum(factors.values()):
            factors["dc1"] = 1
        return group(reads, writes), replication_at(strategy, **factors)

    (a, counts_a), (b, counts_b) = drawn(), drawn()
    versions = [(a, counts_a), (b, counts_b)]
    missed = False
    for (reading, r), (writing, w) in itertools.product(versions, repeat=2):
        for dc in dict(r.factors) | dict(w.factors):
            for read_level, write_level in PAIRS:
                if read_level is Consistency.LOCAL_QUORUM and write_level is Consistency.EACH_QUORUM:
                    # The proof asks for what EACH_QUORUM promises one data centre, whatever others do.
                    continue
                missed |= missed_by_search(reading, r, read_level, writing, w, write_level, dc)
    found = adjacent_safe(a, b, counts_a, by_tens, counts_b)
    if missed:
        assert found is not None
    elif found is not None:
        assert "EACH_QUORUM" in found.levels
