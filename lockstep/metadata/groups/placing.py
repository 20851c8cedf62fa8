"""Where the management group lives: with the metadata group's voters, or on nodes that an operator named.

Invariant: nodes that have left, or wait to leave, are never asked to manage; where none of the named ones is
left, the group follows the voters again. Pure functions of the metadata.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.service import MANAGEMENT_PLACE, ManagementPlace
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import METADATA_VOTERS_MAX


def named_managers(cluster: ClusterMetadata) -> tuple[NodeId, ...]:
    """Nodes that were named for the management group and may be in it, ascending; empty: it follows the
    voters."""
    present = {node.id for node in cluster.directory.nodes if node.state is not NodeState.LEFT}
    named = cluster.parts[MANAGEMENT_PLACE].members
    found = tuple(node for node in named if node in present and node not in cluster.service.leaving)
    assert set(found) <= set(named), "nobody manages who was not named"
    return found


class PlaceManagement(msgspec.Struct, frozen=True, array_like=True):
    """Have the management group live on these nodes, ascending; on the voters when there are none."""

    members: tuple[NodeId, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        members, known = self.members, cluster.parts[MANAGEMENT_PLACE].members
        if members != tuple(sorted(set(members))):
            raise Rejected("members of the management group are distinct and ascending")
        if len(members) > METADATA_VOTERS_MAX or (members and len(members) % 2 == 0):
            raise Rejected(
                f"the management group has an odd number of members up to {METADATA_VOTERS_MAX}, not "
                f"{len(members)}"
            )
        for member in members:
            node = cluster.node(member)
            if node is None or node.state is NodeState.LEFT:
                raise Rejected(f"there is no node {member}")
            if member in cluster.service.leaving:
                raise Rejected(f"node {member} is to leave the cluster")
            if member in cluster.excluded_by_node:
                raise Rejected(f"node {member} is excluded: it could not take part")
        if members == known:
            raise Rejected("that is where the management group lives already")
        return cluster.changed(MANAGEMENT_PLACE.set(ManagementPlace(members)))


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.PLACE_MANAGEMENT: PlaceManagement}
