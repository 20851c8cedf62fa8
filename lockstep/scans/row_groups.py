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
from lockstep.scans.telling import FoldedValues, folded, summed
from lockstep.values.outlines import Fold, Folds, Outline, OutlineFold

#: Sums of numbers of 64 bits are taken in halves, which cannot overflow.
_HALF: Final = 32


class Segment(msgspec.Struct, frozen=True):
    """`run`: the number of the group; `first`, `last`: fragments of its first and last rows; `packed`: what
    is told of the first one, if a group begins with it."""

    run: int
    first: int
    last: int
    count: int
    folds: Folds
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
    by_fold: list[list[Fold]] = []
    at = 0
    for fold in outline.folds:
        if fold.column is None:
            by_fold.append([(count, None) for count in counts])
            continue
        raw = columns[at]
        at += 1
        if raw is None:
            by_fold.append([FoldedValues(fold).told()] * len(counts))
        else:
            by_fold.append(folds_of(fold, raw, starts, ends))
    folds = zip(*by_fold, strict=True) if by_fold else iter([()] * len(counts))
    fields = (runs[rows[starts]].tolist(), rows[starts].tolist(), rows[ends - 1].tolist(), counts)
    return [Segment(*found) for found in zip(*fields, folds, packed, strict=True)]


def folds_of(fold: OutlineFold, raw: Raw, starts: Any, ends: Any) -> list[Fold]:
    """What one aggregate makes of the values of each segment."""
    counts = (ends - starts).tolist()
    if fold.name == "count" and not isinstance(raw, Cells):
        return [(count, None) for count in counts]
    assert fold.column is not None, "values are of a column"
    layout = NUMBERS.get(fold.column.type)
    if layout is None or not isinstance(raw, Fixed) or raw.table.shape[1] != np.dtype(layout).itemsize:
        cells = raw.values if isinstance(raw, Cells) else raw.cells()
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        return [folded(fold, cells[first:end]) for first, end in places]
    numbers = np.ascontiguousarray(raw.table).view(layout)[:, 0]
    if fold.name in ("sum", "avg"):
        wide = numbers.astype("i8")
        high = np.add.reduceat(wide >> _HALF, starts).tolist()
        low = np.add.reduceat(wide & ((1 << _HALF) - 1), starts).tolist()
        totals = zip(counts, high, low, strict=True)
        return [(count, summed((above << _HALF) + below)) for count, above, below in totals]
    native = numbers.astype(numbers.dtype.newbyteorder("="))
    extreme = np.minimum if fold.name == "min" else np.maximum
    data, width = extreme.reduceat(native, starts).astype(layout).tobytes(), raw.table.shape[1]
    return [(count, data[at * width : (at + 1) * width]) for at, count in enumerate(counts)]
