"""Which tokens a node should own: pure, deterministic, even.

Invariant: results never repeat a token that is already owned, and never contain the ring's ends.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

_RING = 1 << 64
#: Largest share of a range that one new token takes, as a fraction: the former owner keeps a part.
_PIECE_LARGEST: Final = (3, 4)


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
    assert list(map(len, dealt)) == list(counts), "each founder has what it asked for"
    return tuple(tuple(tokens) for tokens in dealt)


def splitting_tokens(owned: Sequence[Sequence[int]], count: int) -> tuple[int, ...]:
    """`count` new tokens for a node that joins nodes with the tokens `owned[i]`.

    Each takes the front of the widest range of whichever node owns most by then, so that all nodes give;
    how much is what the newcomer still lacks of a share in proportion to its tokens, but never a whole
    range. Ties go to the first node, then to the lowest token.
    """
    widths = [widths_of for widths_of in _widths(owned) if widths_of]
    if not widths:
        return even_tokens([count])[0]
    totals = [sum(widths_of.values()) for widths_of in widths]
    lacking = _RING * count // (sum(map(len, widths)) + count)
    chosen: list[int] = []
    for still in range(count, 0, -1):
        giver = totals.index(max(totals))
        end, width = max(widths[giver].items(), key=lambda item: (item[1], -item[0]))
        piece = max(1, min(lacking // still, width * _PIECE_LARGEST[0] // _PIECE_LARGEST[1]))
        while _moved(end, piece - width) in (TOKEN_MIN, TOKEN_MAX):
            piece += 1
        assert piece < width, "no range is left to split"
        chosen.append(_moved(end, piece - width))
        widths[giver][end] -= piece
        totals[giver] -= piece
        lacking -= piece
    assert len(set(chosen)) == count, "a token is given once"
    return tuple(sorted(chosen))


def _widths(owned: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """For each node: its tokens, in order, with the width of the range that ends there."""
    everyone = sorted(token for tokens in owned for token in tokens)
    before = dict(zip(everyone, everyone[-1:] + everyone[:-1], strict=True))
    return [{end: (end - before[end] - 1) % _RING + 1 for end in sorted(tokens)} for tokens in owned]


def _moved(token: int, by: int) -> int:
    """The token `by` further along the ring."""
    return (token - TOKEN_MIN + by) % _RING + TOKEN_MIN
