"""What operators may ask of a node's leave of its clients.

Invariant: asking begins it at most once; `draining` does it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstep.server.answers import get, later, now
from lockstep.server.operations import Operation

if TYPE_CHECKING:
    from lockstep.server.cql_server import CqlServer

PATH: Final = "/v1/drain"


def operations(server: CqlServer) -> list[Operation]:
    """For the admin API."""
    draining = server.draining
    return [
        get(PATH, "How far this node has taken leave of its clients", now(lambda *_: draining.document())),
        Operation(
            "POST",
            PATH,
            "Take leave of all clients: accept no more, answer what is in flight, tell that this is down",
            later(lambda request, _: draining.begin(request)),
            "How far it is",
            body={"type": "object", "properties": {"dry_run": {"type": "boolean"}}},
        ),
    ]
