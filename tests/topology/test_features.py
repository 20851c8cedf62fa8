"""Cluster features: enabled when all support them and have seen it, never before, never taken back."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.directory import (
    BASE_FEATURES,
    FEATURE_STATE,
    FEATURES,
    FILE_STREAMING,
    SUPPORTED,
    ZERO_TOKEN_NODES,
)
from lockstep.metadata.features import (
    EnableFeatures,
    ExcludeNodes,
    due,
    refuse_lacking,
    supported_by_all,
    unsupporting,
)
from lockstep.metadata.groups.membership import ServiceWish, SetService
from lockstep.metadata.transformations import Initialize, UpdateNode
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.replication import ReplicationChange
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.step import Idle, Propose, Reports, Wait, step
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import PreconditionError, Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder, simple, started
from tests.topology.drills import register

OLD = tuple(name for name in BASE_FEATURES if name != FILE_STREAMING)
ALL = NodeId(1), NodeId(2), NodeId(3)


def mixed() -> History:
    """Nodes 1 and 2 are new, node 3 is old."""
    history = History()
    old = msgspec.structs.replace(founder(3, (300,)), features=OLD)
    history.submit(Initialize("c", "n", (founder(1, (1,)), founder(2, (200,)), old)))
    return history


def upgraded(history: History, node: int = 3) -> History:
    info = history.now.directory.by_id[NodeId(node)]
    history.submit(UpdateNode(info.id, info.address, 7000, 9042, 7080, "2"))
    return history


def seen(epoch: int, *nodes: int) -> Reports:
    return Reports(acknowledged=dict.fromkeys(map(NodeId, nodes), epoch))


def test_founders_enable_what_all_of_them_support() -> None:
    assert mixed().now.features_enabled == OLD
    assert started([(1,), (2,)]).now.features_enabled == BASE_FEATURES == SUPPORTED == tuple(FEATURES)


def test_scenario_27_a_feature_is_enabled_once_all_support_it_and_all_have_seen_that() -> None:
    history = mixed()
    assert not due(history.now) and step(history.now, seen(1, *ALL)) == Idle()
    upgraded(history)
    announced = history.now.epoch
    assert due(history.now) == supported_by_all(history.now) == (FILE_STREAMING,)
    waits = step(history.now, seen(announced, 1, 3))
    assert isinstance(waits, Wait) and waits.epoch == announced
    assert waits.blockers == ((NodeId(2), "last seen epoch 0, needs 2 (to enable file-streaming)"),)
    decided = step(history.now, seen(announced, *ALL))
    assert decided == Propose(EnableFeatures((FILE_STREAMING,)), 0)
    history.submit(decided.transformation)
    assert history.now.features_enabled == BASE_FEATURES
    assert step(history.now, seen(announced + 1, *ALL)) == Idle()
    assert history.replayed() == history.now


def test_whoever_is_shut_out_holds_a_feature_up() -> None:
    history = upgraded(mixed())
    history.submit(ExcludeNodes((NodeId(2),), "suspect"))
    waits = step(history.now, seen(history.now.epoch, *ALL))
    assert isinstance(waits, Wait) and [node for node, _ in waits.blockers] == [2]


def test_a_node_that_waits_to_join_and_lacks_a_feature_holds_it_up_until_it_is_given_up() -> None:
    history = mixed()
    history.submit(msgspec.structs.replace(register(4, "dc1", "r1"), features=OLD))
    upgraded(history)
    assert unsupporting(history.now.directory, FILE_STREAMING) == (4,) and not due(history.now)
    refused = history.tried(EnableFeatures((FILE_STREAMING,)))
    assert refused is not None and "not supported by nodes 4" in refused.message
    history.submit(ForceRemove(NodeId(4)))
    assert due(history.now) == (FILE_STREAMING,)


def test_nothing_is_enabled_while_an_operation_runs_or_the_metadata_is_frozen() -> None:
    history = started([(1,), (200,), (300,)], ("ks", simple(2)))
    history.values[-1] = history.now.changed(
        FEATURE_STATE.set(msgspec.structs.replace(history.now.features, enabled=OLD))
    )
    history.tip.rebuild(history.now, ())
    assert due(history.now) == (FILE_STREAMING,)
    before = history.now
    history.submit(PrepareOperation(Move(NodeId(2), (250,))))
    assert not due(history.now)
    frozen = SetService(ServiceWish.FREEZE, text="night").apply(before, before.epoch + 1)
    assert not due(frozen)


@pytest.mark.parametrize(
    ("names", "why"),
    [
        ((), "once each"),
        ((FILE_STREAMING, FILE_STREAMING), "once each"),
        (("z", "a"), "in order"),
        ((ZERO_TOKEN_NODES,), "enabled already"),
        (("time-travel",), "not supported by nodes 1, 2, 3"),
    ],
)
def test_what_cannot_be_enabled(names: tuple[str, ...], why: str) -> None:
    refused = mixed().tried(EnableFeatures(names))
    assert refused is not None and why in refused.message


def test_a_node_cannot_take_back_what_is_enabled() -> None:
    history = mixed()
    info = history.now.directory.by_id[NodeId(3)]
    less = UpdateNode(info.id, info.address, 7000, 9042, 7080, "0", features=OLD[1:])
    refused = history.tried(less)
    assert refused is not None and "does not support any more" in refused.message
    # What is not enabled yet may be taken back, and then it is not enabled.
    upgraded(history)
    history.submit(UpdateNode(info.id, info.address, 7000, 9042, 7080, "1", features=OLD))
    assert not due(history.now)


def test_what_needs_a_feature_is_refused_before_it_is_enabled() -> None:
    history = started([(1,), (200,)], ("ks", simple(1)))
    history.values[-1] = history.now.changed(
        FEATURE_STATE.set(msgspec.structs.replace(history.now.features, enabled=()))
    )
    asked = EnqueueRequest(ReplicationChange("ks", simple(2)))
    with pytest.raises(Rejected, match="replication-change is not enabled yet"):
        asked.apply(history.now, history.now.epoch + 1)


def test_scenario_27_a_node_that_lacks_an_enabled_feature_does_not_start() -> None:
    refuse_lacking(OLD, BASE_FEATURES)
    with pytest.raises(PreconditionError, match=FILE_STREAMING):
        refuse_lacking(BASE_FEATURES, OLD)
