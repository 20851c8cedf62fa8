"""Collections, tuples and vectors, and user-defined types: tuples whose fields have names.

Invariant: sets and maps are serialised sorted by their element or key type and without duplicates
(`canonical` brings client bytes into this form); comparisons go element by element, shorter first. Layout:
collections carry a count and lengths of 32 bits, tuples lengths only (-1 is null), vectors of fixed-size
elements nothing at all and of other elements an unsigned variable-length size each. The canonical bytes of a
value do not end in a null field (unless all fields are null), so that one value has one form however many
fields were added to the type since; a field is known by its position, which never changes, and not by its
name, which can.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import ClassVar, NamedTuple

from lockstep.schema.types import numbers
from lockstep.schema.types.base import CqlType, mismatch
from lockstep.values.errors import InvalidRequest
from lockstep.values.node_limits import COLLECTION_ENTRIES_MAX

_INT = struct.Struct(">i")
_pack_int = _INT.pack
_unpack_int = _INT.unpack_from


def pack_parts(parts: Iterable[bytes], count: int) -> bytes:
    """A count, then each part behind its length."""
    out = [_pack_int(count)]
    for part in parts:
        out.append(_pack_int(len(part)))
        out.append(part)
    return b"".join(out)


class CollectionType(CqlType):
    """What lists, sets and maps share: `split` into parts and `join` back."""

    is_collection = True
    empty_allowed = False
    parts_per_entry = 1

    def __init__(self, inner: str, frozen: bool) -> None:
        super().__init__(f"frozen<{inner}>" if frozen else inner)
        self.is_frozen = frozen
        self.is_multicell = not frozen

    def part_types(self) -> tuple[CqlType, ...]:
        """Types of one entry's parts: (element,) or (key, value)."""
        raise AssertionError(self.text)

    def split(self, data: bytes) -> list[bytes]:
        """The serialised elements (keys and values alternating for a map), as they stand in `data`."""
        size = len(data)
        if size < 4:
            raise InvalidRequest(f"Not enough bytes to read a {self.name}")
        count = _unpack_int(data, 0)[0]
        if count < 0:
            raise InvalidRequest(f"Not enough bytes to read a {self.name}")
        count *= self.parts_per_entry
        if count * 4 > size:
            raise InvalidRequest(f"Not enough bytes to read a {self.name}")
        at, parts = 4, []
        for _ in range(count):
            if at + 4 > size:
                raise InvalidRequest(f"Not enough bytes to read a {self.name}")
            length = _unpack_int(data, at)[0]
            if length < 0:
                raise InvalidRequest("Null value read when not allowed")
            at += 4 + length
            if at > size:
                raise InvalidRequest(f"Not enough bytes to read a {self.name}")
            parts.append(data[at - length : at])
        if at != size:
            raise InvalidRequest(f"Unexpected extraneous bytes after {self.name} value")
        return parts

    def check_entries(self, count: int) -> None:
        """InvalidRequest for more entries than one value of a client may have."""
        if count > COLLECTION_ENTRIES_MAX:
            raise InvalidRequest(f"A {self.name} has {count} entries, more than {COLLECTION_ENTRIES_MAX}")

    def join(self, parts: Iterable[bytes]) -> bytes:
        """Canonical bytes of the collection that has these parts."""
        listed = list(parts)
        assert len(listed) % self.parts_per_entry == 0, "a key comes with its value"
        return pack_parts(listed, len(listed) // self.parts_per_entry)

    def validate(self, data: bytes) -> None:
        parts = self.split(data)
        self.check_entries(len(parts) // self.parts_per_entry)
        for part, kind in zip(parts, itertools.cycle(self.part_types()), strict=False):
            kind.validate(part)

    def canonical(self, data: bytes) -> bytes:
        kinds = itertools.cycle(self.part_types())
        return self.join(kind.canonical(part) for part, kind in zip(self.split(data), kinds, strict=False))

    def completed(self, data: bytes) -> bytes:
        parts, kinds = self.split(data), itertools.cycle(self.part_types())
        filled = [kind.completed(part) for part, kind in zip(parts, kinds, strict=False)]
        return pack_parts(filled, len(parts) // self.parts_per_entry)

    def sort_key(self, data: bytes) -> bytes:
        if not data:
            return b""
        kinds = itertools.cycle(self.part_types())
        keys = [b"\x01" + kind.component(part) for part, kind in zip(self.split(data), kinds, strict=False)]
        return b"".join(keys) + b"\x00"

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        kinds = itertools.cycle(self.part_types())
        at, parts = 0, []
        while key[at] == 1:
            part, at = next(kinds).take_component(key, at + 1)
            parts.append(part)
        assert len(parts) % self.parts_per_entry == 0, "a key comes with its value"
        return pack_parts(parts, len(parts) // self.parts_per_entry)


class _OfElements(CollectionType):
    """A collection with one type of elements; `name` is how it begins as text."""

    def __init__(self, element: CqlType, *, frozen: bool) -> None:
        super().__init__(f"{self.name}<{element.text}>", frozen)
        self._element = element

    @property
    def element(self) -> CqlType:
        return self._element

    def part_types(self) -> tuple[CqlType, ...]:
        return (self._element,)


class ListType(_OfElements):
    """Values are Python lists."""

    name = "list"

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, list | tuple):
            raise mismatch(self, value)
        return pack_parts([self._element.serialize(item) for item in value], len(value))

    def deserialize(self, data: bytes) -> list[object]:
        return [self._element.deserialize(part) for part in self.split(data)]

    def format(self, value: object) -> str:
        items = value if isinstance(value, list | tuple) else []
        return "[" + ", ".join(self._element.format(item) for item in items) + "]"


class SetType(_OfElements):
    """Values are Python lists, sorted by the element type and unique (any iterable is accepted)."""

    name = "set"

    def join(self, parts: Iterable[bytes]) -> bytes:
        unique = sorted(dict.fromkeys(parts), key=self._element.sort_key)
        return pack_parts(unique, len(unique))

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, list | tuple | set | frozenset):
            raise mismatch(self, value)
        return self.join([self._element.serialize(item) for item in value])

    def deserialize(self, data: bytes) -> list[object]:
        parts = sorted(dict.fromkeys(self.split(data)), key=self._element.sort_key)
        return [self._element.deserialize(part) for part in parts]

    def format(self, value: object) -> str:
        items = value if isinstance(value, list | tuple) else []
        return "{" + ", ".join(self._element.format(item) for item in items) + "}"


class MapType(CollectionType):
    """Values are lists of (key, value) sorted by key (a dict is accepted); the last duplicate wins."""

    name = "map"
    parts_per_entry = 2

    def __init__(self, key: CqlType, value: CqlType, *, frozen: bool) -> None:
        super().__init__(f"map<{key.text}, {value.text}>", frozen)
        self._key = key
        self._value = value

    @property
    def key(self) -> CqlType:
        return self._key

    @property
    def value(self) -> CqlType:
        return self._value

    def part_types(self) -> tuple[CqlType, ...]:
        return (self._key, self._value)

    def _sorted_pairs(self, parts: list[bytes]) -> list[tuple[bytes, bytes]]:
        pairs = dict(zip(parts[::2], parts[1::2], strict=True))
        return [(key, pairs[key]) for key in sorted(pairs, key=self._key.sort_key)]

    def join(self, parts: Iterable[bytes]) -> bytes:
        pairs = self._sorted_pairs(list(parts))
        return pack_parts(itertools.chain.from_iterable(pairs), len(pairs))

    def serialize(self, value: object) -> bytes:
        pairs = list(value.items()) if isinstance(value, Mapping) else value
        if not isinstance(pairs, list | tuple):
            raise mismatch(self, value)
        parts: list[bytes] = []
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise mismatch(self, value)
            parts += (self._key.serialize(pair[0]), self._value.serialize(pair[1]))
        return self.join(parts)

    def deserialize(self, data: bytes) -> list[tuple[object, object]]:
        key, value = self._key.deserialize, self._value.deserialize
        return [(key(k), value(v)) for k, v in self._sorted_pairs(self.split(data))]

    def format(self, value: object) -> str:
        pairs = value if isinstance(value, list | tuple) else []
        texts = (f"{self._key.format(k)}: {self._value.format(v)}" for k, v in pairs)
        return "{" + ", ".join(texts) + "}"


class TupleType(CqlType):
    """Values are Python tuples with None for null fields; always frozen."""

    name = "tuple"
    shown_name: ClassVar[str] = "tuple"
    is_frozen = True
    _elements: tuple[CqlType, ...]

    def __init__(self, elements: tuple[CqlType, ...]) -> None:
        super().__init__(f"frozen<tuple<{', '.join(kind.text for kind in elements)}>>")
        self._elements = elements

    @property
    def elements(self) -> tuple[CqlType, ...]:
        return self._elements

    def split(self, data: bytes) -> list[bytes | None]:
        """The serialised fields; fewer than `elements` when the tail is missing."""
        at, size = 0, len(data)
        parts: list[bytes | None] = []
        for index in range(len(self._elements)):
            if at == size:
                return parts
            if at + 4 > size:
                raise InvalidRequest(f"Not enough bytes to read size of {self._part(index)}")
            length = _unpack_int(data, at)[0]
            at += 4
            if length < 0:
                parts.append(None)
                continue
            if at + length > size:
                raise InvalidRequest(f"Not enough bytes to read {self._part(index)}")
            parts.append(data[at : at + length])
            at += length
        if at != size:
            raise InvalidRequest(f"Invalid remaining data after end of {self.shown_name} value")
        return parts

    def _part(self, index: int) -> str:
        """A part as messages name it."""
        return f"{index}th component"

    def join(self, parts: Iterable[bytes | None]) -> bytes:
        """Bytes of the tuple with these serialised fields."""
        return b"".join(_pack_int(-1) if part is None else _pack_int(len(part)) + part for part in parts)

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, tuple | list):
            raise mismatch(self, value)
        if len(value) > len(self._elements):
            raise InvalidRequest(
                f"Tuple value contained too many fields (expected {len(self._elements)}, got {len(value)})"
            )
        pairs = zip(value, self._elements, strict=False)
        return self.join(None if item is None else kind.serialize(item) for item, kind in pairs)

    def deserialize(self, data: bytes) -> tuple[object, ...]:
        parts = self.split(data)
        found = [None if p is None else k.deserialize(p) for p, k in zip(parts, self._elements, strict=False)]
        return tuple(found) + (None,) * (len(self._elements) - len(found))

    def validate(self, data: bytes) -> None:
        for part, kind in zip(self.split(data), self._elements, strict=False):
            if part is not None:
                kind.validate(part)

    def format(self, value: object) -> str:
        items = value if isinstance(value, tuple) else ()
        pairs = zip(items, self._elements, strict=False)
        return "(" + ", ".join("null" if v is None else k.format(v) for v, k in pairs) + ")"

    def canonical(self, data: bytes) -> bytes:
        if not data:
            return data
        parts = self.split(data)
        pairs = zip(parts, self._elements, strict=False)
        filled = [None if part is None else kind.canonical(part) for part, kind in pairs]
        return self.join(filled + [None] * (len(self._elements) - len(parts)))

    def completed(self, data: bytes) -> bytes:
        if not data:
            return data
        parts = self.split(data)
        parts += [None] * (len(self._elements) - len(parts))
        filled = (
            None if part is None else kind.completed(part)
            for part, kind in zip(parts, self._elements, strict=True)
        )
        return TupleType.join(self, filled)

    def sort_key(self, data: bytes) -> bytes:
        """0x02 + component for a field, 0x01 for null, then 0x00 where the data end."""
        out = []
        for part, kind in zip(self.split(data), self._elements, strict=False):
            out.append(b"\x01" if part is None else b"\x02" + kind.component(part))
        return b"".join(out) + b"\x00" if data else b""

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        at = 0
        parts: list[bytes | None] = []
        while key[at]:
            if len(parts) == len(self._elements):
                # A node that is behind may meet a field that was added since.
                raise InvalidRequest(f"Invalid remaining data after end of {self.shown_name} value")
            if key[at] == 1:
                parts.append(None)
                at += 1
            else:
                part, at = self._elements[len(parts)].take_component(key, at + 1)
                parts.append(part)
        return self.join(parts)


#: Types whose vectors carry no sizes: those that Cassandra declares to be of fixed length.
_UNPREFIXED = frozenset(("boolean", "int", "bigint", "float", "double", "timestamp", "uuid", "timeuuid"))


class VectorType(CqlType):
    """`dimensions` values of one type; Python lists. Elements are stored as they are given: sets and maps in
    them in any order, as in Cassandra, whose drivers count on it."""

    name = "vector"
    is_frozen = True
    empty_allowed = False

    def __init__(self, element: CqlType, dimensions: int) -> None:
        super().__init__(f"vector<{element.text}, {dimensions}>")
        assert dimensions > 0, "a vector has elements"
        self._element = element
        self.dimensions = dimensions
        self._size = element.fixed_bytes if element.name in _UNPREFIXED else None
        if element.name == "vector":
            assert isinstance(element, VectorType)
            self._size = element.total_bytes

    @property
    def element(self) -> CqlType:
        return self._element

    @property
    def total_bytes(self) -> int | None:
        """Length of every value, or None when elements differ in length."""
        return None if self._size is None else self._size * self.dimensions

    def split(self, data: bytes) -> list[bytes]:
        """The serialised elements, exactly `dimensions` of them."""
        if not data:
            raise InvalidRequest("Invalid empty vector value")
        size, at, parts = self._size, 0, []
        for _ in range(self.dimensions):
            length = size
            if length is None and at == len(data):
                raise InvalidRequest(f"Not enough bytes to read a {self.text}")
            if length is None:
                length, at = numbers.read_unsigned(data, at)
            if at + length > len(data):
                raise InvalidRequest(f"Not enough bytes to read a {self.text}")
            parts.append(data[at : at + length])
            at += length
        if at != len(data):
            raise InvalidRequest(f"Unexpected {len(data) - at} extraneous bytes after {self.text} value")
        return parts

    def join(self, parts: Iterable[bytes]) -> bytes:
        """Bytes of the vector with these serialised elements."""
        if self._size is not None:
            return b"".join(parts)
        return b"".join(numbers.write_unsigned(len(part)) + part for part in parts)

    def serialize(self, value: object) -> bytes:
        if not isinstance(value, list | tuple):
            raise mismatch(self, value)
        if len(value) != self.dimensions:
            raise InvalidRequest(f"Required {self.dimensions} elements, but saw {len(value)}")
        return self.join([self._element.serialize(item) for item in value])

    def deserialize(self, data: bytes) -> list[object]:
        return [self._element.deserialize(part) for part in self.split(data)]

    def validate(self, data: bytes) -> None:
        for part in self.split(data):
            self._element.validate(part)

    def format(self, value: object) -> str:
        items = value if isinstance(value, list | tuple) else []
        return "[" + ", ".join(self._element.format(item) for item in items) + "]"

    def completed(self, data: bytes) -> bytes:
        return self.join([self._element.completed(part) for part in self.split(data)])

    def sort_key(self, data: bytes) -> bytes:
        return b"".join([self._element.component(part) for part in self.split(data)]) if data else b""

    def from_sort_key(self, key: bytes) -> bytes:
        if not key:
            return b""
        at, parts = 0, []
        for _ in range(self.dimensions):
            part, at = self._element.take_component(key, at)
            parts.append(part)
        return self.join(parts)


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
        assert len(fields.names) == len(fields.types), "each field has its type"
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
        assert len(listed) <= len(self._elements), "a value has no field that its type has not"
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
