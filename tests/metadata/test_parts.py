"""What parts of the value say of themselves: nodes and their directory, operations, locks, transitions."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from lockstep.metadata.directory import Directory, NodeInfo, NodeState
from lockstep.metadata.operations import Body, Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.placement.circle import Circle
from lockstep.schema.model import Replication
from lockstep.topology.kind import moves_nothing
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.move import Move
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.kinds.replication import Walk, target_in
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import simple


def info(number: int, state: NodeState = NodeState.NORMAL, **more: Any) -> NodeInfo:
    given = {"address": f"10.0.0.{number}", "dc": "dc1", "tokens": (number * 10,), **more}
    if state in (NodeState.NONE, NodeState.LEFT):
        given["tokens"] = ()
    dc, address, tokens = given.pop("dc"), given.pop("address"), given.pop("tokens")
    return NodeInfo(
        NodeId(number), f"host-{number}", address, 7000, 9042, 7080, dc, "r1", state, tokens, **given
    )


#: 5 was admitted to replace 2 at its address; 3 has left the address that 4 has now; 6 owns no tokens.
NODES = Directory(
    (
        info(1),
        info(2),
        info(3, NodeState.LEFT, dc="dc9"),
        info(4, address="10.0.0.3", dc="dc2"),
        info(5, NodeState.REPLACING, address="10.0.0.2", tokens=(), replaces=NodeId(2)),
        info(6, tokens=(), num_tokens=0, dc="dc3"),
    ),
    7,
)


def test_a_directory_finds_nodes_by_what_they_are() -> None:
    NODES.validate()
    assert [NODES.by_address[f"10.0.0.{n}", 7000].id for n in (1, 2, 3, 6)] == [1, 5, 4, 6]
    assert NODES.shadowed == {2} and NODES.present_ids == (1, 2, 4, 5, 6)
    assert NODES.data_centers == ("dc1", "dc2"), "3 has left, 6 stores nothing"
    assert NODES.owners == tuple(NODES.nodes[at].owner for at in (0, 1, 3))
    assert [node.id for node in NODES.in_state(NodeState.NORMAL)] == [1, 2, 4, 6]
    assert NODES.node(NodeId(4)) is NODES.nodes[3] and NODES.node(NodeId(9)) is None
    assert NODES.dc_by_id[NodeId(6)] == "dc3" and NODES.by_host_id["host-3"].id == 3
    assert [node.is_zero_token for node in NODES.nodes] == [False] * 5 + [True]


def test_the_circle_that_is_carried_on_is_the_one_of_the_tokens_that_are_owned() -> None:
    for seed in range(30):
        draw = random.Random(seed)
        directory = Directory()
        for _ in range(40):
            if draw.random() < 0.4 or not directory.nodes:
                number = directory.next_node_id
            else:
                number = draw.choice(directory.nodes).id
            state = draw.choice((NodeState.NORMAL, NodeState.NONE, NodeState.LEFT, NodeState.REMOVING))
            tokens = tuple(sorted(number * 100 + at for at in draw.sample(range(100), draw.randint(0, 5))))
            directory = directory.with_node(info(number, state, tokens=tokens))
            if draw.random() < 0.7:
                fresh = Circle.of(directory.owners)
                assert list(directory.circle.tokens) == list(fresh.tokens)
                for token in fresh.tokens:
                    assert directory.circle.owner_of(token) == fresh.owner_of(token)


def test_node_ids_are_given_densely() -> None:
    grown = NODES.with_node(info(7))
    assert grown.next_node_id == 8 and [node.id for node in grown.nodes] == list(range(1, 8))
    with pytest.raises(AssertionError, match="dense"):
        NODES.with_node(info(8))
    changed = NODES.with_node(info(4, address="10.0.0.4"))
    assert changed.next_node_id == 7 and changed.nodes[3].address == "10.0.0.4"
    assert [one is other for one, other in zip(changed.nodes, NODES.nodes, strict=True)].count(False) == 1


def operation(body: Body, tokens: tuple[int, ...] = (5,)) -> Operation:
    return Operation(7, body, tokens, Stage.PREPARED, 3, ())


FOUR, TWO = NodeId(4), NodeId(2)
PATH = (simple(1), simple(2), simple(3))


@pytest.mark.parametrize(
    ("one", "nodes", "departing", "dead", "nothing", "title"),
    [
        (operation(Bootstrap(FOUR)), (4,), 0, 0, False, "operation 7 (bootstrap of node 4)"),
        (operation(Bootstrap(FOUR), ()), (4,), 0, 0, True, "operation 7 (bootstrap of node 4)"),
        (operation(Decommission(FOUR)), (4,), 4, 0, False, "operation 7 (decommission of node 4)"),
        (operation(Decommission(FOUR), ()), (4,), 4, 0, True, "operation 7 (decommission of node 4)"),
        (operation(Remove(FOUR)), (4,), 4, 4, False, "operation 7 (remove of node 4)"),
        (operation(Replace(FOUR, TWO)), (4, 2), 2, 2, False, "operation 7 (replace of node 2 by node 4)"),
        (operation(Replace(FOUR, TWO), ()), (4, 2), 2, 2, True, "operation 7 (replace of node 2 by node 4)"),
        (operation(Move(FOUR, (5,))), (4,), 0, 0, False, "operation 7 (move of node 4)"),
        (operation(Rebuild(FOUR), ()), (4,), 0, 0, False, "operation 7 (rebuild of node 4)"),
        (operation(Walk("ks", PATH), ()), (), 0, 0, False,
         "operation 7 (replication_change of keyspace ks)"),
    ],
)  # fmt: skip
def test_what_an_operation_is_about(
    one: Operation, nodes: tuple[int, ...], departing: int, dead: int, nothing: bool, title: str
) -> None:
    about = one.about
    assert (about.nodes, about.departing, about.presumed_dead) == (nodes, departing, dead)
    assert moves_nothing(one) is nothing and one.title() == title
    assert about.is_global is not bool(about.nodes) and about.is_global is bool(about.keyspace)
    assert target_in(one.body) == (PATH[2] if about.is_global else None)


def transition(
    old: tuple[int, ...], new: tuple[int, ...], new_replication: Replication | None = None
) -> Transition:
    return Transition(
        1, Range(0, 10), tuple(map(NodeId, old)), tuple(map(NodeId, new)), simple(2), new_replication
    )


def test_a_transition_has_replicas_that_come_and_go() -> None:
    one = transition((1, 2, 3), (2, 4, 1))
    assert (one.gained, one.lost, one.union) == ((4,), (3,), (1, 2, 3, 4))
    assert one.replication_after == simple(2)
    assert transition((1,), (1,), simple(3)).replication_after == simple(3)


def test_states_that_own_tokens() -> None:
    node = NODES.nodes[0]
    assert [state for state in NodeState if msgspec.structs.replace(node, state=state).owns_tokens] == [
        NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.REBUILDING, NodeState.NORMAL,
    ]  # fmt: skip
    assert not msgspec.structs.replace(NODES.nodes[0], tokens=()).owns_tokens
