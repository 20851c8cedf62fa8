"""Changes of a table on real nodes, read as Spark's planner and tasks do, without a JVM."""

from __future__ import annotations

import datetime
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lockstep.local.clusters import LocalCluster
from lockstep.spark.changes import planning
from lockstep.spark.changes import reader as reading
from lockstep.spark.changes.columns import CHANGE_DELETED, CHANGE_ELEMENTS, CHANGE_OPERATION
from lockstep.spark.changes.reader import ChangeReader
from lockstep.spark.cql_client import CqlConnection
from lockstep.spark.source import LockstepSource
from lockstep.values.errors import (
    ChangesGone,
    ConfigurationError,
    LockstepError,
    PreconditionError,
    Unavailable,
)
from lockstep.values.ids import Consistency

from .support import NOBODYS_ADDRESS, connect, insert, options

ALL = ReadAllAvailable()
#: Nobody's clock but one is here, and writes are awaited.
QUICK = {"changes": "rows", "safetyIntervalMs": "0"}
PAIR = "id int; v int"


def reader_of(cluster: LocalCluster, table: str, **more: str) -> ChangeReader:
    source = LockstepSource(options(cluster, table, **{**QUICK, **more}))
    found = source.streamReader(source.schema())
    assert isinstance(found, ChangeReader)
    return found


def rows_between(reader: ChangeReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for part in reader.partitions(start, end):
        for batch in reader.read(part):
            found += batch.to_pylist()
    return sorted(found, key=lambda row: (row["_change_written_us"], row["_change_sequence"]))


def drained(reader: ChangeReader, start: dict[str, Any] | None = None, limit: Any = ALL) -> list[Any]:
    """What a stream that ends reads, batch by batch, and where it ends."""
    reader.prepareForTriggerAvailableNow()
    at = start or reader.initialOffset()
    batches = []
    while (end := reader.latestOffset(at, limit)) != at:
        batches.append(rows_between(reader, at, end))
        at = end
    return [batches, at]


@pytest.fixture
def connection(cluster: LocalCluster) -> Iterator[CqlConnection]:
    made = connect(cluster)
    yield made
    made.close()


def capture(connection: CqlConnection, text: str, **settings: Any) -> None:
    told = "".join(f", '{name}': {value}" for name, value in settings.items())
    joint = "AND" if " WITH " in text else "WITH"
    connection.query(f"DROP TABLE IF EXISTS shop.{text.partition(' ')[0]}")
    connection.query(f"CREATE TABLE shop.{text} {joint} cdc = {{'enabled': true{told}}}")


def test_each_kind_of_change_has_its_row(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(
        connection,
        "kinds (p int, c int, v text, n int, s int static, tags set<text>, PRIMARY KEY (p, c))",
        preimage="true",
        postimage="true",
    )
    for text in (
        "INSERT INTO shop.kinds (p, c, v, n, tags) VALUES (1, 2, 'x', 3, {'a', 'b'}) USING TTL 600",
        "UPDATE shop.kinds SET v = 'y', n = null WHERE p = 1 AND c = 2",
        "UPDATE shop.kinds SET tags = tags - {'a'} WHERE p = 1 AND c = 2",
        "UPDATE shop.kinds SET s = 5 WHERE p = 1",
        "DELETE FROM shop.kinds WHERE p = 1 AND c = 2",
        "DELETE FROM shop.kinds WHERE p = 1 AND c > 2 AND c <= 7",
        "DELETE FROM shop.kinds WHERE p = 1",
    ):
        connection.query(text, consistency=Consistency.QUORUM)
    for more in ({}, {"snapshot": "true"}):
        ((rows,), _) = drained(reader_of(cluster, "kinds", startingOffsets="earliest", **more))
        told = [
            (row[CHANGE_OPERATION], row["c"], row["v"], row["n"], row[CHANGE_DELETED], row["tags"])
            for row in rows
            if "range" not in row[CHANGE_OPERATION]
        ]
        assert told[:6] == [
            ("insert", 2, "x", 3, ["tags"], ["a", "b"]),
            ("postimage", 2, "x", 3, [], ["a", "b"]),
            ("preimage", 2, "x", 3, [], None),
            ("update", 2, "y", None, ["n"], None),
            ("postimage", 2, "y", None, [], ["a", "b"]),
            ("preimage", 2, None, None, [], ["a", "b"]),
        ]
        assert [row[CHANGE_ELEMENTS + "tags"] for row in rows if row[CHANGE_ELEMENTS + "tags"]] == [["a"]]
        assert rows[0]["_change_ttl"] == 600 and rows[3]["_change_ttl"] is None
        operations = [row[CHANGE_OPERATION] for row in rows]
        # `c > 2` of an int is told as `c >= 3`.
        assert operations[-4:] == [
            "row_delete", "range_start_inclusive", "range_end_inclusive", "partition_delete",
        ]  # fmt: skip
        assert [row["s"] for row in rows if row["s"] is not None] == [5, 5]
        now = datetime.datetime.now(datetime.UTC)
        for row in rows:
            assert now - row["_change_time"] < datetime.timedelta(minutes=5)
            assert len(row["_change_stream"]) == 16 and len(row["_change_id"]) == 36
            assert row["_change_time"].timestamp() == pytest.approx(row["_change_written_us"] / 1e6)
        assert sum(bool(row["_change_ends"]) for row in rows) == 7


def test_a_stream_of_all_columns_ends_where_there_is_one_more(
    cluster: LocalCluster, connection: CqlConnection
) -> None:
    """Its values were left out, and the position was behind them."""
    capture(connection, "grown (id int PRIMARY KEY, v int)")
    insert(connection, "grown", PAIR, [(1, 1)])
    reader = reader_of(cluster, "grown", startingOffsets="earliest")
    some = reader_of(cluster, "grown", startingOffsets="earliest", columns="id,v")
    ((rows,), at) = drained(reader)
    assert [row["v"] for row in rows] == [1]
    connection.query("ALTER TABLE shop.grown ADD w int")
    connection.query("INSERT INTO shop.grown (id, v, w) VALUES (2, 2, 2)", consistency=Consistency.QUORUM)
    with pytest.raises(PreconditionError, match=r"shop\.grown got the column w"):
        drained(reader, at)
    again = reader_of(cluster, "grown", startingOffsets="earliest")
    ((rows,), _) = drained(again, at)
    assert [(row["v"], row["w"]) for row in rows] == [(2, 2)]
    (rows, *_), _ = drained(some, at)
    assert [row["v"] for row in rows] == [2]


def test_a_large_batch_comes_from_fixed_contents_where_there_are_some(
    cluster: LocalCluster, connection: CqlConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(connection, "many (id int PRIMARY KEY, v int)")
    written = [(number, 0) for number in range(60)]
    insert(connection, "many", PAIR, written)
    monkeypatch.setattr(planning, "_LARGE_ROWS", 50)
    for more, fixed in (({}, True), ({"snapshot": "false"}, False)):
        reader = reader_of(cluster, "many", startingOffsets="earliest", **more)
        reader.prepareForTriggerAvailableNow()
        start = reader.initialOffset()
        end = reader.latestOffset(start, ALL)
        rows = rows_between(reader, start, end)
        assert sorted((row["id"], row["v"]) for row in rows) == written
        parts = reader.partitions(start, end)
        assert [bool(part.snapshot) for part in parts] == [fixed] * len(parts)  # type: ignore[attr-defined]
        reader.stop()
        if fixed:
            with pytest.raises(LockstepError, match="snapshot expired"):
                list(reader.read(parts[0]))

    def refuse(_: object) -> None:
        raise Unavailable(6, 2, 1)

    monkeypatch.setattr(reading, "open_snapshot", refuse)
    ((rows,), _) = drained(reader_of(cluster, "many", startingOffsets="earliest"))
    assert len(rows) == len(written), "by pages"
    with pytest.raises(Unavailable):
        drained(reader_of(cluster, "many", startingOffsets="earliest", snapshot="true"))


def test_a_stream_goes_on_where_it_was(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "onward (id int PRIMARY KEY, v int)")
    insert(connection, "onward", PAIR, [(number, 0) for number in range(40)])
    first, second = reader_of(cluster, "onward"), reader_of(cluster, "onward", startingOffsets="earliest")
    assert drained(first)[0] in ([], [[]]), "from now on nothing was written"
    batches, at = drained(second)
    assert [row["id"] for row in sorted(batches[0], key=lambda row: row["id"])] == list(range(40))
    assert drained(second, at)[0] in ([], [[]])
    insert(connection, "onward", PAIR, [(number, 1) for number in range(30)])
    # By another process, which knows the offset alone, and of whose hosts one is gone.
    third = reader_of(cluster, "onward", hosts=f"{NOBODYS_ADDRESS},{cluster.contact_points[1]}")
    batches, _ = drained(third, at)
    rows = [row for batch in batches for row in batch]
    assert sorted((row["id"], row["v"]) for row in rows) == [(number, 1) for number in range(30)]


def test_15_a_limit_of_rows_keeps_each_change_once(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "limited (id int PRIMARY KEY, v int)")
    insert(connection, "limited", PAIR, [(number % 50, number) for number in range(700)])
    reader = reader_of(cluster, "limited", startingOffsets="earliest", maxRowsPerTrigger="100", pageSize="30")
    assert reader.getDefaultReadLimit() == ReadMaxRows(100)
    batches, _ = drained(reader, limit=reader.getDefaultReadLimit())
    rows = [row for batch in batches for row in batch]
    assert all(len(batch) <= 100 for batch in batches) and len(batches) >= 7
    assert sorted(row["v"] for row in rows) == list(range(700))
    for key in range(50):
        mine = [row["v"] for row in rows if row["id"] == key]
        assert mine == sorted(mine)
    sized = reader_of(cluster, "limited", startingOffsets="earliest", maxBytesPerTrigger="20000")
    batches, _ = drained(sized, limit=sized.getDefaultReadLimit())
    assert sorted(row["v"] for batch in batches for row in batch) == list(range(700))
    assert 3 <= len([batch for batch in batches if batch]) <= 70


def test_columns_are_chosen(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "chosen (id int PRIMARY KEY, v int, w text)", delta="'full'")
    connection.query("INSERT INTO shop.chosen (id, v, w) VALUES (1, 2, 'x')")
    given = options(cluster, "chosen", startingOffsets="earliest", columns="id,w", **QUICK)
    names = LockstepSource(given).schema().names
    assert names[:2] == ["id", "w"] and "v" not in names
    mine = StructType([StructField("w", StringType()), StructField("_change_written_us", LongType())])
    reader = LockstepSource(given).streamReader(mine)
    ((rows,), _) = drained_any(reader)
    assert [sorted(row) for row in rows] == [["_change_written_us", "w"]] and rows[0]["w"] == "x"
    for field in (StructField("nothing", StringType()), StructField("w", LongType())):
        with pytest.raises(ConfigurationError, match=field.name):
            LockstepSource(given).streamReader(StructType([field]))


def drained_any(reader: Any) -> list[Any]:
    reader.prepareForTriggerAvailableNow()
    at = reader.initialOffset()
    end = reader.latestOffset(at, ALL)
    found: list[Any] = []
    for part in reader.partitions(at, end):
        for batch in reader.read(part):
            assert isinstance(batch, pa.RecordBatch)
            found += batch.to_pylist()
    return [[found], end]


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"changes": "all"}, "takes rows"),
        ({"consistencyLevel": "ONE"}, "may lack some"),
        ({"startingOffsets": "now"}, "takes latest, earliest or an offset"),
        ({"startingOffsets": "earliest", "startingTimestamp": "5"}, "exclude each other"),
        ({"startingTimestamp": "yesterday"}, "milliseconds since 1970"),
        ({"writeMode": "bulk"}, "means nothing for a stream"),
        ({"onGap": "never"}, "takes fail or skip"),
        ({"maxRowsPerTrigger": "0"}, "not a number"),
        ({"tabel": "x"}, "unknown option"),
    ],
)
def test_wrong_options_are_refused(more: dict[str, str], says: str) -> None:
    given = {"keyspace": "shop", "table": "t", "changes": "rows", **more}
    with pytest.raises(ConfigurationError, match=says):
        LockstepSource(given).schema()


def test_what_is_no_stream_is_refused(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match="are not captured"):
        LockstepSource(options(cluster, "events", **QUICK)).schema()
    plain = LockstepSource(options(cluster, "events"))
    with pytest.raises(ConfigurationError, match="its changes are"):
        plain.streamReader(plain.schema())
    with pytest.raises(ConfigurationError, match="changes are a stream"):
        LockstepSource(options(cluster, "events", **QUICK)).reader(StructType([]))


def test_17_who_was_away_too_long_is_told(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "away (id int PRIMARY KEY, v int)", ttl=14)
    insert(connection, "away", PAIR, [(number, 0) for number in range(9)])
    reader = reader_of(cluster, "away", startingOffsets="earliest")
    at = reader.initialOffset()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            reader.latestOffset(at, ALL)
        except ChangesGone as gone:
            assert "shop.away" in gone.message and "live 14 s" in gone.message
            break
        time.sleep(0.5)
    else:
        pytest.fail("nobody was told")
    # A task that is as late fails as well, though its window was planned in time.
    part = _window(reader, at)
    with pytest.raises(ChangesGone, match="expired while they were read"):
        list(reader.read(part))
    assert drained(reader_of(cluster, "away", onGap="skip"), at)[1]["until_us"] > at["until_us"]


def _window(reader: ChangeReader, at: dict[str, Any]) -> Any:
    skips = reader_like(reader)
    parts: Sequence[Any] = skips.partitions(at, {**at, "until_us": at["until_us"] + 1})
    from dataclasses import replace

    return replace(parts[0], lost_after_us=1)


def reader_like(reader: ChangeReader) -> ChangeReader:
    import msgspec

    wanted = msgspec.structs.replace(reader._wanted, on_gap="skip")
    return ChangeReader(reader._options, wanted, reader._shape)


def test_17_a_table_that_was_made_anew_is_another(cluster: LocalCluster, connection: CqlConnection) -> None:
    capture(connection, "anew (id int PRIMARY KEY, v int)")
    reader = reader_of(cluster, "anew")
    at = reader.initialOffset()
    connection.query("DROP TABLE shop.anew")
    with pytest.raises(ConfigurationError, match="no log of changes any more"):
        reader.latestOffset(at, ALL)
    capture(connection, "anew (id int PRIMARY KEY, v int)")
    with pytest.raises(ChangesGone, match="made anew"):
        reader.latestOffset(at, ALL)
