"""Why a replica failed, by the native protocol's numbers, and as messages name it.

Invariant: a number that is not known here is shown as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

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
