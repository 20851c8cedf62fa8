"""Ownership at each new epoch, and the ranges that are marked as degraded.

PLC-1, PLC-2, the static half of PLC-3, PLC-4 and OP-1 are judged once for each epoch, by the design's own
functions, against the history of all epochs and what every node had durably applied at that moment. A token
leaves the list of degraded ranges only in the entry that ends a repair, when every table of its group
was repaired there, all replicas taking part, by repairs that began after the range was degraded.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.sim.checkers.violation import Violation
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.values.ids import NodeId
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
            for keyspace in after.schema.keyspaces:
                if keyspace.group != line.group or not line.is_about(keyspace.name):
                    continue
                for table in keyspace.tables:
                    if not _is_covered(line, piece, table.id, after):
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
