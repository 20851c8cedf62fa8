"""What a node may record of a repair after what: the whole table."""

from __future__ import annotations

import itertools

import pytest

from lockstep.recovery.plan import ResetPlan, Wish, make_plan
from lockstep.recovery.steps import (
    Activated,
    Applied,
    Diverged,
    Migrating,
    Phase,
    Prepared,
    Record,
    Standing,
    Withdrawn,
    decode_record,
    follow,
    standing_of,
)
from lockstep.values.codec import encode
from lockstep.values.errors import CannotApply, Rejected
from tests.recovery.test_plan import DRAWN, history, survey


def plan() -> ResetPlan:
    cluster = history().now
    return make_plan(cluster, [survey(cluster, 4), survey(cluster, 5)], (), Wish(), DRAWN)


PLAN = plan()
RECORDS: dict[str, Record] = {
    "prepare": Prepared(PLAN),
    "activate": Activated(PLAN.attempt),
    "apply": Applied(PLAN.cluster_id),
    "withdraw": Withdrawn(PLAN.attempt),
    "migrate": Migrating("cluster-3", (("10.0.0.4", 7000),)),
    "diverge": Diverged("cluster-3", 7, b"a", b"b", "it has another entry", "an operator"),
}
#: Where a node is, by what it recorded so far.
REACHED = {
    Phase.IDLE: (),
    Phase.PREPARED: ("prepare",),
    Phase.ACTIVATED: ("prepare", "activate"),
    Phase.MIGRATING: ("migrate",),
}
ALLOWED = {
    (Phase.IDLE, "prepare"): Phase.PREPARED,
    (Phase.IDLE, "migrate"): Phase.MIGRATING,
    (Phase.PREPARED, "prepare"): Phase.PREPARED,
    (Phase.PREPARED, "activate"): Phase.ACTIVATED,
    (Phase.PREPARED, "withdraw"): Phase.IDLE,
    (Phase.PREPARED, "migrate"): Phase.MIGRATING,
    (Phase.IDLE, "diverge"): Phase.IDLE,
    (Phase.PREPARED, "diverge"): Phase.IDLE,
    (Phase.ACTIVATED, "apply"): Phase.IDLE,
    (Phase.MIGRATING, "apply"): Phase.IDLE,
}


def reached(phase: Phase) -> Standing:
    return standing_of(RECORDS[name] for name in REACHED[phase])


@pytest.mark.parametrize(("phase", "name"), [*itertools.product(Phase, RECORDS)])
def test_every_record_in_every_phase(phase: Phase, name: str) -> None:
    before = reached(phase)
    assert before.phase is phase
    after = ALLOWED.get((phase, name))
    if after is None:
        with pytest.raises(Rejected, match=f"whose repair is {phase}"):
            follow(before, RECORDS[name])
        with pytest.raises(CannotApply, match="contradict"):
            standing_of([*(RECORDS[one] for one in REACHED[phase]), RECORDS[name]])
        return
    found = follow(before, RECORDS[name])
    assert found.phase is after
    assert (found.plan is not None) == (after in (Phase.PREPARED, Phase.ACTIVATED))


def test_what_was_applied_is_not_applied_again() -> None:
    ended = standing_of(RECORDS[name] for name in ("prepare", "activate", "apply"))
    assert ended == Standing()
    for name in ("activate", "apply", "withdraw"):
        with pytest.raises(Rejected):
            follow(ended, RECORDS[name])


def test_a_zombie_stays_one_until_it_goes_elsewhere() -> None:
    parked = standing_of([RECORDS["diverge"]])
    assert parked.diverged == RECORDS["diverge"]
    assert standing_of([RECORDS["diverge"], RECORDS["prepare"], RECORDS["withdraw"]]).diverged is not None
    assert standing_of([RECORDS["diverge"], RECORDS["migrate"]]).diverged is None


def test_only_the_attempt_that_was_prepared_last_goes_on() -> None:
    prepared = reached(Phase.PREPARED)
    for record in (Activated("another"), Withdrawn("another")):
        with pytest.raises(Rejected, match="is not the one that was prepared"):
            follow(prepared, record)
    assert prepared.attempt == PLAN.attempt and Standing().attempt == ""


def test_where_a_node_was_brought_to_is_known_until_a_repair() -> None:
    moved = standing_of([RECORDS["migrate"], RECORDS["apply"]])
    assert moved.phase is Phase.IDLE and moved.move == RECORDS["migrate"]
    repaired = standing_of([RECORDS[name] for name in ("migrate", "apply", "prepare", "activate", "apply")])
    assert repaired.move is None
    kept = standing_of([RECORDS[name] for name in ("migrate", "apply", "prepare", "withdraw")])
    assert kept.move == RECORDS["migrate"]


@pytest.mark.parametrize("name", [*RECORDS])
def test_records_are_read_as_they_were_written(name: str) -> None:
    assert decode_record(encode(RECORDS[name])) == RECORDS[name]
