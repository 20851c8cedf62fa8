"""Conditional writes and serial reads of this node as metrics.

Invariant: read from what the requests themselves count; nothing is kept here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.replication.conditional_counts import BOUNDS_BEATEN, BOUNDS_S, ConditionalCounts
from lockstep.server.samples import Sample, histogram

if TYPE_CHECKING:
    from lockstep.node.node import Node


def conditional_samples(node: Node) -> Iterator[Sample]:
    conditionals = node.conditionals
    for kind, counts in (("write", conditionals.writes_ended), ("read", conditionals.reads_ended)):
        yield from _samples(kind, counts)
    yield Sample("lockstep_conditional_replans_total", conditionals.replans)


def _samples(kind: str, counts: ConditionalCounts) -> Iterator[Sample]:
    labels = (("kind", kind),)
    for outcome, count in counts.outcomes.items():
        yield Sample("lockstep_conditional_requests_total", count, (*labels, ("outcome", outcome)))
    yield Sample("lockstep_conditional_unfinished_total", counts.finished, labels)
    yield from histogram(
        "lockstep_conditional_duration_seconds", (BOUNDS_S, counts.took, counts.took_s), labels
    )
    yield from histogram(
        "lockstep_conditional_contentions", (BOUNDS_BEATEN, counts.beaten, counts.beaten_total), labels
    )
