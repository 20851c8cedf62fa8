"""What disks certainly hold, decoded without the engine, and whether enough of them hold it."""

from __future__ import annotations

import pytest

from lockstep.metadata import transformations
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.operations import Stage
from lockstep.metadata.schema_change import KINDS, ChangeSchema
from lockstep.metadata.transformations import Initialize, Register
from lockstep.runtime.ports import Runtime
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.sim.checkers.replicas import AcknowledgedWrites, DurableContent, check_held, check_wiped
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.door import mutation_for
from lockstep.sim.load.history import Change, Event, Outcome
from lockstep.sim.runtime.world import World
from lockstep.storage.engine import StorageEngine
from lockstep.storage.model import open_model_store
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import Consistency, NodeId
from tests.metadata.histories import History, founder

ROWS = 4


def history() -> History:
    """Three nodes, keyspace `sim` at factor 3 with table `t`."""
    found = History(Registry(transformations.KINDS, KINDS, TOPOLOGY_KINDS, unions=UNIONS))
    founders = tuple(founder(at + 1, (at * 100,)) for at in range(3))
    found.submit(Initialize("cluster-1", "test", founders))
    options = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    found.submit(ChangeSchema(CreateKeyspace("sim", options)))
    columns = (
        NewColumn("pk", "blob", ColumnKind.PARTITION_KEY, 0),
        NewColumn("ck", "int", ColumnKind.CLUSTERING, 0),
        NewColumn("v", "blob"),
    )
    found.submit(ChangeSchema(CreateTable("sim", "t", "00000000-0000-4000-8000-000000000000", columns)))
    return found


def acknowledged(change: Change) -> Event:
    return Event(client="c1", request=change, start_ns=0, end_ns=1, outcome=Outcome.OK)


def put(timestamp: int, row: int = 0, value: bytes = b"x") -> Change:
    return Change("t", b"k", timestamp, Consistency.QUORUM, 1000, ((row, value),))


def store(
    world: World, name: str, cluster: ClusterMetadata, changes: list[Change], synced: int
) -> DurableContent:
    """The disk of a process that applied the changes and synced the first of them."""
    process = world.process(name)
    table = cluster.schema.table("sim", "t")
    assert table is not None

    async def main(runtime: Runtime) -> None:
        engine = StorageEngine(await open_model_store(runtime.disk, "store"), runtime, background_merge=False)
        for number, change in enumerate(changes):
            sequence = engine.apply(mutation_for(change, table, number.to_bytes(14, "big"), 0))
            if number < synced:
                await engine.synced(sequence)

    process.start(main)
    world.run_for(5.0)
    world.check()
    content = DurableContent(process.disk)
    content.refresh()
    return content


@pytest.fixture
def cluster() -> ClusterMetadata:
    return history().now


def judge(cluster: ClusterMetadata, contents: list[DurableContent], events: list[Event]) -> int:
    writes = AcknowledgedWrites(events, ROWS)
    by_id = {NodeId(at): content for at, content in enumerate(contents, start=1)}
    return check_held("REP-1", cluster, writes.newest, by_id)


def test_only_synced_writes_count(cluster: ClusterMetadata) -> None:
    with World(1) as world:
        content = store(world, "a", cluster, [put(10), put(20, 1)], synced=1)
        table = cluster.schema.table("sim", "t")
        assert table is not None
        from lockstep.sim.door import clustering_bytes

        assert content.state(table.id, b"k", clustering_bytes(0)) == (10, b"x")
        assert content.state(table.id, b"k", clustering_bytes(1)) == (-1, b"")


def test_a_write_on_two_of_three_disks_is_held(cluster: ClusterMetadata) -> None:
    with World(1) as world:
        disks = [
            store(world, name, cluster, [put(10)], synced) for name, synced in (("a", 1), ("b", 1), ("c", 0))
        ]
        assert judge(cluster, disks, [acknowledged(put(10))]) == 1


def test_the_larger_of_two_values_with_one_timestamp_must_be_there(cluster: ClusterMetadata) -> None:
    small, large = put(10, value=b"a"), put(10, value=b"b")
    with World(1) as world:
        both = [store(world, name, cluster, [large, small], 2) for name in ("a", "b")]
        lacking = store(world, "c", cluster, [small], 1)
        assert judge(cluster, [*both, lacking], [acknowledged(large), acknowledged(small)]) == 1
        again = [store(world, name, cluster, [small], 1) for name in ("d", "e")]
        with pytest.raises(Violation, match=r"lacks timestamp 10 with b'b' of t/k"):
            judge(cluster, [both[0], *again], [acknowledged(small), acknowledged(large)])


def test_a_write_on_one_of_three_disks_is_refused(cluster: ClusterMetadata) -> None:
    with World(1) as world:
        disks = [
            store(world, name, cluster, [put(10)], synced) for name, synced in (("a", 1), ("b", 0), ("c", 0))
        ]
        with pytest.raises(Violation, match=r"REP-1: .* lacks timestamp 10 with b'x' of t/k\[0\]"):
            judge(cluster, disks, [acknowledged(put(10))])


@pytest.mark.parametrize(
    "newer",
    [
        put(20),
        Change("t", b"k", 20, Consistency.QUORUM, 1000, delete_row=0),
        Change("t", b"k", 20, Consistency.QUORUM, 1000, delete_rows=(0, 2)),
        Change("t", b"k", 20, Consistency.QUORUM, 1000, delete_partition=True),
    ],
)
def test_a_newer_write_that_covers_the_row_stands_for_the_older(
    cluster: ClusterMetadata, newer: Change
) -> None:
    with World(1) as world:
        disks = [store(world, name, cluster, [newer], 1) for name in ("a", "b", "c")]
        assert judge(cluster, disks, [acknowledged(put(10))]) == 1
        with pytest.raises(Violation, match="lacks timestamp 30"):
            judge(cluster, disks, [acknowledged(put(30))])


def test_a_pending_replica_that_holds_something_of_its_ranges_is_refused() -> None:
    found = history()
    found.submit(Register("host-4", "10.0.0.4", 7000, 9042, 7080, "dc1", "r1", "1"))
    found.submit(PrepareOperation(Bootstrap(NodeId(4), (50,))))
    found.submit(AdvanceOperation(1, Stage.JOIN_GROUP0))
    after = found.submit(AdvanceOperation(1, Stage.COMMIT_CDC_GENERATION))
    operation = after.operations[0]
    with World(1) as world:
        empty = store(world, "a", after, [], 0)
        check_wiped(after, after.transitions.of(operation.id), empty, NodeId(4))
        keys = [
            Change("t", f"k{at}".encode(), 10, Consistency.QUORUM, 1000, ((0, b"x"),)) for at in range(40)
        ]
        full = store(world, "b", after, keys, 40)
        with pytest.raises(Violation, match=r"REP-3: node 4 becomes pending .* still holds"):
            check_wiped(after, after.transitions.of(operation.id), full, NodeId(4))


def test_what_a_purged_deletion_hid_need_not_be_held(cluster: ClusterMetadata) -> None:
    """A deletion that nobody acknowledged may have had its effect, and be gone."""
    gone = Change("t", b"k", 20, Consistency.QUORUM, 1000, delete_partition=True)
    unknown = Event(client="c1", request=gone, start_ns=0, end_ns=1, outcome=Outcome.UNKNOWN)
    writes = AcknowledgedWrites([acknowledged(put(10)), unknown], ROWS)
    with World(1) as world:
        empty = {NodeId(at): store(world, f"e{at}", cluster, [], 0) for at in (1, 2, 3)}
        assert check_held("REP-1", cluster, writes.newest, empty, purges=writes.deletions) == 1
        with pytest.raises(Violation, match=r"REP-1: .* lacks timestamp 10"):
            check_held("REP-1", cluster, writes.newest, empty)
        left = {**empty, NodeId(1): store(world, "f", cluster, [put(10)], 1)}
        with pytest.raises(Violation, match=r"REP-1: .* lacks timestamp 10"):
            check_held("REP-1", cluster, writes.newest, left, purges=writes.deletions)
