"""The live rows gathered for one read command, up to its limits and to PAGE_BYTES_MAX.

Invariant: rows are in reading order, each once; a row counts once, and a partition with only a live static
row counts as one where the command says so. A page that is full by its bytes holds at least one row.
"""

from __future__ import annotations

from collections.abc import Iterable

from lockstep.storage.rows.visible import counts_static, live_view
from lockstep.values.node_limits import PAGE_BYTES_MAX
from lockstep.values.rows import Partition, Position, ReadCommand, ReadResult, Row

_UNLIMITED = 1 << 62


class Page:
    def __init__(self, command: ReadCommand) -> None:
        self._command = command
        self._row_limit = command.row_limit or _UNLIMITED
        self._partition_limit = command.partition_row_limit or _UNLIMITED
        self._partitions: list[Partition] = []
        #: Rows in all but the last partition, and whether anything was cut off.
        self._rows_before = 0
        #: Whether rows of the last partition may follow, so that its static row is no row of its own yet.
        self._is_open = False
        self._bytes = 0

    def room(self) -> int:
        """Rows that may still be asked for; 0 when the command has no limit."""
        if self._row_limit == _UNLIMITED:
            return 0
        return max(1, self._row_limit - self.count())

    def full(self) -> bool:
        if self._bytes >= PAGE_BYTES_MAX and self.count():
            return True
        return self.count() >= self._row_limit

    def add(self, merged: Iterable[Partition], end: Position | None) -> None:
        """Append canonical partitions that follow what is here, perhaps going on inside the last one.

        `end`: where what is known stops, None when all that was asked is here.
        """
        command = self._command
        for partition in merged:
            live = live_view(partition, command.now_s, command.columns, command.dropped)
            self._bytes += bytes_of(live)
            last = self._partitions[-1] if self._partitions else None
            if last is not None and (last.token, last.key) == (live.token, live.key):
                live = Partition(live.token, live.key, None, (), live.static, last.rows + live.rows)
                self._partitions.pop()
            elif last is not None:
                self._close(last)
            if len(live.rows) > self._partition_limit:
                rows = live.rows[: self._partition_limit]
                live = Partition(live.token, live.key, None, (), live.static, rows)
            self._partitions.append(live)
        last = self._partitions[-1] if self._partitions else None
        self._is_open = (
            last is not None
            and end is not None
            and end.clustering is not None
            and (last.token, last.key) == (end.token, end.key)
        )

    def _close(self, last: Partition) -> None:
        """A partition is complete: one that shows nothing goes, others are counted. Who asks for one
        partition learns its static content also when none of the rows is there: conditions and lists need
        it."""
        count = self._rows_of(last)
        asked = self._command.key is not None and self._command.after is None
        if count == 0 and (last.static is None or not asked):
            self._partitions.pop()
        self._rows_before += count

    def _rows_of(self, partition: Partition) -> int:
        if partition.rows:
            return len(partition.rows)
        return int(partition.static is not None and counts_static(self._command, partition.key))

    def count(self) -> int:
        """Rows gathered so far."""
        if not self._partitions:
            return self._rows_before
        last = self._partitions[-1]
        return self._rows_before + (len(last.rows) if self._is_open else self._rows_of(last))

    def skip_full(self, end: Position) -> Position:
        """Where to go on: behind the whole partition when it has given all it may."""
        last = self._partitions[-1] if self._partitions else None
        if (
            last is not None
            and (last.token, last.key) == (end.token, end.key)
            and len(last.rows) >= self._partition_limit
        ):
            return Position(end.token, end.key)
        return end

    def behind_last(self) -> Position:
        """Behind the whole last partition; only asked of a page that holds rows."""
        assert self._partitions, "a full page holds a partition"
        return _behind(self._partitions[-1])

    def result(self, resume: Position | None) -> ReadResult:
        """The page; `resume` is where unread content begins, None when everything was read."""
        if self._partitions:
            self._close(self._partitions[-1])
        kept: list[Partition] = []
        room = self._row_limit
        for at, partition in enumerate(self._partitions):
            count = self._rows_of(partition)
            if count > room:
                rows = partition.rows[:room]
                kept.append(Partition(partition.token, partition.key, None, (), partition.static, rows))
                return self._ended(kept, Position(partition.token, partition.key, rows[-1].clustering))
            kept.append(partition)
            room -= count
            if room == 0 and at + 1 < len(self._partitions):
                return self._ended(kept, _behind(partition))
        return self._ended(kept, resume)

    @staticmethod
    def _ended(kept: list[Partition], end: Position | None) -> ReadResult:
        return ReadResult(tuple(kept), end is not None, end)


def _behind(partition: Partition) -> Position:
    """The whole partition was given: nothing of it is left to read."""
    return Position(partition.token, partition.key)


def bytes_of(partition: Partition) -> int:
    """Bytes of keys and values; what surrounds them is not counted."""
    total = len(partition.key)
    if partition.static is not None:
        total += _bytes_of_row(partition.static)
    for row in partition.rows:
        total += _bytes_of_row(row)
    return total


def _bytes_of_row(row: Row) -> int:
    total = len(row.clustering)
    for cell in row.cells:
        if cell.value is not None:
            total += len(cell.value)
        if cell.path is not None:
            total += len(cell.path)
    return total
