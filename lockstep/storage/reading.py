"""Reading: one read command over one snapshot.

Invariant: the answer holds every row, live or dead, from where the command starts up to `end`, as of the
snapshot, with all cells of each row (see `visible` for why columns are not cut here).
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from lockstep.storage.rows import keys
from lockstep.storage.rows.folding import AskMerge, PartitionFold, Work
from lockstep.storage.rows.reconcile import is_empty
from lockstep.storage.rows.visible import counts_static, row_is_live
from lockstep.storage.store import Pair, StoreSnapshot
from lockstep.values import limits
from lockstep.values.node_limits import MERGED_BYTES_INLINE
from lockstep.values.rows import ALL_ROWS, Partition, Position, ReadCommand, ReadResult, Row, Slice
from lockstep.values.tokens import Range

_UNLIMITED = 1 << 62
#: Fragments of a piece that are looked at one by one before some are read together; and what is small enough
#: for so many of them to need no turn.
_ALONE: Final = 16
_SMALL_BYTES: Final = MERGED_BYTES_INLINE // 64
#: Fragments of a partition that are read before they are looked at, and their bytes, about: within a turn.
_TOGETHER_MAX: Final = limits.FRAGMENTS_PER_TURN_MAX // 4
_TOGETHER_BYTES: Final = MERGED_BYTES_INLINE // 4
Bounds = tuple[bytes, bytes, bool]
#: See `Reading.steps`.
Steps = Iterator[Work | None]


class Reading:
    """Run `steps()` to its end, then take `result()`. Each item is work to be done first, or None: an
    invitation to give the loop a turn."""

    def __init__(self, view: StoreSnapshot, command: ReadCommand, ask_merge: AskMerge | None) -> None:
        self._view = view
        self._command = command
        self._ask_merge = ask_merge
        self._row_limit = command.row_limit or _UNLIMITED
        self._partition_limit = command.partition_row_limit or _UNLIMITED
        self._slices = normal_slices(command.slices)
        self._partitions: list[Partition] = []
        self._live = 0
        self._bytes = 0
        #: Fragments since the last item, and their bytes.
        self._turn = self._turn_bytes = 0
        self._end: Position | None = None

    def run(self) -> None:
        """All steps in one go."""
        for work in self.steps():
            if work is not None:
                work()

    def result(self) -> ReadResult:
        return ReadResult(tuple(self._partitions), self._end is not None, self._end)

    def steps(self) -> Steps:
        command = self._command
        if command.key is not None:
            return self._single(command.right, command.key)
        lower, upper = keys.token_bounds(command.table_id, Range(command.left, command.right))
        after = command.after
        if after is not None:
            prefix = keys.partition_prefix(command.table_id, after.token, after.key)
            lower = max(lower, prefix if after.clustering is not None else keys.partition_end(prefix))
        is_plain = self._slices == ALL_ROWS and not command.reverse and not command.partition_row_limit
        if is_plain and (after is None or after.clustering is None):
            return self._straight(lower, upper)
        return self._partition_by_partition(lower, upper, then_straight=is_plain)

    def _single(self, token: int, key: bytes) -> Steps:
        after = self._command.after
        if after is not None and after.clustering is None:
            return
        fold = self._fold(token, key, keys.partition_prefix(self._command.table_id, token, key))
        stopped = yield from self._feed(fold)
        self._close(fold, stopped=stopped, is_last=True)

    def _partition_by_partition(self, lower: bytes, upper: bytes, *, then_straight: bool) -> Steps:
        while True:
            found = next(self._view.scan(lower, upper), None)
            if found is None:
                return
            fold = self._fold(*keys.split_partition(found[0]))
            stopped = yield from self._feed(fold)
            self._close(fold, stopped=stopped, is_last=False)
            if self._end is not None:
                return
            yield None
            lower = fold.end
            if then_straight:
                yield from self._straight(lower, upper)
                return

    def _straight(self, lower: bytes, upper: bytes) -> Steps:
        """All rows of all partitions in key order need no seek between partitions."""
        fold: PartitionFold | None = None
        for pair in self._view.scan(lower, upper):
            if fold is not None and (work := fold.due(pair)) is not None:
                yield work
            if fold is None or pair[0] >= fold.end:
                if fold is not None:
                    self._close(fold, stopped=False, is_last=False)
                    if self._end is not None:
                        return
                fold = self._fold(*keys.split_partition(pair[0]))
            if fold.add(pair):
                self._close(fold, stopped=True, is_last=False)
                return
            if self._is_turn(1, len(pair[1])):
                yield None
        if fold is not None:
            if (work := fold.due(None)) is not None:
                yield work
            self._close(fold, stopped=False, is_last=True)

    def _is_turn(self, seen: int, size: int) -> bool:
        """Whether so many more fragments, of so many bytes, make a turn full."""
        self._turn += seen
        self._turn_bytes += size
        if self._turn < limits.FRAGMENTS_PER_TURN_MAX and self._turn_bytes <= MERGED_BYTES_INLINE:
            return False
        self._turn = self._turn_bytes = 0
        return True

    def _fold(self, token: int, key: bytes, prefix: bytes) -> PartitionFold:
        return PartitionFold(
            token,
            key,
            prefix,
            command=self._command,
            room=min(self._row_limit - self._live, self._partition_limit),
            ask_merge=self._ask_merge,
        )

    def _feed(self, fold: PartitionFold) -> Generator[Work | None, None, bool]:
        """Returns True when the fold was full before the partition's content ended."""
        for lower, upper, reverse in pieces_of(self._command, self._slices, fold.key, fold.prefix):
            pairs = self._view.scan(lower, upper, reverse)
            seen = 0
            for pair in itertools.islice(pairs, _ALONE):
                if fold.group_bytes > MERGED_BYTES_INLINE and (work := fold.due(pair)) is not None:
                    yield work
                if fold.add(pair):
                    return True
                seen += 1
                if len(pair[1]) > _SMALL_BYTES and self._is_turn(0, len(pair[1])):
                    yield None
            if self._is_turn(seen, 0):
                yield None
            if seen == _ALONE:
                stopped = yield from self._feed_runs(fold, pairs)
                if stopped:
                    return True
        if (work := fold.due(None)) is not None:
            yield work
        return False

    def _feed_runs(self, fold: PartitionFold, pairs: Iterator[Pair]) -> Generator[Work | None, None, bool]:
        """As `_feed`, of the rest of a piece that is long: some together."""
        together = _ALONE
        while some := list(itertools.islice(pairs, fold.run_room(together))):
            size = sum([len(pair[1]) for pair in some])
            if not fold.add_run(some):
                for pair in some:
                    if fold.group_bytes > MERGED_BYTES_INLINE and (work := fold.due(pair)) is not None:
                        yield work
                    if fold.add(pair):
                        return True
            if self._is_turn(len(some), size):
                yield None
            together = min(_TOGETHER_MAX, 4 * together, _TOGETHER_BYTES * len(some) // (size + 1) + 1)
        return False

    def _close(self, fold: PartitionFold, *, stopped: bool, is_last: bool) -> None:
        partition = self._within_slices(fold.finish())
        if not is_empty(partition):
            self._partitions.append(partition)
        live = fold.live
        static = partition.static
        if not live and not stopped and static is not None and counts_static(self._command, fold.key):
            live = 1 if row_is_live(static, self._command.now_s, self._command.dropped) else 0
        self._live += live
        self._bytes += fold.bytes_read
        is_full = self._live >= self._row_limit or self._bytes >= limits.READ_RESULT_BYTES_MAX
        if is_full and (stopped or not is_last):
            self._end = Position(fold.token, fold.key, fold.last if stopped else None)

    def _within_slices(self, partition: Partition) -> Partition:
        """Without the range deletions that touch nothing the command asked for."""
        if not partition.range_deletions or self._slices == ALL_ROWS:
            return partition
        kept = tuple(
            r
            for r in partition.range_deletions
            if any((not r.end or s.start < r.end) and (not s.end or r.start < s.end) for s in self._slices)
        )
        return Partition(
            partition.token, partition.key, partition.deletion, kept, partition.static, partition.rows
        )


def pieces_of(command: ReadCommand, slices: tuple[Slice, ...], key: bytes, prefix: bytes) -> list[Bounds]:
    """(lower, upper, whether in reverse) of what a command with these normal slices reads of a partition, in
    the order in which it is to be read."""
    after = command.after
    if after is not None and after.clustering is not None and after.key == key:
        slices = slices_behind(slices, after.clustering, command.reverse)
    if slices == ALL_ROWS and not command.reverse:
        return [(prefix, keys.partition_end(prefix), False)]
    head_end = keys.KIND_ROW if command.reads_static else keys.KIND_STATIC
    pieces: list[Bounds] = [(prefix, prefix + head_end, False)]
    for part in reversed(slices) if command.reverse else slices:
        lower, upper = keys.slice_bounds(prefix, part)
        pieces.append((lower, upper, command.reverse))
    return pieces


def normal_slices(slices: Sequence[Slice]) -> tuple[Slice, ...]:
    """Sorted, without overlap, nothing empty; deletes no row that any of the slices holds."""
    if len(slices) == 1:
        return tuple(slices)
    joined: list[Slice] = []
    for part in sorted(slices, key=lambda s: s.start):
        if part.end and part.end <= part.start:
            continue
        last = joined[-1] if joined else None
        if last is not None and (not last.end or part.start <= last.end):
            end = b"" if not last.end or not part.end else max(last.end, part.end)
            joined[-1] = Slice(last.start, end)
        else:
            joined.append(part)
    return tuple(joined)


def slices_behind(slices: Sequence[Slice], clustering: bytes, reverse: bool) -> tuple[Slice, ...]:
    """What of normal slices comes after a row, in reading order."""
    kept: list[Slice] = []
    # The smallest bytes above c are c followed by a zero byte.
    first = clustering + b"\x00"
    for part in slices:
        if reverse:
            if part.start < clustering:
                end = clustering if not part.end else min(part.end, clustering)
                kept.append(Slice(part.start, end))
        elif not part.end or first < part.end:
            kept.append(Slice(max(part.start, first), part.end))
    return tuple(kept)


def partitions_between(
    view: StoreSnapshot, lower: bytes, upper: bytes, per_turn: int = limits.FRAGMENTS_PER_TURN_MAX
) -> Iterator[Partition | None]:
    """Every partition whole, in key order; None between them is an invitation to give the loop a turn."""
    fold: PartitionFold | None = None
    for seen, pair in enumerate(view.scan(lower, upper), start=1):
        if fold is None or pair[0] >= fold.end:
            if fold is not None:
                yield fold.finish()
            token, key, prefix = keys.split_partition(pair[0])
            fold = WholeFold(token, key, prefix)
        fold.add(pair)
        if not seen % per_turn:
            yield None
    if fold is not None:
        yield fold.finish()


#: Of whatever partition, all of it.
_WHOLE: Final = ReadCommand(
    0,
    0,
    0,
    None,
    (),
    (),
    reads_static=True,
    reverse=False,
    row_limit=0,
    partition_row_limit=0,
    now_s=0,
)


class WholeFold(PartitionFold):
    """A fold that is never full."""

    __slots__ = ()

    def __init__(self, token: int, key: bytes, prefix: bytes, ask_merge: AskMerge | None = None) -> None:
        super().__init__(
            *(token, key, prefix), command=_WHOLE, room=_UNLIMITED, ask_merge=ask_merge, bytes_max=_UNLIMITED
        )

    def taken(self) -> tuple[Row, ...]:
        """The rows that are finished, but for those that were taken before."""
        rows, self._rows = tuple(self._rows), []
        return rows

    def head(self) -> Partition:
        """What is no row; complete once a row is finished."""
        return Partition(self.token, self.key, self._deletion, self._ranges, self.static)
