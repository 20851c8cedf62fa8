"""Faults that strike between two steps which belong together, and on writes that one running replica alone
has: of the quorum that acknowledged them the other is down or gone.

Invariant: each waits for a place in the code that says the first step is done, and strikes in that very
instant: what the process does next reaches nobody, or does not happen. At most one replica at a time loses
what it holds, so operations that fill new replicas meanwhile either find the one that has it or wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.replica.ballot_states import command_for, state_in
from lockstep.sim.checkers.registers import NOTHING, Place, State
from lockstep.sim.checkers.replicas import AcknowledgedWrites, DurableContent
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE, clustering_bytes
from lockstep.sim.faults.lost_stores import HARMS, may_lose
from lockstep.sim.faults.means import Means
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.values.errors import TableFileDamaged
from lockstep.values.ids import NodeId
from lockstep.values.tokens import token_of

_DECIDED = "conditional.decided"
_COUNTER_READ = "counter.read"
#: A segment of the metadata's log was removed.
_LOG_DROPPED = "disk.removed metadata/log-#"


def strand_decision(means: Means, draw: Stream) -> None:
    """Who has just had something decided is cut off, from all or from all but one: it knows what was decided,
    may tell its client, and most replicas have only accepted it."""
    cluster = means.cluster

    def strand(name: str) -> None:
        host = cluster.processes[name].host
        others = [other for other in cluster.hosts() if other != host]
        told = draw.choice((0, 0, 1))
        if len(others) > told:
            cluster.world.count("fault.strand_decision")
            seconds = draw.choice((0.3, 1.0, 3.0)) * (0.5 + draw.random())
            means.cut([host], draw.sample(others, len(others) - told), symmetric=True, seconds=seconds)

    rule = CrashRule(label=_DECIDED, kind="", probability=0.2, times=3, on_fired=strand)
    means.add_rule(rule, seconds=5.0)


def strand_writes(means: Means, draw: Stream) -> None:
    """A node that clients reach and other nodes do not, and that is killed before they do: what it was asked
    to write meanwhile it alone has, and nobody is told."""
    cluster, name = means.cluster, means.some_live(draw)
    others = [other for other in cluster.hosts() if name and other != cluster.processes[name].host]
    if others:
        cluster.world.count("fault.strand_writes")
        seconds = 0.1 + draw.random() * draw.choice((0.2, 0.6))
        means.cut([cluster.processes[name].host], others, symmetric=True, seconds=seconds + 0.01)
        means.later(seconds, lambda: means.crash(name, KILL, 0.05))


def wipe_counting(means: Means, draw: Stream) -> None:
    """A replica loses its store, and ends, between the read of a counter and the write of its new sum."""
    cluster = means.cluster
    harm, how = draw.choice(HARMS), (POWER if draw.random() < 0.5 else KILL)
    down_s = 0.2 + draw.random()

    def lose(name: str) -> None:
        if cluster.ready(name) and may_lose(cluster):
            cluster.world.count("fault.wipe_counting")
            cluster.fact("a store was lost between the read and the write of a counter")
            cluster.stores.lose(name, harm)
            means.crash(name, how, down_s)

    if may_lose(cluster):
        rule = CrashRule(label=_COUNTER_READ, kind="", probability=0.1, on_fired=lose)
        means.add_rule(rule, seconds=5.0)


def linger_counting(means: Means, draw: Stream) -> None:
    """Whoever counts waits between the read and the write, while ranges move away and are wiped."""
    high_s = draw.choice((0.1, 0.5, 1.5))
    means.cluster.world.count("fault.linger_counting")
    means.add_rule(DelayRule(label=_COUNTER_READ, high_s=high_s, probability=0.3), seconds=4.0)


def power_at_drop(means: Means, draw: Stream) -> None:
    """The power fails as a part of the metadata's log was dropped: of what changed its name since names were
    synced last, each change is durable or lost for itself."""
    down_s = 0.2 + draw.random()

    def cut(name: str) -> None:
        means.cluster.world.count("fault.power_at_drop")
        means.set_disk(name, 0.1, names_scattered=1.0)
        means.crash(name, POWER, down_s)

    rule = CrashRule(label=_LOG_DROPPED, kind="", probability=0.5, on_fired=cut)
    means.add_rule(rule, seconds=5.0)


def long_away(means: Means, draw: Stream) -> None:
    """A node is down, or hears nobody, until others take it for dead, and longer; mostly one at a time."""
    name, seconds = means.some_live(draw), 3.0 + draw.random() * 6
    ready = [other for other in means.cluster.in_service() if means.cluster.ready(other)]
    if not name or (len(ready) < len(means.cluster.in_service()) and draw.random() < 0.8):
        return
    means.cluster.world.count("fault.long_away")
    if draw.random() < 0.6:
        means.crash(name, POWER if draw.random() < 0.5 else KILL, seconds)
        return
    host = means.cluster.processes[name].host
    others = [other for other in means.cluster.hosts() if other != host]
    means.cut([host], others, symmetric=True, seconds=seconds)


def pause_reconciler(means: Means, draw: Stream) -> None:
    """Nodes bring each other nothing in the background for a while."""
    for name in means.cluster.live() if draw.random() < 0.5 else [means.some_live(draw)]:
        means.pause_reconciler(name, 1.0 + draw.random() * 4)


def lacks_decision(cluster: SimCluster, table_name: str, key: bytes, value: bytes) -> bool:
    """Whether a running replica does not know that `value` was decided, which another one knows as the last
    decision on the partition."""
    table = cluster.newest.schema.table(KEYSPACE, table_name)
    if table is None:
        return False
    token = token_of(key)
    group = cluster.newest.group_for(cluster.newest.schema.group_of(table), token)
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


#: A fact: ranges were handed on while who gave them up was down or gone, and one running replica alone had
#: something of what a quorum had acknowledged there.
LONE: Final = "a range was filled when its giver was dead and one replica alone held a write"
_REPLICAS_MIN = 3
#: How often both holders are down for a while.
_BOTH_DEAD = 0.5
_STREAMS = "stream.source.drained"


def lone_holder(means: Means, draw: Stream) -> None:
    """When all is well, one replica of a range is cut off and misses writes; once it is back another one is
    down for long and somebody joins; perhaps the third one, too, is lost as it begins to stream."""
    cluster = means.cluster
    newest = cluster.newest
    keyspace = newest.schema.by_name.get(KEYSPACE)
    names = cluster.in_service()
    if keyspace is None or newest.operations or not all(cluster.ready(name) for name in names):
        return
    group = draw.choice(newest.placements.ring(keyspace.group).ranges).group.reads
    if len(group) < _REPLICAS_MIN:
        return
    missing, dead, third = draw.sample([cluster.name_of(node) for node in group], _REPLICAS_MIN)
    host = cluster.processes[missing].host
    others = [other for other in cluster.hosts() if other != host]
    cut_s, down_s = 0.5 + draw.random() * 1.5, draw.choice((4.0, 10.0)) * (0.5 + draw.random())
    kind = POWER if draw.random() < 0.5 else KILL
    both = draw.random() < _BOTH_DEAD

    def strike() -> None:
        means.crash(dead, kind, down_s)
        if both:
            rule = CrashRule(
                label=_STREAMS, process=third, kind=kind, probability=1.0, restart_after_s=down_s / 2
            )
            means.add_rule(rule, seconds=down_s)
        free = [name for name in cluster.parked if not cluster.node_id(name)]
        if free:
            cluster.start_node(free[0])

    cluster.world.count("fault.lone_holder")
    means.cut([host], others, symmetric=True, seconds=cut_s)
    means.later(cut_s, strike)


class LoneHolders:
    """Listens to stages. `disks` gives what each node that has its disk durably holds."""

    def __init__(
        self,
        cluster: SimCluster,
        disks: Callable[..., Mapping[NodeId, DurableContent]],
        rows_per_partition: int,
    ) -> None:
        self._cluster = cluster
        self._disks = disks
        self._rows = rows_per_partition

    def stage(self, operation: Operation, stage: Stage | None) -> None:
        """Look when the new replicas are filled: reads are about to move to them."""
        if stage is not Stage.WRITE_BOTH_READ_NEW:
            return
        cluster = self._cluster
        newest = AcknowledgedWrites(cluster.history.events, self._rows).newest
        contents = self._disks(cluster.newest)
        for content in contents.values():
            content.refresh()
        wanted = [one for places in newest.values() for one in places.items()]
        moving = cluster.newest.transitions.of(operation.id)
        if any(self._is_lone(transition, wanted, contents) for transition in moving):
            cluster.fact(LONE)

    def _is_lone(
        self,
        transition: Transition,
        wanted: list[tuple[Place, State]],
        contents: Mapping[NodeId, DurableContent],
    ) -> bool:
        if not transition.gained or all(self._runs(node) for node in transition.lost):
            return False
        there = [node for node in transition.old if node in contents and self._runs(node)]
        for (name, key, row), state in wanted:
            table = self._cluster.newest.schema.table(KEYSPACE, name)
            if table is None or not transition.range.contains(token_of(key)) or state == NOTHING:
                continue
            clustering = clustering_bytes(row)
            holders = [n for n in there if contents[n].state(table.id, key, clustering) >= state]
            if len(holders) == 1 and len(there) > 1:
                return True
        return False

    def _runs(self, node: NodeId) -> bool:
        name = self._cluster.name_of(node)
        return self._cluster.node_id(name) == node and name in self._cluster.live()
