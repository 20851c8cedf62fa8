"""A node takes leave of its clients: the CQL door closes, what is in flight is answered, others are told.

Invariant: from the first moment on no request is begun, and after a bounded time no connection is left; the
node stays a replica, and a voter, as long as its process runs.
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

    async def drain(self, limit_ms: int) -> None:
        """Return when no client is connected any more."""
        server = self._server
        if self.state == "serving":
            self.state = "draining"
            self._node.gossip.withdraw()
            server.events.tell_own_end()
        server.stop()
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await server.drained.wait()
        except TimeoutError:
            self.cut += server.load.requests
            server.abort()
        self.state = "drained"

    async def begin(self, request: HttpRequest) -> dict[str, Any]:
        """Answer the admin API. ConfigurationError."""
        body = request.body if request.body is not None else {}
        if not isinstance(body, dict) or not isinstance(body.get("dry_run", False), bool):
            raise ConfigurationError('the body must be {"dry_run": true or false}')
        if body.get("dry_run"):
            return {**self.document(), "dry_run": True}
        if self.state == "serving":
            self._node.runtime.tasks.spawn(self.drain(DRAIN_BY_COMMAND_MS), "cql.drain")
            await asyncio.sleep(0)  # It begins in this turn, and the answer tells that.
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
