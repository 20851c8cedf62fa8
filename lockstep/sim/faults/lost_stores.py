"""Nodes whose table store is damaged or gone when they start again: the fault, and the operator's command.

Invariant: one node at a time, and the next one only when that is filled again; the cluster has three replicas
of everything. So nothing acknowledged at QUORUM may be lost, whoever notices the damage, and when.
"""

from __future__ import annotations

from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults.means import Means
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream

#: What became of the files: all gone, also what was known of them, or a record of the log damaged.
HARMS = ("gone", "forgotten", "flipped")
#: Replicas of each range without which a lost store is not made up for by the others.
_FACTOR = 3
#: What must be seen sometimes where stores are lost.
FACTS = ("store lost", "store refused", "store recovered", "store filled")


def may_lose(cluster: SimCluster) -> bool:
    """Whether a store may be lost now: there is something to lose, of which the others have two more."""
    keyspaces = cluster.newest.schema.keyspaces
    enough = all(keyspace.replication.total >= _FACTOR for keyspace in keyspaces)
    return bool(keyspaces) and enough and not cluster.stores.unfilled


def lose_store(means: Means, draw: Stream) -> None:
    """A node ends, and finds its store damaged when it starts again."""
    cluster = means.cluster
    harm = draw.choice(HARMS)
    candidates = [name for name in cluster.live() if cluster.ready(name)]
    if not candidates or not may_lose(cluster):
        return
    name = draw.choice(candidates)
    cluster.stores.lose(name, harm)
    means.crash(name, POWER if draw.random() < 0.5 else KILL, 0.2 + draw.random())
