"""What nodes support and what the cluster has enabled, for the admin API."""

from __future__ import annotations

from typing import Any

from lockstep.metadata import features
from lockstep.metadata.directory import NodeState
from lockstep.metadata.feature_names import FEATURES
from lockstep.node.services import NodeServices

PATH = "/v1/features"


def report(node: NodeServices) -> dict[str, Any]:
    """Every feature that some node supports: whether it is enabled, and else what it waits for."""
    cluster = node.log.cluster
    present = [info for info in cluster.directory.nodes if info.state is not NodeState.LEFT]
    names = sorted({*cluster.features_enabled, *(name for info in present for name in info.features)})
    due = features.due(cluster)
    waits = [blocking.reason for blocking in node.work.topology.blocking if not blocking.operation_id]
    return {
        "schema": "features/1",
        "epoch": cluster.epoch,
        "announced_epoch": cluster.features.announced_epoch,
        "features": [
            {
                "name": name,
                "description": FEATURES.get(name, "not known to this version"),
                "enabled": name in cluster.features_enabled,
                "supported_by": [info.id for info in present if name in info.features],
                "lacking": [int(one) for one in features.unsupporting(cluster.directory, name)],
                "waits": waits if name in due else [],
            }
            for name in names
        ],
    }
