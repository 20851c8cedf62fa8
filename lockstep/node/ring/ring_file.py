"""What a node keeps of the ring beside the metadata: its starts, its promise or vote, its own decision.

Invariant: what is of another ring than the metadata makes is void: the ring only goes forward, and the entry
that made the next one was written before this file forgot the votes on it.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.node.log.journal import PARTIAL, Journal
from lockstep.ring.ballots import VotedState
from lockstep.ring.member import Kept
from lockstep.ring.ring import Ring
from lockstep.ring.unanimous import OwnProposal, PromisedState
from lockstep.runtime.ports import Disk
from lockstep.values.codec import decoder, encode, frame_record
from lockstep.values.node_limits import RING_RECORDS_MAX

RING_PATH: Final = "raft/ring"


class _Record(msgspec.Struct, frozen=True, array_like=True):
    launch: int
    promised: PromisedState
    own: OwnProposal | None
    voted: VotedState


_DECODER = decoder(_Record)


class RingFile:
    """Errors: CorruptFile on load, DiskRefused when it is written."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._journal = Journal(disk, RING_PATH)
        self._record: _Record | None = None
        self._records = 0

    def load(self) -> None:
        records = self._journal.load_as(_DECODER)
        self._records = len(records)
        self._record = records[-1] if records else None

    def kept(self, ring: Ring) -> Kept:
        """What counts of it where the metadata makes this ring."""
        known = self._record
        if known is None:
            return Kept(ring, 0, PromisedState(), None, VotedState(ring.fingerprint))
        promise, own = known.promised.promise, known.own
        if promise is not None and promise.base != ring.fingerprint:
            promise = None
        if own is not None and own.proposal.base != ring.fingerprint:
            own = None
        voted = known.voted if known.voted.base == ring.fingerprint else VotedState(ring.fingerprint)
        return Kept(ring, known.launch, PromisedState(promise, known.promised.dead), own, voted)

    async def write(self, kept: Kept) -> None:
        """Durable on return."""
        record = _Record(kept.launch, kept.promised, kept.own, kept.voted)
        if self._records >= RING_RECORDS_MAX:
            await self._rewrite(record)
        else:
            await self._journal.append(encode(record))
            self._records += 1
        self._record = record

    async def _rewrite(self, record: _Record) -> None:
        """A file with this record alone takes the place of the one that became long."""
        partial = RING_PATH + PARTIAL
        if self._disk.exists(partial):
            self._disk.remove(partial)
        await self._disk.append_synced(partial, frame_record(encode(record)))
        self._disk.rename(partial, RING_PATH)
        await self._disk.sync_names(RING_PATH.rpartition("/")[0])
        self._journal, self._records = Journal(self._disk, RING_PATH), 1
