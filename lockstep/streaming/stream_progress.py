"""How far streams are: counts for one piece of work, and what one running stream shows of itself.

Invariant: counts only grow, but estimates may be corrected either way; nothing here decides anything.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from lockstep.internode.handshake import Address
from lockstep.runtime.ports import Clock
from lockstep.values.tokens import Range

#: A rate is told over the last one to two of these.
RATE_WINDOW_S = 5.0
#: Sessions of which a node remembers how much they brought: more than run at once, and than end meanwhile.
SESSIONS_REMEMBERED_MAX = 256


class Rate:
    """Bytes a second lately."""

    def __init__(self) -> None:
        self._marks: list[tuple[float, int]] = []

    def note(self, now_s: float, total: int) -> None:
        marks = self._marks
        if not marks:
            marks.append((now_s, total))
        elif now_s - marks[-1][0] >= RATE_WINDOW_S:
            self._marks = [marks[-1], (now_s, total)]

    def of(self, now_s: float, total: int) -> int:
        if not self._marks:
            return 0
        since_s, before = self._marks[0]
        return int((total - before) / (now_s - since_s)) if now_s > since_s else 0


class StreamProgress:
    """Counts that the streams of one piece of work add to. Estimates come from the `views` under it."""

    def __init__(self) -> None:
        self.moved_bytes = 0
        self.fragments = 0
        self.files = 0
        self.views: list[StreamView] = []
        #: Streams that there will be, as far as it is known; those to come are taken to be as large as the
        #: others.
        self.expected = 0
        self.rate = Rate()
        self.ranges = 0
        self.ranges_total = 0
        self.tables_total = 0
        #: Table -> ranges of it that are still to come.
        self._lacking: dict[int, int] = {}
        self._began_s: float | None = None

    def plan(self, ranges: int, tables: Mapping[int, int]) -> None:
        """Ranges that there will be, and of each table how many."""
        self.ranges_total, self._lacking = ranges, dict(tables)
        self.tables_total = len(self._lacking)

    def table_done(self, table: int) -> None:
        """One range of it is."""
        self._lacking[table] = self._lacking.get(table, 0) - 1

    def tables_skipped(self, tables: Iterable[int], but: Container[int]) -> None:
        """One range of each of the tables is, of which there was nothing, `but` for some."""
        lacking = self._lacking
        for table in tables:
            if table not in but:
                lacking[table] = lacking.get(table, 0) - 1

    @property
    def tables_done(self) -> int:
        return sum(1 for left in self._lacking.values() if left <= 0)

    @property
    def total_bytes(self) -> int:
        """An estimate; 0 while no stream said how much it is."""
        return self._of_all(sum(max(view.total_bytes, view.bytes) for view in self.views))

    @property
    def files_total(self) -> int:
        return self._of_all(sum(view.files_total for view in self.views))

    def _of_all(self, begun: int) -> int:
        count = len(self.views)
        return begun * max(self.expected, count) // count if count else 0

    def rate_bytes_s(self, now_s: float) -> int:
        return self.rate.of(now_s, self.moved_bytes)

    def left_s(self, now_s: float) -> int:
        """Seconds left at the present rate, or as long for each range to come as for those that are done; -1
        when nobody can tell."""
        if self._began_s is None:
            self._began_s = now_s
        found = left_s(self.total_bytes - self.moved_bytes, self.rate_bytes_s(now_s))
        to_come = self.ranges_total - self.ranges
        if not self.ranges or not to_come:
            return found
        by_ranges = int((now_s - self._began_s) * to_come / self.ranges)
        return max(found, by_ranges)


class TakenIn:
    """What the streams of each session made durable here, the latest sessions' only.

    Invariant: of a session it never becomes less, also over a restart while the session is open:
    `on_disk(id)` reads what an earlier start of this node brought.
    """

    def __init__(self, on_disk: Callable[[str], tuple[int, int]]) -> None:
        self._on_disk = on_disk
        self._by_session: dict[str, tuple[int, int]] = {}

    def of(self, session_id: str) -> tuple[int, int]:
        """(bytes, fragments) of a session that is open."""
        if session_id not in self._by_session:
            self._by_session[session_id] = self._on_disk(session_id)
            while len(self._by_session) > SESSIONS_REMEMBERED_MAX:
                del self._by_session[next(iter(self._by_session))]
        return self._by_session[session_id]

    def remembered(self, session_id: str) -> tuple[int, int] | None:
        """Of a session that may have closed; None when this start of the node does not know of it."""
        return self._by_session.get(session_id)

    def add(self, session_id: str, size: int, fragments: int) -> None:
        """A file whose position is durable."""
        before = self._by_session.get(session_id)
        if before is not None:
            self._by_session[session_id] = before[0] + size, before[1] + fragments


class StreamView:
    """One running stream, seen from this node. `direction` is in or out; `files` are those that are done."""

    def __init__(
        self, session_id: str, peer: Address, direction: str, table_id: int, tokens: Range, clock: Clock
    ) -> None:
        self.session_id = session_id
        self.peer = peer
        self.direction = direction
        self.table_id = table_id
        self.range = tokens
        self.since_us = clock.wall_us()
        self.files = 0
        self.bytes = 0
        self.total_bytes = 0
        self.file_bytes = 0
        self._ended = False
        self._clock = clock
        self._rate = Rate()
        self._rate.note(clock.monotonic_s(), 0)

    def moved(self, size: int) -> None:
        self.bytes += size
        self._rate.note(self._clock.monotonic_s(), self.bytes)

    def ended(self) -> None:
        """What was moved is all there is."""
        self._ended = True
        self.total_bytes = self.bytes

    @property
    def files_total(self) -> int:
        if self._ended or not self.file_bytes:
            return self.files
        return max(self.files, -(-self.total_bytes // self.file_bytes))

    @property
    def rate_bytes_s(self) -> int:
        return self._rate.of(self._clock.monotonic_s(), self.bytes)

    @property
    def left_s(self) -> int:
        return left_s(self.total_bytes - self.bytes, self.rate_bytes_s)


def left_s(left_bytes: int, rate_bytes_s: int) -> int:
    """Seconds for so many bytes, rounded up; -1 when the rate says nothing."""
    if left_bytes <= 0:
        return 0
    return -(-left_bytes // rate_bytes_s) if rate_bytes_s else -1


class StreamCounts:
    """Of one direction, since this node started."""

    def __init__(self) -> None:
        self.bytes = 0
        self.files = 0
        self.streams = 0
        self.damaged = 0
        self.resumed = 0
