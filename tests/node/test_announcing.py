"""Announcements and pings of one node among many: bounded, once an epoch, in turn."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec

from lockstep.gossip.failure_detector import FailureDetector, Opinions
from lockstep.gossip.pulling import FAN_OUT, PINGED_AT_ONCE
from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import DIRECTORY, Directory, NodeInfo, NodeState
from lockstep.node.log.announcing import Announcer
from lockstep.node.log.messages import Announce, HashAt
from lockstep.node.membership.identity import Identity
from lockstep.node.membership.liveness import Liveness
from lockstep.values.ids import NodeId
from lockstep.values.limits import ANNOUNCEMENTS_MAX, PINGED_MAX
from tests.node.support import Town, decommission, keyspace


def cluster_of(nodes: int, epoch: int, *, left: tuple[int, ...] = ()) -> ClusterMetadata:
    infos = tuple(
        NodeInfo(
            NodeId(number),
            f"host-{number}",
            f"10.0.{number // 256}.{number % 256}",
            7000,
            9042,
            7080,
            "dc1",
            "r1",
            NodeState.LEFT if number in left else NodeState.NORMAL,
        )
        for number in range(1, nodes + 1)
    )
    return msgspec.structs.replace(
        empty_cluster().changed(DIRECTORY.set(Directory(infos, nodes + 1))),
        epoch=epoch,
        hash=bytes([epoch % 256]) * 32,
    )


class Wires:
    """Takes what is sent, and the metadata that it is about."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self.current = cluster
        self.sent: list[tuple[Address, int, Any]] = []

    def send(self, address: Address, verb: int, message: Any) -> None:
        self.sent.append((address, verb, message))

    def told(self) -> list[str]:
        found = [address[0] for address, verb, _ in self.sent if verb == verbs.ANNOUNCE]
        assert len(found) == len(self.sent) == len(set(found)), "nobody is told twice"
        self.sent.clear()
        return found


def announcer(
    wires: Wires,
    own: int,
    leads: bool,
    far_behind: Callable[[], bool] = lambda: False,
    alive: Callable[[int], bool] = lambda _node: True,
) -> Announcer:
    part: Any = wires
    context: Any = SimpleNamespace(
        internode=wires, own_id=lambda: own, alive=alive, catch_up=SimpleNamespace(far_behind=far_behind)
    )
    return Announcer(context, part, lambda: leads)


def test_all_epochs_of_one_turn_are_one_round_of_announcements_of_the_newest() -> None:
    async def run() -> None:
        wires = Wires(cluster_of(500, 7))
        part = announcer(wires, 1, leads=True)
        for epoch in (8, 9, 10):
            before, wires.current = wires.current, cluster_of(500, epoch)
            part.applied(before, wires.current)
        assert not wires.sent
        await asyncio.sleep(0)
        assert {message for _, _, message in wires.sent} == {Announce(10, wires.current.hash)}
        told = wires.told()
        assert FAN_OUT <= len(told) <= 2 * FAN_OUT and part.sent == len(told)
        part.applied(wires.current, wires.current)
        await asyncio.sleep(0)
        assert not wires.sent, "once an epoch"

    asyncio.run(run())


def test_a_node_passes_on_what_it_applied_unless_it_is_far_behind() -> None:
    async def run() -> None:
        forwarded, quiet = [], [False]
        wires = Wires(cluster_of(60, 0))
        parts = [announcer(wires, own, leads=False, far_behind=lambda: quiet[0]) for own in range(1, 61)]
        wires.current = cluster_of(60, 5)
        for part in parts:
            part.applied(wires.current, wires.current)
            await asyncio.sleep(0)
            forwarded.append(part.forwarded)
            assert part.sent == 0
        assert sum(forwarded) == 60 - FAN_OUT and max(forwarded) == FAN_OUT
        wires.sent.clear()
        quiet[0], wires.current = True, cluster_of(60, 6)
        for part in parts:
            part.applied(wires.current, wires.current)
        await asyncio.sleep(0)
        assert not wires.sent

    asyncio.run(run())


def test_whom_the_metadata_lets_go_is_told_by_the_leader() -> None:
    async def run() -> None:
        wires = Wires(cluster_of(300, 4))
        part = announcer(wires, 1, leads=True)
        before, wires.current = wires.current, cluster_of(300, 5, left=(200, 201))
        part.applied(before, wires.current)
        await asyncio.sleep(0)
        assert {"10.0.0.200", "10.0.0.201"} <= set(wires.told())
        before, wires.current = wires.current, cluster_of(300, 6, left=(200, 201))
        part.applied(before, wires.current)
        await asyncio.sleep(0)
        assert not {"10.0.0.200", "10.0.0.201"} & set(wires.told())

    asyncio.run(run())


def test_whoever_is_dead_and_was_let_go_the_leader_sends_no_more_than_the_limit() -> None:
    async def run() -> None:
        wires = Wires(cluster_of(300, 4))
        part = announcer(wires, 1, leads=True, alive=lambda _node: False)
        left = tuple(range(200, 206))
        before, wires.current = wires.current, cluster_of(300, 5, left=left)
        part.applied(before, wires.current)
        await asyncio.sleep(0)
        told = wires.told()
        assert len(told) == ANNOUNCEMENTS_MAX and {f"10.0.0.{node}" for node in left} <= set(told)

    asyncio.run(run())


class Pings:
    """Takes pings; `clock` is the runtime's."""

    def __init__(self, cluster: ClusterMetadata) -> None:
        self.current = self.cluster = cluster
        self.asked: list[int] = []
        self.clock = self
        self.value = Identity("host-3", "", 1)

    def monotonic_s(self) -> float:
        return 0.0

    def register_fast(self, *_service: object) -> None:
        """Nobody asks here."""

    register = register_fast

    def asks(self) -> int:
        return 1

    def submit(
        self, _address: Address, verb: int, _body: bytes, _deadline_s: float, _to: Any, node: int
    ) -> None:
        assert verb == verbs.PING
        self.asked.append(node)


def test_a_node_asks_few_in_each_round_and_everyone_in_the_end() -> None:
    pings: Any = Pings(cluster_of(1000, 5, left=(17,)))
    detector = FailureDetector()
    opinions = Opinions(detector, pings, lambda: 3, lambda: 0.0)
    part = Liveness(pings, pings, pings, opinions, lambda: False, pings, pings)
    asked: Counter[int] = Counter()
    for _ in range(35):
        chosen = part._chosen()
        assert len(chosen) == PINGED_MAX
        for first in range(0, len(chosen), PINGED_AT_ONCE):
            part._ping(chosen[first : first + PINGED_AT_ONCE])
    asked.update(pings.asked)
    assert sorted(asked) == [number for number in range(1, 1001) if number not in (3, 17)]
    detector.heard(4, 0.0)
    assert detector.alive(4, 60.0), "who is asked every 16 s is not suspected after two"


def test_a_ping_that_shows_a_newer_epoch_starts_the_catch_up() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        for number in (1, 2, 3):
            town.node(number).log.announcer._announce = lambda: None  # type: ignore[method-assign]
        assert town.finish(town.submit(1, keyspace("k"))).error is None
        begun_s = town.world.now_s()
        town.agreed(4)
        assert town.world.now_s() - begun_s < 1.0


def test_a_node_that_leaves_learns_of_it_from_the_leader() -> None:
    with Town() as town:
        town.found()
        town.start(4)
        town.until(lambda: town.ready(4))
        assert town.finish(town.submit(1, decommission(4))).error is None
        town.until(lambda: "n4" in town.ended, limit_s=10)
        assert "has left" in str(town.ended["n4"])


def test_every_node_tells_its_last_entry_with_no_leader_present() -> None:
    with Town() as town:
        town.found()
        town.start(4, 5)
        town.until(lambda: town.ready(4, 5))
        town.agreed(1, 2, 3, 4, 5)
        town.wait(3.0)  # all voters are chosen by now
        town.agreed(1, 2, 3, 4, 5)
        newest = town.newest
        for number in (1, 2, 3):
            town.process(number).crash()

        async def ask(node: Any) -> Any:
            return await node.context.internode.request(
                town.node(5).context.address, verbs.HASH_AT, HashAt(2), 1000
            )

        reply = town.finish(town.begin(4, ask)).value
        assert (reply.last_epoch, reply.last_hash) == (newest.epoch, newest.hash) and reply.last_term > 0
        assert reply.hash == town.node(4).log.state.hash_at(2)
