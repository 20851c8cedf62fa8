"""The key columns of many rows from the keys under which they are stored.

Invariant: a column's values are as decoding each key alone gives them, in the rows that `good` says; rows
whose keys are of another form (an empty value, a zero inside a text) are left to be decoded alone.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lockstep.scans.gather import PADDING, Cells, Fixed, Joined, Raw, Varying, cells_at, repeats, windows
from lockstep.schema.types import CqlType
from lockstep.schema.types.base import VALUE_MARK
from lockstep.schema.types.numbers import FixedInteger
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair

_KEY: Final = operator.itemgetter(0)
#: Of a row's key: without what is before its partition key, and what is behind its clustering.
_PLACE: Final = operator.itemgetter(slice(keys.PLACE_BYTES, -keys.ROW_TAIL_BYTES))
_ESCAPE: Final = 0xFF
_TURNED: Final = bytes(range(255, -1, -1))
_SIGN: Final = 0x80
_STRAIGHT: Final = ("text", "ascii", "blob", "inet")
#: Where a timeuuid's bytes are in what it sorts by, and which of these have their first bit turned.
_TIMEUUID_PLACES: Final = (4, 5, 6, 7, 2, 3, 0, 1, 8, 9, 10, 11, 12, 13, 14, 15)
_TIMEUUID_TURNED: Final = 8


class RowKeys:
    """Keys of fragments. `joined` is of each key what names its place within the table, equal for the
    fragments of one row. `are_rows` says which belong to rows, not to whole partitions."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.joined = joined = Joined(list(map(_PLACE, map(_KEY, pairs))))
        octets, starts, ends = joined.octets, joined.starts, joined.ends
        zeros = np.flatnonzero(octets[: ends[-1]] == 0)
        is_escape = octets[zeros + 1] == _ESCAPE
        marks, escapes = zeros[~is_escape], zeros[is_escape]
        # A row's body has one zero that is not escaped: the end of its partition key.
        if len(marks) == len(starts) and (marks >= starts).all() and (marks < ends).all():
            self.are_rows = np.ones(len(starts), dtype=bool)
        else:
            self.are_rows = np.searchsorted(marks, ends) - np.searchsorted(marks, starts) == 1
        self._octets, self._starts, self._ends = octets, starts, ends
        self._marks, self._escapes = marks, escapes

    def places(self) -> list[bytes]:
        """`joined` taken apart."""
        joined = self.joined
        return cells_at(joined.octets, joined.starts, joined.lengths)

    def unescaped(self) -> Unescaped:
        """Only where all are rows."""
        assert self.are_rows.all(), "keys of rows"
        octets, starts, marks, ends = self._octets, self._starts, self._marks, self._ends
        escapes = self._escapes
        if len(escapes):
            octets = np.delete(octets, escapes + 1)
            # What is escaped is behind its zero, so nothing that is gone lies at a place itself.
            starts, marks, ends = (at - np.searchsorted(escapes, at) for at in (starts, marks, ends))
        return Unescaped(octets, starts, marks, marks + 2, ends)


class Unescaped:
    """Partition keys are `octets[key_starts:key_ends]` and clusterings `octets[starts:ends]`."""

    def __init__(self, octets: Any, key_starts: Any, key_ends: Any, starts: Any, ends: Any) -> None:
        self.good = np.ones(len(starts), dtype=bool)
        self._octets = octets
        self._keys = (key_starts, key_ends)
        self._clusterings = (starts, ends)

    def partition_key(self, kinds: Sequence[CqlType], wanted: set[int]) -> dict[int, Raw]:
        """Values of the wanted positions."""
        at, end = self._keys
        if len(kinds) == 1:
            return {0: self._value(kinds[0], at, end - at)} if 0 in wanted else {}
        found: dict[int, Raw] = {}
        for position, kind in enumerate(kinds):
            lengths = windows(self._octets, at, 2).view(">u2")[:, 0].astype("i8")
            if position in wanted:
                found[position] = self._value(kind, at + 2, lengths)
            at = at + 3 + lengths
        return found

    def _value(self, kind: CqlType, starts: Any, lengths: Any) -> Raw:
        width = kind.fixed_bytes
        if width is None or width > PADDING:
            return Varying(self._octets, starts, lengths)
        self.good &= lengths == width
        return Fixed(windows(self._octets, starts, width))

    def clustering(
        self, kinds: Sequence[CqlType], descending: Sequence[bool], wanted: set[int]
    ) -> dict[int, Raw]:
        """Values of the wanted positions."""
        at, end = self._clusterings
        turned = 255 - self._octets if any(descending) else self._octets
        found: dict[int, Raw] = {}
        last = 1 + max(sorted(wanted), default=-1)
        for position, kind in enumerate(kinds):
            if position >= last:
                return found
            octets = turned if descending[position] else self._octets
            # What is no longer good is read somewhere, and thrown away.
            self.good &= at < end
            at = np.where(self.good, at, 0)
            if kind.fixed_bytes is not None and kind.fixed_bytes <= PADDING:
                self.good &= octets[at] == VALUE_MARK[0]
                behind = at + 1 + kind.fixed_bytes
                if position in wanted:
                    found[position] = _fixed(kind, windows(octets, at + 1, kind.fixed_bytes))
            elif kind.name in _STRAIGHT:
                behind = _end_of(octets, at, self.good)
                if position in wanted:
                    found[position] = Varying(octets, at, behind - 2 - at)
            else:
                cells, behind = _one_by_one(kind, octets, at, self.good)
                if position in wanted:
                    found[position] = Cells(cells)
            at = behind
        self.good &= at == end
        return found

    def prefixes(self, kinds: Sequence[CqlType], descending: Sequence[bool], depth: int) -> tuple[Any, Any]:
        """(starts, lengths) of what rows of one group have in common: the partition key and the first `depth`
        clustering columns, whatever their values are."""
        first, end = self._clusterings
        if not depth:
            return self._keys[0], self._keys[1] - self._keys[0]
        at, good = first, np.ones(len(first), dtype=bool)
        turned = 255 - self._octets if any(descending[:depth]) else self._octets
        for kind, descends in zip(kinds[:depth], descending, strict=False):
            octets = turned if descends else self._octets
            good &= at < end
            at = np.where(good, at, 0)
            if kind.fixed_bytes is None:
                at = _end_of(octets, at, good)
            else:
                good &= octets[at] == VALUE_MARK[0]
                at = at + 1 + kind.fixed_bytes
        good &= at <= end
        for row in np.flatnonzero(~good).tolist():
            data = self._octets[first[row] : end[row]].tobytes()
            at[row] = first[row] + _prefix_end(data, kinds[:depth], descending)
        return self._keys[0], at - self._keys[0]

    def runs(self, kinds: Sequence[CqlType], descending: Sequence[bool], depth: int) -> Any:
        """Numbers, ascending, of the groups that the rows are of."""
        starts, lengths = self.prefixes(kinds, descending, depth)
        like = repeats(self._octets, starts, lengths)[:-1]
        # Of keys of different lengths one with its clustering may read as the other with its own.
        of_keys = self._keys[1] - starts
        like[1:] &= of_keys[1:] == of_keys[:-1]
        return np.cumsum(~like)


def _end_of(octets: Any, at: Any, good: Any) -> Any:
    """Behind the components that begin there; those with a zero inside are not good."""
    zeros = np.flatnonzero(octets == 0)
    if not len(zeros):
        good[:] = False
        return at + 2
    ends = zeros[np.minimum(np.searchsorted(zeros, at), len(zeros) - 1)]
    ends = np.minimum(ends, len(octets) - 2)
    good &= (octets[ends + 1] == 1) & (ends >= at)
    return np.where(good, ends, at) + 2


def _prefix_end(data: bytes, kinds: Sequence[CqlType], descending: Sequence[bool]) -> int:
    turned, at = data.translate(_TURNED), 0
    for kind, descends in zip(kinds, descending, strict=False):
        end = kind.component_end(turned if descends else data, at)
        assert end is not None, "a stored clustering has all its columns"
        at = end
    return at


def _fixed(kind: CqlType, table: Any) -> Raw:
    """From what values sort by, a row of bytes each."""
    if kind.name == "timeuuid":
        table = table[:, _TIMEUUID_PLACES]
        table[:, _TIMEUUID_TURNED:] ^= _SIGN
    elif isinstance(kind, FixedInteger):
        table[:, 0] ^= _SIGN
    elif type(kind).from_sort_key is not CqlType.from_sort_key:
        return Cells([kind.from_sort_key(row.tobytes()) for row in table])
    return Fixed(table)


def _one_by_one(kind: CqlType, octets: Any, at: Any, good: Any) -> tuple[list[bytes | None], Any]:
    data, behind, cells = octets.tobytes(), at.copy(), []
    for row in range(len(at)):
        value: bytes | None = None
        if good[row]:
            value, behind[row] = kind.take_component(data, int(at[row]))
        cells.append(value)
    return cells, behind
