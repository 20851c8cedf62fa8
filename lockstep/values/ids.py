"""Identifiers, consistency levels, reasons of replicas' failures by the native protocol's numbers, and what
this version tells clients it is compatible with.

Invariant: a NodeId is given once by the metadata log and never reused; a mutation id is unique over all
writes of a cluster, because it holds the node, its boot generation and a counter. A number that is not known
here is shown as unknown. Drivers choose their schema queries by the release, and cqlsh warns unless it equals
the one it was built for, so it changes only together with the clients that are tested.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterable
from typing import Final, NewType

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


UNKNOWN: Final = 0
TOO_MANY_TOMBSTONES: Final = 1
TIMEOUT: Final = 2
INCOMPATIBLE_SCHEMA: Final = 3
READ_SIZE: Final = 4
NODE_DOWN: Final = 5
INDEX_NOT_AVAILABLE: Final = 6
READ_TOO_MANY_INDEXES: Final = 7
NOT_CMS: Final = 8
INVALID_ROUTING: Final = 9
COORDINATOR_BEHIND: Final = 10

NAMES: Final = {
    UNKNOWN: "UNKNOWN",
    TOO_MANY_TOMBSTONES: "READ_TOO_MANY_TOMBSTONES",
    TIMEOUT: "TIMEOUT",
    INCOMPATIBLE_SCHEMA: "INCOMPATIBLE_SCHEMA",
    READ_SIZE: "READ_SIZE",
    NODE_DOWN: "NODE_DOWN",
    INDEX_NOT_AVAILABLE: "INDEX_NOT_AVAILABLE",
    READ_TOO_MANY_INDEXES: "READ_TOO_MANY_INDEXES",
    NOT_CMS: "NOT_CMS",
    INVALID_ROUTING: "INVALID_ROUTING",
    COORDINATOR_BEHIND: "COORDINATOR_BEHIND",
}


def named(reasons: Iterable[tuple[str, int]]) -> str:
    """`: REASON from /address, ...`, or nothing where no reason is known."""
    text = ", ".join(f"{NAMES.get(code, 'UNKNOWN')} from /{address}" for address, code in reasons)
    return f": {text}" if text else ""


#: The Cassandra release whose behaviour clients may expect.
CASSANDRA_RELEASE: Final = "5.0.0"
