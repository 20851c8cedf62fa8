"""Nobody takes the hints of a node that leaves, while it does not reach whom some of them are for.

Invariant: only hand-overs are refused, as by disks without room; coordinators go on to leave hints.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lockstep.handoff.hint_store import Hint
from lockstep.metadata.operations import Operation, Stage
from lockstep.node.node import Node
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults.means import Means
from lockstep.sim.runtime.streams import Stream
from lockstep.topology.kinds.decommission import Decommission
from lockstep.values.errors import DiskRefused
from lockstep.values.ids import NodeId

#: How long a leaver tries to hand over where this fault strikes: runs are short.
FAREWELL_MS = 500


def attach_heir(cluster: SimCluster, node: Node) -> None:
    """Have a node refuse the hints of others while the fault lasts."""
    store: Any = node.data.hints.store
    put: Callable[..., int] = store.put

    def judged(hints: Sequence[tuple[NodeId, Hint]], *instead: Any, left_us: int = 0, **more: Any) -> int:
        is_of_another = not instead and not left_us
        if is_of_another and cluster.world.now_ns < cluster.heirless_until_ns:
            cluster.world.count("fault.no_heir")
            raise DiskRefused("no room for the hints of others")
        return put(hints, *instead, left_us=left_us, **more)

    store.put = judged


def strike(means: Means, operation: Operation, stage: Stage, draw: Stream) -> None:
    """At the start of a decommission, or later in it: for a while nobody takes hints of others, and its node
    does not reach another one."""
    cluster = means.cluster
    leaver = cluster.name_of(operation.node)
    if not isinstance(operation.body, Decommission) or stage is Stage.ROLLBACK_TO_NORMAL or not leaver:
        return
    seconds = 2.0 + 3.0 * draw.random()
    cluster.heirless_until_ns = cluster.world.now_ns + int(seconds * 1e9)
    others = [name for name in cluster.live() if name not in (leaver, cluster.leader[1])]
    if others:
        hosts = [cluster.processes[name].host for name in (leaver, draw.choice(others))]
        means.cut(hosts[:1], hosts[1:], symmetric=True, seconds=seconds)
