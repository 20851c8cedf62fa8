"""User-defined types: tuples whose fields have names.

Invariant: the canonical bytes of a value do not end in a null field (unless all fields are null), so that
one value has one form however many fields were added to the type since; a field is known by its position,
which never changes, and not by its name, which can.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import NamedTuple

from lockstep.schema.types.base import CqlType, mismatch
from lockstep.schema.types.compound import TupleType
from lockstep.values.errors import InvalidRequest

_POSITION = struct.Struct(">H")


class UserFields(NamedTuple):
    """What a user-defined type consists of, resolved at one epoch."""

    keyspace: str
    names: tuple[str, ...]
    types: tuple[CqlType, ...]


def field_path(position: int) -> bytes:
    """Path of the cell that holds one field of a value that is not frozen."""
    return _POSITION.pack(position)


def field_position(path: bytes) -> int:
    """The inverse of field_path."""
    position: int = _POSITION.unpack(path)[0]
    return position


class UserDefinedType(TupleType):
    """Values are Python tuples with None for null fields (a mapping from field names is accepted).

    `spelled` is the type's name as CQL text spells it, quotes included.
    """

    name = "udt"
    shown_name = "UDT"

    def __init__(self, fields: UserFields, type_name: str, spelled: str, *, frozen: bool) -> None:
        CqlType.__init__(self, f"frozen<{spelled}>" if frozen else spelled)
        self._elements = fields.types
        self.is_frozen = frozen
        self.is_multicell = not frozen
        self.keyspace = fields.keyspace
        self.type_name = type_name
        self.spelled = spelled
        self.field_names = fields.names

    @cached_property
    def positions(self) -> dict[str, int]:
        """Field name -> position."""
        return {name: position for position, name in enumerate(self.field_names)}

    def field(self, name: str) -> tuple[int, CqlType] | None:
        """(position, type) of a field, or None."""
        position = self.positions.get(name)
        return None if position is None else (position, self._elements[position])

    def _part(self, index: int) -> str:
        return f"{index}th field {self.field_names[index]}"

    def join(self, parts: Iterable[bytes | None]) -> bytes:
        """Canonical bytes of the value with these serialised fields."""
        listed = list(parts)
        while len(listed) > 1 and listed[-1] is None:
            listed.pop()
        return super().join(listed)

    def canonical(self, data: bytes) -> bytes:
        if not data:
            return data
        pairs = zip(self.split(data), self._elements, strict=False)
        return self.join(None if part is None else kind.canonical(part) for part, kind in pairs)

    def joined_cells(self, cells: Iterable[tuple[bytes, bytes]]) -> bytes:
        """Canonical bytes of the value whose fields are held by (path, value) cells."""
        parts: list[bytes | None] = [None] * len(self._elements)
        for path, value in cells:
            position = field_position(path)
            # A node that is behind may meet a field that was added since: it does not know it yet.
            if position < len(parts):
                parts[position] = value
        return self.join(parts)

    def serialize(self, value: object) -> bytes:
        if isinstance(value, Mapping):
            unknown = [name for name in value if name not in self.positions]
            if unknown:
                raise InvalidRequest(
                    f"Unknown field '{unknown[0]}' in value of user defined type {self.type_name}"
                )
            value = tuple(value.get(name) for name in self.field_names)
        if not isinstance(value, tuple | list):
            raise mismatch(self, value)
        return super().serialize(value)

    def format(self, value: object) -> str:
        items = value if isinstance(value, tuple) else ()
        triples = zip(self.field_names, items, self._elements, strict=False)
        texts = (f"{name}: {'null' if v is None else kind.format(v)}" for name, v, kind in triples)
        return "{" + ", ".join(texts) + "}"
