"""TOLD-1 and TOLD-2 on values of random histories, and on tellings that are not so."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
import pytest

from lockstep.metadata.access.roles import ACCESS, Grant, Role, access_of
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import diff
from lockstep.metadata.log.comparison import Difference
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.sim.checkers.telling import check_difference, check_healed, check_health
from lockstep.sim.checkers.violation import Violation
from lockstep.topology.health import Finding
from lockstep.values.conditions import Condition, Level
from tests.metadata.histories import History
from tests.metadata.test_digest import history, some_change

DOWN = Finding(2, Condition("NODE_DOWN"), Level.DEGRADED)
NO_QUORUM = Finding(0, Condition("NO_QUORUM", "ks"), Level.UNAVAILABLE)


@pytest.fixture
def made() -> History:
    chosen, made = random.Random(5), history()
    for number in range(60):
        made.tried(ChangeSchema(some_change(chosen, number)))
    return made


def test_random_histories_are_told_as_they_are(made: History) -> None:
    pairs = zip(made.values[1:], made.values[2:], strict=False)
    assert sum(check_difference(before, after) for before, after in pairs) > len(made.values)


def test_a_part_of_which_nothing_is_told_is_objected_to(made: History) -> None:
    def without_schema(before: ClusterMetadata, after: ClusterMetadata) -> Sequence[Difference]:
        return [line for line in diff(before, after) if not line.path.startswith("schema")]

    with pytest.raises(Violation, match="nothing is told of schema at epoch"):
        for before, after in zip(made.values[1:], made.values[2:], strict=False):
            check_difference(before, after, without_schema)


def test_a_line_that_says_that_nothing_changed_is_objected_to(made: History) -> None:
    def with_another(before: ClusterMetadata, after: ClusterMetadata) -> Sequence[Difference]:
        return [*diff(before, after), Difference("voters", "1", "1")]

    with pytest.raises(Violation, match="voters became 1, which it was"):
        check_difference(made.values[1], made.values[2], with_another)


def test_a_difference_that_has_other_lines_turned_round_is_objected_to(made: History) -> None:
    def onward(before: ClusterMetadata, after: ClusterMetadata) -> Sequence[Difference]:
        return [line for line in diff(before, after) if after.epoch > before.epoch or line.path != "hash"]

    with pytest.raises(Violation, match="turned round"):
        check_difference(made.values[1], made.values[2], onward)


def test_a_permission_that_is_granted_once_more_is_no_difference(made: History) -> None:
    """An equal grant is another object, which nobody can see."""

    def value(permissions: tuple[str, ...]) -> ClusterMetadata:
        grants = [Grant("writer", "data/ks", permissions)]
        return made.now.changed(ACCESS.set(access_of([Role("writer")], grants)))

    assert diff(value(("ALTER",)), value(("ALTER",))) == ()
    assert [line.path for line in diff(value(("ALTER",)), value(("DROP",)))] == [
        "access.grants[writer on data/ks]"
    ]


def test_the_worst_comes_first() -> None:
    check_health(1, [NO_QUORUM, DOWN])
    with pytest.raises(Violation, match="does not begin with the worst"):
        check_health(1, [DOWN, NO_QUORUM])


def test_nobody_is_down_by_its_own_word() -> None:
    check_health(1, [])
    with pytest.raises(Violation, match="says that it is down itself"):
        check_health(2, [DOWN])


def test_who_serves_is_not_down_when_all_is_well() -> None:
    check_healed(1, [DOWN], serving=[1, 3])
    drained = msgspec.structs.replace(DOWN, condition=Condition("NODE_DRAINED"))
    check_healed(1, [drained], serving=[1, 2, 3])
    for found in ([DOWN], [NO_QUORUM]):
        with pytest.raises(Violation, match="all is well, and node 1 says"):
            check_healed(1, found, serving=[1, 2, 3])
