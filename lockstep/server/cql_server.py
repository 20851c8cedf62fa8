"""The CQL door of one node: listening, connections, and the parts behind them.

Invariant: `serve` touches nothing but the node and its runtime, so a simulated node has the same door.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING

from lockstep.runtime.ports import Runtime, Server
from lockstep.schema.model import Schema
from lockstep.server.audit import Audit
from lockstep.server.auth_views import AuthTables
from lockstep.server.authentication import Authentication
from lockstep.server.connection import CqlConnection
from lockstep.server.distributed_views import distributed_tables
from lockstep.server.draining import Draining
from lockstep.server.events import Events
from lockstep.server.execution import Executor
from lockstep.server.flow import NodeLoad
from lockstep.server.latencies import Latencies
from lockstep.server.overload_condition import watch_overload
from lockstep.server.passwords import Passwords
from lockstep.server.permits import Permits
from lockstep.server.responses_owed import NodeResponses
from lockstep.server.role_statements import RoleStatements
from lockstep.server.schema_statements import SchemaStatements
from lockstep.server.schema_watch import SchemaWatch
from lockstep.server.system_local import SystemTables
from lockstep.server.system_schema import SchemaTables
from lockstep.server.system_views import ViewTables
from lockstep.server.trace_tables import trace_tables
from lockstep.server.turns import Turns
from lockstep.server.virtual import VirtualTables
from lockstep.values.errors import ServerFault
from lockstep.values.limits import CQL_CONNECTIONS_MAX
from lockstep.values.request_limits import LOGIN_MS_MAX

if TYPE_CHECKING:
    from lockstep.node.node import Node


class CqlServer:
    """Made by `serve`, after the node has started. `audited` takes the lines of the audit file."""

    def __init__(self, node: Node, runtime: Runtime, audited: Callable[[str], None] | None = None) -> None:
        self.node = node
        #: What clients and operators tried and changed.
        self.audit = Audit(runtime.clock, node.log, audited)
        self.runtime = runtime
        self.mirrors_payloads = node.configuration.testing.mirror_payloads
        self.connections: dict[CqlConnection, None] = {}
        #: When a connection must have logged in.
        self._login_due: dict[CqlConnection, asyncio.TimerHandle] = {}
        self.load = NodeLoad()
        self.responses = NodeResponses(runtime.clock)
        self.turns = Turns(self.load, runtime.clock)
        node.conditions.watch(watch_overload(node.conditions, self.turns, runtime.clock))
        self.latencies = Latencies(runtime.clock.monotonic_s)
        self.connections_refused = 0
        self.faults = 0
        self.requests_served = 0
        self._server: Server | None = None
        self._stopping = False
        self._finishing: dict[CqlConnection, None] = {}
        #: Set when all have ended that `finish` has told to.
        self.finished = asyncio.Event()
        watch = SchemaWatch(node)
        self.virtual = VirtualTables(
            [
                *SystemTables(node, watch).tables(),
                *SchemaTables(lambda: node.cluster.schema, self._virtual_schema).tables(),
                *ViewTables(node, lambda: list(self.connections)).tables(),
                *AuthTables(lambda: node.cluster.access).tables(),
                *distributed_tables(node),
                *trace_tables(),
            ]
        )
        settings, passwords = node.configuration.auth, Passwords(runtime)
        #: None where clients do not log in, both.
        self.permits: Permits | None = None
        self.authentication: Authentication | None = None
        if settings.asks_password:
            self.authentication = Authentication(node, passwords)
            place = node.configuration.placement.dc
            self.permits = Permits(lambda: node.cluster, place, checks=settings.checks_permissions)
        statements = SchemaStatements(node, watch)
        roles = RoleStatements(node, self.permits, passwords, statements, self.virtual.schema)
        self.executor = Executor(node, self.virtual, statements, roles, self.permits)
        self.events = Events(node, watch, self._broadcast)
        self.draining = Draining(node, self)

    def _virtual_schema(self) -> Schema:
        return self.virtual.schema

    async def start(self) -> None:
        """Listen. ConfigurationError when the address is in use."""
        if self.authentication is not None:
            await self.authentication.make_first_role()
        network, tls = self.node.configuration.network, self.node.configuration.tls
        self._server = await self.runtime.network.listen(
            network.address, network.cql_port, lambda: CqlConnection(self), tls.files
        )

    # -- connections ------------------------------------------------------------------------------

    def opened(self, connection: CqlConnection) -> bool:
        """False when there is no room for another connection."""
        if self._stopping or len(self.connections) >= CQL_CONNECTIONS_MAX:
            self.connections_refused += 1
            return False
        self.connections[connection] = None
        if self.authentication is not None:
            loop = asyncio.get_running_loop()
            due = loop.call_later(LOGIN_MS_MAX / 1000, self._end_unless_logged_in, connection)
            self._login_due[connection] = due
        return True

    def _end_unless_logged_in(self, connection: CqlConnection) -> None:
        del self._login_due[connection]
        if connection.session is None:
            connection.abort()

    def closed(self, connection: CqlConnection) -> None:
        due = self._login_due.pop(connection, None)
        if due is not None:
            due.cancel()
        if connection in self.connections:
            del self.connections[connection]
            self.requests_served += connection.requests_served
        self._finishing.pop(connection, None)
        if not self._finishing:
            self.finished.set()

    def close_unread(self, connection: CqlConnection, why: str) -> None:
        """The client does not take its responses."""
        peer, owed = f"{connection.peer[0]}:{connection.peer[1]}", connection.responses.owed
        self.node.log("cql.client_closed", peer=peer, why=why, owed=owed)
        connection.abort()

    def fault(self, error: BaseException) -> ServerFault:
        """Log a defect and name it for the client, who cannot know what it did."""
        self.faults += 1
        trace = "".join(traceback.format_exception(error)) if error.__traceback__ is not None else ""
        self.node.log("cql.fault", error=f"{type(error).__name__}: {error}", trace=trace)
        return ServerFault(f"Unexpected error in the server: {type(error).__name__}: {error}")

    def _broadcast(self, kind: str, body: bytes) -> None:
        for connection in list(self.connections):
            if kind in connection.events:
                connection.send_event(body)

    # -- the end ----------------------------------------------------------------------------------

    def stop(self) -> None:
        """Stop listening; the connections there are go on."""
        self._stopping = True
        self.events.stop()
        if self._server is not None:
            self._server.close()
            self._server = None

    def refuse(self) -> None:
        """Begin nothing more on any connection."""
        for connection in list(self.connections):
            connection.drain()

    def finish(self, *, also_listeners: bool) -> None:
        """Let each connection end when what is in flight on it is answered, or those that listen for no
        events."""
        chosen = [one for one in self.connections if also_listeners or not one.events]
        self._finishing = dict.fromkeys(chosen)
        if chosen:
            self.finished.clear()
        else:
            self.finished.set()
        for connection in chosen:
            connection.finish()

    def abort(self) -> None:
        """Close what has not finished."""
        for connection in list(self.connections):
            connection.abort()


async def serve(node: Node, runtime: Runtime) -> CqlServer:
    """Open the CQL door of a node that has started. ConfigurationError when the address is in use."""
    server = CqlServer(node, runtime)
    await server.start()
    return server
