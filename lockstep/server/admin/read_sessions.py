"""Read sessions of this node for the admin API: which there are, and the end of one.

Clients open them at the CQL port, by what their role may read; who reads one that was ended hears that the
snapshot has expired.
"""

from __future__ import annotations

from typing import Any, Final

from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import Operation, get, later, now
from lockstep.server.views.read_session_views import read_session_rows
from lockstep.values.errors import ConfigurationError

PATH: Final = "/v1/read-sessions"


def read_session_operations(node: NodeServices) -> list[Operation]:
    """For the admin API."""

    async def end(_request: Any, values: dict[str, str]) -> dict[str, Any]:
        if not await node.data.read_sessions.end(values["id"]):
            raise ConfigurationError(
                f"there is no read session {values['id']} at this node", hint=f"those that are: GET {PATH}"
            )
        return _document(node)

    return [
        get(PATH, "Read sessions of this node: contents that jobs read", now(lambda *_: _document(node))),
        Operation(
            "DELETE", PATH + "/{id}", "End a read session of this node", later(end), "Those that are left"
        ),
    ]


def _document(node: NodeServices) -> dict[str, Any]:
    return {
        "schema": "read-sessions/1",
        "node": node.context.own_id(),
        "read_sessions": list(read_session_rows(node)),
    }
