"""Several groups on one node, and their members coming and going."""

from __future__ import annotations

from lockstep.consensus.configuration import Configuration, RaftSettings
from lockstep.consensus.effects import Accepted, Refused
from lockstep.consensus.messages import Entry, EntryKind
from lockstep.node.log.raft_driver import GroupEvents, GroupPace, GroupPlace, RaftDriver
from lockstep.node.node import Node
from tests.node.support import Town, keyspace

GROUP = 9


class Group:
    """Members of a second group beside the metadata group of a town; `log[n]` is what node n committed."""

    def __init__(self, town: Town) -> None:
        self.town = town
        self.drivers: dict[int, RaftDriver] = {}
        self.log: dict[int, list[bytes]] = {}

    def start(self, number: int, voters: tuple[int, ...]) -> RaftDriver:
        log = self.log[number] = []

        def committed(entries: tuple[Entry, ...]) -> None:
            log.extend(entry.data for entry in entries if entry.kind is EntryKind.NORMAL)

        async def start(node: Node) -> None:
            driver = self.drivers[number] = RaftDriver(
                node.runtime,
                node.log.transport,
                GroupPlace(GROUP, number, voters, node.log.voters.member),
                GroupPace(RaftSettings(), 50),
                GroupEvents(committed, lambda: None, node._break),
            )
            driver.start()

        self.town.finish(self.town.begin(number, start))
        return self.drivers[number]

    def leader(self) -> RaftDriver | None:
        return next((driver for driver in self.drivers.values() if driver.is_leader), None)

    def agreed(self, *numbers: int) -> bool:
        return len({tuple(self.log[number]) for number in numbers}) == 1


def test_two_groups_live_on_the_same_nodes_and_do_not_hear_each_other() -> None:
    with Town() as town:
        town.found()
        group = Group(town)
        for number in (1, 2, 3):
            group.start(number, (1, 2, 3))
        town.until(lambda: group.leader() is not None)
        leader = group.leader()
        assert leader is not None
        assert leader.propose((b"a", b"b")) is not None
        town.until(lambda: all(log == [b"a", b"b"] for log in group.log.values()))
        epoch = town.finish(town.submit(1, keyspace("k"))).value
        assert epoch == town.newest.epoch
        assert group.agreed(1, 2, 3)


def test_a_member_without_voters_waits_and_is_added_and_a_voter_is_removed_and_stopped() -> None:
    with Town() as town:
        town.found()
        group = Group(town)
        first = group.start(1, (1,))
        second = group.start(2, ())
        town.until(lambda: first.is_leader)
        assert first.propose((b"a",)) is not None
        town.wait(3.0)
        assert not second.raft.configuration.voters and group.log[2] == []
        assert isinstance(first.propose_configuration(Configuration((1,), learners=(2,))), Accepted)
        town.until(lambda: group.log[2] == [b"a"])
        assert isinstance(first.propose_configuration(Configuration((1, 2))), Accepted)
        town.until(lambda: second.raft.configuration.voters == (1, 2))
        assert first.transfer(2) is None
        town.until(lambda: second.is_leader)
        assert isinstance(first.propose_configuration(Configuration((1,))), Refused)
        town.until(lambda: second.raft.is_term_committed)
        assert isinstance(second.propose_configuration(Configuration((2,))), Accepted)
        town.until(lambda: second.raft.configuration.voters == (2,) and second.status().commit_index > 4)
        town.finish(town.begin(1, lambda _node: first.stop()))
        assert second.propose((b"b",)) is not None
        town.until(lambda: group.log[2] == [b"a", b"b"])
        town.wait(2.0)
        assert group.log[1] == [b"a"] and second.is_leader


def test_a_member_that_was_stopped_starts_again_from_its_files() -> None:
    with Town() as town:
        town.found()
        group = Group(town)
        driver = group.start(1, (1,))
        town.until(lambda: driver.is_leader)
        assert driver.propose((b"a",)) is not None
        town.until(lambda: group.log[1] == [b"a"])
        town.finish(town.begin(1, lambda _node: driver.stop()))
        again = group.start(1, (1,))
        town.until(lambda: again.is_leader and group.log[1] == [b"a"])
        assert again.raft.term > driver.raft.term
