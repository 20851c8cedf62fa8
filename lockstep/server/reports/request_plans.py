"""Dry runs for the admin API, what an operation, the giving up of a node, a join or an entry of the log would
do, and how far a running operation is: as documents.

Invariant: a plan is made by the real transformations on a copy of this node's metadata and changes nothing.
The newcomer exists only in a copy of the metadata, with the tokens it would choose itself now. The stages are
the metadata's; who has seen them and how much was moved is what this node heard, so it is whole only at the
metadata leader. The very transformation is judged against this node's newest value, as the leader would; a
refusal is raised, and nothing is sent to anyone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import DIRECTORY, NodeInfo
from lockstep.metadata.log.apply import diff
from lockstep.metadata.log.comparison import ABSENT
from lockstep.metadata.log.registry import Prepared
from lockstep.metadata.operations import Operation, Stage
from lockstep.node.configuration import PlacementSection
from lockstep.node.log.messages import WorkStatus
from lockstep.node.services import NodeServices
from lockstep.node.work.load_questions import Sizes
from lockstep.placement.circle import splitting_tokens
from lockstep.schema.replication_options import replication_map
from lockstep.server.reports.documents import metadata_diff
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kind import kind_of
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import Walk, target_in
from lockstep.topology.preview import (
    Held,
    Present,
    Preview,
    StepPreview,
    estimate,
    holder,
    movements,
    needed_sizes,
    present_ring,
)
from lockstep.topology.story import path, presence, workers
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import ConfigurationError
from lockstep.values.ids import NodeId

Document = dict[str, Any]

#: Metadata differences that a dry run shows.
_DIFFERENCES_SHOWN_MAX = 200
#: The step before all others, where the node votes on metadata.
SUBSTITUTING = "substituting_voter"
_SUBSTITUTION = {"stage": SUBSTITUTING, "work": "another node gets its vote"}


#: Taken as the rate where no node has streamed since it started and none is configured: a slow disk.
RATE_ASSUMED_BYTES_S = 32 * 1024 * 1024
#: What one stream takes beside its bytes: some round trips, of four streams at a time.
STREAM_S = 0.01
#: What one barrier takes while all nodes answer: some rounds of questions.
BARRIER_S = 0.05


def operation_plan(
    before: ClusterMetadata,
    found: Preview,
    sizes: Mapping[NodeId, Sizes],
    *,
    votes: bool,
    configured_bytes_s: int = 0,
) -> Document:
    """A `request-plan/1` document. `sizes` are the answers to `needed_sizes` of the preview,
    `configured_bytes_s` is what a node sends at most, 0 when it is not bound."""
    operation, body = found.operation, found.operation.body
    keyspace, target = operation.about.keyspace, target_in(body)
    gained: dict[int, int] = {}
    transitions = found.first.transitions.of(operation.id)
    moved = (node for transition in transitions for node in transition.gained)
    for node in (task.target for task in found.tasks) if keyspace else moved:
        gained[node] = gained.get(node, 0) + 1
    forward = found.point_of_no_return
    held = _held(found, sizes, present_ring(before, operation))
    return {
        "schema": "request-plan/1",
        "kind": operation.kind,
        "node": int(operation.node) or None,
        "keyspace": keyspace or None,
        "replication": replication_map(target) if target is not None else None,
        "replaced": int(operation.about.replaced) or None,
        "epoch": before.epoch,
        "ranges": len(transitions),
        "way_back": "can be cancelled until reads move to the new replicas"
        if forward is not None
        else "can be cancelled until its end",
        "point_of_no_return": forward.value if forward is not None else None,
        "steps": [
            *([_SUBSTITUTION] if votes else []),
            *(_steps(found, body) if isinstance(body, Walk) else _table(found)),
        ],
        "receives": [{"node": node, "ranges": count} for node, count in sorted(gained.items())],
        "moves": [
            {
                "source": int(move.source),
                "target": int(move.target),
                "ranges": move.ranges,
                "bytes": move.bytes,
            }
            for move in movements(found.tasks, held)
        ],
        "estimate": _estimate(found, held, sizes, configured_bytes_s),
        "starved": found.starved,
        "changes": changes(before, found.first),
        "afterwards": changes(before, found.last),
    }


def _held(found: Preview, sizes: Mapping[NodeId, Sizes], present: Present | None) -> Held:
    """What each source holds, as it or who holds it now said."""
    said = {
        (node, *wanted): size
        for node, asked in needed_sizes(found.tasks, present).items()
        if node in sizes
        for wanted, size in zip(asked, sizes[node].bytes, strict=False)
    }
    return {
        (source, task.group, task.range): said[key]
        for task in found.tasks
        for source in task.sources
        if (key := (holder(source, task, present), task.group, task.range)) in said
    }


def _estimate(found: Preview, held: Held, sizes: Mapping[NodeId, Sizes], configured_bytes_s: int) -> Document:
    measured = {node: said.rate_bytes_s for node, said in sizes.items() if said.rate_bytes_s}
    if measured:
        slowest = min(measured, key=lambda node: (measured[node], node))
        rate, basis = measured[slowest], f"the last stream that node {slowest} took in"
    elif configured_bytes_s:
        rate, basis = (
            configured_bytes_s,
            "streaming.throughput_bytes_s: no node has streamed since it started",
        )
    else:
        rate, basis = RATE_ASSUMED_BYTES_S, "an assumed rate: no node has streamed since it started"
    told = estimate(found, held, rate, STREAM_S, BARRIER_S)
    return {
        "seconds": round(told.seconds, 2),
        "bytes": told.bytes,
        "unknown_ranges": told.unknown_ranges,
        "rate_bytes_s": rate,
        "rate_from": basis,
        "stream_s": told.stream_s,
        "streams": told.streams,
        "streams_s": round(told.streams_s, 2),
        "barriers": told.barriers,
        "barriers_s": round(told.barriers_s, 2),
    }


def _table(found: Preview) -> list[Document]:
    by_stage = {step.row.stage: step for step in found.steps}
    return [_step(row, by_stage.get(row.stage)) for row in kind_of(found.operation).stages]


def _steps(found: Preview, walk: Walk) -> list[Document]:
    """The table once for each replication on the way, then the way back."""
    path = walk.path
    each = len(found.steps) // (len(path) - 1)
    back = [row for row in kind_of(found.operation).stages if row.stage is Stage.ROLLBACK_TO_NORMAL]
    return [
        *(
            {**_step(step.row, step), "replication": path[at // each + 1].text()}
            for at, step in enumerate(found.steps)
        ),
        *(_step(row, None) for row in back),
    ]


def _step(row: Any, step: StepPreview | None) -> Document:
    """`asked` and `workers` are of the way forward; a way back asks nobody before it is taken."""
    return {
        "stage": row.stage.value,
        "writes": row.writes.value,
        "reads": row.reads.value,
        "drain": row.drain.value,
        "work": row.work.value,
        "asked": [int(node) for node in step.barrier] if step is not None else [],
        "workers": [int(node) for node in step.workers] if step is not None else [],
    }


def force_plan(before: ClusterMetadata, wanted: ForceRemove) -> Document:
    """A `force-remove/1` document of a copy; Rejected where the entry would be."""
    after = wanted.apply(before, before.epoch + 1)
    return {**forced(after, wanted, before.epoch + 1), "dry_run": True, "changes": changes(before, after)}


def forced(after: ClusterMetadata, wanted: ForceRemove, epoch: int) -> Document:
    """What giving the node up by the entry of `epoch` left behind."""
    return {
        "schema": "force-remove/1",
        "node": int(wanted.node),
        "epoch": epoch,
        "dry_run": False,
        "way_back": "none: the data that only this node had is given up",
        "degraded": [
            {
                "replication": after.placements.ring(one.group).replication.strategy,
                "left": one.range.left,
                "right": one.range.right,
                "missing": [int(node) for node in one.missing],
            }
            for one in after.degraded
            if one.since_epoch == epoch
        ],
        "changes": [],
    }


def changes(before: ClusterMetadata, after: ClusterMetadata) -> list[Document]:
    """Differences of two values but for their epochs, the first of them."""
    found = [change for change in diff(before, after) if not change.path.startswith(("epoch", "hash"))]
    return [
        {
            "path": change.path,
            "before": None if change.before == ABSENT else change.before,
            "after": None if change.after == ABSENT else change.after,
        }
        for change in found[:_DIFFERENCES_SHOWN_MAX]
    ]


#: What a node has unless `placement.num_tokens` says otherwise.
_NUM_TOKENS = PlacementSection().num_tokens
_TOKENS_MAX = 1024


class JoiningNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that may join; `num_tokens` None: as many as the node that is asked is set to have. A
    replacement takes place and tokens of the dead node instead."""

    address: str = ""
    dc: str = ""
    rack: str = ""
    num_tokens: int | None = None


def with_newcomer(
    cluster: ClusterMetadata, replaced: NodeId | None, new: JoiningNode, num_tokens: int = 0
) -> tuple[ClusterMetadata, PrepareOperation]:
    """The copy in which the newcomer is admitted, and what it would ask for: the place of `replaced`, or to
    join beside the others. `num_tokens`: of nodes here; 0 where they own none."""
    directory = cluster.directory
    node_id = NodeId(directory.next_node_id)
    dead = cluster.node(replaced) if replaced is not None else None
    if replaced is not None and dead is None:
        raise ConfigurationError(f"there is no node {replaced} to replace", hint="lockstep status")
    count = new.num_tokens if new.num_tokens is not None else num_tokens or _NUM_TOKENS
    if not 1 <= count <= _TOKENS_MAX:
        raise ConfigurationError(f"a node has 1 to {_TOKENS_MAX} tokens, not {count}")
    pattern = dead or next((n for n in directory.nodes if n.owns_tokens), None)
    if pattern is None:
        raise ConfigurationError("no node owns tokens yet")
    info = NodeInfo(
        id=node_id,
        host_id=f"newcomer-{node_id}",
        address=new.address or "a new address",
        internode_port=pattern.internode_port,
        cql_port=pattern.cql_port,
        admin_port=pattern.admin_port,
        dc=(dead.dc if dead is not None else new.dc) or pattern.dc,
        rack=(dead.rack if dead is not None else new.rack) or pattern.rack,
        log_version=pattern.log_version,
        replaces=dead.id if dead is not None else NodeId(0),
    )
    with_it = msgspec.structs.replace(
        directory, nodes=(*directory.nodes, info), next_node_id=directory.next_node_id + 1
    )
    copy = cluster.changed(DIRECTORY.set(with_it))
    if dead is not None:
        return copy, PrepareOperation(Replace(node_id, dead.id))
    owned = [node.tokens for node in directory.nodes]
    owned += [request.about.tokens for request in cluster.requests.live if request.about.tokens]
    tokens = splitting_tokens(owned, count)
    return copy, PrepareOperation(Bootstrap(node_id, tokens))


#: Numbers of a report of work, by their names in documents.
_NUMBERS = {
    "bytes": ("moved_bytes", 0),
    "fragments": ("moved_fragments", 0),
    "total_bytes": ("total_bytes", 0),
    "rate_bytes_s": ("rate_bytes_s", 0),
    "left_s": ("left_s", -1),
    "files_done": ("files_done", 0),
    "files_total": ("files_total", 0),
    "ranges_done": ("ranges_done", 0),
    "ranges_total": ("ranges_total", 0),
    "tables_done": ("tables_done", 0),
    "tables_total": ("tables_total", 0),
}


def progress(node: NodeServices, operation: Operation) -> Document:
    """`path`, `barrier`, `work` and the sum of the work in `progress`."""
    cluster = node.log.cluster
    dead = tuple(n.id for n in cluster.directory.nodes if not node.membership.liveness.alive(n.id))
    known = {n: node.work.topology.acknowledged(n) for n in cluster.directory.present_ids}
    known[NodeId(node.context.own_id())] = cluster.epoch
    seen = presence(operation, cluster, known, dead)
    work = []
    for worker, kind, key in workers(operation, cluster, dead):
        said = node.work.topology.said.get(key)
        work.append(
            {
                "node": int(worker),
                "kind": kind.value,
                "state": said.state if said is not None else "waiting",
                "text": said.text if said is not None else "",
                **numbers(said),
            }
        )
    return {
        "path": [
            {"stage": at.stage.value, "state": at.state, "epoch": at.epoch or None} for at in path(operation)
        ],
        "barrier": {
            "epoch": seen.epoch,
            "seen": [int(one) for one in seen.seen],
            "unseen": [{"node": int(one), "epoch": known.get(one, 0)} for one in seen.unseen],
        },
        "work": work,
    }


def numbers(said: WorkStatus | None) -> Document:
    """What a report counts; nothing of what nobody reported."""
    if said is None:
        return {}
    found = {name: getattr(said, field, missing) for name, (field, missing) in _NUMBERS.items()}
    return {name: value for name, value in found.items() if value != _NUMBERS[name][1]}


def planned(node: NodeServices, transformation: Any, steps: Sequence[str], way_back: str) -> Document:
    """The `cms-plan/1` document: steps, the difference in the metadata, who must be up, and the way back."""
    cluster = node.log.cluster
    ready = transformation.prepared(cluster) if isinstance(transformation, Prepared) else transformation
    after = ready.apply(cluster, cluster.epoch + 1)
    return {
        "schema": "cms-plan/1",
        "epoch": cluster.epoch,
        "steps": list(steps),
        "waits_for": waits_for(node),
        "changes": metadata_diff(cluster, after).changes,
        "way_back": way_back,
    }


def waits_for(node: NodeServices) -> str:
    """What every change of the metadata needs."""
    voters = node.log.cluster.service.voters
    down = [voter for voter in voters if not node.membership.liveness.alive(voter)]
    text = f"{len(voters) // 2 + 1} of the voters {', '.join(map(str, voters))}"
    return f"{text}; {', '.join(map(str, down))} seem down" if down else text
