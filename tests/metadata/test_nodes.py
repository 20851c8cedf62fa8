"""Making a cluster, registering nodes, updating them, and reading the differences."""

from __future__ import annotations

import msgspec
import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.apply import diff
from lockstep.metadata.transformations import Founder, Initialize, Register, UpdateNode
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MIN
from tests.metadata.histories import History, SetKeyspaces, founder, simple, started

NEWCOMER = Register("host-9", "10.0.0.9", 7000, 9042, 7080, "dc1", "r1", "1")


def test_founders_are_normal_and_the_first_one_votes() -> None:
    made = started([(40, -40), (10,), (20,), (30,)])
    nodes = made.now.directory.nodes
    assert [(n.id, n.state, n.tokens) for n in nodes] == [
        (1, NodeState.NORMAL, (-40, 40)),
        (2, NodeState.NORMAL, (10,)),
        (3, NodeState.NORMAL, (20,)),
        (4, NodeState.NORMAL, (30,)),
    ]
    assert made.now.voters == (1,)
    assert made.now.identity.lineage == ("cluster-1",)
    assert made.now.directory.circle.owner_of(10) == 2


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (Initialize("", "n", (founder(1, (1,)),)), "needs an id"),
        (Initialize("c", "n", ()), "at least one founder"),
        (Initialize("c", "n", (founder(1, (1,)), founder(2, (1,)))), "token 1 belongs to node 1"),
        (Initialize("c", "n", (founder(1, (1,)), founder(1, (2,)))), "belongs to node 1"),
        (Initialize("c", "n", (founder(1, ()),)), "the first node of a cluster owns tokens"),
        (Initialize("c", "n", (founder(1, (3, 3)),)), "not distinct"),
        (Initialize("c", "n", (founder(1, (TOKEN_MIN,)),)), "outside the ring"),
        (Initialize("c", "n", (founder(1, (1,)),), voters=(NodeId(2),)), "not distinct founders"),
        (Initialize("c", "n", (Founder("h", "a", 1, 1, 2, "d", "r", (1,)),)), "not distinct"),
        (NEWCOMER, "not initialized"),
    ],
)
def test_a_cluster_is_not_made_from_contradictions(body: Initialize, why: str) -> None:
    refusal = History().tried(body)
    assert refusal is not None and why in refusal.message


def test_a_cluster_is_made_once() -> None:
    refusal = started([(1,)]).tried(Initialize("other", "n", (founder(5, (9,)),)))
    assert refusal is not None and "already made, as cluster-1" in refusal.message


def test_a_registered_node_owns_nothing() -> None:
    made = started([(1,)], ("k", simple(1)))
    before = made.now
    made.submit(NEWCOMER)
    node = made.now.node(NodeId(2))
    assert node is not None and node.state is NodeState.NONE and node.tokens == ()
    assert made.now.placements is before.placements
    assert made.now.directory.by_host_id["host-9"] is node
    assert made.now.directory.by_address[("10.0.0.9", 7000)] is node
    assert made.now.directory.data_centers == ("dc1",)


@pytest.mark.parametrize(
    "change",
    [
        {"host_id": "host-1"},
        {"address": "10.0.0.1"},
        {"address": "10.0.0.1", "internode_port": 1, "cql_port": 2},
        {"address": "10.0.0.1", "internode_port": 9042, "cql_port": 2, "admin_port": 3},
    ],
)
def test_identities_and_addresses_do_not_collide(change: dict[str, object]) -> None:
    refusal = started([(1,)]).tried(msgspec.structs.replace(NEWCOMER, **change))
    assert refusal is not None and "belongs to node 1" in refusal.message


def test_one_address_serves_several_nodes_on_distinct_ports() -> None:
    made = started([(1,)])
    beside = Register("host-9", "10.0.0.1", 7001, 9043, 7081, "dc1", "r1", "1")
    assert made.tried(beside) is None


def update(node: int, address: str, version: str = "1") -> UpdateNode:
    return UpdateNode(NodeId(node), address, 7000, 9042, 7080, version)


def test_a_node_comes_back_with_another_address() -> None:
    made = started([(1,), (2,)])
    made.submit(update(2, "10.0.9.9", "2"))
    node = made.now.node(NodeId(2))
    assert node is not None and (node.address, node.version, node.tokens) == ("10.0.9.9", "2", (2,))
    assert ("10.0.0.2", 7000) not in made.now.directory.by_address
    directory = made.now.directory
    made.submit(update(2, "10.0.9.9", "2"))
    assert made.now.directory is directory


def test_updates_are_refused_for_strangers_and_taken_addresses() -> None:
    made = started([(1,), (2,)])
    for body, why in ((update(7, "10.1.1.1"), "no node 7"), (update(2, "10.0.0.1"), "belongs to node 1")):
        refusal = made.tried(body)
        assert refusal is not None and why in refusal.message


def test_differences_name_what_changed() -> None:
    made = started([(1,), (2,)], ("k", simple(1)))
    before = made.now
    made.submit(update(2, "10.0.9.9"))
    made.submit(SetKeyspaces((("k", simple(1)), ("l", simple(2)))))
    lines = {line.path: (line.before, line.after) for line in diff(before, made.now)}
    assert lines["epoch"] == ("2", "4")
    assert lines["directory.nodes[2].address"] == ("10.0.0.2", "10.0.9.9")
    assert lines["schema.keyspaces[l]"][0] == "-"
    assert any(path.startswith("placements.rings[") and old == "-" for path, (old, _) in lines.items())
    assert not [path for path in lines if path.startswith("directory.nodes[1]")]
    assert diff(made.now, made.now) == ()
