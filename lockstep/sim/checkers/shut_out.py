"""Excluded nodes and closed sessions: what must not happen any more, judged while it could.

Invariants. PLC-4: once every node has applied an exclusion, no request through the excluded node that needs
others succeeds. TAB-2: when an operation leaves the stage behind a closed session, no node that lives holds a
guard of that session, so no work of it has an effect later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation
from lockstep.node.node import Node
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Event, Outcome
from lockstep.topology.barriers import barrier_need
from lockstep.values.ids import Consistency, NodeId

#: Levels for which at least two replicas answer, where there are so many.
_NEEDS_OTHERS = (Consistency.QUORUM, Consistency.EACH_QUORUM, Consistency.ALL)


class Exclusions:
    """`known_ns`: since when all nodes have applied each present exclusion, by the name of its node."""

    def __init__(self) -> None:
        self.known_ns: dict[str, int] = {}

    def seen(self, now_ns: int, excluded: Mapping[str, int], applied: Mapping[str, int]) -> None:
        """`excluded`: the epoch from which each name is shut out; `applied`: what every node, running or not,
        has durably applied."""
        known = {
            name: self.known_ns.get(name, now_ns)
            for name, epoch in excluded.items()
            if all(seen >= epoch for seen in applied.values())
        }
        self.known_ns = known

    def ended(self, event: Event, replicas: int) -> None:
        """A request ended; `replicas` that its tables have at least. Raises Violation."""
        since_ns = self.known_ns.get(event.node)
        if event.outcome is not Outcome.OK or since_ns is None or event.start_ns < since_ns:
            return
        if event.request.consistency in _NEEDS_OTHERS and replicas > 1:
            raise Violation(
                "PLC-4",
                f"{event.client}: {event.request.text()} through {event.node} succeeded at "
                f"{event.end_ns / 1e9:.6f}, and all have shut that node out since {since_ns / 1e9:.6f}",
            )


class Apart:
    """Which requests went through a node for which no barrier waited: until it hears that it is shut out, and
    from then on until it has heard of everything up to its return, it may plan by placements that are gone.
    At ONE it then answers from what it holds."""

    def __init__(self) -> None:
        self._since_ns: dict[str, int] = {}
        #: The first epoch without the exclusion, of nodes that were taken back.
        self._back: dict[str, int] = {}
        #: (name, first instant, last instant)
        self._spans: list[tuple[str, int, int]] = []

    def __bool__(self) -> bool:
        """Whether a node is apart."""
        return bool(self._since_ns)

    def seen(self, now_ns: int, epoch: int, excluded: Iterable[str], applied: Mapping[str, int]) -> None:
        """`excluded`: names by the newest metadata, of this epoch; `applied`: as for `Exclusions`."""
        names = list(excluded)
        for name in names:
            self._since_ns.setdefault(name, now_ns)
            self._back.pop(name, None)
        for name in [name for name in self._since_ns if name not in names]:
            if applied.get(name, 0) >= self._back.setdefault(name, epoch):
                self._spans.append((name, self._since_ns.pop(name), now_ns))
                del self._back[name]

    def __contains__(self, event: object) -> bool:
        """Whether an event's coordinator was, at any time from the request's start to its end."""
        assert isinstance(event, Event), "requests go through nodes"
        since_ns = self._since_ns.get(event.node)
        if since_ns is not None and since_ns <= event.end_ns:
            return True
        return any(
            name == event.node and first <= event.end_ns and event.start_ns <= last
            for name, first, last in self._spans
        )


def check_released(
    before: ClusterMetadata, operation: Operation, nodes: Mapping[NodeId, Node], coordinator: Node
) -> None:
    """`operation` is at the stage it has just left in `before`; `nodes` are those that run."""
    need = barrier_need(operation, before)
    for id_ in need.must_release:
        node = nodes.get(id_)
        if (
            node is None
            or not node.is_loaded
            or node.log.state.epoch < need.epoch
            or not coordinator.membership.liveness.alive(id_)
        ):
            continue
        for session, count in node.data.guards.stragglers():
            if session.startswith(need.session_prefix) and not before.session_open(session):
                raise Violation(
                    "TAB-2",
                    f"{operation.title()} left {operation.stage} while node {id_} held {count} guards of "
                    f"{session}, which was closed before",
                )
