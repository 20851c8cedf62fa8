from __future__ import annotations

from lockstep.tracking.cohorts import are_enough


def test_enough_are_there_when_each_majority_has_one_of_them() -> None:
    all_of_two_dcs, near = frozenset(range(1, 7)), frozenset((1, 2, 3))
    assert are_enough(frozenset((1, 2)), frozenset((1, 2, 3)), frozenset((1, 2, 3)))
    assert not are_enough(frozenset((1,)), frozenset((1, 2, 3)), frozenset((1, 2, 3)))
    assert are_enough(frozenset((1, 2)), all_of_two_dcs, near), "a majority of the own data centre"
    assert are_enough(frozenset((1, 4, 5, 6)), all_of_two_dcs, near)
    assert not are_enough(frozenset((1, 4, 5)), all_of_two_dcs, near)
    assert not are_enough(frozenset((1,)), frozenset((1, 2)), frozenset((1, 2)))
