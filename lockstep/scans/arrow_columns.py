"""CQL types as Arrow's, and serialised values as Arrow arrays.

Invariant: an array has exactly the Arrow type of `arrow_type`, all fields nullable but the keys of maps,
which is what Spark compares; no value is rounded or cut: one that does not fit raises InvalidRequest and
names the way out. Fixed-size values are decoded by whole columns; nested ones column by column of their
parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lockstep.scans.gather import Cells as RawCells
from lockstep.scans.gather import Fixed, Raw, Varying, windows
from lockstep.schema.types import CollectionType, CqlType, MapType, TupleType, UserDefinedType, VectorType
from lockstep.values.errors import InvalidRequest

Cells: TypeAlias = Sequence[bytes | None]
#: From fixed-size values of one column (numpy) and which of them are present (None: all).
FixedDecoder: TypeAlias = Callable[[Any, Any], pa.Array]

DECIMAL_DIGITS: Final = 38
DECIMAL_SCALE_DEFAULT: Final = 18
_DECIMAL_LIMIT: Final = 10**DECIMAL_DIGITS
_DATE_EPOCH: Final = 1 << 31
_TIMESTAMP_MS_MAX: Final = ((1 << 63) - 1) // 1000

#: CQL name -> (Arrow type, numpy type of the wire bytes).
_FIXED: Final = {
    "tinyint": (pa.int8(), ">i1"),
    "smallint": (pa.int16(), ">i2"),
    "int": (pa.int32(), ">i4"),
    "bigint": (pa.int64(), ">i8"),
    "float": (pa.float32(), ">f4"),
    "double": (pa.float64(), ">f8"),
    "time": (pa.int64(), ">i8"),
    "timestamp": (pa.timestamp("us", tz="UTC"), ">i8"),
    "date": (pa.date32(), ">u4"),
    "boolean": (pa.bool_(), ">u1"),
    "uuid": (pa.string(), "V16"),
    "timeuuid": (pa.string(), "V16"),
}
#: What a view holds of a short value itself.
_INLINE: Final = 12
_VARIABLE: Final = {"text": pa.string(), "ascii": pa.string(), "blob": pa.binary(), "inet": pa.binary()}


def arrow_type(kind: CqlType, decimal_scale: int = DECIMAL_SCALE_DEFAULT) -> pa.DataType:
    """The Arrow type of a CQL type; InvalidRequest for counter and duration, which have none."""
    if kind.name in _FIXED:
        return _FIXED[kind.name][0]
    if kind.name in _VARIABLE:
        return _VARIABLE[kind.name]
    if kind.name in ("varint", "decimal"):
        return pa.decimal128(DECIMAL_DIGITS, decimal_scale if kind.name == "decimal" else 0)
    if isinstance(kind, MapType):
        key, value = arrow_type(kind.key, decimal_scale), arrow_type(kind.value, decimal_scale)
        return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))
    if isinstance(kind, CollectionType | VectorType):
        return pa.list_(pa.field("element", arrow_type(kind.element, decimal_scale)))
    if isinstance(kind, TupleType):
        names = tuple(f"_{index}" for index in range(1, len(kind.elements) + 1))
        if isinstance(kind, UserDefinedType):
            names = kind.field_names
        types = [arrow_type(element, decimal_scale) for element in kind.elements]
        return pa.struct([pa.field(name, one) for name, one in zip(names, types, strict=True)])
    raise InvalidRequest(f"{kind.text} has no Arrow type")


def wire_layout(kind: CqlType) -> str | None:
    """The numpy type of a fixed-size type's wire bytes, None for all others."""
    fixed = _FIXED.get(kind.name)
    return fixed[1] if fixed is not None else None


def decode_fixed(kind: CqlType, raw: Any, present: Any = None) -> pa.Array:
    """Array of a fixed-size type from its values as they lie on the wire (numpy, `wire_layout`)."""
    return _FIXED_DECODERS[kind.name](raw, present)


def decode_cells(kind: CqlType, cells: Cells, decimal_scale: int = DECIMAL_SCALE_DEFAULT) -> pa.Array:
    """Array of any type from serialised cells; None and the empty value of a fixed-size type are null."""
    layout = wire_layout(kind)
    if layout is not None:
        return _fixed_cells(kind, cells, np.dtype(layout))
    if kind.name in _VARIABLE:
        return pa.array(cells, pa.string() if kind.name in ("text", "ascii") else pa.binary())
    if kind.name in ("varint", "decimal"):
        return _decimals(kind, cells, decimal_scale)
    if isinstance(kind, MapType):
        return _maps(kind, cells, decimal_scale)
    if isinstance(kind, CollectionType | VectorType):
        return _lists(kind, cells, decimal_scale)
    assert isinstance(kind, TupleType), f"{kind.text} has no Spark type"
    return _tuples(kind, cells, decimal_scale)


def decode_raw(kind: CqlType, raw: Raw, decimal_scale: int = DECIMAL_SCALE_DEFAULT) -> pa.Array:
    """Array of any type from its values as they were found together; none of them is null."""
    layout = wire_layout(kind)
    if isinstance(raw, Fixed) and layout is not None:
        return decode_fixed(kind, np.ascontiguousarray(raw.table).view(layout)[:, 0])
    if isinstance(raw, Varying) and kind.name in _VARIABLE:
        return stretches(raw.octets, raw.starts, raw.lengths, _VARIABLE[kind.name])
    if isinstance(raw, RawCells):
        return decode_cells(kind, raw.values, decimal_scale)
    return decode_cells(kind, raw.cells(), decimal_scale)


def stretches(octets: Any, starts: Any, lengths: Any, arrow: pa.DataType) -> pa.Array:
    """An array of binary or string values. The values of a string are checked to be UTF-8."""
    count = len(starts)
    views = np.empty((count, 4), dtype="i4")
    views[:, 0] = lengths
    short = lengths <= _INLINE
    if not short.all():
        views[:, 1] = windows(octets, starts, 4).view("i4")[:, 0]
        views[:, 2] = 0
        views[:, 3] = starts
    if short.any():
        head = windows(octets, starts, _INLINE)
        head[np.arange(_INLINE) >= lengths[:, None]] = 0
        views[short, 1:] = head.view("i4")[short]
    buffers = [None, pa.py_buffer(views), pa.py_buffer(octets)]
    found = pc.cast(pa.Array.from_buffers(pa.binary_view(), count, buffers), pa.binary())
    return found if arrow == pa.binary() else found.cast(arrow)


def _fixed_cells(kind: CqlType, cells: Cells, layout: Any) -> pa.Array:
    width = layout.itemsize
    blank = bytes(width)
    joined = b"".join([cell or blank for cell in cells])
    if len(joined) != width * len(cells):
        raise InvalidRequest(f"a value of type {kind.text} does not have {width} bytes")
    present = None
    if not all(cells):
        present = np.fromiter((bool(cell) for cell in cells), dtype=bool, count=len(cells))
    return decode_fixed(kind, np.frombuffer(joined, dtype=layout), present)


def _number(native: str, arrow: pa.DataType) -> FixedDecoder:
    def decode(raw: Any, present: Any) -> pa.Array:
        return pa.array(raw.astype(native), arrow, mask=None if present is None else ~present)

    return decode


def _timestamps(raw: Any, present: Any) -> pa.Array:
    ms = raw.astype("i8")
    if len(ms) and (ms.max() > _TIMESTAMP_MS_MAX or ms.min() < -_TIMESTAMP_MS_MAX):
        raise InvalidRequest("a timestamp is outside Spark's range; leave its column out with `columns`")
    mask = None if present is None else ~present
    return pa.array(ms * 1000, pa.int64(), mask=mask).view(pa.timestamp("us", tz="UTC"))


def _dates(raw: Any, present: Any) -> pa.Array:
    days = (raw.astype("i8") - _DATE_EPOCH).astype("i4")
    return pa.array(days, pa.int32(), mask=None if present is None else ~present).view(pa.date32())


def _booleans(raw: Any, present: Any) -> pa.Array:
    return pa.array(raw != 0, pa.bool_(), mask=None if present is None else ~present)


_HEX: Final = np.array([list(f"{byte:02x}".encode()) for byte in range(256)], dtype="u1")
_UUID_CHARACTERS: Final = 36
_UUID_DIGITS_AT: Final = np.array([at for at in range(_UUID_CHARACTERS) if at not in (8, 13, 18, 23)])


def _uuids(raw: Any, present: Any) -> pa.Array:
    count = len(raw)
    octets = np.frombuffer(raw.tobytes(), dtype="u1").reshape(count, 16)
    text = np.full((count, _UUID_CHARACTERS), ord("-"), dtype="u1")
    text[:, _UUID_DIGITS_AT] = _HEX[octets].reshape(count, 32)
    offsets = np.arange(count + 1, dtype="i4") * _UUID_CHARACTERS
    bitmap = None
    if present is not None:
        bitmap = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(text), bitmap)


_FIXED_DECODERS: Final[dict[str, FixedDecoder]] = {
    "tinyint": _number("i1", pa.int8()),
    "smallint": _number("i2", pa.int16()),
    "int": _number("i4", pa.int32()),
    "bigint": _number("i8", pa.int64()),
    "float": _number("f4", pa.float32()),
    "double": _number("f8", pa.float64()),
    "time": _number("i8", pa.int64()),
    "timestamp": _timestamps,
    "date": _dates,
    "boolean": _booleans,
    "uuid": _uuids,
    "timeuuid": _uuids,
}


def _decimals(kind: CqlType, cells: Cells, scale: int) -> pa.Array:
    """decimal128 takes 16 little-endian bytes of the unscaled number."""
    numbers = [_unscaled(kind, cell, scale) if cell else 0 for cell in cells]
    data = b"".join([number.to_bytes(16, "little", signed=True) for number in numbers])
    bitmap = None
    if not all(cells):
        present = np.fromiter((bool(cell) for cell in cells), dtype=bool, count=len(cells))
        bitmap = pa.py_buffer(np.packbits(present, bitorder="little").tobytes())
    arrow = pa.decimal128(DECIMAL_DIGITS, scale if kind.name == "decimal" else 0)
    return pa.Array.from_buffers(arrow, len(cells), [bitmap, pa.py_buffer(data)])


def _unscaled(kind: CqlType, cell: bytes, scale: int) -> int:
    if kind.name == "varint":
        number, shift = int.from_bytes(cell, "big", signed=True), 0
    else:
        number = int.from_bytes(cell[4:], "big", signed=True)
        shift = scale - int.from_bytes(cell[:4], "big", signed=True)
    if shift > DECIMAL_DIGITS and number:
        raise _does_not_fit(kind, scale)
    if shift >= 0:
        number *= 10 ** min(shift, DECIMAL_DIGITS)
    elif number:
        # A number of n digits has fewer than n factors of ten, so a larger shift cannot be exact.
        number, rest = divmod(number, 10 ** min(-shift, len(cell) * 3))
        if rest:
            raise _does_not_fit(kind, scale)
    if not -_DECIMAL_LIMIT < number < _DECIMAL_LIMIT:
        raise _does_not_fit(kind, scale)
    return number


def _does_not_fit(kind: CqlType, scale: int) -> InvalidRequest:
    digits = scale if kind.name == "decimal" else 0
    return InvalidRequest(
        f"a {kind.name} value does not fit Spark's decimal({DECIMAL_DIGITS},{digits}) exactly",
        hint="set the option decimalScale, or leave the column out with the option columns",
    )


def _offsets(counts: Sequence[int | None]) -> pa.Array:
    """List offsets from part counts: a null entry has None at its start."""
    ends = np.zeros(len(counts) + 1, dtype="i4")
    np.cumsum([count or 0 for count in counts], out=ends[1:])
    absent = np.fromiter((count is None for count in [*counts, 0]), dtype=bool, count=len(ends))
    return pa.array(ends, pa.int32(), mask=absent if absent.any() else None)


def _lists(kind: CollectionType | VectorType, cells: Cells, scale: int) -> pa.Array:
    split = [None if cell is None else kind.split(cell) for cell in cells]
    parts: list[bytes | None] = [part for entry in split if entry for part in entry]
    offsets = _offsets([None if entry is None else len(entry) for entry in split])
    values = decode_cells(kind.element, parts, scale)
    return pa.ListArray.from_arrays(offsets, values, type=arrow_type(kind, scale))


def _maps(kind: MapType, cells: Cells, scale: int) -> pa.Array:
    split = [None if cell is None else kind.split(cell) for cell in cells]
    parts: list[bytes | None] = [part for entry in split if entry for part in entry]
    offsets = _offsets([None if entry is None else len(entry) // 2 for entry in split])
    keys = decode_cells(kind.key, parts[0::2], scale)
    values = decode_cells(kind.value, parts[1::2], scale)
    return pa.MapArray.from_arrays(offsets, keys, values, type=arrow_type(kind, scale))


def _tuples(kind: TupleType, cells: Cells, scale: int) -> pa.Array:
    fields = len(kind.elements)
    blank: list[bytes | None] = [None] * fields
    rows = [blank if cell is None else (kind.split(cell) + blank)[:fields] for cell in cells]
    arrays = [
        decode_cells(element, [row[index] for row in rows], scale)
        for index, element in enumerate(kind.elements)
    ]
    absent = pa.array([cell is None for cell in cells], pa.bool_())
    return pa.StructArray.from_arrays(arrays, fields=list(arrow_type(kind, scale)), mask=absent)
