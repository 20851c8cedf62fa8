"""Merkle trees name the leaves that differ, and pieces of ranges cover what they were cut from."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.values.hash_tree import LEAF_BYTES, MerkleTree, differing, joined_numbers, split_evenly
from lockstep.values.tokens import FULL_RING, Range


def tree(numbers: list[int]) -> MerkleTree:
    digests = [hashlib.blake2b(bytes([n]), digest_size=LEAF_BYTES).digest() for n in numbers]
    return MerkleTree(b"".join(digests))


@given(st.data(), st.integers(1, 40), st.integers(1, 4))
def test_exactly_the_leaves_that_differ_are_named(data: Any, count: int, replicas: int) -> None:
    row = st.lists(st.integers(0, 1), min_size=count, max_size=count)
    contents = [data.draw(row) for _ in range(replicas)]
    wanted = tuple(n for n in range(count) if len({content[n] for content in contents}) > 1)
    assert differing([tree(content) for content in contents]) == wanted


def test_trees_of_other_ranges_are_not_compared() -> None:
    assert differing([tree([]), tree([])]) == ()
    with pytest.raises(ValueError, match="different ranges"):
        differing([tree([1]), tree([1, 2])])


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=8, unique=True), st.integers(0, 60))
def test_pieces_cover_the_ranges_and_nothing_else(bounds: list[int], wanted: int) -> None:
    cuts = sorted(bounds)
    ranges = [Range(cuts[n], cuts[n + 1]) for n in range(0, len(cuts) - 1, 2)]
    pieces = split_evenly(ranges, wanted)
    assert list(pieces) == sorted(pieces)
    for token in range(-51, 52):
        inside = sum(piece.contains(token) for piece in pieces)
        assert inside == any(range_.contains(token) for range_ in ranges)
    assert len(ranges) <= len(pieces) <= max(wanted, len(ranges)) + len(ranges)


def test_the_whole_ring_is_cut_into_as_many_pieces_as_asked() -> None:
    assert len(split_evenly([FULL_RING], 4096)) == 4096


@given(st.sets(st.integers(0, 19)), st.integers(1, 5))
def test_neighbours_are_joined_and_nothing_is_lost(numbers: set[int], together: int) -> None:
    ranges = split_evenly([Range(0, 200)], 20)
    joined = joined_numbers(ranges, sorted(numbers), together)
    assert sum(one.right - one.left for one in joined) == 10 * len(numbers)
    assert all(one.right - one.left <= 10 * together for one in joined)
