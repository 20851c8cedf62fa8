"""Counters as cells: what a replica makes of a change, out of what it has counted itself so far.

A counter is the sum of its shards. A shard is a cell with a path, (node, generation), and holds everything
that this node counted in this generation; its timestamp is its clock. Invariant: only its node writes a
shard, from the newest value of it that there ever was, so of two values the one with the later timestamp
includes the other, and replicas merge shards as they merge any cells.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import msgspec

from lockstep.values.rows import Cell, Mutation, Partition, ReadCommand, Row, Slice

_PATH = struct.Struct(">IQ")
_COUNT = struct.Struct(">q")
_WRAP = 1 << 64
_HALF = 1 << 63


def shard_path(node: int, generation: int) -> bytes:
    return _PATH.pack(node, generation)


def asks(mutation: Mutation, now_s: int) -> ReadCommand:
    """The rows whose counters a mutation of differences changes."""
    columns = sorted({cell.column for row in _rows(mutation) for cell in row.cells})
    slices = tuple(Slice(row.clustering, row.clustering + b"\x00") for row in mutation.rows)
    return ReadCommand(
        mutation.table_id,
        mutation.token - 1,
        mutation.token,
        mutation.key,
        # No row lies in front of every clustering: then only the static row is asked.
        slices or (Slice(b"", b"\x00"),),
        tuple(columns),
        mutation.static is not None,
        False,
        0,
        0,
        now_s,
    )


def counted(mutation: Mutation, present: tuple[Partition, ...], path: bytes) -> Mutation:
    """The differences of `mutation` added to this node's shards in what is there: cells to be written as they
    are, by every replica."""
    partition = present[0] if present else None
    known: dict[tuple[bool, bytes, int], Cell] = {}
    if partition is not None:
        if partition.static is not None:
            known.update(_shards(partition.static, path, is_static=True))
        for row in partition.rows:
            known.update(_shards(row, path, is_static=False))
    static = None
    if mutation.static is not None:
        static = _counted_row(mutation.static, known, path, is_static=True)
    rows = tuple(_counted_row(row, known, path, is_static=False) for row in mutation.rows)
    written = [cell.timestamp_us for row in (*rows, *((static,) if static else ())) for cell in row.cells]
    timestamp_us = max(written, default=mutation.timestamp_us)
    return msgspec.structs.replace(mutation, timestamp_us=timestamp_us, static=static, rows=rows)


def _rows(mutation: Mutation) -> Iterator[Row]:
    if mutation.static is not None:
        yield mutation.static
    yield from mutation.rows


def _shards(row: Row, path: bytes, *, is_static: bool) -> Iterator[tuple[tuple[bool, bytes, int], Cell]]:
    for cell in row.cells:
        if cell.path == path and cell.value is not None:
            yield (is_static, b"" if is_static else row.clustering, cell.column), cell


def _counted_row(
    row: Row, known: dict[tuple[bool, bytes, int], Cell], path: bytes, *, is_static: bool
) -> Row:
    cells = []
    for cell in row.cells:
        assert cell.value is not None and cell.path is None, "a difference is one plain cell"
        earlier = known.get((is_static, b"" if is_static else row.clustering, cell.column))
        count, timestamp_us = _COUNT.unpack(cell.value)[0], cell.timestamp_us
        if earlier is not None:
            assert earlier.value is not None, "only live shards are looked at"
            count += _COUNT.unpack(earlier.value)[0]
            timestamp_us = max(timestamp_us, earlier.timestamp_us + 1)
        wrapped = (count + _HALF) % _WRAP - _HALF
        cells.append(Cell(cell.column, _COUNT.pack(wrapped), timestamp_us, path=path))
    return Row(row.clustering, row.liveness, row.deletion, tuple(cells), row.column_deletions)
