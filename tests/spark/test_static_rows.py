"""Partitions with static values and no rows, and dates that Python has not, on their way into a table."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql import SparkSession

from lockstep.local.clusters import LocalCluster
from lockstep.schema.types import parse_type
from lockstep.spark.encoders import encoder
from lockstep.spark.jobs import export, load, verify
from lockstep.spark.jobs.export import Export
from lockstep.spark.jobs.load import Load
from lockstep.spark.jobs.running import Silent
from lockstep.spark.jobs.tables import Access, TableName
from lockstep.spark.jobs.verify import Verify
from lockstep.spark.plain_values import python_rows, python_values
from lockstep.spark.ring import TableColumn
from lockstep.spark.statement_batches import RowShape, batched
from lockstep.spark.static_rows import kinds_of, parted
from lockstep.values.errors import InvalidRequest
from lockstep.values.tokens import TOKEN_MAX

from .support import PORTS, connect

COLUMNS = (
    TableColumn("id", "partition_key", 0, "int"),
    TableColumn("c", "clustering", 0, "int"),
    TableColumn("d", "clustering", 1, "int"),
    TableColumn("s", "static", -1, "int"),
    TableColumn("v", "regular", -1, "int"),
)
SHAPE = RowShape(COLUMNS, ("id",), ("id", "c", "d"))
#: Milliseconds of years 1 and 10000, and of one before the first.
YEARS_MS = (-62_135_596_800_000, 253_402_300_800_000, -70_000_000_000_000)


def rows(*values: tuple[int | None, ...]) -> pa.RecordBatch:
    names = [column.name for column in COLUMNS]
    return pa.record_batch([pa.array(one, pa.int32()) for one in zip(*values, strict=True)], names)


def four(number: int) -> bytes:
    return number.to_bytes(4, "big")


def test_rows_of_static_values_alone_are_told_apart() -> None:
    kinds = kinds_of((column.name, column.kind) for column in COLUMNS)
    whole, alone = parted(kinds, rows((1, 1, 1, 7, 1), (2, None, None, 8, None), (3, 1, 1, None, None)))
    assert whole.column("id").to_pylist() == [1, 3]
    assert alone is not None and alone.to_pylist() == [{"id": 2, "s": 8}]
    for other in ((2, None, 1, 8, None), (2, None, None, 8, 1), (2, None, None, None, None)):
        assert parted(kinds, rows((1, 1, 1, 7, 1), other))[1] is None


def test_they_are_batches_of_their_own_and_other_missing_keys_are_refused() -> None:
    made = list(batched(SHAPE, rows((1, 1, 1, 7, 1), (2, None, None, 8, None)), (TOKEN_MAX,)))
    assert [(one.is_static, one.rows) for one in made] == [
        (False, (tuple(map(four, (1, 1, 1, 7, 1))),)),
        (True, ((four(2), four(8)),)),
    ]
    with pytest.raises(InvalidRequest, match="key column d is null"):
        list(batched(SHAPE, rows((2, 1, None, 8, None)), (TOKEN_MAX,)))


@pytest.mark.parametrize("kind", ["timestamp", "list<timestamp>", "map<timestamp, frozen<set<timestamp>>>"])
def test_timestamps_of_all_years_are_serialised(kind: str) -> None:
    """Python's datetime begins with the year 1 and ends with 9999."""
    us = [ms * 1000 for ms in YEARS_MS]
    plain: object = us[1]
    nested = pa.array(us, pa.int64()).cast(pa.timestamp("us", "UTC"))
    if kind.startswith("list"):
        plain, nested = us, pa.ListArray.from_arrays([0, 3], nested)
    elif kind.startswith("map"):
        plain = [(us[0], [us[1]])]
        nested = pa.MapArray.from_arrays([0, 1], nested[:1], pa.ListArray.from_arrays([0, 1], nested[1:2]))
    else:
        nested = nested[1:2]
    assert python_values(nested) == [plain]
    assert python_rows(pa.record_batch([nested], ["a"])) == [{"a": plain}]
    assert encoder(parse_type(kind))(plain)


def test_what_python_has_a_date_for_is_serialised_alike() -> None:
    at, day = encoder(parse_type("timestamp")), encoder(parse_type("date"))
    assert at(datetime.datetime(1969, 12, 31, 23, 59, 59, 999_900, datetime.UTC)) == at(-100)
    assert day(datetime.date(1969, 12, 31)) == day(-1)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["statements", "bulk"])
def test_an_export_is_loaded_and_compared_whole(
    cluster: LocalCluster, spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    """Static values without rows, and timestamps of years that Python has not: in keys, values, lists."""
    connection = connect(cluster)
    connection.query(
        "CREATE TABLE shop.odd (p timestamp, c timestamp, d int, s text static, m map<int, int> static, "
        "v timestamp, l frozen<list<timestamp>>, PRIMARY KEY (p, c, d)) WITH CLUSTERING ORDER BY (c DESC)"
    )
    for ms in YEARS_MS:
        connection.query(f"INSERT INTO shop.odd (p, c, d, s, v, l) VALUES ({ms}, {ms}, 1, 's', {ms}, [{ms}])")
    connection.query("INSERT INTO shop.odd (p, s, m) VALUES (1, '', {1: 2})")
    connection.query("INSERT INTO shop.odd (p, m) VALUES (2, {3: 4})")
    where = Access(",".join(cluster.contact_points), PORTS[0], others=(("writeMode", mode),))
    reading = Access(where.hosts, where.port)
    copy, out = TableName("shop", f"odd_{mode}"), str(tmp_path / "out")
    assert export.run(spark, reading, Export(TableName("shop", "odd"), out), Silent()).rows == 5
    loaded = load.run(spark, where, Load(copy, (out,), create=True), Silent())
    assert (loaded.rows, loaded.written, loaded.rejected) == (5, 5, 0)
    assert verify.run(spark, reading, Verify(out, copy.text), Silent()).equal
    told = connection.query(f"SELECT s, m, c FROM {copy.text} WHERE p = 1")
    assert [tuple(row.values()) for row in told] == [("", told[0]["m"], None)] and told[0]["m"] is not None

    columns = ("p", "c", "d", "v")
    some = Export(TableName("shop", "odd"), str(tmp_path / "some"), columns)
    assert export.run(spark, reading, some, Silent()).rows == 3
    assert verify.run(spark, reading, Verify(some.to, copy.text, columns), Silent()).equal

    ms = YEARS_MS[1]
    connection.query(f"UPDATE {copy.text} SET v = {YEARS_MS[0]} WHERE p = {ms} AND c = {ms} AND d = 1")
    connection.query(f"UPDATE {copy.text} SET s = 'else' WHERE p = 1")
    connection.query(f"DELETE FROM {copy.text} WHERE p = 2")
    found = verify.run(spark, reading, Verify("shop.odd", copy.text), Silent())
    by_token = {one.token: one for one in found.differences}
    tokens: dict[int, Any] = {
        ms: connection.query(f"SELECT token(p) AS t FROM shop.odd WHERE p = {ms}")[0]["t"]
        for ms in (ms, 1, 2)
    }
    assert len(by_token) == len(found.differences) == 3
    assert by_token[tokens[ms]].values == (("v", "+10000-01-01 00:00:00", "0001-01-01 00:00:00"),)
    assert by_token[tokens[1]].values == (("s", "", "else"),)
    assert by_token[tokens[2]].missing == copy.text and by_token[tokens[2]].key["c"] == "-"
    for name in ("shop.odd", copy.text):
        connection.query(f"DROP TABLE {name}")
    connection.close()
