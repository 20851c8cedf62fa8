"""Slow, obvious twins of what placement computes, which tests compare it with."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from lockstep.placement.circle import Circle, Owner
from lockstep.placement.strategies import ReplicaList, placed, seats, walked
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range


def intersects_by_search(
    readers: Iterable[NodeId], read_count: int, writers: Iterable[NodeId], write_count: int
) -> bool:
    """The slow, obvious twin of `intersects`: tries every pair of choices."""
    return all(
        not set(chosen).isdisjoint(acknowledged)
        for chosen in itertools.combinations(sorted(set(readers)), read_count)
        for acknowledged in itertools.combinations(sorted(set(writers)), write_count)
    )


def compute_by_walks(
    replication: Replication, owners: Sequence[Owner]
) -> tuple[tuple[Range, ReplicaList], ...]:
    """The slow, obvious twin of `compute`: one walk from every token."""
    circle = Circle.of(owners)
    seated = seats(replication, circle)
    return placed(circle, [walked(seated, circle, start) for start in range(len(circle.nodes))])
