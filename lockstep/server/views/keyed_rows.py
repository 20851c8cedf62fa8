"""Virtual tables whose rows are found by key: a read of one partition makes that partition's rows only.

Invariant: what `of` gives holds every row that the read asks for, maybe more; the reader takes what fits, so
a keyed read answers exactly what a read of all rows would.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from lockstep.server.views.virtual_rows import RowEncoder, VirtualRow
from lockstep.values.rows import ReadCommand

_BIGINT_BYTES = 8
_SIGN = 1 << 63


class Between(msgspec.Struct, frozen=True):
    """Bounds, both included, of the first clustering column where it is a bigint; all of them elsewhere."""

    low: int = -_SIGN
    high: int = _SIGN - 1


EVERYTHING = Between()


class KeyedRows(msgspec.Struct, frozen=True):
    """`every`: all rows. `of`: those of one partition key (as its type reads it) that may lie in bounds."""

    every: Callable[[], Iterable[VirtualRow]]
    of: Callable[[Any, Between], Iterable[VirtualRow]]

    def wanted(self, encoder: RowEncoder, command: ReadCommand) -> Iterable[VirtualRow]:
        if command.key is None:
            return self.every()
        return self.of(encoder.key_value(command.key), _bounds(encoder, command))


def _bounds(encoder: RowEncoder, command: ReadCommand) -> Between:
    kinds = encoder.clustering_types
    if not kinds or kinds[0].name != "bigint":
        return EVERYTHING
    lows = [_number(part.start, b"\x00") if part.start else EVERYTHING.low for part in command.slices]
    highs = [_number(part.end, b"\xff") if part.end else EVERYTHING.high for part in command.slices]
    return Between(min(lows, default=EVERYTHING.low), max(highs, default=EVERYTHING.high))


def _number(encoded: bytes, filler: bytes) -> int:
    """The number in a component or in a beginning of one, which ends at the filler; see schema.clustering."""
    digits = encoded[1 : 1 + _BIGINT_BYTES].ljust(_BIGINT_BYTES, filler)
    return int.from_bytes(digits, "big") - _SIGN
