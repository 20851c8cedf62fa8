"""Which tokens a node should own: pure, deterministic, even.

Invariant: results never repeat a token that is already owned, and never contain the ring's ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

_RING = 1 << 64


def even_tokens(counts: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """Tokens for founders that share an empty ring: evenly spaced and dealt out in turns.

    counts[i] tokens for founder i; each founder's share is proportional to its count.
    """
    total = sum(counts)
    assert total > 0
    dealt: list[list[int]] = [[] for _ in counts]
    owner = 0
    for position in range(total):
        while len(dealt[owner % len(counts)]) >= counts[owner % len(counts)]:
            owner += 1
        dealt[owner % len(counts)].append(TOKEN_MIN + (2 * position + 1) * _RING // (2 * total))
        owner += 1
    return tuple(tuple(tokens) for tokens in dealt)


def splitting_tokens(owned: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` new tokens, each in the middle of the widest gap that is left (first such gap on a tie)."""
    cuts = sorted(set(owned))
    chosen: list[int] = []
    for _ in range(count):
        token = _middle_of_widest_gap(cuts)
        chosen.append(token)
        cuts.append(token)
        cuts.sort()
    return tuple(sorted(chosen))


def _middle_of_widest_gap(cuts: Sequence[int]) -> int:
    if not cuts:
        return 0
    wrap = (cuts[0] - TOKEN_MIN) + (TOKEN_MAX - cuts[-1])
    best, middle = wrap, _middle_of_wrap(cuts, wrap)
    for left, right in pairwise(cuts):
        if right - left > best:
            best, middle = right - left, left + (right - left) // 2
    assert middle not in cuts
    return middle


def _middle_of_wrap(cuts: Sequence[int], width: int) -> int:
    middle = cuts[-1] + width // 2
    if middle >= TOKEN_MAX:
        middle = TOKEN_MIN + (middle - TOKEN_MAX) + 1
    return middle
