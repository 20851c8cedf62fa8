"""The entry that switches features on, the question when it is due, and the exclude list: nodes that
operators shut out until they have caught up.

Invariant: a feature is enabled only while every node that has not left supports it, and is never disabled.
Whoever lacks an enabled feature is neither registered nor taken back. Explicit and persistent. A node gets on
it and off it by an entry only; as long as it is on it no barrier counts it as having seen anything, and every
node refuses its requests for data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import (
    EXCLUDED,
    FEATURE_STATE,
    Directory,
    Exclusion,
    FeatureState,
    NodeState,
    lacking,
)
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import FEATURES_MAX, SERVICE_TEXT_CHARACTERS_MAX


class EnableFeatures(msgspec.Struct, frozen=True, array_like=True):
    """Switch these on for good, after all nodes have seen the last announcement of support."""

    names: tuple[str, ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if not self.names or self.names != tuple(sorted(set(self.names))):
            raise Rejected("name the features to enable once each, in order")
        enabled = cluster.features.enabled
        if len(enabled) + len(self.names) > FEATURES_MAX:
            raise Rejected(f"a cluster has at most {FEATURES_MAX} features")
        for name in self.names:
            if name in enabled:
                raise Rejected(f"feature {name} is enabled already")
            without = unsupporting(cluster.directory, name)
            if without:
                nodes = ", ".join(str(node) for node in without)
                raise Rejected(f"feature {name} is not supported by nodes {nodes}", hint="upgrade them first")
        state = FeatureState(tuple(sorted((*enabled, *self.names))), cluster.features.announced_epoch)
        return cluster.changed(FEATURE_STATE.set(state))


def unsupporting(directory: Directory, name: str) -> tuple[NodeId, ...]:
    """Nodes that have not left and do not say that they support the feature, ascending."""
    by_id = directory.by_id
    return tuple(node for node in directory.present_ids if name not in by_id[node].features)


def supported_by_all(cluster: ClusterMetadata) -> tuple[str, ...]:
    """Features that every node supports and that are not enabled yet, sorted."""
    present = [cluster.directory.by_id[node].features for node in cluster.directory.present_ids]
    if not present:
        return ()
    common = set(present[0]).intersection(*present[1:])
    return tuple(sorted(common.difference(cluster.features.enabled)))


def due(cluster: ClusterMetadata) -> tuple[str, ...]:
    """What the coordinator should enable once all have acknowledged the last announcement; () when nothing.

    Never in the midst of an operation, whose steps may differ with the feature.
    """
    if cluster.operations or cluster.service.frozen:
        return ()
    return supported_by_all(cluster)


def unaware(cluster: ClusterMetadata, acknowledged: Mapping[NodeId, int]) -> tuple[tuple[NodeId, int], ...]:
    """(node, last seen epoch) of those that have not seen the last announcement: the barrier holds them.

    Everyone counts, also who is shut out: a node that comes back with less would be inside already.
    """
    needed = cluster.features.announced_epoch
    seen = {
        node: 0 if node in cluster.excluded_by_node else acknowledged.get(node, 0)
        for node in cluster.directory.present_ids
    }
    return tuple((node, epoch) for node, epoch in seen.items() if epoch < needed)


def refuse_lacking(enabled: Sequence[str], supported: Sequence[str]) -> None:
    """PreconditionError when a node with these features must not run in a cluster with those enabled."""
    missing = lacking(enabled, supported)
    if missing:
        raise PreconditionError(
            f"the cluster uses {', '.join(missing)}, which this node does not support",
            hint="start a version that supports it: `lockstep features` lists what each node supports",
        )


KINDS: dict[int, type] = {EntryKind.ENABLE_FEATURES: EnableFeatures}


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
        assert len(set(self.nodes)) == len(self.nodes) <= len(cluster.excluded), "a node is excluded once"
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


EXCLUDED_KINDS: dict[int, type] = {
    EntryKind.EXCLUDE_NODES: ExcludeNodes,
    EntryKind.INCLUDE_NODES: IncludeNodes,
}
