"""Answers of several replicas made one: which stop comes first, and what is known up to there."""

from __future__ import annotations

import itertools

import pytest

from lockstep.replica.merging import covered, earlier, merge_answers
from lockstep.values.rows import Deletion, Liveness, Partition, Position, ReadResult, Row

STOPS = [
    Position(1, b"b"),
    Position(2, b"a"),
    Position(2, b"a", b"1"),
    Position(2, b"a", b"2"),
    Position(2, b"b", b"0"),
    Position(3, b"a", b"9"),
]


def place(stop: Position | None, reverse: bool) -> tuple[object, ...]:
    """Sorts stops in reading order: inside a partition before its end, and nothing behind the end of all."""
    if stop is None:
        return (1,)
    inside = (1, 0) if stop.clustering is None else (0, int(stop.clustering) * (-1 if reverse else 1))
    return (0, stop.token, stop.key, *inside)


@pytest.mark.parametrize("reverse", [False, True])
def test_the_earlier_stop_is_the_one_that_is_read_first(reverse: bool) -> None:
    for one, other in itertools.product([*STOPS, None], repeat=2):
        wanted = min(one, other, key=lambda stop: place(stop, reverse))
        assert earlier(one, other, reverse) == wanted, (one, other)


@pytest.mark.parametrize("reverse", [False, True])
def test_rows_up_to_the_stop_are_covered(reverse: bool) -> None:
    for clustering in (b"1", b"2", b"3"):
        row = Row(clustering)
        assert covered(row, Position(2, b"a"), reverse), "the whole partition was read"
        before = clustering >= b"2" if reverse else clustering <= b"2"
        assert covered(row, Position(2, b"a", b"2"), reverse) is before


def partition(token: int, *rows: bytes, at: int = 1) -> Partition:
    return Partition(token, b"k", None, (), None, tuple(Row(c, Liveness(at)) for c in rows))


def keys(found: tuple[Partition, ...]) -> list[tuple[int, list[bytes]]]:
    return [(one.token, [row.clustering for row in one.rows]) for one in found]


def test_nothing_is_said_of_what_lies_behind_the_earliest_stop() -> None:
    whole = ReadResult((partition(1, b"1"), partition(2, b"1", b"2", b"3"), partition(3, b"1")))
    stopped = ReadResult((partition(2, b"1"),), True, Position(2, b"k", b"2"))
    later = ReadResult((partition(1, b"4"), partition(2, b"0")), True, Position(3, b"k", b"1"))
    merged, end = merge_answers([whole, stopped, later], reverse=False)
    assert end == Position(2, b"k", b"2")
    assert keys(merged) == [(1, [b"1", b"4"]), (2, [b"0", b"1", b"2"])]
    merged, end = merge_answers([whole, later], reverse=False)
    assert end == Position(3, b"k", b"1")
    assert keys(merged) == [(1, [b"1", b"4"]), (2, [b"0", b"1", b"2", b"3"]), (3, [b"1"])]
    merged, end = merge_answers([whole, whole], reverse=False)
    assert end is None and merged == whole.partitions


def test_what_one_answer_deletes_is_gone_from_the_others() -> None:
    gone = Partition(2, b"k", Deletion(5, 1))
    newer = partition(2, b"9", at=6)
    merged, end = merge_answers(
        [ReadResult((partition(2, b"1", b"2"),)), ReadResult((gone,)), ReadResult((newer,))], reverse=False
    )
    assert end is None and keys(merged) == [(2, [b"9"])]
    assert merged[0].deletion == Deletion(5, 1), "it may be news to another replica"


def test_a_partition_of_which_nothing_is_left_is_not_answered() -> None:
    """What lies behind the stop was all that one answer had of it."""
    behind = ReadResult((partition(2, b"3"),))
    stopped = ReadResult((), True, Position(2, b"k", b"1"))
    assert merge_answers([behind, stopped], reverse=False) == ((), Position(2, b"k", b"1"))
