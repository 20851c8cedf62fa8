"""Which nodes keep a logged batch while its coordinator writes it.

Invariant: a pure choice, of nodes in the coordinator's data centre that seem alive, in other racks before its
own, and in different racks before the same. Alone in its data centre, the coordinator keeps it itself.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import OWNING_STATES, NodeInfo, NodeState
from lockstep.values.ids import NodeId


def batch_holders(
    cluster: ClusterMetadata, own: NodeId, alive: Callable[[int], bool], turn: int
) -> list[NodeId]:
    """Candidates, the best first; none when others should and none seems alive. `turn` varies them."""
    coordinator = cluster.directory.by_id[own]
    others = [
        node
        for node in cluster.directory.nodes
        if node.dc == coordinator.dc and node.id != own and node.state in OWNING_STATES
    ]
    if not others:
        return [own]
    living = [node for node in others if alive(node.id) and node.state is not NodeState.DECOMMISSIONING]
    if not living:
        return []
    at = turn % len(living)
    turned = living[at:] + living[:at]
    elsewhere = [node for node in turned if node.rack != coordinator.rack]
    near = [node for node in turned if node.rack == coordinator.rack]
    return [node.id for node in _by_rack(elsewhere) + near]


def _by_rack(nodes: list[NodeInfo]) -> list[NodeInfo]:
    """One of each rack first, then the others."""
    racks: dict[str, None] = {}
    first: list[NodeInfo] = []
    later: list[NodeInfo] = []
    for node in nodes:
        (later if node.rack in racks else first).append(node)
        racks[node.rack] = None
    return first + later
