"""Nodes without tokens: they join and leave at once, replace only their like, and hold nothing."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.voter_choice import eligible
from lockstep.metadata.operations import Stage
from lockstep.metadata.transformations import Initialize, Register
from lockstep.placement.circle import even_tokens, splitting_tokens
from lockstep.topology.invariants import check_endings
from lockstep.topology.kind import moves_nothing
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.step import Propose, Reports, step
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, founder, network, simple, started
from tests.topology.drills import refused, register

FOUR = NodeId(4)


def zero(number: int, dc: str = "dc1", replaces: int = 0) -> Register:
    made = register(number, dc, "r1")
    return msgspec.structs.replace(made, num_tokens=0, replaces=NodeId(replaces))


def coordinated(history: History) -> int:
    """Let the coordinator run until it has nothing to do; how many entries that took."""
    for entries in range(20):
        seen = dict.fromkeys(history.now.directory.present_ids, history.now.epoch)
        decision = step(history.now, Reports(acknowledged=seen))
        if not isinstance(decision, Propose):
            return entries
        before = history.now
        history.submit(decision.transformation)
        assert not check_endings(before, history.now)
    raise AssertionError("it does not end")


def with_zero() -> History:
    history = started([(1,), (200,), (300,)], ("ks", simple(3)))
    history.submit(zero(4))
    history.submit(EnqueueRequest(Bootstrap(FOUR)))
    return history


def test_it_goes_from_join_group0_straight_to_normal_and_holds_nothing() -> None:
    history = with_zero()
    placements = history.now.placements
    begun = step(history.now, Reports())
    assert isinstance(begun, Propose)
    history.submit(begun.transformation)
    (operation,) = history.now.operations
    assert operation.stage is Stage.JOIN_GROUP0 and moves_nothing(operation)
    assert not history.now.transitions.count
    assert coordinated(history) == 1
    node = history.now.directory.by_id[FOUR]
    assert node.state is NodeState.NORMAL and not node.tokens and not node.owns_tokens
    assert history.now.placements == placements
    assert node in eligible(history.now)
    history.now.validate()
    assert history.replayed() == history.now


@pytest.mark.parametrize("kind", [Decommission, Remove])
def test_it_leaves_at_once(kind: type) -> None:
    history = with_zero()
    coordinated(history)
    placements = history.now.placements
    history.submit(EnqueueRequest(kind(FOUR)))
    assert coordinated(history) == 2, "the entry that begins it, and the one that ends it"
    assert history.now.directory.by_id[FOUR].state is NodeState.LEFT
    assert history.now.placements == placements


@pytest.mark.parametrize("kind", [Decommission, Remove])
def test_it_leaves_also_where_owners_of_tokens_are_too_few_already(kind: type) -> None:
    """It has no copies, so no factor is missed by its leaving; only a vote is in the way."""
    history = with_zero()
    coordinated(history)
    history.submit(SetKeyspaces((("ks", simple(5)), ("far", network(dc1=4)))))
    assert "is a voter" in refused(history, PrepareOperation(kind(NodeId(1))))
    assert "4 normal nodes" not in refused(history, PrepareOperation(kind(NodeId(2))))
    history.submit(PrepareOperation(kind(FOUR)))
    assert coordinated(history) == 1
    assert history.now.directory.by_id[FOUR].state is NodeState.LEFT


def test_it_replaces_only_its_like() -> None:
    history = with_zero()
    coordinated(history)
    five = NodeId(5)
    owner = history.tried(zero(5, replaces=1))
    assert owner is not None and "node 1 owns tokens" in owner.message
    with_tokens = history.tried(msgspec.structs.replace(zero(5, replaces=4), num_tokens=1))
    assert with_tokens is not None and "only a node without tokens" in with_tokens.message
    history.submit(zero(5, replaces=4))
    history.submit(EnqueueRequest(Replace(five, FOUR)))
    assert coordinated(history) == 2
    states = {node.id: node.state for node in history.now.directory.nodes}
    assert states[FOUR] is NodeState.LEFT and states[five] is NodeState.NORMAL


def test_replication_factors_count_owners_of_tokens_only() -> None:
    history = with_zero()
    coordinated(history)
    refused = history.tried(PrepareOperation(Decommission(NodeId(2))))
    assert refused is not None and "2 normal nodes would be left" in refused.message
    alone = started([(1,)])
    alone.submit(zero(2))
    alone.submit(EnqueueRequest(Bootstrap(NodeId(2))))
    coordinated(alone)
    last = alone.tried(PrepareOperation(Remove(NodeId(1))))
    assert last is not None and ("owns tokens" in last.message or "voter" in last.message)


def test_a_data_centre_without_tokens_is_none_for_replication() -> None:
    history = started([(1,), (200,)], ("ks", network(dc1=2)))
    history.submit(zero(3, dc="far"))
    assert history.now.directory.data_centers == ("dc1",)


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (PrepareOperation(Bootstrap(FOUR, (5,))), "joined to own no tokens"),
        (PrepareOperation(Bootstrap(NodeId(5))), "a node owns 1 to"),
        (PrepareOperation(Replace(FOUR, NodeId(2))), "node 2 owns tokens, and node 4 joined otherwise"),
    ],
)
def test_tokens_are_as_they_were_announced(asked: PrepareOperation, why: str) -> None:
    history = started([(1,), (200,), (300,)], ("ks", simple(3)))
    history.submit(zero(4))
    history.submit(register(5, "dc1", "r1"))
    refused = history.tried(asked)
    assert refused is not None and why in refused.message


def test_it_cannot_move() -> None:
    history = with_zero()
    coordinated(history)
    refused = history.tried(PrepareOperation(Move(FOUR, (5,))))
    assert refused is not None and "nothing to move" in refused.message


def test_the_first_founder_owns_tokens_and_others_need_not() -> None:
    refused = History().tried(Initialize("c", "n", (founder(1, ()), founder(2, (1,)))))
    assert refused is not None and "the first node of a cluster owns tokens" in refused.message
    history = History()
    history.submit(Initialize("c", "n", (founder(1, (1,)), founder(2, ()))))
    assert [node.is_zero_token for node in history.now.directory.nodes] == [False, True]
    assert even_tokens([2, 0, 1])[1] == ()
    assert len(splitting_tokens([(1, 5), ()], 2)) == 2


def test_a_cancelled_join_of_one_leaves_no_trace() -> None:
    history = with_zero()
    begun = step(history.now, Reports())
    assert isinstance(begun, Propose)
    history.submit(begun.transformation)
    history.submit(CancelOperation(1, "no"))
    coordinated(history)
    assert history.now.directory.by_id[FOUR].state is NodeState.NONE and not history.now.operations
