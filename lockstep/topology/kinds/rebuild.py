"""Rebuild: a node fills its own ranges again, from the other replicas; nobody's ranges change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import About, Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.placement.quorums import DcOf
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.ring import owned, ring_kind
from lockstep.topology.stages import Drain, Side, StageRow, StreamTask, Work
from lockstep.topology.streams import read_quorum
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId


class Rebuild(msgspec.Struct, frozen=True, array_like=True, tag="rebuild"):
    """`source_dc` is the data centre that it reads from; empty is any replica."""

    node: NodeId
    source_dc: str = ""

    @property
    def about(self) -> About:
        return About(KIND.name, KIND.precedence, (self.node,))

    @property
    def kind(self) -> Kind:
        return KIND


def _tokens(cluster: ClusterMetadata, node: NodeInfo, asked: Rebuild) -> tuple[int, ...]:
    if asked.source_dc and asked.source_dc not in cluster.directory.data_centers:
        raise Rejected(f"there is no data centre {asked.source_dc!r}")
    return node.tokens


def _sources(
    operation: Operation, transition: Transition, dc_of: DcOf, absent: Sequence[NodeId]
) -> tuple[NodeId, ...]:
    """The node's own copy counts for nothing: it is what a rebuild doubts."""
    asked = operation.body
    assert isinstance(asked, Rebuild), "it is a rebuild"
    return read_quorum(transition, dc_of, absent, asked.source_dc, asked.node)


def _tasks(
    operation: Operation,
    transition: Transition,
    dc_of: DcOf,
    dead: Sequence[NodeId],
    lacking: Sequence[NodeId],
) -> tuple[StreamTask, ...]:
    asked = operation.body
    assert isinstance(asked, Rebuild), "it is a rebuild"
    others = [node for node in transition.old if node != asked.node]
    if all(asked.source_dc not in ("", dc_of(node)) for node in others):
        return ()
    sources = _sources(operation, transition, dc_of, dead)
    return (StreamTask(asked.node, transition.group, transition.range, sources, needs_all=True),)


#: Both sides are the same replicas: ranges are held, and only their contents change.
_STAGES = (
    StageRow(
        stage=Stage.REBUILDING,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD,),
        drain=Drain.SOURCES,
        work=Work.REBUILD,
        next=None,
        on_failure=Stage.ROLLBACK_TO_NORMAL,
    ),
    StageRow(
        stage=Stage.ROLLBACK_TO_NORMAL,
        writes=Side.OLD,
        reads=Side.OLD,
        in_use=(Side.OLD,),
        next=None,
    ),
)

KIND: Final[Kind] = ring_kind(
    Rebuild,
    6,
    "nobody's ranges change",
    _STAGES,
    Ring(
        needs=NodeState.NORMAL,
        becomes=NodeState.REBUILDING,
        tokens=_tokens,
        surely=owned,
        is_refill=True,
        works_itself=True,
    ),
    Drill("rebuild", gets=True),
    tasks=_tasks,
    sources=_sources,
)
