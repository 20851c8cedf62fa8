"""Which of two replicas asks the other one."""

from __future__ import annotations

from itertools import combinations

import pytest

from lockstep.tracking.asking import Asking, is_asker

SHARD, OTHER = (3, 10), (3, 20)
#: Node 1 asks node 2.
ASKER, ASKED = 1, 2


@pytest.mark.parametrize("count", range(2, 9))
def test_of_two_nodes_one_asks_and_of_several_each_asks_about_as_many_as_others(count: int) -> None:
    nodes = range(1, count + 1)
    for one, other in combinations(nodes, 2):
        assert is_asker(one, other) != is_asker(other, one)
    asks = [sum(is_asker(one, other) for other in nodes if other != one) for one in nodes]
    assert max(asks) - min(asks) <= 1


def asked(at_s: float = 100.0) -> Asking:
    """What node 2 notes when node 1, which has answered it before, asks about a range."""
    asking = Asking()
    asking.has_answered(ASKER)
    asking.was_asked(ASKER, SHARD, at_s)
    return asking


def test_who_asks_need_not_be_asked_for_a_while() -> None:
    asking = asked()
    assert asking.spares(ASKED, ASKER, SHARD, 101.0)
    assert not asking.spares(ASKED, ASKER, SHARD, 101.5)
    assert not asking.spares(ASKED, ASKER, OTHER, 101.0), "it asked about another range"


def test_who_is_to_ask_asks_whoever_asked_it() -> None:
    asking = Asking()
    asking.has_answered(ASKED)
    asking.was_asked(ASKED, SHARD, 100.0)
    assert not asking.spares(ASKER, ASKED, SHARD, 100.0)


def test_who_was_silent_is_asked_once_before_it_is_spared() -> None:
    asking = asked()
    asking.is_silent(ASKER)
    assert not asking.spares(ASKED, ASKER, SHARD, 100.5)
    asking.has_answered(ASKER)
    assert asking.spares(ASKED, ASKER, SHARD, 100.5)


def test_questions_about_a_range_that_changed_count_for_nothing() -> None:
    asking = asked()
    asking.was_asked(ASKER, OTHER, 100.0)
    asking.forget(SHARD)
    assert not asking.spares(ASKED, ASKER, SHARD, 100.5)
    assert asking.spares(ASKED, ASKER, OTHER, 100.5)
