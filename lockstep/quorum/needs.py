"""What a request must hear at its level, and of which replicas, also while a range is on its way.

Invariant: pure; the counts and the proofs that they meet are those of `placement.quorums`.
"""

from __future__ import annotations

from lockstep.placement.placements import ReplicaGroup
from lockstep.placement.quorums import (
    MONOTONIC_LEVELS,
    DcOf,
    Passing,
    Requirement,
    reads_like_writes,
    required_reads,
    required_while_filling,
    required_writes,
)
from lockstep.schema.model import Replication
from lockstep.values.ids import Consistency, NodeId


def needs_of(
    consistency: Consistency,
    replication: Replication,
    local_dc: str,
    group: ReplicaGroup,
    dc_of: DcOf,
    writing: bool,
    passing: Passing | None = None,
    recounts: bool = False,
) -> tuple[tuple[Requirement, ...], tuple[NodeId, ...]]:
    """What a request must hear, and of which replicas. `passing`: where the range is going while replicas
    are filled for other counts. `recounts`: whether the replication of its placement group changes."""
    if passing is not None and consistency in MONOTONIC_LEVELS:
        needs = required_while_filling(consistency, replication, local_dc, group, dc_of, passing)
        return needs, group.writes
    if writing or reads_like_writes(consistency, group, recounts):
        return required_writes(consistency, replication, local_dc, group, dc_of), group.writes
    return required_reads(consistency, replication, local_dc), group.reads
