"""Founding: whatever happens, one cluster comes out of it, and no host votes twice."""

from __future__ import annotations

import pytest

from lockstep.node.log.journal import MANAGEMENT_GROUP, METADATA_GROUP, journal_path
from lockstep.sim.runtime.probes import CrashRule
from lockstep.values.errors import ConfigurationError, CorruptFile
from lockstep.values.node_limits import LOG_DEFERRED_MS
from tests.node.support import Town, keyspace

PLACES = (
    "founding.bound",
    "raft.persist.before",
    "raft.persist.after",
    "raft.became_leader",
    "processor.appended",
    "metadata.apply.before_sync",
    "metadata.apply.after_sync",
    "disk.sync.inflight",
)


@pytest.mark.parametrize(("founders", "voters"), [(1, 1), (2, 1), (3, 3), (10, 5)])
def test_founders_become_members_of_one_cluster(founders: int, voters: int) -> None:
    with Town(seed=founders, founders=founders) as town:
        numbers = range(1, founders + 1)
        town.start(*numbers)
        town.until(lambda: town.ready(*numbers) and town.voters_settled)
        # Nobody waited for an election timeout.
        assert town.world.now_s() < 0.5
        town.agreed(*numbers)
        values = [town.node(number).log.cluster for number in range(1, founders + 1)]
        assert {value.hash for value in values} == {values[0].hash}
        assert [node.host_id for node in values[0].directory.nodes] == [
            town.node(number).context.identity.value.host_id for number in range(1, founders + 1)
        ]
        assert values[0].voters == tuple(range(1, voters + 1))


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("place", PLACES)
def test_a_founder_may_die_anywhere(place: str, kind: str) -> None:
    for hit, name in ((1, "n1"), (1, "n2"), (2, "n1")):
        with Town(seed=hit) as town:
            rule = CrashRule(label=place, process=name, kind=kind, hit=hit, restart_after_s=0.5)
            town.world.probes.add(rule)
            town.found()
            assert town.finish(town.submit(3, keyspace("k"))).error is None
            town.until(lambda: town.ready(1, 2, 3))
            town.agreed(1, 2, 3)
            if place in ("founding.bound", "raft.persist.before", "metadata.apply.after_sync") and hit == 1:
                assert rule.fired


def test_all_founders_lose_power_at_once_and_found_again_or_go_on() -> None:
    for callbacks in range(20, 700, 85):
        with Town(seed=callbacks) as town:
            town.start(1, 2, 3)
            for number in (1, 2, 3):
                town.process(number).crash_after(callbacks // number, "power", restart_after_s=1.0)
            town.until(lambda: town.world.effects.get("process.power", 0) == 3)
            town.until(lambda: town.ready(1, 2, 3))
            assert len(town.newest.directory.nodes) == 3


def test_founders_with_different_lists_found_nothing_and_say_why() -> None:
    with Town() as town:
        town.process(2)
        town.cluster_lines["n2"] = 'founders=["127.0.0.2", "127.0.0.1", "127.0.0.3"]'
        town.start(1, 2, 3)
        town.wait(5)
        assert town.newest.epoch == 0
        assert not any(node.log.driver for node in town.nodes.values())
        reasons = [facts["reason"] for facts in town.logged("founding.waits", "n1")]
        assert any("founders are 127.0.0.2" in reason for reason in reasons)


def test_a_founder_that_lost_its_disk_before_the_founding_does_not_vote_again() -> None:
    with Town() as town:
        # All are bound; the leader dies before anything is founded, and loses its disk.
        town.world.probes.add(CrashRule(label="raft.became_leader", process="n1", hit=1))
        town.start(1, 2, 3)
        town.until(lambda: not town.process(1).alive)
        first = town.nodes["n1"].context.identity.value.host_id
        for number in (2, 3):
            town.process(number).crash()
        town.process(1).wipe_disk()
        town.start(1, 2, 3)
        town.until(lambda: "n1" in town.ended)
        error = town.ended["n1"]
        assert isinstance(error, ConfigurationError) and first in str(error)
        assert town.nodes["n1"].log.driver is None
        town.wait(3)
        assert town.newest.epoch == 0, "two of three hosts cannot found: the third one is not there"


def test_a_founder_that_lost_its_disk_later_is_refused_and_the_others_go_on() -> None:
    with Town() as town:
        town.found()
        town.process(1).crash()
        town.process(1).wipe_disk()
        town.log.forget("n1")
        town.start(1)
        town.until(lambda: "n1" in town.ended)
        assert isinstance(town.ended["n1"], ConfigurationError)
        assert town.nodes["n1"].log.driver is None
        assert town.finish(town.submit(2, keyspace("k"))).error is None


def test_a_founder_that_was_down_when_the_others_founded_takes_part_when_it_is_back() -> None:
    with Town() as town:
        town.world.probes.add(CrashRule(label="founding.bound", process="n3", kind="power", hit=1))
        town.start(1, 2, 3)
        town.until(lambda: not town.process(3).alive)
        town.start(3)
        town.until(lambda: town.ready(1, 2, 3) and town.voters_settled)
        town.process(1).crash()
        assert town.finish(town.submit(3, keyspace("k"))).error is None


def test_founders_do_not_take_over_the_log_of_a_foreign_cluster() -> None:
    with Town(founders=1) as town:
        town.found()
        alone = town.newest.identity.cluster_id
        town.process(1).crash()
        town.founders = ("127.0.0.1", "127.0.0.2", "127.0.0.3")
        town.start(1, 2, 3)
        town.until(lambda: {"n2", "n3"} <= town.ended.keys() and town.ready(1))
        for name in ("n2", "n3"):
            assert isinstance(town.ended[name], ConfigurationError)
            assert alone in str(town.ended[name])
            assert town.nodes[name].log.state.epoch == 0
        assert town.node(1).log.cluster.identity.cluster_id == alone


def test_a_voter_is_its_host_and_not_its_address() -> None:
    with Town() as town:
        town.found()
        founded = town.newest.epoch
        for number in (1, 2):
            town.process(number).crash()
        one, two = town.process(1).disk, town.process(2).disk
        town.process(1).swap_disk(two)
        town.process(2).swap_disk(one)
        town.log.forget("n1")
        town.log.forget("n2")
        town.start(1, 2)
        town.wait(5)
        # Each is still the voter it was; the third one takes neither for the other.
        identities = [town.nodes[name].log.driver.raft.identity for name in ("n1", "n2")]  # type: ignore[union-attr]
        assert identities == [2, 1]
        assert town.ended == {} and town.newest.epoch == founded
        for number in (1, 2):
            town.process(number).crash()
        town.process(1).swap_disk(one)
        town.process(2).swap_disk(two)
        town.start(1, 2)
        town.until(lambda: town.ready(1, 2, 3))
        assert town.finish(town.submit(3, keyspace("k"))).error is None


def test_voters_that_all_move_to_new_addresses_find_each_other() -> None:
    with Town() as town:
        town.found()
        disks = [town.process(number).disk for number in (1, 2, 3)]
        for number in (1, 2, 3):
            town.process(number).crash()
        town.founders = ("127.0.0.11", "127.0.0.12", "127.0.0.13")
        for number, disk in zip((11, 12, 13), disks, strict=True):
            town.process(number).swap_disk(disk)
        town.start(11, 12, 13)
        town.until(lambda: town.ready(11, 12, 13))
        addresses = [node.address for node in town.newest.directory.nodes]
        assert addresses == list(town.founders)


def test_a_founder_that_lost_its_votes_does_not_found_the_group_again() -> None:
    with Town() as town:
        town.found()
        assert town.finish(town.submit(1, keyspace("k"))).error is None
        town.agreed(1, 2, 3)
        town.wait(LOG_DEFERRED_MS / 1000 + 0.1)
        process = town.process(1)
        process.crash()
        del process.disk.files[journal_path(METADATA_GROUP)]
        town.start(1)
        town.until(lambda: "n1" in town.ended)
        assert isinstance(town.ended["n1"], CorruptFile) and "voter" in str(town.ended["n1"])
        town.until(lambda: any(town.ready(n) and town.node(n).log.is_leader for n in (2, 3)))
        assert town.finish(town.submit(2, keyspace("more"))).error is None


def test_a_founder_that_lost_its_part_of_the_management_group_learns_it_again() -> None:
    with Town() as town:
        town.found()
        town.until(lambda: town.management_settled)
        known = town.node(2).membership.management.state
        process = town.process(1)
        process.crash()
        town.until(lambda: any(town.node(n).membership.management.group.is_leader for n in (2, 3)))  # type: ignore[union-attr]
        del process.disk.files[journal_path(MANAGEMENT_GROUP)]
        town.start(1)
        town.until(lambda: town.ready(1))
        town.until(lambda: town.node(1).membership.management.state.cluster_id == known.cluster_id)
        town.until(lambda: town.management_settled)
