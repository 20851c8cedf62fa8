"""Which tests show what topology operations promise: a table, and a check that the tests are there.

Read it to find where a promise is tested; a test that is renamed or removed fails here.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

PROMISES: dict[str, tuple[str, ...]] = {
    "disjoint operations run together, overlapping ones name the holder, also at the end of the ring": (
        "topology/test_operations.py::test_disjoint_operations_run_together",
        "topology/test_operations.py::test_overlapping_operations_are_refused_with_the_name_of_the_holder",
        "topology/test_operations.py::test_ranges_that_meet_at_the_end_of_the_ring_conflict",
    ),
    "another coordinator resumes at any point and comes to the same end": (
        "topology/test_step.py::test_a_coordinator_may_be_replaced_at_any_point",
        "node/test_stale_work.py::"
        "test_scenario_14_a_coordinator_lost_behind_any_entry_changes_nothing_and_its_own_writes_fail",
        "topology/test_operations.py::test_a_step_is_taken_once",
        "node/test_request_queue.py::test_queued_requests_outlive_the_leader_and_each_ends_once",
        "sim/test_matrix.py::test_every_stage_of_every_operation_is_struck_at_every_point",
    ),
    "a cancel restores placements, states and locks, and the operation can run again": (
        "topology/test_operations.py::test_a_cancel_restores_everything_and_the_operation_can_run_again",
        "topology/test_kinds.py::test_a_cancel_restores_everything_and_the_operation_can_run_again",
        "topology/test_operations.py::test_once_reads_moved_an_operation_only_goes_forward",
        "topology/test_replication_change.py::test_a_cancel_at_any_point_leads_back_to_the_original",
    ),
    "the streams of a join are timed ahead, published before they count, and no write goes far off them": (
        "topology/test_generations.py::"
        "test_scenario_24_a_join_commits_a_generation_that_is_published_before_it_takes_effect",
        "topology/test_generations.py::test_what_was_superseded_long_ago_is_dropped_by_later_joins",
        "metadata/test_cdc.py::test_which_timestamps_may_be_written",
        "server/test_drivers.py::test_writes_that_no_stream_can_take_are_refused_where_changes_are_captured",
        "node/test_generations.py::test_every_node_knows_the_generation_of_a_join_before_it_takes_effect",
    ),
    "what a cancelled newcomer received is dropped": (
        "node/test_failed_work.py::test_a_cancelled_newcomer_that_lives_drops_what_it_had_received",
    ),
    "at every epoch the ring is covered, a reader was a writer before, and locks are those of operations": (
        "topology/test_histories.py::test_invariants_hold_at_every_epoch_and_replay_is_exact",
        "sim/test_placements.py::test_every_step_of_random_operations_is_what_the_model_says",
    ),
    "any read quorum meets any write quorum of coordinators one step apart": (
        "topology/test_histories.py::test_a_driven_cluster_is_safe_for_coordinators_at_any_epoch",
        "topology/test_planted.py::test_steps_without_barriers_let_stale_coordinators_miss_writes",
        "sim/test_counter_examples.py::test_with_barriers_no_two_coordinators_miss_each_other",
    ),
    "a minority that cannot be reached passes, a majority of one data centre blocks and is named": (
        "topology/test_barriers.py::test_at_factor_three_with_one_change_three_of_four_must_know",
        "topology/test_barriers.py::test_a_majority_of_all_is_not_enough_when_a_data_centre_lacks_its_own",
        "topology/test_barriers.py::test_barriers_equal_trying_every_quorum",
    ),
    "a barrier is let go only as configured, counted and logged; a dead node is never required": (
        "node/test_letting_go.py::"
        "test_a_barrier_is_let_go_once_after_the_configured_time_and_never_without_one",
        "topology/test_guards_and_relaxing.py::"
        "test_a_lost_data_centre_blocks_until_operators_let_it_go_and_then_the_quorum_of_all_counts",
        "topology/test_guards_and_relaxing.py::test_the_dead_node_of_a_remove_or_replace_is_never_required",
    ),
    "a change of replication waits for movements and names them; other schema changes go on": (
        "topology/test_replication_change.py::"
        "test_a_movement_is_named_to_a_change_that_will_not_wait_and_tables_can_still_be_altered",
        "topology/test_replication_change.py::test_two_keyspaces_change_at_once_and_ring_operations_wait",
    ),
    "a voter that leaves is substituted first; a dead addition is waited for and can be cancelled": (
        "node/test_service.py::test_a_voter_that_leaves_is_substituted_first_whoever_dies_meanwhile",
        "node/test_service.py::test_a_dead_addition_is_waited_for_visibly_and_cancel_drops_it",
        "topology/test_queue.py::test_the_leave_of_a_voter_waits_until_another_node_has_its_vote",
    ),
    "operations that are each fine but together break a replication factor are refused": (
        "topology/test_operations.py::test_leaves_that_are_each_fine_but_not_together_are_refused",
        "topology/test_kinds.py::test_operations_that_are_each_fine_but_not_together_are_refused",
    ),
    "joins asked for at once all end normal; joins go before leaves": (
        "topology/test_queue.py::test_scenario_01_three_joins_that_are_requested_at_once_all_end_normal",
        "topology/test_queue.py::test_joins_go_before_leaves_and_first_come_first_served_within",
        "node/test_request_queue.py::test_three_nodes_that_start_at_once_all_become_normal",
    ),
    "a queued request that is cancelled leaves the node as it is; a running one goes back": (
        "topology/test_queue.py::test_a_queued_request_that_is_cancelled_leaves_no_trace_but_its_record",
        "topology/test_queue.py::test_a_running_request_that_is_cancelled_rolls_its_operation_back",
        "topology/test_queue.py::test_a_request_past_its_point_of_return_cannot_be_cancelled",
    ),
    "a request that can never run fails with its reason, and others go on": (
        "topology/test_queue.py::test_a_request_that_can_never_run_fails_with_the_reason",
        "topology/test_precedence.py::test_requests_that_an_exclusion_holds_up_do_not_block_others",
    ),
    "nobody waits for ever, nothing that runs gives way, and a long queue costs nothing": (
        "topology/test_precedence.py::"
        "test_what_was_passed_too_often_is_passed_no_more_but_by_what_mends_a_dead_node",
        "topology/test_precedence.py::test_every_kind_has_its_place_and_nothing_that_runs_gives_way",
        "topology/test_precedence.py::test_a_thousand_queued_requests_do_not_slow_the_step",
    ),
    "who is written and read in each stage is what its row says": (
        "topology/test_stages.py::test_every_kind_has_a_sound_table",
        "topology/test_operations.py::test_a_bootstrap_and_the_leave_of_the_same_node_step_by_step",
    ),
    "a coordinator behind the fence is refused before and after execution": (
        "replication/test_fences.py::"
        "test_scenario_11_a_write_of_a_coordinator_behind_the_fence_is_refused_before_it_is_executed",
        "replication/test_fences.py::"
        "test_scenario_11_a_write_is_refused_after_it_was_executed_when_the_fence_passed_it_meanwhile",
        "replication/test_fences.py::test_a_read_is_refused_before_and_after_it_was_executed",
    ),
    "an unfinished older request holds the barrier": (
        "replication/test_fences.py::test_scenario_12_a_request_that_is_not_finished_holds_the_drain_of_the_fence",
        "topology/test_barriers.py::test_sources_must_have_finished_older_requests",
    ),
    "work of a closed session has no effect, and what is under way holds the next barrier": (
        "replication/test_session_guards.py::test_no_guard_is_given_once_the_session_is_closed",
        "node/test_stale_work.py::"
        "test_scenario_13_a_copy_that_hangs_through_a_cancel_and_a_retry_brings_nothing_deleted_back",
        "node/test_stale_work.py::test_it_would_if_nobody_looked_at_the_session",
        "replication/test_streaming.py::"
        "test_a_late_stream_of_an_earlier_attempt_cannot_bring_deleted_data_back",
        "node/test_work.py::test_an_order_of_a_stage_that_has_passed_has_no_effect",
        "node/test_failed_work.py::"
        "test_an_effect_that_is_slow_holds_the_barrier_behind_its_session_and_is_named",
    ),
    "a copy of an entry of an earlier leader does nothing": (
        "topology/test_operations.py::test_a_step_is_taken_once",
        "topology/test_replication_change.py::test_an_old_copy_of_an_entry_does_not_advance_a_later_step",
    ),
    "work that cannot succeed ends the operation as failed, the network never does": (
        "node/test_failed_work.py::test_scenario_15_a_full_disk_of_the_newcomer_ends_its_join_as_failed",
        "node/test_failed_work.py::"
        "test_what_fails_again_and_again_is_given_up_and_what_is_unreachable_is_not",
        "node/test_failed_work.py::test_unreachable_peers_are_asked_for_ever",
        "topology/test_queue.py::test_a_request_whose_work_fails_ends_as_failed",
    ),
    "what a forced removal left behind is wiped, marked and avoided, whatever crashes": (
        "node/test_work.py::test_a_crash_between_the_entry_and_its_wipe_leaves_nothing_behind",
        "topology/test_force_remove.py::test_who_lacks_writes_is_no_source_while_enough_others_have_them",
        "topology/test_force_remove.py::test_what_two_in_a_row_take_away_is_counted_together",
    ),
    "a node that is shut out is refused by all, counts for nothing and gets no ranges": (
        "node/test_request_queue.py::"
        "test_an_excluded_node_is_refused_by_all_until_it_is_included_after_catching_up",
        "topology/test_queue.py::test_an_excluded_node_counts_as_having_seen_nothing",
        "topology/test_precedence.py::test_an_excluded_node_gets_no_ranges_and_whoever_would_give_them_waits",
    ),
    "what blocks is visible with node, epoch, reason and time": (
        "node/test_membership.py::test_what_blocks_an_operation_is_visible_with_node_reason_and_time",
        "topology/test_barriers.py::test_an_older_acknowledgement_is_named_with_its_epoch",
        "topology/test_guards_and_relaxing.py::"
        "test_a_barrier_names_the_node_that_still_holds_guards_of_the_closed_session",
    ),
}


@cache
def named_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("promise", list(PROMISES))
def test_every_promise_has_its_tests(promise: str) -> None:
    for named in PROMISES[promise]:
        file, _, test = named.partition("::")
        assert test in named_in(file), named
