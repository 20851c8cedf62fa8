"""The management group: told first, applied once, on the right nodes; and what is said when it is lost."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.management import (
    Action,
    Admit,
    Command,
    Expel,
    Host,
    ManagementState,
    Outcome,
    RecordVoters,
    encode_command,
)
from lockstep.metadata.groups.service import SERVICE, GlobalState, GroupPart, LocalState
from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP
from lockstep.node.log.messages import GroupReport
from lockstep.node.log.raft_driver import GroupBounds, RaftDriver
from lockstep.node.membership.management import ADMISSION_TIMEOUT_MS, LOOKS_PER_QUESTION
from lockstep.node.membership.management_group import ManagementGroup
from lockstep.node.node import Node
from lockstep.sim.runtime.probes import CrashRule
from lockstep.topology.kinds.remove import Remove
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import DiskRefused, PreconditionError
from lockstep.values.ids import NodeId
from tests.node.support import Town, decommission, keyspace, leave


def states(town: Town, *numbers: int) -> list[ManagementState]:
    return [town.node(number).membership.management.state for number in numbers]


def agreed(town: Town, *numbers: int) -> ManagementState:
    """Wait until these nodes hold the same state, in which voters are recorded."""

    def same() -> bool:
        found = states(town, *numbers)
        return bool(found[0].voters.voters) and len({state.digest for state in found}) == 1

    town.until(same)
    return states(town, numbers[0])[0]


def settled(town: Town, *numbers: int) -> ManagementState:
    """As `agreed`, and the group's record is that of the metadata."""

    def complete() -> bool:
        state, directory = states(town, numbers[0])[0], town.newest.directory
        there = {node.host_id: node.id for node in directory.nodes if node.state is not NodeState.LEFT}
        known = {node.host_id: node.node_id for node in state.nodes}
        group = leading(town, *numbers)
        if group is None or not town.voters_settled:
            return False
        configuration = group.driver.raft.configuration
        votes = configuration.voters if not configuration.learners else ()
        return known == there and state.voters.voters == tuple(town.newest.voters) == votes

    town.until(complete)
    return agreed(town, *numbers)


def leading(town: Town, *numbers: int) -> ManagementGroup | None:
    groups = [town.node(number).membership.management.group for number in numbers if town.ready(number)]
    return next((group for group in groups if group is not None and group.is_leader), None)


def leader(town: Town, *numbers: int) -> int:
    town.until(lambda: leading(town, *numbers) is not None)
    group = leading(town, *numbers)
    assert group is not None
    return group.driver.raft.identity


# -- founding


@pytest.mark.parametrize("founders", [1, 3])
def test_the_cluster_id_comes_from_the_groups_first_command(founders: int) -> None:
    numbers = tuple(range(1, founders + 1))
    with Town(founders=founders) as town:
        town.found()
        state = settled(town, *numbers)
        identity = town.newest.identity
        assert (state.cluster_id, state.cluster_name) == (identity.cluster_id, identity.cluster_name)
        assert [link.cluster_id for link in state.lineage] == [identity.cluster_id]
        assert state.voters.recovery_generation == 0
        state.validate()


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("place", ["management.propose", "management.founded", "processor.appended"])
def test_a_founding_that_was_interrupted_goes_on_with_the_same_id(place: str, kind: str) -> None:
    for founders in (1, 3):
        with Town(seed=founders, founders=founders) as town:
            numbers = tuple(range(1, founders + 1))
            rule = CrashRule(label=place, kind=kind, hit=1, restart_after_s=0.5)
            town.world.probes.add(rule)
            town.found()
            assert rule.fired
            state = settled(town, *numbers)
            assert state.cluster_id == town.newest.identity.cluster_id


# -- admission


def test_a_newcomer_is_admitted_before_it_is_registered_and_expelled_when_it_left() -> None:
    with Town() as town:
        town.found()
        #: Host id -> whether it was registered when it was first seen to be admitted.
        registered: dict[str, bool] = {}

        def watch(_now: int, _label: str, kind: str, facts: dict[str, Any]) -> None:
            if kind == "management.applied":
                for node in facts["state"].nodes:
                    known = town.newest.directory.by_host_id
                    registered.setdefault(node.host_id, node.host_id in known)

        town.world.monitors.append(watch)
        town.start(4)
        town.until(lambda: town.ready(4))
        host_id = town.node(4).context.identity.value.host_id
        assert registered[host_id] is False
        assert settled(town, 1, 2, 3).by_host_id[host_id].node_id == 4
        assert town.finish(town.submit(1, decommission(4))).error is None
        town.until(lambda: town.state_of(4) is NodeState.LEFT)
        assert settled(town, 1, 2, 3).expelled == (host_id,)
        readmission = town.begin(
            1, lambda node: node.membership.management.admit(Host(host_id, "127.0.0.4", 7000))
        )
        assert "has left" in str(town.finish(readmission).error)


@pytest.mark.parametrize("place", ["membership.admitted", "processor.appended", "raft.persist.before"])
def test_a_newcomer_and_its_helpers_may_die_between_admission_and_registration(place: str) -> None:
    with Town() as town:
        town.found()
        who = "n4" if place == "membership.admitted" else f"n{town.leader()}"
        hit = town.world.probes.process_counts.get((who, place), 0) + 1
        rule = CrashRule(label=place, process=who, kind="power", hit=hit, restart_after_s=0.5)
        town.world.probes.add(rule)
        town.start(4)
        town.until(lambda: town.ready(1, 2, 3, 4))
        assert rule.fired
        assert len(settled(town, 1, 2, 3).nodes) == 4


def test_a_command_whose_reply_is_lost_is_applied_once() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        who = leader(town, 1, 2, 3)
        group = town.node(who).membership.management.group
        assert group is not None
        submit, commands = group.submit, []

        async def lossy(command: Command) -> Outcome:
            commands.append(command)
            outcome = await submit(command)
            if len(commands) == 1:
                raise PreconditionError("lost on its way")
            return outcome

        group.submit = lossy  # type: ignore[method-assign]
        before = group.state.index
        action = Admit(Host("h", "127.0.0.9", 7000), 1)
        done = town.begin(who, lambda node: node.membership.management.submitter.submit(action, 5000))
        at = town.finish(done).value.index
        assert at > before
        # Whoever was asked again, the leader or a member that has applied it: the same outcome.
        assert len(set(commands)) == 1
        assert agreed(town, 1, 2, 3).by_host_id["h"].index == at


def test_a_command_that_is_in_the_log_twice_is_applied_once() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        group = town.node(leader(town, 1, 2, 3)).membership.management.group
        assert group is not None
        town.until(lambda: group.driver.raft.last_index == group.driver.raft.commit_index)
        before, at = group.state, group.driver.raft.last_index
        command = Command(bytes(15) + b"c", before.index, "test", Admit(Host("h", "127.0.0.9", 7000), 1))
        twice = (encode_command(command), encode_command(command))
        assert group.driver.propose(twice) is not None
        town.until(lambda: group.state.index >= at + 2)
        assert len(group.state.outcomes) == len(before.outcomes) + 1
        assert agreed(town, 1, 2, 3).by_host_id["h"].index == at + 1


# -- members


def test_the_members_follow_the_recorded_voters_and_keep_the_state() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        before = settled(town, 1, 2, 3)
        for number in (1, 2, 3, 4):
            detach(town.node(number))
        record = RecordVoters((1, 3, 4), 99, 99)
        done = town.begin(1, lambda node: node.membership.management.submitter.submit(record, 5000))
        assert town.finish(done).error is None
        town.until(lambda: voters(town, 1) == (1, 3, 4))
        after = agreed(town, 1, 3, 4)
        assert after.lineage == before.lineage
        assert after.voters.voters == (1, 3, 4)
        # The newcomer counts: with it a majority is left when one of the others dies.
        town.process(3).crash("power")
        done = town.begin(
            1, lambda node: node.membership.management.submitter.submit(Expel("nobody"), 20_000)
        )
        outcome = town.finish(done).value
        assert outcome.refusal.code == "NOT_ADMITTED"


def test_a_voter_that_leaves_is_replaced_in_the_group_too() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        settled(town, 1, 2, 3)
        assert town.node(4).membership.management.group is None
        out = next(number for number in (2, 3) if not town.node(number).log.is_leader)
        assert town.finish(town.submit(1, leave(out))).error is None
        rest = [number for number in (1, 2, 3, 4) if number != out]
        town.until(lambda: town.state_of(out) is NodeState.LEFT)
        assert settled(town, *rest).voters.voters == tuple(rest)


def test_a_voter_that_dies_before_the_group_has_it_holds_nobody_up() -> None:
    with Town() as town:
        town.found()
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5))
        settled(town, 1, 2, 3)
        out = next(number for number in (2, 3) if not town.node(number).log.is_leader)
        asked = town.submit(1, leave(out))
        town.until(lambda: len(town.newest.voters) == 4)
        new = next(voter for voter in town.newest.voters if voter > 3)
        town.process(new).crash("power")
        members = {number: voters(town, number) for number in (1, 2, 3)}
        assert all(new not in group for group in members.values()), "the group had it already"
        gone = EnqueueRequest(Remove(NodeId(new), presumed_dead=True), actor="operator")
        assert town.finish(town.submit(1, gone)).error is None
        assert town.finish(asked).error is None
        town.until(lambda: town.state_of(new) is NodeState.LEFT and town.state_of(out) is NodeState.LEFT)
        rest = [number for number in (1, 2, 3, 4, 5) if number not in (out, new)]
        assert settled(town, *rest).voters.voters == tuple(rest)


def test_a_newcomer_that_never_answered_gets_no_vote_however_short_the_log_is() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        settled(town, 1, 2, 3)
        for number in (1, 2, 3):
            detach(town.node(number))
        town.process(4).crash()
        record = RecordVoters((1, 2, 3, 4), 99, 99)
        done = town.begin(1, lambda node: node.membership.management.submitter.submit(record, 5000))
        assert town.finish(done).error is None
        town.wait(10)
        group = leading(town, 1, 2, 3)
        assert group is not None
        configuration = group.driver.raft.configuration
        assert (configuration.voters, configuration.learners) == ((1, 2, 3), (4,))


def test_leadership_that_is_handed_to_a_dead_member_goes_to_another() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        settled(town, 1, 2, 3)
        for number in (1, 2, 3, 4):
            detach(town.node(number))
        first = leader(town, 1, 2, 3)
        rest = tuple(number for number in (1, 2, 3, 4) if number != first)
        driver = town.node(first).membership.management.group.driver  # type: ignore[union-attr]
        dead: list[int] = []

        def transfer(target: int) -> Any:
            if not dead:
                dead.append(target)
                town.world.network.isolate(town.process(target).host)
            return RaftDriver.transfer(driver, target)

        driver.transfer = transfer  # type: ignore[method-assign]
        record = RecordVoters(rest, 99, 99)
        done = town.begin(first, lambda node: node.membership.management.submitter.submit(record, 5000))
        assert town.finish(done).error is None
        town.until(lambda: bool(dead))
        town.until(lambda: any(voters(town, number) == rest for number in rest if number not in dead))


def test_voters_of_long_ago_do_not_pass_for_the_recorded_ones() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        number = town.leader()
        management = town.node(number).membership.management
        assert management.group is not None
        driver = management.group.driver
        if driver.is_leader:
            driver.transfer(next(other for other in (1, 2, 3) if other != number))
            town.until(lambda: not driver.is_leader)
        town.until(lambda: management.unsettled() == "")
        driver.received = lambda *_: None  # type: ignore[method-assign]
        management._recorded = None  # as after it became leader
        assert management.unsettled()
        management.wake()
        town.until(lambda: management._recorded is not None)
        assert management.unsettled(), "its member has not heard of that"
        del driver.received
        town.until(lambda: management.unsettled() == "")


def test_no_member_begins_while_the_one_before_may_still_write() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        management = town.node(3).membership.management
        group = management.group
        assert group is not None
        seen: list[object] = []

        async def wait(*_tasks: object) -> None:
            management.take_part()
            seen.append(management.group)
            await ManagementGroup.stop(group)

        async def work(_node: Node) -> None:
            # The leader says that it is out; it becomes a member again while it ends.
            told = await management._leaders_report()
            assert told is not None

            async def says() -> GroupReport:
                return msgspec.structs.replace(told, voters=(1, 2))

            management._leaders_report = says  # type: ignore[method-assign]
            group.stop = wait  # type: ignore[method-assign]
            now = management._metadata.current
            service = msgspec.structs.replace(now.service, voters=(NodeId(1), NodeId(2)))
            management._metadata.newest.show(now.changed(SERVICE.set(service)))
            management._own_member = lambda: 3  # type: ignore[method-assign]
            management._looks = LOOKS_PER_QUESTION - 1
            await management._give_up_part()

        if group.is_leader:
            group.driver.transfer(1)
            town.until(lambda: not group.is_leader)
        town.until(lambda: leading(town, 1, 2) is not None)
        town.finish(town.begin(3, work))
        assert seen == [None]
        town.until(lambda: management.group not in (None, group))


def test_a_node_that_no_longer_votes_ends_its_member() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        for number in (1, 2, 3):
            detach(town.node(number))
        state = town.newest.service
        out = next(number for number in (2, 3) if not town.node(number).log.is_leader)
        rest = tuple(number for number in (1, 2, 3) if number != out)
        counted = msgspec.structs.replace(state, voters=tuple(NodeId(number) for number in rest))
        node = town.node(out)
        node.log.state.newest.show(node.log.state.current.changed(SERVICE.set(counted)))
        node.membership.management._own_member = lambda: None  # type: ignore[method-assign]
        done = town.begin(
            1, lambda one: one.membership.management.submitter.submit(RecordVoters(rest, 99, 99), 5000)
        )
        assert town.finish(done).error is None
        town.until(lambda: node.membership.management.group is None)
        assert voters(town, rest[0]) == rest
        assert town.logged("management.left", f"n{out}")


def detach(node: Node) -> None:
    """The record of voters is the test's own from now on."""
    node.membership.management._member = SimpleNamespace(leads=False)  # type: ignore[assignment]
    node.membership.management._own_member = node.context.own_id  # type: ignore[method-assign]
    node.membership.management.wake()


def voters(town: Town, number: int) -> tuple[int, ...]:
    group = town.node(number).membership.management.group
    return group.driver.raft.configuration.voters if group is not None else ()


def test_the_state_survives_power_loss_of_all() -> None:
    with Town() as town:
        town.found()
        before = settled(town, 1, 2, 3)
        for number in (1, 2, 3):
            town.process(number).crash("power")
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        after = agreed(town, 1, 2, 3)
        assert after.lineage == before.lineage
        assert after.index >= before.index


# -- snapshots


def test_a_log_that_was_shortened_survives_power_loss_and_reaches_a_new_member() -> None:
    with Town() as town:
        town.bounds = GroupBounds(management_entries=4)
        town.found()
        settled(town, 1, 2, 3)
        for number in range(40):
            action = Admit(Host(f"host {number}", "127.0.0.9", 7000 + number), 1)
            assert town.finish(submitted(town, 1, action)).error is None
        group = town.node(leader(town, 1, 2, 3)).membership.management.group
        assert group is not None
        assert group.driver.raft.first_index > 1 or group.driver.raft.snapshot is not None
        town.start(4)
        town.until(lambda: town.ready(4))
        for number in (1, 2, 3, 4):
            detach(town.node(number))
        assert town.finish(submitted(town, 1, RecordVoters((1, 3, 4), 99, 99))).error is None
        town.until(lambda: voters(town, 1) == (1, 3, 4))
        before = agreed(town, 1, 3, 4)
        assert len([node for node in before.nodes if node.host_id.startswith("host")]) == 40
        for number in (1, 2, 3, 4):
            town.process(number).crash("power")
        town.start(1, 2, 3, 4)
        town.until(lambda: town.ready(1, 2, 3, 4))
        after = agreed(town, 1, 3, 4)
        assert after.lineage == before.lineage
        assert set(before.nodes) == set(after.nodes)


def submitted(town: Town, number: int, action: Action) -> Any:
    return town.begin(number, lambda node: node.membership.management.submitter.submit(action, 5000))


# -- loss of the majority


def test_without_a_majority_admission_is_refused_in_time_and_the_rest_goes_on() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        for number in (2, 3):
            group = town.node(number).membership.management.group
            assert group is not None
            group.driver.halt()
        town.start(4)
        begun_s = town.world.now_s()
        town.until(lambda: "n4" in town.ended, limit_s=120)
        assert town.world.now_s() - begun_s < ADMISSION_TIMEOUT_MS / 1000 + 10
        assert isinstance(town.ended["n4"], PreconditionError)
        assert "no majority of the management group" in str(town.ended["n4"])
        assert town.finish(town.submit(1, keyspace("k"))).error is None
        assert town.ready(1, 2, 3)


# -- how the groups fare


def report(town: Town, number: int, group: int) -> Any:
    return town.finish(town.begin(number, lambda node: node.membership.groups.local(group))).value


def whole(town: Town, number: int, group: int) -> Any:
    return town.finish(town.begin(number, lambda node: node.membership.groups.whole(group))).value


def test_every_node_reports_its_last_entry_without_a_leader() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        settled(town, 1, 2, 3)
        town.agreed(1, 2, 3, 4)
        cluster = town.newest
        for number in (1, 2):
            town.process(number).crash()
        town.wait(20)
        for number, part in ((3, GroupPart.VOTER), (4, GroupPart.LEARNER)):
            said = report(town, number, METADATA_GROUP)
            assert (said.epoch, said.hash) == (cluster.epoch, cluster.hash)
            assert said.term >= 1
            assert (said.part, said.state) == (part, LocalState.HEALTHY)
        said = report(town, 3, MANAGEMENT_GROUP)
        assert said.state == LocalState.HEALTHY
        assert said.part == GroupPart.VOTER
        assert said.epoch >= 1
        assert report(town, 4, MANAGEMENT_GROUP).state == ""


def test_the_global_word_follows_the_voters() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        for group in (METADATA_GROUP, MANAGEMENT_GROUP):
            assert whole(town, 1, group).state is GlobalState.AVAILABLE
        town.process(3).crash()
        town.wait(15)
        for group in (METADATA_GROUP, MANAGEMENT_GROUP):
            word = whole(town, 1, group)
            assert word.state is GlobalState.DEGRADED
            assert [voter for voter, _ in word.unreachable] == [3]
            peers = town.node(1).membership.groups.peers(group)
            assert (peers.available, peers.count, peers.state) == (True, 2, GlobalState.DEGRADED)
        town.process(2).crash()
        town.wait(15)
        for group in (METADATA_GROUP, MANAGEMENT_GROUP):
            assert whole(town, 1, group).state is GlobalState.UNAVAILABLE
            peers = town.node(1).membership.groups.peers(group)
            assert (peers.available, peers.count) == (False, 1)


def test_a_disk_that_fails_the_group_s_journal_stops_the_node() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        node = town.node(2)
        assert node.membership.management.group is not None
        town.process(2).expected_errors = (DiskRefused,)
        node.membership.management.group.driver.fail(DiskRefused("sync of raft/group-2 failed"))
        assert node.broken is not None and isinstance(node.broken.result(), DiskRefused)


def test_a_member_that_cannot_go_on_is_broken_and_the_group_degraded() -> None:
    with Town() as town:
        town.found()
        settled(town, 1, 2, 3)
        group = town.node(2).membership.management.group
        assert group is not None
        group.driver.fail(PreconditionError("its file is gone"))
        said = report(town, 2, MANAGEMENT_GROUP)
        assert said.state == LocalState.BROKEN
        assert "its file is gone" in said.reason
        assert "its file is gone" in town.node(2).membership.management.unsettled(), (
            "a leader says why it waits"
        )
        assert whole(town, 1, MANAGEMENT_GROUP).state is GlobalState.DEGRADED
        assert whole(town, 1, METADATA_GROUP).state is GlobalState.AVAILABLE
        assert town.ready(2)
