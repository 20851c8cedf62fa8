"""Which host each founder of a cluster is, written down before this one takes part in consensus.

Invariant: written once and never changed; meaningful until the first entry of the log is applied.
"""

from __future__ import annotations

import msgspec

from lockstep.internode.handshake import Address
from lockstep.node.log.journal import Journal
from lockstep.runtime.ports import Disk
from lockstep.values.codec import decoder, encode

FOUNDERS_PATH = "raft/founders"


class BoundFounders(msgspec.Struct, frozen=True, array_like=True):
    """Addresses and host ids of all founders, in the configured order; voter i is number i - 1."""

    addresses: tuple[Address, ...]
    host_ids: tuple[str, ...]


_DECODER = decoder(BoundFounders)


class FoundersFile:
    """`value` is None until this node bound itself; it never changes afterwards."""

    def __init__(self, disk: Disk) -> None:
        self._journal = Journal(disk, FOUNDERS_PATH)
        self.value: BoundFounders | None = None

    def load(self) -> None:
        records = self._journal.load_as(_DECODER)
        self.value = records[0] if records else None

    async def bind(self, value: BoundFounders) -> None:
        """Durable on return."""
        assert self.value is None, "a founder binds itself once"
        await self._journal.append(encode(value))
        self.value = value
