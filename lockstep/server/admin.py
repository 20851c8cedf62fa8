"""The admin API: which operations there are, and how errors become answers.

Invariant: every failure leaves as `{code, message, hint}` with a status that fits whose fault it is; fault
controls answer only where the configuration opens them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from lockstep.metadata.membership import ServiceWish
from lockstep.node.configuration import split_address
from lockstep.server import recovery, reports
from lockstep.server.cms import Cms
from lockstep.server.cql_server import CqlServer
from lockstep.server.http import (
    HttpConnection,
    HttpRequest,
    HttpResponse,
    error_document,
    json_response,
)
from lockstep.server.metrics import CONTENT_TYPE, exposition
from lockstep.server.operations import Operation, Parameter, Registry
from lockstep.server.requests import LIVE_PATH, Requests
from lockstep.server.service_requests import LIVE_PATH as VOTERS_LIVE_PATH
from lockstep.server.service_requests import ServiceRequests
from lockstep.values.errors import (
    ConfigurationError,
    LockstepError,
    LogTruncated,
    NotLeader,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
    RequestError,
)
from lockstep.values.limits import ADMIN_CONNECTIONS_MAX

if TYPE_CHECKING:
    from lockstep.node.node import Node

_KEYSPACE = Parameter("keyspace", "Name of a keyspace", required=True)
_FROM = Parameter("from", "First epoch", "integer", True)
_TO = Parameter("to", "Last epoch, included", "integer", True)
_REQUEST_BODY = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["decommission"]},
        "node": {"type": "integer"},
        "dry_run": {"type": "boolean"},
    },
    "required": ["kind", "node"],
}
_RECONFIGURE_BODY = {
    "type": "object",
    "properties": {
        "size": {"type": "integer"},
        "automatic": {"type": "boolean"},
        "nodes": {"type": "array", "items": {"type": "integer"}},
        "dry_run": {"type": "boolean"},
    },
}
_REASON_BODY = {"type": "object", "properties": {"reason": {"type": "string"}}}
_PARTITION_BODY = {
    "type": "object",
    "properties": {"peers": {"type": "array", "items": {"type": "string"}}},
    "required": ["peers"],
}
_GATE_BODY = {
    "type": "object",
    "properties": {
        "hold_commits": {"type": "boolean"},
        "drop_commits": {"type": "integer"},
        "drop_replies": {"type": "integer"},
        "hold_visibility_at": {"type": "integer"},
        "release": {"type": "boolean"},
    },
}

Answer = Callable[[HttpRequest, dict[str, str]], Any]


class Admin:
    """`connection` makes the protocol of one HTTP connection."""

    def __init__(self, node: Node, cql: CqlServer) -> None:
        self._node = node
        self._cql = cql
        self._requests = Requests(node)
        self._service = ServiceRequests(node)
        self._cms = Cms(node)
        self._connections: dict[HttpConnection, None] = {}
        self.registry = Registry(self._operations())

    # -- connections ------------------------------------------------------------------------------

    def connection(self) -> HttpConnection:
        made = HttpConnection(self._node.runtime, self.handle, self._ended)
        if len(self._connections) >= ADMIN_CONNECTIONS_MAX:
            # The oldest has most likely been forgotten by its owner.
            next(iter(self._connections)).close()
        self._connections[made] = None
        return made

    def _ended(self, connection: HttpConnection) -> None:
        self._connections.pop(connection, None)

    def close(self) -> None:
        for connection in list(self._connections):
            connection.close()

    # -- requests ---------------------------------------------------------------------------------

    async def handle(self, request: HttpRequest) -> HttpResponse:
        try:
            found = self.registry.find(request.method, request.path)
            if found is None:
                known = ConfigurationError(
                    f"there is no {request.path}", hint="/openapi.json lists all paths"
                )
                return json_response(error_document(known), 404)
            operation, values = found
            return await operation.perform(request, values)
        except LockstepError as error:
            return json_response(error_document(error), http_status(error))
        except Exception as error:
            fault = self._cql.fault(error)
            return json_response(error_document(fault), 500)

    def _operations(self) -> list[Operation]:
        node = self._node
        return [
            _get("/v1/status", "Health, nodes and running operations", _later(self._status)),
            _get("/v1/nodes", "The nodes with their share of the ring", _now(lambda *_: reports.nodes(node))),
            _get(
                "/v1/placements",
                "Replicas of each token range of a keyspace",
                _now(lambda request, _: reports.placements(node, _required(request, "keyspace"))),
                _KEYSPACE,
                Parameter("table", "Ranges belong to keyspaces: only checked to exist"),
            ),
            _get(
                "/v1/describe",
                "CQL that makes a keyspace or table again",
                _now(self._describe),
                _KEYSPACE,
                Parameter("table", "One table of it"),
            ),
            _get(
                "/v1/metadata",
                "The metadata value at an epoch",
                _later(self._metadata),
                Parameter("epoch", "The newest when absent", "integer"),
            ),
            _get(
                "/v1/metadata/log",
                "Entries of the metadata log",
                _now(self._log),
                _FROM,
                _TO,
                Parameter("available", "Begin later when the first ones are not kept", "boolean"),
            ),
            _get("/v1/metadata/diff", "What changed between two epochs", _later(self._diff), _FROM, _TO),
            *self._request_operations(),
            *self._service_operations(),
            *self._recovery_operations(),
            _get("/v1/cms", "The metadata group", _now(lambda *_: reports.cms(node))),
            *self._cms_operations(),
            _get("/openapi.json", "This document", _now(lambda *_: self.registry.openapi())),
            Operation(
                "GET",
                "/metrics",
                "Counters for Prometheus",
                self._metrics,
                "Prometheus text format",
                content_type=CONTENT_TYPE,
            ),
            *self._fault_operations(),
        ]

    def _request_operations(self) -> list[Operation]:
        requests = self._requests
        return [
            _get("/v1/requests", "Topology operations", _later(lambda *_: requests.all())),
            _get(
                LIVE_PATH, "Running operations as this node alone sees them", _now(lambda *_: requests.live())
            ),
            _get("/v1/requests/{id}", "One topology operation", _later(lambda _, v: requests.one(v["id"]))),
            Operation(
                "POST",
                "/v1/requests",
                "Begin a topology operation, or plan it with dry_run",
                _later(lambda request, _: requests.submit(request.body)),
                "The request, or its plan",
                body=_REQUEST_BODY,
            ),
            Operation(
                "DELETE",
                "/v1/requests/{id}",
                "Take an operation back before reads move",
                _later(lambda _, v: requests.cancel(v["id"])),
                "The request",
            ),
        ]

    def _cms_operations(self) -> list[Operation]:
        cms = self._cms
        return [
            _get(
                "/v1/cms/snapshots", "Snapshots of the metadata kept here", _now(lambda *_: cms.snapshots())
            ),
            Operation(
                "POST",
                "/v1/cms/snapshot",
                "Take a snapshot of the metadata on every node",
                _later(lambda request, _: cms.snapshot(request.body)),
                "The epoch of its entry",
                body={"type": "object", "properties": {"reason": {"type": "string"}}},
            ),
            Operation(
                "POST",
                "/v1/cms/truncate",
                "Let nodes drop log entries that the latest snapshot holds",
                _later(lambda request, _: cms.truncate(request.body)),
                "The epoch of its entry",
                body={"type": "object", "properties": {"epoch": {"type": "integer"}}},
            ),
            _get(
                "/v1/cms/dump",
                "A piece of the file of the metadata at an epoch",
                _later(self._dump),
                Parameter("epoch", "The newest when absent", "integer"),
                Parameter("offset", "First byte of the piece", "integer"),
                Parameter("entries", "Begin at the snapshot before it, with all entries since", "boolean"),
            ),
        ]

    def _recovery_operations(self) -> list[Operation]:
        named = Parameter("nodes", "Ids, host ids or addresses, with commas; all when absent")
        operations = []
        for name in recovery.GROUPS:
            path, answers = recovery.PATH.format(group=name), recovery.GroupAnswers(self._node, name)
            operations += [
                _get(
                    f"{path}/local",
                    f"What each node says of its part in {name}",
                    _later(answers.local),
                    named,
                ),
                _get(f"{path}/global", f"Whether {name} is available", _later(answers.whole)),
            ]
        return operations

    def _service_operations(self) -> list[Operation]:
        """Who votes in the metadata group, and whether it takes changes."""
        service = self._service

        def wish(path: str, summary: str, wished: ServiceWish) -> Operation:
            perform = _later(lambda request, _: service.wish(wished, request.body))
            return Operation("POST", path, summary, perform, "The voters", body=_REASON_BODY)

        return [
            _get(
                "/v1/cms/reconfiguration",
                "The voters and a running change",
                _later(lambda *_: service.status()),
            ),
            _get(
                VOTERS_LIVE_PATH, "The voters as this node alone sees them", _now(lambda *_: service.live())
            ),
            Operation(
                "POST",
                "/v1/cms/reconfigure",
                "Have another number of voters or other voters, or plan it with dry_run",
                _later(lambda request, _: service.reconfigure(request.body)),
                "The voters, or the plan",
                body=_RECONFIGURE_BODY,
            ),
            Operation(
                "POST",
                "/v1/cms/cancel",
                "Stop a change of the voters; what is done stays",
                _later(lambda request, _: service.cancel(request.body)),
                "The voters",
                body=_REASON_BODY,
            ),
            wish("/v1/cms/resume", "Let voters be changed automatically again", ServiceWish.RESUME),
            wish("/v1/cms/freeze", "Refuse changes of schema and topology", ServiceWish.FREEZE),
            wish("/v1/cms/thaw", "Take changes of schema and topology again", ServiceWish.THAW),
        ]

    def _fault_operations(self) -> list[Operation]:
        """Controls that tests use; none unless the configuration opens them."""
        if not self._node.configuration.testing.faults:
            return []
        return [
            Operation(
                "POST",
                "/v1/testing/partition",
                "Cut this node off from these internode addresses",
                _now(self._partition),
                "The peers it is cut off from",
                body=_PARTITION_BODY,
            ),
            Operation(
                "POST",
                "/v1/testing/heal",
                "End every partition of this node",
                _now(lambda *_: self._cut_off([])),
                "No peers",
            ),
            Operation(
                "POST",
                "/v1/testing/metadata",
                "Hold, lose or let pass metadata changes and what of them is seen at this node",
                _now(self._gate),
                "What is held and what was lost",
                body=_GATE_BODY,
            ),
        ]

    # -- answers ----------------------------------------------------------------------------------

    async def _status(self, _request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        return reports.status(self._node, await self._requests.running())

    def _describe(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        catalog = self._cql.executor.catalogs.current()
        return reports.describe(catalog, _required(request, "keyspace"), request.query.get("table"))

    async def _metadata(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        epoch = _integer(request, "epoch") if "epoch" in request.query else None
        return reports.metadata(await reports.metadata_at(self._node, epoch))

    def _log(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        available = request.query.get("available") == "true"
        first, last = _integer(request, "from"), _integer(request, "to")
        return reports.metadata_log(self._node, first, last, available=available)

    async def _diff(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        one = await reports.metadata_at(self._node, _integer(request, "from"))
        return reports.metadata_diff(one, await reports.metadata_at(self._node, _integer(request, "to")))

    async def _dump(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        epoch = _integer(request, "epoch") if "epoch" in request.query else None
        offset = _integer(request, "offset") if "offset" in request.query else 0
        if offset < 0:
            raise ConfigurationError("offset must not be negative")
        return await self._cms.dump(epoch, offset, entries=request.query.get("entries") == "true")

    async def _metrics(self, _request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        return HttpResponse(200, exposition(self._node, self._cql), CONTENT_TYPE)

    def _gate(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        if not isinstance(request.body, dict):
            raise ConfigurationError("the body must be a JSON object of controls")
        return self._node.gate.control(request.body)

    def _partition(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        body = request.body
        peers = body.get("peers") if isinstance(body, dict) else None
        if not isinstance(peers, list) or not all(isinstance(peer, str) for peer in peers):
            raise ConfigurationError('the body must be {"peers": ["host:port", ...]}')
        return self._cut_off(peers)

    def _cut_off(self, peers: list[str]) -> dict[str, Any]:
        port = self._node.configuration.network.internode_port
        addresses = {split_address(peer, port) for peer in peers}
        internode = self._node.internode
        internode.blocked_to = set(addresses)
        internode.blocked_from = set(addresses)
        return {"schema": "partition/1", "peers": sorted(f"{host}:{port}" for host, port in addresses)}


def http_status(error: LockstepError) -> int:
    """The HTTP status of an error."""
    if isinstance(error, Rejected | PreconditionError):
        return 409
    if isinstance(error, OutcomeUnknown):
        return 504
    if isinstance(error, NotLeader | PeerError):
        return 503
    if isinstance(error, ConfigurationError | LogTruncated):
        return 400
    return 400 if isinstance(error, RequestError) and error.fault == "client" else 500


def _get(path: str, summary: str, perform: Any, *parameters: Parameter) -> Operation:
    return Operation("GET", path, summary, perform, summary, parameters)


def _now(answer: Answer) -> Callable[[HttpRequest, dict[str, str]], Awaitable[HttpResponse]]:
    async def perform(request: HttpRequest, values: dict[str, str]) -> HttpResponse:
        return json_response(answer(request, values))

    return perform


def _later(answer: Answer) -> Callable[[HttpRequest, dict[str, str]], Awaitable[HttpResponse]]:
    async def perform(request: HttpRequest, values: dict[str, str]) -> HttpResponse:
        return json_response(await answer(request, values))

    return perform


def _required(request: HttpRequest, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise ConfigurationError(f"{request.path} needs the parameter {name}")
    return value


def _integer(request: HttpRequest, name: str) -> int:
    text = _required(request, name)
    try:
        return int(text)
    except ValueError:
        raise ConfigurationError(f"{name} must be an integer, not {text}") from None
