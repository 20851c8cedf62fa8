"""Remove: a dead node is gone, and its ranges are filled from the replicas that are left."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import About, Stage
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.ring import owned, ring_kind, tokens_of_leaver
from lockstep.topology.stages import range_movement
from lockstep.values.ids import NodeId


class Remove(msgspec.Struct, frozen=True, array_like=True, tag="remove"):
    """`presumed_dead`: whoever asks says that the node counts as dead, whatever is heard of it."""

    node: NodeId
    presumed_dead: bool = False

    @property
    def about(self) -> About:
        node = self.node
        return About(KIND.name, KIND.precedence, (node,), departing=node, presumed_dead=node)

    @property
    def kind(self) -> Kind:
        return KIND


KIND: Final[Kind] = ring_kind(
    Remove,
    3,
    "the dead node's ranges lack a copy until it is done",
    range_movement(Stage.PREPARED, Stage.LEFT_TOKEN_RING),
    Ring(
        needs=NodeState.NORMAL,
        becomes=NodeState.REMOVING,
        tokens=tokens_of_leaver,
        surely=owned,
        comes_or_goes=True,
        of_dead=True,
    ),
    Drill("remove", dead=True, sheds=False),
    is_held_back=False,
)
