"""Ownership at each new epoch, the ranges that are marked as degraded, and excluded nodes and closed
sessions: what must not happen any more, judged while it could.

PLC-1, PLC-2, the static half of PLC-3, PLC-4 and OP-1 are judged once for each epoch, by the design's own
functions, against the history of all epochs and what every node had durably applied at that moment. A token
leaves the list of degraded ranges only in the entry that ends a repair, when every table of its group was
repaired there, all replicas taking part, by repairs that began after the range was degraded.

Invariant: PLC-4: once every node has applied an exclusion, no request through the excluded node that needs
others succeeds. TAB-2: when anything leaves the stage behind a closed session, no node that lives holds a
guard of that session, so no work of it has an effect later.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.transitions import Lone
from lockstep.node.node import Node
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.load.history import Event, Outcome
from lockstep.topology.barriers import barrier_need
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.topology.kind import Mover
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.tokens import Range

#: How far behind a coordinator is assumed to be; an operation has five epochs.
_EPOCHS_BEHIND_MAX = 12


def check_epoch(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """Everything about `after` and the step to it."""
    after.validate()
    raise_first(violations(before, after))


def check_stale(values: Sequence[ClusterMetadata], seen: Mapping[NodeId, int]) -> None:
    """PLC-4 for the newest epoch: `seen` is what each node has durably applied now."""
    history = values[-_EPOCHS_BEHIND_MAX:]
    if history[-1].placements is not history[-2].placements:
        raise_first(check_stale_coordinators(history, seen))


def raise_first(found: Sequence[str]) -> None:
    if found:
        invariant, _, text = found[0].partition(": ")
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise Violation(invariant, text + more)


def check_marked(before: ClusterMetadata, after: ClusterMetadata, fact: Callable[[str], None]) -> None:
    """Judge an entry that began or ended a repair."""
    for line in before.degraded:
        for piece in _pieces(line, before, after):
            if _is_listed(line, piece, after):
                continue
            fact("a range was marked repaired" if piece == line.range else "a part of a range was marked")
            for table in after.schema.tables_in(line.group):
                if line.is_about(table.keyspace) and not _is_covered(line, piece, table.id, after):
                    raise Violation(
                        "REP-4",
                        f"({piece.left}, {piece.right}] is degraded since epoch {line.since_epoch} and "
                        f"is marked as repaired at {after.epoch}; {table.name} was not repaired there",
                    )


def _pieces(line: Degraded, before: ClusterMetadata, after: ClusterMetadata) -> Iterator[Range]:
    """The line, cut where anything begins or ends."""
    ranges = [one.range for cluster in (before, after) for one in cluster.degraded]
    ranges += [one.range for entry in after.repairs.tables for one in entry.ranges]
    cuts = {bound for range_ in ranges for bound in (range_.left, range_.right)}
    inside = sorted(cut for cut in cuts if line.range.left < cut < line.range.right)
    for left, right in itertools.pairwise([line.range.left, *inside, line.range.right]):
        yield Range(left, right)


def _is_listed(line: Degraded, piece: Range, after: ClusterMetadata) -> bool:
    return any(
        one.group == line.group and one.since_epoch == line.since_epoch and one.range.intersects(piece)
        for one in after.degraded
    )


def _is_covered(line: Degraded, piece: Range, table: int, after: ClusterMetadata) -> bool:
    return any(
        one.epoch > line.since_epoch and one.range.left <= piece.left and piece.right <= one.range.right
        for one in after.repairs.by_table.get(table, ())
    )


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
    """Which requests a single replica may have answered that lacks what all had. They went through a node for
    which no barrier waited: until it hears that it is shut out, and from then on until it has heard of
    everything up to its return, it may plan by placements that are gone, and answers at ONE from what it
    holds. Or ranges were degraded: their new replicas got nothing."""

    def __init__(self) -> None:
        #: Since when ranges are degraded.
        self._degraded_ns: int | None = None
        self._since_ns: dict[str, int] = {}
        #: The first epoch without the exclusion, of nodes that were taken back.
        self._back: dict[str, int] = {}
        #: (name, first instant, last instant); no name: of whoever coordinates.
        self._spans: list[tuple[str, int, int]] = []

    def __bool__(self) -> bool:
        """Whether a node is apart, or ranges are degraded."""
        return bool(self._since_ns) or self._degraded_ns is not None

    def degraded(self, now_ns: int, is_so: bool) -> None:
        """Whether ranges are degraded by the newest metadata."""
        if is_so and self._degraded_ns is None:
            self._degraded_ns = now_ns
        elif not is_so and self._degraded_ns is not None:
            self._spans.append(("", self._degraded_ns, now_ns))
            self._degraded_ns = None

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
        """Whether its coordinator was apart, or ranges degraded, at any time from its start to its end."""
        assert isinstance(event, Event), "requests go through nodes"
        for since_ns in (self._since_ns.get(event.node), self._degraded_ns):
            if since_ns is not None and since_ns <= event.end_ns:
                return True
        return any(
            name in (event.node, "") and first <= event.end_ns and event.start_ns <= last
            for name, first, last in self._spans
        )


def check_released(
    before: ClusterMetadata, mover: Mover, nodes: Mapping[NodeId, Node], coordinator: Node
) -> None:
    """`mover` is at the stage it has just left in `before`; `nodes` are those that run."""
    need = barrier_need(mover, before)
    # Nothing that moves by itself waits for a node that is shut out, which nobody hears.
    out = before.excluded_by_node if isinstance(mover, Lone) else {}
    for id_ in [node for node in need.must_release if node not in out]:
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
                    f"{mover.title()} left {mover.stage} while node {id_} held {count} guards of "
                    f"{session}, which was closed before",
                )
