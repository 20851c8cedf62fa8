"""Many short stretches of one buffer taken out of it at once.

Invariant: no stretch is read beyond its buffer, which is padded with PADDING bytes; what lies behind a
stretch is never part of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np

#: Behind every buffer, so that a stretch of this length may begin at any byte of it.
PADDING: Final = 256
#: Bytes that are compared at once, as numbers.
_WORDS: Final = (8, 4, 2, 1)


class Joined:
    """Values laid one behind the other; value i is `octets[starts[i]:ends[i]]`."""

    def __init__(self, values: Sequence[bytes]) -> None:
        count = len(values)
        bounds = np.zeros(count + 1, dtype="i8")
        np.cumsum(np.fromiter(map(len, values), dtype="i8", count=count), out=bounds[1:])
        self.octets = np.frombuffer(b"".join([*values, bytes(PADDING)]), dtype="u1")
        self.starts, self.ends = bounds[:-1], bounds[1:]

    @property
    def size_bytes(self) -> int:
        return len(self.octets) - PADDING

    @property
    def content(self) -> memoryview:
        """All of them, one behind the other."""
        return self.octets[: self.size_bytes].data

    @property
    def lengths(self) -> Any:
        return self.ends - self.starts

    def value(self, number: int) -> bytes:
        return bytes(self.content[int(self.starts[number]) : int(self.ends[number])])

    def repeats(self) -> Any:
        """Of each value whether it is that before it, and False behind the last."""
        return repeats(self.octets, self.starts, self.lengths)


def repeats(octets: Any, starts: Any, lengths: Any) -> Any:
    """As `Joined.repeats`, of the stretches that begin there."""
    count = len(starts)
    found = np.zeros(count + 1, dtype=bool)
    if count < 2:
        return found
    lefts, rights = starts[:-1], starts[1:]
    # Neighbours of one length, a word after the other, last ones first: equal values end alike, and few
    # others of one length do.
    like = np.flatnonzero(lengths[1:] == lengths[:-1])
    left = lengths[like]
    while len(like):
        ended = left == 0
        if ended.any():
            found[like[ended] + 1] = True
            like, left = like[~ended], left[~ended]
            continue
        width = next(size for size in _WORDS if size <= left.min())
        left = left - width
        first = windows(octets, lefts[like] + left, width).view(f"u{width}")[:, 0]
        second = windows(octets, rights[like] + left, width).view(f"u{width}")[:, 0]
        kept = first == second
        like, left = like[kept], left[kept]
    return found


def windows(octets: Any, starts: Any, width: int) -> Any:
    """A table of `width` bytes from each start on."""
    assert width <= PADDING, "a stretch is no longer than the padding"
    # As sliding_window_view makes it, in a fifth of the time: it is asked for each few rows.
    table = np.ndarray((len(octets) - width + 1, width), octets.dtype, octets, strides=(1, 1))
    return table[starts]


def cells_at(octets: Any, starts: Any, lengths: Any) -> list[bytes]:
    """The stretches as values of their own."""
    data = octets.tobytes()
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    return [data[start : start + length] for start, length in pairs]


class Fixed:
    """Values of one width: a row of bytes each."""

    __slots__ = ("table",)

    def __init__(self, table: Any) -> None:
        self.table = table

    def taken(self, rows: Any) -> Fixed:
        """Those of the rows, in their order."""
        return Fixed(self.table[rows])

    def cells(self) -> Sequence[bytes | None]:
        data, width = np.ascontiguousarray(self.table).tobytes(), self.table.shape[1]
        return [data[at : at + width] for at in range(0, len(data), width)]


class Varying:
    """Values that lie in one buffer."""

    __slots__ = ("lengths", "octets", "starts")

    def __init__(self, octets: Any, starts: Any, lengths: Any) -> None:
        self.octets = octets
        self.starts = starts
        self.lengths = lengths

    def taken(self, rows: Any) -> Varying:
        """Those of the rows, in their order."""
        return Varying(self.octets, self.starts[rows], self.lengths[rows])

    def cells(self) -> Sequence[bytes | None]:
        return cells_at(self.octets, self.starts, self.lengths)

    def equal_table(self, most: int) -> Any:
        """A row of bytes each, where all are of one length of at most `most`; None otherwise."""
        width = int(self.lengths[0])
        if width > most or not (self.lengths == width).all():
            return None
        return windows(self.octets, self.starts, width)


class Cells:
    """Values that were taken out one by one."""

    __slots__ = ("values",)

    def __init__(self, values: Sequence[bytes | None]) -> None:
        self.values = values

    def taken(self, rows: Any) -> Cells:
        """Those of the rows, in their order."""
        return Cells([self.values[row] for row in rows.tolist()])


#: The serialised values of one column.
Raw: TypeAlias = Fixed | Varying | Cells
