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


class Joined:
    """Values laid one behind the other; value i is `octets[starts[i]:ends[i]]`."""

    def __init__(self, values: Sequence[bytes]) -> None:
        count = len(values)
        bounds = np.zeros(count + 1, dtype="i8")
        np.cumsum(np.fromiter(map(len, values), dtype="i8", count=count), out=bounds[1:])
        self._data = b"".join([*values, bytes(PADDING)])
        self.octets = np.frombuffer(self._data, dtype="u1")
        self.starts, self.ends = bounds[:-1], bounds[1:]
        self._values = values

    @property
    def size_bytes(self) -> int:
        return len(self._data) - PADDING

    @property
    def content(self) -> memoryview:
        """All of them, one behind the other."""
        return memoryview(self._data)[: self.size_bytes]

    @property
    def lengths(self) -> Any:
        return self.ends - self.starts

    def value(self, number: int) -> bytes:
        return self._values[number]


def windows(octets: Any, starts: Any, width: int) -> Any:
    """A table of `width` bytes from each start on."""
    assert width <= PADDING, "a stretch is no longer than the padding"
    return np.lib.stride_tricks.sliding_window_view(octets, width)[starts]


def cells_at(octets: Any, starts: Any, lengths: Any) -> list[bytes | None]:
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

    def cells(self) -> list[bytes | None]:
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

    def cells(self) -> list[bytes | None]:
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
