"""Which schema versions there were, and who has applied which.

Invariant: a version is a function of the schema alone, so nodes with equal schemas show equal versions;
what is said of a peer is what it is known to have applied, not what it should have.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable

from lockstep.gossip.pulling import pinged
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.schema_change import ChangeCaptured, ChangeSchema
from lockstep.node.log.announcing import announcement
from lockstep.node.services import NodeServices
from lockstep.schema.model import Schema
from lockstep.schema.summaries import EMPTIED, ChangeSummary, changed_views, summaries_between
from lockstep.server.statements.statements import digest16
from lockstep.values.ids import NodeId
from lockstep.values.limits import SCHEMA_AGREEMENT_WAIT_MS, SCHEMA_VERSIONS_KEPT_MAX

#: Told what an entry has changed in the schema as clients see it.
SchemaListener = Callable[[ChangeSummary], None]


def schema_version(schema: Schema) -> bytes:
    """16 bytes of a UUID (version 4 in form) that names this schema."""
    raw = bytearray(digest16(schema.digest))
    raw[6] = raw[6] & 0x0F | 0x40
    raw[8] = raw[8] & 0x3F | 0x80
    return bytes(raw)


class SchemaWatch:
    """Follows the metadata of `node` from its construction on."""

    def __init__(self, node: NodeServices) -> None:
        self._node = node
        self._listeners: list[SchemaListener] = []
        #: Epochs that changed the schema, ascending, and the version that each began.
        self._epochs = [0]
        self._versions = [schema_version(node.log.cluster.schema)]
        self._summaries: dict[int, ChangeSummary] = {}
        #: The epoch of the newest snapshot that stood for the entries before it.
        self._jumped_to = 0
        self._agreement: asyncio.Event = asyncio.Event()
        node.log.state.listen(self._applied, parts_only=True)
        node.work.topology.listen(self._heard)

    @property
    def version(self) -> bytes:
        """The version of this node's schema."""
        return self._versions[-1]

    def listen(self, listener: SchemaListener) -> None:
        self._listeners.append(listener)

    def version_of(self, peer: int) -> bytes:
        """The version that a peer is known to have; this node's own for a peer that was not heard yet.

        Also for one that seems dead: drivers wait until all versions are equal, and would only after that
        look at the event that says it is down.
        """
        epoch = self._node.work.topology.acknowledged(peer)
        if epoch == 0 or not self._node.membership.liveness.alive(peer):
            return self.version
        return self._versions[max(0, bisect_right(self._epochs, epoch) - 1)]

    def summary_at(self, epoch: int) -> ChangeSummary | None:
        """What the entry of this epoch changed in the schema, among the last SCHEMA_VERSIONS_KEPT_MAX
        changes; None when it found nothing to change."""
        return self._summaries.get(epoch)

    def jumped_over(self, epoch: int) -> bool:
        """Whether this node may never have seen the entry of this epoch."""
        return epoch <= self._jumped_to

    async def agreed(self, epoch: int) -> bool:
        """Wait until all nodes that are here now and live have applied the epoch, at most
        SCHEMA_AGREEMENT_WAIT_MS."""
        clock, node = self._node.context.runtime.clock, self._node
        deadline_s = clock.monotonic_s() + SCHEMA_AGREEMENT_WAIT_MS / 1000
        waiting = [
            other for other in node.log.cluster.directory.present_ids if other != node.context.own_id()
        ]
        while True:
            # Each node is left behind once: every sign of life wakes this up, in a large cluster very often.
            while waiting and self._has_applied(waiting[-1], epoch):
                waiting.pop()
            left_s = deadline_s - clock.monotonic_s()
            if not waiting or left_s <= 0:
                return not waiting
            event = self._agreement
            try:
                async with asyncio.timeout(left_s):
                    await event.wait()
            except TimeoutError:
                continue

    def _has_applied(self, other: NodeId, epoch: int) -> bool:
        """Also said of nodes that seem dead: nobody waits for them."""
        return self._node.work.topology.acknowledged(
            other
        ) >= epoch or not self._node.membership.liveness.alive(other)

    def _heard(self, _peer: int, _epoch: int) -> None:
        event, self._agreement = self._agreement, asyncio.Event()
        event.set()

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if before.schema is after.schema:
            if before.access is not after.access:
                # Whoever changed roles waits for all nodes too.
                self._tell_peers(after)
            return
        if after.epoch != before.epoch + 1:
            self._jumped(before, after)
            return
        change = self._node.log.registry.decode(entry.kind, entry.body)
        if isinstance(change, ChangeCaptured):
            change = change.wanted
        if not isinstance(change, ChangeSchema):
            self._moved_on(before, after)
            return
        found = change.summary(before, entry.epoch)
        if found is None:
            return
        self._summaries[entry.epoch] = found
        self._new_version(after)
        if found.change != EMPTIED:
            for summary in (found, *changed_views(found, before.schema, after.schema)):
                for listener in self._listeners:
                    listener(summary)

    def _moved_on(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """An operation changed the replication of a keyspace, or only the ring that it is on."""
        self._new_version(after)
        for summary in summaries_between(before.schema, after.schema):
            for listener in self._listeners:
                listener(summary)

    def _jumped(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """A snapshot was installed: clients are told of all that lies between, each thing once."""
        self._jumped_to = after.epoch
        if before.schema.digest != after.schema.digest:
            # Also when nothing is left to tell, such as of a table that came and went.
            self._new_version(after)
        found = summaries_between(before.schema, after.schema)
        for summary in found:
            for listener in self._listeners:
                listener(summary)

    def _new_version(self, after: ClusterMetadata) -> None:
        self._epochs.append(after.epoch)
        self._versions.append(schema_version(after.schema))
        if len(self._epochs) > SCHEMA_VERSIONS_KEPT_MAX:
            self._summaries.pop(self._epochs[0], None)
            del self._epochs[0], self._versions[0]
        self._tell_peers(after)

    def _tell_peers(self, cluster: ClusterMetadata) -> None:
        """Clients compare versions at once after a change: let some peers know now that it is applied here.

        In a cluster so large that these are not all, the others hear of it with the next signs of life.
        """
        node = self._node
        for other_id in pinged(cluster.directory.present_ids, node.context.own_id(), 0):
            other = cluster.directory.by_id[NodeId(other_id)]
            node.context.internode.send(
                (other.address, other.internode_port), verbs.ANNOUNCE, announcement(cluster)
            )
