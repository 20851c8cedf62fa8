"""Nodes that join: what they say and hear, who is refused, and what crashes and moves in between change."""

from __future__ import annotations

import pytest

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.directory import BASE_FEATURES, FILE_STREAMING, NodeState
from lockstep.metadata.features import ExcludeNodes
from lockstep.metadata.groups.membership import PrepareMembership
from lockstep.node.node import Node
from lockstep.placement.deltas import same_placement
from lockstep.server.admin.requests import ExcludeList
from lockstep.sim.runtime.probes import CrashRule, DelayRule
from lockstep.topology.joining import JoinAnswer, Phase, Presentation, Verdict
from lockstep.values.errors import PreconditionError, ServerFault
from lockstep.values.ids import NodeId
from tests.node.support import Town, decommission, keyspace, table
from tests.node.test_work import failing

OLD = f'[testing]\nfaults=true\nhidden_features=["{FILE_STREAMING}"]\n'


def with_data(town: Town) -> None:
    town.found()
    for change in (keyspace("k"), table("k")):
        assert town.finish(town.submit(1, change)).error is None
    town.agreed(1, 2, 3)


def test_three_nodes_that_join_at_once_all_become_normal() -> None:
    with Town() as town:
        with_data(town)
        town.start(4, 5, 6)
        town.until(lambda: town.ready(4, 5, 6), limit_s=120)
        assert {node.state for node in town.newest.directory.nodes} == {NodeState.NORMAL}
        assert len(town.newest.directory.nodes) == 6 and not town.newest.operations
        epochs = [value.epoch for value in town.log.values]
        assert epochs == list(range(epochs[0], epochs[-1] + 1))
        accepted = [town.node(number).context.info.accepted_epoch for number in (4, 5, 6)]  # type: ignore[union-attr]
        assert len(set(accepted)) == 3
        assert town.newest.schema.table("k", "t") == town.node(6).log.cluster.schema.table("k", "t")


def test_a_joining_node_starts_no_consensus_and_writes_nothing_before_it_is_judged() -> None:
    with Town() as town:
        with_data(town)

        async def later(_peer: PeerInfo, presented: Presentation) -> JoinAnswer:
            return JoinAnswer(presented.attempt, Verdict.LATER, reason="not now")

        members = [town.node(number) for number in (1, 2, 3)]
        for member in members:
            member.context.internode.register(verbs.JOIN_PRESENT, Presentation, JoinAnswer, later)
        town.start(4)
        town.until(lambda: bool(town.logged("join.waits", "n4")))
        town.wait(2.0)
        node = town.node(4)
        assert node.log.state.epoch == 0 and not node.context.identity.value.cluster_id
        assert node.log.member.group is None and node.membership.management.group is None
        for member in members:
            desk = member.membership.membership.join_desk.judge
            member.context.internode.register(verbs.JOIN_PRESENT, Presentation, JoinAnswer, desk)
        town.until(lambda: town.ready(4))
        progress = node.membership.membership.joiner.progress
        assert progress is not None and progress.phase is Phase.JOINED
        assert progress.epoch == node.context.info.accepted_epoch  # type: ignore[union-attr]


def test_a_refused_node_says_why_and_joins_with_the_same_directory_once_that_is_mended() -> None:
    with Town() as town:
        with_data(town)
        town.extra_lines["n4"] = OLD
        town.start(4)
        town.until(lambda: "n4" in town.ended)
        refused = town.ended["n4"]
        assert isinstance(refused, PreconditionError) and refused.exit_code == 3
        assert FILE_STREAMING in refused.message and refused.hint
        assert (
            not town.nodes["n4"].context.identity.value.cluster_id and town.nodes["n4"].log.state.epoch == 0
        )
        assert len(town.newest.directory.nodes) == 3 and not town.process(4).alive
        assert [said["code"] for said in town.logged("join.refused")] == ["features"]
        held = [name for name in town.process(4).disk.names("") if name.startswith("members")]
        assert not held, "the cluster was not its own"
        host_id = town.nodes["n4"].context.identity.value.host_id
        del town.extra_lines["n4"]
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.node(4).context.identity.value.host_id == host_id


@pytest.mark.parametrize("label", ["join.presented", "membership.admitted", "metadata.apply.after_sync"])
@pytest.mark.parametrize("hit", [1, 2])
def test_a_crashed_join_is_tried_again_with_the_same_directory(label: str, hit: int) -> None:
    with Town() as town:
        with_data(town)
        rule = CrashRule(label=label, process="n4", kind="power", hit=hit, restart_after_s=0.3)
        town.world.probes.add(rule)
        town.start(4)
        town.until(lambda: town.ready(4))
        assert rule.fired or (label, hit) == ("membership.admitted", 2)
        hosts = [node.host_id for node in town.newest.directory.nodes]
        assert len(hosts) == len(set(hosts)) == 4, "one entry for one directory"
        assert town.newest.directory.nodes[3].attempt > 0


def test_answers_that_are_lost_delay_a_join_and_make_one_node_of_it() -> None:
    with Town() as town:
        with_data(town)
        town.process(4)
        for leader in (1, 2, 3):
            town.world.network.block(f"127.0.0.{leader}", "127.0.0.4")
        town.start(4)
        town.wait(5.0)
        assert not town.ready(4)
        for leader in (1, 2, 3):
            town.world.network.unblock(f"127.0.0.{leader}", "127.0.0.4")
        town.until(lambda: town.ready(4))
        assert len(town.newest.directory.nodes) == 4


def test_a_joining_node_that_is_started_again_elsewhere_goes_on() -> None:
    with Town() as town:
        with_data(town)
        town.world.probes.add(DelayRule(label="work.done", process="n4", low_s=60.0, high_s=60.0))
        town.start(4)
        town.until(lambda: bool(town.newest.operations))
        before = town.newest.directory.by_id[NodeId(4)]
        disk = town.process(4).disk
        town.process(4).crash()
        town.process(14).swap_disk(disk)
        town.start(14)
        town.until(lambda: town.ready(14), limit_s=30)
        node = town.newest.directory.by_id[NodeId(4)]
        assert (node.address, node.state) == ("127.0.0.14", NodeState.NORMAL)
        assert node.attempt > before.attempt and node.accepted_epoch > before.accepted_epoch
        assert len(town.newest.directory.nodes) == 4


def test_all_seeds_but_one_may_be_dead_and_those_that_are_shut_out_or_gone_are_skipped() -> None:
    with Town() as town:
        with_data(town)
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5), limit_s=120)
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        town.until(lambda: town.node(4).log.state.epoch == town.newest.epoch)
        town.cluster_lines["n6"] = 'seeds=["127.0.0.91", "127.0.0.92", "127.0.0.4", "127.0.0.5"]\n'
        town.start(6)
        town.until(lambda: town.ready(6), limit_s=120)
        (skipped,) = town.logged("join.seed_skipped", "n6")
        assert skipped["seed"] == "127.0.0.4" and "excluded" in skipped["reason"]


def test_dead_members_that_no_barrier_needs_do_not_keep_a_node_out() -> None:
    with Town() as town:
        with_data(town)
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5) and town.management_settled, limit_s=120)
        voters = town.newest.voters
        dead = next(node for node in (5, 4, 3, 2) if node not in voters)
        town.process(dead).crash()
        town.wait(3.0)
        town.start(6)
        town.until(lambda: town.ready(6), limit_s=120)
        assert not town.process(dead).alive and town.state_of(dead) is NodeState.NORMAL


def test_a_join_that_cannot_go_on_names_whom_it_waits_for() -> None:
    with Town() as town:
        with_data(town)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.world.probes.add(DelayRule(label="work.done", process="n5", low_s=2.0, high_s=2.0))
        town.start(5)
        town.until(lambda: bool(town.newest.operations))
        town.process(5).crash()
        town.until(lambda: any(b.node == 5 for b in town.node(town.leader()).work.topology.blocking))
        reasons = [b.reason for b in town.node(town.leader()).work.topology.blocking if b.node == 5]
        assert all(reasons)
        town.start(5)
        town.until(lambda: town.ready(5))


def test_a_join_whose_data_cannot_be_had_ends_and_leaves_no_trace_and_may_be_tried_again() -> None:
    def prepare(name: str, node: Node) -> None:
        if name == "n4":
            failing(node, 1000, ServerFault("planted: it cannot be stored"))

    with Town() as town:
        with_data(town)
        before = town.newest.placements
        town.loaded = prepare
        town.start(4)
        town.until(lambda: "n4" in town.ended, limit_s=120)
        refused = town.ended["n4"]
        assert isinstance(refused, PreconditionError) and "planted" in refused.message
        node = town.newest.directory.by_id[NodeId(4)]
        assert node.state is NodeState.NONE and not node.tokens and not town.newest.operations
        for ring, was in zip(town.newest.placements.rings, before.rings, strict=True):
            assert same_placement(ring, was)
        town.loaded = lambda name, node: None
        town.start(4)
        town.until(lambda: town.ready(4))
        assert len(town.newest.directory.nodes) == 4


def test_an_excluded_node_that_moved_is_heard_where_it_is_and_taken_back() -> None:
    with Town() as town:
        with_data(town)
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.finish(town.submit(1, ExcludeNodes((NodeId(4),), "suspect"))).error is None
        disk = town.process(4).disk
        town.process(4).crash()
        town.process(14).swap_disk(disk)
        town.start(14)
        town.until(lambda: town.node(1).work.topology.acknowledged(4) == town.newest.epoch)
        assert not town.ready(14)
        taken = ExcludeList(town.node(1).services)
        back = town.begin(1, lambda _node: taken.change({"nodes": [4], "undo": True}))
        assert town.finish(back).error is None, back.error
        town.until(lambda: town.ready(14))
        assert town.newest.directory.by_id[NodeId(4)].address == "127.0.0.14"


# -- features ----------------------------------------------------------------------------------------


def test_a_feature_is_enabled_when_the_last_old_node_is_upgraded_and_then_no_old_node_starts() -> None:
    with Town() as town:
        town.extra_lines["n3"] = OLD
        with_data(town)
        assert FILE_STREAMING not in town.newest.features_enabled
        town.start(4)
        town.until(lambda: town.ready(4))
        town.process(3).crash()
        del town.extra_lines["n3"]
        town.start(3)
        town.until(lambda: town.ready(3) and town.newest.features_enabled == BASE_FEATURES)
        town.agreed(1, 2, 3, 4)
        town.process(4).crash()
        town.extra_lines["n4"] = OLD
        town.start(4)
        town.until(lambda: "n4" in town.ended)
        refused = town.ended["n4"]
        assert isinstance(refused, PreconditionError) and FILE_STREAMING in refused.message
        del town.extra_lines["n4"]
        town.start(4)
        town.until(lambda: town.ready(4))


def test_an_old_node_that_was_down_when_a_feature_was_announced_holds_it_up_and_may_take_it_back() -> None:
    """Node 4 supported it, is stopped, and comes back as an older version: the last word is the log's."""
    with Town() as town:
        town.extra_lines["n3"] = OLD
        with_data(town)
        town.start(4)
        town.until(lambda: town.ready(4))
        town.process(4).crash()
        town.process(3).crash()
        del town.extra_lines["n3"]
        town.start(3)
        town.until(lambda: town.ready(3))
        town.wait(3.0)
        assert FILE_STREAMING not in town.newest.features_enabled, "node 4 has not seen the announcement"
        waits = town.node(town.leader()).work.topology.blocking
        assert [(b.node, "file-streaming" in b.reason) for b in waits] == [(4, True)]
        town.extra_lines["n4"] = OLD
        town.start(4)
        town.until(lambda: town.ready(4) or "n4" in town.ended)
        if town.ready(4):
            assert FILE_STREAMING not in town.newest.features_enabled


# -- zero tokens -------------------------------------------------------------------------------------


def test_a_node_without_tokens_joins_at_once_and_votes() -> None:
    with Town() as town:
        with_data(town)
        town.placement["n4"] = "num_tokens=0"
        before = town.newest.placements
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.newest.placements == before and not town.newest.directory.by_id[NodeId(4)].tokens
        assert town.finish(town.submit(4, keyspace("z"))).error is None
        voter = next(node for node in (2, 3) if node != town.leader())
        exchange = PrepareMembership((NodeId(4),), (NodeId(voter),), size=3)
        assert town.finish(town.submit(1, exchange)).error is None
        town.until(lambda: 4 in town.newest.voters and town.management_settled)


def test_a_node_keeps_its_place_and_whether_it_owns_tokens() -> None:
    with Town() as town:
        with_data(town)
        town.start(4)
        town.until(lambda: town.ready(4))
        other_rack = 'num_tokens=2\nrack="r9"'
        for line, text in (("num_tokens=0", "owns tokens"), (other_rack, "stands in dc1/rack1")):
            town.process(4).crash()
            town.placement["n4"] = line
            town.start(4)
            town.until(lambda: "n4" in town.ended)
            assert text in town.ended["n4"].message
        del town.placement["n4"]
        town.start(4)
        town.until(lambda: town.ready(4))
        outcome = town.finish(town.submit(1, decommission(4)))
        assert outcome.error is None
