"""A hash tree against a dictionary and a digest computed from nothing."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.values.hash_tree import EMPTY_TREE, HashTree, blake, changed, key_of_text, tree_of
from lockstep.values.memo import kept

#: Some keys share a bucket, some only a branch.
KEYS = st.one_of(st.integers(0, 200), st.integers(0, 5).map(lambda at: at * 4096), st.just(key_of_text("a")))


def leaf(key: int, value: str) -> bytes:
    return blake(f"{key}={value}".encode())


def slow_digest(held: dict[int, str]) -> bytes:
    """The tree's digest by its definition: 64 branches of 64 buckets, keys ascending in each."""
    branches = []
    for branch in range(64):
        buckets = []
        for at in range(64):
            keys = sorted(key for key in held if key % 4096 == branch * 64 + at)
            joined = b"".join(leaf(key, held[key]) for key in keys)
            buckets.append(blake(joined) if keys else bytes(32))
        branches.append(blake(b"".join(buckets)))
    return blake(b"".join(branches))


def run(held: dict[int, str], tree: HashTree[str], steps: list[tuple[int, str]]) -> HashTree[str]:
    for key, value in steps:
        if value:
            held[key] = value
            tree = tree.with_value(key, value, leaf(key, value))
        elif key in held:
            del held[key]
            tree = tree.without(key)
    return tree


STEPS = st.lists(st.tuples(KEYS, st.sampled_from(["", "", "x", "y", "z"])), max_size=40)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(STEPS, STEPS)
def test_any_history_gives_the_digest_and_the_pairs_of_its_end(
    one: list[tuple[int, str]], more: list[tuple[int, str]]
) -> None:
    held: dict[int, str] = {}
    tree = run(held, EMPTY_TREE, one)
    assert len(tree.digest) == 32
    before = dict(held)
    later = run(held, tree, more)
    assert later.digest == slow_digest(held) and later.count == len(held)
    assert dict(later.items()) == held and tree.digest == slow_digest(before)
    assert tree_of((key, value, leaf(key, value)) for key, value in reversed(held.items())) == later
    put = {key: value for key, value in more if value}
    assert later.with_all((key, value, leaf(key, value)) for key, value in put.items()) == run(
        dict(held), later, list(put.items())
    )
    keys = sorted(before.keys() | held.keys())
    wanted = [(key, before.get(key), held.get(key)) for key in keys if before.get(key) is not held.get(key)]
    assert changed(tree, later) == wanted


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(KEYS, st.sampled_from("xyz")), st.data())
def test_keys_removed_at_once_leave_what_is_left(held: dict[int, str], data: st.DataObject) -> None:
    tree = tree_of((key, value, leaf(key, value)) for key, value in held.items())
    gone = data.draw(st.lists(st.sampled_from(sorted(held)), unique=True)) if held else []
    kept = {key: value for key, value in held.items() if key not in gone}
    left = tree.without_all(gone)
    assert left == tree_of((key, value, leaf(key, value)) for key, value in kept.items())
    assert left.digest == slow_digest(kept)
    with pytest.raises(AssertionError):
        left.without_all([12345])


def test_a_change_keeps_all_other_nodes() -> None:
    tree = tree_of((key, "x", leaf(key, "x")) for key in range(10_000))
    after = tree.with_value(77, "y", leaf(77, "y"))
    assert sum(old is not new for old, new in zip(tree.branches, after.branches, strict=True)) == 1
    assert changed(tree, after) == [(77, "x", "y")] and after.with_value(77, "x", leaf(77, "x")) == tree
    assert after[77] == "y" and after.digest_of(77) == leaf(77, "y") and after.get(10_000) is None


def test_what_differs_is_told_again_and_again_and_keeps_no_older_tree() -> None:
    trees = [EMPTY_TREE]
    for number in range(5):
        trees.append(trees[-1].with_value(number, f"value {number}", blake(str(number).encode())))
    for before, after in itertools.pairwise(trees):
        first = changed(before, after)
        first.append("whoever was told does with it what it likes")
        key = after.count - 1
        assert changed(before, after) == [(key, None, f"value {key}")] == changed(before, after)
    assert len(changed(EMPTY_TREE, trees[5])) == 5
    assert changed(trees[4], trees[5]) == [(4, None, "value 4")]
    assert [kept(tree, "_since") is not None for tree in trees] == [False] * 5 + [True], (
        "one older tree at most"
    )
