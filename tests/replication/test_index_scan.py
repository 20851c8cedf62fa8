"""Queries by index: ranges are asked in growing numbers, and the answer is that of asking one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from lockstep.coordination.reads import agreed, ended, places_named, scan
from lockstep.values.errors import ReadTimeout
from lockstep.values.ids import Consistency
from lockstep.values.limits import INDEX_RANGES_AT_ONCE_MAX
from lockstep.values.rows import (
    ALL_ROWS,
    IndexRead,
    Liveness,
    Partition,
    Place,
    Position,
    ReadCommand,
    ReadResult,
    Row,
    Slice,
)

from .support import OwnedTasks, run

WIDTH = 10


def command(left: int, right: int, limit: int = 0, after: Position | None = None) -> ReadCommand:
    asked = IndexRead(3, b"", b"")
    return ReadCommand(1, left, right, None, ALL_ROWS, (), False, False, limit, 0, 0, after, index=asked)


def partition(token: int, *rows: bytes) -> Partition:
    return Partition(token, b"k", None, (), None, tuple(Row(c, Liveness(1)) for c in rows or (b"c",)))


class Ring:
    """Ranges of WIDTH tokens; partitions lie at some tokens, and `asked` has each read's bounds."""

    def __init__(self, tokens: Sequence[int], stops_at: int | None = None) -> None:
        self.tokens = tokens
        self.stops_at = stops_at
        self.asked: list[tuple[int, int]] = []
        self.after: list[Position | None] = []
        #: Of each read, the how many-th it is of those that run together.
        self.together: list[int] = []
        self._running = 0

    def end_of_range(self, token: int) -> int:
        return -(-token // WIDTH) * WIDTH

    async def read(self, piece: ReadCommand) -> ReadResult:
        self.asked.append((piece.left, piece.right))
        self.after.append(piece.after)
        self._running += 1
        self.together.append(self._running)
        await asyncio.sleep(0)
        self._running -= 1
        assert piece.right <= self.end_of_range(piece.left + 1), "within one range"
        first = piece.left + 1 if piece.after is None else piece.after.token + 1
        found = tuple(partition(token) for token in self.tokens if first <= token <= piece.right)
        if self.stops_at is not None and piece.left < self.stops_at <= piece.right:
            return ReadResult(found, True, Position(self.stops_at, b"k"))
        return ReadResult(found)


def answer(ring: Ring, asked: ReadCommand) -> ReadResult:
    results = []

    async def test() -> None:
        results.append(await scan(asked, ring.read, ring.end_of_range, OwnedTasks()))

    run(test)
    return results[0]


def tokens(result: ReadResult) -> list[int]:
    return [one.token for one in result.partitions]


def test_where_nothing_is_found_twice_as_many_ranges_are_asked_each_time() -> None:
    ring = Ring([])
    assert answer(ring, command(0, 1000)) == ReadResult(())
    bounds = [(left, left + WIDTH) for left in range(0, 1000, WIDTH)]
    assert ring.asked == bounds, "each once, in order"
    widths = [min(1 << at, INDEX_RANGES_AT_ONCE_MAX) for at in range(7)]
    together = [number for width in widths for number in range(1, width + 1)]
    assert ring.together[: len(together)] == together[:100]


def test_a_full_answer_ends_the_scan_and_says_where_to_go_on() -> None:
    ring = Ring([3, 14, 25, 36, 47])
    result = answer(ring, command(0, 100, limit=2))
    assert tokens(result) == [3, 14] and result.more and result.end == Position(14, b"k")
    assert max(right for _, right in ring.asked) <= 30, "one range, then two at most"
    rest = answer(ring, command(0, 100, limit=9, after=result.end))
    assert tokens(rest) == [25, 36, 47] and not rest.more


def test_what_many_ranges_brought_too_much_of_is_cut_in_token_order() -> None:
    ring = Ring([31, 32, 33, 41, 51])
    result = answer(ring, command(0, 100, limit=2))
    assert tokens(result) == [31, 32] and result.end == Position(32, b"k")


def test_the_rest_of_a_limit_decides_how_many_ranges_are_asked() -> None:
    ring = Ring(list(range(1, 100, 2)))
    assert tokens(answer(ring, command(0, 100, limit=7))) == [1, 3, 5, 7, 9, 11, 13]
    assert ring.asked == [(0, 10), (10, 20)], "five of seven were in the first"


def test_a_range_that_stopped_ends_the_answer_there() -> None:
    ring = Ring([3, 14, 25], stops_at=20)
    result = answer(ring, command(0, 100))
    assert tokens(result) == [3, 14] and result.more and result.end == Position(20, b"k")


def test_what_was_read_before_is_not_read_again_and_bounds_are_kept() -> None:
    ring = Ring([3, 14, 25, 36])
    result = answer(ring, command(0, 28, after=Position(14, b"k")))
    assert tokens(result) == [25]
    assert ring.asked[0] == (13, 20) and ring.asked[-1] == (20, 28)
    assert ring.after == [Position(14, b"k"), *[None] * (len(ring.asked) - 1)]
    assert answer(Ring([]), command(5, 6)) == ReadResult(())


def test_the_first_error_is_told_once_all_have_ended() -> None:
    ring, ended_ = Ring([]), []

    async def read(piece: ReadCommand) -> ReadResult:
        ended_.append(piece.left)
        if piece.left in (20, 50):
            raise ReadTimeout(Consistency.ONE, 0, piece.left, False)
        return ReadResult(())

    async def test() -> None:
        with pytest.raises(ReadTimeout) as caught:
            await scan(command(0, 70), read, ring.end_of_range, OwnedTasks())
        assert caught.value.required == 20

    run(test)
    assert ended_ == [0, 10, 20]


# -- what replicas found


def test_only_equal_answers_agree() -> None:
    one = ReadResult((partition(3),))
    cut = ReadResult((partition(3),), True, Position(3, b"k"))
    assert agreed([one, one]) == (one.partitions, None)
    assert agreed([cut, cut, cut]) == (one.partitions, Position(3, b"k"))
    assert agreed([one, one, cut]) is None and agreed([cut]) == (one.partitions, Position(3, b"k"))


def test_every_row_that_anybody_names_is_read_up_to_where_all_looked() -> None:
    one = ReadResult((partition(3, b"1", b"2"), partition(7, b"1")))
    other = ReadResult((partition(3, b"2", b"3"), partition(5, b"1")), True, Position(5, b"k"))
    asked, end = places_named(command(0, 10, limit=4), [one, other])
    assert end == Position(5, b"k")
    assert asked.places == (
        Place(3, b"k", tuple(Slice(c, c + b"\0") for c in (b"1", b"2", b"3"))),
        Place(5, b"k", (Slice(b"1", b"1\0"),)),
    )
    assert (asked.index, asked.row_limit, asked.partition_row_limit) == (None, 0, 0)
    asked, end = places_named(command(0, 10), [one, one])
    assert end is None and [place.token for place in asked.places] == [3, 7]


def test_no_row_behind_the_place_where_one_stopped_is_read_here_and_again_afterwards() -> None:
    """Who asks goes on behind b"2" of the partition at 5."""
    stops = Position(5, b"k", b"2")
    one = ReadResult((partition(3, b"9"), partition(5, b"1", b"2")), True, stops)
    other = ReadResult((partition(3, b"9"), partition(5, b"1", b"3"), partition(7, b"1")))
    asked, end = places_named(command(0, 10), [one, other])
    assert end == stops
    assert asked.places == (
        Place(3, b"k", (Slice(b"9", b"9\0"),)),
        Place(5, b"k", (Slice(b"1", b"1\0"), Slice(b"2", b"2\0"))),
    )
    only_behind = ReadResult((partition(5, b"3"),))
    nothing = ReadResult((), True, stops)
    assert places_named(command(0, 10), [nothing, only_behind])[0].places == ()
    whole = replace(
        command(0, 10), slices=(Slice(b"1", b"2"), Slice(b"2", b"")), index=IndexRead(3, b"", b"", True)
    )
    assert places_named(whole, [one, other])[0].places == (
        Place(3, b"k", whole.slices),
        Place(5, b"k", (Slice(b"1", b"2"), Slice(b"2", b"2\0"))),
    )


@pytest.mark.parametrize(
    ("result", "end", "wanted"),
    [
        (ReadResult(()), None, None),
        (ReadResult(()), Position(5, b"k"), Position(5, b"k")),
        (ReadResult(()), Position(99, b"k"), None),
        (ReadResult((), True, Position(3, b"k")), Position(5, b"k"), Position(3, b"k")),
        (ReadResult((), True, Position(7, b"k")), Position(5, b"k"), Position(5, b"k")),
        (ReadResult((), True, Position(7, b"k")), None, Position(7, b"k")),
    ],
)
def test_an_answer_ends_where_it_or_the_places_end(
    result: ReadResult, end: Position | None, wanted: Position | None
) -> None:
    found = ended(result, command(0, 10), end)
    assert (found.more, found.end) == (wanted is not None, wanted)
