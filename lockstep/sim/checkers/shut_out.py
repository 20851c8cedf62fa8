"""Excluded nodes and closed sessions: what must not happen any more, judged while it could.

Invariants. PLC-4: once every node has applied an exclusion, no request through the excluded node that needs
others succeeds. TAB-2: when an operation leaves the stage behind a closed session, no node that lives holds a
guard of that session, so no work of it has an effect later.
"""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Operation
from lockstep.node.node import Node
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.history import Event, Outcome
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


def check_released(
    before: ClusterMetadata, operation: Operation, nodes: Mapping[NodeId, Node], coordinator: Node
) -> None:
    """`operation` is at the stage it has just left in `before`; `nodes` are those that run."""
    need = barrier_need(operation, before)
    for id_ in need.must_release:
        node = nodes.get(id_)
        if node is None or node.state.epoch < need.epoch or not coordinator.liveness.alive(id_):
            continue
        for session, count in node.guards.stragglers():
            if session.startswith(need.session_prefix) and not before.session_open(session):
                raise Violation(
                    "TAB-2",
                    f"{operation.title()} left {operation.stage} while node {id_} held {count} guards of "
                    f"{session}, which was closed before",
                )
