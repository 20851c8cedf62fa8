"""What the cells of one column show together: collections, user-defined types, counters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from lockstep.schema.types import CollectionType, CqlType, UserDefinedType
from lockstep.values.limits import COUNTER_BOUND
from lockstep.values.rows import Cell


def assembled(kind: CqlType, cells: Sequence[Cell]) -> bytes:
    """Serialised collection of its live cells; `join` brings sets and maps into their order."""
    if isinstance(kind, UserDefinedType):
        return kind.joined_cells((_path(cell), cell.value or b"") for cell in cells)
    if kind.name == "counter":
        return counter_sum(cell.value or b"" for cell in cells)
    assert isinstance(kind, CollectionType)
    if kind.name == "list":
        return kind.join([cell.value or b"" for cell in sorted(cells, key=_path)])
    if kind.name == "set":
        return kind.join([_path(cell) for cell in cells])
    assert kind.name == "map", "lists, sets and maps have a cell for each element"
    parts: list[Any] = []
    for cell in cells:
        parts += (cell.path, cell.value)
    return kind.join(parts)


def counter_sum(shards: Iterable[bytes]) -> bytes:
    """What a counter shows: the sum of what was counted by each node, in 64 bits."""
    total = sum(int.from_bytes(shard, "big", signed=True) for shard in shards)
    return ((total + COUNTER_BOUND) % (2 * COUNTER_BOUND) - COUNTER_BOUND).to_bytes(8, "big", signed=True)


def _path(cell: Cell) -> bytes:
    assert cell.path is not None
    return cell.path
