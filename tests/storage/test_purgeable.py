"""What of a row and a partition is left when old tombstones and expired values go: each part by itself."""

from __future__ import annotations

import pytest

from lockstep.storage.rows.visible import deletion_left, partition_left, ranges_left, row_left
from lockstep.values.rows import (
    MARKER_COLUMN,
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Partition,
    RangeDeletion,
    Row,
)

#: Of the second before which things may go.
BEFORE_S = 50
OLD, KEPT = BEFORE_S - 1, BEFORE_S
LIVE = Cell(1, b"v", 5)
GONE_OLD, GONE_KEPT = Cell(2, None, 5, 0, OLD), Cell(2, None, 5, 0, KEPT)
EXPIRED_OLD, EXPIRED_KEPT = Cell(3, b"v", 5, 9, OLD), Cell(3, b"v", 5, 9, KEPT)
STAYS, EXPIRES_OLD, EXPIRES_KEPT = Liveness(5), Liveness(5, 9, OLD), Liveness(5, 9, KEPT)
DELETED_OLD, DELETED_KEPT = Deletion(4, OLD), Deletion(4, KEPT)
MAP_OLD, MAP_KEPT = ColumnDeletion(4, DELETED_OLD), ColumnDeletion(4, DELETED_KEPT)
MARKED_OLD, MARKED_KEPT = Cell(MARKER_COLUMN, None, 5, 0, OLD), Cell(MARKER_COLUMN, None, 5, 0, KEPT)


def row(
    liveness: Liveness | None = None,
    deletion: Deletion | None = None,
    cells: tuple[Cell, ...] = (),
    columns: tuple[ColumnDeletion, ...] = (),
) -> Row:
    return Row(b"r", liveness, deletion, cells, columns)


UNTOUCHED = [
    row(STAYS),
    row(EXPIRES_KEPT),
    row(None, DELETED_KEPT),
    row(None, None, (LIVE,)),
    row(None, None, (GONE_KEPT,)),
    row(None, None, (EXPIRED_KEPT,)),
    row(None, None, (), (MAP_KEPT,)),
    row(None, None, (MARKED_KEPT, LIVE)),
    row(STAYS, DELETED_KEPT, (LIVE, GONE_KEPT, EXPIRED_KEPT), (MAP_KEPT,)),
]
NOTHING_LEFT = [
    row(EXPIRES_OLD),
    row(None, DELETED_OLD),
    row(None, None, (GONE_OLD,)),
    row(None, None, (EXPIRED_OLD,)),
    row(None, None, (), (MAP_OLD,)),
    row(None, None, (MARKED_OLD,)),
    row(EXPIRES_OLD, DELETED_OLD, (GONE_OLD, EXPIRED_OLD), (MAP_OLD,)),
]
#: Each part that may go beside each that stays.
CUT = [
    (row(EXPIRES_OLD, None, (LIVE,)), row(None, None, (LIVE,))),
    (row(EXPIRES_OLD, DELETED_KEPT), row(None, DELETED_KEPT)),
    (row(STAYS, DELETED_OLD), row(STAYS)),
    (row(STAYS, None, (GONE_OLD,)), row(STAYS)),
    (row(STAYS, None, (EXPIRED_OLD,)), row(STAYS)),
    (row(None, None, (LIVE, GONE_OLD, EXPIRED_KEPT)), row(None, None, (LIVE, EXPIRED_KEPT))),
    (row(STAYS, None, (), (MAP_OLD,)), row(STAYS)),
    (row(None, None, (GONE_OLD,), (MAP_KEPT,)), row(None, None, (), (MAP_KEPT,))),
    (
        row(None, None, (), (MAP_OLD, ColumnDeletion(5, DELETED_KEPT))),
        row(None, None, (), (ColumnDeletion(5, DELETED_KEPT),)),
    ),
    # A row that its marker's deletion ended keeps nothing but a deletion of its own.
    (row(STAYS, DELETED_KEPT, (MARKED_OLD, LIVE), (MAP_KEPT,)), row(None, DELETED_KEPT)),
]


@pytest.mark.parametrize("whole", UNTOUCHED)
def test_a_row_of_which_nothing_may_go_is_itself(whole: Row) -> None:
    assert row_left(whole, BEFORE_S) is whole


@pytest.mark.parametrize("whole", NOTHING_LEFT)
def test_a_row_of_which_all_may_go_is_nothing(whole: Row) -> None:
    assert row_left(whole, BEFORE_S) is None


@pytest.mark.parametrize(("whole", "left"), CUT)
def test_of_a_row_what_may_go_goes_and_the_rest_stays(whole: Row, left: Row) -> None:
    assert row_left(whole, BEFORE_S) == left


def test_a_marker_ends_a_row_only_where_it_comes_first_and_is_dead() -> None:
    live = row(None, None, (Cell(MARKER_COLUMN, b"", 5), LIVE))
    assert row_left(live, BEFORE_S) is live


def test_a_partition_loses_what_may_go_of_each_of_its_parts() -> None:
    ranges = tuple(RangeDeletion(b"a", b"b", deletion) for deletion in (DELETED_OLD, DELETED_KEPT))
    static = row(None, None, (LIVE, GONE_OLD))
    whole = Partition(3, b"k", DELETED_OLD, ranges, static, (row(EXPIRES_OLD), row(STAYS)))
    left = Partition(3, b"k", None, ranges[1:], row(None, None, (LIVE,)), (row(STAYS),))
    assert partition_left(whole, BEFORE_S) == left
    emptied = Partition(3, b"k", DELETED_OLD, ranges[:1], row(EXPIRES_OLD), (row(EXPIRES_OLD),))
    assert partition_left(emptied, BEFORE_S) == Partition(3, b"k", None, (), None, ())
    kept = Partition(3, b"k", DELETED_KEPT, ranges[1:], None, (row(STAYS),))
    assert partition_left(kept, BEFORE_S) == kept


def test_deletions_go_by_when_they_were_made() -> None:
    assert [deletion_left(one, BEFORE_S) for one in (None, DELETED_OLD, DELETED_KEPT)] == [
        None,
        None,
        DELETED_KEPT,
    ]
    ranges = (RangeDeletion(b"a", b"b", DELETED_OLD), RangeDeletion(b"b", b"c", DELETED_KEPT))
    assert ranges_left(ranges, BEFORE_S) == ranges[1:]
