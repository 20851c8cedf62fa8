"""Topology requests for the admin API: queued, running and ended ones, with what each waits for; the exclude
list; and whether what a plan was made against still holds.

Invariant: requests are those of the metadata. What only the metadata leader knows (who blocks, progress) is
asked of the leader, so every node answers alike; without a leader the rest is still told. A node is taken
back only after it has said itself that it applied the entry that shut it out. A plan is carried out only
while everything it was made from is as it was: nodes, placements, keyspaces' replication, operations, the
queue, the exclude list and the voters. Other entries may come and go.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.features import ExcludeNodes, IncludeNodes
from lockstep.metadata.groups.membership import without_vote
from lockstep.metadata.log.apply import diff
from lockstep.metadata.operations import Body
from lockstep.metadata.requests import Policy, Request, RequestState
from lockstep.node.log.messages import EpochQuery, EpochReply
from lockstep.node.log.metadata_past import Past
from lockstep.node.services import NodeServices
from lockstep.schema.model import Replication
from lockstep.schema.replication_options import parse_replication, replication_map
from lockstep.server.admin.operations import number_in, read_body
from lockstep.server.admin.service_requests import waiting_for_voters
from lockstep.server.reports.documents import exclusions
from lockstep.server.reports.leader_views import REQUESTS, ask_leaders
from lockstep.server.reports.request_plans import (
    SUBSTITUTING,
    JoiningNode,
    force_plan,
    forced,
    numbers,
    operation_plan,
    progress,
    with_newcomer,
)
from lockstep.server.reports.tablet_progress import left_numbers, left_of
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.registry import BY_NAME, asked
from lockstep.topology.kinds.replication import target_in
from lockstep.topology.preview import needed_sizes, present_ring, preview
from lockstep.topology.requests import CancelRequest, EnqueueRequest, Rule, why
from lockstep.topology.story import can_cancel, headline
from lockstep.topology.transformations import PrepareOperation
from lockstep.values import codec
from lockstep.values.errors import ConfigurationError, LockstepError, PeerError, Rejected
from lockstep.values.hash_tree import blake
from lockstep.values.ids import NodeId
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

#: Changes that a refusal names; `lockstep metadata diff` has all.
_CHANGES_NAMED_MAX = 6
_PLACEMENTS = "placements."
#: Where the metadata keeps what each part is made from.
_PATHS = {
    "nodes": "directory",
    "placements": "placements",
    "keyspaces": "schema",
    "operations": "operations",
    "queue": "requests",
    "excluded": "excluded",
    "voters": "service",
}


class Base(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`digest` is over all `parts`, name to digest, all in hexadecimal."""

    cluster: str
    epoch: int
    digest: str
    parts: dict[str, str]


def base_of(cluster: ClusterMetadata) -> Base:
    parts = {
        "nodes": [
            (n.id, n.host_id, n.address, n.internode_port, n.dc, n.rack, n.state, n.tokens)
            for n in cluster.directory.nodes
        ],
        "placements": cluster.placements.rings,
        "keyspaces": [(k.name, k.replication) for k in cluster.schema.keyspaces],
        "operations": [(o.id, o.stage, o.cancel_reason) for o in cluster.operations],
        "queue": [request.id for request in cluster.requests.queue],
        "excluded": cluster.excluded,
        "voters": cluster.service.members,
    }
    told = {name: blake(codec.encode(part)).hex()[:32] for name, part in parts.items()}
    whole = blake(codec.encode(list(told.items()))).hex()
    return Base(cluster.identity.cluster_id, cluster.epoch, whole, told)


async def refuse_moved(node: NodeServices, base: Base) -> None:
    """Raises Rejected, naming what changed, when the metadata is not what the plan was made against."""
    cluster = node.log.cluster
    if base.cluster != cluster.identity.cluster_id:
        raise Rejected(f"the plan is for cluster {base.cluster}, this is {cluster.identity.cluster_id}")
    if base.epoch > cluster.epoch:
        raise ConfigurationError(
            f"the plan is of epoch {base.epoch}, this node is at {cluster.epoch}", hint="ask another node"
        )
    now = base_of(cluster)
    moved = [name for name, digest in now.parts.items() if base.parts.get(name) != digest]
    if not moved:
        return
    named = await _named(node, base.epoch, moved)
    raise Rejected(
        f"reality moved since the plan of epoch {base.epoch}: {', '.join(moved)} changed{named}",
        hint=f"plan again with --dry-run; `lockstep metadata diff {base.epoch} {cluster.epoch}` shows all",
    )


async def _named(node: NodeServices, epoch: int, moved: list[str]) -> str:
    """The changed paths, as far as this node still has the value of then."""
    try:
        before: Any = await Past(node.log.state).value_at(epoch)
    except LockstepError:
        return ""
    heads = tuple(_PATHS[name] for name in moved)
    found = [change.path for change in diff(before, node.log.cluster) if change.path.startswith(heads)]
    # A path into the placements is a line of a replication and a range each, by the hundred.
    paths = [path for path in found if not path.startswith(_PLACEMENTS)]
    if len(paths) < len(found):
        paths.append(f"{len(found) - len(paths)} differences of placements")
    more = len(paths) - _CHANGES_NAMED_MAX
    shown = ", ".join(paths[:_CHANGES_NAMED_MAX])
    return f" ({shown}{f', {more} more' if more > 0 else ''})" if paths else ""


Document = dict[str, Any]

#: Where a node says what it knows by itself.
LIVE_PATH = "/v1/requests/live"


class Requests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    # -- reading ----------------------------------------------------------------------------------

    def live(self) -> Document:
        """Queued and running requests with what this node knows of them, the running ones first."""
        node = self._node
        now_us = node.context.runtime.clock.wall_us()
        blocking: dict[int, list[Document]] = {}
        for one in node.work.topology.blocking:
            since_s = max(0.0, (now_us - one.since_us) / 1e6)
            blocking.setdefault(one.operation_id, []).append(
                {"node": one.node, "reason": one.reason, "since_s": round(since_s, 3)}
            )
        requests = node.log.cluster.requests
        running = [r for r in requests.live if r.state is RequestState.RUNNING]
        return {
            "schema": "requests-live/1",
            "leads": node.log.is_leader,
            "requests": [
                *(self._running(request, blocking.get(request.operation_id, [])) for request in running),
                *(self._queued(request) for request in requests.queue),
            ],
            "moved": {
                str(request.id): numbers(node.work.topology.moved.of(request))
                for request in requests.ended
                if request.operation_id
            },
        }

    async def running(self) -> list[Document]:
        """Live requests as the metadata leader sees them, or as this node does when it cannot ask."""
        if not self._node.log.cluster.requests.live:
            return []
        return list((await self._leaders()).get("requests", []))

    async def _leaders(self) -> Document:
        """What the metadata leader knows, or this node when it cannot ask."""
        if self._node.log.is_leader:
            return self.live()
        found = await ask_leaders(self._node, REQUESTS, lambda _: True)
        return found if found is not None else self.live()

    async def all(self) -> Document:
        return {"schema": "requests/1", "requests": await self._known()}

    async def one(self, request_id: str) -> Document:
        """ConfigurationError when there is no such request."""
        for found in await self._known():
            if found["id"] == request_id:
                return {"schema": "request/1", **found}
        raise ConfigurationError(f"there is no request {request_id}", hint="lockstep topology requests")

    async def _known(self) -> list[Document]:
        """Live and ended requests, each once, also while this node and the leader differ by an entry."""
        told = await self._leaders()
        live = {document["id"]: document for document in told.get("requests", [])}
        moved = told.get("moved", {})
        for document in self.live()["requests"]:
            # The leader has applied its end, this node has not.
            live.setdefault(document["id"], document)
        ended = [_document(request) for request in reversed(self._node.log.cluster.requests.ended)]
        for document in ended:
            live.pop(document["id"], None)
            document["progress"] = moved.get(document["id"]) or document["progress"]
        return [*live.values(), *ended]

    def _running(self, request: Request, waiting: list[Document]) -> Document:
        operation = self._node.log.cluster.operations_by_id[request.operation_id]
        done = self._node.work.topology.moved.of(request)
        return {
            **_document(request),
            **progress(self._node, operation),
            "state": "cancelling" if operation.cancel_reason else "running",
            "stage": operation.stage.value,
            "stage_epoch": operation.stage_epoch,
            "ranges": len(self._node.log.cluster.transitions.of(operation.id)),
            "history": [{"stage": stage.value, "epoch": epoch} for stage, epoch in operation.history],
            "progress": {**numbers(done), **left_numbers(left_of(self._node, request))},
            "waiting": waiting,
            "headline": headline(operation),
            "cancellable": can_cancel(operation),
        }

    def _queued(self, request: Request) -> Document:
        node = self._node
        found = why(node.log.cluster, request, node.work.topology.follows() if node.log.is_leader else "")
        waiting: list[Document] = []
        if found is not None:
            waiting.append(
                {
                    "node": int(found.node) or None,
                    "operation": found.operation_id or None,
                    "rule": found.rule.value,
                    "reason": found.reason,
                }
            )
        votes = found is not None and found.rule is Rule.VOTE
        if votes and node.log.is_leader:
            waiting += waiting_for_voters(node)
        return {
            **_document(request),
            "stage": SUBSTITUTING if votes else None,
            "progress": left_numbers(left_of(node, request)),
            "waiting": waiting,
            "headline": f"{request.title()}: queued" + (f", {found.reason}" if found is not None else ""),
            "cancellable": True,
        }

    # -- asking -----------------------------------------------------------------------------------

    async def submit(self, body: Any) -> Document:
        """Ask for an operation, or say what it would do. Rejected or ConfigurationError."""
        wanted = _wanted(body)
        if wanted.base is not None:
            await refuse_moved(self._node, wanted.base)
        ring = BY_NAME[wanted.kind].ring
        if ring is not None and ring.is_newcomers:
            return await self._plan_newcomer(wanted)
        waits_for = ""
        if ring is not None and ring.of_dead and not wanted.presume_dead:
            waits_for = await self._refuse_alive(wanted.node)
        if ring is not None and ring.works_itself:
            await self._refuse_dead(wanted.kind, wanted.node)
        if wanted.dry_run:
            plan = self._force_plan(wanted) if wanted.force else await self._plan(wanted)
            return {**plan, "waits_for": waits_for or None}
        if waits_for:
            raise Rejected(waits_for, hint="ask again then; --presume-dead does not wait")
        if wanted.force:
            return await self._force(wanted)
        actor = f"an operator, through node {self._node.context.own_id()}"
        epoch = await self._node.log.submit(wanted.request(self._node.log.cluster, actor))
        requests = self._node.log.cluster.requests
        for request in (*reversed(requests.live), *reversed(requests.ended)):
            if request.requested_epoch == epoch:
                return await self.one(str(request.id))
        raise LockstepError(f"the request of epoch {epoch} is not in the metadata of this node")

    async def _refuse_alive(self, node: int) -> str:
        """Rejected when the node answers this one or others, whatever was heard of it lately; what to wait
        for when it does not and yet counts as alive, as after a crash a moment ago."""
        liveness = self._node.membership.liveness
        if await liveness.answers_somebody(node):
            raise Rejected(
                f"node {node} is alive: only a dead node is removed",
                hint=f"`lockstep topology decommission {node}` lets it hand over its data; --presume-dead "
                "removes one that answers and yet must go",
            )
        seen_s, left_s = liveness.silent_s(node), liveness.opinions.suspected_in_s(node)
        if seen_s is None or not liveness.alive(node):
            return ""
        return (
            f"node {node} was seen alive {seen_s:.1f} s ago and does not answer now: it counts as dead after "
            f"{left_s:.1f} s more of silence"
        )

    async def _refuse_dead(self, kind: str, node: int) -> None:
        """An operation that waits for a dead node would hold up the one that replaces it."""
        liveness = self._node.membership.liveness
        known = node in self._node.log.cluster.directory.present_ids
        if known and not liveness.alive(node) and not await liveness.answers_somebody(node):
            raise Rejected(
                f"node {node} seems dead: a {kind} is work that it does itself",
                hint=f"start it, or replace it: `lockstep topology replace {node} --dry-run` shows how",
            )

    def _votes(self, node: int) -> bool:
        """Whether either consensus group still needs this node, as far as is known here."""
        management = self._node.membership.management.group
        members = management.driver.status().configuration.members() if management is not None else ()
        return node in self._node.log.cluster.service.members or node in members

    async def cancel(self, request_id: str) -> Document:
        """Take a queued request back, or a running operation. Rejected when it goes forward only."""
        number = number_in(request_id)
        if number is None:
            raise ConfigurationError(f"there is no request {request_id}", hint="lockstep topology requests")
        await self._node.log.submit(CancelRequest(number, "cancelled by an operator"))
        return await self.one(request_id)

    async def _plan_newcomer(self, wanted: _Wanted) -> Document:
        if not wanted.dry_run:
            raise ConfigurationError(
                f"{wanted.kind} is not asked for here",
                hint="a new node asks for it by itself when it starts; dry_run tells what it would do",
            )
        now = self._node.log.cluster
        if wanted.node in now.directory.present_ids and self._node.membership.liveness.alive(wanted.node):
            raise Rejected(
                f"node {wanted.node} is alive: only a dead node is replaced",
                hint=f"`lockstep topology decommission {wanted.node}` lets it hand over its data",
            )
        ring = BY_NAME[wanted.kind].ring
        replaced = NodeId(wanted.node) if ring is not None and ring.of_dead else None
        votes = replaced is not None and self._votes(wanted.node)
        before = without_vote(now, NodeId(wanted.node)) if votes else now
        usual = self._node.context.configuration.placement.num_tokens
        copy, preparation = with_newcomer(before, replaced, wanted.new, usual)
        return await self._planned(now, copy, preparation, votes=votes)

    async def _plan(self, wanted: _Wanted) -> Document:
        now = before = self._node.log.cluster
        body = wanted.body(now)
        votes = bool(body.about.departing) and self._votes(wanted.node)
        if votes:
            before = without_vote(before, NodeId(wanted.node))
        return await self._planned(now, before, PrepareOperation(body), votes=votes)

    async def _planned(
        self, now: ClusterMetadata, before: ClusterMetadata, wanted: PrepareOperation, *, votes: bool
    ) -> Document:
        """The plan of `wanted` on `before`, which is `now` but for what comes first."""
        alive = self._node.membership.liveness.alive
        dead = tuple(node for node in now.directory.present_ids if not alive(node))
        found = preview(before, wanted, dead)
        wanted_sizes = needed_sizes(found.tasks, present_ring(before, found.operation))
        sizes = await self._node.work.sizes.ask(wanted_sizes, found.operation.about.keyspace)
        plan = operation_plan(
            before,
            found,
            sizes,
            votes=votes,
            configured_bytes_s=self._node.context.configuration.streaming.throughput_bytes_s,
        )
        return {**plan, "base": msgspec.to_builtins(base_of(now))}

    def _force_plan(self, wanted: _Wanted) -> Document:
        plan = force_plan(self._node.log.cluster, ForceRemove(NodeId(wanted.node), wanted.reason))
        return {**plan, "base": msgspec.to_builtins(base_of(self._node.log.cluster))}

    async def _force(self, wanted: _Wanted) -> Document:
        entry = ForceRemove(NodeId(wanted.node), wanted.reason)
        epoch = await self._node.log.submit(entry)
        return forced(self._node.log.cluster, entry, epoch)


class _Wanted(msgspec.Struct, frozen=True):
    """`force` gives the node up without moving its data; `reason` is kept with that. `new` is the node that
    a dry run of a join or replacement is about, `node` whom it replaces. `base`: only while that holds.
    `presume_dead`: remove the node although it seems alive. `keyspace` is to have `replication`, written as
    in CQL (`class` and the factors)."""

    kind: str
    node: int = 0
    tokens: tuple[int, ...] = ()
    source_dc: str = ""
    policy: Policy = Policy.WAIT
    dry_run: bool = False
    force: bool = False
    reason: str = ""
    new: JoiningNode = JoiningNode()
    base: Base | None = None
    presume_dead: bool = False
    keyspace: str = ""
    replication: dict[str, str] = {}

    def body(self, cluster: ClusterMetadata) -> Body:
        """Rejected for what the kind has no use for."""
        return asked(
            self.kind,
            node=NodeId(self.node),
            tokens=self.tokens,
            source_dc=self.source_dc,
            keyspace=self.keyspace,
            target=self._target(cluster),
            presumed_dead=self.presume_dead,
        )

    def _target(self, cluster: ClusterMetadata) -> Replication | None:
        if not self.replication:
            return None
        known = cluster.schema.by_name.get(self.keyspace)
        earlier = known.replication if known is not None else None
        options = tuple(self.replication.items())
        return parse_replication(self.keyspace, options, cluster.directory.data_centers, earlier)

    def request(self, cluster: ClusterMetadata, actor: str) -> EnqueueRequest:
        return EnqueueRequest(self.body(cluster), self.policy, actor)


def _counted(request: Request) -> Document:
    """What the metadata itself says was moved."""
    found = {"bytes": request.moved_bytes, "fragments": request.moved_fragments}
    return {name: count for name, count in found.items() if count}


def _document(request: Request) -> Document:
    """What the metadata says of a request; one that has not begun has no `began_epoch`."""
    target = target_in(request.body)
    return {
        "id": str(request.id),
        "kind": request.kind,
        "node": int(request.node) or None,
        "keyspace": request.about.keyspace or None,
        "replication": replication_map(target) if target is not None else None,
        "replaced": int(request.about.replaced) or None,
        "state": request.state.value,
        "policy": request.policy.value,
        "actor": request.actor,
        "operation": request.operation_id or None,
        "stage": None,
        "stage_epoch": None,
        "ranges": 0,
        "history": [],
        "progress": _counted(request),
        "waiting": [],
        "requested_epoch": request.requested_epoch,
        "path": [],
        "barrier": None,
        "work": [],
        "began_epoch": request.began_epoch or None,
        "ended_epoch": request.ended_epoch or None,
        "reason": request.outcome or None,
    }


def _wanted(body: Any) -> _Wanted:
    wanted = read_body(body, _Wanted, "not a request")
    if not all(TOKEN_MIN < token <= TOKEN_MAX for token in wanted.tokens):
        raise ConfigurationError(f"tokens lie above {TOKEN_MIN} and up to {TOKEN_MAX}")
    if wanted.kind not in BY_NAME:
        raise ConfigurationError(f"not a request: Invalid enum value {wanted.kind!r} - at `$.kind`")
    ring = BY_NAME[wanted.kind].ring
    if wanted.force and (ring is None or not ring.of_dead or ring.is_newcomers):
        raise ConfigurationError(f"a {wanted.kind} is not forced", hint="only a remove is")
    return wanted


PATH = "/v1/excluded"
BODY = {
    "type": "object",
    "properties": {
        "nodes": {"type": "array", "items": {"type": "integer"}},
        "undo": {"type": "boolean"},
        "reason": {"type": "string"},
        "dry_run": {"type": "boolean"},
        "base": {"type": "object", "description": "Refuse unless this of a plan still holds"},
    },
    "required": ["nodes"],
}


class _ExcludeWanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[int, ...]
    undo: bool = False
    reason: str = ""
    dry_run: bool = False
    base: Base | None = None


class ExcludeList:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def all(self) -> Document:
        cluster = self._node.log.cluster
        return {
            "schema": "excluded/1",
            "epoch": cluster.epoch,
            "excluded": exclusions(cluster),
        }

    async def change(self, body: Any) -> Document:
        """Shut nodes out, or take them back. Rejected or ConfigurationError."""
        wanted = read_body(body, _ExcludeWanted, "not a request")
        if wanted.base is not None:
            await refuse_moved(self._node, wanted.base)
        nodes = tuple(NodeId(node) for node in wanted.nodes)
        entry: ExcludeNodes | IncludeNodes
        if wanted.undo:
            entry = IncludeNodes(nodes, tuple([await self._reached(node) for node in nodes]))
        else:
            entry = ExcludeNodes(nodes, wanted.reason)
        if wanted.dry_run:
            cluster = self._node.log.cluster
            after = entry.apply(cluster, cluster.epoch + 1)
            listed = exclusions(after)
            base = msgspec.to_builtins(base_of(cluster))
            return {
                "schema": "excluded/1",
                "epoch": cluster.epoch,
                "dry_run": True,
                "excluded": listed,
                "base": base,
            }
        await self._node.log.submit(entry)
        return self.all()

    async def _reached(self, node: NodeId) -> int:
        """The epoch that the node says it has applied, once it has the one that shut it out."""
        cluster = self._node.log.cluster
        exclusion, info = cluster.excluded_by_node.get(node), cluster.node(node)
        if exclusion is None or info is None:
            raise Rejected(f"node {node} is not excluded")
        if node == self._node.context.own_id():
            return cluster.epoch
        try:
            reply: EpochReply = await self._node.context.internode.request(
                (info.address, info.internode_port),
                verbs.EPOCH_QUERY,
                EpochQuery(exclusion.epoch),
                ADMIN_FORWARD_TIMEOUT_MS,
            )
        except PeerError as error:
            heard = self._node.work.topology.acknowledged(node)
            if heard >= exclusion.epoch:
                # It stands elsewhere now, and may not have that written down before it is taken back.
                return heard
            raise Rejected(
                f"node {node} does not say what it has applied: {error.message}",
                hint="start it and let it catch up first",
            ) from error
        if reply.node != node:
            who = f"node {reply.node}" if reply.node else "a node without an id"
            raise Rejected(f"{who} answers at the address of node {node}")
        return reply.epoch
