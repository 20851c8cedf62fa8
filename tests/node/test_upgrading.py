"""What is asked and decided on the way from the ring to a log, without nodes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from lockstep.metadata.directory import METADATA_LOG
from lockstep.metadata.groups.ringed import RINGED, UpgradeState, Upgrading
from lockstep.metadata.groups.upgrade_entries import AbortUpgrade, BeginUpgrade, BuildLog
from lockstep.metadata.log.registry import Transformation
from lockstep.metadata.transformations import SetExtension
from lockstep.recovery.upgrading import (
    UPGRADE_AGREE_MS,
    Await,
    Described,
    Step,
    asked,
    described,
    first_voters,
    next_step,
)
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.node.test_ring_carrying import History

FEATURES = (METADATA_LOG,)


def node(*numbers: int) -> tuple[NodeId, ...]:
    return tuple(map(NodeId, numbers))


def begun(*ignored: int, count: int = 4) -> tuple[History, Upgrading]:
    """A ring of four whose upgrade has begun."""
    history = History()
    history.add(BeginUpgrade(NodeId(2), "a test", node(*ignored)))
    running = history.value.parts[RINGED].upgrading
    assert running is not None
    return history, running


def answers(history: History, *numbers: int) -> list[Described]:
    return [described(history.value, NodeId(number), FEATURES) for number in numbers]


def decided(
    history: History, running: Upgrading, said: list[Described], silent: dict[int, str], waited_ms: int = 0
) -> Step:
    return next_step(history.value, running, said, silent, waited_ms, 1000)


def test_all_that_are_asked_say_the_same_and_the_log_is_built_by_one_entry() -> None:
    history, running = begun()
    assert history.value.upgrade_state is UpgradeState.BUILD_COORDINATOR_STATE
    assert asked(history.value, running) == node(1, 2, 3, 4)
    step = decided(history, running, answers(history, 1, 2, 3, 4), {})
    assert step == BuildLog(running.begun_epoch, node(1, 2, 3), 1000)
    before = history.value
    history.add(step)
    after = history.value
    assert after.upgrade_state is UpgradeState.DONE and after.voters == node(1, 2, 3)
    assert after.parts[RINGED].built_epoch == after.epoch == before.epoch + 1
    assert after.directory is before.directory and after.schema is before.schema
    assert len(after.generations) == len(before.generations) + 1 and after.generations[-1].is_published


@pytest.mark.parametrize("name", ["hash", "directory", "tokens", "schema"])
def test_a_node_that_has_something_else_ends_it_for_all_and_is_named(name: str) -> None:
    history, running = begun()
    said = answers(history, 1, 2, 3, 4)
    said[2] = msgspec.structs.replace(said[2], **{name: b"other"})
    step = decided(history, running, said, {})
    assert isinstance(step, AbortUpgrade) and "nodes 3 have another" in step.reason
    history.add(step)
    assert history.value.upgrade_state is UpgradeState.NOT_UPGRADED
    assert history.value.parts[RINGED].gave_up == step.reason
    # Nothing is left of it: it can begin again, and other things change.
    history.add(SetExtension("x", b"1"))
    history.add(BeginUpgrade(NodeId(1)))


def test_who_is_silent_or_behind_is_waited_for_and_then_it_is_given_up() -> None:
    history, running = begun()
    said = answers(history, 1, 2, 4)
    said[1] = msgspec.structs.replace(said[1], epoch=1, hash=b"older")
    step = decided(history, running, said, {3: "it cannot be reached"})
    assert isinstance(step, Await) and "node 3: it cannot be reached" in step.why and "nodes 2" in step.why
    late = decided(history, running, said, {3: "it cannot be reached"}, UPGRADE_AGREE_MS)
    assert isinstance(late, AbortUpgrade) and step.why in late.reason


def test_who_is_ignored_is_not_asked_has_no_vote_and_is_shut_out() -> None:
    history, running = begun(1)
    assert asked(history.value, running) == node(2, 3, 4)
    step = decided(history, running, answers(history, 2, 3, 4), {})
    assert isinstance(step, BuildLog) and step.voters == first_voters(history.value, running) == node(2, 3, 4)
    history.add(step)
    assert [one.node for one in history.value.excluded] == [1]


def test_a_node_of_another_version_ends_it() -> None:
    history, running = begun()
    said = answers(history, 1, 2, 3, 4)
    said[3] = msgspec.structs.replace(said[3], features=())
    step = decided(history, running, said, {})
    assert isinstance(step, AbortUpgrade) and "nodes 4 do not support metadata-log" in step.reason


def _running(history: History) -> None:
    history.add(BeginUpgrade(NodeId(1)))


def _asked_for_more(history: History) -> None:
    history.add(EnqueueRequest(Decommission(NodeId(4)), actor="a test"))


def _nothing(_history: History) -> None:
    pass


@pytest.mark.parametrize(
    ("prepare", "wanted", "why"),
    [
        (_running, BeginUpgrade(NodeId(3)), "is on its way to a log"),
        (_running, SetExtension("x", b"1"), "is on its way to a log"),
        (_running, BuildLog(2, node(1, 2), 0), "an odd number of voters"),
        (_running, BuildLog(2, node(9), 0), "cannot vote"),
        (_running, BuildLog(1, node(1), 0), "no upgrade that began at epoch 1"),
        (_running, AbortUpgrade(1), "no upgrade that began at epoch 1"),
        (_asked_for_more, BeginUpgrade(NodeId(1)), "waits for what is under way"),
        (_nothing, BeginUpgrade(NodeId(1), "", node(3, 4)), "most members"),
        (_nothing, BeginUpgrade(NodeId(1), "", node(1)), "one of those to ignore"),
        (_nothing, BeginUpgrade(NodeId(1), "", node(9)), "there are no nodes 9"),
        (_nothing, BuildLog(1, node(1), 0), "no upgrade that began"),
    ],
)
def test_what_is_refused(prepare: Callable[[History], None], wanted: Transformation, why: str) -> None:
    history = History()
    prepare(history)
    with pytest.raises(Rejected, match=why):
        history.judged(wanted)


def test_where_all_must_accept_nobody_is_ignored() -> None:
    with pytest.raises(Rejected, match="none can be ignored"):
        History("unanimous").judged(BeginUpgrade(NodeId(1), "", node(4)))
