"""The shards of the replicas of a tablet map, beside the ring that says which nodes they are.

Invariant: what stands here is not shard 0 on every node; a tablet that is not here has all its replicas on
shard 0, so nodes of one shard cost nothing. A tablet is named by its last token. Equal shards have equal
digests, whatever changes led to them; a change packs one chunk anew, of one in 4,096 of the token space.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final

import msgspec

from lockstep.values import codec
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, tree_of
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MIN

#: (node, shard) of one replica.
Replica = tuple[NodeId, int]
#: The shards of one tablet that are not 0, sorted by node.
_Placed = tuple[Replica, ...]
_Chunk = tuple[tuple[int, _Placed], ...]

_CHUNK_BITS: Final = 64 - 12
_DECODER: Final = codec.decoder(_Chunk)


def _chunk_of(right: int) -> int:
    return (right - TOKEN_MIN) >> _CHUNK_BITS


def _placed(replicas: Iterable[Replica]) -> _Placed:
    return tuple(sorted(replica for replica in replicas if replica[1]))


class Shards(msgspec.Struct, frozen=True):
    """By the last token of a tablet: which of its replicas are on another shard than 0."""

    tree: HashTree[bytes] = EMPTY_TREE

    @property
    def digest(self) -> bytes:
        return self.tree.digest

    def of(self, right: int) -> Mapping[NodeId, int]:
        """The shards of one tablet that are not 0."""
        return dict(self.chunk(_chunk_of(right)).get(right, ()))

    def chunk(self, number: int) -> dict[int, _Placed]:
        packed = self.tree.get(number)
        return {} if packed is None else dict(_DECODER.decode(packed))

    def changed(self, tablets: Mapping[int, Iterable[Replica]]) -> Shards:
        """With other replicas for these tablets; none for one that is gone."""
        by_chunk: dict[int, dict[int, _Placed]] = {}
        for right, replicas in tablets.items():
            by_chunk.setdefault(_chunk_of(right), {})[right] = _placed(replicas)
        tree = self.tree
        for number, edits in by_chunk.items():
            before = self.chunk(number)
            after = {right: placed for right, placed in {**before, **edits}.items() if placed}
            if after == before:
                continue
            if not after:
                tree = tree.without(number)
                continue
            packed = _packed(after)
            tree = tree.with_value(number, packed, blake(packed))
        return self if tree is self.tree else Shards(tree)

    def items(self) -> Iterator[bytes]:
        """The stored pieces, by the token space."""
        for _, packed in sorted(self.tree.items(), key=itemgetter(0)):
            yield packed

    def everything(self) -> dict[int, _Placed]:
        return {right: placed for packed in self.items() for right, placed in _DECODER.decode(packed)}


NO_SHARDS: Final = Shards()


def _packed(chunk: Mapping[int, _Placed]) -> bytes:
    return codec.encode(sorted(chunk.items()))


def shards_of(tablets: Iterable[tuple[int, Iterable[Replica]]]) -> Shards:
    """(last token, replicas) of all tablets of a map."""
    by_chunk: dict[int, dict[int, _Placed]] = {}
    for right, replicas in tablets:
        if placed := _placed(replicas):
            by_chunk.setdefault(_chunk_of(right), {})[right] = placed
    return _of_chunks(by_chunk)


def shards_of_items(pieces: Iterable[bytes]) -> Shards:
    """What `items` gave; ValueError when it cannot be that."""
    by_chunk: dict[int, dict[int, _Placed]] = {}
    for packed in pieces:
        for right, placed in _DECODER.decode(packed):
            if not placed or placed != _placed(placed):
                raise ValueError(f"shards of tablet {right} are not in their normal form")
            by_chunk.setdefault(_chunk_of(right), {})[right] = placed
    return _of_chunks(by_chunk)


def _of_chunks(by_chunk: Mapping[int, Mapping[int, _Placed]]) -> Shards:
    packed = {number: _packed(chunk) for number, chunk in by_chunk.items()}
    return Shards(tree_of((number, data, blake(data)) for number, data in packed.items()))
