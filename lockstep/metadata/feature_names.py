"""Cluster features: what all nodes must be able to do before any of them relies on it.

Invariant: a name is never given a second meaning. `BASE_FEATURES` never changes: entries of the first version
that name no features mean these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from lockstep.metadata.part import Part, struct_part

METADATA_LOG: Final = "metadata-log"
CLUSTER_FEATURES: Final = "cluster-features"
FILE_STREAMING: Final = "file-streaming"
REPLICATION_CHANGE: Final = "replication-change"
ZERO_TOKEN_NODES: Final = "zero-token-nodes"

#: Name -> what it lets the cluster do, for people.
FEATURES: Final[Mapping[str, str]] = {
    CLUSTER_FEATURES: "what nodes can do is announced, and switched on for all of them at once",
    FILE_STREAMING: "ranges move as sorted files with checksums, and a broken stream goes on where it was",
    METADATA_LOG: "nodes, schema and ownership are one value, changed by the entries of one log",
    REPLICATION_CHANGE: "the replication of a keyspace with tables changes in safe steps",
    ZERO_TOKEN_NODES: "nodes without tokens coordinate requests and may vote, and store nothing",
}
#: What every node of the first version can do.
BASE_FEATURES: Final = (
    CLUSTER_FEATURES,
    FILE_STREAMING,
    METADATA_LOG,
    REPLICATION_CHANGE,
    ZERO_TOKEN_NODES,
)
#: What this version can do, sorted.
SUPPORTED: Final = tuple(sorted(FEATURES))


class FeatureState(msgspec.Struct, frozen=True, array_like=True):
    """`enabled` is sorted and only grows. `announced_epoch`: when a node last said what it supports."""

    enabled: tuple[str, ...] = ()
    announced_epoch: int = 0

    def validate(self) -> None:
        assert self.enabled == tuple(sorted(set(self.enabled))), "enabled features are sorted and unique"


NO_FEATURES = FeatureState()


def lacking(enabled: Sequence[str], supported: Sequence[str]) -> tuple[str, ...]:
    """The enabled features that are not among the supported ones."""
    held = set(supported)
    return tuple(name for name in enabled if name not in held)


#: What all nodes can do and do, and since when the nodes' support is as it is.
FEATURE_STATE: Final[Part[FeatureState]] = struct_part(
    "features", 11, NO_FEATURES, lambda one: one.validate()
)
