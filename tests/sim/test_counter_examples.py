"""The two ways in which a ring that changes too fast loses writes, and that barriers rule them out.

A, B and C replicate a range, X joins and takes A's place: until 100 the range is split, 101 writes to X as
well, 102 reads from X and no more from A, 103 leaves A out. Coordinators that know different ones of these
epochs ask different replicas; a replica refuses what was planned before the newest change of the range that
it knows. Everything is enumerated: who knows what, and which replicas answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, product

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.transformations import Initialize
from lockstep.placement.placements import ReplicaGroup
from lockstep.sim.mutants import REGISTRY
from lockstep.topology import step as step_module
from lockstep.topology.barriers import barrier_need
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.step import Propose, Reports, Wait, WorkReport, work_key, work_orders
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, simple
from tests.topology.drills import register

A, B, C, X = NodeId(1), NodeId(2), NodeId(3), NodeId(4)
NAMES = {A: "A", B: "B", C: "C", X: "X"}
SPLIT, WRITES, READS, ALONE = 100, 101, 102, 103
#: The range that X is the first replica of.
TOKEN = 50
RF3 = simple(3)


def joining() -> dict[int, ClusterMetadata]:
    """The value of each epoch; other changes before them make the numbers those of the story."""
    history = History()
    members = tuple(founder(number, (token,)) for number, token in ((1, 100), (2, 200), (3, 300)))
    history.submit(Initialize("c", "n", members, voters=(A,)))
    history.submit(SetKeyspaces((("ks", RF3),)))
    history.submit(register(4, "dc1", "r1"))
    while history.now.epoch < SPLIT - 2:
        history.submit(SetKeyspaces((("ks", RF3),)))
    history.submit(PrepareOperation(Bootstrap(X, (TOKEN,))))
    values: dict[int, ClusterMetadata] = {}
    while history.now.epoch < ALONE:
        operation = history.now.operations[0]
        history.submit(AdvanceOperation(operation.id, operation.stage, operation.step))
        values[history.now.epoch] = history.now
    return values


VALUES = joining()


def group(epoch: int) -> ReplicaGroup:
    return VALUES[epoch].group_for(1, TOKEN)


def willing(planned: int, seen: Mapping[NodeId, int], asked: Sequence[NodeId]) -> list[NodeId]:
    """Who answers a request planned at an epoch: whoever knows no later change of the range."""
    return [node for node in asked if group(seen[node]).epoch <= group(planned).epoch]


def sets(nodes: Sequence[NodeId], size: int) -> Iterator[frozenset[NodeId]]:
    return (frozenset(chosen) for chosen in combinations(sorted(nodes), size))


def missed(
    reader: int, writer: int, seen: Mapping[NodeId, int]
) -> list[tuple[frozenset[NodeId], frozenset[NodeId]]]:
    """(who answers a quorum read, who acknowledges a quorum write) wherever the two do not meet."""
    reads = willing(reader, seen, group(reader).reads)
    writes = willing(writer, seen, group(writer).writes)
    needed = 2 + len(group(writer).write_only)
    return [(asked, told) for asked in sets(reads, 2) for told in sets(writes, needed) if not asked & told]


def passes(epoch: int, seen: Mapping[NodeId, int]) -> bool:
    """Whether the coordinator leaves the stage of this epoch, all its work done, when nodes know so much."""
    cluster = VALUES[epoch]
    operation = cluster.operations[0]
    done = {work_key(order): WorkReport.DONE for order in work_orders(operation, cluster, ())}
    reports = Reports(acknowledged=dict(seen), work=done, drained=dict(seen))
    decision = step_module.decide(operation, cluster, reports)
    assert isinstance(decision, Propose | Wait), decision
    return isinstance(decision, Propose)


def reachable(newest: int) -> Iterator[dict[NodeId, int]]:
    """What each replica can know when `newest` is there: every barrier before it has passed."""
    for known in product(range(SPLIT, newest + 1), repeat=4):
        seen = dict(zip((A, B, C, X), known, strict=True))
        if all(passes(epoch, seen) for epoch in range(SPLIT, newest)):
            yield seen


def test_the_epochs_are_those_of_the_story() -> None:
    def shown(epoch: int) -> tuple[str, str]:
        one = group(epoch)
        return "".join(sorted(NAMES[n] for n in one.reads)), "".join(sorted(NAMES[n] for n in one.writes))

    assert {epoch: shown(epoch) for epoch in VALUES} == {
        SPLIT: ("ABC", "ABC"),
        WRITES: ("ABC", "ABCX"),
        READS: shown(READS),
        ALONE: shown(ALONE),
    }
    assert shown(READS)[1] == "ABCX"
    assert "X" in shown(READS)[0]
    assert shown(ALONE) == (shown(READS)[0],) * 2


LEFT_OUT = next(node for node in (A, B, C) if node not in group(ALONE).reads)
STAYING = tuple(node for node in (A, B, C) if node != LEFT_OUT)


def test_without_a_barrier_a_reader_at_101_misses_a_write_at_103() -> None:
    late, early = STAYING
    seen = {LEFT_OUT: WRITES, late: WRITES, early: ALONE, X: ALONE}
    assert (frozenset({LEFT_OUT, late}), frozenset({early, X})) in missed(WRITES, ALONE, seen)
    assert seen not in list(reachable(ALONE))


def test_without_a_barrier_a_reader_at_102_misses_a_write_at_100() -> None:
    late, early = STAYING
    seen = {LEFT_OUT: SPLIT, late: SPLIT, early: READS, X: READS}
    assert (frozenset({early, X}), frozenset({LEFT_OUT, late})) in missed(READS, SPLIT, seen)
    assert seen not in list(reachable(READS))


@pytest.mark.parametrize("newest", [WRITES, READS, ALONE])
def test_with_barriers_no_two_coordinators_miss_each_other(newest: int) -> None:
    judged = 0
    for seen in reachable(newest):
        for reader, writer in product(range(SPLIT, newest + 1), repeat=2):
            assert missed(reader, writer, seen) == [], (reader, writer, seen)
            judged += 1
    assert judged >= 64


def test_without_its_barrier_the_coordinator_lets_both_happen() -> None:
    with REGISTRY["skip_barrier"].plant():
        found = {
            (reader, writer)
            for seen in reachable(ALONE)
            for reader, writer in product(VALUES, repeat=2)
            if missed(reader, writer, seen)
        }
    assert {(WRITES, ALONE), (READS, SPLIT)} <= found
    assert step_module.evaluate is not None


def test_the_barrier_names_the_replicas_that_have_not_seen_the_step() -> None:
    cluster = VALUES[WRITES]
    operation = cluster.operations[0]
    need = barrier_need(operation, cluster)
    late, early = STAYING
    seen = {LEFT_OUT: SPLIT, late: SPLIT, early: WRITES, X: WRITES}
    state = step_module.evaluate(need, seen, seen)
    assert [missing.node for missing in state.missing] == sorted([LEFT_OUT, late])
