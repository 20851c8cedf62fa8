"""Hints as they are stored: a write that one replica lacks, and marks of ranges whose hints were given up.

Invariants. A key is (target, when the write was hinted, digest of the mutation), so that the same write left
twice for one node is one hint, and a target's hints lie in the order in which they were left. The mutation in
a hint is the one that its coordinator sent, to the byte.
"""

from __future__ import annotations

import hashlib
import struct

import msgspec

from lockstep.storage.store import Family
from lockstep.values import codec
from lockstep.values.errors import CorruptFile
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation

_KEY = struct.Struct(">ccIQ8s")
_TARGET = struct.Struct(">ccI")
_FAMILY = Family.HINTS.value
_HINT = b"\x01"
_MARK = b"\x02"
_MARK_KEY = struct.Struct(">ccIIqq")


class Hint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`epoch`: of the plan that the replica was in. `gc_grace_s`: of the table when the hint was left."""

    created_us: int
    epoch: int
    gc_grace_s: int
    mutation: Mutation


class DroppedHints(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Writes of a range that a node lacks and will not get from here; until the range is repaired.

    `newest_us`: when the newest of them was left; `count` is since this node started to count."""

    table_id: int
    node: NodeId
    left: int
    right: int
    reason: str
    since_us: int
    newest_us: int
    count: int


_DECODER = codec.decoder(Hint)
_MARK_DECODER = codec.decoder(DroppedHints)


def hint_key(target: int, created_us: int, body: bytes) -> bytes:
    return _KEY.pack(_FAMILY, _HINT, target, created_us, hashlib.blake2b(body, digest_size=8).digest())


def target_of(key: bytes) -> tuple[NodeId, int]:
    """(target, created_us) of a hint's key."""
    _, _, target, created_us, _ = _KEY.unpack(key)
    return NodeId(target), created_us


def bounds_of(target: int) -> tuple[bytes, bytes]:
    """Lower and upper bound of the keys of a node's hints."""
    return _TARGET.pack(_FAMILY, _HINT, target), _TARGET.pack(_FAMILY, _HINT, target + 1)


def all_hints() -> tuple[bytes, bytes]:
    return _FAMILY + _HINT, _FAMILY + _MARK


def all_marks() -> tuple[bytes, bytes]:
    return _FAMILY + _MARK, _FAMILY + b"\x03"


def mark_key(mark: DroppedHints) -> bytes:
    return _MARK_KEY.pack(_FAMILY, _MARK, mark.table_id, mark.node, mark.left, mark.right)


def body_of(hint: Hint) -> bytes:
    """What identifies the write in a hint's key: the mutation alone."""
    return codec.encode(hint.mutation)


def decode_hint(key: bytes, value: bytes) -> Hint:
    try:
        return _DECODER.decode(value)
    except codec.UNREADABLE as error:
        raise CorruptFile(key.hex(), 0, f"not a hint: {error}") from error


def decode_mark(key: bytes, value: bytes) -> DroppedHints:
    try:
        return _MARK_DECODER.decode(value)
    except codec.UNREADABLE as error:
        raise CorruptFile(key.hex(), 0, f"not a mark of dropped hints: {error}") from error
