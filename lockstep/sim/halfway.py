"""Faults that strike between two steps which belong together, and what was seen of them.

Invariant: each waits for a place in the code that says the first step is done, and strikes in that very
instant: what the process does next reaches nobody, or does not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.replication.ballot_rows import command_for, state_in
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.probes import CrashRule
from lockstep.sim.streams import Stream
from lockstep.values.ids import NodeId
from lockstep.values.tokens import token_of

if TYPE_CHECKING:
    from lockstep.sim.nemesis import Nemesis

_DECIDED = "conditional.decided"


def strand_decision(nemesis: Nemesis, draw: Stream) -> None:
    """Who has just had something decided is cut off, from all or from all but one: it knows what was decided,
    may tell its client, and most replicas have only accepted it."""
    cluster = nemesis.cluster

    def strand(name: str) -> None:
        host = cluster.processes[name].host
        others = [other for other in cluster.hosts() if other != host]
        told = draw.choice((0, 0, 1))
        if len(others) > told:
            cluster.world.count("fault.strand_decision")
            seconds = draw.choice((0.3, 1.0, 3.0)) * (0.5 + draw.random())
            nemesis.cut([host], draw.sample(others, len(others) - told), symmetric=True, seconds=seconds)

    rule = CrashRule(label=_DECIDED, kind="", probability=0.2, times=3, on_fired=strand)
    nemesis.add_rule(rule, seconds=5.0)


def lacks_decision(cluster: SimCluster, table_name: str, key: bytes, value: bytes) -> bool:
    """Whether a running replica does not know that `value` was decided, which another one knows as the last
    decision on the partition."""
    table = cluster.newest.schema.table(KEYSPACE, table_name)
    if table is None:
        return False
    token = token_of(key)
    group = cluster.newest.group_for(cluster.newest.schema.by_name[KEYSPACE].replication, token)
    known = []
    for name in cluster.live():
        if cluster.ready(name) and NodeId(cluster.node_id(name)) in group.reads:
            state = state_in(cluster.nodes[name].engine.peek(command_for(table.id, token, key)))
            known.append(state.committed)
    newest = max((one.ballot for one in known if one is not None), default=None)
    decided = [one for one in known if one is not None and one.ballot == newest]
    return 0 < len(decided) < len(known) and value in decided[0].value
