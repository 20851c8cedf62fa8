"""The CQL door of one node: listening, connections, and the parts behind them.

Invariant: `serve` touches nothing but the node and its runtime, so a simulated node has the same door.

A node takes leave of its clients: the CQL door closes, what is in flight is answered, others are told.

Invariant: what clients sent before is answered; what comes later is refused as not done, as long as something
is in flight, and finds the end of the connection then. After a bounded time no connection is left; the node
stays a replica, and a voter, as long as its process runs.

Drivers do not heed the end of a node that they hold a connection for requests to, and hear of it once. So
those connections end first, then the ones that listen for events are told and end, then other nodes tell
their clients.

What drivers that registered are told: nodes that come, go, rise and fall, and changes of the schema.

Invariant: an address in an event is the one that system.peers shows; UP is said only of a normal node, and
a little after its first sign of life, because its clients' door opens last.

Says that a node refuses requests of clients because it has too many, while it does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import EVENT_SCHEMA, EVENT_STATUS, EVENT_TOPOLOGY
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.services import NodeServices
from lockstep.node.work.conditions import Conditions
from lockstep.runtime.ports import Clock, Runtime, Server
from lockstep.schema.model import Schema
from lockstep.schema.summaries import ChangeSummary
from lockstep.server.auth.authentication import Authentication, Passwords
from lockstep.server.auth.permits import Permits
from lockstep.server.auth.role_statements import RoleStatements
from lockstep.server.cql.connection import Connections, CqlConnection
from lockstep.server.cql.loop_budget import LoopBudget
from lockstep.server.cql.schema_watch import SchemaWatch
from lockstep.server.log import Audit
from lockstep.server.statements.execution import Executor
from lockstep.server.statements.schema_statements import SchemaStatements
from lockstep.server.views.system_local import SystemTables
from lockstep.server.views.system_schema import SchemaTables
from lockstep.server.views.system_views import ViewTables
from lockstep.server.views.tablet_views import TabletTables
from lockstep.server.views.tool_keyspaces import AuthTables, distributed_tables, trace_tables
from lockstep.server.views.virtual import VirtualTables
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId
from lockstep.values.limits import DRAIN_BY_COMMAND_MS, NODE_UP_EVENT_DELAY_MS

if TYPE_CHECKING:
    from lockstep.server.admin.http import HttpRequest


#: It holds for so long after the last refusal: clients back off and come again meanwhile.
HOLDS_S: Final = 10.0


def watch_overload(conditions: Conditions, turns: LoopBudget, clock: Clock) -> Callable[[], None]:
    """To be looked at whenever somebody wants to know."""
    seen, since_s = turns.shed, 0.0

    def look() -> None:
        nonlocal seen, since_s
        if turns.shed != seen:
            seen, since_s = turns.shed, clock.monotonic_s()
            conditions.report("NODE_OVERLOADED")
        elif clock.monotonic_s() - since_s >= HOLDS_S:
            conditions.clear("NODE_OVERLOADED")

    return look


#: Told (event type, body of the EVENT).
Broadcast = Callable[[str, bytes], None]


class Events:
    """Turns what the node learns into events for `broadcast`."""

    def __init__(self, node: NodeServices, watch: SchemaWatch, broadcast: Broadcast) -> None:
        self._node = node
        self._broadcast = broadcast
        #: Nodes that clients were told (or find out by themselves) to be up.
        self._up: dict[int, bool] = {}
        self._due: dict[int, asyncio.TimerHandle] = {}
        self._stopped = False
        for info in node.log.cluster.directory.nodes:
            self._up[info.id] = info.owns_tokens and node.membership.liveness.alive(info.id)
        node.log.state.listen(self._applied, parts_only=True)
        node.membership.liveness.listen(self._liveness)
        node.membership.gossip.listen(self._serving)
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
            if info.id == self._node.context.own_id():
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
        if self._stopped or node == self._node.context.own_id():
            return
        if alive:
            self._later(node)
            return
        self._cancel(node)
        info = self._node.log.cluster.directory.by_id.get(node)
        if self._up.get(node) and info is not None:
            self._up[node] = False
            self._status("DOWN", info)

    def _serving(self, node: int, serves: bool) -> None:
        """A node that takes leave of its clients is down to them, though it lives."""
        if not serves or self._node.membership.liveness.alive(node):
            self._liveness(NodeId(node), serves)

    def tell_own_end(self) -> None:
        """This node's own clients are the last to be told of it."""
        info = self._node.context.info
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
        info = self._node.log.cluster.directory.by_id.get(NodeId(node))
        liveness = self._node.membership.liveness
        if (
            info is None
            or not info.owns_tokens
            or not liveness.alive(node)
            or node in liveness.opinions.avoided
        ):
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


class Draining:
    """`state` is serving, draining or drained; `cut` counts requests that found no end in time."""

    def __init__(self, node: NodeServices, server: CqlServer) -> None:
        self._node = node
        self._server = server
        self.state = "serving"
        self.cut = 0
        self._refusing = asyncio.Event()

    async def drain(self, limit_ms: int) -> None:
        """Return when no client is connected any more."""
        server = self._server
        if self.state == "serving":
            self.state = "draining"
            self._node.context.conditions.report("NODE_DRAINED")
        server.stop()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._look_at_sockets()
                server.clients.refuse()
                self._refusing.set()
                await self._look_at_sockets()
                server.clients.finish(also_listeners=False)
                await server.clients.finished.wait()
                server.events.tell_own_end()
                server.clients.finish(also_listeners=True)
                await server.clients.finished.wait()
        except TimeoutError:
            self.cut += server.clients.load.requests
            server.clients.abort()
        self._node.membership.gossip.withdraw()
        self.state = "drained"

    async def _look_at_sockets(self) -> None:
        """Let connections read once what their clients have sent already."""
        for _ in range(2):
            await asyncio.sleep(0)

    async def begin(self, request: HttpRequest) -> dict[str, Any]:
        """Answer the admin API. ConfigurationError."""
        body = request.body if request.body is not None else {}
        if not isinstance(body, dict) or not isinstance(body.get("dry_run", False), bool):
            raise ConfigurationError('the body must be {"dry_run": true or false}')
        if body.get("dry_run"):
            return {**self.document(), "dry_run": True}
        if self.state == "serving":
            self._node.context.runtime.tasks.spawn(self.drain(DRAIN_BY_COMMAND_MS), "cql.drain")
            await self._refusing.wait()  # What is sent behind this answer is refused.
        return self.document()

    def document(self) -> dict[str, Any]:
        return {
            "schema": "drain/1",
            "node": self._node.context.own_id(),
            "state": self.state,
            "connections": len(self._server.clients.connections),
            "requests": self._server.clients.load.requests,
            "cut": self.cut,
            "limit_ms": DRAIN_BY_COMMAND_MS,
        }


class CqlServer:
    """Made by `serve`, after the node has started. `audited` takes the lines of the audit file."""

    def __init__(
        self, node: NodeServices, runtime: Runtime, audited: Callable[[str], None] | None = None
    ) -> None:
        self.node = node
        #: What clients and operators tried and changed.
        self.audit = Audit(runtime.clock, node.context.log, audited)
        self.runtime = runtime
        self._server: Server | None = None
        watch = SchemaWatch(node)
        self.virtual = VirtualTables(
            [
                *SystemTables(node, watch).tables(),
                *SchemaTables(lambda: node.log.cluster.schema, self._virtual_schema).tables(),
                *ViewTables(node, lambda: list(self.clients.connections)).tables(),
                *TabletTables(node).tables(),
                *AuthTables(lambda: node.log.cluster.access).tables(),
                *distributed_tables(node),
                *trace_tables(),
            ]
        )
        settings, passwords = node.context.configuration.auth, Passwords(runtime)
        #: None where clients do not log in, both.
        self.permits: Permits | None = None
        self.authentication: Authentication | None = None
        if settings.asks_password:
            self.authentication = Authentication(node, passwords)
            place = node.context.configuration.placement.dc
            self.permits = Permits(lambda: node.log.cluster, place, checks=settings.checks_permissions)
        statements = SchemaStatements(node, watch)
        roles = RoleStatements(node, self.permits, passwords, statements, self.virtual.schema)
        self.executor = Executor(node, self.virtual, statements, roles, self.permits, self.audit)
        mirrors, conditions = node.context.configuration.testing.mirror_payloads, node.context.conditions
        self.clients = Connections(
            runtime, node.context.log, self.executor, self.authentication, self.audit, mirrors
        )
        conditions.watch(watch_overload(conditions, self.clients.turns, runtime.clock))
        self.events = Events(node, watch, self.clients.broadcast)
        self.draining = Draining(node, self)

    def _virtual_schema(self) -> Schema:
        return self.virtual.schema

    async def start(self) -> None:
        """Listen. ConfigurationError when the address is in use."""
        if self.authentication is not None:
            await self.authentication.make_first_role()
        network, tls = self.node.context.configuration.network, self.node.context.configuration.tls
        self._server = await self.runtime.network.listen(
            network.address, network.cql_port, lambda: CqlConnection(self.clients), tls.files
        )

    def stop(self) -> None:
        """Stop listening; the connections there are go on."""
        self.clients.full = True
        self.events.stop()
        if self._server is not None:
            self._server.close()
            self._server = None


async def serve(node: NodeServices, runtime: Runtime) -> CqlServer:
    """Open the CQL door of a node that has started. ConfigurationError when the address is in use."""
    server = CqlServer(node, runtime)
    await server.start()
    return server
