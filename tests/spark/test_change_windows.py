"""Windows of a log of changes: what may be read next, by tables and against a model that holds every row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark")

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from lockstep.spark.changes import planning, windows
from lockstep.spark.changes.planning import ChangePartition, Planner, dealt
from lockstep.spark.changes.stream_options import (
    EARLIEST,
    RECONCILED,
    SKIP,
    StreamOptions,
    parse_stream_options,
)
from lockstep.spark.changes.windows import EXPIRY_MARGIN_US, Found, Log, Position, Reconciled, Stretch
from lockstep.values.errors import ChangesGone, ConfigurationError, PeerTimeout
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

SECOND = 1_000_000
DAY = 86_400
STRETCHES = (Stretch(100), Stretch(200), Stretch(300))


@pytest.mark.parametrize(
    ("start", "closed", "end"),
    [
        (100, 150, 150),
        (100, 200, 200),
        (100, 900, 200),
        (199, 900, 200),
        (200, 900, 300),
        (300, 900, 900),
        (50, 900, 100),
        (400, 350, 400),
    ],
)
def test_a_window_ends_where_streams_do_or_writes_go_on(start: int, closed: int, end: int) -> None:
    assert windows.window_end(STRETCHES, start, closed) == end


def test_the_parts_of_a_window_are_in_order_and_cover_it() -> None:
    assert windows.parts(STRETCHES, 150, 250) == [(0, 150, 200), (1, 200, 250)]
    assert windows.parts(STRETCHES, 50, 120) == [(0, 100, 120)]
    assert windows.parts(STRETCHES, 300, 300) == []


@pytest.mark.parametrize(
    ("found", "rows_max", "end"),
    [
        ([Found((1, 2, 3))], 5, 90),
        ([Found((1, 2, 3))], 2, 3),
        ([Found((1, 2, 3)), Found((2,))], 2, 2),
        ([Found((2, 2, 2))], 2, 3),
        ([Found(())], 1, 90),
        # What lies behind the last time of a stream that has more is not known.
        ([Found((1, 5), more=True), Found((2, 7))], 9, 5),
        ([Found((4, 4), more=True), Found((9,))], 9, 5),
    ],
)
def test_a_limit_ends_a_window_between_write_times(found: list[Found], rows_max: int, end: int) -> None:
    assert windows.limited_end(found, 90, rows_max) == end


def log(now_s: int, ttl_s: int, begins_us: int = 0, name: str = "a") -> Log:
    return Log(name, (Stretch(begins_us),), ttl_s, now_s * SECOND)


@pytest.mark.parametrize(
    ("position", "found", "says"),
    [
        (Position("a", 5 * SECOND, 60), log(40, 60), ""),
        (Position("a", 5 * SECOND, 60), log(5 + 60 - 11, 60), "rows of the log live 60 s"),
        (Position("a", 5 * SECOND, 60), log(5 + 60 - 12, 60), ""),
        (Position("a", 5 * SECOND, 0), log(DAY, 0), ""),
        # Lowered since, and raised since: rows live as long as the lesser one says.
        (Position("a", 5 * SECOND, DAY), log(60, 60), "rows of the log live 60 s"),
        (Position("a", 5 * SECOND, 60), log(60, DAY), "rows of the log live 60 s"),
        (Position("a", 5 * SECOND, 60), log(60, 0), "rows of the log live 60 s"),
        (Position("a", 5 * SECOND, 0), log(9, 0, 6 * SECOND), "begin 1.0 s later"),
        (Position("b", 5 * SECOND, 60), log(6, 60), "made anew"),
    ],
)
def test_a_gap_is_told(position: Position, found: Log, says: str) -> None:
    told = windows.gap(position, found)
    assert told == "" if not says else says in told


def test_the_earliest_position_has_no_gap() -> None:
    for ttl_s in (0, 300, DAY):
        for now_s in (1, 299, 300, 4000, 3 * DAY):
            found = log(now_s, ttl_s)
            position = Position("a", windows.earliest_us(found), ttl_s)
            assert not windows.gap(position, found), (ttl_s, now_s)


def test_a_log_whose_streams_begin_after_the_slowest_clock_is_read_from_their_begin() -> None:
    """One host answers long before the others, or its clock is behind: nothing is gone because of that."""
    for ttl_s in (0, 60, DAY):
        found = log(100, ttl_s, begins_us=113 * SECOND)
        for begin_us in (windows.earliest_us(found), windows.latest_us(found)):
            assert begin_us == 113 * SECOND
            assert not windows.gap(Position("a", begin_us, ttl_s), found)
            assert windows.window_end(found.stretches, begin_us, found.now_us) == begin_us


def test_positions_are_kept_as_json() -> None:
    position = Position("a", 7, 60)
    assert windows.position_of(position.as_json()) == position
    for wrong in ({}, {"version": 2}, {**position.as_json(), "until_us": "x"}, {"version": 1, "log": "a"}):
        with pytest.raises(ConfigurationError):
            windows.position_of(wrong)


def test_a_window_without_rows_is_passed_by_when_it_is_old() -> None:
    assert windows.is_due(0, 60 * SECOND, DAY) and not windows.is_due(0, 59 * SECOND, DAY)
    assert windows.is_due(0, 10 * SECOND, 40) and not windows.is_due(0, 9 * SECOND, 40)


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_streams_are_dealt_once(count: int) -> None:
    streams = [bytes([one]) for one in range(7)]
    groups = dealt(streams, count)
    assert [one for group in groups for one in group] == streams
    assert len(groups) <= max(count, 1) and all(groups)
    assert dealt([], count) == []


class Written:
    """A log that holds every row: the stream and write time of each, by which generation had it then."""

    def __init__(self, begins_us: Sequence[int], streams: int, now_us: int, ttl_s: int = 0) -> None:
        self.told = Log("log", tuple(map(Stretch, begins_us)), ttl_s, now_us)
        self._streams = streams
        self.rows: list[tuple[bytes, int]] = []
        self.reconciled: int | None = None

    def write(self, key: int, at_us: int) -> None:
        stretch = self.told.stretches[windows.stretch_at(self.told.stretches, at_us)]
        self.rows.append((self.streams(stretch)[key % self._streams], at_us))

    def log(self) -> Log:
        return self.told

    def streams(self, stretch: Stretch) -> list[bytes]:
        return [b"%d/%d" % (stretch.begins_us, number) for number in range(self._streams)]

    def read(self, streams: Sequence[bytes], start_us: int, end_us: int) -> list[tuple[bytes, int]]:
        return sorted(one for one in self.rows if one[0] in streams and start_us <= one[1] < end_us)

    def times(
        self, streams: Sequence[bytes], start_us: int, end_us: int, rows_each: int
    ) -> dict[bytes, Found]:
        found = {}
        for stream in streams:
            times = [at_us for _, at_us in self.read([stream], start_us, end_us)]
            found[stream] = Found(tuple(times[:rows_each]), len(times) >= rows_each)
        return found

    def row_bytes(self, streams: Sequence[bytes], start_us: int, end_us: int) -> float:
        return 10.0

    def reconciled_us(self) -> int | None:
        return self.reconciled


def planner(written: Written, **more: Any) -> Planner:
    return Planner("ks.t", StreamOptions(**{"safety_ms": 0, **more}), written, lambda _: None)


def rows_of(written: Written, parts: Sequence[ChangePartition]) -> list[list[tuple[bytes, int]]]:
    return [written.read(part.streams, part.start_us, part.end_us) for part in parts]


@given(
    begins=st.sets(st.integers(1, 60), min_size=1, max_size=4),
    writes=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 80)), max_size=60),
    steps=st.lists(st.integers(0, 30), max_size=6),
    rows_max=st.integers(0, 7),
    by_bytes=st.booleans(),
    restarts=st.booleans(),
)
def test_15_every_row_is_in_one_window_and_generations_follow_each_other(
    begins: set[int],
    writes: list[tuple[int, int]],
    steps: list[int],
    rows_max: int,
    by_bytes: bool,
    restarts: bool,
) -> None:
    first = min(begins)
    written = Written(sorted(begins), 3, first)
    for key, at_us in writes:
        if at_us >= first:
            written.write(key, at_us)
    limit: dict[str, Any] = {"bytes_max": 10 * rows_max} if by_bytes else {"rows_max": rows_max}
    one = planner(written, starting=EARLIEST, **limit)
    position = one.initial()
    read: list[tuple[bytes, int]] = []
    for step in [*steps, 100]:
        written.told = msgspec.structs.replace(written.told, now_us=written.told.now_us + step)
        one.freeze()
        while (end := one.latest(position, limited=rows_max > 0)) != position:
            parts = one.partitions(position, end, 4)
            batch = sorted(row for rows in rows_of(written, parts) for row in rows)
            # Whoever plans it again, knowing nothing, reads the same.
            again = planner(written, **limit).partitions(position, end, 2)
            assert sorted(row for rows in rows_of(written, again) for row in rows) == batch
            if rows_max:
                assert len(batch) <= rows_max or len({at_us for _, at_us in batch}) == 1
            assert len({stream.split(b"/")[0] for stream, _ in batch}) <= 1
            assert not read or not batch or max(at for _, at in read) < min(at for _, at in batch)
            read += batch
            position = end
            if restarts:
                one = planner(written, **limit)
                one.freeze()
        assert position.until_us == written.told.now_us
        assert sorted(read) == sorted(row for row in written.rows if row[1] < position.until_us)


def test_16_a_stream_that_ends_waits_for_what_was_written_before_it_began() -> None:
    written = Written([0], 2, 5 * SECOND)
    waited: list[float] = []

    def pause(seconds: float) -> None:
        waited.append(seconds)
        # A write of before arrives late, others go on.
        written.write(1, 5 * SECOND - 1)
        written.write(1, 5 * SECOND + 1)
        written.told = msgspec.structs.replace(
            written.told, now_us=written.told.now_us + int(seconds * SECOND)
        )

    one = Planner("ks.t", StreamOptions(safety_ms=2000), written, pause)
    one.freeze()
    end = one.latest(Position("log", 0, 0), limited=False)
    assert end.until_us == 5 * SECOND and waited == [2.0]
    assert rows_of(written, one.partitions(Position("log", 0, 0), end, 9)) == [[(b"0/1", 5 * SECOND - 1)]]
    assert one.latest(end, limited=False) == end


def test_a_stream_that_goes_on_stays_where_it_is_while_nothing_is_written() -> None:
    written = Written([0], 2, 5 * SECOND)
    one = planner(written)
    position = one.initial()
    written.told = msgspec.structs.replace(written.told, now_us=9 * SECOND)
    assert one.latest(position, limited=False) == position
    written.write(0, 8 * SECOND)
    end = one.latest(position, limited=False)
    assert end.until_us == 9 * SECOND and len(one.partitions(position, end, 9)) == 1
    written.told = msgspec.structs.replace(written.told, now_us=80 * SECOND)
    assert one.latest(end, limited=False).until_us == 80 * SECOND


def test_windows_of_many_rows_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are more than were looked at, fewer tell."""

    def is_large(streams: int, rows: int) -> bool:
        written = Written([0], streams, 9 * SECOND)
        for at in range(rows):
            written.write(at, SECOND + at)
        one = planner(written)
        assert not one.is_large
        one.latest(Position("log", 0, 0), limited=False)
        return one.is_large

    # Of two streams 64 rows each are looked at, of twenty enough.
    assert not is_large(2, 1400) and is_large(20, 1400)
    assert not is_large(40, 1400), "all are known, and are few"
    monkeypatch.setattr(planning, "_LARGE_ROWS", 1400)
    assert is_large(40, 1400)


def test_17_a_position_that_is_too_old_is_an_error_or_passed_by() -> None:
    written = Written([0], 2, 100 * SECOND, ttl_s=60)
    written.write(0, 70 * SECOND)
    old = Position("log", 10 * SECOND, 60)
    for ask in (
        lambda: planner(written).latest(old, limited=False),
        lambda: planner(written).partitions(old, Position("log", 20 * SECOND, 60), 1),
        lambda: planner(written, starting=10 * SECOND).initial(),
    ):
        with pytest.raises(ChangesGone, match=r"ks\.t .*gone: rows of the log live 60 s") as caught:
            ask()
        assert "onGap" in caught.value.hint
    skips = planner(written, on_gap=SKIP)
    end = skips.latest(old, limited=False)
    assert rows_of(written, skips.partitions(old, end, 1)) == [[(b"0/0", 70 * SECOND)]]
    # Another table of the same name is not gone on with.
    with pytest.raises(ChangesGone):
        planner(written, on_gap=SKIP).latest(Position("other", 70 * SECOND, 60), limited=False)


def test_17_tasks_know_until_when_their_rows_live() -> None:
    written = Written([0], 2, 30 * SECOND, ttl_s=60)
    written.write(0, 20 * SECOND)
    start, end = Position("log", 10 * SECOND, 60), Position("log", 25 * SECOND, 60)
    (part, *_) = planner(written).partitions(start, end, 1)
    assert part.lost_after_us == 70 * SECOND - EXPIRY_MARGIN_US


def told(*ranges: tuple[int, int, int | None]) -> list[Reconciled]:
    return [Reconciled(*one) for one in ranges]


LOW, HIGH = TOKEN_MIN + 1, TOKEN_MAX


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (told((LOW, HIGH, 7)), 7),
        (told((LOW, 5, 7), (6, HIGH, 9), (LOW, 5, 8)), 8),
        (told((LOW, 5, 7), (6, HIGH, None), (6, HIGH, 3)), 3),
        (told((LOW, 5, 7), (6, HIGH, None)), None),
        (told((LOW, 5, 7)), None),
        (told((LOW, 4, 7), (6, HIGH, 9)), None),
        # One node has heard of a cut that another one has not heard of.
        (told((LOW, HIGH, 9), (LOW, 5, 7), (6, HIGH, 9)), None),
        ([], None),
    ],
)
def test_a_moment_is_reconciled_when_one_replica_of_each_range_says_so(
    said: list[Reconciled], expected: int | None
) -> None:
    assert windows.reconciled_us(said) == expected


def test_what_follows_what_is_reconciled_waits_for_it_and_then_reads_it_once() -> None:
    written = Written([1], 2, 100 * SECOND)
    for number in range(10):
        written.write(number, 10 * SECOND + number)
    following = planner(written, follow=RECONCILED, safety_ms=5000, starting=EARLIEST)
    start = following.initial()
    assert following.latest(start, limited=False) == start, "nothing says that all replicas have it"
    assert following.newest is not None and following.newest.until_us == 95 * SECOND, (
        "it says how far it lags"
    )
    written.reconciled = 12 * SECOND
    assert following.latest(start, limited=False) == start, "what is stored late may be lacking still"
    written.reconciled = 16 * SECOND
    end = following.latest(start, limited=False)
    assert end.until_us == 11 * SECOND
    assert sum(len(rows) for rows in rows_of(written, following.partitions(start, end, 4))) == 10
    # Clocks differ: a moment is that of the fastest, for all that is known.
    written.told = msgspec.structs.replace(written.told, ahead_us=2 * SECOND)
    written.reconciled = 60 * SECOND
    written.write(3, 50 * SECOND)
    assert following.latest(end, limited=False).until_us == 53 * SECOND
    assert planner(written, safety_ms=5000).latest(end, limited=False).until_us == 95 * SECOND


def test_a_stream_that_ends_waits_for_replicas_for_a_while() -> None:
    written = Written([1], 2, 100 * SECOND)
    written.write(0, 50 * SECOND)
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            written.reconciled = 100 * SECOND

    wanted = StreamOptions(safety_ms=0, follow=RECONCILED, starting=EARLIEST)
    following = Planner("ks.t", wanted, written, pause)
    following.freeze()
    assert following.latest(following.initial(), limited=False).until_us == 100 * SECOND
    assert pauses == [1.0] * 3
    written.reconciled = None
    with pytest.raises(PeerTimeout, match="not all replicas") as refused:
        following.latest(following.initial(), limited=False)
    assert "reconcile status" in refused.value.hint


def test_any_level_does_for_what_every_replica_holds() -> None:
    given = {"hosts": "h", "keyspace": "k", "table": "t", "changes": "rows", "consistencyLevel": "ONE"}
    with pytest.raises(ConfigurationError, match="read at ONE"):
        parse_stream_options(given)
    options, wanted = parse_stream_options({**given, "follow": "Reconciled"})
    assert wanted.follow == RECONCILED and options.consistency.name == "ONE"
    with pytest.raises(ConfigurationError, match="takes written or reconciled"):
        parse_stream_options({**given, "follow": "all"})
