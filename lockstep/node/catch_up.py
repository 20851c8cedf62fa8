"""Fetching the metadata log from peers.

Invariant: at most one fetch runs per peer, so requests for one gap are merged; what is served is committed
and durable here; what arrives is verified by the hash chain before it is applied.
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
        self._fetching: dict[Address, asyncio.Task[None]] = {}
        internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, self._serve)

    async def _serve(self, _peer: object, request: FetchLog) -> LogEntries:
        return LogEntries(self._state.epoch, self._state.entries_after(request.after))

    def heard(self, address: Address, epoch: int) -> None:
        """A message from `address` carried `epoch`: fetch in the background when it is news."""
        if epoch > self._state.epoch and self._state.broken is None:
            self._fetch_from(address)

    async def reach(self, epoch: int, source: Address, timeout_ms: int = FETCH_TIMEOUT_MS) -> None:
        """Return when `epoch` is applied here; PeerTimeout when that takes longer than allowed."""
        if self._state.epoch >= epoch:
            return
        self._fetch_from(source)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._state.wait_for(epoch)
        except TimeoutError:
            raise PeerTimeout(f"epoch {epoch} did not arrive here within {timeout_ms} ms") from None

    def _fetch_from(self, address: Address) -> None:
        running = self._fetching.get(address)
        if running is None or running.done():
            self._fetching[address] = self._runtime.tasks.spawn(
                self._fetch(address), f"metadata.fetch.{address[0]}"
            )

    async def _fetch(self, address: Address) -> None:
        while self._state.broken is None:
            have = self._state.epoch
            try:
                reply: LogEntries = await self._internode.request(
                    address, verbs.FETCH_LOG, FetchLog(have), FETCH_TIMEOUT_MS
                )
                if not reply.entries:
                    return
                self._state.offer(reply.entries)
                await self._state.wait_for(reply.entries[-1].epoch)
            except LockstepError as error:
                self._log("metadata.fetch_failed", peer=address[0], error=str(error))
                return
            if reply.entries[-1].epoch >= reply.epoch:
                return
