"""Merkle trees: a persistent map from numbers to values that knows its digest, and trees over the leaves of
one list of ranges, whose differing leaves are found from the root.

Invariant: two trees with equal pairs have equal digests, whatever changes led to them: the place of a key
depends on the key alone, and a bucket is sorted by key. A change copies one path and keeps every other node,
with the digest that was already computed for it, so that digest and comparison cost what changed. Two trees
of as many leaves differ in exactly those leaves that `differing` names.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

import msgspec

from lockstep.values.memo import keep, kept
from lockstep.values.tokens import Range

V = TypeVar("V")

DIGEST_BYTES: Final = 32
#: Two levels: a change copies and hashes two nodes of this many digests and one bucket, which holds one
#: key for every 4,096 of the map (a map of dense keys has as many pairs in each).
_FAN_OUT: Final = 64
_NO_PAIRS: Final = bytes(DIGEST_BYTES)
#: Beside a tree: (the older one that it was compared with last, what differed).
_SINCE: Final = "_since"


def blake(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def key_of_text(text: str) -> int:
    """The key under which something that has a name is kept."""
    return int.from_bytes(blake(text.encode()), "big")


class _Bucket(msgspec.Struct, frozen=True, dict=True):
    """(key, value) pairs sorted by key, and the digests of the values in that order."""

    pairs: tuple[tuple[int, Any], ...] = ()
    digests: tuple[bytes, ...] = ()

    @cached_property
    def digest(self) -> bytes:
        return blake(b"".join(self.digests)) if self.digests else _NO_PAIRS


class _Branch(msgspec.Struct, frozen=True, dict=True):
    children: tuple[_Bucket, ...]

    @cached_property
    def digest(self) -> bytes:
        return blake(b"".join([child.digest for child in self.children]))


_EMPTY_BUCKET: Final = _Bucket()
_EMPTY_BRANCH: Final = _Branch((_EMPTY_BUCKET,) * _FAN_OUT)


def _place(key: int) -> tuple[int, int]:
    return key // _FAN_OUT % _FAN_OUT, key % _FAN_OUT


class HashTree(msgspec.Struct, Generic[V], frozen=True, dict=True):
    """Keys are not negative. The digest given with a value must cover the key and the value."""

    branches: tuple[_Branch, ...] = (_EMPTY_BRANCH,) * _FAN_OUT
    count: int = 0

    @cached_property
    def digest(self) -> bytes:
        return blake(b"".join([branch.digest for branch in self.branches]))

    def get(self, key: int) -> V | None:
        branch, bucket = _place(key)
        for known, value in self.branches[branch].children[bucket].pairs:
            if known == key:
                found: V = value
                return found
        return None

    def digest_of(self, key: int) -> bytes:
        """The digest that was given with a value; KeyError when it is not there."""
        branch, at = _place(key)
        bucket = self.branches[branch].children[at]
        place = _position(bucket.pairs, key)
        if place == len(bucket.pairs) or bucket.pairs[place][0] != key:
            raise KeyError(key)
        return bucket.digests[place]

    def __getitem__(self, key: int) -> V:
        """KeyError when it is not there."""
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def with_value(self, key: int, value: V, digest: bytes) -> HashTree[V]:
        """Insert or replace."""
        assert key >= 0, "keys are not negative"
        assert len(digest) == DIGEST_BYTES, "the digest of a bucket is that of digests of one length, joined"
        branch, at = _place(key)
        bucket = self.branches[branch].children[at]
        pairs, digests = bucket.pairs, bucket.digests
        place = _position(pairs, key)
        known = place < len(pairs) and pairs[place][0] == key
        after = place + known
        made = _Bucket(
            (*pairs[:place], (key, value), *pairs[after:]), (*digests[:place], digest, *digests[after:])
        )
        return self._with_bucket(branch, at, made, self.count + (not known))

    def with_all(self, triples: Iterable[tuple[int, V, bytes]]) -> HashTree[V]:
        """Insert or replace (key, value, digest) with unique keys, all at once."""
        placed = _placed(triples)
        branches, count = list(self.branches), self.count
        for branch, buckets in placed.items():
            children = list(branches[branch].children)
            for at, found in buckets.items():
                before = children[at]
                put = {key for key, _, _ in found}
                kept = zip(before.pairs, before.digests, strict=True)
                found.extend((*pair, digest) for pair, digest in kept if pair[0] not in put)
                children[at] = _bucket(found)
                count += len(children[at].pairs) - len(before.pairs)
            branches[branch] = _branch(children)
        assert count >= self.count, "nothing is lost where something is put"
        return HashTree(tuple(branches), count)

    def without(self, key: int) -> HashTree[V]:
        """Remove a key that is there; AssertionError otherwise."""
        branch, at = _place(key)
        bucket = self.branches[branch].children[at]
        pairs, digests = bucket.pairs, bucket.digests
        place = _position(pairs, key)
        assert place < len(pairs) and pairs[place][0] == key, f"there is no key {key}"
        if len(pairs) == 1:
            return self._with_bucket(branch, at, _EMPTY_BUCKET, self.count - 1)
        made = _Bucket(pairs[:place] + pairs[place + 1 :], digests[:place] + digests[place + 1 :])
        return self._with_bucket(branch, at, made, self.count - 1)

    def without_all(self, keys: Iterable[int]) -> HashTree[V]:
        """Remove keys that are there, all at once; AssertionError otherwise."""
        gone: dict[int, dict[int, dict[int, None]]] = {}
        count = 0
        for key in keys:
            branch, at = _place(key)
            gone.setdefault(branch, {}).setdefault(at, {})[key] = None
            count += 1
        assert count <= self.count, "more keys are to be removed than there are"
        branches = list(self.branches)
        for branch, buckets in gone.items():
            children = list(branches[branch].children)
            for at, leaving in buckets.items():
                children[at] = _left_of(children[at], leaving)
            branches[branch] = _branch(children)
        return HashTree(tuple(branches), self.count - count)

    def items(self) -> Iterator[tuple[int, V]]:
        """All pairs, in the order of the tree's places."""
        for branch in self.branches:
            if branch is not _EMPTY_BRANCH:
                for bucket in branch.children:
                    yield from bucket.pairs

    def _with_bucket(self, branch: int, at: int, bucket: _Bucket, count: int) -> HashTree[V]:
        children = self.branches[branch].children
        made = _Branch((*children[:at], bucket, *children[at + 1 :]))
        return HashTree((*self.branches[:branch], made, *self.branches[branch + 1 :]), count)


def _left_of(bucket: _Bucket, leaving: dict[int, None]) -> _Bucket:
    kept = [place for place, (key, _) in enumerate(bucket.pairs) if key not in leaving]
    assert len(kept) == len(bucket.pairs) - len(leaving), "a key to be removed is not there"
    if not kept:
        return _EMPTY_BUCKET
    return _Bucket(
        tuple([bucket.pairs[place] for place in kept]), tuple([bucket.digests[place] for place in kept])
    )


def _branch(children: list[_Bucket]) -> _Branch:
    if all(child is _EMPTY_BUCKET for child in children):
        return _EMPTY_BRANCH
    return _Branch(tuple(children))


def _position(pairs: tuple[tuple[int, Any], ...], key: int) -> int:
    low, high = 0, len(pairs)
    while low < high:
        middle = (low + high) // 2
        if pairs[middle][0] < key:
            low = middle + 1
        else:
            high = middle
    return low


EMPTY_TREE: Final[HashTree[Any]] = HashTree()


def tree_of(triples: Iterable[tuple[int, V, bytes]]) -> HashTree[V]:
    """A tree of (key, value, digest); cheaper than inserting one by one. Keys are unique."""
    return HashTree[V]().with_all(triples)


def _placed(triples: Iterable[tuple[int, V, bytes]]) -> dict[int, dict[int, list[tuple[int, V, bytes]]]]:
    """By branch and bucket."""
    placed: dict[int, dict[int, list[tuple[int, V, bytes]]]] = {}
    for triple in triples:
        branch, at = _place(triple[0])
        placed.setdefault(branch, {}).setdefault(at, []).append(triple)
    return placed


def _bucket(found: list[tuple[int, V, bytes]]) -> _Bucket:
    found.sort(key=itemgetter(0))
    assert all(one[0] < other[0] for one, other in itertools.pairwise(found)), "a key has one value"
    return _Bucket(tuple([(key, value) for key, value, _ in found]), tuple([t[2] for t in found]))


def changed(before: HashTree[V], after: HashTree[V]) -> list[tuple[int, V | None, V | None]]:
    """(key, old value, new value) where the objects differ, by key; costs what changed, and nothing when the
    same two were compared last: parts, listeners and checks ask about each entry."""
    if before is after:
        return []
    known = kept(after, _SINCE)
    if known is None or known[0] is not before:
        known = before, tuple(_changed(before, after))
        if after.count:
            keep(after, _SINCE, known)
            # Of a long history of trees each would keep the one before.
            keep(before, _SINCE, None)
    found: list[tuple[int, V | None, V | None]] = list(known[1])
    assert abs(after.count - before.count) <= len(found), "each pair that came or went is told"
    return found


def _changed(before: HashTree[Any], after: HashTree[Any]) -> list[tuple[int, Any, Any]]:
    found: list[tuple[int, Any, Any]] = []
    for old_branch, new_branch in zip(before.branches, after.branches, strict=True):
        if old_branch is new_branch:
            continue
        for old_bucket, new_bucket in zip(old_branch.children, new_branch.children, strict=True):
            if old_bucket is new_bucket:
                continue
            old, new = dict(old_bucket.pairs), dict(new_bucket.pairs)
            for key, value in old.items():
                if (now := new.pop(key, None)) is not value:
                    found.append((key, value, now))
            found += [(key, None, value) for key, value in new.items()]
    if len(found) > 1:
        found.sort(key=itemgetter(0))
    return found


LEAF_BYTES: Final = 16


class MerkleTree(msgspec.Struct, frozen=True, dict=True):
    """`leaves`: one digest of LEAF_BYTES for each range, in order, joined."""

    leaves: bytes

    @property
    def count(self) -> int:
        return len(self.leaves) // LEAF_BYTES

    def leaf(self, number: int) -> bytes:
        assert 0 <= number < self.count, f"leaf {number} of {self.count}"
        return self.leaves[number * LEAF_BYTES : (number + 1) * LEAF_BYTES]

    @cached_property
    def levels(self) -> tuple[tuple[bytes, ...], ...]:
        """The leaves first, the root last; a node without a neighbour is handed up as it is."""
        assert len(self.leaves) % LEAF_BYTES == 0, "leaves are whole"
        level = tuple(self.leaf(number) for number in range(self.count))
        found = [level]
        while len(level) > 1:
            level = tuple(_joined(level[at : at + 2]) for at in range(0, len(level), 2))
            found.append(level)
        assert len(level) == min(1, self.count), "everything comes together in one root"
        return tuple(found)

    @property
    def root(self) -> bytes:
        return self.levels[-1][0] if self.leaves else b""


def _joined(pair: Sequence[bytes]) -> bytes:
    if len(pair) == 1:
        return pair[0]
    return hashlib.blake2b(b"".join(pair), digest_size=LEAF_BYTES).digest()


def differing(trees: Sequence[MerkleTree]) -> tuple[int, ...]:
    """Numbers of the leaves that are not the same in all trees; ValueError when they have not as many."""
    first = trees[0]
    if any(tree.count != first.count for tree in trees):
        raise ValueError("trees over different ranges")
    if all(tree.root == first.root for tree in trees):
        return ()
    suspects = [0]
    for depth in range(len(first.levels) - 2, -1, -1):
        below = [child for node in suspects for child in (2 * node, 2 * node + 1)]
        levels = [tree.levels[depth] for tree in trees]
        suspects = [
            number
            for number in below
            if number < len(levels[0]) and any(level[number] != levels[0][number] for level in levels)
        ]
    assert suspects, "roots differ where a leaf does"
    return tuple(suspects)


def split_evenly(ranges: Sequence[Range], leaves: int) -> tuple[Range, ...]:
    """The ranges (sorted, disjoint) cut into about `leaves` pieces; each range is one at least."""
    width = sum(range_.right - range_.left for range_ in ranges)
    found: list[Range] = []
    for range_ in ranges:
        span = range_.right - range_.left
        parts = min(span, max(1, leaves * span // width))
        bounds = [range_.left + span * number // parts for number in range(parts)] + [range_.right]
        found.extend(Range(left, right) for left, right in itertools.pairwise(bounds))
    assert sum(piece.right - piece.left for piece in found) == width, "no token is lost, none comes twice"
    return tuple(found)


def joined_numbers(ranges: Sequence[Range], numbers: Sequence[int], together_max: int) -> list[Range]:
    """The ranges of these numbers, ascending, with up to `together_max` neighbours as one."""
    assert all(low < high for low, high in itertools.pairwise(numbers)), "numbers ascend, each once"
    assert together_max > 0, "a range is with itself at the least"
    found: list[Range] = []
    count = 0
    for number in numbers:
        range_ = ranges[number]
        if found and found[-1].right == range_.left and count < together_max:
            found[-1] = Range(found[-1].left, range_.right)
            count += 1
        else:
            found.append(range_)
            count = 1
    return found
