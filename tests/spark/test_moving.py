"""Reads and streams of a table whose tablets move, split and merge meanwhile: scenarios 2, 3, 4 and 16 of the
data pipeline, on real nodes."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadMaxRows

from lockstep.local.clusters import LocalCluster
from lockstep.spark import snapshot_reading
from lockstep.spark.cql_client import CqlConnection, pool_of
from lockstep.spark.options import parse_options
from lockstep.spark.snapshot_reading import SnapshotScan
from lockstep.spark.snapshots import close_snapshot, open_snapshot
from lockstep.spark.source import LockstepSource
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import _PROCESS, PORTS, connect, insert, options
from .test_changes import PAIR, capture, reader_of

pytestmark = pytest.mark.slow

ROWS = 3000
TABLETS = 4
#: Streams of other tablets begin a while after their entry: 15 s, and news take a second.
CHANGED_WITHIN_S = 120.0
Rows = list[tuple[int, int]]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes, two replicas of each tablet: there is always one to move to."""
    home, first = tmp_path_factory.mktemp("clusters"), f"127.0.{92 + _PROCESS}.1"
    with LocalCluster.create("moving", 3, home=home, first_address=first, ports=PORTS) as made:
        made.start()
        made.any_admin().post("/v1/tablets/balance", {"on": False})
        connection = connect(made)
        connection.query(
            "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 2} "
            f"AND tablets = {{'enabled': true, 'initial': {TABLETS}}}"
        )
        connection.close()
        yield made
        pool_of(os.getpid()).close()


@pytest.fixture
def connection(own: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(own)
    yield made
    made.close()


def filled(connection: CqlConnection, name: str) -> Rows:
    connection.query(f"CREATE TABLE shop.{name} (id int PRIMARY KEY, v int)")
    rows = [(number, number) for number in range(ROWS)]
    insert(connection, name, PAIR, rows)
    return rows


def tablets(cluster: LocalCluster, table: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = cluster.any_admin().get("/v1/tablets", keyspace="shop", table=table)[
        "tablets"
    ]
    return found


def move(cluster: LocalCluster, table: str, number: int) -> None:
    """A replica to the node that has none, until that has ended."""
    on = [replica["node"] for replica in tablets(cluster, table)[number]["replicas"]]
    (target,) = {1, 2, 3} - set(on)
    wanted = {"keyspace": "shop", "table": table, "tablet": number, "from": on[0], "to": target}
    cluster.any_admin().post("/v1/tablets/move", wanted)
    until_s = time.monotonic() + CHANGED_WITHIN_S
    while tablets(cluster, table)[number]["stage"]:
        assert time.monotonic() < until_s
        time.sleep(0.1)
    assert {replica["node"] for replica in tablets(cluster, table)[number]["replicas"]} == {target, on[1]}


def resize(cluster: LocalCluster, table: str, kind: str, wanted: int) -> None:
    """Split or merge all tablets, until that has ended."""
    cluster.any_admin().post("/v1/tablets/resize", {"keyspace": "shop", "table": table, "kind": kind})
    until_s = time.monotonic() + CHANGED_WITHIN_S
    while True:
        shown = cluster.any_admin().get("/v1/tablets", keyspace="shop")["tables"]
        (mine,) = [one for one in shown if one["table"] == table]
        if (mine["resize_phase"], mine["tablets"]) == ("none", wanted):
            return
        assert time.monotonic() < until_s, mine
        time.sleep(0.2)


def rows_of(batches: Sequence[Any]) -> Rows:
    return [row for batch in batches for row in zip(*batch.to_pydict().values(), strict=True)]


@pytest.mark.parametrize("level", ["ONE", "LOCAL_QUORUM"])
def test_2_and_4_a_scan_goes_on_where_tablets_move_and_split(
    own: LocalCluster, connection: CqlConnection, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    """A snapshot: what was written after it was opened is not in it, wherever it is read."""
    table = f"scanned_{level.lower()}"
    rows = filled(connection, table)
    monkeypatch.setattr(snapshot_reading, "_ANSWER_BYTES", 4000)
    given = parse_options(options(own, table, consistencyLevel=level))
    snapshot = open_snapshot(given)
    batches = SnapshotScan(given, snapshot, ("id", "v")).ranges([(TOKEN_MIN, TOKEN_MAX)])
    found = [next(batches)]
    insert(connection, table, PAIR, [(number, -1) for number in range(ROWS + 500)])
    for number in range(TABLETS):
        move(own, table, number)
    found.append(next(batches))
    resize(own, table, "split", 2 * TABLETS)
    found += list(batches)
    close_snapshot(given, snapshot)
    assert len(found) > 2 and sorted(rows_of(found)) == rows


def test_2_and_4_a_scan_by_pages_goes_on_where_tablets_move_and_split(
    own: LocalCluster, connection: CqlConnection
) -> None:
    rows = filled(connection, "paged")
    source = LockstepSource(options(own, "paged", pageSize="50", batchRows="100", splitsPerRange="1"))
    reader = source.reader(source.schema())
    found = []
    for number, partition in enumerate(reader.partitions()):
        batches = reader.read(partition)
        found.append(next(batches))
        if number < TABLETS:
            move(own, "paged", number)
        if number == TABLETS:
            resize(own, "paged", "split", 2 * TABLETS)
        found += list(batches)
    assert sorted(rows_of(found)) == rows


@pytest.mark.parametrize("snapshot", ["false", "true"])
def test_3_a_frame_of_before_a_change_is_read_right_before_and_after_it(
    own: LocalCluster, connection: CqlConnection, snapshot: str
) -> None:
    """What Spark keeps of a frame: its reader and its partitions, as they were planned once."""
    table = f"kept_{snapshot}"
    rows = filled(connection, table)
    source = LockstepSource(options(own, table, snapshot=snapshot, consistencyLevel="ONE"))
    reader = source.reader(source.schema())
    kept = pickle.dumps((reader, reader.partitions()))

    def collected() -> Rows:
        made, partitions = pickle.loads(kept)  # noqa: S301
        return sorted(rows_of([batch for one in partitions for batch in made.read(one)]))

    assert collected() == rows
    move(own, table, 1)
    resize(own, table, "split", 2 * TABLETS)
    more = [(number, number) for number in range(ROWS, ROWS + 20)]
    insert(connection, table, PAIR, more)
    # By pages a frame is what the table holds when it is read, and a snapshot stays what it was.
    assert collected() == (rows if snapshot == "true" else rows + more)
    own.kill("n3")
    try:
        assert collected() == (rows if snapshot == "true" else rows + more)
    finally:
        own.start(["n3"])


def test_16_changes_of_tablets_that_split_and_merge_come_in_order_and_end_where_they_began(
    own: LocalCluster, connection: CqlConnection
) -> None:
    """Keys are written again and again: no batch has a key from two streams, one of which came of the other,
    and what was written before comes before."""
    capture(connection, "moved (id int PRIMARY KEY, v int)")
    written = 0

    def write() -> None:
        nonlocal written
        insert(connection, "moved", PAIR, [(number % 40, written + number) for number in range(400)])
        written += 400

    write()
    reader = reader_of(own, "moved", startingOffsets="earliest", maxRowsPerTrigger="150")
    streams: dict[int, list[bytes]] = {}
    told: dict[int, list[int]] = {}
    seen: list[int] = []
    at = reader.initialOffset()
    for kind, wanted in (("split", 2 * TABLETS), ("merge", TABLETS), ("", 0)):
        if kind:
            resize(own, "moved", kind, wanted)
            until_s = time.monotonic() + CHANGED_WITHIN_S
            while len(streams_now(connection, "moved")) != wanted:
                assert time.monotonic() < until_s
                time.sleep(0.5)
        write()
        reader = reader_of(own, "moved", startingOffsets="earliest", maxRowsPerTrigger="150")
        reader.prepareForTriggerAvailableNow()
        # What is written from now on is not of this run.
        frozen = written
        write()
        while (end := reader.latestOffset(at, ReadMaxRows(150))) != at:
            batch: dict[int, list[tuple[int, bytes]]] = {}
            for part in reader.partitions(at, end):
                for rows in reader.read(part):
                    for row in rows.to_pylist():
                        batch.setdefault(row["id"], []).append(
                            (row["_change_written_us"], row["_change_stream"])
                        )
                        seen.append(row["v"])
            for key, changes in batch.items():
                times = [at_us for at_us, _ in changes]
                assert times == sorted(times), "of one key in the order of its writes"
                assert len({stream for _, stream in changes}) == 1, "a parent is read to its end before"
                assert not streams.get(key) or times[0] > max(told[key])
                streams.setdefault(key, []).append(changes[0][1])
                told.setdefault(key, []).extend(times)
            at = end
        assert max(seen) < frozen, "a run ends at what there was when it began"
        assert sorted(seen) == list(range(frozen))
    assert any(len(set(found)) >= 3 for found in streams.values()), "keys were in several streams"


def streams_now(connection: CqlConnection, table: str) -> list[Any]:
    """The streams that count by now, as clients find them."""
    (newest,) = connection.query(
        "SELECT timestamp FROM system.cdc_timestamps "
        f"WHERE keyspace_name = 'shop' AND table_name = '{table}' LIMIT 1"
    )
    if int(str(newest["timestamp"])) > time.time() * 1000:
        return []
    return connection.query(
        "SELECT stream_id FROM system.cdc_streams WHERE keyspace_name = 'shop' "
        f"AND table_name = '{table}' AND timestamp = {newest['timestamp']} AND stream_state = 0"
    )
