"""A kind that only this module knows: one module and its place in a union are all that a kind takes."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.operations import About, Body, Stage
from lockstep.metadata.requests import RequestState
from lockstep.metadata.transformations import KINDS
from lockstep.topology.invariants import violations
from lockstep.topology.kind import Drill, Kind, Ring
from lockstep.topology.kinds.registry import UNIONS
from lockstep.topology.kinds.ring import refuse_unusable, ring_kind
from lockstep.topology.preview import preview
from lockstep.topology.requests import KINDS as REQUEST_KINDS
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.stages import RANGE_MOVEMENT
from lockstep.topology.step import Propose, Reports, step
from lockstep.topology.story import headline, of_epoch
from lockstep.topology.transformations import KINDS as TOPOLOGY_KINDS
from lockstep.topology.transformations import CancelOperation, PrepareOperation
from lockstep.values.errors import CorruptFile, Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, SetKeyspaces, simple, started
from tests.metadata.stored import from_stored, stored
from tests.topology.drills import run_out


class Shift(msgspec.Struct, frozen=True, array_like=True, tag="shift"):
    """`node` is to own its tokens moved `by` so many."""

    node: NodeId
    by: int

    @property
    def about(self) -> About:
        return About(KIND.name, KIND.precedence, (self.node,))

    @property
    def kind(self) -> Kind:
        return KIND


def _tokens(cluster: ClusterMetadata, node: NodeInfo, asked: Shift) -> tuple[int, ...]:
    if asked.by == 0:
        raise Rejected(f"node {node.id} is shifted by nothing")
    found = tuple(token + asked.by for token in node.tokens)
    refuse_unusable(cluster, cluster.directory.with_node(msgspec.structs.replace(node, tokens=())), found)
    return found


KIND = ring_kind(
    Shift,
    8,
    "it is but a test",
    RANGE_MOVEMENT,
    Ring(
        needs=NodeState.NORMAL,
        becomes=NodeState.NORMAL,
        tokens=_tokens,
        surely=lambda directory, asked: (asked.node, ()),
    ),
    Drill("shift"),
)
REGISTRY = Registry(
    KINDS,
    TOPOLOGY_KINDS,
    REQUEST_KINDS,
    {1000: SetKeyspaces},
    unions={Body: UNIONS[Body] | Shift},
)


def four() -> History:
    history = History(REGISTRY)
    like = started([(at * 100,) for at in range(4)], ("ks", simple(2)))
    for entry in like.entries:
        history.submit(REGISTRY.decode(entry.kind, entry.body))
    return history


def proceed(history: History) -> None:
    decision = step(history.now, Reports())
    assert isinstance(decision, Propose)
    history.submit(decision.transformation)


def test_it_waits_runs_and_ends_as_every_kind_does() -> None:
    history = four()
    asked = EnqueueRequest(Shift(NodeId(3), 20), actor="test")
    history.submit(asked)
    assert history.now.requests.queue[0].title() == "request 1 (shift of node 3)"
    proceed(history)
    (operation,) = history.now.operations
    assert operation.tokens == (220,) and history.now.transitions.of(operation.id)
    assert headline(operation) == "operation 1 (shift of node 3): prepared since epoch 4, step 1 of 5"
    assert from_stored(stored(history.now), REGISTRY.parts) == history.now
    with pytest.raises(CorruptFile, match="cannot be read"):
        from_stored(stored(history.now))
    run_out(history, operation.id)
    assert history.now.directory.by_id[NodeId(3)].tokens == (220,)
    assert history.now.requests.ended[0].state is RequestState.DONE
    pairs = list(zip(history.values, history.values[1:], strict=False))
    assert [line for before, after in pairs for line in violations(before, after)] == []
    told = [line for before, after in pairs for line in of_epoch(before, after)]
    assert any("request 1 (shift of node 3): is done" in line for line in told)


def test_it_is_refused_planned_and_taken_back_as_every_kind_is() -> None:
    history = four()
    assert history.tried(PrepareOperation(Shift(NodeId(9), 1))) is not None
    refusal = history.tried(PrepareOperation(Shift(NodeId(3), 0)))
    assert refusal is not None and refusal.message == "node 3 is shifted by nothing"
    plan = preview(history.now, PrepareOperation(Shift(NodeId(3), 20)))
    assert plan.point_of_no_return is Stage.WRITE_BOTH_READ_NEW and plan.tasks
    before = history.now.directory.owners
    history.submit(PrepareOperation(Shift(NodeId(3), 20)))
    history.submit(CancelOperation(1))
    run_out(history, 1)
    assert history.now.directory.owners == before
    assert history.now.requests.ended[0].state is RequestState.CANCELLED
