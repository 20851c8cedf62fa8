"""OP-2: the bytes that are told of a topology request never become less, and stay when it is done.

What counts is what the latest leader tells; one that was succeeded and does not know it yet counts no more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.requests import RequestState
from lockstep.sim.checkers.violation import Violation

if TYPE_CHECKING:
    from lockstep.sim.cluster import SimCluster


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
