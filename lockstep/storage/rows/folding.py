"""Folding: one partition's fragments, in key order, into its canonical state.

Invariant: a row is finished only when a fragment of another place follows or the input ends, so every
fragment of it was seen; the partition's deletions come first in key order, so each finished row is final.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_header, decode_row, decode_rows
from lockstep.storage.rows.reconcile import Shadow, merge_rows, normal_ranges, stronger
from lockstep.storage.rows.visible import row_is_live, without_dead
from lockstep.storage.store import Pair
from lockstep.values import limits
from lockstep.values.node_limits import MERGED_BYTES_INLINE
from lockstep.values.rows import Deletion, Partition, RangeDeletion, ReadCommand, Row

#: Told the place (partition prefix, place) of which a read saw many fragments.
AskMerge = Callable[[bytes, bytes], None]
#: Work to be done before who gave it goes on, beside the loop where there is one; it may raise CorruptFile.
Work = Callable[[], None]

_KIND_HEADER = keys.KIND_HEADER[0]
_KIND_STATIC = keys.KIND_STATIC[0]
_KIND_ROW = keys.KIND_ROW[0]
_WRITE_BYTES = keys.WRITE_BYTES
#: Fewer pairs than this are not worth looking at together.
_RUN_MIN: Final = 4
#: So many are read in vain at most.
_RUN_FEW: Final = 16


class PartitionFold:
    """Feed it header, static and row fragments, in this order, then finish.

    `command` is what reads it, `room` the number of live rows after which it is full.
    """

    __slots__ = (
        "_ahead",
        "_ask_merge",
        "_bytes_max",
        "_dead",
        "_deletion",
        "_dropped",
        "_group",
        "_now_s",
        "_place",
        "_ranges",
        "_room",
        "_rows",
        "_shadow",
        "bytes_read",
        "end",
        "group_bytes",
        "key",
        "last",
        "live",
        "prefix",
        "static",
        "token",
        "with_static",
    )

    def __init__(
        self,
        token: int,
        key: bytes,
        prefix: bytes,
        *,
        command: ReadCommand,
        room: int,
        ask_merge: AskMerge | None,
        bytes_max: int | None = None,
    ) -> None:
        """`bytes_max`: what is read of the partition before it is full; None: READ_RESULT_BYTES_MAX."""
        self._bytes_max = limits.READ_RESULT_BYTES_MAX if bytes_max is None else bytes_max
        self.token = token
        self.key = key
        self.prefix = prefix
        self.end = keys.partition_end(prefix)
        self.with_static = command.reads_static
        self.static: Row | None = None
        self.live = 0
        self.bytes_read = 0
        #: Clustering of the last finished row, live or not.
        self.last: bytes | None = None
        self._now_s = command.now_s
        self._dropped = command.dropped
        self._dead = dict(command.dead)
        self._room = room
        self._ask_merge = ask_merge
        self._place: bytes | None = None
        self._group: list[Pair] = []
        #: Of the values of the place that is open; `due` is asked where they are many.
        self.group_bytes = 0
        #: What `due` has merged of the group.
        self._ahead: tuple[Row | None] | None = None
        self._deletion: Deletion | None = None
        self._ranges: tuple[RangeDeletion, ...] = ()
        self._shadow: Shadow | None = None
        self._rows: list[Row] = []

    def due(self, pair: Pair | None) -> Work | None:
        """What is to be done before the pair is added, or, None, before the end: much merging, if any."""
        if self.group_bytes <= MERGED_BYTES_INLINE or self._place is None or self._ahead is not None:
            return None
        if pair is not None and pair[0][:-_WRITE_BYTES] == self._place:
            return None
        kind = self._place[len(self.prefix)]
        if kind == _KIND_HEADER or (kind == _KIND_STATIC and not self.with_static):
            return None
        return self._merge_ahead

    def _merge_ahead(self) -> None:
        assert self._place is not None, "there is a group to merge"
        is_static = self._place[len(self.prefix)] == _KIND_STATIC
        self._ahead = (self._static_of(self._group) if is_static else self._row_of(self._group),)

    def add(self, pair: Pair) -> bool:
        """False when taken; True when the fold was full before this fragment, which it did not take."""
        place = pair[0][:-_WRITE_BYTES]
        if place == self._place:
            self._group.append(pair)
            self.group_bytes += len(pair[1])
            return False
        if self._place is not None and self._finish_place():
            return True
        self._place = place
        self._group = [pair]
        self.group_bytes = len(pair[1])
        return False

    def run_room(self, most: int) -> int:
        """How many pairs may come next together, at most `most`: not many more than rows have room."""
        return min(most, max(_RUN_FEW, self._room - self.live - 1))

    def add_run(self, pairs: Sequence[Pair]) -> bool:
        """Take pairs that follow each other as `add` takes each of them; False, nothing being taken, when
        they need to be looked at one by one: rows of several fragments, or under deletions, or more than
        there is room for. The last pair may have more fragments behind it, and its row stays open.
        """
        at, place = len(self.prefix), self._place
        if len(pairs) < _RUN_MIN or place is None or place[at] != _KIND_ROW or self._ahead is not None:
            return False
        if self._shadow is not None or self._deletion is not None or self._dead or len(self._group) > 1:
            return False
        done = [*self._group, *pairs[:-1]]
        places = {pair[0][:-_WRITE_BYTES] for pair in pairs}
        places.add(place)
        size = sum([len(pair[0]) + len(pair[1]) for pair in done])
        if len(places) <= len(pairs) or self.live + len(done) >= self._room:
            return False
        if self.bytes_read + size >= self._bytes_max:
            return False
        self._finish_rows(decode_rows(done, at + 1))
        self.bytes_read += size
        self._group = [pairs[-1]]
        self.group_bytes = len(pairs[-1][1])
        self._place = pairs[-1][0][:-_WRITE_BYTES]
        return True

    def _finish_rows(self, rows: Sequence[Row]) -> None:
        """As `_finish_row`, of rows that nothing else is known of, all of which have room."""
        live, now_s, dropped, append = 0, self._now_s, self._dropped, self._rows.append
        for one in rows:
            row: Row | None = one
            if one.deletion is not None or one.column_deletions or one.liveness is None:
                row = merge_rows((one,))
            if row is not None:
                append(row)
                liveness = row.liveness
                if (liveness is not None and not liveness.ttl_s) or row_is_live(row, now_s, dropped):
                    live += 1
        self.live += live
        self.last = rows[-1].clustering

    def finish(self) -> Partition:
        """The state of everything taken; may be empty."""
        if self._place is not None:
            self._finish_place()
        return Partition(self.token, self.key, self._deletion, self._ranges, self.static, tuple(self._rows))

    def _finish_place(self) -> bool:
        place, group = self._place, self._group
        self._place = None
        assert place is not None and group, "a place has fragments"
        kind = place[len(self.prefix)]
        if len(group) >= limits.ROW_FRAGMENTS_MERGE_AT and self._ask_merge is not None:
            self._ask_merge(self.prefix, place)
        # All keys of one place are of one length.
        self.bytes_read += self.group_bytes + len(group) * len(group[0][0])
        if kind == _KIND_HEADER:
            self._finish_header(group)
            return False
        if kind == _KIND_STATIC:
            if self.with_static:
                self.static = self._taken_ahead(group, self._static_of)
            return False
        return self._finish_row(group)

    def _taken_ahead(self, group: list[Pair], merge: Callable[[list[Pair]], Row | None]) -> Row | None:
        """What `due` has merged, or what `merge` does now."""
        ahead, self._ahead = self._ahead, None
        return merge(group) if ahead is None else ahead[0]

    def _static_of(self, group: list[Pair]) -> Row | None:
        static = merge_rows([decode_row(key, value, b"") for key, value in group], self._deletion)
        return static and without_dead(static, self._dead)

    def _row_of(self, group: list[Pair]) -> Row | None:
        rows = decode_rows(group, len(self.prefix) + 1)
        over = self._deletion if self._shadow is None else self._shadow.over(rows[0].clustering)
        row = merge_rows(rows, over)
        return without_dead(row, self._dead) if row is not None and self._dead else row

    def _finish_header(self, group: list[Pair]) -> None:
        deletion: Deletion | None = None
        ranges: list[RangeDeletion] = []
        for store_key, value in group:
            part = decode_header(store_key, value)
            deletion = stronger(deletion, part.deletion)
            ranges.extend(part.range_deletions)
        self._deletion = deletion
        self._ranges = normal_ranges(ranges, deletion)
        if self._ranges:
            self._shadow = Shadow(deletion, self._ranges)

    def _finish_row(self, group: list[Pair]) -> bool:
        self.last = keys.clustering_of(group[0][0], self.prefix)
        row = self._taken_ahead(group, self._row_of)
        if row is not None:
            self._rows.append(row)
            if row_is_live(row, self._now_s, self._dropped):
                self.live += 1
        return self.live >= self._room or self.bytes_read >= self._bytes_max
