"""Many short stretches of one buffer taken out of it at once.

Invariant: no stretch is read beyond its buffer, which is padded with PADDING bytes; what lies behind a
stretch is never part of a value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

#: Behind every buffer, so that a stretch of this length may begin at any byte of it.
PADDING: Final = 256
#: What a view holds of a short value itself.
_INLINE: Final = 12


class Joined:
    """Values laid one behind the other; value i is `octets[starts[i]:ends[i]]`."""

    def __init__(self, values: Sequence[bytes]) -> None:
        count = len(values)
        bounds = np.zeros(count + 1, dtype="i8")
        np.cumsum(np.fromiter(map(len, values), dtype="i8", count=count), out=bounds[1:])
        self.octets = np.frombuffer(b"".join([*values, bytes(PADDING)]), dtype="u1")
        self.starts, self.ends = bounds[:-1], bounds[1:]


def windows(octets: Any, starts: Any, width: int) -> Any:
    """A table of `width` bytes from each start on."""
    assert width <= PADDING, "a stretch is no longer than the padding"
    return np.lib.stride_tricks.sliding_window_view(octets, width)[starts]


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


def cells_at(octets: Any, starts: Any, lengths: Any) -> list[bytes | None]:
    """The stretches as values of their own."""
    data = octets.tobytes()
    pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
    return [data[start : start + length] for start, length in pairs]
