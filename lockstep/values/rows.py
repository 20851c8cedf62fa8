"""Rows, mutations and read commands as values: what a statement asks, what replicas exchange and store.

Invariants. Keys and clustering are opaque bytes here: a partition key is the protocol's serialised
routing key, a clustering prefix is in byte order (see schema.clustering), so bytes comparison is the
table's order. Cells name columns by their id from the log, never by name. Timestamps are microseconds,
local deletion and expiry times are whole seconds.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep.values.node_limits import ROW_CELLS_INLINE
from lockstep.values.outlines import Outline, Told

#: No expiry; also the smallest possible local time, so it never counts as expired.
NEVER_S = 0


class Deletion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tombstone: everything it covers with a timestamp <= `timestamp_us` is gone."""

    timestamp_us: int
    deleted_at_s: int


class Liveness(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The row marker that INSERT writes; ttl_s and expires_at_s are 0 when it does not expire."""

    timestamp_us: int
    ttl_s: int = 0
    expires_at_s: int = NEVER_S


class Cell(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One value of one column, or one element of a non-frozen collection (`path` is its key).

    A tombstone has value None and expires_at_s = the local deletion second. An expiring cell has
    ttl_s > 0 and expires_at_s = the second from which it is dead. Map: path = key bytes, value =
    value bytes; set: path = element bytes, value = b""; list: path = 16-byte time-ordered id, value.
    """

    column: int
    value: bytes | None
    timestamp_us: int
    ttl_s: int = 0
    expires_at_s: int = NEVER_S
    path: bytes | None = None


class ColumnDeletion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Complete deletion of one non-frozen collection column in one row."""

    column: int
    deletion: Deletion


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One row's (partial or merged) state. `cells` are sorted by (column, path)."""

    clustering: bytes
    liveness: Liveness | None = None
    deletion: Deletion | None = None
    cells: tuple[Cell, ...] = ()
    column_deletions: tuple[ColumnDeletion, ...] = ()


class RangeDeletion(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Deletes every row whose clustering bytes c satisfy start <= c < end (end b"" = no upper bound)."""

    start: bytes
    end: bytes
    deletion: Deletion


class Mutation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Changes of one partition of one table; applied whole, resent identically on a re-plan. `captured`: what
    they add to the log of the table's changes; a replica of both applies both at once."""

    table_id: int
    token: int
    key: bytes
    mutation_id: bytes
    timestamp_us: int
    deletion: Deletion | None = None
    range_deletions: tuple[RangeDeletion, ...] = ()
    static: Row | None = None
    rows: tuple[Row, ...] = ()
    captured: Mutation | None = None


def without_log(mutation: Mutation) -> Mutation:
    """The changes of the table alone."""
    assert mutation.captured is None or mutation.captured.captured is None, "a log has no log"
    return mutation if mutation.captured is None else msgspec.structs.replace(mutation, captured=None)


class Slice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Clustering bytes c with start <= c < end; start b"" and end b"" mean unbounded."""

    start: bytes = b""
    end: bytes = b""

    def contains(self, clustering: bytes) -> bool:
        return self.start <= clustering and (not self.end or clustering < self.end)


ALL_ROWS = (Slice(),)

#: No column has this id. In views it is the cell that says whether a row exists (handoff.view_updates).
#: Once it is dead for as long as tombstones are kept, nothing of its row is needed any more.
MARKER_COLUMN = 0


class Position(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a page ended: the last partition and, inside it, the last row (None: whole partition done)."""

    token: int
    key: bytes
    clustering: bytes | None = None


class IndexRead(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Which values of a secondary index are wanted: components v with lower <= v < upper (b"" for no bound).
    `whole`: a partition has its values once, and is wanted with all its rows."""

    index_id: int
    lower: bytes
    upper: bytes
    whole: bool = False


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Rows of one partition."""

    token: int
    key: bytes
    slices: tuple[Slice, ...]


class ReadCommand(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a replica is asked to read.

    Either one partition (`key` set, left = token - 1, right = token) or all partitions with
    left < token <= right in (token, key) order. Rows come in clustering order, or reversed within a
    partition. `row_limit` counts live rows as of `now_s`; a partition with only a live static row
    counts as one. `after` continues behind a position. Columns () means all. Cells of the columns in
    `dropped` make no row exist. With an `index` only rows that have a wanted value in it, with `places` only
    these, which are in reading order. `dead`: (column, microseconds) of columns whose cells at or below that
    time are not there, ascending. With an `outline`, which goes with rows in order and without limits within
    partitions, the answer may tell of rows in place of having them.
    """

    table_id: int
    left: int
    right: int
    key: bytes | None
    slices: tuple[Slice, ...]
    columns: tuple[int, ...]
    reads_static: bool
    reverse: bool
    row_limit: int
    partition_row_limit: int
    now_s: int
    after: Position | None = None
    dropped: tuple[int, ...] = ()
    index: IndexRead | None = None
    places: tuple[Place, ...] = ()
    dead: tuple[tuple[int, int], ...] = ()
    outline: Outline | None = None


class Partition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One partition's state within a read: tombstones included, so that replicas can be merged."""

    token: int
    key: bytes
    deletion: Deletion | None = None
    range_deletions: tuple[RangeDeletion, ...] = ()
    static: Row | None = None
    rows: tuple[Row, ...] = ()


class ReadResult(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A replica's (or the merged) answer. `more` = the limit stopped it, so rows may follow.

    With `more`, `end` is how far it looked: everything up to there is in the answer, dead rows included,
    and nothing after it. It can be behind the last row, and a limit on bytes can stop before any live row.
    With `told` there are no partitions, but for those with rows that an outline gives: live content only.
    """

    partitions: tuple[Partition, ...]
    more: bool = False
    end: Position | None = None
    told: Told | None = None


def has_large_row(results: Iterable[ReadResult]) -> bool:
    """Whether some row has more than ROW_CELLS_INLINE cells: what is made of it is not made on a loop."""
    for result in results:
        for partition in result.partitions:
            if partition.static is not None and len(partition.static.cells) > ROW_CELLS_INLINE:
                return True
            for row in partition.rows:
                if len(row.cells) > ROW_CELLS_INLINE:
                    return True
    return False
