"""The management group repaired by a metadata group that works: the plan, the entry, and what follows it."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.metadata.directory import LINEAGE, Reset
from lockstep.metadata.groups.placing import KINDS as PLACE_KINDS
from lockstep.metadata.groups.placing import PlaceManagement, named_managers
from lockstep.metadata.lineage import KINDS, MANAGEMENT_RESET, ResetManagement
from lockstep.metadata.log.tip import Appended, Refused, Tip
from lockstep.metadata.transformations import Initialize, SetExtension
from lockstep.recovery.living import anew_from, is_decided, management_lost
from lockstep.recovery.plan import Drawn, Wish, make_plan
from lockstep.recovery.survey import Survey
from lockstep.values.errors import CannotApply, PreconditionError
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder, registry
from tests.recovery.test_plan import survey

REGISTRY = registry({**KINDS, **PLACE_KINDS})
DRAWN = Drawn("attempt-1", "cluster-2", b"e" * 16, 5_000)


def history(*managers: int) -> History:
    """Five nodes; 1 to 3 vote on the metadata, these manage."""
    made = History(REGISTRY)
    found = tuple(founder(number, (number * 10,)) for number in range(1, 6))
    made.submit(Initialize("cluster-1", "test", found, voters=(1, 2, 3)))  # type: ignore[arg-type]
    made.submit(PlaceManagement(tuple(NodeId(one) for one in managers)))
    return made


def answers(made: History, *nodes: int, **changed: Any) -> list[Survey]:
    return [survey(made.now, node, **({"leader": 1} | changed)) for node in nodes]


def test_the_plan_keeps_the_voters_and_names_managers() -> None:
    made = history(4)
    plan = make_plan(made.now, answers(made, 1, 2, 3, 5), (), Wish(management=(NodeId(2),)), DRAWN)
    assert plan.by_log and (plan.voters, plan.management, plan.absent) == ((1, 2, 3), (2,), (4,))
    assert plan.lost == "" and plan.source == 1
    moved = history(4)
    moved.submit(SetExtension("later", b"1"))
    later = make_plan(moved.now, answers(moved, 1, 2, 3, 5), (), Wish(management=(NodeId(2),)), DRAWN)
    assert later.digest == plan.digest, "a log that works goes on meanwhile"
    fewer = make_plan(made.now, answers(made, 1, 2, 3), (), Wish(management=(NodeId(2),)), DRAWN)
    assert fewer.digest != plan.digest


@pytest.mark.parametrize(
    ("managers", "nodes", "changed", "lost"),
    [
        ((4,), (1, 2, 3, 5), {}, True),
        ((4,), (1, 2, 3, 4), {}, False),
        ((4,), (1, 2, 3, 5), {"management_leader": 4}, False),
        ((3, 4, 5), (1, 2, 3), {}, True),
        ((3, 4, 5), (1, 2, 3, 5), {}, False),
    ],
)
def test_what_counts_as_lost(
    managers: tuple[int, ...], nodes: tuple[int, ...], changed: dict[str, Any], lost: bool
) -> None:
    made = history(*managers)
    told = answers(made, *nodes, **changed)
    assert management_lost(made.now, told) is lost
    if not lost:
        with pytest.raises(PreconditionError, match="has a majority"):
            make_plan(made.now, told, (), Wish(), DRAWN)


def test_a_group_that_is_electing_is_not_repaired() -> None:
    made = history(4)
    with pytest.raises(PreconditionError, match="no leader yet"):
        make_plan(made.now, answers(made, 1, 2, 3, leader=0), (), Wish(), DRAWN)


def wanted() -> ResetManagement:
    return ResetManagement(
        Reset("cluster-2", MANAGEMENT_RESET, "ann", 0, b"", 7),
        (NodeId(1), NodeId(2), NodeId(3)),
        (NodeId(2),),
    )


def judged(tip: Tip, transformation: Any, number: int) -> Any:
    kind, body = REGISTRY.encode(transformation)
    return tip.judge((900 + number).to_bytes(16, "big"), kind, body, "ann", 1, 4)


def test_nothing_is_appended_behind_the_entry() -> None:
    made = history(4)
    tip = Tip(made.now, REGISTRY)
    assert isinstance(judged(tip, SetExtension("a", b"1"), 1), Appended)
    assert isinstance(judged(tip, wanted(), 2), Appended)
    refused = judged(tip, SetExtension("b", b"1"), 3)
    assert isinstance(refused, Refused) and "under another id" in refused.rejection.message
    repaired = tip.value.parts[LINEAGE][-1]
    assert (repaired.epoch, tip.value.epoch) == (made.now.epoch + 1, made.now.epoch + 2)


def test_all_begin_the_groups_alike() -> None:
    made = history(4)
    tip = Tip(made.now, REGISTRY)
    last = judged(tip, wanted(), 1).entry
    after = tip.value
    assert is_decided("cluster-1", after.identity) and not is_decided("cluster-2", after.identity)
    assert not is_decided("", after.identity) and not is_decided("cluster-9", after.identity)
    anew = anew_from(after, last)
    assert (anew.voters, anew.management, anew.cluster_id) == ((1, 2, 3), (2,), "cluster-2")
    assert anew.raft_term == last.term + 1 and anew.raft_index > after.epoch
    assert named_managers(after) == (2,)
    with pytest.raises(CannotApply, match="follows the one that ended"):
        anew_from(made.now, made.entries[-1])
