"""What replicas hold of a range, element by element: cells, markers of rows, deletions; and their names.

Invariant: an element is the smallest thing that has a write time of its own. Replicas that hold the same
have the same elements, with the same values, write times and expiries; an element that any of them got after
the audit began is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

from lockstep.schema.clustering import decode, split_key
from lockstep.schema.types import CollectionType, CqlType, MapType, SetType
from lockstep.spark.jobs.tables import Described, columns_of
from lockstep.values.errors import InvalidRequest
from lockstep.values.rows import Cell, Deletion, Partition, ReadResult, Row

#: What has no column, as it is shown.
ROW_MARKER: Final = "(row marker)"
ROW_DELETION: Final = "(row deletion)"
PARTITION_DELETION: Final = "(partition deletion)"
RANGE_DELETION: Final = "(range deletion)"
COLLECTION_DELETION: Final = "(emptied)"
DELETED: Final = "(deleted)"


class State(msgspec.Struct, frozen=True):
    """What one replica holds of an element: the value, None for a deletion, and when it ends."""

    at_us: int
    value: bytes | None = None
    ttl_s: int = 0
    ends_s: int = 0


class Place(msgspec.Struct, frozen=True):
    """Which element. `clustering` is None for what is of the whole partition, `column` a name, or one of what
    has none; `path` the place inside of a collection, or the end of a range that was deleted."""

    token: int
    key: bytes
    clustering: bytes | None
    column: str
    path: bytes | None = None


class Element(msgspec.Struct, frozen=True):
    """An element that replicas do not hold alike; (node, None) for one that has nothing of it."""

    place: Place
    held: tuple[tuple[int, State | None], ...]


def elements_of(results: Mapping[int, ReadResult], names: Mapping[int, str], until_us: int) -> list[Element]:
    """The elements that differ, but for those of which something was written after `until_us`."""
    by_node = {
        node: {place: state for part in result.partitions for place, state in _states(part, names)}
        for node, result in results.items()
    }
    found = []
    for place in dict.fromkeys(place for states in by_node.values() for place in states):
        held = tuple((node, states.get(place)) for node, states in by_node.items())
        known = [state for _, state in held if state is not None]
        if any(state != known[0] for _, state in held) and all(state.at_us <= until_us for state in known):
            found.append(Element(place, held))
    return found


def _states(part: Partition, names: Mapping[int, str]) -> Iterator[tuple[Place, State]]:
    if part.deletion is not None:
        yield Place(part.token, part.key, None, PARTITION_DELETION), _deleted(part.deletion)
    for one in part.range_deletions:
        yield Place(part.token, part.key, one.start, RANGE_DELETION, one.end), _deleted(one.deletion)
    for row in part.rows if part.static is None else (part.static, *part.rows):
        clustering = None if row is part.static else row.clustering
        yield from _row(part, row, clustering, names)


def _row(
    part: Partition, row: Row, clustering: bytes | None, names: Mapping[int, str]
) -> Iterator[tuple[Place, State]]:
    def place(column: str, path: bytes | None = None) -> Place:
        return Place(part.token, part.key, clustering, column, path)

    if row.liveness is not None:
        marker = row.liveness
        yield place(ROW_MARKER), State(marker.timestamp_us, b"", marker.ttl_s, marker.expires_at_s)
    if row.deletion is not None:
        yield place(ROW_DELETION), _deleted(row.deletion)
    for entry in row.column_deletions:
        name = names.get(entry.column, f"column {entry.column}")
        yield place(f"{name} {COLLECTION_DELETION}"), _deleted(entry.deletion)
    for cell in row.cells:
        yield place(names.get(cell.column, f"column {cell.column}"), cell.path), _cell(cell)


def _deleted(deletion: Deletion) -> State:
    return State(deletion.timestamp_us, None, 0, deletion.deleted_at_s)


def _cell(cell: Cell) -> State:
    return State(cell.timestamp_us, cell.value, cell.ttl_s, cell.expires_at_s)


class Naming:
    """Bytes of a table's keys and cells as texts."""

    def __init__(self, described: Described) -> None:
        columns = columns_of(described)
        self._partition = [(one.name, one.cql_type) for one in columns if one.kind == "partition_key"]
        self._clustering = [(one.name, one.cql_type) for one in columns if one.kind == "clustering"]
        self._descending = [one.descending for one in described.columns if one.kind == "clustering"]
        self._types = {one.name: one.cql_type for one in columns}

    def key(self, place: Place) -> dict[str, str]:
        """Columns of the key, as far as the place has them."""
        values = split_key(place.key, len(self._partition))
        named = {
            name: _text(kind, value) for (name, kind), value in zip(self._partition, values, strict=True)
        }
        if place.clustering:
            types = [kind for _, kind in self._clustering]
            parts = decode(types, self._descending, place.clustering)
            for (name, kind), value in zip(self._clustering, parts, strict=False):
                named[name] = _text(kind, value)
        return named

    def value(self, place: Place, state: State | None) -> str | None:
        """What a replica holds there; None for nothing."""
        if state is None:
            return None
        if state.value is None:
            return DELETED
        kind = self._types.get(place.column)
        if kind is None:
            return "there" if place.column == ROW_MARKER else "0x" + state.value.hex()
        if place.path is None:
            return _text(kind, state.value)
        if isinstance(kind, MapType):
            return f"{_text(kind.key, place.path)}: {_text(kind.value, state.value)}"
        if isinstance(kind, SetType):
            return _text(kind.element, place.path)
        if isinstance(kind, CollectionType):
            return _text(kind.element, state.value)
        return "0x" + state.value.hex()


def _text(kind: CqlType, value: bytes) -> str:
    try:
        found = kind.deserialize(value)
    except InvalidRequest:
        # What a replica holds is told, whatever it is.
        return "0x" + value.hex()
    return "0x" + found.hex() if isinstance(found, bytes) else str(found)
