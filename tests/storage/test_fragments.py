"""Fragments of large mutations and rows: what does not fit one batch, and what is merged ahead."""

from __future__ import annotations

import pytest

from lockstep.storage.rows import keys
from lockstep.storage.rows.folding import PartitionFold
from lockstep.storage.rows.fragments import fragments_of, require_fitting
from lockstep.values import limits
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import mutation_id
from lockstep.values.node_limits import MERGED_BYTES_INLINE
from lockstep.values.rows import Cell, Mutation, ReadCommand, Row

from .test_engine import TABLE

PREFIX = keys.partition_prefix(TABLE, 0, b"a")
COMMAND = ReadCommand(TABLE, -1, 0, b"a", (), (), False, False, 9, 9, 0)


def mutation(*rows: Row, number: int = 1) -> Mutation:
    return Mutation(TABLE, 0, b"a", mutation_id(1, 1, number), number, rows=rows)


def pairs(clustering: bytes, fragments: int, value: bytes) -> list[tuple[bytes, bytes]]:
    """Writes of one row, as they lie in the store: the newest first."""
    found = []
    for number in range(fragments, 0, -1):
        row = Row(clustering, cells=(Cell(1, value, number),))
        found += [(key, value) for _, key, value in fragments_of(mutation(row, number=number), PREFIX)]
    return found


@pytest.mark.parametrize(
    ("rows", "size", "why"),
    [
        (limits.STORE_BATCH_ROWS_MAX, 1, "is over the limit"),
        (2, limits.MUTATION_BYTES_MAX, str(limits.MUTATION_BYTES_MAX)),
    ],
)
def test_what_no_batch_of_a_replica_takes_is_refused_by_who_plans_it(rows: int, size: int, why: str) -> None:
    value = b"v" * size
    large = mutation(*(Row(b"%07d" % at, cells=(Cell(1, value, 1),)) for at in range(rows)))
    with pytest.raises(InvalidRequest, match=why):
        require_fitting(large, rows * size)
    require_fitting(mutation(*large.rows[:1]), 1)


@pytest.mark.parametrize("fragments", [3, 6])
def test_a_row_of_many_large_writes_is_merged_ahead_and_a_small_one_is_not(fragments: int) -> None:
    value = b"v" * (MERGED_BYTES_INLINE // 4)
    row, after = pairs(b"c", fragments, value), pairs(b"d", 1, b"w")[0]
    fold = PartitionFold(0, b"a", PREFIX, command=COMMAND, room=9, ask_merge=None)
    for pair in row:
        assert fold.due(pair) is None, "more of the same row may come"
        assert not fold.add(pair)
    work = fold.due(after)
    assert (work is not None) is (fragments > 4)
    if work is not None:
        work()
        assert fold.due(after) is None, "it is done"
    fold.add(after)
    found = fold.finish()
    assert [(one.clustering, one.cells[0].value) for one in found.rows] == [(b"c", value), (b"d", b"w")]
