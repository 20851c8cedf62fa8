"""Cutting a read into partitions, and what filters on keys turn into."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, IsNotNull

from lockstep.placement.strategies import NETWORK_TOPOLOGY, Owner, compute
from lockstep.schema.model import Replication
from lockstep.spark.pushdown import selection_of
from lockstep.spark.ring import (
    TASKS_PER_HOST,
    Host,
    Ring,
    TableColumn,
    TableShape,
    key_partitions,
    range_partitions,
    split_range,
)
from lockstep.values.ids import NodeId
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

TOKENS = st.integers(TOKEN_MIN + 1, TOKEN_MAX)


def ring_of(tokens: list[list[int]]) -> Ring:
    hosts = tuple(Host(f"10.0.0.{index}", "dc1", "r1", tuple(own)) for index, own in enumerate(tokens))
    owners = [Owner(NodeId(index), "dc1", "r1", tuple(own)) for index, own in enumerate(tokens)]
    placed = compute(Replication(NETWORK_TOPOLOGY, (("dc1", 2),)), owners)
    return Ring(hosts, tuple((part, tuple(hosts[node].address for node in nodes)) for part, nodes in placed))


@given(st.lists(TOKENS, min_size=1, max_size=40, unique=True), st.integers(1, 5), st.integers(0, 4))
@settings(max_examples=80, deadline=None)
def test_partitions_cover_the_ring_once(tokens: list[int], hosts: int, splits: int) -> None:
    ring = ring_of([own for own in (tokens[index::hosts] for index in range(hosts)) if own])
    partitions = range_partitions(ring, splits)
    pieces = sorted(piece for partition in partitions for piece in partition.ranges)
    assert pieces[0][0] == TOKEN_MIN and pieces[-1][1] == TOKEN_MAX
    assert all(one[1] == other[0] for one, other in itertools.pairwise(pieces))
    assert all(left < right for left, right in pieces)
    if splits:
        assert all(len(partition.ranges) == 1 for partition in partitions)
    else:
        assert len(partitions) <= TASKS_PER_HOST * len(ring.hosts)


def test_a_single_range_still_makes_tasks_for_every_core() -> None:
    assert len(range_partitions(ring_of([[0]]), 0)) == TASKS_PER_HOST


def test_partitions_name_no_host() -> None:
    ring = ring_of([[0, 100], [50, 150]])
    assert b"10.0.0." not in pickle.dumps(range_partitions(ring, 0))


@pytest.mark.parametrize("whole", [FULL_RING, Range(5, 6), Range(-3, 4)])
def test_split_ranges_are_adjacent(whole: Range) -> None:
    pieces = split_range(whole, 3)
    assert pieces[0].left == whole.left and pieces[-1].right == whole.right
    assert all(one.right == other.left for one, other in itertools.pairwise(pieces))


SHAPE = TableShape(
    "shop",
    "t",
    (
        TableColumn("a", "partition_key", 0, "int"),
        TableColumn("b", "partition_key", 1, "uuid"),
        TableColumn("c", "clustering", 0, "int"),
    ),
)


def keys_of_filters(
    shape: TableShape, filters: Sequence[Filter]
) -> tuple[list[tuple[bytes, ...]] | None, list[Filter]]:
    selection, left = selection_of(shape, filters)
    return None if selection is None else list(selection.keys), left


UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"


def test_equality_on_the_whole_key_becomes_keys() -> None:
    rest = EqualTo(("d",), 3)
    one, other = In(("a",), [1, 2, None]), EqualTo(("b",), UUID)
    keys, left = keys_of_filters(SHAPE, [one, other, rest, IsNotNull(("a",))])
    assert keys is not None
    assert [key[0] for key in keys] == [b"\0\0\0\1", b"\0\0\0\2"]
    # A uuid is compared as text by Spark, so that filter stays with it; the int's does not.
    assert one not in left and other in left and rest in left


@pytest.mark.parametrize(
    "filters",
    [
        [EqualTo(("a",), 1)],
        [EqualTo(("a",), 1), GreaterThan(("b",), UUID)],
        [EqualTo(("a", "x"), 1), EqualTo(("b",), UUID)],
        [],
    ],
)
def test_part_of_a_key_is_left_to_spark(filters: list[Filter]) -> None:
    keys, left = keys_of_filters(SHAPE, filters)
    assert keys is None and left == filters


def test_a_value_that_no_row_can_have_gives_no_keys() -> None:
    keys, _ = keys_of_filters(SHAPE, [EqualTo(("a",), 1), EqualTo(("b",), "not a uuid")])
    assert keys == []
    assert key_partitions([], 3) == []


def test_the_empty_key_which_no_row_can_have_is_not_asked_for() -> None:
    one = TableShape("shop", "t", (TableColumn("a", "partition_key", 0, "text"),))
    assert keys_of_filters(one, [In(("a",), ["", "x"])])[0] == [(b"x",)]
    assert keys_of_filters(one, [EqualTo(("a",), "")])[0] == []


def test_too_many_keys_are_left_to_spark() -> None:
    keys, left = keys_of_filters(SHAPE, [In(("a",), list(range(20_000))), EqualTo(("b",), UUID)])
    assert keys is None and len(left) == 2


def test_keys_are_dealt_once() -> None:
    keys = [(bytes([number]),) for number in range(50)]
    dealt = [key for partition in key_partitions(keys, 3) for key in partition.keys]
    assert sorted(dealt) == keys
