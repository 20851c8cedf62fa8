"""PLC-1, PLC-2, the static half of PLC-3, PLC-4 and OP-1 at each new epoch.

Invariant: judged once for each epoch, by the design's own functions, against the history of all epochs
and what every node had durably applied at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.sim.checkers.violation import Violation
from lockstep.topology.invariants import check_stale_coordinators, violations
from lockstep.values.ids import NodeId

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
