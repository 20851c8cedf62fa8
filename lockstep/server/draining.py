"""A node takes leave of its clients: the CQL door closes, what is in flight is answered, others are told.

Invariant: what clients sent before is answered; what comes later is refused as not done, as long as something
is in flight, and finds the end of the connection then. After a bounded time no connection is left; the node
stays a replica, and a voter, as long as its process runs.

Drivers do not heed the end of a node that they hold a connection for requests to, and hear of it once. So
those connections end first, then the ones that listen for events are told and end, then other nodes tell
their clients.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lockstep.values.errors import ConfigurationError
from lockstep.values.limits import DRAIN_BY_COMMAND_MS

if TYPE_CHECKING:
    from lockstep.node.node import Node
    from lockstep.server.cql_server import CqlServer
    from lockstep.server.http import HttpRequest


class Draining:
    """`state` is serving, draining or drained; `cut` counts requests that found no end in time."""

    def __init__(self, node: Node, server: CqlServer) -> None:
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
            self._node.conditions.report("NODE_DRAINED")
        server.stop()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._look_at_sockets()
                server.refuse()
                self._refusing.set()
                await self._look_at_sockets()
                server.finish(also_listeners=False)
                await server.finished.wait()
                server.events.tell_own_end()
                server.finish(also_listeners=True)
                await server.finished.wait()
        except TimeoutError:
            self.cut += server.load.requests
            server.abort()
        self._node.gossip.withdraw()
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
            self._node.runtime.tasks.spawn(self.drain(DRAIN_BY_COMMAND_MS), "cql.drain")
            await self._refusing.wait()  # What is sent behind this answer is refused.
        return self.document()

    def document(self) -> dict[str, Any]:
        return {
            "schema": "drain/1",
            "node": self._node.node_id,
            "state": self.state,
            "connections": len(self._server.connections),
            "requests": self._server.load.requests,
            "cut": self.cut,
            "limit_ms": DRAIN_BY_COMMAND_MS,
        }
