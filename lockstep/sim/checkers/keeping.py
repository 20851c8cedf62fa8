"""What is looked at in each node: who takes rows, which hints it forgets, and what it left with.

Invariant: a node is looked at from the moment on in which it has read its disk.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.node.node import Node
from lockstep.sim.checkers.left_hints import LeftHints
from lockstep.sim.checkers.owed import OwedHints
from lockstep.sim.checkers.receiving import Receiving
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.cluster import SimCluster
from lockstep.sim.leavers import attach_heir
from lockstep.values.ids import NodeId


class Keeping:
    """Arguments as of LeftHints."""

    def __init__(
        self,
        cluster: SimCluster,
        disks: Callable[[], dict[NodeId, DurableContent]],
        content: Callable[[str], DurableContent],
        work_done: Callable[[NodeId], int],
    ) -> None:
        self._cluster = cluster
        self._owed = OwedHints(cluster, disks)
        self._receiving = Receiving(cluster)
        self.left = LeftHints(cluster, disks, content, work_done)
        cluster.on_load = self._loaded
        cluster.on_leave = self.left.left

    def _loaded(self, name: str, node: Node) -> None:
        attach_heir(self._cluster, node)
        self._owed.attach(name, node)
        self._receiving.attach(name, node)
        self.left.loaded(name, node)
