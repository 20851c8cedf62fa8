"""What the kinds share that are about a node's place in the ring: how they begin and end.

Invariant: a node takes part in one of them at a time, and has the state that its kind says from the entry
that begins it to the one that ends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import DEGRADED
from lockstep.metadata.directory import DIRECTORY, EXCLUDED, Directory, Exclusion, NodeInfo, NodeState
from lockstep.metadata.groups.membership import without_leaving
from lockstep.metadata.groups.service import SERVICE
from lockstep.metadata.operations import OPERATIONS, Body, Operation, Stage
from lockstep.metadata.requests import REQUESTS, Request, begun, finished
from lockstep.metadata.schema_part import PLACEMENTS
from lockstep.metadata.transformations import refuse_bad_tokens
from lockstep.metadata.transitions import TRANSITIONS
from lockstep.placement.quorums import dc_factors
from lockstep.topology.kind import Drill, GivesWay, Kind, Ring, kind_of, ring_of, row_can_go_back
from lockstep.topology.planning import (
    full_change,
    laid_out,
    merged_rings,
    plan,
    refuse_voter,
    session_id_of,
    unfit_state,
)
from lockstep.topology.stages import StageRow
from lockstep.topology.streams import sources_of, still_degraded, tasks_of_givers
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import TOKENS_PER_NODE_MAX

#: States of nodes that will own tokens whatever becomes of the running operations.
_STAYING = (NodeState.NORMAL, NodeState.REBUILDING)


def ring_kind(
    body: type[Body],
    precedence: int,
    why: str,
    stages: tuple[StageRow, ...],
    ring: Ring,
    *drills: Drill,
    is_held_back: bool = True,
    **others: Any,
) -> Kind:
    """A kind that begins and ends as all on the ring do, and is named by the tag of its body."""
    assert stages and len({row.stage for row in stages}) == len(stages), "a stage has one row"
    fields: dict[str, Any] = {
        "tasks": lambda operation, *given: tasks_of_givers(*given),
        "sources": sources_of,
        **others,
    }
    return Kind(
        name=str(body.__struct_config__.tag),  # type: ignore[attr-defined]
        body=body,
        precedence=precedence,
        is_held_back=is_held_back,
        why=why,
        stages=stages,
        drills=drills,
        ring=ring,
        refuse_unfit=refuse_unfit,
        refuse_early=full_change,
        begun=begun_on_ring,
        ended=ended_on_ring,
        can_go_back=row_can_go_back,
        **fields,
    )


# Whether it may begin


def refuse_unfit(cluster: ClusterMetadata, request: Request) -> None:
    """Raises Rejected for what is wrong with the nodes and tokens of a request whatever ends."""
    about, requests = request.about, cluster.requests
    if len(set(about.nodes)) != len(about.nodes):
        raise Rejected(f"node {about.node} cannot replace itself")
    if len(about.tokens) > TOKENS_PER_NODE_MAX:
        raise Rejected(f"a node owns 1 to {TOKENS_PER_NODE_MAX} tokens, not {len(about.tokens)}")
    for node in about.nodes:
        _refuse_node(cluster, node)
    taken = next((token for token in about.tokens if token in requests.by_token), None)
    if taken is not None:
        raise Rejected(f"token {taken} is wanted by {requests.by_token[taken].title()}")
    needed, info = ring_of(request).needs, cluster.directory.by_id[about.node]
    if info.state is not needed:
        raise unfit_state(about.kind, needed, info)


def _refuse_node(cluster: ClusterMetadata, node: NodeId) -> None:
    info = cluster.node(node)
    if info is None:
        raise Rejected(f"there is no node {node}")
    other = cluster.requests.by_node.get(node)
    if other is not None:
        raise Rejected(
            f"node {node} has {other.title()} already, which is {other.state}",
            hint=f"`lockstep topology cancel {other.id}` takes it back",
        )
    if info.state is NodeState.LEFT:
        raise Rejected(f"node {node} has left the cluster")


def refuse_unusable(cluster: ClusterMetadata, directory: Directory, tokens: Sequence[int]) -> None:
    """Raises Rejected unless a node may own the tokens beside the nodes of `directory` and those to come."""
    refuse_bad_tokens(directory, tuple(tokens))
    for operation in cluster.operations:
        taken = sorted(set(operation.tokens) & set(tokens))
        if taken:
            raise Rejected(f"token {taken[0]} is wanted by {operation.title()}")


def tokens_of_leaver(cluster: ClusterMetadata, node: NodeInfo, _: Body) -> tuple[int, ...]:
    check_leave(cluster, node)
    return node.tokens


def check_leave(cluster: ClusterMetadata, node: NodeInfo) -> None:
    """Nodes that leave in other running operations are taken as gone, those that join as not there."""
    refuse_voter(cluster, node)
    if not node.tokens:
        return
    remaining = [n for n in cluster.directory.nodes if n.state in _STAYING and n.tokens and n.id != node.id]
    if not remaining:
        raise Rejected(f"node {node.id} is the last normal node that owns tokens")
    for placed in cluster.placements.rings:
        replication = placed.replication
        for dc, factor in dc_factors(replication) or (("", replication.total),):
            if dc not in ("", node.dc):
                continue
            left = sum(1 for other in remaining if dc in ("", other.dc))
            if left < factor:
                where = f" in data centre {dc}" if dc else ""
                names = ", ".join(k.name for k in cluster.schema.keyspaces if placed.id in k.groups)
                raise Rejected(
                    f"{left} normal nodes would be left{where}, but {names} has replication factor {factor}",
                    hint="let another node join first (`lockstep cluster add`), or drop the keyspace",
                )


def owned(directory: Directory, body: Body) -> tuple[NodeId, Sequence[int]]:
    """The tokens of the node that departs, or of the kind's own."""
    node = body.about.departing or body.about.node
    info = directory.by_id.get(node)
    return node, info.tokens if info is not None else ()


# Its first entry, and its last one


def begun_on_ring(cluster: ClusterMetadata, request: Request, epoch: int) -> ClusterMetadata:
    """The value with the operation in its first stage: ranges split and held, the node in its state."""
    body, kind, operation_id = request.body, kind_of(request), cluster.next_operation_id
    change = full_change(cluster, body)
    stage = kind.stages[0].stage
    operation = Operation(
        id=operation_id,
        body=body,
        tokens=change.tokens,
        stage=stage,
        stage_epoch=epoch,
        history=((stage, epoch),),
    )
    assert epoch > cluster.epoch and operation_id not in cluster.operations_by_id, "operations have new ids"
    operation = msgspec.structs.replace(operation, session_id=session_id_of(operation))
    placements, transitions = laid_out(cluster, operation_id, plan(cluster, change))
    asked = msgspec.structs.replace(request, operation_id=operation_id)
    node = cluster.directory.by_id[operation.node]
    assert node.state is ring_of(body).needs, "a node begins in the state that its kind needs"
    directory = _with_state(cluster.directory, node.id, ring_of(body).becomes, node.tokens, epoch)
    return cluster.changed(
        DIRECTORY.set(directory),
        PLACEMENTS.set(placements),
        TRANSITIONS.set(transitions),
        SERVICE.set(without_leaving(cluster.service, node.id)),
        REQUESTS.set(begun(cluster.requests, asked, epoch)),
        OPERATIONS.set(cluster.running.with_changed(operation)),
    )


def ended_on_ring(
    cluster: ClusterMetadata, operation: Operation, epoch: int, gives_way: GivesWay
) -> ClusterMetadata:
    """Nothing comes between the last stage and the end."""
    return _ended(cluster, operation, epoch)


def _ended(cluster: ClusterMetadata, operation: Operation, epoch: int) -> ClusterMetadata:
    """The value without the operation: ranges merged and let go, the session gone, the node in its end
    state."""
    assert operation.id in cluster.operations_by_id, "an operation ends once"
    assert epoch > operation.stage_epoch, "it ends after its last stage"
    ended, others = cluster.transitions.of(operation.id), cluster.transitions.ended(operation.id)
    # Nothing was cut where tablets were filled, and neighbours stay two.
    on_rings = [one for one in ended if one.group not in cluster.tablets.by_group]
    return cluster.changed(
        DIRECTORY.set(_end_directory(cluster.directory, operation, epoch)),
        PLACEMENTS.set(merged_rings(cluster.placements, on_rings, others)),
        EXCLUDED.set(_still_excluded(cluster.excluded, operation)),
        DEGRADED.set(still_degraded(cluster, operation)),
        SERVICE.set(without_leaving(cluster.service, operation.about.departing)),
        REQUESTS.set(
            finished(
                cluster.requests,
                operation.id,
                operation.cancel_reason,
                rolled_back=operation.stage is Stage.ROLLBACK_TO_NORMAL,
                epoch=epoch,
            )
        ),
        OPERATIONS.set(cluster.running.without(operation.id)),
        TRANSITIONS.set(others),
    )


def _still_excluded(excluded: tuple[Exclusion, ...], operation: Operation) -> tuple[Exclusion, ...]:
    """The exclude list without a node that is gone: it can never be taken back."""
    gone = operation.about.departing
    if not gone or operation.stage is Stage.ROLLBACK_TO_NORMAL or all(e.node != gone for e in excluded):
        return excluded
    return tuple(exclusion for exclusion in excluded if exclusion.node != gone)


def _end_directory(directory: Directory, operation: Operation, epoch: int) -> Directory:
    """The nodes once the operation has ended, in success or taken back."""
    node = directory.by_id[operation.node]
    assert node.state is ring_of(operation).becomes, "a node has the state of its operation"
    if operation.stage is Stage.ROLLBACK_TO_NORMAL:
        return _with_state(directory, node.id, ring_of(operation).needs, node.tokens, epoch)
    if operation.about.departing:
        directory = _with_state(directory, operation.about.departing, NodeState.LEFT, (), epoch)
    if operation.about.departing == node.id:
        return directory
    return _with_state(directory, node.id, NodeState.NORMAL, operation.tokens, epoch)


def _with_state(
    directory: Directory, node_id: NodeId, state: NodeState, tokens: tuple[int, ...], epoch: int
) -> Directory:
    node = directory.by_id[node_id]
    assert node.state is not NodeState.LEFT and epoch > node.epoch, "who left does not come back"
    return directory.with_node(msgspec.structs.replace(node, state=state, tokens=tokens, epoch=epoch))
