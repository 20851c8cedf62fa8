"""Reading what an outline wants of one read command over one snapshot.

Invariant: what is told is of all that the command asks for up to `end`, and says nothing of what lies behind;
where it ends depends on the content alone. With numpy rows that share a form are looked at together; without
it, and in partitions with deletions or static columns, they are merged one by one and the same is told.
"""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterator, Sequence
from functools import cached_property, partial
from types import ModuleType
from typing import Any, Final

from lockstep.scans.range_sources import OpenRange, source_of
from lockstep.scans.telling import Mark, Telling, Values
from lockstep.storage.reading import Steps, WholeFold
from lockstep.storage.rows import keys
from lockstep.storage.rows.folding import AskMerge
from lockstep.storage.rows.fragments import decode_rows, encode_header, encode_row
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.rows.visible import counts_static, live_row, shows_all, weigh, without_dead
from lockstep.storage.store import Pair, RangeCursor, StoreSnapshot
from lockstep.values import limits
from lockstep.values.node_limits import MERGED_BYTES_INLINE, PAGE_BYTES_MAX, TOLD_BYTES_MAX
from lockstep.values.rows import Partition, Position, ReadCommand, ReadResult, Row

#: Fragments that are taken at first, and the fewest that are worth looking at together.
_FIRST: Final = 512
_TOGETHER_MIN: Final = 16
_UNLIMITED: Final = 1 << 62


class OutlineReading:
    """Run `steps()` to its end, then take `result()`; see `storage.reading.Reading`."""

    def __init__(
        self,
        view: StoreSnapshot,
        command: ReadCommand,
        ask_merge: AskMerge | None,
        open_range: OpenRange | None = None,
    ) -> None:
        """`open_range`: takes pairs quicker than a scan; the first step is then in the step of the view."""
        assert command.outline is not None and not command.reverse, "rows are told of in their order"
        self._view = view
        self._open_range = open_range
        self._command = command
        self._ask_merge = ask_merge
        self._telling = Telling(command.outline)
        self._row_limit = command.row_limit or _UNLIMITED
        is_large = bool(command.outline.packs) or command.outline.gives
        self._bytes_max = limits.READ_RESULT_BYTES_MAX if is_large else TOLD_BYTES_MAX
        grouping = command.outline.grouping
        self._groups_max = _UNLIMITED if grouping is None else grouping.most
        self._library = _vectorised()
        self._plain = None if self._library is None else self._library.PlainRows(self._telling.shape, command)
        self._dead = dict(command.dead)
        self._bytes = 0
        #: Fragments of the last place that were read: there may be more of them.
        self._held: list[Pair] = []
        self._fold: WholeFold | None = None
        self._fold_rows = 0
        self._head_told = False
        self._end: Position | None = None

    def run(self) -> None:
        """All steps in one go."""
        for work in self.steps():
            if work is not None:
                work()

    def result(self) -> ReadResult:
        telling = self._telling
        return ReadResult(telling.given(), self._end is not None, self._end, telling.told())

    def steps(self) -> Steps:
        source = source_of(self._view, self._command, self._open_range)
        try:
            yield from self._portions(source)
        finally:
            source.close()

    def _portions(self, source: RangeCursor) -> Steps:
        count = _FIRST
        while True:
            # Of rows that are filtered or grouped nobody knows how many are wanted.
            filtered = bool(self._telling.shape.filters) or self._telling.shape.grouping is not None
            asked = count if filtered else min(count, max(1, self._row_limit - self._telling.rows))
            some = source.take(asked)
            size = sum([len(pair[1]) for pair in some])
            work = partial(self._take, some, is_last=len(some) < asked)
            if size + sum([len(pair[1]) for pair in self._held]) > MERGED_BYTES_INLINE:
                yield work
            else:
                work()
            if self._end is not None or len(some) < asked:
                return
            yield None
            count = max(
                1, min(4 * count, limits.FRAGMENTS_PER_TURN_MAX, MERGED_BYTES_INLINE * asked // (size + 1))
            )

    # -- portions -------------------------------------------------------------------------------------

    def _take(self, pairs: list[Pair], *, is_last: bool) -> None:
        """Read the rows of which nothing can follow any more."""
        ready = [*self._held, *pairs]
        self._held = []
        if ready and not is_last:
            place = ready[-1][0][: -keys.WRITE_BYTES]
            at = bisect.bisect_left(ready, place, key=operator.itemgetter(0))
            ready, self._held = ready[:at], ready[at:]
        self._read(ready)
        if not is_last:
            return
        if self._end is None:
            self._close_fold()
        elif (
            self._command.key is not None
            and not self._telling.closed
            and ready
            and self._is_of(self._end, ready[-1][0])
        ):
            # Nothing of the partition is left. Behind a full page of a range there may always be another one.
            self._end = None

    @staticmethod
    def _is_of(end: Position, store_key: bytes) -> bool:
        _, _, prefix = keys.split_partition(store_key)
        return end.clustering is None or end.clustering == keys.clustering_of(store_key, prefix)

    def _read(self, pairs: Sequence[Pair]) -> None:
        """Whole rows; partition by partition where these have more than rows."""
        at = 0
        while at < len(pairs) and self._end is None:
            fold = self._fold
            if fold is not None and self._has_only_rows(fold) and len(pairs) - at >= _TOGETHER_MIN:
                fold = self._fold = None
            if fold is None:
                at = self._rows_from(pairs, at)
                continue
            end = bisect.bisect_left(pairs, fold.end, lo=at, key=operator.itemgetter(0))
            for pair in pairs[at:end]:
                fold.add(pair)
            fold.finish()
            self._folded(fold)
            at = end
            if at < len(pairs) and self._end is None:
                self._close_fold()

    def _rows_from(self, pairs: Sequence[Pair], at: int) -> int:
        """Read from there to where a partition begins that has more than rows; where that is."""
        if self._plain is not None and len(pairs) - at >= _TOGETHER_MIN:
            some = pairs[at:] if at else pairs
            row_keys = self._plain.keys(some)
            if row_keys.are_rows.all():
                self._rows(some, row_keys)
                return len(pairs)
            head = at + int(row_keys.are_rows.argmin())
            if head - at >= _TOGETHER_MIN:
                self._rows(pairs[at:head], self._plain.keys(pairs[at:head]))
                at = head
        token, key, prefix = keys.split_partition(pairs[at][0])
        if self._end is None:
            self._fold = WholeFold(token, key, prefix, self._ask_merge)
            self._fold_rows, self._head_told = 0, False
        return at

    def _has_only_rows(self, fold: WholeFold) -> bool:
        """Whether the rows of a partition may as well be looked at together."""
        head = fold.head()
        return (
            self._plain is not None
            and self._fold_rows > 0
            and head.deletion is None
            and not head.range_deletions
            and head.static is None
        )

    # -- many rows ------------------------------------------------------------------------------------

    def _rows(self, pairs: Sequence[Pair], row_keys: Any) -> None:
        """Of partitions that have nothing but rows; no more than there is room for."""
        assert self._library is not None and self._plain is not None, "rows are looked at together"
        together = self._plain.together(pairs, row_keys)
        if together.is_uniform and self._take_uniform(together):
            self._end_behind(pairs[-1])
            return
        portion, telling = _Portion(row_keys.places(), pairs), self._telling
        for one in together.groups:
            portion.dead += one.dead
            if telling.gives:
                portion.put(one.rows, [pairs[at][1] for at in one.rows.tolist()])
            elif one.count:
                packed = self._library.packed(one.columns, one.count) if telling.packs else [b""] * one.count
                portion.put(one.rows, packed)
        for first, end in together.rows_alone():
            self._alone(portion, first, end)
        begun = () if telling.shape.grouping is None else _begun(telling, self._library, together, portion)
        cut, room = self._cut(portion), self._groups_max - len(telling.groups)
        end_of_groups = begun[room][0].first if len(begun) > room else len(pairs)
        if min(cut, end_of_groups) < len(pairs):
            # More than there is room for: this comes once in an answer.
            cut = min(cut, end_of_groups)
            if cut:
                self._rows(pairs[:cut], self._plain.keys(pairs[:cut]))
            if cut == end_of_groups and self._end is None:
                self._end_of_groups()
            return
        if telling.packs:
            shown = [one for one in portion.packed if one is not None]
            telling.packed_rows(len(shown), b"".join(shown))
        elif telling.gives:
            self._give([(pairs[at][0], one) for at, one in enumerate(portion.packed) if one is not None])
        elif telling.shape.grouping is not None:
            for _, found in portion.segments():
                _take_segments(telling, found, pairs)
        else:
            for one in together.groups:
                if one.count:
                    self._library.fold(telling, one.columns, one.count)
            for _, values in portion.alone:
                telling.row(values, b"")
        for place, content in portion.pieces():
            telling.content_at(place, content)
        telling.dead += portion.dead
        self._bytes += portion.size_bytes
        self._end_behind(pairs[-1])

    def _take_uniform(self, together: Any) -> bool:
        """Take rows that share one form; False, nothing being taken, when there may be no room for all."""
        telling, library = self._telling, self._library
        assert library is not None, "rows are looked at together"
        (one,) = together.groups
        count, columns, pairs = one.count, one.columns, together.pairs
        size = self._bytes + together.size_bytes
        if telling.rows + count >= self._row_limit:
            # The answer ends with the row that fills it, not with others that filters leave out behind it.
            ends_it = telling.rows + count == self._row_limit and count and one.rows[-1] == len(pairs) - 1
            if not ends_it:
                return False
        if size >= self._bytes_max:
            return False
        if telling.packs:
            data = library.packed_whole(columns, count) if count else b""
            if telling.packed_bytes + len(data) >= PAGE_BYTES_MAX:
                return False
            telling.packed_rows(count, data)
        elif telling.gives:
            shown = [pairs[at] for at in one.rows.tolist()]
            if telling.packed_bytes + sum([len(pair[1]) for pair in shown]) >= PAGE_BYTES_MAX:
                return False
            self._give(shown)
        elif telling.shape.grouping is not None:
            found = library.segments(telling.shape, one, together.runs)
            first_bytes = telling.packed_bytes + sum([len(segment.packed) for segment in found])
            if len(telling.groups) + len(found) > self._groups_max or first_bytes >= PAGE_BYTES_MAX:
                return False
            _take_segments(telling, found, pairs)
        elif count:
            library.fold(telling, columns, count)
        telling.content(*together.content())
        telling.dead += one.dead
        self._bytes = size
        return True

    def _give(self, stored: Sequence[Pair]) -> None:
        """Rows that show, each from all that is stored of it."""
        at = 0
        while at < len(stored):
            token, key, prefix = keys.split_partition(stored[at][0])
            end = bisect.bisect_left(stored, keys.partition_end(prefix), lo=at, key=operator.itemgetter(0))
            some = stored[at:end]
            rows = decode_rows(some, len(prefix) + 1)
            if self._dead or self._command.dropped or not shows_all(rows):
                rows = [live for row in rows if (live := self._live(row)) is not None]
                assert len(rows) == len(some), "rows that show are live"
            self._telling.give(token, key, None, rows, sum([len(content) for _, content in some]))
            at = end

    def _end_of_groups(self) -> None:
        """Another group would begin, for which there is no room."""
        self._end = self._telling.groups[-1].end
        self._telling.closed = True

    def _end_behind(self, pair: Pair) -> None:
        """The row of a fragment is the last one that was read: the answer ends there when it is full."""
        if self._is_full():
            token, key, prefix = keys.split_partition(pair[0])
            # A row without clustering is all its partition has.
            self._end = Position(token, key, keys.clustering_of(pair[0], prefix) or None)

    def _alone(self, portion: _Portion, first: int, end: int) -> None:
        """A row that is merged alone."""
        group = portion.pairs[first:end]
        _, key, prefix = keys.split_partition(group[0][0])
        if len(group) >= limits.ROW_FRAGMENTS_MERGE_AT and self._ask_merge is not None:
            self._ask_merge(prefix, group[0][0][: -keys.WRITE_BYTES])
        portion.contents[first:end] = [None] * len(group)
        row = merge_rows(decode_rows(group, len(prefix) + 1))
        if row is None:
            return
        portion.contents[first] = encode_row(row)
        portion.dead += self._weighed(row)
        live = self._live(row)
        if live is not None:
            shape = self._telling.shape
            values = shape.passed(shape.values(key, row.clustering, (), live.cells))
            if values is not None:
                gives = self._telling.gives
                portion.packed[first] = portion.contents[first] if gives else self._telling.pack(values)
                portion.alone.append((first, values))

    def _cut(self, portion: _Portion) -> int:
        """How many fragments of a portion there is room for."""
        rows, size, packed = self._telling.rows, self._bytes, self._telling.packed_bytes
        rows_after = rows + portion.row_count
        if not self._is_over(rows_after, size + portion.size_bytes, packed + portion.packed_bytes):
            return len(portion.pairs)
        for at in range(len(portion.pairs)):
            row = portion.packed[at]
            rows += row is not None
            packed += len(row or b"")
            size += portion.size_of(at)
            if self._is_over(rows, size, packed):
                return portion.end_of_place(at)
        return len(portion.pairs)

    # -- one by one -----------------------------------------------------------------------------------

    def _folded(self, fold: WholeFold) -> None:
        """What a partition shows of its next whole rows."""
        rows = fold.taken()
        static = None if fold.static is None else self._live(fold.static)
        static_cells = () if static is None else static.cells
        if rows:
            self._tell_head(fold)
        shape = self._telling.shape
        common = Partition(fold.token, fold.key, None, (), static)
        for row in rows:
            live, values = self._live(row), None
            if live is not None:
                values = shape.passed(shape.values(fold.key, row.clustering, static_cells, live.cells))
            if values is not None and self._is_beyond(fold.key, row.clustering):
                self._end_of_groups()
                return
            place = keys.row_place(fold.prefix, row.clustering)
            content = encode_row(row)
            self._telling.content_at(place, content)
            self._telling.dead += self._weighed(row)
            self._bytes += len(place) + len(content)
            self._fold_rows += live is not None
            if values is not None:
                self._telling.shown(common, live, values, len(content))
            if self._is_full():
                self._end = Position(fold.token, fold.key, row.clustering or None)
                return

    def _is_beyond(self, key: bytes, clustering: bytes | None) -> bool:
        """Whether a row begins a group that there is no room for."""
        telling = self._telling
        if len(telling.groups) < self._groups_max:
            return False
        return telling.begins(telling.shape.mark(key, clustering))

    def _tell_head(self, fold: WholeFold) -> None:
        """What is no row, once."""
        if self._head_told:
            return
        self._head_told = True
        head = fold.head()
        if head.deletion is not None or head.range_deletions:
            found = encode_header(head.deletion, head.range_deletions)
            self._telling.content_at(keys.head_place(fold.prefix, keys.KIND_HEADER), found)
        if head.static is not None:
            self._telling.content_at(keys.head_place(fold.prefix, keys.KIND_STATIC), encode_row(head.static))
        self._telling.dead += weigh((head,), self._command.now_s)[0]

    def _close_fold(self) -> None:
        """The partition that was merged alone has ended: what it shows when it has no rows."""
        fold, self._fold = self._fold, None
        if fold is None:
            return
        self._tell_head(fold)
        if self._fold_rows or fold.static is None or not counts_static(self._command, fold.key):
            return
        static = self._live(fold.static)
        if static is None:
            return
        shape = self._telling.shape
        values = shape.passed(shape.values(fold.key, None, static.cells, ()))
        if values is None:
            return
        if self._is_beyond(fold.key, None):
            self._end_of_groups()
            return
        common = Partition(fold.token, fold.key, None, (), static)
        self._telling.shown(common, None, values, len(encode_row(fold.static)))
        if self._is_full():
            self._end = Position(fold.token, fold.key)

    def _live(self, row: Row) -> Row | None:
        left = without_dead(row, self._dead) if self._dead else row
        return None if left is None else live_row(left, self._command.now_s, None, self._command.dropped)

    def _weighed(self, row: Row) -> int:
        return weigh((Partition(0, b"", None, (), None, (row,)),), self._command.now_s)[0]

    def _is_full(self) -> bool:
        return self._is_over(self._telling.rows, self._bytes, self._telling.packed_bytes)

    def _is_over(self, rows: int, size_bytes: int, packed_bytes: int) -> bool:
        return rows >= self._row_limit or size_bytes >= self._bytes_max or packed_bytes >= PAGE_BYTES_MAX


class _Portion:
    """Fragments, and by their numbers what is there and what of it shows: the first one of a row speaks for
    all of them. `alone`: (its number, values) of the rows that were merged alone; `by_run`: what shows, where
    it is by groups."""

    def __init__(self, places: Sequence[bytes], pairs: Sequence[Pair]) -> None:
        self.pairs = pairs
        self.places = places
        self.contents: list[bytes | None] = [value for _, value in pairs]
        self.packed: list[bytes | None] = [None] * len(pairs)
        self.alone: list[tuple[int, Values]] = []
        self.by_run: dict[int, list[Any]] = {}
        self.dead = 0

    def put(self, rows: Any, packed: list[bytes]) -> None:
        """What is shown of rows."""
        if len(rows) == len(self.pairs):
            self.packed = list(packed)
            return
        for at, one in zip(rows.tolist(), packed, strict=True):
            self.packed[at] = one

    def segments(self) -> list[tuple[int, list[Any]]]:
        return sorted(self.by_run.items(), key=operator.itemgetter(0))

    @property
    def row_count(self) -> int:
        return len(self.packed) - self.packed.count(None)

    @property
    def packed_bytes(self) -> int:
        return sum([len(one) for one in self.packed if one])

    @cached_property
    def size_bytes(self) -> int:
        return sum([len(place) + len(content) for place, content in self.pieces()])

    def size_of(self, at: int) -> int:
        content = self.contents[at]
        return 0 if content is None else len(self.places[at]) + len(content)

    def end_of_place(self, at: int) -> int:
        """Behind the last fragment of the row that one belongs to."""
        place = self.places[at]
        while at < len(self.places) and self.places[at] == place:
            at += 1
        return at

    def pieces(self) -> Iterator[tuple[bytes, bytes]]:
        """Places and what is there."""
        for place, content in zip(self.places, self.contents, strict=True):
            if content is not None:
                yield place, content


def _begun(telling: Telling, library: ModuleType, together: Any, portion: _Portion) -> list[Any]:
    """The segments of each group that begins in a portion. What is told of first rows is noted."""
    shape = telling.shape
    for one in together.groups:
        for segment in library.segments(shape, one, together.runs):
            portion.by_run.setdefault(segment.run, []).append(segment)
    for at, values in portion.alone:
        run, first = int(together.runs[at]), telling.pack_first(values)
        portion.by_run.setdefault(run, []).append(library.segment_alone(shape, at, run, values, first))
    begun = []
    for number, (_, found) in enumerate(portion.segments()):
        found.sort(key=operator.attrgetter("first"))
        first = found[0]
        if number or telling.begins(_mark_at(telling, portion.pairs[first.first][0])):
            portion.packed[first.first] = first.packed
            begun.append(found)
    return begun


def _mark_at(telling: Telling, store_key: bytes) -> Mark:
    _, key, prefix = keys.split_partition(store_key)
    return telling.shape.mark(key, keys.clustering_of(store_key, prefix))


def _take_segments(telling: Telling, found: Sequence[Any], pairs: Sequence[Pair]) -> None:
    """In the order of their first rows."""
    place, run, last = _Places(), -1, -1
    for at, segment in enumerate(found):
        # One run may have segments of several forms, among each other.
        last = max(last, segment.last)
        # Between the first and the last one each is another group than those beside it.
        is_inner = 0 < at < len(found) - 1 and run < segment.run
        mark, run = None if is_inner else _mark_at(telling, pairs[segment.first][0]), segment.run
        telling.group(mark, segment.count, segment.packed, place.of(pairs[last][0]), segment.folds)


class _Places:
    """Places of rows, most of them in the partition of the one before."""

    def __init__(self) -> None:
        self._token, self._key, self._prefix = 0, b"", b""
        #: What the keys of its rows begin with.
        self._rows = b""

    def of(self, store_key: bytes) -> Position:
        if not self._rows or not store_key.startswith(self._rows):
            self._token, self._key, self._prefix = keys.split_partition(store_key)
            self._rows = self._prefix + keys.KIND_ROW
        return Position(self._token, self._key, keys.clustering_of(store_key, self._prefix) or None)


def _vectorised() -> ModuleType | None:
    """What looks at rows together; it needs numpy, which a node may do without."""
    try:
        from lockstep.scans import plain_rows
    except ImportError:
        return None
    return plain_rows
