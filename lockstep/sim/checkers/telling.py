"""TOLD-1, TOLD-2 and OP-2: what people are told of a change, of the cluster's health and of progress is so.

Invariant: TOLD-1, of every new epoch: a part whose digest changed has a line in the difference, no line says
that a thing became what it was, and the difference the other way round is the same with its sides turned.
TOLD-2, of every node that answers: the worst comes first, the sentence begins with the level, and nobody says
of itself that it is down. Once all is healed and settled, nobody says that a node which serves is down,
or that quorums are lacking. OP-2: the bytes that are told of a topology request never become less, and stay
when it is done; what counts is what the latest leader tells: one that was succeeded and does not know it yet
counts no more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import diff, part_digests
from lockstep.metadata.log.comparison import Difference
from lockstep.metadata.requests import RequestState
from lockstep.node.services import NodeServices
from lockstep.server.views.live_views import found_by
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.topology.health import Finding, level_of, verdict

#: What only says that nodes or quorums are missing.
_MISSING = frozenset(("NODE_DOWN", "NO_QUORUM", "NO_WRITE_QUORUM", "NO_LOCAL_QUORUM", "METADATA_NO_MAJORITY"))
#: The ids of entries: each epoch has its own, which says nothing.
_SILENT = frozenset(("recent_ids",))

Differ = Callable[[ClusterMetadata, ClusterMetadata], Sequence[Difference]]


def check_difference(before: ClusterMetadata, after: ClusterMetadata, differ: Differ = diff) -> int:
    """How many lines there are."""
    lines = differ(before, after)
    told = {line.path.partition(".")[0].partition("[")[0] for line in lines}
    old = dict(part_digests(before))
    changed = {name for name, digest in part_digests(after) if old.get(name, digest) != digest}
    if silent := changed - told - _SILENT:
        raise Violation("TOLD-1", f"nothing is told of {', '.join(sorted(silent))} at epoch {after.epoch}")
    for line in lines:
        if line.before == line.after:
            raise Violation(
                "TOLD-1", f"{line.path} became {line.after}, which it was, at epoch {after.epoch}"
            )
    turned = {(line.path, line.after, line.before) for line in differ(after, before)}
    if turned != {(line.path, line.before, line.after) for line in lines}:
        raise Violation("TOLD-1", f"epochs {before.epoch} and {after.epoch} differ otherwise turned round")
    return len(lines)


def check_health(own: int, found: Sequence[Finding]) -> None:
    levels = [one.level for one in found]
    said = verdict(found, own, running=False)
    if levels != sorted(levels, reverse=True):
        raise Violation("TOLD-2", f"node {own} does not begin with the worst: {said}")
    if not said.startswith(f"{level_of(found).word}: "):
        raise Violation("TOLD-2", f"node {own} says {said!r} of level {level_of(found).word}")
    if any(one.node == own and one.condition.code == "NODE_DOWN" for one in found):
        raise Violation("TOLD-2", f"node {own} says that it is down itself")


def missing(found: Sequence[Finding], serving: Iterable[int]) -> list[Finding]:
    """Findings that nodes which serve are down, or quorums lacking."""
    here = frozenset((0, *serving))
    return [one for one in found if one.node in here and one.condition.code in _MISSING]


def check_healed(own: int, found: Sequence[Finding], serving: Iterable[int]) -> None:
    """Findings of a cluster in which all is well, but that some nodes are gone for good."""
    if wrong := missing(found, serving):
        raise Violation("TOLD-2", f"all is well, and node {own} says: {verdict(wrong, own, running=False)}")


class Telling:
    """The two checks in a run: at each new epoch, and at its end."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        if not before.epoch:
            return
        check_difference(before, after)
        for services in self._answering():
            found = found_by(services)
            check_health(services.context.own_id(), found)
            for one in found:
                self._cluster.fact(f"told {one.condition.code}")

    def unhealed(self) -> bool:
        """Whether a node still says of one that serves that it is down."""
        serving = self._serving()
        return any(missing(found_by(services), serving) for services in self._answering())

    def ended(self) -> None:
        serving = self._serving()
        for services in self._answering():
            check_healed(services.context.own_id(), found_by(services), serving)

    def _serving(self) -> list[int]:
        return [self._cluster.node_id(name) for name in self._cluster.in_service()]

    def _answering(self) -> list[NodeServices]:
        cluster = self._cluster
        running = [name for name in cluster.live() if name in cluster.nodes and cluster.ready(name)]
        return [cluster.nodes[name].services for name in sorted(running)]


class ToldProgress:
    """The most that was told of each request that has not ended."""

    def __init__(self) -> None:
        self._most: dict[int, int] = {}

    def told(self, name: str, request: int, moved_bytes: int) -> None:
        most = self._most.get(request, 0)
        if moved_bytes < most:
            raise Violation("OP-2", f"{name} tells that request {request} moved {moved_bytes}, after {most}")
        self._most[request] = moved_bytes

    def first_applied(self, after: ClusterMetadata) -> None:
        """A new epoch: what ended as done has moved what was told."""
        for request in after.requests.ended if self._most else ():
            most = self._most.pop(request.id, 0)
            if request.state is RequestState.DONE and request.moved_bytes < most:
                raise Violation(
                    "OP-2", f"{request.title()} ended with {request.moved_bytes} bytes moved, after {most}"
                )


def watch_progress(
    cluster: SimCluster, appliers: list[Callable[[ClusterMetadata, ClusterMetadata], None]]
) -> None:
    """Judge what leaders of a run tell, and the requests of each new epoch."""
    progress = ToldProgress()
    #: Request -> the term in which something was told of it first.
    first: dict[int, int] = {}

    def told(_now_ns: int, label: str, kind: str, facts: dict[str, Any]) -> None:
        name, (term, latest) = label.rpartition(".")[0], cluster.leader
        if kind != "topology.moved" or name != latest:
            return
        progress.told(name, facts["request"], facts["moved_bytes"])
        if facts["moved_bytes"] and first.setdefault(facts["request"], term) != term:
            cluster.fact("another leader told the progress")

    cluster.world.monitors.append(told)
    appliers.append(lambda before, after: progress.first_applied(after))
