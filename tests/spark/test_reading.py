"""Readers against a real cluster, without a JVM: whole scans, projections, keys, and hosts that fail."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, EqualTo, In
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint, pool_of
from lockstep.spark.options import parse_options
from lockstep.spark.ring import RangePartition, ask_any
from lockstep.spark.scan import Hosts, StatementReader
from lockstep.spark.source import FilteringReader, LockstepSource
from lockstep.values.errors import ConfigurationError, PeerUnreachable
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .conftest import EVENT_ROWS, EVENTS_PER_DAY, event_rows
from .support import NOBODYS_ADDRESS, PORTS, TIMEOUT_S, options

WHOLE_RING = RangePartition(0, ((TOKEN_MIN, TOKEN_MAX),))


def reader_of(cluster: LocalCluster, **others: str) -> DataSourceReader:
    source = LockstepSource(options(cluster, "events", **others))
    # What Spark does between planning and reading.
    return pickle.loads(pickle.dumps(source.reader(source.schema())))  # noqa: S301


def rows_of(batches: Iterator[pa.RecordBatch]) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for batch in batches for row in batch.to_pylist()]


def read_all(reader: DataSourceReader) -> list[tuple[Any, ...]]:
    return [
        row
        for partition in pickle.loads(pickle.dumps(list(reader.partitions())))  # noqa: S301
        for row in rows_of(reader.read(partition))
    ]


def test_the_schema_lists_keys_first(cluster: LocalCluster) -> None:
    schema = LockstepSource(options(cluster, "events")).schema()
    assert schema.simpleString() == "struct<day:int,at:int,what:string>"


@pytest.mark.parametrize("others", [{}, {"splitsPerRange": "2", "pageSize": "7"}, {"batchRows": "1"}])
def test_every_row_is_read_once(cluster: LocalCluster, others: dict[str, str]) -> None:
    assert sorted(read_all(reader_of(cluster, **others))) == list(event_rows())


def test_batches_have_about_the_asked_size(cluster: LocalCluster) -> None:
    reader = reader_of(cluster, batchRows="1000", pageSize="300")
    sizes = [batch.num_rows for batch in reader.read(WHOLE_RING)]
    assert sum(sizes) == EVENT_ROWS
    assert all(1000 <= size < 1300 for size in sizes[:-1])


def test_columns_choose_and_order(cluster: LocalCluster) -> None:
    rows = read_all(reader_of(cluster, columns="what,day"))
    assert sorted(rows) == sorted((what, day) for day, _, what in event_rows())


def test_a_users_schema_is_the_projection(cluster: LocalCluster) -> None:
    source = LockstepSource(options(cluster, "events"))
    reader = source.reader(StructType([StructField("at", IntegerType())]))
    assert sorted(read_all(reader)) == sorted((at,) for _, at, _ in event_rows())


@pytest.mark.parametrize(
    ("field", "said"),
    [
        (StructField("at", LongType()), "at is int .*not bigint"),
        (StructField("at", IntegerType(), nullable=False), "NOT NULL"),
        (StructField("gone", StringType()), "no column gone"),
    ],
)
def test_a_schema_that_differs_is_refused(cluster: LocalCluster, field: StructField, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        LockstepSource(options(cluster, "events")).reader(StructType([field]))


def test_a_missing_table_is_named(cluster: LocalCluster) -> None:
    with pytest.raises(ConfigurationError, match=r"no table shop\.absent"):
        LockstepSource(options(cluster, "absent")).schema()


def test_only_a_reader_that_was_asked_to_takes_filters(cluster: LocalCluster) -> None:
    assert not isinstance(reader_of(cluster), FilteringReader)
    assert isinstance(reader_of(cluster, filterPushdown="true"), FilteringReader)


def test_keys_are_read_and_nothing_else(cluster: LocalCluster) -> None:
    reader = reader_of(cluster, filterPushdown="true")
    other = EqualTo(("what",), "event 3")
    assert list(reader.pushFilters([In(("day",), [0, 7, 100_000]), other])) == [other]
    expected = [row for row in event_rows() if row[0] in (0, 7)]
    assert sorted(read_all(reader)) == expected
    assert len(expected) == 2 * EVENTS_PER_DAY


def test_a_dead_first_host_does_not_matter(cluster: LocalCluster) -> None:
    source = LockstepSource(
        {**options(cluster, "events"), "hosts": f"{NOBODYS_ADDRESS},{cluster.contact_points[0]}"}
    )
    assert len(read_all(source.reader(source.schema()))) == EVENT_ROWS


def test_no_host_at_all_is_an_error_that_names_them() -> None:
    with pytest.raises(PeerUnreachable, match=re.escape(NOBODYS_ADDRESS)):
        ask_any(pool_of(os.getpid()), [Endpoint(NOBODYS_ADDRESS, PORTS[0])], 1.0, CqlConnection.is_quiet)


def test_a_scan_outlives_the_death_of_its_host(cluster: LocalCluster) -> None:
    given = parse_options(options(cluster, "events", pageSize="200"))
    hosts = Hosts(given, pool_of(os.getpid()))
    names = {node.address: node.name for node in cluster.file.nodes}
    scan = StatementReader(
        "SELECT day, at FROM shop.events WHERE token(day) > ? AND token(day) <= ?", 2, given, hosts, 0
    )
    bounds = tuple(token.to_bytes(8, "big", signed=True) for token in WHOLE_RING.ranges[0])
    counts = []
    victim = ""
    for number, page in enumerate(scan.pages(bounds, 0)):
        counts.append(page.count)
        if number == 3:
            assert scan._connection is not None
            victim = names[scan._connection.endpoint.host]
            cluster.kill(victim)
    assert sum(counts) == EVENT_ROWS
    cluster.start([victim])


def test_a_closed_scan_leaves_no_answer_behind(cluster: LocalCluster) -> None:
    reader = reader_of(cluster, pageSize="100", batchRows="100")
    batches = reader.read(WHOLE_RING)
    next(batches)
    batches.close()
    assert len(read_all(reader)) == EVENT_ROWS


def test_connections_are_kept_for_the_next_task(cluster: LocalCluster) -> None:
    pool = pool_of(os.getpid())
    endpoint = Endpoint(cluster.contact_points[0], PORTS[0])
    first = pool.take(endpoint, TIMEOUT_S)
    pool.give_back(first)
    assert pool.take(endpoint, TIMEOUT_S) is first
    first.close()
    pool.give_back(first)
    second = pool.take(endpoint, TIMEOUT_S)
    assert second is not first
    pool.give_back(second)
