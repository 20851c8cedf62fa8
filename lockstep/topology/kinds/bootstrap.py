"""Bootstrap: a new node comes into the ring, with tokens that it chose."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import About, Stage
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.ring import refuse_unusable, ring_kind
from lockstep.topology.stages import Side, StageRow, range_movement
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId


class Bootstrap(msgspec.Struct, frozen=True, array_like=True, tag="bootstrap"):
    """`node` is to own `tokens`; none, where it joined to own none."""

    node: NodeId
    tokens: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "tokens", tuple(sorted(self.tokens)))

    @property
    def about(self) -> About:
        return About(KIND.name, KIND.precedence, (self.node,), self.tokens)

    @property
    def kind(self) -> Kind:
        return KIND


def _tokens(cluster: ClusterMetadata, node: NodeInfo, asked: Bootstrap) -> tuple[int, ...]:
    if node.replaces:
        raise Rejected(f"node {node.id} was admitted to replace node {node.replaces}, not to join beside it")
    if not node.is_zero_token:
        refuse_unusable(cluster, cluster.directory, asked.tokens)
    elif asked.tokens:
        raise Rejected(f"node {node.id} joined to own no tokens")
    return asked.tokens


#: Between the first stage and the next: replicas learn of the new generation of change data capture before it
#: is published. Nothing is sent elsewhere yet.
_COMMIT_CDC_GENERATION = StageRow(
    stage=Stage.COMMIT_CDC_GENERATION,
    writes=Side.OLD,
    reads=Side.OLD,
    in_use=(Side.OLD, Side.UNION),
    next=Stage.WRITE_BOTH_READ_OLD,
    on_failure=Stage.ROLLBACK_TO_NORMAL,
)

KIND: Final[Kind] = ring_kind(
    Bootstrap,
    2,
    "more room and copies first, so that what leaves after may",
    range_movement(Stage.JOIN_GROUP0, Stage.NEW_ONLY, _COMMIT_CDC_GENERATION),
    Ring(
        needs=NodeState.NONE,
        becomes=NodeState.BOOTSTRAPPING,
        tokens=_tokens,
        surely=lambda directory, asked: (asked.node, asked.tokens),
        comes_or_goes=True,
        is_newcomers=True,
    ),
    Drill("bootstrap", gets=True),
)
