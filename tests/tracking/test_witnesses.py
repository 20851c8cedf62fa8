"""Factors with witnesses, and the proof over all sets of replicas that quorums with them meet."""

from __future__ import annotations

from itertools import product

import pytest

from lockstep.tracking.witnesses import (
    Factor,
    Level,
    change_refused,
    enough,
    factor_of,
    judge,
    missed,
    readable,
    replicas_of,
)
from lockstep.values.errors import ConfigurationInvalid

FACTORS = [Factor(all_, some) for all_ in range(1, 6) for some in range(all_ // 2 + 1)]


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


@pytest.mark.parametrize("factor", FACTORS)
def test_quorums_of_one_data_centre_meet(factor: Factor) -> None:
    for write, read in product((Level.QUORUM, Level.LOCAL_QUORUM, Level.EACH_QUORUM), repeat=2):
        assert missed({"dc1": factor}, write, "dc1", read, "dc1") is None
    if factor.replicas > 2:
        found = missed({"dc1": factor}, Level.ONE, "dc1", Level.QUORUM, "dc1")
        assert found is not None and not set(found.written) & set(found.asked)


@pytest.mark.parametrize(
    "factors",
    [
        {"a": Factor(3, 1), "b": Factor(3, 1)},
        {"a": Factor(3), "b": Factor(2, 2)},
        {"a": Factor(3, 1), "b": Factor(3, 3)},
        {"a": Factor(3, 1), "b": Factor(2, 1), "c": Factor(1, 1)},
    ],
    ids=str,
)
def test_quorums_of_several_data_centres_meet(factors: dict[str, Factor]) -> None:
    judge(factors)
    for dc in factors:
        assert missed(factors, Level.QUORUM, dc, Level.QUORUM, dc) is None
        assert missed(factors, Level.EACH_QUORUM, dc, Level.QUORUM, dc) is None
        for other in factors:
            if not factors[other].log_only:
                assert missed(factors, Level.EACH_QUORUM, dc, Level.LOCAL_QUORUM, other) is None
    first, second, *_ = factors
    if not factors[second].log_only:
        found = missed(factors, Level.LOCAL_QUORUM, first, Level.LOCAL_QUORUM, second)
        assert found is not None and {one.dc for one in found.written} == {first}


@pytest.mark.parametrize("factor", [Factor(3, 1), Factor(5, 2), Factor(4, 2), Factor(2, 1)])
def test_a_majority_that_is_up_answers_unless_it_is_of_witnesses(factor: Factor) -> None:
    factors = {"dc1": factor}
    replicas = replicas_of(factors)
    up = replicas[: factor.replicas // 2 + 1]
    assert readable(Level.QUORUM, factors, "dc1", up)
    witnesses = [one for one in replicas if not one.full]
    assert not readable(Level.ONE, factors, "dc1", witnesses)
    assert enough(Level.ONE, factors, "dc1", witnesses)


def test_a_log_alone_answers_no_local_read() -> None:
    factors = {"a": Factor(3), "b": Factor(3, 3)}
    every = replicas_of(factors)
    assert not readable(Level.LOCAL_QUORUM, factors, "b", every)
    assert readable(Level.LOCAL_QUORUM, factors, "a", every)
    assert enough(Level.LOCAL_QUORUM, factors, "b", [one for one in every if one.dc == "b"])


def test_changes_go_one_witness_at_a_time() -> None:
    assert not change_refused(Factor(3), Factor(3, 1))
    assert not change_refused(Factor(3, 1), Factor(4, 2))
    assert "one witness" in change_refused(Factor(3), Factor(5, 2))
    assert "no full replica" in change_refused(Factor(3, 1), Factor(4, 1))
    assert "by name" in change_refused(Factor(3, 1), Factor(3))
    assert not change_refused(Factor(3, 1), Factor(3), forced=True)
