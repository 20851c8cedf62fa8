"""Finding the cluster again, whoever moved or went meanwhile."""

from __future__ import annotations

from lockstep.internode import verbs
from lockstep.node.log.messages import FetchLog, LogEntries, MemberList
from lockstep.node.membership.members import MEMBERS_PATH, members_of
from lockstep.node.membership.membership import NEWS_ASKED_MS
from lockstep.values.errors import DiskRefused, PeerUnreachable
from tests.node.support import Town, keyspace

MOVED = (11, 12, 13)


def with_members(town: Town) -> None:
    town.found()
    town.start(4, 5)
    town.until(lambda: town.ready(4, 5))
    town.agreed(1, 2, 3, 4, 5)
    town.wait(1.5)  # the file of members is written at leisure


def move_founders(town: Town) -> None:
    """All founders, and with them all voters, get other addresses; nodes 4 and 5 are told nothing."""
    for name in ("n4", "n5", "n14"):
        town.cluster_lines[name] = 'seeds=["127.0.0.1", "127.0.0.2", "127.0.0.3"]'
    disks = [town.process(number).disk for number in (1, 2, 3)]
    for number in (1, 2, 3):
        town.process(number).crash()
    town.founders = tuple(f"127.0.0.{number}" for number in MOVED)
    for number, disk in zip(MOVED, disks, strict=True):
        town.process(number).swap_disk(disk)
    town.start(*MOVED)
    town.until(lambda: town.ready(*MOVED))


def test_a_node_whose_voters_all_moved_while_it_was_down_finds_them() -> None:
    with Town() as town:
        with_members(town)
        town.process(4).crash()
        move_founders(town)
        town.start(4)
        town.until(lambda: town.ready(4), limit_s=20)
        town.agreed(4, 5, *MOVED)
        assert town.finish(town.submit(4, keyspace("k"))).error is None


def test_a_node_that_was_away_hears_of_what_was_decided_before_its_clients_come() -> None:
    """One that it asks knows as little, and one is gone."""
    with Town(founders=5) as town:
        town.found()
        for number in (4, 5):
            town.process(number).crash()
        assert town.finish(town.submit(1, keyspace("k"))).error is None
        town.process(3).crash()
        town.start(4, 5)
        for number in (1, 2):
            town.world.network.block(town.process(5).host, town.process(number).host)
        town.until(lambda: town.ready(4, 5))
        assert "k" not in town.node(4).log.cluster.schema.by_name
        begun_s = town.world.now_s()
        told = town.finish(town.begin(4, lambda node: node.membership.membership.hear_news()))
        assert told.error is None and "k" in town.node(4).log.cluster.schema.by_name
        assert town.world.now_s() - begun_s < 2 * NEWS_ASKED_MS / 1000
        # Nobody who knows it answers: the node serves with what it has.
        town.process(4).crash()
        assert town.finish(town.begin(5, lambda node: node.membership.membership.hear_news())).error is None


def test_also_when_it_moved_itself_and_only_a_node_without_a_vote_stayed_where_it_was() -> None:
    with Town() as town:
        with_members(town)
        disk = town.process(4).disk
        town.process(4).crash()
        move_founders(town)
        town.process(14).swap_disk(disk)
        town.start(14)
        town.until(lambda: town.ready(14), limit_s=20)
        town.agreed(5, 14, *MOVED)
        assert [node.address for node in town.newest.directory.nodes] == [
            *town.founders,
            "127.0.0.14",
            "127.0.0.5",
        ]


def test_a_newcomer_joins_through_any_live_node_and_keeps_whom_it_heard_of() -> None:
    """Its only seed names the members, does not give it the log, and is gone after the newcomer's restart."""
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        seed = town.node(4)

        async def nothing(_peer: object, _request: FetchLog) -> LogEntries:
            raise PeerUnreachable("not now")

        seed.context.internode.register(verbs.FETCH_LOG, FetchLog, LogEntries, nothing)
        town.cluster_lines["n6"] = 'seeds=["127.0.0.4"]'
        for number in (1, 2, 3):
            town.world.network.block(town.process(6).host, town.process(number).host)
            town.world.network.block(town.process(number).host, town.process(6).host)
        town.start(6)
        town.until(lambda: MEMBERS_PATH in town.process(6).disk.files, limit_s=10)
        town.wait(0.5)
        assert town.node(6).log.state.epoch == 0
        town.process(6).crash()
        town.process(4).crash()
        town.world.network.heal()
        town.start(6)
        town.until(lambda: town.node(6).log.state.epoch > 0, limit_s=20)
        assert town.logged("join.waits", "n6")


def test_a_damaged_list_of_members_is_as_good_as_none() -> None:
    with Town() as town:
        with_members(town)
        town.process(4).crash()
        file = town.process(4).disk.file(MEMBERS_PATH)
        assert len(file.durable) > 100
        for content in (file.durable, file.cache):
            content[20] ^= 0xFF
        town.start(4)
        town.until(lambda: town.ready(4))
        town.finish(town.submit(4, keyspace("k")))
        assert members_of(town.node(4).log.state.current).members[0].address == "127.0.0.1"


def test_a_list_that_could_not_be_saved_is_saved_later() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        town.wait(3.0)
        members = town.node(4).membership.members
        whole, failures = members._save, [DiskRefused("no room"), DiskRefused("no room")]

        async def save(newest: MemberList) -> None:
            if failures:
                raise failures.pop()
            await whole(newest)

        members._save = save  # type: ignore[method-assign]
        town.start(5)
        town.until(lambda: town.ready(5))
        town.wait(6.0)
        assert not failures and len(town.logged("members.not_saved", "n4")) == 2
        assert "127.0.0.5" in [member.address for member in members._saved.members]


def test_every_node_tells_who_the_members_are_and_which_of_them_vote() -> None:
    with Town() as town:
        with_members(town)
        told = members_of(town.node(5).log.state.current)
        assert [member.id for member in told.members] == [1, 2, 3, 4, 5]
        assert [member.id for member in told.members if member.voter] == list(town.newest.voters)
