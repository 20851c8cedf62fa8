"""One page of rows: what counts, what fills it, and where the next one begins."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.coordination import page
from lockstep.coordination.page import Page, bytes_of
from lockstep.values.rows import Cell, Liveness, Partition, Position, Row

from .clusters import COLUMN, key_of, read_one, read_range

ALIVE = Liveness(1)


def row(name: bytes, value: bytes | None = b"v", path: bytes | None = None) -> Row:
    return Row(name, ALIVE, cells=(Cell(COLUMN, value, 1, path=path),))


def of(token: int, *names: bytes, static: Row | None = None) -> Partition:
    return Partition(token, key_of(token), static=static, rows=tuple(map(row, names)))


STATIC = Row(b"", cells=(Cell(COLUMN, b"s", 1),))


def test_bytes_are_those_of_keys_and_values() -> None:
    rows = (row(b"cc", b"vvv", b"pppp"), row(b"c", None))
    assert bytes_of(Partition(1, b"k" * 10, rows=rows)) == 10 + 2 + 3 + 4 + 1
    assert bytes_of(Partition(1, b"k", static=Row(b"", cells=(Cell(COLUMN, b"ss", 1),)))) == 1 + 2


def test_a_page_has_room_for_what_is_missing_and_asks_for_one_at_the_least() -> None:
    found = Page(msgspec.structs.replace(read_range(), row_limit=3))
    assert (found.room(), found.full()) == (3, False)
    found.add([of(1, b"a", b"b")], None)
    assert (found.room(), found.full(), found.count()) == (1, False, 2)
    found.add([of(2, b"a", b"b")], None)
    assert (found.room(), found.full(), found.count()) == (1, True, 4)
    result = found.result(None)
    assert [len(part.rows) for part in result.partitions] == [2, 1]
    assert result.more and result.end == Position(2, key_of(2), b"a")


def test_without_a_limit_there_is_no_room_to_name_and_all_is_given() -> None:
    found = Page(msgspec.structs.replace(read_range(), row_limit=0))
    found.add([of(1, b"a"), of(2, b"b")], None)
    assert (found.room(), found.full()) == (0, False)
    result = found.result(None)
    assert [part.token for part in result.partitions] == [1, 2] and not result.more and result.end is None


def test_a_page_is_full_by_its_bytes_once_it_holds_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    empty = of(1)
    monkeypatch.setattr(page, "PAGE_BYTES_MAX", len(empty.key))
    found = Page(read_range())
    found.add([empty], Position(1, empty.key))
    assert not found.full(), "nothing is shown yet"
    found.add([of(2, b"a")], None)
    assert found.full()


def test_rows_of_a_partition_that_goes_on_are_put_together_up_to_its_limit() -> None:
    found = Page(msgspec.structs.replace(read_range(), partition_row_limit=3))
    found.add([of(1, b"a", b"b")], Position(1, key_of(1), b"b"))
    assert found.skip_full(Position(1, key_of(1), b"b")) == Position(1, key_of(1), b"b")
    found.add([of(1, b"c", b"d")], Position(1, key_of(1), b"d"))
    assert found.skip_full(Position(1, key_of(1), b"d")) == Position(1, key_of(1)), "it gave all it may"
    assert found.skip_full(Position(2, key_of(2), b"d")) == Position(2, key_of(2), b"d"), "another one"
    assert found.behind_last() == Position(1, key_of(1))
    found.add([of(2, b"e")], None)
    result = found.result(None)
    names = [[one.clustering for one in part.rows] for part in result.partitions]
    assert names == [[b"a", b"b", b"c"], [b"e"]]


def test_a_static_row_counts_when_it_is_known_that_no_row_follows() -> None:
    command = msgspec.structs.replace(read_range(), reads_static=True)
    found = Page(command)
    found.add([of(1, static=STATIC)], Position(1, key_of(1), b"x"))
    assert found.count() == 0, "rows may follow"
    found.add([of(2, static=STATIC)], None)
    assert found.count() == 2
    assert [part.token for part in found.result(None).partitions] == [1, 2]


def test_who_asks_for_one_partition_is_shown_its_static_row_also_when_that_is_no_row() -> None:
    for command, shown in ((read_one(1), 1), (read_range(), 0)):
        found = Page(msgspec.structs.replace(command, reads_static=False))
        found.add([of(1, static=STATIC)], None)
        assert len(found.result(None).partitions) == shown


def test_a_page_that_ends_with_a_whole_partition_goes_on_behind_it() -> None:
    found = Page(msgspec.structs.replace(read_range(), row_limit=2))
    found.add([of(1, b"a", b"b"), of(2, b"a")], None)
    result = found.result(None)
    assert [part.token for part in result.partitions] == [1]
    assert result.more and result.end == Position(1, key_of(1))
    found = Page(msgspec.structs.replace(read_range(), row_limit=2))
    found.add([of(1, b"a", b"b")], None)
    assert not found.result(None).more
