"""Planted bugs are found: each is looked for from the seed that last found it on.

`planted_seeds.json` is a table of the first seed that found each bug: `suite`, of those that the tests look
for, and `hunt`, of those that mostly need many seeds and are left to `lockstep sim planted`. A change of the
product moves the runs of all seeds, so a bug may need a few more; when a whole row of seeds misses it, a
checker or a fault has gone blind.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.outcomes import Failed

from lockstep.sim import runner
from lockstep.sim.mutants import DIRECTED, REGISTRY
from lockstep.sim.runner import noticed_by
from lockstep.sim.scenarios import SCENARIOS
from lockstep.sim.seed_result import SeedResult
from tests.node import (
    test_batches,
    test_causal,
    test_failed_work,
    test_hints,
    test_management_truncation,
    test_old_decisions,
    test_other_rings,
    test_purging,
    test_recovery,
    test_ring_submissions,
    test_stamps,
    test_submissions,
    test_told_progress,
    test_tracked,
    test_tracked_cohorts,
    test_tracked_migration,
    test_tracked_repairs,
    test_tracked_restores,
    test_tracked_statements,
    test_tracked_views,
    test_tracked_witnesses,
    test_upgrade,
    test_witness_decisions,
)
from tests.node import test_views as test_node_views
from tests.recovery import test_plan
from tests.replication import test_expired_requests, test_fences, test_streaming, test_view_updates
from tests.server import test_ballots_move
from tests.topology.tablets import test_old_guards

#: The test that brings each of the directed bugs about, and must fail with it.
BROUGHT_ABOUT: dict[str, Callable[[], object]] = {
    "ballots_not_moved": test_ballots_move.test_what_was_accepted_outlives_its_replicas,
    "past_finished": test_old_decisions.leave_undecided_what_is_deleted_and_purged,
    "past_voided": test_old_decisions.lock_what_one_replica_alone_knows_to_be_locked,
    "reserved_forgotten": test_old_decisions.lose_power_behind_a_promise,
    "view_not_logged": test_node_views.lose_power_before_view_updates_are_sent,
    "view_write_not_completed": test_node_views.lose_a_coordinator_that_left_no_hint,
    "view_dead_for_pairs": test_node_views.move_a_row_while_a_replica_is_away,
    "view_late_value_ignored": test_view_updates.tell_of_a_value_that_comes_late,
    "guards_ignored": (
        test_failed_work.test_an_effect_that_is_slow_holds_the_barrier_behind_its_session_and_is_named
    ),
    "position_without_session": test_streaming.test_a_stream_under_another_session_begins_anew,
    "sources_not_drained": test_streaming.test_the_source_drains_older_writes_before_its_snapshot,
    "fence_checked_once": (
        test_fences.test_scenario_11_a_write_is_refused_after_it_was_executed_when_the_fence_passed_it_meanwhile
    ),
    "purge_in_sessions": test_purging.hold_by_a_session,
    "deletions_dated_by_the_clock": test_purging.delete_once_the_clock_was_set_back,
    "repair_by_the_drivers_clock": test_purging.repair_by_a_driver_that_is_ahead,
    "kept_by_ones_own_clock": test_purging.repair_while_a_clock_was_ahead,
    "hints_of_former_replicas_dropped": test_hints.remove_the_only_one_that_has_a_hint,
    "batch_log_waits_for_the_first": test_batches.write_batches_while_one_node_is_silent,
    "refusal_forgotten": test_submissions.refuse_once_and_for_all,
    "stamps_unsynced": test_stamps.test_a_jump_ahead_waits_for_the_disk,
    "expired_after_waiting": functools.partial(
        test_expired_requests.test_what_nobody_waits_for_once_the_metadata_is_there_is_dropped, -0.001, False
    ),
    "hearsay_is_told": test_told_progress.outlive_leaders,
    "tablet_old_guard": (
        test_old_guards.test_work_of_a_tablets_former_session_has_no_effect_under_the_next_one_and_holds_its_barrier
    ),
    "tracked_ids_at_once": test_tracked_migration.read_on_the_way_to_tracked,
    "tracked_end_forgets": test_tracked_migration.end_while_one_is_away,
    "tracked_repair_under_way": test_tracked_repairs.full_repair_under_load,
    "tracked_repair_unsent": test_tracked_repairs.full_repair_of_damage,
    "tracked_repair_blind": test_tracked_repairs.full_repair_of_damage,
    "tracked_restore_by_ids": test_tracked_restores.read_while_one_replica_has_nothing_yet,
    "tracked_restore_emptied_by_ids": functools.partial(
        test_tracked_restores.read_while_one_replica_has_nothing_yet, empty=True
    ),
    "tracked_shown_by_data": (
        test_tracked_statements.test_scenario_28_a_serial_read_brings_what_it_shows_whole
    ),
    "tracked_token_ignored": test_causal.test_what_was_written_is_read_at_one_through_a_replica_that_lacks_it,
    "tracked_named_by_each": functools.partial(
        test_tracked_statements.test_scenario_28_what_is_decided_has_one_id, 3
    ),
    "reset_prepared_acts": (
        test_recovery.test_5_a_conductor_that_cannot_prepare_itself_leaves_every_node_where_it_was
    ),
    "reset_longest_log": test_plan.test_26_freshness_is_term_and_then_epoch,
    "truncation_forgets_let_in": (
        test_management_truncation.test_21_a_command_that_no_member_can_apply_is_taken_out
    ),
    "truncation_keeps_snapshots": functools.partial(
        test_management_truncation.test_21_a_command_inside_a_snapshot_goes_too, (1, 2, 3), 0
    ),
    "ring_one_term": test_ring_submissions.test_a_copy_that_comes_in_a_later_life_or_turn_is_not_judged,
    "ring_marks_unread": (test_other_rings.test_a_coordinator_with_another_ring_of_the_same_epoch_is_refused),
    "upgrade_registers_unasked": (
        test_upgrade.test_a_newcomer_that_asked_nobody_on_the_ring_is_let_in_by_the_group_of_the_log
    ),
    "cohort_not_told": (
        test_tracked_cohorts.test_a_replica_that_is_back_answers_with_data_only_once_it_has_the_cohort
    ),
    "cohort_of_few": test_tracked_cohorts.test_too_few_that_are_there_let_go_of_nothing,
    "tracked_led_again": test_tracked.refuse_a_write_that_comes_again,
    "tracked_view_write_not_kept": test_tracked_views.write_to_one_that_is_cut_off,
    "tracked_view_settled_by_one": test_tracked_views.write_to_one_that_is_cut_off,
    "tracked_view_cohort_rows": test_tracked_views.take_rows_that_move_one_of_its_own,
    "witness_promises_wiped": test_witness_decisions.test_who_changes_its_role_keeps_what_it_promised,
    "witness_promises_left": test_witness_decisions.test_who_comes_gets_what_a_witness_promised,
    "witness_promoted_unstored": (test_tracked_witnesses.test_who_leaves_has_witnesses_become_full_replicas),
    "cohort_purged": test_tracked_cohorts.test_scenario_20_no_tombstone_goes_while_a_cohort_is_not_everywhere,
    "hint_dropped_unmarked": (test_hints.test_a_hint_older_than_gc_grace_is_dropped_and_its_range_is_marked),
}
#: How a test ends that does not find what it looks for, or waits for it in vain.
FAILS = (AssertionError, ValueError, TimeoutError, BaseExceptionGroup, Failed)
TABLES = json.loads((Path(__file__).parent / "planted_seeds.json").read_text())
TABLE = {**TABLES["hunt"], **TABLES["suite"]}
#: How far the test suite looks.
SEEDS_TRIED = 30


def test_every_planted_bug_has_a_row_and_a_scenario() -> None:
    assert sorted(TABLE) == sorted(REGISTRY)
    assert all(planted.scenario in SCENARIOS for planted in REGISTRY.values())


@pytest.mark.parametrize("name", TABLES["suite"])
def test_a_planted_bug_is_found(name: str) -> None:
    found = runner.hunt([name], SEEDS_TRIED, first=TABLE[name])[name]
    assert found is not None, f"{REGISTRY[name].harm}: not found in {SEEDS_TRIED} seeds"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vote_not_durable", "the stored term is behind the stored log"),
        ("vote_for_anyone", "a second vote in term"),
        ("cancel_forgets_lock", "transitions are of operations that run"),
    ],
)
def test_what_the_product_itself_notices_is_told_with_its_words(name: str, said: str) -> None:
    """No checker sees these: an assertion of the product ends the node before they do harm."""
    found = runner.hunt([name], SEEDS_TRIED, first=TABLE[name])[name]
    assert found is not None and f", AssertionError: {said}" in noticed_by(found)


@pytest.mark.parametrize("name", DIRECTED)
def test_a_directed_bug_is_found_by_its_test(name: str) -> None:
    BROUGHT_ABOUT[name]()
    with DIRECTED[name].plant(), pytest.raises(FAILS):
        BROUGHT_ABOUT[name]()


def test_a_plant_is_gone_afterwards() -> None:
    for planted in (*REGISTRY.values(), *DIRECTED.values()):
        with planted.plant():
            pass
    from lockstep.topology import barriers, step

    assert step.evaluate is barriers.evaluate


def outdated(owner: Any, name: str, replacement: Any) -> list[str]:
    """Why the replacement cannot be called as what it replaces."""
    original = getattr(owner, name)
    if not inspect.isroutine(original):
        return []
    new = getattr(replacement, "__func__", replacement)
    taken, found = inspect.signature(original).parameters.values(), []
    for wanted in (taken, [one for one in taken if one.default is one.empty]):
        fixed = [one for one in wanted if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        named = [one.name for one in fixed if one.kind is one.KEYWORD_ONLY]
        try:
            inspect.signature(new).bind(*range(len(fixed) - len(named)), **dict.fromkeys(named))
        except TypeError as error:
            found.append(f"{owner.__name__}.{name}: {error}")
    if inspect.iscoroutinefunction(original) != inspect.iscoroutinefunction(new):
        found.append(f"{owner.__name__}.{name}: only one of the two is awaited")
    return found


def test_a_plant_can_be_called_as_what_it_replaces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a run would fail because the plant is outdated, and the bug would count as found."""
    seen: list[tuple[Any, str, Any]] = []

    def noted(*changes: tuple[Any, str, Any]) -> contextlib.AbstractContextManager[None]:
        seen.extend(changes)
        return contextlib.nullcontext()

    for planted in (*REGISTRY.values(), *DIRECTED.values()):
        monkeypatch.setattr(sys.modules[planted.plant.__module__], "replaced", noted)
    for planted in (*REGISTRY.values(), *DIRECTED.values()):
        planted.plant()
    assert len(seen) >= len(REGISTRY) + len(DIRECTED)
    assert [problem for change in seen for problem in outdated(*change)] == []


def test_a_plant_that_falls_over_itself_has_found_nothing() -> None:
    found = SeedResult(
        scenario="moves",
        seed=1,
        invariant="TASK",
        violation="Traceback (most recent call last):\n"
        '  File "/x/lockstep/node/work/worker.py", line 1, in f\n'
        '  File "/x/lockstep/sim/mutants/data.py", line 2, in serve\n'
        "AttributeError: 'WorkService' object has no attribute '_operation'",
    )
    assert runner.fell_over_itself(found)
    lines = found.violation.splitlines()
    by_product = "\n".join([lines[0], lines[2], lines[1], "AssertionError: bytes miscounted"])
    assert not runner.fell_over_itself(msgspec.structs.replace(found, violation=by_product))
    assert not runner.fell_over_itself(
        msgspec.structs.replace(found, violation="an acknowledged write is gone")
    )


def test_an_outdated_plant_is_noticed() -> None:
    class Product:
        def add(self, one: int, *, other: int = 0) -> None: ...

        async def wait(self) -> None: ...

    assert outdated(Product, "add", lambda self, one, *, other=0: None) == []
    assert outdated(Product, "add", lambda *args, **names: None) == []
    assert outdated(Product, "add", lambda self, *, other=0: None)
    assert outdated(Product, "add", lambda self, one: None)
    assert outdated(Product, "add", lambda self, one, two: None)
    assert outdated(Product, "wait", lambda self: None)
