"""Who must hold a mutation before it is no longer kept by itself: the rule of cohorts.

While a replica is away, what the others hold becomes a cohort of those others: one set of ids of which the
single mutations are no longer kept. `node.work.cohorts` has what becomes of it.
"""

from __future__ import annotations


def are_enough(there: frozenset[int], replicas: frozenset[int], near: frozenset[int]) -> bool:
    """Whether those that are there may let go of single mutations: each majority of all replicas, or each one
    of those in a data centre, has one of them. What fewer hold, no answer could show before others got it."""
    assert near <= replicas, "those in the data centre are some of all"
    return any(group and len(there & group) > len(group) // 2 for group in (replicas, near))
