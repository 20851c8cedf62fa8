"""Rows in batches: which rows go together, in what order, and as what values."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("pyspark")

import pyarrow as pa

from lockstep.cql.wire.messages import UNSET
from lockstep.spark.encoders import encoder
from lockstep.spark.ring import TableColumn
from lockstep.spark.statement_batches import RowBatch, RowShape, batched
from lockstep.values.errors import InvalidRequest
from lockstep.values.node_limits import (
    SPARK_BATCH_BYTES_MAX,
    SPARK_BATCH_PARTITIONS_MAX,
    SPARK_BATCH_ROWS_MAX,
)
from lockstep.values.tokens import TOKEN_MAX, token_of

COLUMNS = (
    TableColumn("id", "partition_key", 0, "int"),
    TableColumn("at", "clustering", 0, "bigint"),
    TableColumn("v", "regular", -1, "text"),
)
SHAPE = RowShape(COLUMNS, ("id",), ("id", "at"))
WHOLE = (TOKEN_MAX,)


def data(ids: list[int], texts: list[str | None] | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(ids, pa.int32()),
            pa.array(range(len(ids)), pa.int64()),
            pa.array(texts if texts is not None else [f"v{at}" for at in range(len(ids))]),
        ],
        names=["id", "at", "v"],
    )


def key(row: tuple[object, ...]) -> int:
    assert isinstance(row[0], bytes)
    return token_of(row[0])


def test_every_row_comes_once_and_rows_of_a_partition_in_their_order() -> None:
    drawn = random.Random(4)
    ids = [drawn.randrange(60) for _ in range(3000)]
    made = list(batched(SHAPE, data(ids), WHOLE))
    rows = [row for one in made for row in one.rows]
    expected = [tuple(encoder(column.cql_type)(value) for column, value in zip(COLUMNS, row, strict=True))
                for row in zip(ids, range(3000), [f"v{at}" for at in range(3000)], strict=True)]  # fmt: skip
    assert sorted(rows) == sorted(expected)
    for number in range(60):
        of_one = [row for row in rows if row[0] == number.to_bytes(4, "big")]
        assert of_one == [row for row in expected if row[0] == number.to_bytes(4, "big")]


def size_of(batch: RowBatch) -> int:
    return sum(len(value) + 16 for row in batch.rows for value in row if isinstance(value, bytes)) + 32 * len(
        batch.rows
    )


def test_batches_keep_to_a_range_and_to_their_limits() -> None:
    rights = (-(1 << 62), 0, 1 << 62)
    made = list(batched(SHAPE, data(list(range(2000)) + [7] * 500), rights))
    for one in made:
        tokens = [key(row) for row in one.rows]
        assert one.token == tokens[0]
        assert len({sum(right < token for right in rights) for token in tokens}) == 1
        assert len(set(tokens)) <= SPARK_BATCH_PARTITIONS_MAX
        assert len(one.rows) <= SPARK_BATCH_ROWS_MAX
        assert len(one.rows) == 1 or size_of(one) <= SPARK_BATCH_BYTES_MAX
    assert sum(len(one.rows) for one in made) == 2500
    # Most are full: 2,000 partitions of one row, and one of 501.
    assert len(made) < 2500 / 8
    alone = list(batched(SHAPE, data([1, 2], ["x" * 5000, "y"]), WHOLE))
    assert [len(one.rows) for one in alone] == [1, 1]


def test_nulls_are_told_or_left_and_refused_in_keys() -> None:
    (one,) = batched(SHAPE, data([1], [None]), WHOLE)
    assert one.rows[0][2] is None
    ignoring = RowShape(COLUMNS, ("id",), ("id", "at"), ignore_nulls=True)
    (one,) = batched(ignoring, data([1], [None]), WHOLE)
    assert one.rows[0][2] is UNSET
    with pytest.raises(InvalidRequest, match="key column id is null"):
        list(batched(SHAPE, data([None]), WHOLE))  # type: ignore[list-item]
    assert list(batched(SHAPE, data([]), WHOLE)) == []
