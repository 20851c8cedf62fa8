"""The circle of tokens with their owners, and which tokens a new node takes.

Invariant: `tokens` ascend and are distinct, `nodes[i]` owns `tokens[i]`; a circle is never changed, and one
made from another copies what stayed as whole slices. Results never repeat a token that is already owned, and
never contain the ring's ends.
"""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """A node that owns tokens, and where it stands."""

    node: NodeId
    dc: str
    rack: str
    tokens: tuple[int, ...]


class Circle:
    """`owners` by node, of those that own tokens; `racks[dc][rack]` counts them.

    Tokens are packed: there can be hundreds of thousands, and each would be an object of its own.
    """

    __slots__ = ("nodes", "owners", "racks", "tokens")

    def __init__(self, owners: Mapping[NodeId, Owner], tokens: array[int], nodes: list[NodeId]) -> None:
        assert len(tokens) == len(nodes), "every token has its node"
        assert bool(tokens) == bool(owners), "who is on the circle owns tokens"
        self.owners = owners
        self.tokens = tokens
        self.nodes = nodes
        self.racks: dict[str, dict[str, int]] = {}
        for owner in owners.values():
            racks = self.racks.setdefault(owner.dc, {})
            racks[owner.rack] = racks.get(owner.rack, 0) + 1

    @staticmethod
    def of(owners: Iterable[Owner]) -> Circle:
        by_node = {owner.node: owner for owner in owners if owner.tokens}
        by_token = {token: owner.node for owner in by_node.values() for token in owner.tokens}
        assert sum(len(owner.tokens) for owner in by_node.values()) == len(by_token), "a token has one owner"
        tokens = sorted(by_token)
        return Circle(by_node, array("q", tokens), list(map(by_token.__getitem__, tokens)))

    def changed(self, owners: Mapping[NodeId, Owner | None]) -> Circle:
        """This circle with these owners put in, replaced or, where None, taken out."""
        kept = dict(self.owners)
        puts: dict[int, NodeId | None] = {}
        for node, owner in owners.items():
            before = self.owners.get(node)
            if before == owner:
                continue
            kept.pop(node, None)
            puts.update((token, None) for token in _tokens_of(before) if token not in puts)
            if owner is not None and owner.tokens:
                kept[node] = owner
                puts.update((token, node) for token in owner.tokens)
        if not puts:
            # Who owns nothing is on no circle.
            return self
        tokens = array("q")
        nodes: list[NodeId] = []
        at = 0
        for token, put in sorted(puts.items()):
            place = bisect_left(self.tokens, token, at)
            tokens += self.tokens[at:place]
            nodes += self.nodes[at:place]
            if put is not None:
                tokens.append(token)
                nodes.append(put)
            at = place + (place < len(self.tokens) and self.tokens[place] == token)
        tokens += self.tokens[at:]
        nodes += self.nodes[at:]
        assert len(tokens) == sum(len(owner.tokens) for owner in kept.values()), (
            "all owners' tokens, each once"
        )
        return Circle({node: kept[node] for node in sorted(kept)}, tokens, nodes)

    def owner_of(self, token: int) -> NodeId | None:
        """Who owns exactly this token."""
        at = bisect_left(self.tokens, token)
        return self.nodes[at] if at < len(self.tokens) and self.tokens[at] == token else None

    def changed_tokens(self, other: Circle) -> list[int]:
        """Tokens that do not have an equal owner on both circles, ascending."""
        found: set[int] = set()
        for node in {**self.owners, **other.owners}:
            mine, theirs = self.owners.get(node), other.owners.get(node)
            if mine is theirs or mine == theirs:
                continue
            same_place = mine is not None and theirs is not None and _place(mine) == _place(theirs)
            one, two = set(_tokens_of(mine)), set(_tokens_of(theirs))
            found |= one ^ two if same_place else one | two
        return sorted(found)


def _tokens_of(owner: Owner | None) -> Sequence[int]:
    return () if owner is None else owner.tokens


def _place(owner: Owner) -> tuple[str, str]:
    return owner.dc, owner.rack


_RING = 1 << 64
#: Largest share of a range that one new token takes, as a fraction: the former owner keeps a part.
_PIECE_LARGEST: Final = (3, 4)
#: Ranges of at least so much of a node's widest are as good to take from.
_AS_WIDE: Final = (3, 4)


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

    Each takes the front of a range of whichever node owns most by then, so that all nodes give; how much is
    what the newcomer still lacks of a share in proportion to its tokens, but never a whole range. Of those
    about as wide as the node's widest it is the one farthest from the newcomer's other tokens: a token makes
    it a replica of the ranges before it, too, and of those that two tokens have before them only once.
    Ties go to the first node, then to the wider range, then to the lowest token.
    """
    widths = [widths_of for widths_of in _widths(owned) if widths_of]
    if not widths:
        return even_tokens([count])[0]
    totals = [sum(widths_of.values()) for widths_of in widths]
    lacking = _RING * count // (sum(map(len, widths)) + count)
    chosen: list[int] = []
    for still in range(count, 0, -1):
        giver = totals.index(max(totals))
        end, width = _farthest(widths[giver], chosen)
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


def _farthest(widths_of: Mapping[int, int], chosen: Sequence[int]) -> tuple[int, int]:
    """The range of one node, by its end, that lies farthest from the chosen tokens, and its width."""
    wide = max(widths_of.values()) * _AS_WIDE[0] // _AS_WIDE[1]

    def rank(item: tuple[int, int]) -> tuple[int, int, int]:
        end, width = item
        return min((min(_apart(end, one), _apart(one, end)) for one in chosen), default=0), width, -end

    return max((item for item in widths_of.items() if item[1] >= wide), key=rank)


def _apart(low: int, high: int) -> int:
    """How far along the ring it is from one token to another one."""
    return (high - low) % _RING


def _widths(owned: Sequence[Sequence[int]]) -> list[dict[int, int]]:
    """For each node: its tokens, in order, with the width of the range that ends there."""
    everyone = sorted(token for tokens in owned for token in tokens)
    assert all(low < high for low, high in itertools.pairwise(everyone)), "a token has one owner"
    before = dict(zip(everyone, everyone[-1:] + everyone[:-1], strict=True))
    return [{end: (end - before[end] - 1) % _RING + 1 for end in sorted(tokens)} for tokens in owned]


def _moved(token: int, by: int) -> int:
    """The token `by` further along the ring."""
    return (token - TOKEN_MIN + by) % _RING + TOKEN_MIN
