"""Lists of racks: one replica of each tablet in each of them, in new tables and after every change."""

from __future__ import annotations

import itertools

import pytest
from msgspec import structs

from lockstep.metadata.requests import Policy, RequestState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.metadata.transformations import Initialize
from lockstep.placement.tablets.load import GIB, NodeLoad
from lockstep.schema.changes import AlterKeyspace, CreateKeyspace
from lockstep.schema.model import Replication
from lockstep.schema.replication_options import list_text, parse_replication
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.kinds.replication import ReplicationChange, target_of
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.topology.tablets.balancing import Planner
from lockstep.topology.tablets.moves import BeginMoves
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import History, founder, network
from tests.topology.drills import refused
from tests.topology.tablets.test_recount import OTHER, advance, all_sound, finish, replication_of
from tests.topology.tablets.worlds import TABLE, map_of, move

RACKS = ("r1", "r1", "r2", "r2", "r3", "r3")
Listed = tuple[str, ...] | int


def replication(listed: Listed) -> Replication:
    if isinstance(listed, int):
        return network(dc1=listed)
    return Replication("NetworkTopologyStrategy", (("dc1", len(listed)),), (("dc1", listed),))


def options(listed: Listed) -> tuple[tuple[str, str], ...]:
    text = str(listed) if isinstance(listed, int) else list_text(listed)
    return (("class", "NetworkTopologyStrategy"), ("dc1", text))


def world(listed: Listed, racks: tuple[str, ...] = RACKS, tablets: int = 8) -> History:
    history = History()
    founders = tuple(founder(n, (n * 10,), "dc1", rack) for n, rack in enumerate(racks, 1))
    history.submit(Initialize("c", "n", founders, voters=(NodeId(1),)))
    history.submit(ChangeSchema(CreateKeyspace("k", options(listed), tablets=(("initial", str(tablets)),))))
    for table in (TABLE, OTHER):
        history.submit(ChangeSchema(table))
    return history


def racks_of(history: History) -> set[tuple[str, ...]]:
    """The racks of the replicas of each tablet of all tables."""
    rack_of = {node.id: node.rack for node in history.now.directory.nodes}
    return {
        tuple(sorted(rack_of[node] for node in tablet.nodes))
        for group in history.now.tablets.groups
        for tablet in group.map(history.now.placements).tablets()
    }


def alter(history: History, listed: Listed) -> bool:
    """As ALTER KEYSPACE does it: at once, or by an operation, carried out to its end. Whether by one."""
    change = AlterKeyspace("k", options(listed))
    target = target_of(history.now, change)
    if target is None:
        before = history.now
        history.submit(ChangeSchema(change))
        history.now.validate(before)
        return False
    history.submit(EnqueueRequest(ReplicationChange("k", target), policy=Policy.REFUSE))
    finish(history)
    return True


@pytest.mark.parametrize("listed", [("r1", "r2"), ("r2",), ("r1", "r2", "r3")])
def test_a_new_table_has_a_replica_in_each_rack_of_the_list(listed: tuple[str, ...]) -> None:
    history = world(listed)
    assert racks_of(history) == {listed} and replication_of(history).lists == {"dc1": listed}
    all_sound(history)


@pytest.mark.parametrize(
    ("before", "after", "moves"),
    [
        (3, ("r1", "r2", "r3"), False),
        (("r1", "r2", "r3"), 3, False),
        (2, ("r1", "r2"), True),
        (3, ("r1", "r2"), True),
        (1, ("r1", "r2", "r3"), True),
        (6, ("r1", "r3"), True),
        (("r1", "r2"), ("r1", "r2", "r3"), True),
        (("r1", "r2", "r3"), ("r2",), True),
        (("r1", "r2"), ("r1", "r3"), True),
        (("r1",), ("r2", "r3"), True),
        (("r1", "r2"), 5, True),
        (("r1", "r2", "r3"), 1, True),
    ],
)
def test_numbers_and_lists_become_each_other_in_sound_steps(
    before: Listed, after: Listed, moves: bool
) -> None:
    history = world(before)
    assert alter(history, after) is moves
    assert replication_of(history) == replication(after)
    assert not history.now.requests.by_keyspace
    if isinstance(after, int):
        assert {len(racks) for racks in racks_of(history)} == {after}
    else:
        assert racks_of(history) == {after}
    all_sound(history)


def test_a_change_that_is_cancelled_goes_back_to_the_list_that_was() -> None:
    history = world(("r1", "r2"))
    wanted = ReplicationChange("k", replication(("r1", "r3")))
    history.submit(EnqueueRequest(wanted, policy=Policy.REFUSE))
    while replication_of(history).total == 2:
        advance(history)
    history.submit(CancelRequest(1, "no"))
    finish(history)
    assert replication_of(history) == replication(("r1", "r2")) and racks_of(history) == {("r1", "r2")}
    all_sound(history)


def test_the_way_to_a_list_needs_room() -> None:
    history = world(("r1",), ("r1", "r2"))
    assert alter(history, ("r2",))
    assert racks_of(history) == {("r2",)}
    history = world(2, ("r1", "r1", "r1", "r2"), tablets=64)
    assert racks_of(history) == {("r1", "r2")}, "two racks have one each anyway"
    entry = EnqueueRequest(ReplicationChange("k", replication(("r1", "r2"))))
    assert "lies so already: nothing moves for it" in refused(history, entry)
    assert not alter(history, ("r1", "r2"))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("['r9']", "no node of rack r9 of data centre dc1 can hold tablets"),
        ("['r1', 'r1']", "Rack r1 of dc1 is named twice"),
        ("['']", "none of them empty"),
        ("[r1]", "are a list of names"),
        ("['r1',]", "are a list of names"),
    ],
)
def test_lists_that_are_refused(text: str, reason: str) -> None:
    history = world(("r1",))
    given = (("class", "NetworkTopologyStrategy"), ("dc1", text))
    made = CreateKeyspace("other", given, tablets=())
    assert reason in refused(history, ChangeSchema(made))
    assert reason in refused(history, ChangeSchema(AlterKeyspace("k", given)))


def test_the_ring_has_no_lists() -> None:
    history = world(("r1",))
    made = CreateKeyspace("ring", options(("r1",)))
    assert "keyspace ring lies on the ring" in refused(history, ChangeSchema(made))
    history.submit(ChangeSchema(CreateKeyspace("ring", options(1))))
    assert "lies on the ring" in refused(history, ChangeSchema(AlterKeyspace("ring", options(("r1",)))))
    entry = EnqueueRequest(ReplicationChange("ring", replication(("r1",))))
    assert "lies on the ring" in refused(history, entry)
    history.submit(ChangeSchema(structs.replace(TABLE, keyspace="ring", uuid=TABLE.uuid[:-1] + "7")))
    history.submit(MigrateKeyspace("ring", Step.START))
    alter_ring = AlterKeyspace("ring", options(("r1", "r2", "r3")))
    assert target_of(history.now, alter_ring) is not None
    value = history.now.schema.by_name["ring"]
    assert not value.replication.racks


def test_the_last_node_of_a_rack_of_a_list_does_not_leave() -> None:
    history = world(("r1", "r2"), ("r1", "r1", "r2", "r3"))
    for body in (Decommission(NodeId(3)), Remove(NodeId(3))):
        assert "node 3 is the last of rack r2 of data centre dc1" in refused(history, EnqueueRequest(body))
    history.submit(EnqueueRequest(Decommission(NodeId(1)), policy=Policy.WAIT))
    assert history.now.requests.by_id[1].state is RequestState.QUEUED
    assert "node 2 is the last of rack r1" in refused(history, EnqueueRequest(Decommission(NodeId(2))))
    other = world(2, ("r1", "r1", "r2", "r3"))
    assert other.tried(EnqueueRequest(Decommission(NodeId(3)), policy=Policy.WAIT)) is None, (
        "a number goes anywhere"
    )


def test_the_balancer_and_drains_stay_in_the_rack() -> None:
    history = world(("r1", "r2"))
    planner = Planner()
    planner.refreshed({node: NodeLoad(100 * GIB) for node in history.now.directory.present_ids})
    assert planner.look(history.now, ()).plan.is_empty, "nothing goes to the rack that is not named"
    history.submit(EnqueueRequest(Decommission(NodeId(1)), policy=Policy.WAIT))
    planned = planner.look(history.now, ())
    rack_of = {node.id: node.rack for node in history.now.directory.nodes}
    moves = (*planned.plan.moves, *planned.plan.left)
    assert moves and {rack_of[one.target[0]] for one in moves} == {"r1"} and not planned.fails


def test_no_move_by_hand_leaves_the_rack() -> None:
    history = world(("r1", "r2"))
    rack_of = {node.id: node.rack for node in history.now.directory.nodes}
    tablet = next(map_of(history).tablets())
    source = next(one for one in tablet.replicas if rack_of[one[0]] == "r1")
    wanted = structs.replace(move(history), source=source, target=(NodeId(5), 0))
    assert "rack r1 is to have a replica" in refused(history, BeginMoves(0, (wanted,)))


def test_options_are_read_as_they_are_written() -> None:
    odd = ("it's", "r, 2", "x]")
    made = parse_replication("k", (("class", "NetworkTopologyStrategy"), ("dc1", list_text(odd))), ())
    assert made.lists == {"dc1": odd} and made.total == 3
    assert made.text() == "NetworkTopologyStrategy dc1 3 (it's, r, 2, x])"
    earlier = replication(("r1", "r2"))
    given = (("class", "NetworkTopologyStrategy"), ("replication_factor", "3"), ("dc2", "1"))
    kept = parse_replication("k", given, ("dc1", "dc2"), earlier)
    assert kept.lists == {"dc1": ("r1", "r2")} and kept.factors == (("dc1", 2), ("dc2", 1))
    empty = (("class", "NetworkTopologyStrategy"), ("dc1", "[]"))
    with pytest.raises(Rejected, match="at least one datacenter"):
        parse_replication("k", empty, ())
    assert list(itertools.chain(made.racks)) == [("dc1", odd)]
