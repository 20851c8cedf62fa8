"""Several data centres: faults that strike a whole one, and what clients saw meanwhile.

Invariant: a data centre counts as cut off while no link between it and the others passes anything, and as
lost from its loss until its first request of a quorum of its own succeeds again.
"""

from __future__ import annotations

from lockstep.metadata.operations import Operation, Stage
from lockstep.placement.quorums import dc_factors
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults.means import Means
from lockstep.sim.load.history import Change, Event, Outcome
from lockstep.sim.runtime.process import KILL, POWER
from lockstep.sim.runtime.streams import Stream
from lockstep.topology.kinds.replication import Walk
from lockstep.values.ids import Consistency

_LOCAL = Consistency.LOCAL_QUORUM
#: What must be seen sometimes where there are several data centres.
FACTS = (
    "local quorum read in a cut-off data centre",
    "local quorum write in a cut-off data centre",
    "local quorum while another data centre was lost",
    "each quorum write failed while a data centre was lost or cut off",
    "each quorum write",
    "data centre serves again after its loss",
    "data centre added",
    "data centre dropped",
)


def _hosts(cluster: SimCluster, dc: str) -> tuple[list[str], list[str]]:
    """Hosts of the nodes in service: of one data centre, and of the others."""
    names = cluster.in_service()
    inside = [cluster.processes[name].host for name in names if cluster.dc_of(name) == dc]
    outside = [cluster.processes[name].host for name in names if cluster.dc_of(name) != dc]
    return inside, outside


def is_cut_off(cluster: SimCluster, dc: str) -> bool:
    inside, outside = _hosts(cluster, dc)
    network = cluster.world.network
    paths = [(one, other) for one in inside for other in outside]
    return bool(paths) and all(
        network.link(one, other).blocked and network.link(other, one).blocked for one, other in paths
    )


def cut_dc(means: Means, draw: Stream) -> None:
    """A data centre hears nobody else; clients stay in theirs."""
    inside, outside = _hosts(means.cluster, draw.choice(means.cluster.dcs()))
    if inside and outside:
        means.cluster.world.count("fault.cut_dc")
        means.cut(inside, outside, symmetric=True, seconds=0.5 + draw.random() * 5)


def lose_dc(means: Means, draw: Stream) -> None:
    """All nodes of a data centre lose their power, or are killed, at once, and come back."""
    cluster = means.cluster
    dc = draw.choice(cluster.dcs())
    how, down_s = (POWER if draw.random() < 0.5 else KILL), 1.0 + draw.random() * 4
    cluster.world.count("fault.lose_dc")
    means.tell(f"loses {dc}")
    cluster.lost[dc] = cluster.world.now_ns
    for name in cluster.live():
        if cluster.dc_of(name) == dc:
            means.crash(name, how, down_s)


class DataCentreWatch:
    """Counts as facts what clients and operators did in and across data centres."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        cluster.history.listeners.append(self.ended)

    def ended(self, event: Event) -> None:
        """A request has ended."""
        request, ok = event.request, event.outcome is Outcome.OK
        if request.consistency is Consistency.EACH_QUORUM and isinstance(request, Change):
            if ok:
                self._cluster.fact("each quorum write")
            elif self._cluster.lost or is_cut_off(self._cluster, event.dc):
                self._cluster.fact("each quorum write failed while a data centre was lost or cut off")
        if ok and request.consistency is _LOCAL and event.dc:
            self._served(event, "write" if isinstance(request, Change) else "read")

    def _served(self, event: Event, what: str) -> None:
        cluster = self._cluster
        if cluster.lost.get(event.dc, event.start_ns) < event.start_ns:
            del cluster.lost[event.dc]
            cluster.fact("data centre serves again after its loss")
        if any(at_ns < event.start_ns for dc, at_ns in cluster.lost.items() if dc != event.dc):
            cluster.fact("local quorum while another data centre was lost")
        if is_cut_off(cluster, event.dc):
            cluster.fact(f"local quorum {what} in a cut-off data centre")

    def stage(self, operation: Operation, stage: Stage | None) -> None:
        """An operation has entered a stage, or ended."""
        walk = operation.body
        if stage is not None or not isinstance(walk, Walk) or walk.is_cancelled:
            return
        before, after = dict(dc_factors(walk.path[0])), dict(dc_factors(walk.path[-1]))
        if after.keys() - before.keys():
            self._cluster.fact("data centre added")
        if before.keys() - after.keys():
            self._cluster.fact("data centre dropped")
