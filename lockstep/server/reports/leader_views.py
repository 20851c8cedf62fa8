"""What only the metadata leader knows, for the admin API of every node, asked of it between the nodes; and
how the two consensus groups fare, under the paths that recovery tools know.

Owns the names by which people call the groups: `cmg` is the management group, `metastorage` the metadata
group.

Invariant: asking changes nothing, and needs no more than being a member; a question that nobody answers in
time has no answer, and whoever asks tells what it knows itself. Everything is asked anew for each answer;
nothing is kept here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.log.messages import GroupReport
from lockstep.node.services import NodeServices
from lockstep.server.views.virtual import VirtualRow
from lockstep.server.views.work_views import repair_rows
from lockstep.values.errors import ConfigurationError, LockstepError, PeerUnreachable, PreconditionError
from lockstep.values.ids import NodeId
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS

if TYPE_CHECKING:
    from lockstep.server.admin.http import HttpRequest

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
    for info in likely_leaders(node):
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


def likely_leaders(node: NodeServices) -> Iterator[NodeInfo]:
    """Live voters, the likeliest leader first."""
    known = node.log.leader_id
    for voter in sorted(node.log.voters.ids(), key=lambda voter: voter != known):
        if voter != node.context.own_id() and node.membership.liveness.alive(voter):
            yield node.log.cluster.directory.by_id[NodeId(voter)]


def refuse_on_ring(node: NodeServices) -> None:
    """PreconditionError where the cluster runs without a log: there are no groups."""
    if node.context.is_on_ring:
        raise PreconditionError(
            "this cluster runs on the ring without a log, and has no groups",
            hint="lockstep ring status, lockstep ring why; docs/operate/ring.md",
        )


#: Name in paths, commands and gauges -> group.
GROUPS: Final = {"cmg": MANAGEMENT_GROUP, "metastorage": METADATA_GROUP}
PATH: Final = "/management/v1/recovery/{group}/state"


class GroupAnswers:
    """The answers about one group, at one node."""

    def __init__(self, node: NodeServices, name: str) -> None:
        self._node = node
        self._name = name

    async def local(self, request: HttpRequest, _values: dict[str, str]) -> Document:
        """What each node says of itself: of those named (ids, host ids or addresses, with commas), else of
        all that take part in the group. A node that does not answer has a row with the reason."""
        refuse_on_ring(self._node)
        group = GROUPS[self._name]
        nodes = request.query.get("nodes")
        asked = named(self._node, nodes) if nodes else _all(self._node)
        answers = await self._node.membership.groups.each(group, [info.id for info in asked])
        rows = [_row(info, answer) for info, answer in zip(asked, answers, strict=True)]
        if not nodes:
            rows = [row for row in rows if row["state"] is not None or not row["answered"]]
        return {
            "schema": "group-local-states/1",
            "group": self._name,
            "asked": self._node.context.own_id(),
            "states": rows,
        }

    async def whole(self, _request: HttpRequest, _values: dict[str, str]) -> Document:
        """The group as a whole, from what its voters answer now."""
        refuse_on_ring(self._node)
        word = await self._node.membership.groups.whole(GROUPS[self._name])
        reports = {report.node: report for report in word.reports}
        silent = dict(word.unreachable)
        members = []
        for voter in sorted({*word.voters, *word.outgoing}):
            report = reports.get(voter)
            members.append(
                {
                    "node": voter,
                    "available": voter in word.available,
                    "state": report.state or None if report is not None else None,
                    "reason": report.reason if report is not None else silent.get(voter, ""),
                }
            )
        return {
            "schema": "group-global-state/1",
            "group": self._name,
            "asked": self._node.context.own_id(),
            "state": word.state.value,
            "voters": list(word.voters),
            "outgoing": list(word.outgoing),
            "available_peers": sum(1 for voter in word.voters if voter in word.available),
            "members": members,
        }


def words(node: NodeServices) -> Document:
    """Both groups at a glance, from signs of life alone: for status answers, which wait for nobody. Without
    a log there are none."""
    if node.context.is_on_ring:
        return {}
    found = {name: node.membership.groups.peers(group) for name, group in GROUPS.items()}
    return {
        name: {"state": peers.state.value, "available": peers.available, "available_peers": peers.count}
        for name, peers in found.items()
    }


def _all(node: NodeServices) -> list[NodeInfo]:
    return [info for info in node.log.cluster.directory.nodes if info.state is not NodeState.LEFT]


def named(node: NodeServices, texts: str) -> list[NodeInfo]:
    known = _all(node)
    found = []
    for text in dict.fromkeys(part.strip() for part in texts.split(",") if part.strip()):
        fitting = [info for info in known if text in (str(info.id), info.host_id, info.address)]
        if not fitting:
            raise ConfigurationError(f"no node is called {text}", hint="lockstep status lists the nodes")
        found.append(fitting[0])
    return found


def _row(info: NodeInfo, answer: GroupReport | str) -> Document:
    if isinstance(answer, str):
        blank = dict.fromkeys(("state", "role", "term", "index", "epoch", "hash", "leader"))
        return {"node": info.id, "address": info.address, "answered": False, **blank, "reason": answer}
    return {
        "node": info.id,
        "address": info.address,
        "answered": True,
        "state": answer.state or None,
        "role": answer.part or None,
        "term": answer.term,
        "index": answer.index,
        "epoch": answer.epoch,
        "hash": answer.hash.hex(),
        "leader": answer.leader,
        "reason": answer.reason,
    }
