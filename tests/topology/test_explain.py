"""What people are told of a running operation: its way, who has seen it, and who works."""

from __future__ import annotations

import pytest

from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.operations import Stage
from lockstep.topology.kinds import decommission
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.stages import Work
from lockstep.topology.story import PathStage, Presence, can_cancel, path, presence, workers
from lockstep.topology.transformations import AdvanceOperation, CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, simple, started
from tests.topology.drills import run_to

A, B, C, D = (NodeId(number) for number in (1, 2, 3, 4))


def leaving() -> History:
    """D leaves A, B and C, which have all copies then."""
    history = started([(100,), (200,), (300,), (400,)], ("ks", simple(3)))
    history.submit(PrepareOperation(Decommission(D)))
    return history


def stages(found: tuple[PathStage, ...]) -> list[tuple[str, str, int]]:
    return [(str(one.stage), one.state, one.epoch) for one in found]


def test_the_way_of_an_operation_is_what_was_what_is_and_what_comes() -> None:
    history = leaving()
    first = history.now.epoch
    assert stages(path(history.now.operations[0])) == [
        ("prepared", "current", first),
        ("write_both_read_old", "to come", 0),
        ("write_both_read_new", "to come", 0),
        ("left_token_ring", "to come", 0),
        ("cleanup", "to come", 0),
    ]
    run_to(history, 1, Stage.LEFT_TOKEN_RING)
    assert stages(path(history.now.operations[0])) == [
        ("prepared", "done", first),
        ("write_both_read_old", "done", first + 1),
        ("write_both_read_new", "done", first + 2),
        ("left_token_ring", "current", first + 3),
        ("cleanup", "to come", 0),
    ]
    history.submit(AdvanceOperation(1, Stage.LEFT_TOKEN_RING))
    assert stages(path(history.now.operations[0]))[-1] == ("cleanup", "current", first + 4)


def test_the_way_of_one_that_is_taken_back_ends_where_it_is() -> None:
    history = leaving()
    first = history.now.epoch
    history.submit(CancelOperation(1))
    operation = history.now.operations[0]
    assert stages(path(operation)) == [
        ("prepared", "done", first),
        ("rollback_to_normal", "current", first + 1),
    ]
    assert not can_cancel(operation)


@pytest.mark.parametrize("at", range(5))
def test_whoever_has_applied_the_epoch_has_seen_the_stage(at: int) -> None:
    history = leaving()
    run_to(history, 1, decommission.KIND.stages[at].stage)
    operation = history.now.operations[0]
    epoch = operation.stage_epoch
    known = {A: epoch, B: epoch + 5, C: epoch - 1}
    found = presence(operation, history.now, known, ())
    assert found.epoch == epoch and found.seen == (A, B)
    # The one that leaves is asked to the end: it gives away what it keeps for others last.
    assert found.unseen == (C, D)
    history.submit(ExcludeNodes((B,), "late"))
    shut_out = presence(operation, history.now, known, ())
    assert B in shut_out.unseen and B not in shut_out.seen, "nothing that it says counts"
    assert presence(operation, history.now, {}, ()).seen == ()


def test_a_node_that_is_presumed_dead_is_asked_nothing() -> None:
    history = started([(100,), (200,), (300,), (400,)], ("ks", simple(3)))
    history.submit(PrepareOperation(Remove(D)))
    operation = history.now.operations[0]
    everyone = dict.fromkeys((A, B, C, D), operation.stage_epoch)
    assert presence(operation, history.now, everyone, (D,)) == Presence(operation.stage_epoch, (A, B, C), ())


def test_who_works_and_by_which_key_it_is_reported() -> None:
    history = leaving()
    pending = sorted({node for t in history.now.transitions.of(1) for node in t.gained})
    for stage, work, nodes in (
        (Stage.PREPARED, Work.WIPE, pending),
        (Stage.WRITE_BOTH_READ_OLD, Work.STREAM, pending),
        (Stage.WRITE_BOTH_READ_NEW, None, []),
        (Stage.CLEANUP, Work.CLEANUP, [D]),
    ):
        operation = run_to(history, 1, stage)
        session = f"operation-1-{stage}"
        wanted = tuple((node, work, (1, session, node)) for node in nodes)
        assert workers(operation, history.now, ()) == wanted, stage
