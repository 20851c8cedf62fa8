"""The checker of disks: it tells replicas apart by one cell, and knows deletions by what they cover."""

from __future__ import annotations

from lockstep.sim.checkers.columns import DELETED, EXPIRES, STAYS, State
from lockstep.sim.checkers.contents import PartitionCells, _may_go
from lockstep.storage.rows.fragments import encode_header
from lockstep.values.rows import Cell, ColumnDeletion, Deletion, Liveness, RangeDeletion, Row

C = b"\x01"
A = (C, 5, None)


def partition(
    *rows: Row, deletion: Deletion | None = None, ranges: tuple[RangeDeletion, ...] = ()
) -> PartitionCells:
    found = PartitionCells()
    if deletion is not None or ranges:
        found.add_header(b"", encode_header(deletion, ranges))
    for row in rows:
        found.add_row(row.clustering, row)
    return found


def cell(value: bytes | None, at_us: int, ttl_s: int = 0, ends_s: int = 0) -> Cell:
    return Cell(5, value, at_us, ttl_s, ends_s)


def test_of_several_fragments_the_strongest_counts() -> None:
    old, new = Row(C, cells=(cell(b"a", 1),)), Row(C, cells=(cell(b"b", 2),))
    assert partition(old, new).state(A) == partition(new, old).state(A) == State(2, STAYS, 0, b"b")
    tied = Row(C, cells=(cell(b"z", 2),)), Row(C, cells=(cell(b"a", 2, 3, 9),))
    assert partition(*tied).state(A) == State(2, EXPIRES, 9, b"a")
    assert partition(*tied, Row(C, cells=(cell(None, 2),))).state(A).kind == DELETED


def test_deletions_that_cover_the_same_are_the_same() -> None:
    live = Row(C, liveness=Liveness(1), cells=(cell(b"a", 1),))
    gone = Deletion(1, 0)
    ways = (
        partition(live, deletion=gone),
        partition(live, ranges=(RangeDeletion(b"", b"", gone),)),
        partition(live, Row(C, deletion=gone)),
        partition(Row(C, deletion=gone)),
    )
    assert {way.state(A) for way in ways} == {State(1)}
    assert {way.state((C, 0, None)) for way in ways} == {State(1)}
    whole = Row(C, cells=(Cell(5, b"v", 1, path=b"p"),), column_deletions=(ColumnDeletion(5, gone),))
    assert partition(whole).state((C, 5, b"p")) == State(1)
    assert partition(live, ranges=(RangeDeletion(b"", C, gone),)).state(A).kind == STAYS


def test_only_what_is_dead_may_be_purged() -> None:
    assert _may_go(State(1), 5) and _may_go(State(1, EXPIRES, 4, b"v"), 5)
    assert not _may_go(State(1, EXPIRES, 5, b"v"), 5) and not _may_go(State(1, STAYS, 0, b"v"), 5)
