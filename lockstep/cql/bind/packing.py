"""Rows of one partition as the protocol writes them, without a record for each in between.

Invariant: what is packed is what a record of the row gives for the selection's outputs, encoded. Only
selections are packed whose outputs are columns as they are, none of them made of several cells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.cql.compile.prepared import TableShape
from lockstep.cql.compile.select import SelectPrepared
from lockstep.cql.wire.primitives import pack_int, pack_row
from lockstep.schema.clustering import decode
from lockstep.schema.model import ColumnKind
from lockstep.values.rows import Row

_NULL = pack_int(-1)
#: (what every row of a partition has here, packed, or None; position in the clustering, or -1; column id).
_Output = tuple[bytes | None, int, int]
Clustering = Callable[[bytes], Sequence[bytes]]


def is_packable(select: SelectPrepared) -> bool:
    """Whether results of the statement are rows of columns as they are stored."""
    selection = select.selection
    if selection.plain is None or selection.cells or select.folds or select.sorts or select.distinct:
        return False
    types = select.shape.types
    kinds = [types[column.name] for column in selection.columns if column.kind is not ColumnKind.STATIC]
    return not any(kind.is_multicell or kind.name == "counter" for kind in kinds)


def clustering_reader(shape: TableShape) -> Clustering:
    """Decodes clusterings; one column of a fixed size needs no search for its end."""
    types, descending = shape.clustering_types, shape.descending
    kind = types[0] if len(types) == 1 else None
    if kind is None or descending[0] or kind.fixed_bytes is None:
        return lambda encoded: decode(types, descending, encoded)
    size, of_key = 1 + kind.fixed_bytes, kind.from_sort_key

    def read(encoded: bytes) -> Sequence[bytes]:
        if len(encoded) == size:
            return (of_key(encoded[1:]),)
        return decode(types, descending, encoded)

    return read


class RowPacker:
    """Packs rows of one partition; `base` is the record of what they have in common, by slot."""

    def __init__(self, select: SelectPrepared, base: Sequence[bytes | None]) -> None:
        selection = select.selection
        assert selection.plain is not None, "outputs are columns"
        outputs: list[_Output] = []
        for slot in selection.plain:
            column = selection.columns[slot]
            if column.kind is ColumnKind.CLUSTERING:
                outputs.append((None, column.position, 0))
            elif column.kind is ColumnKind.REGULAR:
                outputs.append((None, -1, column.id))
            else:
                cell: list[bytes] = []
                pack_row(cell, (base[slot],))
                outputs.append((b"".join(cell), -1, 0))
        self._outputs = outputs
        self._clustering = clustering_reader(select.shape) if any(o[1] >= 0 for o in outputs) else None

    def packed(self, rows: Sequence[Row]) -> bytes:
        out: list[bytes] = []
        append, outputs, clustering = out.append, self._outputs, self._clustering
        values: Sequence[bytes] = ()
        for row in rows:
            if clustering is not None:
                values = clustering(row.clustering)
            found = {cell.column: cell.value for cell in row.cells}
            for constant, position, column in outputs:
                if constant is not None:
                    append(constant)
                    continue
                value = found.get(column) if position < 0 else values[position]
                if value is None:
                    append(_NULL)
                else:
                    append(len(value).to_bytes(4, "big"))
                    append(value)
        return b"".join(out)
