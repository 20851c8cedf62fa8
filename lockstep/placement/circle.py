"""The circle of tokens with their owners, from which replicas are computed.

Invariant: `tokens` ascend and are distinct, `nodes[i]` owns `tokens[i]`; a circle is never changed, and one
made from another copies what stayed as whole slices.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from lockstep.values.ids import NodeId


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
