"""Decommission: a node that lives hands its ranges over, and is gone."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import About, Stage
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.ring import owned, ring_kind, tokens_of_leaver
from lockstep.topology.stages import range_movement
from lockstep.values.ids import NodeId


class Decommission(msgspec.Struct, frozen=True, array_like=True, tag="decommission"):
    node: NodeId

    @property
    def about(self) -> About:
        return About(KIND.name, KIND.precedence, (self.node,), departing=self.node)

    @property
    def kind(self) -> Kind:
        return KIND


KIND: Final[Kind] = ring_kind(
    Decommission,
    4,
    "a node that lives serves until it may leave",
    range_movement(Stage.PREPARED, Stage.LEFT_TOKEN_RING),
    Ring(
        needs=NodeState.NORMAL,
        becomes=NodeState.DECOMMISSIONING,
        tokens=tokens_of_leaver,
        surely=owned,
        comes_or_goes=True,
    ),
    Drill("decommission", gives=True, sheds=False),
)
