"""Topology operations for the admin API: running ones with what they wait for, ended ones from the log.

Invariant: what only the metadata leader knows (who blocks, progress) is asked of the leader, so every node
answers alike; without a leader the rest is still told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.diff import ABSENT, diff
from lockstep.metadata.directory import NodeInfo
from lockstep.metadata.membership import ServiceWish, SetService, without_vote
from lockstep.metadata.operations import Operation, OperationKind
from lockstep.metadata.registry import EntryKind
from lockstep.server.http import get_json
from lockstep.server.service_requests import waiting_for_voters
from lockstep.topology.explain import can_cancel, headline
from lockstep.topology.stages import TABLES
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.errors import ConfigurationError, LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS

if TYPE_CHECKING:
    from lockstep.node.node import Node

Document = dict[str, Any]

#: Where a node says what it knows by itself.
LIVE_PATH = "/v1/requests/live"
_OPERATION_KINDS = (EntryKind.PREPARE_OPERATION, EntryKind.ADVANCE_OPERATION, EntryKind.CANCEL_OPERATION)
#: Begins the id of a decommission that waits until its node has no vote; the node's id follows.
_LEAVE = "leave-"
#: The step before all others, where the node votes on metadata.
_SUBSTITUTION = {"stage": "substituting_voter", "work": "another node gets its vote"}
#: Metadata differences that a dry run shows.
_DIFFERENCES_SHOWN_MAX = 200


class Requests:
    def __init__(self, node: Node) -> None:
        self._node = node

    # -- reading ----------------------------------------------------------------------------------

    def live(self) -> Document:
        """Running operations with what this node knows of them."""
        node = self._node
        now_us = node.runtime.clock.wall_us()
        blocking: dict[int, list[Document]] = {}
        for one in node.topology.blocking:
            since_s = max(0.0, (now_us - one.since_us) / 1e6)
            blocking.setdefault(one.operation_id, []).append(
                {"node": one.node, "reason": one.reason, "since_s": round(since_s, 3)}
            )
        running = [
            self._running(operation, blocking.get(operation.id, [])) for operation in node.cluster.operations
        ]
        return {
            "schema": "requests-live/1",
            "leads": node.is_leader,
            "requests": [*running, *self._wishes()],
        }

    async def running(self) -> list[Document]:
        """Running operations as the metadata leader sees them, or as this node does when it cannot ask."""
        node = self._node
        if node.is_leader or not (node.cluster.operations or node.cluster.service.leaving):
            return list(self.live()["requests"])
        for info in self._leaders():
            try:
                document = await get_json(
                    node.runtime, info.address, info.admin_port, LIVE_PATH, ADMIN_FORWARD_TIMEOUT_MS
                )
            except LockstepError as error:
                node.log("admin.leader_waits", node=info.id, error=error.message)
                continue
            if document.get("leads"):
                return list(document.get("requests", []))
        return list(self.live()["requests"])

    def _leaders(self) -> list[NodeInfo]:
        """Live voters, the likeliest leader first."""
        node = self._node
        known = node.leader_id
        voters = sorted(node.cluster.voters, key=lambda voter: voter != known)
        return [
            node.cluster.directory.by_id[voter]
            for voter in voters
            if voter != node.node_id and node.liveness.alive(voter)
        ]

    async def all(self) -> Document:
        return {"schema": "requests/1", "requests": await self._known()}

    async def one(self, request_id: str) -> Document:
        """ConfigurationError when there is no such request."""
        if _is_wish(request_id):
            return await self._of_wish(request_id)
        for found in await self._known():
            if found["id"] == request_id:
                return {"schema": "request/1", **found}
        raise ConfigurationError(f"there is no request {request_id}", hint="lockstep topology requests")

    async def _known(self) -> list[Document]:
        """Running and ended operations, each once, also while this node and the leader differ by an entry."""
        running = {document["id"]: document for document in await self.running()}
        for document in self.live()["requests"]:
            # The leader has applied its end, this node has not.
            running.setdefault(document["id"], document)
        ended = self._ended()
        for document in ended:
            running.pop(document["id"], None)
        return [*running.values(), *ended]

    def _running(self, operation: Operation, waiting: list[Document]) -> Document:
        done = self._node.topology.progress.get(operation.id)
        return {
            "id": str(operation.id),
            "kind": operation.kind.value,
            "node": operation.node,
            "state": "cancelling" if operation.cancel_reason else "running",
            "stage": operation.stage.value,
            "stage_epoch": operation.stage_epoch,
            "ranges": len(operation.transitions),
            "history": [{"stage": stage.value, "epoch": epoch} for stage, epoch in operation.history],
            "progress": {"bytes": done.moved_bytes, "fragments": done.moved_fragments} if done else {},
            "waiting": waiting,
            "headline": headline(operation),
            "cancellable": can_cancel(operation),
        }

    def _ended(self) -> list[Document]:
        """Operations that the log as it is kept here began and that run no more, newest first."""
        node = self._node
        live = {operation.id for operation in node.cluster.operations}
        found: dict[int, Document] = {}
        entries = node.state.retained(node.state.first_epoch, node.state.epoch)
        # Operations are numbered as the log prepares them; those before the oldest entry are not known here.
        began = sum(1 for entry in entries if entry.kind == EntryKind.PREPARE_OPERATION)
        count = node.cluster.next_operation_id - 1 - began
        for entry in entries:
            if entry.kind not in _OPERATION_KINDS:
                continue
            body: Any = node.registry.decode(entry.kind, entry.body)
            if isinstance(body, PrepareOperation):
                count += 1
                found[count] = {
                    "id": str(count),
                    "kind": body.kind.value,
                    "node": body.node,
                    "state": "done",
                    "stage": None,
                    "began_epoch": entry.epoch,
                    "ended_epoch": entry.epoch,
                }
            elif body.operation_id in found:
                request = found[body.operation_id]
                request["ended_epoch"] = entry.epoch
                if isinstance(body, CancelOperation):
                    request["state"] = "cancelled"
                    request["reason"] = body.reason
        return [found[number] for number in sorted(found, reverse=True) if number not in live]

    # -- asking -----------------------------------------------------------------------------------

    async def submit(self, body: Any) -> Document:
        """Begin an operation, or say what it would do. Rejected or ConfigurationError."""
        wanted = _wanted(body)
        if wanted.dry_run:
            return self._plan(wanted)
        if self._votes(wanted.node):
            return await self._leave_voters(wanted)
        epoch = await self._node.submit(wanted.transformation)
        for operation in self._node.cluster.operations:
            if operation.history and operation.history[0][1] == epoch:
                return {"schema": "request/1", **self._running(operation, [])}
        for request in self._ended():
            if request["began_epoch"] == epoch:
                return {"schema": "request/1", **request}
        raise LockstepError(f"the operation of epoch {epoch} is not in the metadata of this node")

    def _votes(self, node: int) -> bool:
        """Whether either consensus group still needs this node, as far as is known here."""
        management = self._node.management.group
        members = management.driver.status().configuration.members() if management is not None else ()
        return node in self._node.cluster.service.members or node in members

    async def _leave_voters(self, wanted: _Wanted) -> Document:
        """A voter is substituted first: the metadata keeps the wish, and any leader carries it out."""
        cluster = self._node.cluster
        # What would be refused without its vote is refused now, not when it has lost it.
        wanted.transformation.apply(without_vote(cluster, NodeId(wanted.node)), cluster.epoch + 1)
        await self._node.submit(SetService(ServiceWish.LEAVE, node=NodeId(wanted.node)))
        return await self.one(f"{_LEAVE}{wanted.node}")

    def _wishes(self) -> list[Document]:
        """Nodes that wait for their decommission until they have no vote."""
        node = self._node
        return [
            {
                "id": f"{_LEAVE}{leaving}",
                "kind": OperationKind.DECOMMISSION.value,
                "node": leaving,
                "state": "queued",
                "stage": "substituting_voter",
                "stage_epoch": None,
                "ranges": 0,
                "history": [],
                "progress": {},
                "waiting": waiting_for_voters(node) if node.is_leader else [],
                "headline": f"decommission of node {leaving}: another node gets its vote first",
                "cancellable": True,
            }
            for leaving in node.cluster.service.leaving
        ]

    async def _of_wish(self, request_id: str) -> Document:
        """The decommission that a wish became; cancelled when it became none."""
        wanted = int(request_id.removeprefix(_LEAVE))
        for found in await self._known():
            if found["id"] == request_id:
                return {"schema": "request/1", **found}
        for found in await self._known():
            if found["node"] == wanted and found["kind"] == OperationKind.DECOMMISSION.value:
                return {"schema": "request/1", **found}
        return {
            "schema": "request/1",
            "id": request_id,
            "kind": OperationKind.DECOMMISSION.value,
            "node": wanted,
            "state": "cancelled",
            "stage": None,
        }

    async def cancel(self, request_id: str) -> Document:
        """Send a running operation back. Rejected when it goes forward only."""
        if _is_wish(request_id):
            node = NodeId(int(request_id.removeprefix(_LEAVE)))
            await self._node.submit(SetService(ServiceWish.STAY, node=node))
            return await self.one(request_id)
        if not request_id.isdecimal():
            raise ConfigurationError(f"there is no request {request_id}", hint="lockstep topology requests")
        await self._node.submit(CancelOperation(int(request_id), "cancelled by an operator"))
        return await self.one(request_id)

    def _plan(self, wanted: _Wanted) -> Document:
        before = self._node.cluster
        votes = self._votes(wanted.node)
        if votes:
            before = without_vote(before, NodeId(wanted.node))
        after = wanted.transformation.apply(before, before.epoch + 1)
        operation = after.operations[-1]
        gained: dict[int, int] = {}
        for transition in operation.transitions:
            for node in transition.gained:
                gained[node] = gained.get(node, 0) + 1
        return {
            "schema": "request-plan/1",
            "kind": wanted.kind.value,
            "node": wanted.node,
            "epoch": before.epoch,
            "ranges": len(operation.transitions),
            "way_back": "can be cancelled until reads move to the new replicas",
            "steps": [
                *([_SUBSTITUTION] if votes else []),
                *(
                    {
                        "stage": row.stage.value,
                        "writes": row.writes.value,
                        "reads": row.reads.value,
                        "barrier": row.barrier,
                        "drain": row.drain.value,
                        "work": row.work.value,
                    }
                    for row in TABLES[operation.kind]
                ),
            ],
            "receives": [{"node": node, "ranges": count} for node, count in sorted(gained.items())],
            "changes": _changes(before, after),
        }


class _Wanted(msgspec.Struct, frozen=True):
    kind: OperationKind
    node: int
    dry_run: bool = False

    @property
    def transformation(self) -> PrepareOperation:
        return PrepareOperation(self.kind, NodeId(self.node))


def _wanted(body: Any) -> _Wanted:
    try:
        wanted = msgspec.convert(body, _Wanted)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"not a request: {error}") from error
    if wanted.kind is not OperationKind.DECOMMISSION:
        raise ConfigurationError(
            f"{wanted.kind.value} is not asked for here",
            hint="a new node bootstraps by itself when it starts",
        )
    return wanted


def _is_wish(request_id: str) -> bool:
    return request_id.startswith(_LEAVE) and request_id.removeprefix(_LEAVE).isdecimal()


def _changes(before: ClusterMetadata, after: ClusterMetadata) -> list[Document]:
    found = [change for change in diff(before, after) if not change.path.startswith(("epoch", "hash"))]
    return [
        {
            "path": change.path,
            "before": None if change.before == ABSENT else change.before,
            "after": None if change.after == ABSENT else change.after,
        }
        for change in found[:_DIFFERENCES_SHOWN_MAX]
    ]
