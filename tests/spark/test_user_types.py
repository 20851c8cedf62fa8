"""Columns of user-defined types: structs with the fields' names, in both directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.types import IntegerType, StructField, StructType

from lockstep.local.clusters import LocalCluster
from lockstep.scans.arrow_columns import arrow_type, decode_cells
from lockstep.schema.model import Keyspace, Replication, UserType
from lockstep.schema.user_types import type_in
from lockstep.spark.columns import spark_type
from lockstep.spark.encoders import encoder
from lockstep.spark.source import LockstepSource
from lockstep.values.ids import Consistency

from .support import connect, options

_SPACE = Keyspace(
    "shop",
    Replication("SimpleStrategy", ()),
    types=(
        UserType("place", ("name", "at", "seen"), ("text", "frozen<point>", "list<frozen<point>>")),
        UserType("point", ("x", "y"), ("int", "int")),
    ),
)
_SHOWN = "struct<name:string,at:struct<x:int,y:int>,seen:array<struct<x:int,y:int>>>"
_PLACES: list[dict[str, Any]] = [
    {"name": "a", "at": {"x": 1, "y": None}, "seen": [{"x": None, "y": 2}, {"x": 3, "y": 4}]},
    {"name": None, "at": None, "seen": []},
    {"name": None, "at": {"x": None, "y": None}, "seen": None},
]


def test_values_are_structs_with_the_names_of_the_fields() -> None:
    kind = type_in(_SPACE, "frozen<place>")
    assert spark_type(kind).simpleString() == _SHOWN
    encode = encoder(kind)
    array = decode_cells(kind, [*(encode(value) for value in _PLACES), None])
    array.validate(full=True)
    assert array.type == arrow_type(kind)
    assert array.to_pylist() == [*_PLACES, None]


def test_values_written_before_a_field_was_added_have_a_null_there() -> None:
    before = Keyspace("shop", _SPACE.replication, types=(UserType("point", ("x",), ("int",)),))
    cell = encoder(type_in(before, "frozen<point>"))({"x": 5})
    assert decode_cells(type_in(_SPACE, "frozen<point>"), [cell]).to_pylist() == [{"x": 5, "y": None}]


def test_rows_written_by_a_job_are_read_by_another(cluster: LocalCluster) -> None:
    connection = connect(cluster)
    connection.query("CREATE TYPE shop.point (x int, y int)")
    connection.query("CREATE TYPE shop.place (name text, at frozen<point>, seen list<frozen<point>>)")
    connection.query("CREATE TABLE shop.places (id int PRIMARY KEY, p frozen<place>, q point)")
    schema = StructType(
        [
            StructField("id", IntegerType()),
            StructField("p", spark_type(type_in(_SPACE, "frozen<place>"))),
            StructField("q", spark_type(type_in(_SPACE, "point"))),
        ]
    )
    source = LockstepSource(options(cluster, "places"))
    assert source.schema() == schema
    rows = [{"id": number, "p": place, "q": {"x": number, "y": None}} for number, place in enumerate(_PLACES)]
    arrow = pa.schema(
        [
            pa.field("id", pa.int32()),
            pa.field("p", arrow_type(type_in(_SPACE, "frozen<place>"))),
            pa.field("q", arrow_type(type_in(_SPACE, "point"))),
        ]
    )
    writer = source.writer(schema, False)
    told = writer.write(iter([pa.RecordBatch.from_pylist(rows, schema=arrow)]))
    assert told.rows == len(rows)
    writer.commit([told])
    reader = source.reader(schema)
    found = [row for part in reader.partitions() for batch in _batches(reader.read(part)) for row in batch]
    assert sorted(found, key=lambda row: row["id"]) == rows
    [found_x] = connection.query("SELECT q.x FROM shop.places WHERE id = 2", consistency=Consistency.QUORUM)
    assert found_x == {"q.x": 2}
    connection.close()


def _batches(found: Iterator[Any]) -> Iterator[list[dict[str, Any]]]:
    return (batch.to_pylist() for batch in found)
