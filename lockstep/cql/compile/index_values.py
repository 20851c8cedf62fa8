"""How large a value that is indexed may be.

Invariant: a value that an index would hold is refused before anything is written when it is too large for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockstep.schema.index_changes import ENTRIES, KEYS
from lockstep.schema.model import Table
from lockstep.schema.objects import Index
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Cell

#: As of a key, which it is part of in Cassandra.
INDEXED_BYTES_MAX: Final = 65_535


def check_indexed(table: Table, cells: Sequence[Cell]) -> None:
    """InvalidRequest for a value that is too large for an index of the table."""
    for index in table.indexes:
        for cell in cells:
            if cell.column == index.column and cell.value is not None:
                size = _size(table, index, cell)
                if size > INDEXED_BYTES_MAX:
                    raise InvalidRequest(
                        f"Cannot index value of size {size} for index {index.name} on {table.keyspace}."
                        f"{table.name}({table.by_id[index.column].name}) (maximum allowed "
                        f"size={INDEXED_BYTES_MAX})"
                    )


def _size(table: Table, index: Index, cell: Cell) -> int:
    value, path = len(cell.value or b""), len(cell.path or b"")
    if index.target == ENTRIES:
        return value + path
    if index.target == KEYS or table.by_id[index.column].type.startswith("set<"):
        return path
    return value
