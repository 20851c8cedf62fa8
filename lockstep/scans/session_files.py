"""Where a read session lies at its node, and who answers its readers.

Below the node's directory a session is its content, a directory of the store's kind, and beside it what
readers are told of it and its lease, which they renew. Whoever finds no facts finds no session.
"""

from __future__ import annotations

import struct
from typing import Final

from lockstep.values.errors import InvalidRequest

#: Below a node's directory; a session of an incarnation means nothing to the next one.
DIRECTORY: Final = "read-sessions"
FACTS_SUFFIX: Final = ".facts"
LEASE_SUFFIX: Final = ".lease"
#: Until when the lease runs, by the machine's monotonic clock.
LEASE: Final = struct.Struct(">d")

DOOR_HANDLER: Final = "lockstep.scans.content_reading:door"
DOOR_PACKAGES: Final = ("rocksdict", "pyarrow", "numpy", "rpds", "mmh3")


#: How every error begins that says so, whatever brought it.
EXPIRED: Final = "snapshot expired"


class Expired(InvalidRequest):
    """The session is no more: its lease has run out, it was ended, or its node was started again."""

    def __init__(self, session: str) -> None:
        super().__init__(f"{EXPIRED}: read session {session} is no more")
