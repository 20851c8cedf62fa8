"""Faults that strike between two steps which belong together, and what was seen of them.

Invariant: each waits for a place in the code that says the first step is done, and strikes in that very
instant: what the process does next reaches nobody, or does not happen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.replica.ballot_rows import command_for, state_in
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.faults.lost_stores import HARMS, may_lose
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.values.errors import TableFileDamaged
from lockstep.values.ids import NodeId
from lockstep.values.tokens import token_of

if TYPE_CHECKING:
    from lockstep.sim.faults.nemesis import Nemesis

_DECIDED = "conditional.decided"
_COUNTER_READ = "counter.read"


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


def wipe_counting(nemesis: Nemesis, draw: Stream) -> None:
    """A replica loses its store, and ends, between the read of a counter and the write of its new sum."""
    cluster = nemesis.cluster
    harm, how = draw.choice(HARMS), (POWER if draw.random() < 0.5 else KILL)
    down_s = 0.2 + draw.random()

    def lose(name: str) -> None:
        if cluster.ready(name) and may_lose(cluster):
            cluster.world.count("fault.wipe_counting")
            cluster.fact("a store was lost between the read and the write of a counter")
            cluster.stores.lose(name, harm)
            nemesis.crash(name, how, down_s)

    if may_lose(cluster):
        rule = CrashRule(label=_COUNTER_READ, kind="", probability=0.1, on_fired=lose)
        nemesis.add_rule(rule, seconds=5.0)


def linger_counting(nemesis: Nemesis, draw: Stream) -> None:
    """Whoever counts waits between the read and the write, while ranges move away and are wiped."""
    high_s = draw.choice((0.1, 0.5, 1.5))
    nemesis.cluster.world.count("fault.linger_counting")
    nemesis.add_rule(DelayRule(label=_COUNTER_READ, high_s=high_s, probability=0.3), seconds=4.0)


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
            try:
                state = state_in(cluster.nodes[name].data.engine.peek(command_for(table.id, token, key)))
            except TableFileDamaged:
                continue  # Its block is damaged, so it can tell nobody what it knows.
            known.append(state.committed)
    newest = max((one.ballot for one in known if one is not None), default=None)
    decided = [one for one in known if one is not None and one.ballot == newest]
    return 0 < len(decided) < len(known) and value in decided[0].value
