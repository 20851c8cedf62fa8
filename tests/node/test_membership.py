"""Joining and leaving: whoever dies in between, the end is the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.operations import Stage
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.topology.transformations import CancelOperation
from lockstep.values.errors import ConfigurationError, PreconditionError
from tests.node.support import Town, decommission, keyspace, table


def end_state(cluster: ClusterMetadata) -> object:
    """Everything that must not depend on who died: who owns what, no range held, no session, no operation."""
    nodes = [(node.id, node.address, node.state, node.tokens) for node in cluster.directory.nodes]
    rings = [
        (ring.replication, [(p.range, p.group.reads, p.group.writes) for p in ring.ranges])
        for ring in cluster.placements.rings
    ]
    return nodes, rings, cluster.operations, cluster.transitions.count, cluster.sessions


def with_data(town: Town) -> None:
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(1, 2, 3)


def joined(town: Town) -> None:
    with_data(town)
    town.start(4)
    town.until(lambda: town.ready(4))


def left(town: Town) -> None:
    joined(town)
    outcome = town.finish(town.submit(1, decommission(4)))
    assert outcome.error is None
    town.until(lambda: town.state_of(4) is NodeState.LEFT)


def expected(run: Callable[[Town], None]) -> object:
    with Town() as town:
        run(town)
        return end_state(town.newest)


#: (place, whose, hit): every step of the leader's coordinator, and every step of the node itself.
LEADER_DIES = [("topology.propose", "leader", hit) for hit in (1, 2, 3, 4)] + [
    ("processor.appended", "leader", hit) for hit in (1, 2, 3, 4, 5)
]
NEWCOMER_DIES = [("work.done", "n4", hit) for hit in (1, 2)] + [
    ("metadata.apply.after_sync", "n4", hit) for hit in (1, 2, 3, 4, 5)
]


def crash_at(town: Town, place: str, whose: str, hit: int, kind: str) -> CrashRule:
    """The `hit`-th time from now."""
    name = f"n{town.leader()}" if whose == "leader" else whose
    before = town.world.probes.process_counts.get((name, place), 0)
    rule = CrashRule(label=place, process=name, kind=kind, hit=before + hit, restart_after_s=0.3)
    town.world.probes.add(rule)
    return rule


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_node_joins_whoever_dies_meanwhile(kind: str) -> None:
    wanted = expected(joined)
    fired = 0
    for place, whose, hit in LEADER_DIES + NEWCOMER_DIES:
        with Town() as town:
            with_data(town)
            rule = crash_at(town, place, whose, hit, kind)
            town.start(4)
            town.until(lambda: town.ready(1, 2, 3, 4))
            fired += rule.fired
            assert end_state(town.newest) == wanted, (place, whose, hit)
            town.agreed(1, 2, 3, 4)
    assert fired >= len(LEADER_DIES + NEWCOMER_DIES) - 3


@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_node_leaves_whoever_dies_meanwhile(kind: str) -> None:
    wanted = expected(left)
    subject = [("metadata.apply.after_sync", "n4", hit) for hit in (1, 2, 3, 4)]
    gaining = [("work.done", f"n{number}", hit) for number in (1, 2, 3) for hit in (1, 2)]
    fired = 0
    for place, whose, hit in LEADER_DIES + subject + gaining:
        with Town() as town:
            joined(town)
            rule = crash_at(town, place, whose, hit, kind)
            town.submit(2, decommission(4))
            town.until(
                lambda: (
                    len(town.newest.directory.nodes) == 4 and town.state_of(4) is NodeState.LEFT
                    if not town.newest.operations and town.newest.epoch > 7
                    else False
                )
            )
            fired += rule.fired
            assert end_state(town.newest) == wanted, (place, whose, hit)
    assert fired >= len(LEADER_DIES + subject) - 2


def test_a_node_that_left_stops_serving_and_does_not_start_again() -> None:
    with Town() as town:
        left(town)
        town.until(lambda: "n4" in town.ended, limit_s=2.0)
        assert isinstance(town.ended["n4"], PreconditionError)
        assert not town.nodes["n4"].ready and town.logged("node.left", "n4")
        # It stores which timestamps it has given before the process ends.
        assert not town.node(4).context.internode._running
        town.until(lambda: not town.process(4).alive, limit_s=1.0)
        town.start(4)
        town.until(lambda: "n4" in town.ended)
        assert "has left the cluster" in str(town.ended["n4"])
        assert not town.nodes["n4"].ready
        # With an empty directory the machine joins as a new node.
        town.process(4).wipe_disk()
        town.log.forget("n4")
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.node(4).context.own_id() == 5


def test_a_node_that_was_down_when_it_left_learns_of_it() -> None:
    with Town() as town:
        joined(town)
        town.world.probes.add(CrashRule(label="topology.propose", process="n4", hit=99))
        town.submit(1, decommission(4))
        left = Stage.LEFT_TOKEN_RING
        town.until(lambda: bool(town.newest.operations) and town.newest.operations[0].stage is left)
        town.process(4).crash()
        town.until(lambda: town.state_of(4) is NodeState.LEFT)
        town.start(4)
        town.until(lambda: "n4" in town.ended, limit_s=5.0)
        assert "has left the cluster" in str(town.ended["n4"])


def test_a_newcomer_waits_for_seeds_that_do_not_answer() -> None:
    with Town() as town:
        town.start(4)
        town.wait(3)
        assert town.logged("join.waits", "n4") and not town.ready(4)
        town.found()
        town.until(lambda: town.ready(4))


def test_a_newcomer_of_another_cluster_name_is_refused_with_the_reason() -> None:
    with Town() as town:
        town.found()
        town.process(4)
        town.cluster_lines["n4"] = 'name="other"\nseeds=["127.0.0.1"]'
        town.start(4)
        town.until(lambda: "n4" in town.ended)
        assert isinstance(town.ended["n4"], ConfigurationError)
        assert "'other'" in str(town.ended["n4"]) and town.ended["n4"].hint


def test_a_newcomer_at_the_address_of_a_member_is_refused_with_the_reason() -> None:
    with Town() as town:
        joined(town)
        town.process(4).crash()
        town.process(4).wipe_disk()
        town.log.forget("n4")
        town.start(4)
        town.until(lambda: "n4" in town.ended)
        assert isinstance(town.ended["n4"], ConfigurationError)
        assert "belongs to node 4" in str(town.ended["n4"]) or "in use" in str(town.ended["n4"])


@pytest.mark.parametrize("hit", [1, 2, 3])
def test_a_registration_whose_answer_was_lost_is_not_taken_for_a_collision(hit: int) -> None:
    with Town() as town:
        with_data(town)
        # The newcomer dies right after it was registered, before it knows.
        rule = crash_at(town, "processor.appended", "leader", hit, "kill")
        town.start(4)
        town.until(lambda: bool(rule.fired))
        town.process(4).crash()
        town.start(4)
        town.until(lambda: town.ready(1, 2, 3, 4))
        assert [node.id for node in town.newest.directory.nodes] == [1, 2, 3, 4]


def test_a_newcomer_that_does_not_hear_of_its_registration_goes_on_all_the_same() -> None:
    with Town() as town:
        with_data(town)
        town.start(4)
        town.until(lambda: "n4" in town.nodes and town.node(4).log.state.epoch > 0)
        # Its entry is committed, and every answer to it is lost.
        host = town.process(4).host
        town.until(lambda: len(town.newest.directory.nodes) == 4 or town.world.now_s() > 60)
        for other in (1, 2, 3):
            town.world.network.block(town.process(other).host, host)
        town.wait(12)
        town.world.network.heal()
        town.until(lambda: town.ready(4))
        assert [node.id for node in town.newest.directory.nodes] == [1, 2, 3, 4]


def test_a_cancelled_join_ends_the_newcomer_and_a_second_start_joins() -> None:
    with Town() as town:
        with_data(town)
        before = end_state(town.newest)
        # Streams of the newcomer wait for their sources.
        hold = DelayRule(label="replica.drain", low_s=5.0, high_s=5.0)
        town.world.probes.add(hold)
        town.start(4)
        town.until(
            lambda: (
                bool(town.newest.operations) and town.newest.operations[0].stage is Stage.WRITE_BOTH_READ_OLD
            )
        )
        operation = town.newest.operations[0].id
        cancel = town.finish(town.submit(2, CancelOperation(operation, "changed my mind")))
        assert cancel.error is None
        town.until(lambda: "n4" in town.ended)
        assert "cancelled" in str(town.ended["n4"])
        _, *rest = end_state(town.newest)  # type: ignore[misc]
        assert rest == list(before[1:])  # type: ignore[index]
        assert town.state_of(4) is NodeState.NONE
        hold.times = hold.fired
        town.start(4)
        town.until(lambda: town.ready(4))
        assert end_state(town.newest) == expected(joined)


def test_the_others_take_a_newcomer_for_alive_while_it_joins() -> None:
    with Town() as town:
        with_data(town)
        town.world.probes.add(DelayRule(label="replica.drain", low_s=12.0, high_s=12.0))
        town.start(4)
        town.until(lambda: bool(town.newest.operations))
        town.wait(10)
        assert town.newest.operations and not town.ready(4)
        assert [town.node(number).membership.liveness.alive(4) for number in (1, 2, 3)] == [True] * 3
        # And they see in its messages what it has applied, for it told its id as soon as it had one.
        for number in (1, 2, 3):
            town.node(number).work.topology._acknowledged.clear()
        assert town.finish(town.submit(2, keyspace("more"))).error is None
        town.wait(1.5)
        for number in (1, 2, 3):
            assert town.node(number).work.topology.acknowledged(4) == town.newest.epoch


def test_what_blocks_an_operation_is_visible_with_node_reason_and_time() -> None:
    with Town() as town:
        with_data(town)
        town.world.probes.add(CrashRule(label="work.done", process="n4", hit=1))
        town.start(4)
        town.until(lambda: not town.process(4).alive)
        town.wait(1)
        (blocking,) = town.node(town.leader()).work.topology.blocking
        assert blocking.node == 4 and blocking.reason and blocking.since_us > 0
        town.wait(3)
        (later,) = town.node(town.leader()).work.topology.blocking
        assert later.operation_id == blocking.operation_id
        # It is said once for each reason, not with every attempt.
        assert len(town.logged("topology.work_waits")) < 12


def test_a_node_without_a_vote_knows_who_leads_and_forgets_a_dead_leader() -> None:
    with Town() as town:
        joined(town)
        town.until(lambda: town.node(4).log.leader_id == town.leader())
        first = town.leader()
        town.process(first).crash("kill")
        town.until(lambda: town.node(4).log.leader_id not in (None, first))
        assert town.node(4).log.leader_id == town.leader()
