"""When a write of a tracked table with views has settled."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.coordination.tracked_writes import _HeldByQuorum
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import Consistency

SINCE = 7
#: Three replicas in this data centre, three in another one.
HERE, ALL = {1, 2, 3}, {1, 2, 3, 4, 5, 6}


def held(accepted: dict[int, int], *, is_gone: bool = False) -> bool:
    def plan_of(_mutation: object, level: Consistency) -> Any:
        if is_gone:
            raise InvalidRequest("there is no such table")
        voters, count = (HERE, 2) if level is Consistency.LOCAL_QUORUM else (ALL, 4)
        return SimpleNamespace(
            needs_epoch=SINCE, satisfied_by=lambda nodes: len(voters.intersection(nodes)) >= count
        )

    plans = SimpleNamespace(plan_of=plan_of)
    write: Any = SimpleNamespace(
        mutation=None, round=SimpleNamespace(accepted=accepted), owner=SimpleNamespace(plans=plans)
    )
    return _HeldByQuorum(write).reached()


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [((1,), False), ((1, 2), True), ((1, 4, 5), False), ((1, 4, 5, 6), True), ((4, 5, 6), False)],
)
def test_a_quorum_of_all_or_of_this_data_centre_is_enough(nodes: tuple[int, ...], expected: bool) -> None:
    assert held(dict.fromkeys(nodes, SINCE)) is expected


def test_what_was_taken_before_the_replicas_changed_does_not_count() -> None:
    assert not held({1: SINCE - 1, 2: SINCE, 3: SINCE - 1})


def test_nothing_is_owed_to_a_table_that_is_gone() -> None:
    assert held({}, is_gone=True)
