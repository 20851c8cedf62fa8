"""How values stand in statements: as literals, or as markers with values beside them.

Invariant: what a statement says does not depend on which of its values are bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import UNSET, Value
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.kinds import Kind, literal

#: Gives the text of a value, wherever a statement has one.
Say = Callable[[Kind, Any], str]

#: Bits of `way`: which values are bound, in turns, and whether the statement is prepared.
_TURNS: Final = 16
EVERY: Final = (1 << _TURNS) - 1
PREPARED: Final = 1 << _TURNS
#: The timestamp is no part of the text.
BESIDE: Final = 2 << _TURNS

INT: Final = Kind("int")
BIGINT: Final = Kind("bigint")
TEXT: Final = Kind("text")


class Said(msgspec.Struct, frozen=True):
    """A statement as it is sent; `stamp` goes beside it."""

    text: str
    values: tuple[Value, ...] = ()
    prepared: bool = False
    stamp: int | None = None


class Binder:
    """Says values as `way` has it; what is unset is always bound."""

    def __init__(self, way: int) -> None:
        self.way = way
        self.values: list[Value] = []
        self._turn = 0

    def __call__(self, kind: Kind, value: Any) -> str:
        bound = self.binds_next
        self._turn += 1
        if value is UNSET:
            self.values.append(UNSET)
        elif bound:
            self.values.append(None if value is None else kinds.wire(kind, value, whole=True))
        else:
            return literal(kind, value)
        return "?"

    @property
    def binds_next(self) -> bool:
        return bool(self.way >> self._turn % _TURNS & 1)

    def said(self, text: str, stamp: int | None) -> Said:
        return Said(text, tuple(self.values), bool(self.way & PREPARED), stamp)


def listed(say: Say, kind: Kind, values: Sequence[Any]) -> str:
    """The values of IN, of which each may be bound, or all of them as a list."""
    if isinstance(say, Binder) and say.binds_next and say.way & PREPARED:
        return say(Kind("list", (kind,)), tuple(values))
    return f"({', '.join(say(kind, value) for value in values)})"


def shown(kind: Kind, value: Any) -> str:
    """For those who read it."""
    return "<unset>" if value is UNSET else literal(kind, value)
