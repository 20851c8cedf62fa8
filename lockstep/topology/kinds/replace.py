"""Replace: a new node takes the place and the tokens of a dead one."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import About, Stage
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.ring import owned, ring_kind
from lockstep.topology.planning import WAIT_OR_CANCEL, refuse_voter
from lockstep.topology.stages import range_movement
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId


class Replace(msgspec.Struct, frozen=True, array_like=True, tag="replace"):
    """`replaced` is the dead node."""

    node: NodeId
    replaced: NodeId = NodeId(0)

    @property
    def about(self) -> About:
        dead = self.replaced
        nodes = (self.node, dead) if dead else (self.node,)
        return About(KIND.name, KIND.precedence, nodes, departing=dead, presumed_dead=dead)

    @property
    def kind(self) -> Kind:
        return KIND


def _tokens(cluster: ClusterMetadata, node: NodeInfo, asked: Replace) -> tuple[int, ...]:
    replaced = asked.replaced
    dead = cluster.node(replaced)
    if dead is None:
        raise Rejected(f"there is no node {replaced} to replace")
    running = next((o for o in cluster.operations if replaced in o.about.nodes), None)
    if running is not None:
        raise Rejected(f"node {replaced} takes part in {running.title()}", hint=WAIT_OR_CANCEL)
    if dead.state is not NodeState.NORMAL:
        raise Rejected(f"only a normal node is replaced; node {replaced} is {dead.state}")
    if node.replaces not in (0, replaced):
        raise Rejected(f"node {node.id} was admitted to replace node {node.replaces}, not node {replaced}")
    if (dead.dc, dead.rack) != (node.dc, node.rack):
        raise Rejected(
            f"node {replaced} stands in {dead.dc}/{dead.rack}, its replacement in {node.dc}/{node.rack}",
            hint="a replacement takes over the place; remove the node and let the other join instead",
        )
    if node.is_zero_token == bool(dead.tokens):
        which = "owns tokens" if dead.tokens else "owns no tokens"
        raise Rejected(f"node {replaced} {which}, and node {node.id} joined otherwise")
    refuse_voter(cluster, dead)
    return dead.tokens


KIND: Final[Kind] = ring_kind(
    Replace,
    1,
    "the dead node's ranges lack a copy until it is done",
    range_movement(Stage.JOIN_GROUP0, Stage.LEFT_TOKEN_RING),
    Ring(
        needs=NodeState.NONE,
        becomes=NodeState.REPLACING,
        tokens=_tokens,
        surely=owned,
        comes_or_goes=True,
        of_dead=True,
        is_newcomers=True,
    ),
    Drill("replace_same_address", dead=True, gets=True, sheds=False),
    Drill("replace_new_address", dead=True, gets=True, sheds=False),
    is_held_back=False,
)
