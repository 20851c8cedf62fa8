"""The admin API: which operations there are, and how errors become answers.

Invariant: every failure leaves as `{code, message, hint}` with a status that fits whose fault it is; fault
controls answer only where the configuration opens them; an operation is performed for whom `AdminAccess`
admitted, and knows who that is. Leave of clients is begun at most once; a check of the table files is begun
unless one is under way, and what it found stays until the next one. Health probes are answered from the
findings that `status` shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from msgspec import structs

from lockstep.documents.requests import MetadataDiff
from lockstep.documents.service import LoggedEntries
from lockstep.documents.status import Description
from lockstep.metadata.directory import OWNING_STATES
from lockstep.node.configuration import split_address
from lockstep.node.services import NodeServices
from lockstep.node.work.table_damage import ScrubState
from lockstep.server.admin.admin_access import CHALLENGE, CHANGING, AdminAccess, status_of
from lockstep.server.admin.backups import BackupRequests
from lockstep.server.admin.cms_operations import ServiceOperations
from lockstep.server.admin.http import (
    HttpConnection,
    HttpRequest,
    HttpResponse,
    error_document,
    json_response,
)
from lockstep.server.admin.loads import load_operations
from lockstep.server.admin.operations import (
    Operation,
    Parameter,
    Registry,
    get,
    integer,
    later,
    now,
    required,
)
from lockstep.server.admin.read_sessions import read_session_operations
from lockstep.server.admin.reconcile import reconcile_operations
from lockstep.server.admin.reconfiguration import Reconfiguration
from lockstep.server.admin.recovery import RecoveryRequests
from lockstep.server.admin.repairs import RepairRequests
from lockstep.server.admin.replacing import Replacements
from lockstep.server.admin.replica_content import ReplicaContent
from lockstep.server.admin.requests import BODY as EXCLUDE_BODY
from lockstep.server.admin.requests import LIVE_PATH, ExcludeList, Requests
from lockstep.server.admin.requests import PATH as EXCLUDED_PATH
from lockstep.server.admin.ring import RingRequests
from lockstep.server.admin.stream_repair import StreamRequests
from lockstep.server.admin.tablet_migrations import MigrationRequests
from lockstep.server.admin.tablet_requests import TabletRequests
from lockstep.server.admin.tablet_resizes import ResizeRequests
from lockstep.server.cql.cql_server import CqlServer
from lockstep.server.metrics.exposition import CONTENT_TYPE, exposition
from lockstep.server.reports import documents as reports
from lockstep.server.reports import leader_views
from lockstep.server.reports.leader_views import BARRIERS, REPAIRS, REQUESTS, TOPOLOGY_REQUESTS, VOTERS
from lockstep.server.reports.stories import Stories
from lockstep.server.views.live_views import PATH as GOSSIP_PATH
from lockstep.server.views.live_views import barrier_rows, found_by, gossip
from lockstep.server.views.system_views import request_rows
from lockstep.server.views.work_views import repair_rows
from lockstep.topology.health import level_of, verdict
from lockstep.values.errors import (
    BadCredentials,
    ConfigurationError,
    LockstepError,
    LogTruncated,
    NotLeader,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
    RequestError,
    Unauthorized,
)
from lockstep.values.limits import ADMIN_CONNECTIONS_MAX

SCRUB_PATH: Final = "/v1/scrub"


def scrub_operations(node: NodeServices) -> list[Operation]:
    """For the admin API."""
    return [
        get(
            SCRUB_PATH,
            "The last check of this node's table files",
            now(lambda *_: _document(node, node.data.scrub.state)),
        ),
        Operation(
            "POST",
            SCRUB_PATH,
            "Check every table file of this node against its checksums, in the background",
            now(lambda *_: _document(node, node.data.scrub.begin())),
            "How far it is",
        ),
    ]


def _document(node: NodeServices, state: ScrubState) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(state)
    return {"schema": "scrub/1", "node": node.context.own_id(), **found}


#: Not ready, but well: probes and load balancers send clients elsewhere.
_NOT_READY: Final = 503


def why_not_ready(node: NodeServices) -> list[str]:
    """Why clients should use other nodes; empty when this one serves them and is in the ring."""
    info, reasons = node.context.info, []
    if node.log.state.broken is not None:
        reasons.append(f"it serves no more: {node.log.state.broken}")
    elif info is not None and info.id in node.log.cluster.excluded_by_node:
        reasons.append(f"it is excluded: {node.log.cluster.excluded_by_node[info.id].reason}")
    elif any(one.code == "NODE_DRAINED" for one in node.context.conditions.current()):
        reasons.append("it was drained")
    elif info is None:
        reasons.append("it is no member of the cluster yet")
    elif info.state not in OWNING_STATES:
        reasons.append(f"it is {info.state.value}, not in the ring")
    elif not node.life.ready:
        reasons.append("it starts or stops")
    return reasons


def health_operations(node: NodeServices) -> list[Operation]:
    """What probes ask, without a credential where settings allow it."""

    async def live(_request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        return json_response({"schema": "health/1", "live": True, "node": node.context.own_id() or None})

    async def ready(_request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        reasons, found = why_not_ready(node), found_by(node)
        answer: dict[str, Any] = {
            "schema": "health/1",
            "ready": not reasons,
            "node": node.context.own_id() or None,
            "reasons": reasons,
            "level": level_of(found).word,
            "verdict": verdict(found, node.context.own_id(), running=bool(node.log.cluster.operations)),
        }
        return json_response(answer, _NOT_READY if reasons else 200)

    return [
        Operation("GET", "/health/live", "Whether the process runs its loop", live, "It does"),
        Operation(
            "GET",
            "/health/ready",
            "Whether the node serves clients and is in the ring",
            ready,
            "It does; 503 with the reasons when it does not, whatever the verdict on the cluster",
        ),
    ]


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


_KEYSPACE = Parameter("keyspace", "Name of a keyspace", required=True)
_FROM = Parameter("from", "First epoch", "integer", True)
_TO = Parameter("to", "Last epoch, included", "integer", True)
_REQUEST_BODY = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["bootstrap", "decommission", "move", "remove", "rebuild", "replace"]},
        "node": {"type": "integer"},
        "tokens": {"type": "array", "items": {"type": "integer"}},
        "source_dc": {"type": "string"},
        "force": {"type": "boolean"},
        "presume_dead": {"type": "boolean"},
        "reason": {"type": "string"},
        "policy": {"enum": ["wait", "refuse"]},
        "dry_run": {"type": "boolean"},
        "new": {
            "type": "object",
            "description": "The node of a dry run of bootstrap or replace",
            "properties": {
                "address": {"type": "string"},
                "dc": {"type": "string"},
                "rack": {"type": "string"},
                "num_tokens": {"type": "integer"},
            },
        },
        "base": {"type": "object", "description": "Refuse unless this of a plan still holds"},
    },
    "required": ["kind"],
}
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


class Admin:
    """`connection` makes the protocol of one HTTP connection."""

    def __init__(self, node: NodeServices, cql: CqlServer, access: AdminAccess) -> None:
        self._node = node
        self._cql = cql
        self._access = access
        self._requests = Requests(node)
        self._excluded = ExcludeList(node)
        self._stories = Stories(node)
        self._service = ServiceOperations(node)
        self._connections: dict[HttpConnection, None] = {}
        self.registry = Registry(self._operations())

    # -- connections ------------------------------------------------------------------------------

    def connection(self) -> HttpConnection:
        made = HttpConnection(self._node.context.runtime, self.handle, self._ended)
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
            self._access.screen(request)
            found = self.registry.find(request.method, request.path)
            if found is None:
                known = ConfigurationError(
                    f"there is no {request.path}", hint="/openapi.json lists all paths"
                )
                return json_response(error_document(known), 404)
            operation, values = found
            return await self._dispatch(operation, request, values)
        except LockstepError as error:
            answer = json_response(error_document(error), http_status(error))
            return structs.replace(answer, headers=CHALLENGE) if answer.status == 401 else answer
        except Exception as error:
            fault = self._cql.clients.fault(error)
            return json_response(error_document(fault), 500)

    async def _dispatch(
        self, operation: Operation, request: HttpRequest, values: dict[str, str]
    ) -> HttpResponse:
        """Perform an operation for whom the request is from: the one way that leads to any. What changes
        something is audited, and who is not admitted."""
        asked = f"{request.method} {request.path}"
        try:
            principal = await self._access.admit(request, operation.access)
        except (BadCredentials, Unauthorized) as error:
            self._cql.audit.not_admitted(asked, request.peer, error.code, error.message)
            raise
        given = structs.replace(request, principal=principal)
        if operation.access not in CHANGING:
            return await operation.perform(given, values)
        outcome, code = "failed", "FAULT"
        try:
            response = await operation.perform(given, values)
            outcome, code = "done", ""
            return response
        except LockstepError as error:
            outcome, code = "refused" if http_status(error) < 500 else "failed", error.code
            raise
        finally:
            self._cql.audit.changed(asked, principal, request.peer, request.body, outcome, code)

    def live(self) -> dict[str, Callable[[], dict[str, Any]]]:
        """What this node knows by itself, for other nodes."""
        node = self._node
        return {
            REQUESTS: self._requests.live,
            VOTERS: self._service.live,
            BARRIERS: lambda: {"leads": node.log.is_leader, "rows": list(barrier_rows(node))},
            TOPOLOGY_REQUESTS: lambda: {"leads": node.log.is_leader, "rows": list(request_rows(node))},
            REPAIRS: lambda: {"rows": list(repair_rows(node))},
        }

    def _operations(self) -> list[Operation]:
        node = self._node
        return [
            get("/v1/status", "Health, nodes and running operations", later(self._status)),
            get("/v1/nodes", "The nodes with their share of the ring", now(lambda *_: reports.nodes(node))),
            get(
                GOSSIP_PATH,
                "What nodes say of themselves, and how alive they seem from here",
                now(lambda request, _: gossip(node, request.query.get("node"))),
                Parameter("node", "Only this one: its id, host id or address"),
            ),
            *self._range_operations(),
            get(
                "/v1/describe",
                "CQL that makes a keyspace or table again",
                now(self._describe),
                _KEYSPACE,
                Parameter("table", "One table of it"),
            ),
            get(
                "/v1/metadata",
                "The metadata value at an epoch",
                later(self._metadata),
                Parameter("epoch", "The newest when absent", "integer"),
            ),
            get(
                "/v1/metadata/log",
                "Entries of the metadata log",
                now(self._log),
                _FROM,
                _TO,
                Parameter("available", "Begin later when the first ones are not kept", "boolean"),
            ),
            get(
                "/v1/story",
                "What the log did to one thing, entry after entry",
                later(lambda request, _: self._stories.tell(request)),
                Parameter("kind", "node, request, operation, epoch or token", required=True),
                Parameter("id", "Which one; a node also by host id or address", required=True),
                Parameter("keyspace", "Of a token; all keyspaces when absent"),
                Parameter("table", "Of the keyspace: only checked to exist"),
            ),
            get("/v1/metadata/diff", "What changed between two epochs", later(self._diff), _FROM, _TO),
            *self._request_operations(),
            *RepairRequests(node).operations(),
            *ReplicaContent(node).operations(),
            *BackupRequests(node, self._cql.executor).operations(),
            *self._recovery_operations(),
            *RecoveryRequests(node).operations(),
            *Reconfiguration(node).operations(),
            *Replacements(node).operations(),
            *RingRequests(node).operations(),
            *operations(self._cql),
            *scrub_operations(self._node),
            *read_session_operations(self._node),
            *load_operations(self._node),
            *reconcile_operations(self._node),
            *self._service.operations(),
            *health_operations(node),
            get("/openapi.json", "This document", now(lambda *_: self.registry.openapi())),
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

    def _range_operations(self) -> list[Operation]:
        node = self._node
        return [
            get(
                "/v1/placements",
                "Replicas of each token range of a keyspace, or of a table of a keyspace with tablets",
                now(
                    lambda request, _: reports.placements(
                        node, required(request, "keyspace"), request.query.get("table", "")
                    )
                ),
                _KEYSPACE,
                Parameter("table", "A table of it: needed where the keyspace has tablets"),
            ),
            *TabletRequests(node).operations(),
            *MigrationRequests(node).operations(),
            *ResizeRequests(node).operations(),
            *StreamRequests(node).operations(),
        ]

    def _request_operations(self) -> list[Operation]:
        requests = self._requests
        return [
            get("/v1/requests", "Topology operations", later(lambda *_: requests.all())),
            get(
                LIVE_PATH, "Running operations as this node alone sees them", now(lambda *_: requests.live())
            ),
            get(EXCLUDED_PATH, "Nodes that are shut out", now(lambda *_: self._excluded.all())),
            get(
                reports.PATH,
                "Features that nodes support and that are enabled",
                now(lambda *_: reports.report(self._node)),
            ),
            Operation(
                "POST",
                EXCLUDED_PATH,
                "Shut nodes out, or with undo take them back once they have caught up",
                later(lambda request, _: self._excluded.change(request.body)),
                "The exclude list",
                body=EXCLUDE_BODY,
            ),
            get("/v1/requests/{id}", "One topology operation", later(lambda _, v: requests.one(v["id"]))),
            Operation(
                "POST",
                "/v1/requests",
                "Begin a topology operation, or plan it with dry_run",
                later(lambda request, _: requests.submit(request.body)),
                "The request, or its plan",
                body=_REQUEST_BODY,
            ),
            Operation(
                "DELETE",
                "/v1/requests/{id}",
                "Take an operation back before reads move",
                later(lambda _, v: requests.cancel(v["id"])),
                "The request",
            ),
        ]

    def _recovery_operations(self) -> list[Operation]:
        named = Parameter("nodes", "Ids, host ids or addresses, with commas; all when absent")
        operations = []
        for name in leader_views.GROUPS:
            path, answers = leader_views.PATH.format(group=name), leader_views.GroupAnswers(self._node, name)
            operations += [
                get(
                    f"{path}/local",
                    f"What each node says of its part in {name}",
                    later(answers.local),
                    named,
                ),
                get(f"{path}/global", f"Whether {name} is available", later(answers.whole)),
            ]
        return operations

    def _fault_operations(self) -> list[Operation]:
        """Controls that tests use; none unless the configuration opens them."""
        if not self._node.context.configuration.testing.faults:
            return []
        return [
            Operation(
                "POST",
                "/v1/testing/partition",
                "Cut this node off from these internode addresses",
                now(self._partition),
                "The peers it is cut off from",
                body=_PARTITION_BODY,
            ),
            Operation(
                "POST",
                "/v1/testing/heal",
                "End every partition of this node",
                now(lambda *_: self._cut_off([])),
                "No peers",
            ),
            Operation(
                "POST",
                "/v1/testing/metadata",
                "Hold, lose or let pass metadata changes and what of them is seen at this node",
                now(self._gate),
                "What is held and what was lost",
                body=_GATE_BODY,
            ),
        ]

    # -- answers ----------------------------------------------------------------------------------

    async def _status(self, _request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        return reports.status(self._node, await self._requests.running())

    def _describe(self, request: HttpRequest, _values: dict[str, str]) -> Description:
        catalog = self._cql.executor.catalogs.current()
        return reports.describe(catalog, required(request, "keyspace"), request.query.get("table"))

    async def _metadata(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        epoch = integer(request, "epoch") if "epoch" in request.query else None
        return reports.metadata(await reports.metadata_at(self._node, epoch))

    def _log(self, request: HttpRequest, _values: dict[str, str]) -> LoggedEntries:
        available = request.query.get("available") == "true"
        first, last = integer(request, "from"), integer(request, "to")
        return reports.metadata_log(self._node, first, last, available=available)

    async def _diff(self, request: HttpRequest, _values: dict[str, str]) -> MetadataDiff:
        one = await reports.metadata_at(self._node, integer(request, "from"))
        return reports.metadata_diff(one, await reports.metadata_at(self._node, integer(request, "to")))

    async def _metrics(self, _request: HttpRequest, _values: dict[str, str]) -> HttpResponse:
        return HttpResponse(200, exposition(self._node, self._cql), CONTENT_TYPE)

    def _gate(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        if not isinstance(request.body, dict):
            raise ConfigurationError("the body must be a JSON object of controls")
        return self._node.log.member.gate.control(request.body)

    def _partition(self, request: HttpRequest, _values: dict[str, str]) -> dict[str, Any]:
        body = request.body
        peers = body.get("peers") if isinstance(body, dict) else None
        if not isinstance(peers, list) or not all(isinstance(peer, str) for peer in peers):
            raise ConfigurationError('the body must be {"peers": ["host:port", ...]}')
        return self._cut_off(peers)

    def _cut_off(self, peers: list[str]) -> dict[str, Any]:
        port = self._node.context.configuration.network.internode_port
        addresses = {split_address(peer, port) for peer in peers}
        self._node.context.internode.faults.cut_off(addresses)
        return {"schema": "partition/1", "peers": sorted(f"{host}:{port}" for host, port in addresses)}


def http_status(error: LockstepError) -> int:
    """The HTTP status of an error."""
    refused = status_of(error)
    if refused is not None:
        return refused
    if isinstance(error, Rejected | PreconditionError):
        return 409
    if isinstance(error, OutcomeUnknown):
        return 504
    if isinstance(error, NotLeader | PeerError):
        return 503
    if isinstance(error, ConfigurationError | LogTruncated):
        return 400
    return 400 if isinstance(error, RequestError) and error.fault == "client" else 500
