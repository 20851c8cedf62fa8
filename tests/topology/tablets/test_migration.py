"""A keyspace goes from the ring to tablets, and back: nothing moves, and no plan of before is wrong."""

from __future__ import annotations

import itertools

import pytest
from msgspec import structs

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED, Degraded
from lockstep.metadata.repairs import RepairPart
from lockstep.metadata.schema_change import ChangeCaptured, ChangeSchema
from lockstep.metadata.schema_part import SCHEMA
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step, apart
from lockstep.metadata.transformations import Initialize
from lockstep.metadata.transitions import Lone
from lockstep.placement.tablets.load import GIB, NodeLoad
from lockstep.schema.changes import (
    AlterKeyspace,
    AlterOptions,
    CreateKeyspace,
    CreateTable,
    DropTable,
    NewColumn,
)
from lockstep.schema.model import ColumnKind, Replication
from lockstep.schema.view_changes import CreateView
from lockstep.topology.invariants import violations
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.repairs import BeginRepair
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.tablets.balancing import Planner
from lockstep.topology.tablets.moves import BeginMoves, TabletMove
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import OperationRunning, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.metadata.histories import History, founder, network, simple
from tests.topology.drills import refused, register, run_out
from tests.topology.tablets.test_recount import OTHER, options
from tests.topology.tablets.worlds import TABLE

THREE = network(dc1=3)
PLAIN = CreateTable(
    "k",
    "plain",
    "00000000-0000-0000-0000-000000000008",
    (NewColumn("a", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("b", "int", ColumnKind.CLUSTERING, 0)),
)


def world(replication: Replication = THREE, nodes: int = 4, beside: bool = False) -> History:
    """Keyspace `k` on the ring with two tables; another one is replicated alike where it is `beside`."""
    history = History()
    founders = tuple(founder(n, (n * 10, n * 1000, -n * 100)) for n in range(1, nodes + 1))
    history.submit(Initialize("c", "n", founders, voters=(NodeId(1),)))
    for name in ("k", "other") if beside else ("k",):
        history.submit(ChangeSchema(CreateKeyspace(name, options(replication))))
    for table in (TABLE, OTHER):
        history.submit(ChangeSchema(table))
    return history


def take(history: History, step: Step) -> None:
    before = history.now
    history.submit(MigrateKeyspace("k", step))
    history.now.validate(before)


def lists(cluster: ClusterMetadata, table: str) -> list[tuple[Range, tuple[NodeId, ...]]]:
    keyspace = cluster.schema.by_name["k"]
    ring = cluster.placements.ring(keyspace.group_of(keyspace.by_name[table]))
    return [(placed.range, placed.group.reads) for placed in ring.ranges]


def all_sound(history: History) -> None:
    for before, after in itertools.pairwise(history.values):
        assert violations(before, after) == ()
        after.validate(before)
    history.now.validate()
    history.replayed()


@pytest.mark.parametrize("beside", [False, True])
def test_each_table_has_the_ranges_of_the_ring_as_its_tablets_and_goes_back(beside: bool) -> None:
    history = world(beside=beside)
    before = history.now
    take(history, Step.START)
    keyspace = history.now.schema.by_name["k"]
    assert keyspace.tablets is not None and keyspace.tablets.from_ring and not keyspace.group
    assert len(keyspace.groups) == 2 and len(history.now.tablets.groups) == 2
    for table in ("t", "u"):
        assert lists(history.now, table) == lists(before, table)
    assert (before.schema.by_name["k"].group in history.now.placements.by_id) is beside
    assert apart(history.now, keyspace) == 0
    take(history, Step.ROLLBACK)
    back = history.now.schema.by_name["k"]
    assert back.tablets is None and back.group and not history.now.tablets.groups
    for table in ("t", "u"):
        assert lists(history.now, table) == lists(before, table)
    assert len(history.now.placements.by_id) == len(before.placements.by_id)
    all_sound(history)


def test_after_its_end_there_is_no_way_back_and_the_balancer_works() -> None:
    history = world()
    take(history, Step.START)
    planner = Planner()
    planner.refreshed({node: NodeLoad(100 * GIB) for node in history.now.directory.present_ids})
    assert not any(table.is_on for table in planner.look(history.now, ()).cluster.tables)
    take(history, Step.FINALIZE)
    assert all(table.is_on for table in planner.look(history.now, ()).cluster.tables)
    for step in (Step.ROLLBACK, Step.FINALIZE):
        assert "is not on its way from the ring" in refused(history, MigrateKeyspace("k", step))
    assert "have tablets already" in refused(history, MigrateKeyspace("k", Step.START))
    all_sound(history)


def test_what_moves_meanwhile_has_no_way_back_until_it_is_there_again() -> None:
    history = world()
    take(history, Step.START)
    group = history.now.tablets.groups[0]
    tablet = next(group.map(history.now.placements).tablets())
    spare = next(node for node in history.now.directory.present_ids if node not in tablet.nodes)
    for source, target in ((tablet.nodes[0], spare), (spare, tablet.nodes[0])):
        wanted = TabletMove(group.id, tablet.right, "migration", (source, 0), (target, 0))
        history.submit(BeginMoves(0, (wanted,)))
        assert "while its tablets move" in refused(history, MigrateKeyspace("k", Step.ROLLBACK))
        finish_moves(history)
        if target == spare:
            assert "1 tablets of keyspace k do not lie" in refused(
                history, MigrateKeyspace("k", Step.ROLLBACK)
            )
    take(history, Step.ROLLBACK)
    all_sound(history)


def finish_moves(history: History) -> None:
    while moving := history.now.transitions.listed():
        steps = tuple(TransitionStep(one.group, one.range.right, Lone(one).stage_epoch) for one in moving)
        history.submit(AdvanceTransitions(steps))


def test_a_node_that_joins_meanwhile_takes_the_way_back_away() -> None:
    history = world()
    take(history, Step.START)
    history.submit(register(5, "dc1", "r1"))
    history.submit(PrepareOperation(Bootstrap(NodeId(5), (5, 500))))
    with pytest.raises(OperationRunning):
        history.submit(MigrateKeyspace("k", Step.ROLLBACK))
    run_out(history, history.now.operations[0].id)
    assert "nodes came or went" in refused(history, MigrateKeyspace("k", Step.ROLLBACK))
    take(history, Step.FINALIZE)
    all_sound(history)


def test_it_waits_for_what_counts_on_where_the_keyspace_lies() -> None:
    history = world()
    history.submit(EnqueueRequest(ReplicationChange("k", network(dc1=2))))
    assert "request 1" in refused(history, MigrateKeyspace("k", Step.START))
    history.submit(CancelRequest(1, "no"))
    keyspace = history.now.schema.by_name["k"]
    part = RepairPart("k", keyspace.group, (keyspace.by_name["t"].id,), (Range(TOKEN_MIN, TOKEN_MAX),))
    history.submit(BeginRepair(NodeId(1), (part,), 1))
    assert "during repair 1" in refused(history, MigrateKeyspace("k", Step.START))


def test_a_repair_of_another_keyspace_is_not_waited_for() -> None:
    history = world(beside=True)
    other = structs.replace(OTHER, keyspace="other", uuid="00000000-0000-0000-0000-000000000009")
    history.submit(ChangeSchema(other))
    keyspace = history.now.schema.by_name["other"]
    part = RepairPart("other", keyspace.group, (keyspace.by_name["u"].id,), (Range(TOKEN_MIN, TOKEN_MAX),))
    history.submit(BeginRepair(NodeId(1), (part,), 1))
    take(history, Step.START)
    assert "during repair 1" in refused(history, MigrateKeyspace("other", Step.START))


def test_what_lies_with_another_table_goes_with_it_and_what_does_not_goes_alone() -> None:
    history = world()
    history.submit(ChangeSchema(PLAIN))
    for name, key in (("same", ("a",)), ("apart", ("b",))):
        clustered = tuple(one for one in ("a", "b") if one not in key)
        view = CreateView(
            "k", name, name.ljust(32, "0"), "k", "plain", (), key, clustered, not_null=("a", "b")
        )
        history.submit(ChangeSchema(view))
    before = history.now
    take(history, Step.START)
    by_name = history.now.schema.by_name["k"].by_name
    groups = {group.head.table: group.id for group in history.now.tablets.groups}
    assert sorted(groups) == ["apart", "plain", "t", "u"] and len(set(groups.values())) == 4
    assert {name: table.group for name, table in by_name.items()} == {**groups, "same": groups["plain"]}
    for name in by_name:
        assert lists(history.now, name) == lists(before, name)
    take(history, Step.ROLLBACK)
    assert not any(table.group for table in history.now.schema.by_name["k"].tables)
    all_sound(history)


def test_a_keyspace_whose_changes_are_captured_stays_on_the_ring() -> None:
    history = world()
    capture = AlterOptions("k", "u", (("cdc", (("enabled", "true"),)),))
    history.submit(ChangeCaptured(ChangeSchema(capture), 1_800_000_000_000))
    assert "changes of tables of keyspace k are captured" in refused(
        history, MigrateKeyspace("k", Step.START)
    )


def test_a_list_of_racks_has_no_way_back_to_the_ring() -> None:
    history = world()
    take(history, Step.START)
    keyspace = history.now.schema.by_name["k"]
    listed = structs.replace(keyspace, replication=structs.replace(THREE, racks=(("dc1", ("r1",) * 3),)))
    value = history.now.changed(SCHEMA.set(history.now.schema.with_keyspace(listed)))
    with pytest.raises(Rejected, match="keyspace k is replicated by a list of racks"):
        MigrateKeyspace("k", Step.ROLLBACK).apply(value, value.epoch + 1)
    MigrateKeyspace("k", Step.FINALIZE).apply(value, value.epoch + 1)


@pytest.mark.parametrize(
    ("replication", "message"),
    [
        (simple(2), "is replicated by SimpleStrategy"),
        (network(dc1=5), "have less than 5 replicas"),
    ],
)
def test_a_ring_that_cannot_be_tablets_is_refused(replication: Replication, message: str) -> None:
    history = world(replication)
    before = history.now
    assert message in refused(history, MigrateKeyspace("k", Step.START))
    assert "there is no keyspace nobody" in refused(history, MigrateKeyspace("nobody", Step.START))
    assert history.now is before


def test_degraded_ranges_go_along() -> None:
    history = world()
    ring = history.now.schema.by_name["k"].group
    line = Degraded(ring, Range(5, 500), 3, (NodeId(2),))
    value = history.now.changed(DEGRADED.set((line,)))
    started = MigrateKeyspace("k", Step.START).apply(value, value.epoch + 1)
    groups = sorted(started.schema.by_name["k"].groups)
    assert started.degraded == tuple(structs.replace(line, group=one, keyspaces=("k",)) for one in groups)
    back = MigrateKeyspace("k", Step.ROLLBACK).apply(started, value.epoch + 2)
    group = back.schema.by_name["k"].group
    assert back.degraded == (structs.replace(line, group=group, keyspaces=("k",)),)


def test_an_alteration_keeps_the_way_back_and_tables_come_and_go() -> None:
    history = world()
    take(history, Step.START)
    history.submit(ChangeSchema(AlterKeyspace("k", tablets=(("initial", "16"),))))
    history.submit(ChangeSchema(DropTable("k", "u")))
    take(history, Step.ROLLBACK)
    assert history.now.schema.by_name["k"].tablets is None
    all_sound(history)
