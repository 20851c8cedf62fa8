"""Factors with witnesses: what is one, and how one becomes another. `sim quorums` proves their quorums."""

from __future__ import annotations

import pytest

from lockstep.tracking.witnesses import Factor, change_refused, factor_of, judge
from lockstep.values.errors import ConfigurationInvalid


@pytest.mark.parametrize(
    ("text", "found"), [("3/1", Factor(3, 1)), ("3", Factor(3)), (" 2/2 ", Factor(2, 2))]
)
def test_a_factor_is_read_and_told(text: str, found: Factor) -> None:
    assert factor_of(text) == found
    assert factor_of(found.text()) == found


@pytest.mark.parametrize("text", ["", "3/", "/1", "3/4", "-3", "3/1/1", "three", "33", "3.5", "99999/1"])
def test_what_is_no_factor_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationInvalid):
        factor_of(text)


def test_a_majority_of_witnesses_is_refused_but_for_a_log_alone() -> None:
    judge({"dc1": Factor(3, 1), "dc2": Factor(3, 3)})
    for bad in ({"dc1": Factor(3, 2)}, {"dc1": Factor(3, 3)}, {"dc1": Factor(3, 3), "dc2": Factor(1, 1)}):
        with pytest.raises(ConfigurationInvalid):
            judge(bad)


def test_changes_go_one_witness_at_a_time() -> None:
    assert not change_refused(Factor(3), Factor(3, 1))
    assert not change_refused(Factor(3, 1), Factor(4, 2))
    assert "one witness" in change_refused(Factor(3), Factor(5, 2))
    assert "no full replica" in change_refused(Factor(3, 1), Factor(4, 1))
    assert "by name" in change_refused(Factor(3, 1), Factor(3))
    assert not change_refused(Factor(3, 1), Factor(3), forced=True)
