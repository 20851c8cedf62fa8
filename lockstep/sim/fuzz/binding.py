"""How values stand in statements: as literals, or as markers with values beside them.

Invariant: what a statement says does not depend on which of its values are bound.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import UNSET, Value
from lockstep.sim.fuzz import kinds
from lockstep.sim.fuzz.kinds import Kind, literal
from lockstep.sim.runtime.streams import Stream

#: Gives the text of a value, wherever a statement has one.
Say = Callable[[Kind, Any], str]

#: Bits of `way`: which values are bound, in turns, and whether the statement is prepared.
_TURNS: Final = 16
EVERY: Final = (1 << _TURNS) - 1
PREPARED: Final = 1 << _TURNS
#: The timestamp is no part of the text.
BESIDE: Final = 2 << _TURNS
#: Protocol version 5.
NEWER: Final = 4 << _TURNS
#: Markers have names, and values come with them.
NAMED: Final = 8 << _TURNS
#: A batch is a message of its own, and no text.
MESSAGE: Final = 16 << _TURNS
#: Each page comes from another node.
WANDERS: Final = 32 << _TURNS
#: Values that are not bound are made by functions, where they may be.
CALLS: Final = 64 << _TURNS
#: From here on: how far the second that a client gives is from that of the nodes.
_CLOCK: Final = 128 << _TURNS
#: Without that.
KEEPS_TIME: Final = _CLOCK - 1
#: What says which values are bound.
BOUND: Final = EVERY | PREPARED
_AHEAD_S: Final = (0, -2, -1, 1, 2, 4, 7, 12)

INT: Final = Kind("int")
BIGINT: Final = Kind("bigint")
TEXT: Final = Kind("text")
#: Where only literals and markers stand: these very kinds are asked for there.
_BARE: Final = (INT, BIGINT, TEXT)


class Said(msgspec.Struct, frozen=True):
    """A statement as it is sent; `stamp` and `now_s` go beside it. Of `batched` statements `text` is the sort
    of the batch."""

    text: str
    values: tuple[Value, ...] = ()
    prepared: bool = False
    stamp: int | None = None
    now_s: int | None = None
    version: int = 4
    named: bool = False
    wanders: bool = False
    batched: tuple[Said, ...] = ()


def way_of(draw: Stream) -> int:
    """How a statement is sent, by the way."""
    bits = sum(bit for bit, part in _PARTS if draw.random() < part)
    if bits & NEWER and draw.random() < 0.5:
        bits |= _CLOCK * draw.randrange(len(_AHEAD_S))
    return bits


_PARTS: Final = ((BESIDE, 0.3), (NEWER, 0.4), (NAMED, 0.25), (MESSAGE, 0.5), (WANDERS, 0.5), (CALLS, 0.15))


def ahead_s(way: int) -> int:
    """How far from the nodes' second a statement is in time."""
    return _AHEAD_S[way // _CLOCK] if way & NEWER else 0


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
        elif self.way & CALLS and value is not None and not any(kind is one for one in _BARE):
            return self._called(kind, value)
        else:
            return literal(kind, value)
        return f":n{len(self.values) - 1}" if self.way & NAMED else "?"

    def _called(self, kind: Kind, value: Any) -> str:
        if self._turn % 2 and kinds.jsonable(kind):
            return f"from_json({kinds.quoted(json.dumps(kinds.plain_json(kind, value)))})"
        if kind.parts or kind.name in ("blob", "counter"):
            return literal(kind, value)
        return f"blob_as_{kind.name}(0x{kinds.wire(kind, value).hex()})"

    @property
    def binds_next(self) -> bool:
        return bool(self.way >> self._turn % _TURNS & 1)

    def said(self, text: str, stamp: int | None, now_s: int | None = None) -> Said:
        """`now_s` is the second that is given, where one is."""
        way = self.way
        return Said(
            text,
            tuple(self.values),
            bool(way & PREPARED),
            stamp,
            now_s if ahead_s(way) else None,
            5 if way & NEWER else 4,
            bool(way & NAMED and self.values),
            bool(way & WANDERS),
        )


def listed(say: Say, kind: Kind, values: Sequence[Any]) -> str:
    """The values of IN, of which each may be bound, or all of them as a list."""
    if isinstance(say, Binder) and say.binds_next and say.way & PREPARED:
        return say(Kind("list", (kind,)), tuple(values))
    return f"({', '.join(say(kind, value) for value in values)})"


def shown(kind: Kind, value: Any) -> str:
    """For those who read it."""
    return "<unset>" if value is UNSET else literal(kind, value)
