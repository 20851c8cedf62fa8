"""Where a read session lies at its node, and who answers its readers.

Below the node's directory a session is its content, a directory of the store's kind, and beside it what
readers are told of it and its lease, which they renew. Whoever finds no facts finds no session.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from lockstep.values.codec import decoder
from lockstep.values.errors import InvalidRequest

#: Below a node's directory; a session of an incarnation means nothing to the next one.
DIRECTORY: Final = "read-sessions"
FACTS_SUFFIX: Final = ".facts"
LEASE_SUFFIX: Final = ".lease"
#: Until when the lease runs, by the machine's monotonic clock.
LEASE: Final = struct.Struct(">d")

#: Below a node's directory; what readers decoded, see `column_files`.
COLUMNS_DIRECTORY: Final = "column-files"


class DoorOrder(msgspec.Struct, frozen=True, array_like=True):
    """What the processes are started with: where sessions lie, and columns that were decoded, in no more
    bytes than that, nor while fewer are free. `incarnation`: nobody else's columns are used."""

    sessions: str
    columns: str
    incarnation: str
    columns_bytes_max: int
    free_bytes_min: int


DOOR_ORDER: Final = decoder(DoorOrder)
DOOR_HANDLER: Final = "lockstep.scans.content_reading:door"
DOOR_PACKAGES: Final = ("rocksdict", "pyarrow", "numpy", "rpds", "mmh3")


#: How every error begins that says so, whatever brought it.
EXPIRED: Final = "snapshot expired"


class Expired(InvalidRequest):
    """The session is no more: its lease has run out, it was ended, or its node was started again."""

    def __init__(self, session: str) -> None:
        super().__init__(f"{EXPIRED}: read session {session} is no more")
