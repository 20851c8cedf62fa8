"""The operations of the admin API that concern the metadata service and the proofs of its log.

Invariant: here is only which operations there are and what they take; each is done by the module it names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from lockstep.metadata.membership import ServiceWish
from lockstep.server.answers import get, integer, later, now
from lockstep.server.cms import Cms
from lockstep.server.cms_describe import described
from lockstep.server.http import HttpRequest
from lockstep.server.metadata_proof import Proofs
from lockstep.server.operations import Operation, Parameter
from lockstep.server.service_requests import LIVE_PATH as VOTERS_LIVE_PATH
from lockstep.server.service_requests import ServiceRequests
from lockstep.values.errors import ConfigurationError

if TYPE_CHECKING:
    from lockstep.node.node import Node

_FROM = Parameter("from", "First epoch", "integer", True)
_RECONFIGURE_BODY = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "automatic": {"type": "boolean"},
        "nodes": {"type": "array", "items": {"type": "integer"}},
        "dry_run": {"type": "boolean"},
    },
}
_REASON_BODY = {
    "type": "object",
    "properties": {"reason": {"type": "string"}, "dry_run": {"type": "boolean"}},
}


class ServiceOperations:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._requests = ServiceRequests(node)
        self._cms = Cms(node)

    def live(self) -> dict[str, Any]:
        """The voters as this node alone sees them."""
        return self._requests.live()

    def operations(self) -> list[Operation]:
        return [
            get(
                "/v1/cms",
                "The metadata service: members, both groups, a running change, the log",
                later(lambda *_: described(self._node, self._requests)),
            ),
            *self._proof_operations(),
            *self._service_operations(),
            *self._cms_operations(),
        ]

    def _proof_operations(self) -> list[Operation]:
        proofs = Proofs(self._node)
        return [
            get(
                "/v1/metadata/proof",
                "This node's log, checked entry by entry, and hashes to compare with other nodes'",
                later(lambda request, _: proofs.proof(integer(request, "from"))),
                _FROM,
            ),
            get(
                "/v1/metadata/digest",
                "The digest of the metadata at an epoch, whole and by part",
                later(lambda request, _: proofs.digest(integer(request, "epoch"))),
                Parameter("epoch", "Which epoch", "integer", True),
            ),
        ]

    def _cms_operations(self) -> list[Operation]:
        cms = self._cms
        return [
            get("/v1/cms/snapshots", "Snapshots of the metadata kept here", now(lambda *_: cms.snapshots())),
            Operation(
                "POST",
                "/v1/cms/snapshot",
                "Take a snapshot of the metadata on every node",
                later(lambda request, _: cms.snapshot(request.body)),
                "The epoch of its entry",
                body=_REASON_BODY,
            ),
            Operation(
                "POST",
                "/v1/cms/truncate",
                "Let nodes drop log entries that the latest snapshot holds",
                later(lambda request, _: cms.truncate(request.body)),
                "The epoch of its entry",
                body={
                    "type": "object",
                    "properties": {"epoch": {"type": "integer"}, "dry_run": {"type": "boolean"}},
                },
            ),
            Operation(
                "GET",
                "/v1/cms/dump",
                "A piece of the file of the metadata at an epoch",
                later(self._dump),
                "The piece in base64, and the size of the file",
                (
                    Parameter("epoch", "The newest when absent", "integer"),
                    Parameter("offset", "First byte of the piece", "integer"),
                    Parameter(
                        "entries", "Begin at the snapshot before it, with all entries since", "boolean"
                    ),
                ),
                holds_secrets=True,
            ),
        ]

    def _service_operations(self) -> list[Operation]:
        """Who votes in the metadata group, and whether it takes changes."""
        requests = self._requests

        def wish(path: str, summary: str, wished: ServiceWish) -> Operation:
            perform = later(lambda request, _: requests.wish(wished, request.body))
            return Operation("POST", path, summary, perform, "The voters", body=_REASON_BODY)

        return [
            get(
                "/v1/cms/reconfiguration",
                "The voters and a running change",
                later(lambda *_: requests.status()),
            ),
            get(VOTERS_LIVE_PATH, "The voters as this node alone sees them", now(lambda *_: requests.live())),
            Operation(
                "POST",
                "/v1/cms/reconfigure",
                "Have another number of voters or other voters, or plan it with dry_run",
                later(lambda request, _: requests.reconfigure(request.body)),
                "The voters, or the plan",
                body=_RECONFIGURE_BODY,
            ),
            Operation(
                "POST",
                "/v1/cms/cancel",
                "Stop a change of the voters; what is done stays",
                later(lambda request, _: requests.cancel(request.body)),
                "The voters",
                body=_REASON_BODY,
            ),
            wish("/v1/cms/resume", "Let voters be changed automatically again", ServiceWish.RESUME),
            wish("/v1/cms/freeze", "Refuse changes of schema and topology", ServiceWish.FREEZE),
            wish("/v1/cms/thaw", "Take changes of schema and topology again", ServiceWish.THAW),
        ]

    async def _dump(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        epoch = integer(request, "epoch") if "epoch" in request.query else None
        offset = integer(request, "offset") if "offset" in request.query else 0
        if offset < 0:
            raise ConfigurationError("offset must not be negative")
        return await self._cms.dump(epoch, offset, entries=request.query.get("entries") == "true")
