"""Whole tables from read sessions: what is read, with replicas that differ, fail, expire or are damaged."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc

from lockstep.local.clusters import LocalCluster
from lockstep.scans.session_files import DIRECTORY, Expired
from lockstep.spark import scan_arrow
from lockstep.spark.options import Options, parse_options
from lockstep.spark.snapshot_reading import SnapshotScan
from lockstep.spark.snapshots import Snapshot, close_snapshot, open_snapshot
from lockstep.values.errors import ConfigurationError, LockstepError, Unavailable
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

from .conftest import EVENT_ROWS, EVENTS_PER_DAY, event_rows
from .support import PORTS, column_files, connect, insert, options

WHOLE = [(TOKEN_MIN, TOKEN_MAX)]
NAMES = ("day", "at", "what")
#: Each session makes a table file, and nodes merge a few of them.
READ_AGAIN_MAX = 8


@pytest.fixture
def opened(cluster: LocalCluster) -> Iterator[Any]:
    """Opens snapshots that are closed at the end."""
    made: list[tuple[Options, Snapshot]] = []

    def open_(table: str = "events", **others: str) -> tuple[Options, Snapshot]:
        parsed = parse_options(options(cluster, table, **others))
        made.append((parsed, open_snapshot(parsed)))
        return made[-1]

    yield open_
    for given, snapshot in made:
        close_snapshot(given, snapshot)


def rows_of(given: Options, snapshot: Snapshot, names: tuple[str, ...] = NAMES) -> list[tuple[Any, ...]]:
    scan = SnapshotScan(given, snapshot, names)
    return sorted(
        row for batch in scan.ranges(WHOLE) for row in zip(*batch.to_pydict().values(), strict=True)
    )


def content_of(cluster: LocalCluster, node: int, snapshot: Snapshot) -> Path:
    name = cluster.file.nodes[node].name
    return Path(cluster.paths.data(name)) / DIRECTORY / snapshot.session


@pytest.mark.parametrize("level", ["ONE", "LOCAL_QUORUM", "ALL"])
def test_1_every_row_is_read_once(opened: Any, level: str) -> None:
    given, snapshot = opened(consistencyLevel=level)
    assert rows_of(given, snapshot) == sorted(event_rows())


def test_a_snapshot_shows_nothing_of_later(cluster: LocalCluster, opened: Any) -> None:
    connection = connect(cluster)
    connection.query("CREATE TABLE IF NOT EXISTS shop.later (day int PRIMARY KEY, what text)")
    insert(connection, "later", "day int; what text", [(number, "old") for number in range(50)])
    given, snapshot = opened("later")
    insert(connection, "later", "day int; what text", [(number, "new") for number in range(90)])
    connection.query("TRUNCATE shop.later")
    connection.close()
    found = rows_of(given, snapshot, ("day", "what"))
    assert found == [(number, "old") for number in range(50)]


def test_replicas_that_differ_are_merged_as_reads_merge_them(cluster: LocalCluster, opened: Any) -> None:
    """One of them was down while rows were changed and deleted."""
    connection = connect(cluster)
    connection.query(
        "CREATE TABLE IF NOT EXISTS shop.apart (day int, at int, what text, PRIMARY KEY (day, at))"
    )
    plain = [(number, at, f"{number}/{at}") for number in range(20) for at in range(5)]
    insert(connection, "apart", "day int; at int; what text", plain)
    name = cluster.file.nodes[2].name
    cluster.kill(name)
    for number in range(0, 20, 2):
        connection.query(f"DELETE FROM shop.apart WHERE day = {number} AND at > 2")
        connection.query(f"UPDATE shop.apart SET what = 'changed' WHERE day = {number} AND at = 0")
    connection.close()
    cluster.start()
    expected = sorted(
        (day, at, "changed" if not at and not day % 2 else what)
        for day, at, what in plain
        if day % 2 or at <= 2
    )
    given, snapshot = opened("apart", consistencyLevel="QUORUM")
    assert rows_of(given, snapshot) == expected


def test_of_a_table_with_witnesses_full_replicas_are_read_and_hold_what_a_quorum_acknowledged(
    cluster: LocalCluster,
) -> None:
    """One node is away as rows change, so for some of them it is a full replica and a witness that did."""
    connection = connect(cluster)
    factor = "{'class': 'NetworkTopologyStrategy', 'replication_factor': '3/1'}"
    connection.query(f"CREATE KEYSPACE seen WITH replication = {factor} AND replication_type = 'tracked'")
    connection.query("CREATE TABLE seen.t (day int PRIMARY KEY, what text)")
    name = cluster.file.nodes[2].name
    written = [(number, "old") for number in range(60)]
    for number, what in written:
        connection.query(f"INSERT INTO seen.t (day, what) VALUES ({number}, '{what}')")
    cluster.kill(name)
    for number in range(60):
        connection.query(f"UPDATE seen.t SET what = 'new' WHERE day = {number}")
    connection.close()
    asked = options(cluster, "t", keyspace="seen", consistencyLevel="QUORUM")
    with pytest.raises(Unavailable) as refused:
        open_snapshot(parse_options(asked))
    assert "only full replicas count" in refused.value.message
    cluster.start()
    for level in ("QUORUM", "ALL"):
        given = parse_options({**asked, "consistencyLevel": level})
        snapshot = open_snapshot(given)
        try:
            assert {len(part.nodes) for part in snapshot.ranges} == {2}
            found = rows_of(given, snapshot, ("day", "what"))
        finally:
            close_snapshot(given, snapshot)
        assert found == [(number, "new") for number in range(60)]


def test_columns_keys_and_limits(cluster: LocalCluster, opened: Any) -> None:
    where = {"hosts": cluster.contact_points[0], "port": str(PORTS[0])}
    found = scan_arrow("shop", "events", ["what", "day"], limit="7", **where).read_all()
    assert found.schema == pa.schema([("what", pa.string()), ("day", pa.int32())])
    assert found.num_rows == 7
    given, snapshot = opened(consistencyLevel="ONE")
    from lockstep.values.tokens import token_of

    wanted = [(token_of(day.to_bytes(4, "big")), day.to_bytes(4, "big")) for day in (3, 77, 4000)]
    batches = list(SnapshotScan(given, snapshot, NAMES).keys(wanted))
    days = pc.unique(pa.Table.from_batches(batches)["day"]).to_pylist()
    assert sorted(days) == [3, 77]
    assert sum(batch.num_rows for batch in batches) == 2 * EVENTS_PER_DAY


@pytest.mark.parametrize("level", ["ONE", "LOCAL_QUORUM"])
def test_what_was_decoded_is_not_read_again(cluster: LocalCluster, opened: Any, level: str) -> None:
    """Once nodes have no new table files to merge; but where something was written since."""
    table, names = f"often_{level.lower()}", ("day", "at", "what")
    rows = [(day, at, f"what {at}") for day in range(4) for at in range(5_000)]

    def read() -> tuple[int, dict[int, str]]:
        given, snapshot = opened(table, consistencyLevel=level)
        scan = SnapshotScan(given, snapshot, names)
        found = [row for batch in scan.ranges(WHOLE) for row in batch.to_pylist()]
        return scan.fragments_read, {row["day"] * 5_000 + row["at"]: row["what"] for row in found}

    with closing(connect(cluster)) as connection:
        connection.query(f"CREATE TABLE shop.{table} (day int, at int, what text, PRIMARY KEY (day, at))")
        insert(connection, table, "day int; at int; what text", rows)
        wanted = {day * 5_000 + at: text for day, at, text in rows}
        first, found = read()
        assert found == wanted and first >= len(rows)
        for _ in range(READ_AGAIN_MAX):
            again, found = read()
            assert found == wanted
            if again < first / 5:
                break
        assert again < first / 5
        insert(connection, table, "day int; at int; what text", [(0, 0, "new")])
        later, found = read()
        assert found == {**wanted, 0: "new"} and again < later
    assert any(any(place.iterdir()) for place in column_files(cluster) if place.exists())


def test_4_reading_goes_on_at_another_replica(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections break again and again, in batches and between them."""
    from lockstep.spark import snapshot_reading

    count = 0
    right = snapshot_reading.received

    def broken(connection: Any, size: int) -> bytearray:
        nonlocal count
        count += 1
        if not count % 13:
            raise ConnectionResetError("broken on purpose")
        return right(connection, size)

    for level in ("ONE", "QUORUM"):
        given, snapshot = opened(consistencyLevel=level)
        with monkeypatch.context() as patch:
            patch.setattr(snapshot_reading, "received", broken)
            patch.setattr(snapshot_reading, "_ANSWER_BYTES", 20_000)
            assert rows_of(given, snapshot) == sorted(event_rows())
    assert count > 20


def test_5_a_snapshot_that_expired_is_an_error(cluster: LocalCluster, opened: Any) -> None:
    given, snapshot = opened(leaseMs="1000", consistencyLevel="ONE")
    scan = SnapshotScan(given, snapshot, NAMES)
    assert next(scan.ranges(WHOLE)).num_rows
    deadline = time.monotonic() + 30
    while any(content_of(cluster, node, snapshot).exists() for node in range(3)):
        assert time.monotonic() < deadline, "an expired content is removed"
        time.sleep(0.2)
    with pytest.raises(Expired, match="snapshot expired"):
        rows_of(given, snapshot)


def test_6_a_damaged_block_is_an_error_or_another_replica(cluster: LocalCluster, opened: Any) -> None:
    for damaged in ((0, 1), (0, 1, 2)):
        given, snapshot = opened(consistencyLevel="ONE")
        for node in damaged:
            for kept in column_files(cluster)[node].glob("*"):
                # Nothing else would be read.
                kept.unlink()
            for file in sorted(content_of(cluster, node, snapshot).glob("*.sst")):
                _damage(file)
        if len(damaged) < 3:
            assert rows_of(given, snapshot) == sorted(event_rows()), "one replica is whole"
            continue
        with pytest.raises(LockstepError, match=r"\.sst.*reading from"):
            rows_of(given, snapshot)


def _damage(file: Path) -> None:
    """Change a byte of a copy: the file itself is a link to the node's own. What other tests wrote is in
    small files, which have more about themselves than rows."""
    data = bytearray(file.read_bytes())
    if len(data) < 8192:
        return
    for at in range(64, len(data) // 2, 512):
        data[at] ^= 0xFF
    file.unlink()
    file.write_bytes(data)


def test_a_wrong_digest_is_an_error(opened: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.spark import snapshot_reading

    given, snapshot = opened(consistencyLevel="ONE")
    right = snapshot_reading.received

    def changed(connection: Any, size: int) -> bytearray:
        data = right(connection, size)
        if size > 10_000:
            data[-2000] ^= 1
        return data

    monkeypatch.setattr(snapshot_reading, "received", changed)
    with pytest.raises(LockstepError, match="is not what came"):
        rows_of(given, snapshot)


def test_nothing_is_read_without_the_secret_or_outside(opened: Any) -> None:
    import msgspec

    given, snapshot = opened(consistencyLevel="ONE")
    other = msgspec.structs.replace(snapshot, secret=os.urandom(16))
    with pytest.raises(LockstepError, match="not the secret"):
        rows_of(given, other)


def test_wrong_wishes_are_told(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="EACH_QUORUM"):
        open_snapshot(parse_options(options(cluster, "events", consistencyLevel="EACH_QUORUM")))
    assert EVENT_ROWS


def test_a_frame_shows_what_was_there_when_it_was_made(cluster: LocalCluster, spark: SparkSession) -> None:
    """Also to its second query, filtered or not."""
    connection = connect(cluster)
    # A first attempt may have left it.
    connection.query("DROP TABLE IF EXISTS shop.growing")
    connection.query("CREATE TABLE shop.growing (id int PRIMARY KEY, v int)")
    insert(connection, "growing", "id int; v int", [(number, 0) for number in range(10)])
    frame = spark.read.format("lockstep").options(**options(cluster, "growing", snapshot="true")).load()
    for number in range(10, 14):
        insert(connection, "growing", "id int; v int", [(number, 0)])
        wanted = frame if number % 2 else frame.where("v = 0 AND id IN (1, 2, 10, 11, 12, 13)")
        assert wanted.count() == (10 if number % 2 else 2)
    connection.close()


def test_spark_reads_snapshots(cluster: LocalCluster, spark: SparkSession) -> None:
    """By format and by SQL, with filters, fewer columns and a limit; the same as without a snapshot."""
    given = options(cluster, "events", snapshot="true", splitsPerRange="1")
    frame = spark.read.format("lockstep").options(**given).load()
    assert sorted(map(tuple, frame.collect())) == sorted(event_rows())
    frame.createOrReplaceTempView("snapshot_events")
    totals = spark.sql("SELECT count(*), sum(at), min(day), max(day) FROM snapshot_events").collect()
    days = [day for day, _, _ in event_rows()]
    assert tuple(totals[0]) == (
        EVENT_ROWS,
        sum(at for _, at, _ in event_rows()),
        min(days),
        max(days),
    )
    some = (
        spark.read.format("lockstep").options(**given, filterpushdown="true").schema("what string, day int")
    )
    found = some.load().where("day in (3, 5)").collect()
    assert sorted(map(tuple, found)) == sorted((what, day) for day, _, what in event_rows() if day in (3, 5))
    few = spark.read.format("lockstep").options(**given, limit="10").load()
    assert few.count() == 10
    assert few.rdd.getNumPartitions() == 1
