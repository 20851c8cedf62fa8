"""The admin port of one node: it listens at once and loads the API with the first connection.

Invariant: a node that nobody administers pays for a listening socket only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.node.services import NodeServices
from lockstep.runtime.ports import Server, Tls
from lockstep.server.admin.admin_access import own_token
from lockstep.server.cql.cql_server import CqlServer
from lockstep.server.reports.leader_views import serve_live

if TYPE_CHECKING:
    from lockstep.server.admin.api import Admin


class AdminDoor:
    """Made by `serve_admin`."""

    def __init__(self, node: NodeServices, cql: CqlServer, token: str) -> None:
        self._node = node
        self._cql = cql
        self._token = token
        self._admin: Admin | None = None
        self.server: Server | None = None

    @property
    def admin(self) -> Admin:
        if self._admin is None:
            from lockstep.server.admin.admin_access import AdminAccess
            from lockstep.server.admin.api import Admin

            settings, cql = self._node.context.configuration, self._cql
            access = AdminAccess(
                settings.admin, settings.admin_host, self._token, cql.authentication, cql.permits
            )
            self._admin = Admin(self._node, cql, access)
        return self._admin

    def connection(self) -> asyncio.Protocol:
        return self.admin.connection()

    def live(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """What this node knows by itself, for other nodes."""
        return self.admin.live()

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
            self.server = None
        if self._admin is not None:
            self._admin.close()


async def serve_admin(node: NodeServices, cql: CqlServer, token: str = "") -> AdminDoor:
    """Open the admin port of a node; an empty `token` stands for the one in its data directory.
    ConfigurationError when the address is in use, or the token unreadable."""
    configuration = node.context.configuration
    door = AdminDoor(node, cql, token or await own_token(node.context.runtime))
    serve_live(node, door.live)
    tls = configuration.tls.files
    # Whoever asks shows a token or a password, so it shows no certificate.
    shown = Tls(tls.certificate, tls.key) if tls is not None else None
    door.server = await node.context.runtime.network.listen(
        configuration.admin_host, configuration.network.admin_port, door.connection, shown
    )
    return door
