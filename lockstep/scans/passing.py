"""Which of many rows filters let through, by columns.

Invariant: what passes is what passes one by one (`BoundFilter.passes`). Equality is that of bytes for every
type; order is by numbers, by bytes where values sort as their bytes do, and one by one for all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lockstep.scans.gather import PADDING, Cells, Fixed, Raw, Varying, windows
from lockstep.scans.telling import BoundFilter
from lockstep.schema.types import CqlType

#: Of types whose values are whole numbers: what they are in memory.
NUMBERS: Final = {
    "tinyint": ">i1",
    "smallint": ">i2",
    "int": ">i4",
    "bigint": ">i8",
    "timestamp": ">i8",
    "time": ">i8",
    "date": ">u4",
}
#: Of types with fractions: their bits as numbers, and how far negative NaNs lie from the top in these.
_FRACTIONS: Final = {"float": (">u4", (1 << 23) - 1), "double": (">u8", (1 << 52) - 1)}
_WORDS: Final = (1, 2, 4, 8)
#: Values of different lengths that are looked for one after the other; of more of them each row is looked up.
_LISTED_MAX: Final = 16


def passing(filters: Sequence[BoundFilter], columns: Sequence[Raw | None], count: int) -> Any:
    """Which of so many rows no filter leaves out."""
    mask = np.ones(count, dtype=bool)
    for one, raw in zip(filters, columns, strict=True):
        if raw is None:
            mask[:] = False
            return mask
        found = _equal(one, raw) if one.alternatives is not None else _ordered(one, raw)
        if found is None:
            cells = raw.values if isinstance(raw, Cells) else raw.cells()
            found = np.fromiter(map(one.passes, cells), dtype=bool, count=len(cells))
        mask &= found
    return mask


def _equal(one: BoundFilter, raw: Raw) -> Any:
    """Which values are among the alternatives; None when that is to be found one by one."""
    wanted = one.alternatives
    assert wanted is not None, "values that are equal are given"
    if isinstance(raw, Fixed):
        width = raw.table.shape[1]
        fitting = [value for value in wanted if len(value) == width]
        if not fitting:
            return np.zeros(len(raw.table), dtype=bool)
        if width in _WORDS:
            words = np.frombuffer(b"".join(fitting), dtype=f"u{width}")
            found = np.ascontiguousarray(raw.table).view(f"u{width}")[:, 0]
            return found == words[0] if len(words) == 1 else np.isin(found, words)
        if len(fitting) > _LISTED_MAX:
            return None
        return _any(
            [(raw.table == np.frombuffer(value, "u1")).all(axis=1) for value in fitting], len(raw.table)
        )
    if (
        not isinstance(raw, Varying)
        or len(wanted) > _LISTED_MAX
        or max(map(len, wanted), default=0) > PADDING
    ):
        return None
    return _any([_same(raw, value) for value in wanted], len(raw.starts))


def _any(masks: Sequence[Any], count: int) -> Any:
    found = np.zeros(count, dtype=bool)
    for mask in masks:
        found |= mask
    return found


def _same(raw: Varying, value: bytes) -> Any:
    like = raw.lengths == len(value)
    if value and like.any():
        at = np.flatnonzero(like)
        like[at] = (windows(raw.octets, raw.starts[at], len(value)) == np.frombuffer(value, "u1")).all(axis=1)
    return like


def _ordered(one: BoundFilter, raw: Raw) -> Any:
    """Of which values the order to the wanted one is as it should be; None when that is to be found one by
    one."""
    value, kind = one.wanted.value, one.kind
    if isinstance(raw, Fixed) and raw.table.shape[1] == len(value):
        layout = NUMBERS.get(kind.text)
        if layout is not None:
            return one.compare(_viewed(raw, layout), np.frombuffer(value, dtype=layout)[0])
        fractions = _FRACTIONS.get(kind.text)
        if fractions is not None:
            layout, above = fractions
            target = _by_order(np.frombuffer(value, dtype=layout), above)[0]
            return one.compare(_by_order(_viewed(raw, layout), above), target)
    if type(kind).sort_key is not CqlType.sort_key or len(value) > PADDING:
        return None
    if isinstance(raw, Fixed) and raw.table.shape[1] == len(value):
        return one.compare(_signs(raw.table, np.full(len(raw.table), len(value)), value), 0)
    if isinstance(raw, Varying):
        table = windows(raw.octets, raw.starts, len(value)) if value else None
        return one.compare(_signs(table, raw.lengths, value), 0)
    return None


def _viewed(raw: Fixed, layout: str) -> Any:
    return np.ascontiguousarray(raw.table).view(layout)[:, 0]


def _by_order(bits: Any, above: int) -> Any:
    """Numbers that sort as fractions with these bits do, NaNs behind all others."""
    native = bits.astype(bits.dtype.newbyteorder("="))
    sign = native.dtype.type(1 << (8 * native.dtype.itemsize - 1))
    return np.where(native & sign, ~native, native | sign) - native.dtype.type(above)


def _signs(table: Any, lengths: Any, value: bytes) -> Any:
    """Of each value whether it comes before (-1) the wanted one, is it (0), or comes behind. `table`: as many
    bytes of each as the wanted one has, of which those behind its length are nothing."""
    behind = np.where(lengths > len(value), 1, 0)
    if not value:
        return behind
    wanted = np.frombuffer(value, "u1")
    differs = (table != wanted) | (np.arange(len(value)) >= lengths[:, None])
    place = differs.argmax(axis=1)
    rows = np.arange(len(place))
    is_more = (table[rows, place] > wanted[place]) & (place < lengths)
    return np.where(differs[rows, place], np.where(is_more, 1, -1), behind)
