"""Logged batches as they are stored by the nodes that keep them for their coordinator.

Invariant: a key is (when the batch was made, its id), so old batches come first; the mutations in a record
are those that the coordinator sends, to the byte.
"""

from __future__ import annotations

import struct

import msgspec

from lockstep.storage.store import Family
from lockstep.values import codec
from lockstep.values.errors import CorruptFile
from lockstep.values.rows import Mutation

_PLACE = struct.Struct(">cQ")
_FAMILY = Family.BATCH_LOG.value


class KeepBatch(msgspec.Struct, frozen=True, array_like=True):
    """Keep a batch until its coordinator says that it is done, or write it after a while."""

    batch_id: bytes
    created_us: int
    mutations: tuple[Mutation, ...]


class BatchKept(msgspec.Struct, frozen=True, array_like=True):
    """The batch is durable here."""

    batch_id: bytes


class ForgetBatch(msgspec.Struct, frozen=True, array_like=True):
    batch_id: bytes
    created_us: int


_DECODER = codec.decoder(KeepBatch)


def batch_key(created_us: int, batch_id: bytes) -> bytes:
    return _PLACE.pack(_FAMILY, created_us) + batch_id


def all_batches() -> tuple[bytes, bytes]:
    return _FAMILY, bytes((_FAMILY[0] + 1,))


def decode_batch(key: bytes, value: bytes) -> KeepBatch:
    try:
        return _DECODER.decode(value)
    except codec.UNREADABLE as error:
        raise CorruptFile(key.hex(), 0, f"not a logged batch: {error}") from error
