"""Warnings about replications that the cluster has too few nodes for."""

from __future__ import annotations

import pytest

from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.schema.model import Replication
from lockstep.server.statements.schema_statements import too_high
from lockstep.values.ids import NodeId


def directory(*dcs: str) -> Directory:
    nodes = tuple(
        NodeInfo(NodeId(at), f"h{at}", f"a{at}", 1, 2, 3, dc, "r", NodeState.NORMAL, (at,))
        for at, dc in enumerate(dcs, 1)
    )
    return Directory(nodes, len(nodes) + 1)


@pytest.mark.parametrize(
    ("replication", "warnings"),
    [
        (Replication("SimpleStrategy", (("", 3),)), ()),
        (
            Replication("SimpleStrategy", (("", 4),)),
            ("Your replication factor 4 for keyspace ks is higher than the number of nodes 3",),
        ),
        (Replication("NetworkTopologyStrategy", (("east", 2), ("west", 1))), ()),
        (
            Replication("NetworkTopologyStrategy", (("east", 9), ("west", 1))),
            (
                "Your replication factor 9 for keyspace ks is higher than the number of nodes 2"
                " for datacenter east",
            ),
        ),
    ],
)
def test_a_factor_above_the_nodes_is_warned_of(replication: Replication, warnings: tuple[str, ...]) -> None:
    assert too_high("ks", replication, directory("east", "east", "west")) == warnings
