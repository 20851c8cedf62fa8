"""Degraded ranges: what is left of the list when ranges are repaired, nodes go and keyspaces change."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.degraded import (
    Degraded,
    carried,
    handed_on,
    of_groups,
    with_missing,
    without_node,
    without_range,
)
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

ONE, TWO = 1, 2


def ids(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(NodeId(number) for number in numbers)


def line(left: int, right: int, *missing: int, group: int = TWO) -> Degraded:
    return Degraded(group, Range(left, right), 7, ids(*missing))


LIST = (line(0, 10, 1), line(10, 20, 1, 2), line(20, 30), line(0, 30, 3, group=ONE))


def test_what_only_a_gone_node_lacked_nobody_lacks() -> None:
    assert without_node(LIST, NodeId(1)) == (line(10, 20, 2), *LIST[2:])
    assert without_node(LIST, NodeId(9)) == LIST
    nowhere = without_node((line(20, 30),), NodeId(1))
    assert nowhere == (line(20, 30),), "writes that may be nowhere are still nowhere"


@pytest.mark.parametrize(
    ("repaired", "left"),
    [
        ((0, 10), [(10, 20), (20, 30)]),
        ((3, 7), [(0, 3), (7, 10), (10, 20), (20, 30)]),
        ((0, 7), [(7, 10), (10, 20), (20, 30)]),
        ((3, 10), [(0, 3), (10, 20), (20, 30)]),
        ((5, 25), [(0, 5), (25, 30)]),
        ((0, 30), []),
        ((30, 40), [(0, 10), (10, 20), (20, 30)]),
    ],
)
def test_a_repaired_range_leaves_what_lies_beside_it(
    repaired: tuple[int, int], left: list[tuple[int, int]]
) -> None:
    after = without_range(LIST, TWO, Range(*repaired))
    assert [(one.range.left, one.range.right) for one in after if one.group == TWO] == left
    assert after[-1] == LIST[-1], "another group has other replicas"
    for one in after:
        (was,) = (was for was in LIST if was.group == one.group and was.range.intersects(one.range))
        assert one == msgspec.structs.replace(was, range=one.range)


def test_a_keyspace_takes_its_lines_along_to_another_group() -> None:
    named = msgspec.structs.replace(LIST[0], keyspaces=("a", "b"))
    assert carried((named, LIST[1]), "a", ONE) == (
        msgspec.structs.replace(named, group=ONE, keyspaces=("a",)),
        msgspec.structs.replace(LIST[1], group=ONE, keyspaces=("a",)),
    )
    assert carried((named,), "c", ONE) == ()
    assert [named.is_about("b"), named.is_about("c"), LIST[0].is_about("c")] == [True, False, True]


def test_lines_go_with_the_last_keyspace_of_their_group() -> None:
    assert of_groups(LIST, (ONE, TWO)) is LIST
    assert of_groups(LIST, (ONE,)) == LIST[3:]
    assert of_groups(LIST, ()) == ()


@pytest.mark.parametrize(
    ("group", "moved", "old", "gained", "missing"),
    [
        (TWO, (0, 10), (1, 3), (4,), [(1, 4), (1, 2), (), (3,)]),
        (TWO, (5, 15), (1, 3), (5, 4), [(1, 4, 5), (1, 2, 4, 5), (), (3,)]),
        (TWO, (10, 20), (2,), (1,), [(1,), (1, 2), (), (3,)]),
        (ONE, (0, 5), (3,), (4,), [(1,), (1, 2), (), (3, 4)]),
    ],
)
def test_a_replica_that_was_filled_lacks_what_its_sources_lack(
    group: int,
    moved: tuple[int, int],
    old: tuple[int, ...],
    gained: tuple[int, ...],
    missing: list[tuple[int, ...]],
) -> None:
    after = handed_on(LIST, group, Range(*moved), ids(*old), ids(*gained))
    assert [one.missing for one in after] == missing
    assert [one.range for one in after] == [one.range for one in LIST]


@pytest.mark.parametrize(
    ("moved", "old", "gained"), [((0, 10), (3,), (4,)), ((0, 10), (1,), ()), ((30, 40), (1,), (4,))]
)
def test_the_list_stays_the_same_object_where_no_source_lacks_anything(
    moved: tuple[int, int], old: tuple[int, ...], gained: tuple[int, ...]
) -> None:
    assert handed_on(LIST, TWO, Range(*moved), ids(*old), ids(*gained)) is LIST


def test_who_lacks_all_is_who_misses_it_or_inherited_it() -> None:
    assert LIST[1].lacking == ids(1, 2)
    assert Degraded(TWO, Range(0, 1), 7, (), inherited=ids(4)).lacking == ids(4)


def test_who_lacks_more_of_the_same_range_is_said_in_one_line() -> None:
    said = with_missing((), TWO, "a", Range(0, 10), ids(3), 8)
    again = with_missing(said, TWO, "a", Range(0, 10), ids(1), 9)
    assert again == (Degraded(TWO, Range(0, 10), 9, ids(1, 3), keyspaces=("a",)),)
    other = with_missing(again, TWO, "b", Range(0, 10), ids(2), 10)
    assert other[0] == again[0] and other[1].missing == ids(2), "another keyspace has a line of its own"
    took = (msgspec.structs.replace(again[0], inherited=ids(2)),)
    assert with_missing(took, TWO, "a", Range(0, 10), ids(4), 11)[0] == took[0], "who inherited it lacks all"
