"""Going on under another cluster id because the metadata log says so.

The entry is the last one under the present id: whoever applies it falls silent, leaves the others a moment to
hear of it, and begins another life, in which it begins the groups anew before it takes part in anything.

Invariant: nothing is appended behind that entry under the former id, and a node that is greeted under the new
id while the entry stands in its journal knows that it was committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from lockstep.internode.handshake import Hello
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.lineage import ResetManagement
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.metadata.log.registry import EntryKind
from lockstep.node.context import NodeContext
from lockstep.node.log_service import NodeLog
from lockstep.recovery.living import is_decided
from lockstep.values.codec import decoder

#: For those that have not heard of the entry: they cannot ask afterwards.
GRACE_S: Final = 0.5
_BODY = decoder(ResetManagement)


class Moving:
    """`tail(epoch)`: entries above it that are durable in this node's journal. `fall_silent()` ends its voice
    in both groups, `begin_anew(why)` this life."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        tail: Callable[[int], list[LogEntry]],
        fall_silent: Callable[[], None],
        begin_anew: Callable[[str], None],
    ) -> None:
        self._runtime = context.runtime
        self._identity = context.identity
        self._say = context.log
        self._state = log.state
        self._tail = tail
        self._fall_silent = fall_silent
        self._begin_anew = begin_anew
        log.state.listen(self._applied)
        context.internode.own.listen_refused(self._refused)

    def _applied(self, _before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if entry.kind != EntryKind.RESET_MANAGEMENT:
            return
        if is_decided(self._identity.value.cluster_id, after.identity):
            self._fall_silent()
            self._say("recovery.decided_by_log", cluster=after.identity.cluster_id, epoch=after.epoch)
            self._runtime.tasks.spawn(self._go(after.identity.cluster_id), "recovery.move")

    async def _go(self, cluster_id: str) -> None:
        await asyncio.sleep(GRACE_S)
        await self._state.store.flush()
        self._runtime.probes.reach("recovery.decided")
        self._begin_anew(f"this node goes on in cluster {cluster_id}")

    def _refused(self, theirs: Hello) -> None:
        """Who greets under the id that an entry of this node's journal gives knows that it was committed."""
        tail = self._tail(self._state.epoch)
        if not tail or tail[-1].kind != EntryKind.RESET_MANAGEMENT:
            return
        value = self._state.current
        is_next = verify_chain(tail, epoch=value.epoch, previous_hash=value.hash) is None
        if is_next and _BODY.decode(tail[-1].body).repaired.cluster_id == theirs.cluster_id:
            self._fall_silent()
            self._runtime.probes.reach("recovery.heard_by_greeting")
            self._state.offer(tail)
