"""Move: a node of the ring owns other tokens."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import About
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.ring import refuse_unusable, ring_kind
from lockstep.topology.stages import RANGE_MOVEMENT
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId


class Move(msgspec.Struct, frozen=True, array_like=True, tag="move"):
    """`node` is to own `tokens`, some of which it may own already."""

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


def _tokens(cluster: ClusterMetadata, node: NodeInfo, asked: Move) -> tuple[int, ...]:
    if asked.tokens == node.tokens:
        raise Rejected(f"node {node.id} owns exactly these tokens")
    if node.is_zero_token:
        raise Rejected(f"node {node.id} owns no tokens, so there is nothing to move")
    others = cluster.directory.with_node(msgspec.structs.replace(node, tokens=()))
    refuse_unusable(cluster, others, asked.tokens)
    return asked.tokens


KIND: Final[Kind] = ring_kind(
    Move,
    5,
    "only the balance changes",
    RANGE_MOVEMENT,
    Ring(
        needs=NodeState.NORMAL,
        # It shows in its tokens alone.
        becomes=NodeState.NORMAL,
        tokens=_tokens,
        surely=lambda directory, asked: (asked.node, ()),
        works_itself=True,
    ),
    Drill("move"),
)
