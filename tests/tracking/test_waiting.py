"""Waits for ids: what is captured, what is awaited from then on, and when it is over."""

from __future__ import annotations

import random

import pytest

from lockstep.tracking.held import NOTHING, Held, all_of, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.waiting import Wait

NODES = (1, 2, 3)


def held(*offsets: int, log: tuple[int, int] = (1, 1)) -> Held:
    return held_of({log: of(offsets)})


def told(wait: Wait, **by_node: Held | None) -> Wait:
    for name, offsets in by_node.items():
        wait = wait.heard(int(name[1:]), offsets)
        wait.validate()
    return wait


def test_nothing_is_awaited_before_all_have_told() -> None:
    wait = told(Wait(NODES), n1=held(0, 1), n3=held(0))
    assert wait.pending == (2,) and not wait.is_captured and not wait.is_over and wait.lacking_count == 0
    wait = told(wait, n2=held(2, log=(2, 1)))
    assert wait.wanted == all_of((held(0, 1), held(2, log=(2, 1))))
    assert wait.pending == (1, 2, 3) and wait.lacking_count == 1 + 2 + 2
    assert wait.lacks(3) == all_of((held(1), held(2, log=(2, 1))))


def test_equal_replicas_need_not_wait() -> None:
    wait = told(Wait(NODES), n1=held(0, 1), n2=held(0, 1), n3=held(0, 1))
    assert wait.is_over and wait.pending == () and wait.lacking_count == 0
    assert told(Wait((4,)), n4=NOTHING).is_over


def test_what_comes_later_is_not_awaited() -> None:
    wait = told(Wait(NODES), n1=held(0), n2=NOTHING, n3=held(0))
    wait = told(wait, n2=held(0, 1, 2))
    assert wait.is_over and wait.wanted == held(0)


def test_who_is_getting_rows_counts_only_once_it_can_name_them() -> None:
    wait = told(Wait(NODES), n1=held(0), n2=held(0), n3=None)
    assert wait.pending == (3,) and not wait.is_captured
    wait = told(wait, n3=held(0, 1))
    assert wait.wanted == held(0, 1) and wait.pending == (1, 2)
    wait = told(wait, n1=None, n2=held(0, 1))
    assert wait.pending == (1,) and wait.lacks(1) == held(0, 1) and not wait.is_over
    assert told(wait, n1=held(0, 1)).is_over


def test_who_lost_something_is_waited_for_again() -> None:
    wait = told(Wait((1, 2)), n1=held(0), n2=NOTHING)
    assert told(wait, n1=NOTHING, n2=held(0)).pending == (1,)


def test_only_participants_tell() -> None:
    with pytest.raises(AssertionError):
        Wait(NODES).heard(4, NOTHING)


@pytest.mark.parametrize("seed", range(20))
def test_it_is_over_only_when_all_hold_what_any_held_when_it_began(seed: int) -> None:
    """Replicas that bring each other what they lack, in any order, asked in any order."""
    draw = random.Random(seed)
    now = {node: held(*draw.sample(range(12), draw.randrange(12))) for node in NODES}
    wait, first = Wait(NODES), dict[int, Held]()
    while not wait.is_over:
        if draw.random() < 0.5:
            one, other = draw.sample(NODES, 2)
            now[one] = now[one].union(held(*draw.sample(range(12), 3)).intersection(now[other]))
        else:
            node = draw.choice(wait.pending)
            is_first = not wait.is_captured
            wait = wait.heard(node, now[node])
            wait.validate()
            if is_first:
                first[node] = now[node]
        if wait.is_captured:
            assert wait.wanted == all_of(first.values())
    assert all(now[node].covers(wait.wanted) for node in NODES)
