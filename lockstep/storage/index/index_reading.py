"""Reading by a secondary index, and reading given places.

Invariants. An answer by index holds every row up to `end` that this node's own state says to have a wanted
value, as of the snapshot, and no row that it says not to have one; of each row all of its state. Deletions
of other rows are not in it: whoever compares answers asks for the places that are not in all of them.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Generator, Iterator, Sequence
from typing import Final

from lockstep.schema.clustering import after_prefix
from lockstep.storage.index.index_entries import (
    HEAD_BYTES,
    PLACE_AT,
    IndexDefinition,
    clustering_in,
    has_value,
    live_at,
    place_of,
    split_place,
)
from lockstep.storage.reading import Reading, Steps, normal_slices
from lockstep.storage.rows import keys
from lockstep.storage.rows.folding import AskMerge, PartitionFold, Work
from lockstep.storage.rows.fragments import decode_rows
from lockstep.storage.rows.reconcile import is_empty, merge_rows
from lockstep.storage.rows.visible import counts_static
from lockstep.storage.store import StoreSnapshot
from lockstep.values import limits
from lockstep.values.node_limits import MERGED_BYTES_INLINE
from lockstep.values.rows import ALL_ROWS, IndexRead, Partition, Position, ReadCommand, Row, Slice
from lockstep.values.tokens import Range

_UNLIMITED = 1 << 62
#: A row that is looked up takes as long as so many fragments that follow each other.
_LOOKED_UP: Final = 16
#: (place, key of the entry).
_Found = list[tuple[bytes, bytes]]
#: (clustering of the row, None for the partition's; key of the entry), of one partition.
_Candidates = list[tuple[bytes | None, bytes]]
#: (token, partition key, partition prefix, its candidates).
_Held = tuple[int, bytes, bytes, _Candidates]


class PlacesReading(Reading):
    """Reads the places of a command, in their order, as far as they are of its tokens."""

    def steps(self) -> Steps:
        command = self._command
        for place in command.places:
            if not command.left < place.token <= command.right:
                continue
            self._slices = normal_slices(place.slices)
            prefix = keys.partition_prefix(command.table_id, place.token, place.key)
            fold = self._fold(place.token, place.key, prefix)
            stopped = yield from self._feed(fold)
            self._close(fold, stopped=stopped, is_last=False)
            if self._end is not None:
                return
            yield None


class IndexReading(Reading):
    """`stale`: keys of entries whose rows do not have the value any more, as of the snapshot."""

    def __init__(
        self,
        view: StoreSnapshot,
        command: ReadCommand,
        ask_merge: AskMerge | None,
        definition: IndexDefinition,
    ) -> None:
        super().__init__(view, command, ask_merge)
        assert command.index is not None
        self.definition = definition
        self._index: IndexRead = command.index
        self._is_live = live_at(command.now_s)
        self._asked = self._slices
        is_point = bool(command.index.lower) and command.index.upper == after_prefix(command.index.lower)
        self._is_point = is_point
        #: Candidates taken in one go. For a span of values each go looks at all of its entries.
        self._most = limits.INDEX_CANDIDATES_MAX if is_point else limits.INDEX_SPAN_CANDIDATES_MAX
        self.stale: list[bytes] = []

    def steps(self) -> Steps:
        floor, ceiling = self._place_bounds()
        read = self._read_whole if self.definition.whole else self._read_rows
        while True:
            found = yield from self._next(floor, ceiling)
            if _LOOKED_UP * len(found) >= limits.FRAGMENTS_PER_TURN_MAX:
                # Who has one turn only learns it before anything is looked up.
                yield None
            for token, key, prefix, candidates in _by_partition(self._command.table_id, found):
                yield from read(token, key, prefix, candidates)
                if self._end is not None:
                    return
                if self._is_turn(_LOOKED_UP * len(candidates), 0):
                    yield None
            if len(found) < self._most:
                return
            yield None
            floor = found[-1][0] + b"\x00"

    # -- candidates -------------------------------------------------------------------------------

    def _place_bounds(self) -> tuple[bytes, bytes]:
        """Places that are asked for: from the first one on, below the second; b"" is no bound."""
        command, after = self._command, self._command.after
        if command.key is not None:
            prefix = keys.partition_prefix(command.table_id, command.right, command.key)
            lower, upper = prefix[PLACE_AT:], keys.partition_end(prefix)[PLACE_AT:]
        else:
            bounds = keys.token_bounds(command.table_id, Range(command.left, command.right))
            lower = bounds[0][PLACE_AT:]
            upper = bounds[1][PLACE_AT:]
        if after is not None:
            prefix = keys.partition_prefix(command.table_id, after.token, after.key)
            if after.clustering is None:
                lower = max(lower, keys.partition_end(prefix)[PLACE_AT:])
            elif self.definition.whole:
                lower = max(lower, prefix[PLACE_AT:])
            else:
                lower = max(lower, place_of(prefix, after.clustering) + b"\x00")
        return lower, upper

    def _next(self, floor: bytes, ceiling: bytes) -> Generator[Work | None, None, _Found]:
        """The first candidates between the bounds, in reading order."""
        head, index, most = self.definition.head, self._index, self._most
        if self._is_point:
            # One value: its entries are in reading order.
            lower = head + index.lower
            upper = lower + ceiling if ceiling else head + index.upper
            at = len(lower)
            pairs = itertools.islice(self._view.scan(lower + floor, upper), most)
            return [(entry[at:], entry) for entry, _ in pairs]
        found: _Found = []
        upper = head + index.upper if index.upper else after_prefix(head)
        for seen, (entry, _) in enumerate(self._view.scan(head + index.lower, upper), start=1):
            place = entry[self.definition.value_end(entry) :]
            if floor <= place and (not ceiling or place < ceiling):
                found.append((place, entry))
                if len(found) >= 2 * most:
                    found = heapq.nsmallest(most, found)
            if not seen % limits.FRAGMENTS_PER_TURN_MAX:
                yield None
        return heapq.nsmallest(most, found)

    # -- their rows -------------------------------------------------------------------------------

    def _read_whole(
        self, token: int, key: bytes, prefix: bytes, candidates: _Candidates
    ) -> Generator[Work | None, None, None]:
        fold = self._fold(token, key, prefix)
        fold.with_static = True
        stopped = yield from self._feed(fold)
        found = fold.finish()
        static = found.static or Row(b"")
        if is_empty(found):
            self.stale += [entry for _, entry in candidates]
            return
        if not self._matches(key, static):
            self._note_stale(key, {None: static}, candidates)
            return
        shown = found.static if self._command.reads_static else None
        self._add(Partition(token, key, None, (), shown, found.rows), fold.bytes_read)
        live = fold.live
        if not live and not stopped and shown is not None and counts_static(self._command, key):
            live = 1
        self._live += live
        if self._live >= self._row_limit or self._bytes >= limits.READ_RESULT_BYTES_MAX:
            self._end = Position(token, key, fold.last if stopped else None)

    def _read_rows(
        self, token: int, key: bytes, prefix: bytes, candidates: _Candidates
    ) -> Generator[Work | None, None, None]:
        wanted: dict[bytes, None] = {}
        for clustering, _ in candidates:
            if clustering is not None and _is_in(clustering, self._asked):
                wanted[clustering] = None
        if not wanted:
            return
        if len(wanted) == 1:
            row, size = self._alone(prefix, next(iter(wanted)))
            if row is not None:
                partition = Partition(token, key, None, (), None, (row,))
                if self._is_point and self._matches(key, row):
                    self._keep(partition, size, None)
                else:
                    self._judge(partition, wanted, candidates, size, stopped_at=None)
                return
        self._slices = tuple(Slice(clustering, clustering + b"\x00") for clustering in wanted)
        fold = PartitionFold(
            token,
            key,
            prefix,
            command=self._command,
            room=_UNLIMITED,
            ask_merge=self._ask_merge,
        )
        stopped = yield from self._feed(fold)
        partition = fold.finish()
        last = fold.last if stopped else None
        self._judge(partition, wanted, candidates, fold.bytes_read, stopped_at=last)

    def _alone(self, prefix: bytes, clustering: bytes) -> tuple[Row | None, int]:
        """A row that is all of what is read of its partition, as most are, and the bytes read; None when it
        is not there, or folding is to tell."""
        command = self._command
        if command.dead:
            return None, 0
        place = keys.row_prefix(prefix, clustering)
        above, most = keys.place_end(place), limits.ROW_FRAGMENTS_MERGE_AT
        pairs = self._view.scan(prefix, above)
        first = next(pairs, None)
        if first is None:
            return None, 0
        if first[0].startswith(place):
            group = [first, *itertools.islice(pairs, most - 1)]
        elif first[0] < prefix + (keys.KIND_ROW if command.reads_static else keys.KIND_STATIC):
            return None, 0
        else:
            # Rows before it, or what is not read of the partition.
            group = list(itertools.islice(self._view.scan(place, above), most))
        size = sum([len(store_key) + len(value) for store_key, value in group])
        if not 0 < len(group) < most or size > MERGED_BYTES_INLINE:
            return None, 0
        return merge_rows(decode_rows(group, len(prefix) + 1)), size

    def _judge(
        self,
        partition: Partition,
        wanted: dict[bytes, None],
        candidates: _Candidates,
        bytes_read: int,
        *,
        stopped_at: bytes | None,
    ) -> None:
        """Take the wanted rows that match. `stopped_at`: the last one that was read, when it was too much."""
        token, key = partition.token, partition.key
        rows = {row.clustering: row for row in partition.rows}
        judged = [one for one in wanted if stopped_at is None or one <= stopped_at]
        matching = [rows[one] for one in judged if one in rows and self._matches(key, rows[one])]
        if not self._is_point or len(matching) < len(judged):
            # All entries of one value have it: who matches is not outdated.
            known: dict[bytes | None, Row] = {one: rows.get(one) or Row(one) for one in judged}
            self._note_stale(key, known, candidates)
        kept = tuple(matching[: self._row_limit - self._live])
        if kept:
            self._keep(Partition(token, key, None, (), partition.static, kept), bytes_read, list(wanted)[-1])
        if stopped_at is not None and self._live < self._row_limit:
            self._end = Position(token, key, stopped_at)

    def _keep(self, partition: Partition, bytes_read: int, last: bytes | None) -> None:
        """Take rows, as many as there is room for at most. `last`: the last one that was looked at, if that
        is none of them."""
        self._add(partition, bytes_read)
        self._live += len(partition.rows)
        token, key, shown = partition.token, partition.key, partition.rows[-1].clustering
        if self._live >= self._row_limit:
            self._end = Position(token, key, shown)
        elif self._bytes >= limits.READ_RESULT_BYTES_MAX:
            self._end = Position(token, key, shown if last is None else last)

    def _matches(self, key: bytes, row: Row) -> bool:
        return any(self._is_wanted(value) for value in self.definition.values_of(key, row, self._is_live))

    def _is_wanted(self, value: bytes) -> bool:
        return self._index.lower <= value and (not self._index.upper or value < self._index.upper)

    def _note_stale(
        self, key: bytes, rows: dict[bytes | None, Row], candidates: Sequence[tuple[bytes | None, bytes]]
    ) -> None:
        for clustering, entry in candidates:
            row = rows.get(clustering)
            if row is None or len(self.stale) >= limits.INDEX_STALE_AT_ONCE_MAX:
                continue
            value = entry[HEAD_BYTES : self.definition.value_end(entry)]
            if value not in self.definition.values_of(key, row, has_value):
                self.stale.append(entry)

    def _add(self, partition: Partition, bytes_read: int) -> None:
        """Append; going on inside the last partition where the candidates of it came in two goes."""
        self._bytes += bytes_read
        last = self._partitions[-1] if self._partitions else None
        if last is not None and (last.token, last.key) == (partition.token, partition.key):
            self._partitions[-1] = Partition(
                last.token, last.key, None, (), last.static or partition.static, last.rows + partition.rows
            )
        else:
            self._partitions.append(partition)


def _is_in(clustering: bytes, slices: tuple[Slice, ...]) -> bool:
    return slices == ALL_ROWS or any(part.contains(clustering) for part in slices)


def _by_partition(table_id: int, found: _Found) -> Iterator[_Held]:
    """Candidates of one partition together."""
    held: _Held | None = None
    prefix = b""
    for place, entry in found:
        if held is None or not place.startswith(prefix):
            if held is not None:
                yield held
            token, key, whole, clustering = split_place(table_id, place)
            prefix = whole[PLACE_AT:]
            held = token, key, whole, [(clustering, entry)]
        else:
            held[3].append((clustering_in(place, len(prefix)), entry))
    if held is not None:
        yield held


def reading_of(
    view: StoreSnapshot,
    command: ReadCommand,
    ask_merge: AskMerge | None,
    definition: IndexDefinition | None,
) -> Reading:
    """The reading that a command asks for; `definition` is that of its index."""
    if definition is not None:
        return IndexReading(view, command, ask_merge, definition)
    if command.places:
        return PlacesReading(view, command, ask_merge)
    return Reading(view, command, ask_merge)
