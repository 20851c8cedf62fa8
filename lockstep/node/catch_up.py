"""Fetching the metadata log from peers.

Invariant: at most one fetch runs per peer, so requests for one gap are merged, and it does not end before the
newest epoch heard of that peer is here; what is served is committed and durable here; what arrives is
verified by the hash chain before it is applied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lockstep.node.messages import FetchLog, LogEntries
from lockstep.node.metadata_state import MetadataState
from lockstep.replication import verbs
from lockstep.replication.handshake import Address
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError, PeerTimeout

#: One fetch round trip; a peer that does not answer in it is left for another.
FETCH_TIMEOUT_MS = 2000


class CatchUp:
    """`log` receives (event, facts) for failed fetches."""

    def __init__(
        self,
        runtime: Runtime,
        state: MetadataState,
        internode: Internode,
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._state = state
        self._internode = internode
        self._log = log
        #: Peers being asked, with the newest epoch each is known to have.
        self._wanted: dict[Address, int] = {}
        internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, self._serve)

    async def _serve(self, _peer: object, request: FetchLog) -> LogEntries:
        return LogEntries(self._state.epoch, self._state.entries_after(request.after))

    def heard(self, address: Address, epoch: int) -> None:
        """A message from `address` carried `epoch`: fetch in the background when it is news."""
        if epoch > self._state.epoch and self._state.broken is None:
            self._fetch_from(address, epoch)

    def behind(self) -> bool:
        """Whether a peer is known to have more than this node."""
        return any(epoch > self._state.epoch for epoch in self._wanted.values())

    async def reach(self, epoch: int, source: Address, timeout_ms: int = FETCH_TIMEOUT_MS) -> None:
        """Return when `epoch` is applied here; PeerTimeout when that takes longer than allowed."""
        if self._state.epoch >= epoch:
            return
        self._fetch_from(source, epoch)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._state.wait_for(epoch)
        except TimeoutError:
            raise PeerTimeout(f"epoch {epoch} did not arrive here within {timeout_ms} ms") from None

    def _fetch_from(self, address: Address, epoch: int) -> None:
        running = self._wanted.get(address)
        self._wanted[address] = max(epoch, running or 0)
        if running is None:
            self._runtime.tasks.spawn(self._fetch(address), f"metadata.fetch.{address[0]}")

    async def _fetch(self, address: Address) -> None:
        try:
            while self._state.epoch < self._wanted[address]:
                if not await self._fetch_once(address):
                    return
        except LockstepError as error:
            self._log("metadata.fetch_failed", peer=address[0], error=str(error))
        finally:
            del self._wanted[address]

    async def _fetch_once(self, address: Address) -> bool:
        """False when there is no use in asking this peer again."""
        have, wanted = self._state.epoch, self._wanted[address]
        reply: LogEntries = await self._internode.request(
            address, verbs.FETCH_LOG, FetchLog(have), FETCH_TIMEOUT_MS
        )
        if not reply.entries:
            # Unless it was heard of something newer while it answered.
            return self._wanted[address] > wanted
        newest = reply.entries[-1].epoch
        if self._state.offer(reply.entries) < newest:
            self._log("metadata.fetch_gap", peer=address[0], after=have, first=reply.entries[0].epoch)
            return False
        await self._state.wait_for(newest)
        return True
