"""The test kit for applications: real clusters whose nodes a test breaks, and simulated ones whose time it
moves.

Owns: `Cluster` (node processes on free loopback addresses), `SimulatedCluster` (the same nodes in this
process, under virtual time), the pytest plugin that hands them to tests, and the adapter that lets ccm run
Lockstep nodes. Invariant: nothing of a cluster outlives the process that made it, however that process ends,
unless it was told to keep the directory. Neighbours: builds on `local` and `sim`; nothing but `cli` may
import it.

Importing this package imports neither: a plugin is loaded by every run of pytest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lockstep.testing.causal import CausalSession
    from lockstep.testing.clusters import Cluster
    from lockstep.testing.conversation import CqlError
    from lockstep.testing.nodes import Node
    from lockstep.testing.simulated import SimulatedCluster

__all__ = ["CausalSession", "Cluster", "CqlError", "Node", "SimulatedCluster"]

_HOMES = {
    "CausalSession": "causal",
    "Cluster": "clusters",
    "CqlError": "conversation",
    "Node": "nodes",
    "SimulatedCluster": "simulated",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
