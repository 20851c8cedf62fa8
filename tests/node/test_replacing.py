"""A dead node's place is taken by a new one, at its address or another; others are refused it."""

from __future__ import annotations

import pytest

from lockstep.metadata.directory import NodeState
from lockstep.sim.runtime.probes import DelayRule
from lockstep.topology.force_remove import ForceRemove
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.requests import CancelRequest, EnqueueRequest
from lockstep.values.ids import NodeId
from tests.node.support import Town, keyspace, table

SEEDS = 'seeds=["127.0.0.1", "127.0.0.2", "127.0.0.3"]\n'


def with_dead_fourth(town: Town) -> tuple[int, ...]:
    """Four nodes, of which the last is dead for good; its tokens."""
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.start(4)
    town.until(lambda: town.ready(4))
    town.until(lambda: not town.newest.operations)
    # The three founders vote, or the fourth would have to be substituted first.
    town.until(lambda: 4 not in town.newest.service.members, 60.0)
    town.process(4).crash()
    town.until(lambda: not town.node(1).membership.liveness.alive(4))
    return town.newest.directory.by_id[NodeId(4)].tokens


def check_replaced(town: Town, tokens: tuple[int, ...]) -> None:
    directory = town.newest.directory
    assert directory.by_id[NodeId(4)].state is NodeState.LEFT
    assert directory.by_id[NodeId(5)].state is NodeState.NORMAL
    assert directory.by_id[NodeId(5)].tokens == tokens
    assert directory.by_id[NodeId(5)].replaces == 4


def test_a_new_disk_at_the_address_of_the_dead_node_takes_its_tokens() -> None:
    with Town() as town:
        tokens = with_dead_fourth(town)
        town.world.process("n5", "127.0.0.4")
        town.cluster_lines["n5"] = SEEDS + "replaces=4"
        town.start(5)
        town.until(lambda: town.ready(5), 60.0)
        town.until(lambda: not town.newest.operations)
        check_replaced(town, tokens)
        assert town.newest.directory.shadowed == frozenset()


def test_a_new_disk_at_the_address_of_a_node_that_died_just_now_waits_until_the_others_know() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4) and not town.newest.operations)
        tokens = town.newest.directory.by_id[NodeId(4)].tokens
        town.process(4).crash()
        town.world.process("n5", "127.0.0.4")
        town.cluster_lines["n5"] = SEEDS + "replaces=4"
        town.start(5)
        town.until(lambda: town.ready(5), 60.0)
        check_replaced(town, tokens)
        waits = [said["reason"] for said in town.logged("join.waits", "n5")]
        assert any("seems alive" in reason for reason in waits)


def test_another_machine_takes_the_tokens_of_the_dead_node() -> None:
    with Town() as town:
        tokens = with_dead_fourth(town)
        town.process(5)
        town.cluster_lines["n5"] = SEEDS + "replaces=4"
        town.start(5)
        town.until(lambda: town.ready(5), 60.0)
        town.until(lambda: not town.newest.operations)
        check_replaced(town, tokens)


def test_a_new_disk_at_a_members_address_that_names_nobody_is_refused() -> None:
    with Town() as town:
        with_dead_fourth(town)
        town.world.process("n5", "127.0.0.4")
        town.cluster_lines["n5"] = SEEDS
        town.start(5)
        town.until(lambda: "n5" in town.ended)
        assert "belongs to node 4" in town.ended["n5"].message


@pytest.mark.parametrize("nobody", [77])
def test_a_replacement_of_a_node_that_is_not_there_ends_with_the_reason(nobody: int) -> None:
    with Town() as town:
        town.found()
        town.process(5)
        town.cluster_lines["n5"] = SEEDS + f"replaces={nobody}"
        town.start(5)
        town.until(lambda: "n5" in town.ended)
        assert "cannot be replaced: there is no such node" in town.ended["n5"].message


def test_a_node_that_is_alive_is_not_replaced_by_one_at_another_address() -> None:
    with Town() as town:
        town.found()
        town.process(5)
        town.cluster_lines["n5"] = SEEDS + "replaces=3"
        town.start(5)
        town.until(lambda: "n5" in town.ended)
        assert "node 3 is alive" in town.ended["n5"].message
        assert [node.state for node in town.newest.directory.nodes] == [NodeState.NORMAL] * 3


def test_a_cancelled_replacement_leaves_the_node_in_the_cluster() -> None:
    with Town() as town:
        with_dead_fourth(town)
        town.process(5)
        town.cluster_lines["n5"] = SEEDS + "replaces=4"
        town.world.probes.add(DelayRule(label="replica.drain", low_s=2.0, high_s=2.0))
        town.start(5)
        town.until(lambda: bool(town.newest.operations))
        running = town.newest.requests.live[0]
        assert town.finish(town.submit(1, CancelRequest(running.id, "it came back"))).error is None
        town.until(lambda: not town.newest.operations)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.wait(5.0)
        assert town.newest.service.leaving == ()
        assert not town.newest.requests.live, "nobody asked for its leave"
        assert town.newest.directory.by_id[NodeId(4)].state is NodeState.NORMAL


def test_a_replacement_ends_when_the_node_it_was_to_replace_has_left() -> None:
    with Town() as town:
        with_dead_fourth(town)
        town.process(5)
        town.cluster_lines["n5"] = SEEDS + "replaces=4"
        town.world.probes.add(DelayRule(label="replica.drain", low_s=2.0, high_s=2.0))
        town.start(5)
        town.until(lambda: bool(town.newest.operations))
        town.process(5).crash()
        assert town.finish(town.submit(1, CancelRequest(town.newest.requests.live[0].id))).error is None
        town.until(lambda: not town.newest.operations)
        assert town.finish(town.submit(1, ForceRemove(NodeId(4)))).error is None
        town.start(5)
        town.until(lambda: "n5" in town.ended)
        assert "node 4, which this node was to replace, has left" in town.ended["n5"].message


def fewest_voters(town: Town) -> list[int]:
    """The number of voters at every epoch from now on, as the first node applies them."""
    seen = [len(town.newest.voters)]
    town.node(1).log.state.listen(lambda _before, after, _entry: seen.append(len(after.voters)))
    return seen


def three_voters(town: Town) -> None:
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.until(lambda: len(town.newest.voters) == 3 and town.newest.service.change is None, 60.0)


@pytest.mark.parametrize("address", ["127.0.0.3", "127.0.0.4"])
def test_a_dead_voter_of_three_is_replaced_and_the_metadata_never_has_fewer_voters(address: str) -> None:
    with Town() as town:
        three_voters(town)
        town.process(3).crash()
        town.until(lambda: not town.node(1).membership.liveness.alive(3))
        seen = fewest_voters(town)
        town.world.process("n4", address)
        town.cluster_lines["n4"] = SEEDS + "replaces=3"
        town.start(4)
        town.until(lambda: town.ready(4) and not town.newest.operations, 90.0)
        town.until(lambda: town.newest.voters == (1, 2, 4) and town.newest.service.change is None, 60.0)
        assert min(seen) == 3, seen
        assert town.newest.directory.by_id[NodeId(3)].state is NodeState.LEFT


def test_a_rebuild_of_one_of_three_nodes_leaves_the_voters_alone() -> None:
    with Town() as town:
        three_voters(town)
        seen = fewest_voters(town)
        request = EnqueueRequest(Rebuild(NodeId(2)), actor="operator")
        assert town.finish(town.submit(1, request)).error is None
        town.until(lambda: bool(town.newest.operations))
        town.until(lambda: not town.newest.operations, 60.0)
        town.wait(3)
        assert set(seen) == {3}, seen
