"""The admin port of one node: it listens at once and loads the API with the first connection.

Invariant: a node that nobody administers pays for a listening socket only.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lockstep.runtime.ports import Server
from lockstep.server.cql_server import CqlServer

if TYPE_CHECKING:
    from lockstep.node.node import Node
    from lockstep.server.admin import Admin


class AdminDoor:
    """Made by `serve_admin`."""

    def __init__(self, node: Node, cql: CqlServer) -> None:
        self._node = node
        self._cql = cql
        self._admin: Admin | None = None
        self.server: Server | None = None

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            from lockstep.server.admin import Admin

            self._admin = Admin(self._node, self._cql)
        return self._admin

    def connection(self) -> asyncio.Protocol:
        return self.admin.connection()

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        if self._admin is not None:
            self._admin.close()


async def serve_admin(node: Node, cql: CqlServer) -> AdminDoor:
    """Open the admin port of a node. ConfigurationError when the address is in use."""
    door = AdminDoor(node, cql)
    network = node.configuration.network
    door.server = await node.runtime.network.listen(network.address, network.admin_port, door.connection)
    return door
