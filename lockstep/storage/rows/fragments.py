"""Fragments: the pieces a mutation is stored as, one value per place it touches.

Invariants. One mutation makes one batch: at most one header fragment (partition and range deletions), one
static fragment and one fragment a row. What the key says (partition, clustering, time, id) is not
repeated in the value. Values are array structs to which fields are only appended; their default fields
cost one byte each, which block compression takes away.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from lockstep.storage.rows import keys
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.store import Pair, Put
from lockstep.values import codec, limits
from lockstep.values.errors import CorruptFile, InvalidRequest
from lockstep.values.ids import MUTATION_ID_BYTES
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    RangeDeletion,
    Row,
    Slice,
)

#: Fragments of one mutation: marks and records join its batch.
_PLACES_MAX: Final = limits.STORE_BATCH_ROWS_MAX - 8
#: Of a fragment's key, beside the keys of partition and row; at most.
_KEY_BYTES: Final = 64


class HeaderFragment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    deletion: Deletion | None = None
    range_deletions: tuple[RangeDeletion, ...] = ()


class RowFragment(msgspec.Struct, frozen=True, array_like=True, gc=False):
    liveness: Liveness | None = None
    deletion: Deletion | None = None
    cells: tuple[Cell, ...] = ()
    column_deletions: tuple[ColumnDeletion, ...] = ()


_HEADER = codec.decoder(HeaderFragment)
_ROW = codec.decoder(RowFragment)
_encode = codec.encode


def encode_header(deletion: Deletion | None, range_deletions: tuple[RangeDeletion, ...]) -> bytes:
    return _encode(HeaderFragment(deletion, range_deletions))


def encode_row(row: Row) -> bytes:
    return _encode(RowFragment(row.liveness, row.deletion, row.cells, row.column_deletions))


def decode_header(store_key: bytes, value: bytes) -> HeaderFragment:
    try:
        return _HEADER.decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptFile(store_key.hex(), 0, f"not a header fragment: {error}") from error


def decode_row(store_key: bytes, value: bytes, clustering: bytes) -> Row:
    try:
        part = _ROW.decode(value)
    except msgspec.MsgspecError as error:
        raise CorruptFile(store_key.hex(), 0, f"not a row fragment: {error}") from error
    return Row(clustering, part.liveness, part.deletion, part.cells, part.column_deletions)


def decode_rows(pairs: Sequence[Pair], clustering_at: int) -> list[Row]:
    """Rows of one fragment each, whose clusterings begin at that place of their keys."""
    decode, behind = _ROW.decode, -keys.ROW_TAIL_BYTES
    found: list[Row] = []
    append = found.append
    try:
        for store_key, value in pairs:
            part = decode(value)
            clustering = store_key[clustering_at:behind]
            if b"\x00" in clustering:
                clustering = clustering.replace(b"\x00\xff", b"\x00")
            append(Row(clustering, part.liveness, part.deletion, part.cells, part.column_deletions))
    except msgspec.MsgspecError as error:
        raise CorruptFile(store_key.hex(), 0, f"not a row fragment: {error}") from error
    return found


def fragments_of(mutation: Mutation, prefix: bytes) -> list[Put]:
    """The batch of a mutation whose partition has this prefix.

    InvalidRequest when it has more rows or bytes than one atomic batch may hold.
    """
    rows, static = mutation.rows, mutation.static
    deletes = mutation.deletion is not None or bool(mutation.range_deletions)
    if len(rows) == 1 and static is None and not deletes:
        # Most mutations are one row; the general way below gives the same.
        row = rows[0]
        store_key = keys.row_key(prefix, row.clustering, mutation.timestamp_us, mutation.mutation_id)
        value = _encode(RowFragment(row.liveness, row.deletion, row.cells, row.column_deletions))
        if len(store_key) + len(value) > limits.MUTATION_BYTES_MAX:
            raise _too_large(len(store_key) + len(value))
        return [("put", store_key, value)]
    suffix = keys.write_suffix(mutation.timestamp_us, mutation.mutation_id)
    batch: list[Put] = []
    if deletes:
        value = encode_header(mutation.deletion, mutation.range_deletions)
        batch.append(("put", prefix + keys.KIND_HEADER + suffix, value))
    if static is not None:
        batch.append(("put", prefix + keys.KIND_STATIC + suffix, encode_row(static)))
    if len(rows) > 1:
        rows = _distinct(rows)
    for row in rows:
        batch.append(("put", keys.row_prefix(prefix, row.clustering) + suffix, encode_row(row)))
    _check_size(batch)
    return batch


def _distinct(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Two changes of one row inside one mutation would share a key, so they become one fragment."""
    by_clustering: dict[bytes, list[Row]] = {}
    for row in rows:
        by_clustering.setdefault(row.clustering, []).append(row)
    if len(by_clustering) == len(rows):
        return tuple(rows)
    merged = (merge_rows(same) if len(same) > 1 else same[0] for same in by_clustering.values())
    return tuple(row for row in merged if row is not None)


def require_fitting(mutation: Mutation, encoded_bytes: int) -> None:
    """InvalidRequest, as any replica would, when the mutation is too large for one atomic batch."""
    rows, captured = len(mutation.rows), mutation.captured
    if captured is not None:
        rows += len(captured.rows)
    # No more than this: what is in keys is escaped, and the partition's is in each.
    at_most = 2 * (encoded_bytes + rows * (len(mutation.key) + _KEY_BYTES))
    if rows + 2 > _PLACES_MAX or at_most > limits.MUTATION_BYTES_MAX:
        batch = fragments_of(mutation, keys.partition_prefix(mutation.table_id, mutation.token, mutation.key))
        if captured is not None:
            prefix = keys.partition_prefix(captured.table_id, captured.token, captured.key)
            _check_size([*batch, *fragments_of(captured, prefix)])


def _check_size(batch: Sequence[Put]) -> None:
    if len(batch) > _PLACES_MAX:
        raise InvalidRequest(
            f"a mutation of {len(batch)} rows is over the limit of {_PLACES_MAX}", hint="split the batch"
        )
    size = 0
    for _, key, value in batch:
        size += len(key) + len(value)
    if size > limits.MUTATION_BYTES_MAX:
        raise _too_large(size)


def _too_large(size: int) -> InvalidRequest:
    return InvalidRequest(
        f"a mutation of {size} bytes is over the limit of {limits.MUTATION_BYTES_MAX}",
        hint="split the batch or store smaller values",
    )


def merge_id(value: bytes) -> bytes:
    """The write id of a merged fragment: a hash of its content.

    Replicas that merged different fragments to different results so keep both when one streams to the
    other, and a redelivered mutation never lands on a merged fragment's key.
    """
    return hashlib.blake2b(value, digest_size=MUTATION_ID_BYTES).digest()


def newest_timestamp(store_keys: Iterable[bytes]) -> int:
    """Of keys of one place: those of later writes come first."""
    return keys.timestamp_of(min(store_keys))


def touched(mutation: Mutation) -> tuple[Slice, ...]:
    """The rows that a write may change, as slices in order that do not overlap."""
    if mutation.deletion is not None:
        return ALL_ROWS
    bounds = [(row.clustering, row.clustering + b"\0") for row in mutation.rows]
    bounds += [(gone.start, gone.end) for gone in mutation.range_deletions]
    joined: list[tuple[bytes, bytes]] = []
    for start, end in sorted(bounds):
        if joined and (not joined[-1][1] or start <= joined[-1][1]):
            last = joined[-1][1]
            joined[-1] = (joined[-1][0], max(last, end) if last and end else b"")
        else:
            joined.append((start, end))
    return tuple(Slice(start, end) for start, end in joined)
