"""The interface of a CQL type, and the byte-ordered component that every type's values turn into.

Owns: CqlType. Invariant: for all values a and b of one type, a sorts before b exactly when
`component(a) < component(b)` and when `sort_key(a) < sort_key(b)`; no component is a prefix of another
(not even before the bytes of a following component), and `take_component` gives back the exact bytes
of any value in canonical form (see `canonical`).
A zero-length value sorts before every other value.

A component is, for a type whose sort keys all have one length, 0x01 for the empty value and 0x02 + key
otherwise; for every other type it is the key with 0x00 escaped as 0x00 0xFF, ended by 0x00 0x01. The
last byte of a component is therefore never such that inverting it (descending order) leaves only 0xFF.
"""

from __future__ import annotations

from typing import ClassVar

from lockstep.values.errors import InvalidRequest

EMPTY_MARK = b"\x01"
VALUE_MARK = b"\x02"
_END = b"\x00\x01"


class CqlType:
    """One CQL type; immutable, compared by its canonical text.

    `text` is the canonical CQL name, `name` the outermost word of it (`list`, `int`). `fixed_bytes` is
    the length of every non-empty serialised value, or None. `empty_allowed` says whether a zero-length
    value is legal.
    """

    name: ClassVar[str] = ""
    fixed_bytes: ClassVar[int | None] = None
    empty_allowed: ClassVar[bool] = True
    is_collection: ClassVar[bool] = False
    is_frozen: bool = False
    is_multicell: bool = False

    def __init__(self, text: str) -> None:
        self.text = text

    def serialize(self, value: object) -> bytes:
        """Wire bytes of a Python value; raises InvalidRequest when it does not fit the type."""
        raise AssertionError(f"{self.text} does not define serialize")

    def deserialize(self, data: bytes) -> object:
        """The Python value of wire bytes; None for the empty value of a type other than text and blob."""
        raise AssertionError(f"{self.text} does not define deserialize")

    def validate(self, data: bytes) -> None:
        """Raises InvalidRequest unless `data` is a legal serialised value."""
        raise AssertionError(f"{self.text} does not define validate")

    def format(self, value: object) -> str:
        """The value as a CQL literal."""
        return str(value)

    def canonical(self, data: bytes) -> bytes:
        """The bytes that are stored for `data`: sets and maps sorted, short tuples filled with nulls."""
        return data

    def completed(self, data: bytes) -> bytes:
        """The bytes that clients get for stored ones: absent fields of user-defined types are null."""
        return data

    def sort_key(self, data: bytes) -> bytes:
        """Bytes whose order is the type's order; different data give different keys."""
        return data

    def from_sort_key(self, key: bytes) -> bytes:
        """The inverse of sort_key."""
        return key

    def component(self, data: bytes) -> bytes:
        """The self-delimiting, order-preserving form of one value (see the module docstring)."""
        if self.fixed_bytes is None:
            return self.sort_key(data).replace(b"\x00", b"\x00\xff") + _END
        return VALUE_MARK + self.sort_key(data) if data else EMPTY_MARK

    def take_component(self, encoded: bytes, at: int) -> tuple[bytes, int]:
        """(value bytes, offset behind it) of the component that starts at `at`."""
        if self.fixed_bytes is None:
            end = encoded.find(_END, at)
            assert end >= 0, f"component of {self.text} without an end"
            return self.from_sort_key(encoded[at:end].replace(b"\x00\xff", b"\x00")), end + 2
        if encoded[at] == 1:
            return b"", at + 1
        end = at + 1 + self.fixed_bytes
        assert encoded[at] == 2 and end <= len(encoded), f"damaged component of {self.text}"
        return self.from_sort_key(encoded[at + 1 : end]), end

    def component_end(self, encoded: bytes, at: int) -> int | None:
        """The offset behind the component that starts at `at`; None where none does."""
        if self.fixed_bytes is None:
            end = encoded.find(_END, at)
            return end + 2 if end >= 0 else None
        if encoded[at : at + 1] == EMPTY_MARK:
            return at + 1
        end = at + 1 + self.fixed_bytes
        return end if encoded[at : at + 1] == VALUE_MARK and end <= len(encoded) else None

    @property
    def element(self) -> CqlType:
        """Element type of a list, set or vector."""
        raise AssertionError(f"{self.text} has no element type")

    @property
    def key(self) -> CqlType:
        """Key type of a map."""
        raise AssertionError(f"{self.text} has no key type")

    @property
    def value(self) -> CqlType:
        """Value type of a map."""
        raise AssertionError(f"{self.text} has no value type")

    @property
    def elements(self) -> tuple[CqlType, ...]:
        """Field types of a tuple."""
        raise AssertionError(f"{self.text} has no fields")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CqlType) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"CqlType({self.text})"


def mismatch(kind: CqlType, value: object) -> InvalidRequest:
    """The error for a Python value that `kind` cannot hold."""
    return InvalidRequest(f"Unable to make {kind.text} from {value!r}")
