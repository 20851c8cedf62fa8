"""The ring of a cluster without a log over HTTP: what a node has of it, and an operator's abort.

Invariant: nothing is decided here; a cluster with a log has no ring, and says so.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from lockstep.documents.ring import RingAborted, RingReport
from lockstep.node.ring.service import RingService
from lockstep.node.services import NodeServices
from lockstep.server.admin.gossip_injection import GossipInjections
from lockstep.server.admin.operations import Operation, get, later, now, read_body
from lockstep.server.admin.upgrade import UpgradeRequests
from lockstep.values.errors import PreconditionError

_BODY: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "description": "Of the proposal"},
        "force": {"type": "boolean", "description": "Although its initiator may have committed it"},
    },
}


class _Abort(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    force: bool = False


class RingRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    @property
    def _ring(self) -> RingService:
        if not self._node.context.is_on_ring:
            raise PreconditionError("this cluster has a log, and no ring of its own", hint="lockstep status")
        return self._node.log.ring

    def report(self) -> RingReport:
        return self._ring.report()

    async def abort(self, body: Any) -> RingAborted:
        wanted = read_body(body or {}, _Abort, "the body names no proposal")
        return RingAborted(name=wanted.name, text=await self._ring.abort(wanted.name, force=wanted.force))

    def operations(self) -> list[Operation]:
        """For the admin API."""
        return [
            get("/v1/ring", "The ring of a cluster without a log", now(lambda *_: self.report())),
            Operation(
                "POST",
                "/v1/ring/abort",
                "End a pending proposal of a change, on the ring without a log",
                later(lambda request, _: self.abort(request.body)),
                "What was done",
                body=_BODY,
            ),
            *UpgradeRequests(self._node).operations(),
            *GossipInjections(self._node).operations(),
        ]
