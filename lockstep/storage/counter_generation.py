"""The generation of the counters that this node keeps for itself, as a fact of its store.

Invariant: it has grown before anything is wiped, so that a node never counts on in a shard of which others
may hold more than it does.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from lockstep.storage.store import Family, Put

if TYPE_CHECKING:
    from lockstep.storage.engine import StorageEngine

_FACT: Final = b"counter-generation"
_NUMBER: Final = struct.Struct(">Q")
GENERATION_KEY: Final = Family.LOCAL.key(_FACT)


def generation_of(engine: StorageEngine) -> int:
    kept = engine.local_fact(_FACT)
    return int(_NUMBER.unpack(kept)[0]) if kept is not None else 1


def generation_record(generation: int) -> Put:
    """What a store keeps that counts in new shards from this generation on."""
    return "put", GENERATION_KEY, _NUMBER.pack(generation)


def begin_generation(engine: StorageEngine) -> int:
    """From now on this node counts in new shards; the sequence to await."""
    return engine.keep_local_fact(_FACT, _NUMBER.pack(generation_of(engine) + 1))
