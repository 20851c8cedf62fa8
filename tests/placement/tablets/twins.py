"""Slow, obvious twins of what is computed for tablets, which tests compare it with."""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.placement.tablets.shards import Replica
from lockstep.values.tokens import TOKEN_MIN

#: (last token, replicas) in the order of tokens.
Listed = list[tuple[int, tuple[Replica, ...]]]


def found_in_list(listed: Listed, token: int) -> tuple[int, tuple[Replica, ...]]:
    """The tablet of a token, by looking at one after the other."""
    return next(tablet for tablet in listed if token <= tablet[0])


def split_list(listed: Listed, rights: Sequence[int]) -> Listed:
    found: Listed = []
    left = TOKEN_MIN
    for right, replicas in listed:
        if right in rights:
            found.append(((left + right) // 2, replicas))
        found.append((right, replicas))
        left = right
    return found


def merged_list(listed: Listed, rights: Sequence[int]) -> Listed:
    return [tablet for tablet in listed if tablet[0] not in rights]
