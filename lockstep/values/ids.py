"""Identifiers and the consistency levels.

Invariant: a NodeId is given once by the metadata log and never reused; a mutation id is unique over
all writes of a cluster, because it holds the node, its boot generation and a counter.
"""

from __future__ import annotations

import enum
import struct
from typing import NewType

NodeId = NewType("NodeId", int)
Epoch = NewType("Epoch", int)

_MUTATION_ID = struct.Struct(">HIQ")
MUTATION_ID_BYTES = _MUTATION_ID.size


def mutation_id(node: int, generation: int, sequence: int) -> bytes:
    """14 bytes: node id, boot generation of that node, counter within the generation."""
    return _MUTATION_ID.pack(node, generation, sequence)


class Consistency(enum.IntEnum):
    """Levels with the native protocol's numbers."""

    ANY = 0x00
    ONE = 0x01
    TWO = 0x02
    THREE = 0x03
    QUORUM = 0x04
    ALL = 0x05
    LOCAL_QUORUM = 0x06
    EACH_QUORUM = 0x07
    SERIAL = 0x08
    LOCAL_SERIAL = 0x09
    LOCAL_ONE = 0x0A
