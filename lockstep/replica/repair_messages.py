"""What the node that drives a repair and its participants tell each other.

Invariant: every question names the repair's session; it is refused once that is closed where it arrives.
Fields are only appended.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.values.rows import Mutation, ReadCommand
from lockstep.values.tokens import Range


class AskTree(msgspec.Struct, frozen=True, array_like=True):
    """The digests of these leaves (sorted, disjoint). What may be purged before `before_s` counts as gone."""

    session_id: str
    epoch: int
    table_id: int
    leaves: tuple[Range, ...]
    before_s: int


class Tree(msgspec.Struct, frozen=True, array_like=True):
    """`ready` False: it is being built, ask again."""

    ready: bool
    leaves: bytes = b""


class AskRows(msgspec.Struct, frozen=True, array_like=True):
    """Answered with a ReadResult."""

    session_id: str
    epoch: int
    command: ReadCommand


class Mend(msgspec.Struct, frozen=True, array_like=True):
    """Changes that this participant lacks; answered once they are durable."""

    session_id: str
    epoch: int
    mutations: tuple[Mutation, ...]


class Mended(msgspec.Struct, frozen=True, array_like=True):
    applied: int


class About(enum.IntEnum):
    """What a note is about."""

    #: What is this node yet to deliver to others?
    UNDELIVERED = 1
    #: How much do you hold of these ranges? From now on the node notes what is written to them.
    EXTENT = 2
    #: These ranges are equal now on all their replicas.
    EQUAL = 3
    #: As EXTENT; and what of these ranges may have changed since they were last repaired?
    CHANGES = 4


class Note(msgspec.Struct, frozen=True, array_like=True):
    session_id: str
    epoch: int
    about: About
    table_id: int = 0
    ranges: tuple[Range, ...] = ()


class Noted(msgspec.Struct, frozen=True, array_like=True):
    """`oldest_us`: when the oldest write was made that this node is yet to deliver; -1: there is none.
    `bytes`: an estimate. `changed`: parts of the ranges, of an answer to CHANGES. `at_us`: of an answer to
    UNDELIVERED, the time on this node's clock, by which `oldest_us` is told too; it dates no deletion back
    behind it. 0: it does not say."""

    oldest_us: int = -1
    bytes: int = 0
    changed: tuple[Range, ...] = ()
    at_us: int = 0
