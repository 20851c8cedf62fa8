"""What the driver of a stream decides: where it begins, which window is next, which streams have rows in it.

Invariant: an offset that was given out is a position whose window is closed, so whoever reads it again, later
or elsewhere, reads the same changes; where what is reconciled is followed, from any replica. What is kept
between calls saves questions and decides nothing: without it, all streams of a window are read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec
from pyspark.sql.datasource import InputPartition

from lockstep.spark.changes import windows
from lockstep.spark.changes.stream_options import EARLIEST, LATEST, RECONCILED, SKIP, StreamOptions
from lockstep.spark.changes.windows import Found, Log, Position, Stretch
from lockstep.values.errors import ChangesGone, PeerTimeout

#: Times that are asked of each stream at the least: of a quiet one they are all.
_PROBE_ROWS: Final = 64
#: Rows of a task at the least, while they are known: below, starting it takes longer than reading them.
_TASK_ROWS: Final = 4096
#: Rows of a window from which on it is large, where all are known, and where there are more than are known.
_LARGE_ROWS: Final = 16_384
_LARGE_KNOWN_ROWS: Final = 1024
_US_PER_S: Final = 1_000_000
#: A stream that ends waits so long for replicas that lack changes: ten minutes, a round of theirs at a time.
_HELD_TURN_S: Final = 1.0
_HELD_TURNS_MAX: Final = 600


class Questions(Protocol):
    """What is asked of the cluster about a log."""

    def log(self) -> Log:
        """What is known of it now."""
        ...

    def streams(self, stretch: Stretch) -> list[bytes]:
        """The streams of a generation, in the order of the ring."""
        ...

    def times(
        self, streams: Sequence[bytes], start_us: int, end_us: int, rows_each: int
    ) -> dict[bytes, Found]:
        """Of each stream the first write times of a window, at most so many."""
        ...

    def row_bytes(self, streams: Sequence[bytes], start_us: int, end_us: int) -> float:
        """About how large a row of the window is."""
        ...

    def reconciled_us(self) -> int | None:
        """A moment by a node's clock: what any replica of the log held then all hold; None: none is known."""
        ...


@dataclass(frozen=True)
class ChangePartition(InputPartition):
    """Rows of streams in a window; `lost_after_us` is when some may have expired, 0 never. `snapshot`: the
    encoded snapshot of the log that they are read from, empty where pages are asked for."""

    turn: int
    streams: tuple[bytes, ...]
    start_us: int
    end_us: int
    lost_after_us: int
    snapshot: bytes = b""


class _Window(msgspec.Struct, frozen=True):
    """A window that was planned: its rows by stream, where `known` are all of them."""

    start_us: int
    end_us: int
    rows: dict[bytes, int]
    known: bool


class Planner:
    """Of one stream. `pause` waits for seconds."""

    def __init__(
        self,
        name: str,
        wanted: StreamOptions,
        questions: Questions,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._name = name
        self._wanted = wanted
        self._questions = questions
        self._pause = pause
        #: The time before which everything is read by a stream that ends; 0 for one that goes on.
        self._target_us = 0
        self._window: _Window | None = None
        self._streams: dict[int, list[bytes]] = {}
        self.newest: Position | None = None

    def freeze(self) -> None:
        """Read what is written before now, and nothing else."""
        log = self._questions.log()
        self._target_us = log.now_us + log.ahead_us

    def initial(self) -> Position:
        """Where a stream begins that has no checkpoint. ChangesGone when it is behind the log's beginning."""
        log, starting = self._questions.log(), self._wanted.starting
        if isinstance(starting, Position):
            position = starting
        elif starting == LATEST:
            position = Position(log.id, windows.latest_us(log), log.ttl_s)
        elif starting == EARLIEST:
            position = Position(log.id, windows.earliest_us(log), log.ttl_s)
        else:
            position = Position(log.id, int(starting), log.ttl_s)
        self._check(position, log)
        return position

    def latest(self, start: Position, *, limited: bool) -> Position:
        """The end of the next window; `start` when there is nothing to read."""
        log = self._closed_log()
        self._check(start, log)
        closed_us = self._target_us or log.now_us - self._wanted.safety_us
        self.newest = Position(log.id, max(closed_us, start.until_us), log.ttl_s)
        if self._wanted.follow == RECONCILED:
            closed_us = min(closed_us, self._held_us(log))
        end_us = windows.window_end(log.stretches, start.until_us, closed_us)
        if end_us == start.until_us:
            return start
        window = self._planned(log, start.until_us, end_us, limited=limited)
        due = self._target_us or windows.is_due(window.start_us, window.end_us, log.ttl_s)
        if not window.rows and not due:
            return start
        self._window = window
        return Position(log.id, window.end_us, log.ttl_s)

    def partitions(self, start: Position, end: Position, tasks_max: int) -> list[ChangePartition]:
        """What tasks read of a window. ChangesGone when some of it may have expired."""
        log = self._questions.log()
        self._check(start, log)
        kept_s = 0 if self._wanted.on_gap == SKIP else windows.kept(start.kept_s, log.ttl_s)
        lost_us = windows.lost_after_us(start.until_us, kept_s) if kept_s else 0
        window = self._window
        if window is None or (window.start_us, window.end_us) != (start.until_us, end.until_us):
            window = None
        found: list[ChangePartition] = []
        for at, low_us, high_us in windows.parts(log.stretches, start.until_us, end.until_us):
            streams = self._streams_of(log.stretches[at])
            tasks = tasks_max
            if window is not None:
                streams = [one for one in streams if one in window.rows]
                if window.known:
                    tasks = min(tasks, -(-sum(window.rows.values()) // _TASK_ROWS))
            for group in dealt(streams, tasks):
                found.append(ChangePartition(len(found), tuple(group), low_us, high_us, lost_us))
        return found

    @property
    def is_large(self) -> bool:
        """Whether the window that was planned last has so many rows that fixing the log costs less."""
        window = self._window
        if window is None:
            return False
        return sum(window.rows.values()) >= (_LARGE_ROWS if window.known else _LARGE_KNOWN_ROWS)

    def _planned(self, log: Log, start_us: int, end_us: int, *, limited: bool) -> _Window:
        ((at, _, _),) = windows.parts(log.stretches, start_us, end_us) or ((-1, 0, 0),)
        if at < 0:
            # Before all streams, where somebody asked to pass by what is gone.
            return _Window(start_us, end_us, {}, True)
        streams = self._streams_of(log.stretches[at])
        rows_max = self._rows_max(streams, start_us, end_us) if limited else 0
        each = max(_PROBE_ROWS, min(rows_max + 1, 2 * rows_max // len(streams)))
        found = self._questions.times(streams, start_us, end_us, each)
        if rows_max:
            end_us = windows.limited_end(list(found.values()), end_us, rows_max)
        rows = {
            stream: sum(at_us < end_us for at_us in one.times_us)
            for stream, one in found.items()
            if one.times_us and one.times_us[0] < end_us
        }
        return _Window(start_us, end_us, rows, not any(one.more for one in found.values()))

    def _rows_max(self, streams: Sequence[bytes], start_us: int, end_us: int) -> int:
        """Of the next window; 0: no limit."""
        wanted = self._wanted
        if not wanted.bytes_max:
            return wanted.rows_max
        row_bytes = self._questions.row_bytes(streams, start_us, end_us)
        by_bytes = max(1, int(wanted.bytes_max / row_bytes))
        return min(by_bytes, wanted.rows_max or by_bytes)

    def _closed_log(self) -> Log:
        """The log once nothing is written any more that a stream that ends has to read."""
        log = self._questions.log()
        while self._target_us and log.now_us < self._target_us + self._wanted.safety_us:
            left_us = self._target_us + self._wanted.safety_us - log.now_us
            self._pause(left_us / _US_PER_S)
            log = self._questions.log()
        if self._target_us and self._wanted.follow == RECONCILED:
            self._await_held(log)
        return log

    def _await_held(self, log: Log) -> None:
        """Return once every replica holds all that a stream that ends has to read. PeerTimeout."""
        for _ in range(_HELD_TURNS_MAX):
            if self._held_us(log) >= self._target_us:
                return
            self._pause(_HELD_TURN_S)
        raise PeerTimeout(
            f"not all replicas have the changes of {self._name} that were written when this began",
            hint="`lockstep reconcile status` says which replica lacks what; follow = written does not wait",
        )

    def _held_us(self, log: Log) -> int:
        """The write time before which every replica holds all changes: they were stored some seconds later at
        most, as nothing is written any more then."""
        found = self._questions.reconciled_us()
        return 0 if found is None else found - log.ahead_us - self._wanted.safety_us

    def _check(self, position: Position, log: Log) -> None:
        problem = windows.gap(position, log)
        if problem and (self._wanted.on_gap != SKIP or position.log != log.id):
            raise ChangesGone(
                f"changes of {self._name} that were to be read are gone: {problem}",
                hint='.option("onGap", "skip") goes on with what is there; another checkpoint begins anew',
            )

    def _streams_of(self, stretch: Stretch) -> list[bytes]:
        found = self._streams.get(stretch.begins_us)
        if found is None:
            # Of the present generation and the next one.
            self._streams = dict(list(self._streams.items())[-1:])
            found = self._streams[stretch.begins_us] = self._questions.streams(stretch)
        return found


def dealt(streams: Sequence[bytes], count: int) -> list[list[bytes]]:
    """The streams in at most so many groups of neighbours, for neighbours often have the same replicas."""
    if not streams:
        return []
    size = -(-len(streams) // max(1, min(count, len(streams))))
    return [list(streams[first : first + size]) for first in range(0, len(streams), size)]
