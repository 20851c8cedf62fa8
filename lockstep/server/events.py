"""What drivers that registered are told: nodes that come, go, rise and fall, and changes of the schema.

Invariant: an address in an event is the one that system.peers shows; UP is said only of a normal node, and
a little after its first sign of life, because its clients' door opens last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import EVENT_SCHEMA, EVENT_STATUS, EVENT_TOPOLOGY
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo
from lockstep.metadata.entries import LogEntry
from lockstep.schema.summaries import ChangeSummary
from lockstep.server.schema_watch import SchemaWatch
from lockstep.values.ids import NodeId
from lockstep.values.limits import NODE_UP_EVENT_DELAY_MS

if TYPE_CHECKING:
    from lockstep.node.node import Node

#: Told (event type, body of the EVENT).
Broadcast = Callable[[str, bytes], None]


class Events:
    """Turns what the node learns into events for `broadcast`."""

    def __init__(self, node: Node, watch: SchemaWatch, broadcast: Broadcast) -> None:
        self._node = node
        self._broadcast = broadcast
        #: Nodes that clients were told (or find out by themselves) to be up.
        self._up: dict[int, bool] = {}
        self._due: dict[int, asyncio.TimerHandle] = {}
        self._stopped = False
        for info in node.cluster.directory.nodes:
            self._up[info.id] = info.owns_tokens and node.liveness.alive(info.id)
        node.state.listen(self._applied, parts_only=True)
        node.liveness.listen(self._liveness)
        node.gossip.listen(self._serving)
        watch.listen(self._schema)

    @property
    def told_up(self) -> frozenset[int]:
        """The nodes that clients take to be up."""
        return frozenset(node for node, up in self._up.items() if up)

    def stop(self) -> None:
        self._stopped = True
        for timer in self._due.values():
            timer.cancel()
        self._due = {}

    def _schema(self, change: ChangeSummary) -> None:
        body = responses.event_schema_change(
            change.change, change.target, change.keyspace, change.name, change.arguments
        )
        self._broadcast(EVENT_SCHEMA, body)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: LogEntry) -> None:
        if self._stopped or before.directory is after.directory:
            return
        known = before.directory.by_id
        for info in after.directory.nodes:
            if info.id == self._node.node_id:
                continue
            earlier = known.get(info.id)
            owned = earlier is not None and earlier.owns_tokens
            if info.owns_tokens and not owned:
                self._later(info.id)
            elif owned and not info.owns_tokens:
                self._cancel(info.id)
                self._up.pop(info.id, None)
                self._topology("REMOVED_NODE", info)

    def _liveness(self, node: NodeId, alive: bool) -> None:
        if self._stopped or node == self._node.node_id:
            return
        if alive:
            self._later(node)
            return
        self._cancel(node)
        info = self._node.cluster.directory.by_id.get(node)
        if self._up.get(node) and info is not None:
            self._up[node] = False
            self._status("DOWN", info)

    def _serving(self, node: int, serves: bool) -> None:
        """A node that takes leave of its clients is down to them, though it lives."""
        if not serves or self._node.liveness.alive(node):
            self._liveness(NodeId(node), serves)

    def tell_own_end(self) -> None:
        """This node's own clients are the last to be told of it."""
        info = self._node.info
        if info is not None:
            self._status("DOWN", info)

    def _later(self, node: int) -> None:
        if node not in self._due:
            loop = asyncio.get_running_loop()
            self._due[node] = loop.call_later(NODE_UP_EVENT_DELAY_MS / 1000, self._tell_up, node)

    def _cancel(self, node: int) -> None:
        timer = self._due.pop(node, None)
        if timer is not None:
            timer.cancel()

    def _tell_up(self, node: int) -> None:
        self._due.pop(node, None)
        info = self._node.cluster.directory.by_id.get(NodeId(node))
        liveness = self._node.liveness
        if info is None or not info.owns_tokens or not liveness.alive(node) or node in liveness.avoided:
            return
        if node not in self._up:
            self._topology("NEW_NODE", info)
        if not self._up.get(node):
            self._up[node] = True
            self._status("UP", info)

    def _topology(self, change: str, info: NodeInfo) -> None:
        self._broadcast(EVENT_TOPOLOGY, responses.event_topology_change(change, info.address, info.cql_port))

    def _status(self, change: str, info: NodeInfo) -> None:
        self._broadcast(EVENT_STATUS, responses.event_status_change(change, info.address, info.cql_port))
