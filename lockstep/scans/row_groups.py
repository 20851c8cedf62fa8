"""Runs of rows of one group among many rows that are looked at together.

Invariant: a segment has rows of one run and one form only, in their order, and what is made of it is what
folding its rows one by one gives.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np

from lockstep.scans.gather import Cells, Fixed, Raw
from lockstep.scans.passing import NUMBERS
from lockstep.scans.telling import FoldedValues
from lockstep.values.outlines import Outline

#: Sums of numbers of 64 bits are taken in halves, which cannot overflow.
_HALF: Final = 32


class Part(msgspec.Struct, frozen=True):
    """Values of one aggregate: `cells`, or how many there are and what `FoldedValues.add` is told of them."""

    count: int = 0
    total: int = 0
    candidates: tuple[bytes, ...] = ()
    cells: Sequence[bytes | None] | None = None

    def into(self, one: FoldedValues) -> None:
        if self.cells is not None:
            one.add_cells(self.cells)
        else:
            one.add(self.count, self.total, self.candidates)


class Segment(msgspec.Struct, frozen=True):
    """`run`: the number of the group; `first`, `last`: fragments of its first and last rows; `packed`: what
    is told of the first one, if a group begins with it."""

    run: int
    first: int
    last: int
    count: int
    parts: tuple[Part, ...]
    packed: bytes


def bounds_of(rows: Any, runs: Any) -> tuple[Any, Any]:
    """(where segments begin, behind where they end) among some rows of these runs, in their order."""
    of_rows = runs[rows]
    starts = np.flatnonzero(np.concatenate(([True], of_rows[1:] != of_rows[:-1])))
    return starts, np.append(starts[1:], len(rows))


def segments(
    outline: Outline,
    rows: Any,
    runs: Any,
    bounds: tuple[Any, Any],
    columns: Sequence[Raw | None],
    packed: Sequence[bytes],
) -> list[Segment]:
    """Of rows that show. `columns`: of the aggregates, in their order; `packed`: of the first rows."""
    starts, ends = bounds
    counts = (ends - starts).tolist()
    by_fold: list[list[Part]] = []
    at = 0
    for fold in outline.folds:
        if fold.column is None:
            by_fold.append([Part(count) for count in counts])
            continue
        raw = columns[at]
        at += 1
        if raw is None:
            by_fold.append([Part()] * len(counts))
        else:
            by_fold.append(_parts(fold.name, fold.column.type, raw, starts, ends))
    parts = zip(*by_fold, strict=True) if by_fold else iter([()] * len(counts))
    fields = (runs[rows[starts]].tolist(), rows[starts].tolist(), rows[ends - 1].tolist(), counts)
    return [Segment(*found) for found in zip(*fields, parts, packed, strict=True)]


def _parts(name: str, type_text: str, raw: Raw, starts: Any, ends: Any) -> list[Part]:
    """Of each segment."""
    counts = (ends - starts).tolist()
    if name == "count" and not isinstance(raw, Cells):
        return [Part(count) for count in counts]
    layout = NUMBERS.get(type_text)
    if layout is None or not isinstance(raw, Fixed) or raw.table.shape[1] != np.dtype(layout).itemsize:
        cells = raw.values if isinstance(raw, Cells) else raw.cells()
        return [
            Part(cells=cells[first:end]) for first, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
    numbers = np.ascontiguousarray(raw.table).view(layout)[:, 0]
    if name in ("sum", "avg"):
        wide = numbers.astype("i8")
        high = np.add.reduceat(wide >> _HALF, starts).tolist()
        low = np.add.reduceat(wide & ((1 << _HALF) - 1), starts).tolist()
        return [
            Part(count, (above << _HALF) + below)
            for count, above, below in zip(counts, high, low, strict=True)
        ]
    native = numbers.astype(numbers.dtype.newbyteorder("="))
    extreme = np.minimum if name == "min" else np.maximum
    data, width = extreme.reduceat(native, starts).astype(layout).tobytes(), raw.table.shape[1]
    return [Part(count, 0, (data[at * width : (at + 1) * width],)) for at, count in enumerate(counts)]
