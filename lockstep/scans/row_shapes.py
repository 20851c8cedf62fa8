"""The form that stored rows share: which bytes of a fragment are the same in all, and where values are.

A shape is made from one fragment and then looked for in many: a fragment has it when all bytes but those of
values and times are equal. Invariant: a fragment that has a shape is a row by itself whose cells have not
expired and do not lie under a deletion of the row, and what is found in it is what decoding it gives. A
fragment that has none is decoded alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
import numpy as np

from lockstep.scans.gather import PADDING, Fixed, Joined, Raw, Varying, windows

#: First bytes of MessagePack values: arrays, nothing, numbers of so many bytes behind, and bytes.
_NONE: Final = 0xC0
_ARRAY, _ARRAY_MANY, _ARRAY_LONG = 0x90, 0x0F, 0xDC
_NUMBERS: Final = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_BYTES: Final = {0xC4: 1, 0xC5: 2, 0xC6: 4}
_SMALL: Final = 0x80
#: A second of these years is a number of so many bytes.
_SECOND: Final = 0xCE
_SECOND_BYTES: Final = _NUMBERS[_SECOND]
#: Stretches are compared in words of so many bytes.
_WORD: Final = 8
#: Forms that are made from one portion, and kept: rows beyond them are merged one by one, and so are the rest
#: once so many new forms had fewer rows than finding them is worth.
_MADE_MAX: Final = 64
_KEPT_MAX: Final = 64
_THIN_MAX: Final = 4
_THIN_ROWS: Final = 16


class NoShape(Exception):
    """The fragment is to be decoded alone."""


class _Stretch:
    """Bytes of one length in all fragments of a shape; `fields` are (column, place, width) of values in it,
    and `then` is the column of the value of varying length behind it, if one is."""

    def __init__(self) -> None:
        self.bytes = bytearray()
        self.compared = bytearray()
        self.fields: list[tuple[int, int, int]] = []
        #: Places of the seconds at which something of the row expires.
        self.ends: list[int] = []
        self.then: int | None = None

    def put(self, data: bytes, *, compared: bool = True) -> None:
        self.bytes += data
        self.compared += (b"\xff" if compared else b"\x00") * len(data)

    def close(self) -> None:
        self.size = len(self.bytes)
        if self.size > PADDING - _WORD:
            raise NoShape
        self.padded = -(-self.size // _WORD) * _WORD
        masks = np.frombuffer(self.compared.ljust(self.padded, b"\x00"), dtype="u8")
        wanted = np.frombuffer(self.bytes.ljust(self.padded, b"\x00"), dtype="u8") & masks
        self._words = [(at, masks[at], wanted[at]) for at in range(len(masks)) if masks[at]]

    def equal(self, table: Any) -> Any:
        """Which rows of a table of `padded` bytes have these bytes."""
        words = table.view("u8")
        differs = np.zeros(len(table), dtype="u8")
        for at, mask, wanted in self._words:
            differs |= (words[:, at] & mask) ^ wanted
        return differs == 0

    def lives(self, table: Any, now_s: int) -> Any:
        """In which rows of the table nothing has expired."""
        good = np.ones(len(table), dtype=bool)
        for place in self.ends:
            seconds = np.ascontiguousarray(table[:, place : place + _SECOND_BYTES]).view(">u4")[:, 0]
            good &= seconds > now_s
        return good


class Found:
    """Values in fragments of one shape: tables of bytes by column for those of fixed width, and (starts,
    lengths) for others. A column in neither is null."""

    def __init__(self, octets: Any) -> None:
        self._octets = octets
        self.fixed: dict[int, Any] = {}
        self.varying: dict[int, tuple[Any, Any]] = {}

    def column(self, column: int, good: Any) -> Raw | None:
        """The values of a column in the fragments that are `good` (None: all); None when they are null."""
        table = self.fixed.get(column)
        if table is not None:
            return Fixed(table if good is None else table[good])
        places = self.varying.get(column)
        if places is None:
            return None
        starts, lengths = places if good is None else (one[good] for one in places)
        return Varying(self._octets, starts, lengths)


class ShapeRules(msgspec.Struct, frozen=True):
    """`widths`: of the columns whose values have one length. A row without a marker exists by a cell of a
    column that is not `gone`. Cells of columns that are `dated` may be dead by their time. `now_s`: as of
    which second rows are looked at; None: what may expire has no shape."""

    widths: dict[int, int]
    gone: frozenset[int]
    dated: frozenset[int]
    now_s: int | None = None


class RowShape:
    """That of one fragment. NoShape when it can be no model."""

    def __init__(self, fragment: bytes, rules: ShapeRules) -> None:
        self._fragment = fragment
        self._rules = rules
        self._at = 0
        self._stretches = [_Stretch()]
        #: Cells of a row that are deleted.
        self.dead = 0
        try:
            exists = self._row()
        except IndexError:
            raise NoShape from None
        if not exists or self._at != len(fragment):
            raise NoShape
        for one in self._stretches:
            one.close()
        #: Whether something of such a row has an end.
        self.expires = any(one.ends for one in self._stretches)

    # -- the model ------------------------------------------------------------------------------------

    def _row(self) -> bool:
        self._expect(_ARRAY + 4)
        exists = False
        if self._fragment[self._at] == _NONE:
            self._expect(_NONE)
        else:
            exists = True
            self._expect(_ARRAY + 3)
            self._number()
            self._expiry()
        self._expect(_NONE)
        for _ in range(self._count()):
            exists = self._cell() or exists
        self._expect(_ARRAY)
        return exists

    def _cell(self) -> bool:
        """Whether the row exists by this cell."""
        self._expect(_ARRAY + 6)
        column = self._constant()
        if column in self._rules.dated:
            raise NoShape
        is_value = self._fragment[self._at] != _NONE
        if is_value:
            self._value(column)
        else:
            self._expect(_NONE)
            self.dead += 1
        self._number()
        if is_value:
            self._expiry()
        else:
            self._expect(0)
            self._number()
        self._expect(_NONE)
        return is_value and column not in self._rules.gone

    def _expiry(self) -> None:
        """A time to live, and the second at which it ends; nothing of both, or one that has not ended."""
        now_s = self._rules.now_s
        if not self._fragment[self._at] or now_s is None:
            self._expect(0)
            self._expect(0)
            return
        self._number()
        self._expect(_SECOND)
        last = self._stretches[-1]
        last.ends.append(len(last.bytes))
        at = self._at
        self._take(_SECOND_BYTES, compared=False)
        if int.from_bytes(self._fragment[at : self._at], "big") <= now_s:
            raise NoShape

    def _value(self, column: int) -> None:
        width = self._rules.widths.get(column)
        kind = self._fragment[self._at]
        if kind not in _BYTES:
            raise NoShape
        size = int.from_bytes(self._fragment[self._at + 1 : self._at + 1 + _BYTES[kind]], "big")
        if width is None:
            self._stretches[-1].then = column
            self._stretches.append(_Stretch())
            self._at += 1 + _BYTES[kind] + size
            return
        if size != width or kind != min(_BYTES):
            raise NoShape
        self._take(2)
        last = self._stretches[-1]
        last.fields.append((column, len(last.bytes), width))
        self._take(width, compared=False)

    def _take(self, count: int, *, compared: bool = True) -> None:
        data = self._fragment[self._at : self._at + count]
        if len(data) != count:
            raise NoShape
        self._stretches[-1].put(data, compared=compared)
        self._at += count

    def _expect(self, octet: int) -> None:
        if self._fragment[self._at] != octet:
            raise NoShape
        self._take(1)

    def _number(self) -> None:
        """A number of which only the width is the same."""
        kind = self._fragment[self._at]
        self._take(1)
        if kind >= _SMALL:
            if kind not in _NUMBERS:
                raise NoShape
            self._take(_NUMBERS[kind], compared=False)

    def _constant(self) -> int:
        kind = self._fragment[self._at]
        self._take(1)
        if kind < _SMALL:
            return kind
        if kind not in (0xCC, 0xCD, 0xCE):
            raise NoShape
        at = self._at
        self._take(_NUMBERS[kind])
        return int.from_bytes(self._fragment[at : self._at], "big")

    def _count(self) -> int:
        kind = self._fragment[self._at]
        self._take(1)
        if kind == _ARRAY_LONG:
            at = self._at
            self._take(2)
            return int.from_bytes(self._fragment[at : self._at], "big")
        if kind & ~_ARRAY_MANY != _ARRAY:
            raise NoShape
        return kind & _ARRAY_MANY

    # -- the others -----------------------------------------------------------------------------------

    def match(self, octets: Any, starts: Any, ends: Any) -> tuple[Any, Found]:
        """(which of the fragments have the shape, what is in all; nonsense in those that have not)."""
        at, good, found = starts, np.ones(len(starts), dtype=bool), Found(octets)
        for stretch in self._stretches:
            behind = at + stretch.size
            good &= behind <= ends
            if not good.all():
                at = np.where(good, at, 0)
                behind = at + stretch.size
            table = windows(octets, at, stretch.padded)
            good &= stretch.equal(table)
            if stretch.ends:
                assert self._rules.now_s is not None, "what expires does so by a clock"
                good &= stretch.lives(table, self._rules.now_s)
            for column, place, width in stretch.fields:
                found.fixed[column] = table[:, place : place + width]
            at = behind
            if stretch.then is not None:
                at, lengths = self._varying(octets, at, good)
                found.varying[stretch.then] = (at, lengths)
                at = at + lengths
        return good & (at == ends), found

    @staticmethod
    def _varying(octets: Any, at: Any, good: Any) -> tuple[Any, Any]:
        """(starts, lengths) of values whose heads are there; `good` loses those that have none."""
        at = np.where(good, at, 0)
        kinds = octets[at]
        if (kinds == 0xC4).all():
            return at + 2, octets[at + 1].astype("i8")
        heads = windows(octets, at, 5)
        lengths = np.zeros(len(at), dtype="i8")
        widths = np.zeros(len(at), dtype="i8")
        for kind, width in _BYTES.items():
            of_kind = kinds == kind
            widths[of_kind] = 1 + width
            for place in range(1, 1 + width):
                lengths[of_kind] = lengths[of_kind] * 256 + heads[of_kind, place]
        good &= widths > 0
        return at + widths, lengths


class Alike(msgspec.Struct, frozen=True):
    """Fragments of one form. `rows`: their numbers; `good`: which of the fragments that were looked at last
    these are, None for all."""

    shape: RowShape
    rows: Any
    good: Any
    found: Found

    def column(self, column: int) -> Raw | None:
        """Of these rows; None when it is null in all."""
        return self.found.column(column, self.good)


class Shapes:
    """The forms that one reader has met lately."""

    def __init__(self, rules: ShapeRules) -> None:
        self._rules = rules
        self._known: list[RowShape] = []

    def sorted_out(self, joined: Joined, left: Any) -> Iterator[Alike]:
        """The fragments numbered by `left` by their forms; some may be of none that is worth while."""
        made = thin = 0
        known = list(self._known)
        while len(left):
            if known:
                shape = known.pop(0)
            elif made < _MADE_MAX and thin < _THIN_MAX:
                made, thin = made + 1, thin + 1
                try:
                    shape = RowShape(joined.value(int(left[0])), self._rules)
                except NoShape:
                    left = left[1:]
                    continue
                self._known = [shape, *self._known][:_KEPT_MAX]
            else:
                return
            is_all = len(left) == len(joined.starts)
            starts, ends = joined.starts, joined.ends
            good, found = shape.match(
                joined.octets, starts if is_all else starts[left], ends if is_all else ends[left]
            )
            if good.all():
                yield Alike(shape, left, None, found)
                return
            if good.any():
                yield Alike(shape, left[good], good, found)
                thin = 0 if good.sum() >= _THIN_ROWS else thin
                left = left[~good]
