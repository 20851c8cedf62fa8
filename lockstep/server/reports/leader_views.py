"""What only the metadata leader knows, for the admin API of every node: asked of it between the nodes.

Invariant: asking changes nothing, and needs no more than being a member; a question that nobody answers in
time has no answer, and whoever asks tells what it knows itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.directory import NodeInfo
from lockstep.node.services import NodeServices
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import repair_rows
from lockstep.values.errors import ConfigurationError, LockstepError, PeerUnreachable
from lockstep.values.ids import NodeId
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS

Document = dict[str, Any]

#: The queued and running operations.
REQUESTS: Final = "requests"
#: The voters and a change of them.
VOTERS: Final = "voters"
#: Whom operations and changes of the voters wait for.
BARRIERS: Final = "barriers"
#: Requests as rows, with what their operations moved.
TOPOLOGY_REQUESTS: Final = "topology_requests"
#: Repairs, and how far those are that this node drives.
REPAIRS: Final = "repairs"


class AskLive(msgspec.Struct, frozen=True, array_like=True):
    """What do you know of this by yourself?"""

    view: str


class LiveView(msgspec.Struct, frozen=True, array_like=True):
    """`document` is JSON."""

    document: bytes


def serve_live(node: NodeServices, views: Callable[[], dict[str, Callable[[], Document]]]) -> None:
    """Answer other nodes with these views, which are made when they are asked for."""

    async def answer(_peer: object, question: AskLive) -> LiveView:
        view = views().get(question.view)
        if view is None:
            raise ConfigurationError(f"there is no view {question.view}")
        return LiveView(json.dumps(view()).encode())

    node.context.internode.register(verbs.LIVE_VIEW, AskLive, LiveView, answer)


async def ask_leaders(node: NodeServices, view: str, fits: Callable[[Document], bool]) -> Document | None:
    """The view of the metadata leader: of the first voter that leads and whose answer fits; None."""
    for info in _leaders(node):
        try:
            document = await _asked(node, info, view)
        except LockstepError as error:
            node.context.log("admin.leader_waits", node=info.id, error=error.message)
            continue
        if document.get("leads") and fits(document):
            return document
    return None


async def leaders_rows(
    node: NodeServices, view: str, rows: Callable[[NodeServices], Iterable[VirtualRow]]
) -> Iterable[VirtualRow]:
    """The rows of a view as the metadata leader has them; this node's own when it leads or cannot ask."""
    if node.log.is_leader:
        return rows(node)
    found = await ask_leaders(node, view, lambda _: True)
    return rows(node) if found is None else found["rows"]


async def drivers_rows(node: NodeServices) -> Iterable[VirtualRow]:
    """Rows of repairs, each as the node has it that drives it; as this node has it where that is silent."""
    rows = {(row["id"], row["keyspace_name"]): row for row in repair_rows(node)}
    drivers = sorted({row["driver"] for row in rows.values()} - {node.context.own_id()})
    for driver in drivers:
        info = node.log.cluster.directory.by_id.get(NodeId(driver))
        if info is None or not node.membership.liveness.alive(driver):
            continue
        try:
            document = await _asked(node, info, REPAIRS)
        except LockstepError as error:
            node.context.log("admin.driver_waits", node=driver, error=error.message)
            continue
        told = {(row["id"], row["keyspace_name"]): row for row in document["rows"]}
        rows |= {key: row for key, row in told.items() if key in rows and rows[key]["driver"] == driver}
    return rows.values()


async def _asked(node: NodeServices, info: NodeInfo, view: str) -> Document:
    address = (info.address, info.internode_port)
    reply: LiveView = await node.context.internode.request(
        address, verbs.LIVE_VIEW, AskLive(view), ADMIN_FORWARD_TIMEOUT_MS
    )
    document = json.loads(reply.document)
    if not isinstance(document, dict):
        raise PeerUnreachable(f"node {info.id} answered {type(document).__name__}, not an object")
    return document


def _leaders(node: NodeServices) -> Iterator[NodeInfo]:
    """Live voters, the likeliest leader first."""
    known = node.log.leader_id
    for voter in sorted(node.log.cluster.voters, key=lambda voter: voter != known):
        if voter != node.context.own_id() and node.membership.liveness.alive(voter):
            yield node.log.cluster.directory.by_id[voter]
