"""Who streams what from whom when a pending replica is filled.

Invariant: the sources together hold every write that was acknowledged at QUORUM or LOCAL_QUORUM under
the old group. The replica that gives the range up does, as far as the group can tell: replacing it by a
copy of itself keeps every quorum. Where nobody gives up, or that one is dead, a read quorum of the old
group does (of each data centre, where the strategy counts per data centre).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation, Transition
from lockstep.placement.quorums import DcOf, dc_factors, majority
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


class StreamTask(msgspec.Struct, frozen=True, array_like=True):
    """`target` copies the range from all `sources` when `needs_all`, else from any one of them.

    No sources means that too few old replicas are alive to be sure of every acknowledged write.
    """

    target: NodeId
    replication: Replication
    range: Range
    sources: tuple[NodeId, ...]
    needs_all: bool


def stream_plan(
    operation: Operation, cluster: ClusterMetadata, dead: Sequence[NodeId]
) -> tuple[StreamTask, ...]:
    """One task for each pending replica of each transition, in the order of the transitions.

    A range without old replicas holds nothing and needs no task.
    """
    dc_of = cluster.directory.dc_by_id.__getitem__
    return tuple(task for t in operation.transitions for task in _tasks(t, dc_of, dead))


def _tasks(transition: Transition, dc_of: DcOf, dead: Sequence[NodeId]) -> list[StreamTask]:
    per_dc = bool(dc_factors(transition.replication))
    if not transition.old:
        return []
    givers: dict[str, list[NodeId]] = {}
    for node in transition.lost:
        givers.setdefault(dc_of(node) if per_dc else "", []).append(node)
    tasks = []
    for target in transition.gained:
        giving = givers.get(dc_of(target) if per_dc else "", [])
        giver = giving.pop(0) if giving else None
        if giver is not None and giver not in dead:
            sources: tuple[NodeId, ...] = (giver,)
        else:
            sources = _read_quorum(transition, dc_of, dead)
        tasks.append(StreamTask(target, transition.replication, transition.range, sources, needs_all=True))
    return tasks


def _read_quorum(transition: Transition, dc_of: DcOf, dead: Sequence[NodeId]) -> tuple[NodeId, ...]:
    """Live old replicas that meet every acknowledged write; empty when too few are alive.

    A group smaller than a quorum cannot have acknowledged one, but what it holds still counts: all of
    it is needed then.
    """
    factors = dc_factors(transition.replication)
    chosen: list[NodeId] = []
    for dc, factor in factors or (("", transition.replication.total),):
        members = [node for node in transition.old if not factors or dc_of(node) == dc]
        live = [node for node in members if node not in dead]
        needed = min(majority(factor), len(members))
        if len(live) < needed:
            return ()
        chosen.extend(live[:needed])
    return tuple(node for node in transition.old if node in chosen)
