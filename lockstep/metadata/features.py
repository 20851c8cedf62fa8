"""The entry that switches features on, and the question when it is due.

Invariant: a feature is enabled only while every node that has not left supports it, and is never disabled.
Whoever lacks an enabled feature is neither registered nor taken back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory
from lockstep.metadata.feature_names import FEATURE_STATE, FeatureState, lacking
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import FEATURES_MAX


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
