"""The exclude list: nodes that operators shut out until they have caught up.

Invariant: explicit and persistent. A node gets on it and off it by an entry only; as long as it is on it no
barrier counts it as having seen anything, and every node refuses its requests for data.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.exclusions import EXCLUDED, Exclusion
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import SERVICE_TEXT_CHARACTERS_MAX


class ExcludeNodes(msgspec.Struct, frozen=True, array_like=True):
    """Shut these nodes out, for a reason that people read."""

    nodes: tuple[NodeId, ...]
    reason: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        _refuse_repeated(self.nodes)
        if len(self.reason) > SERVICE_TEXT_CHARACTERS_MAX:
            raise Rejected(f"a reason has at most {SERVICE_TEXT_CHARACTERS_MAX} characters")
        for node_id in self.nodes:
            _refuse_excluding(cluster, node_id)
        added = tuple(Exclusion(node, epoch, self.reason or "by an operator") for node in self.nodes)
        return _with(cluster, (*cluster.excluded, *added))


class IncludeNodes(msgspec.Struct, frozen=True, array_like=True):
    """Take these nodes back. `reached`: the epoch that each was found to have applied, in their order."""

    nodes: tuple[NodeId, ...]
    reached: tuple[int, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        _refuse_repeated(self.nodes)
        if len(self.reached) != len(self.nodes):
            raise Rejected("each node that is included was found at an epoch")
        for node_id, reached in zip(self.nodes, self.reached, strict=True):
            exclusion = cluster.excluded_by_node.get(node_id)
            if exclusion is None:
                raise Rejected(f"node {node_id} is not excluded")
            if reached < exclusion.epoch:
                raise Rejected(
                    f"node {node_id} has applied epoch {reached} and was excluded at epoch {exclusion.epoch}",
                    hint="start it and let it catch up first",
                )
        return _with(cluster, tuple(e for e in cluster.excluded if e.node not in self.nodes))


def _refuse_repeated(nodes: tuple[NodeId, ...]) -> None:
    if not nodes or len(set(nodes)) != len(nodes):
        raise Rejected("name one node at least, and each once")


def _refuse_excluding(cluster: ClusterMetadata, node_id: NodeId) -> None:
    info = cluster.node(node_id)
    if info is None:
        raise Rejected(f"there is no node {node_id}")
    if info.state is NodeState.LEFT:
        raise Rejected(f"node {node_id} has left the cluster")
    if node_id in cluster.excluded_by_node:
        raise Rejected(f"node {node_id} is excluded already")
    if node_id in cluster.service.members:
        raise Rejected(
            f"node {node_id} is a voter of the metadata group",
            hint="`lockstep cms reconfigure --nodes` gives its vote to another node",
        )


def _with(cluster: ClusterMetadata, excluded: tuple[Exclusion, ...]) -> ClusterMetadata:
    ordered = tuple(sorted(excluded, key=lambda exclusion: exclusion.node))
    return cluster.changed(EXCLUDED.set(ordered))


KINDS: dict[int, type] = {
    EntryKind.EXCLUDE_NODES: ExcludeNodes,
    EntryKind.INCLUDE_NODES: IncludeNodes,
}
