"""Thousands of nodes following the metadata log: announcements, pings and fetches, and nothing else.

Each node is the product's own deciding parts (the announcement tree, the rotation of pings, the puller) with
real entries, whose chain it verifies; only the network, the disk's delay and the clock are made up here.
Invariant: the seed alone says what happens.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import msgspec

from lockstep.gossip.pulling import PINGED_AT_ONCE, Puller, Request, Tree, pinged, receivers
from lockstep.metadata.cluster import GENESIS_HASH
from lockstep.metadata.log.entries import ENTRY_ID_BYTES, LogEntry, seal, verify_chain
from lockstep.sim.runtime.streams import stream
from lockstep.values.limits import ANNOUNCEMENTS_MAX, LOG_FETCH_ENTRIES_MAX, PINGED_MAX

#: What the leader may send for one commit, and how long the last commit may take to reach everyone.
LEADER_MESSAGES_MAX = 32
CONVERGED_S_MAX = 3.0
#: Between two rounds of pings, as nodes have it.
PING_EVERY_US = 500_000
#: Appending and syncing entries, before they are applied and told of.
SYNC_US = 2_000
#: A run ends so long after the last commit at the latest.
PATIENCE_US = 10_000_000


class Setting(msgspec.Struct, frozen=True):
    """`loss` is the part of frames that never arrive; the others take between the two latencies."""

    nodes: int = 1000
    commits: int = 200
    loss: float = 0.05
    seed: int = 1
    commit_every_us: int = 25_000
    latency_us: tuple[int, int] = (500, 20_000)


class Outcome(msgspec.Struct, frozen=True):
    """`leader_*` count the leader's announcements and answers with entries between two commits."""

    setting: Setting
    leader_messages_max: int
    leader_messages_mean: float
    leader_announcements_max: int
    node_announcements_max: int
    node_pings_max: int
    converged_s: float
    behind: int
    fetches: int
    forwarded: int
    frames: int
    frames_lost: int

    @property
    def holds(self) -> bool:
        return (
            not self.behind
            and self.converged_s <= CONVERGED_S_MAX
            and self.leader_messages_max <= LEADER_MESSAGES_MAX
            and self.node_announcements_max <= ANNOUNCEMENTS_MAX
            and self.node_pings_max <= PINGED_MAX
        )

    def text(self) -> str:
        setting = self.setting
        return (
            f"{setting.nodes} nodes, {setting.commits} commits, {setting.loss:.0%} of frames lost, "
            f"seed {setting.seed}\n"
            f"leader: at most {self.leader_messages_max} messages a commit, {self.leader_messages_mean:.1f} "
            f"in the mean (announcements: at most {self.leader_announcements_max}); "
            f"{LEADER_MESSAGES_MAX} are allowed\n"
            f"others: at most {self.node_announcements_max} announcements an epoch, "
            f"{self.node_pings_max} pings a round; {self.forwarded:,} announcements and {self.fetches:,} "
            f"fetches in all\n"
            f"{self.behind} nodes are behind; the last commit reached the others within "
            f"{self.converged_s:.2f} s, {CONVERGED_S_MAX:.0f} s are allowed\n"
            f"{self.frames:,} frames, {self.frames_lost:,} lost\n"
            f"{'holds' if self.holds else 'DOES NOT HOLD'}"
        )


class _Node:
    __slots__ = (
        "announced",
        "applying",
        "epoch",
        "hash",
        "id",
        "puller",
        "round",
        "tail",
        "tail_hash",
        "wakes_us",
    )

    def __init__(self, node_id: int) -> None:
        self.id = node_id
        self.epoch = 0
        self.hash = GENESIS_HASH
        #: What is being synced, as well.
        self.tail = 0
        self.tail_hash = GENESIS_HASH
        self.applying = False
        self.announced = 0
        self.round = 0
        self.puller: Puller[int] = Puller()
        self.wakes_us = 0


class Dissemination:
    """One run; node 1 leads and commits at a steady rate."""

    def __init__(self, setting: Setting) -> None:
        assert setting.nodes >= 1 and setting.commits >= 1 and 0 <= setting.loss < 1, "a run has a size"
        self._setting = setting
        self._random = stream(setting.seed, "dissemination")
        self._ids = tuple(range(1, setting.nodes + 1))
        self._nodes = {node_id: _Node(node_id) for node_id in self._ids}
        self._leader = self._nodes[1]
        self._log: list[LogEntry] = []
        self._queue: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self._sequence = 0
        self._now_us = 0
        self._behind = setting.nodes
        self._last_us = 0
        self._leader_sent: list[int] = []
        self._leader_announced: list[int] = []
        self._node_announced = 0
        self._node_pings = 0
        self._fetches = 0
        self._forwarded = 0
        self._frames = 0
        self._lost = 0

    def run(self) -> Outcome:
        for node in self._nodes.values():
            self._at(self._random.randrange(PING_EVERY_US), self._ping, node)
        for number in range(self._setting.commits):
            self._at(PING_EVERY_US + number * self._setting.commit_every_us, self._commit)
        committed_us = PING_EVERY_US + (self._setting.commits - 1) * self._setting.commit_every_us
        while self._queue and self._behind and self._now_us < committed_us + PATIENCE_US:
            self._now_us, _, act, facts = heapq.heappop(self._queue)
            act(*facts)
        return Outcome(
            setting=self._setting,
            leader_messages_max=max(self._leader_sent),
            leader_messages_mean=sum(self._leader_sent) / len(self._leader_sent),
            leader_announcements_max=max(self._leader_announced),
            node_announcements_max=self._node_announced,
            node_pings_max=self._node_pings,
            converged_s=(self._last_us - committed_us) / 1e6,
            behind=self._behind,
            fetches=self._fetches,
            forwarded=self._forwarded,
            frames=self._frames,
            frames_lost=self._lost,
        )

    # -- the world -----------------------------------------------------------------------------------

    def _at(self, at_us: int, act: Any, *facts: Any) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (at_us, self._sequence, act, facts))

    def _send(self, source: _Node, target: int, act: Any, *facts: Any) -> None:
        """A frame with the sender's epoch on it."""
        self._frames += 1
        if self._random.random() < self._setting.loss:
            self._lost += 1
            return
        low, high = self._setting.latency_us
        delay_us = low + int(self._random.random() * (high - low))
        self._sequence += 1
        arrival = (self._nodes[target], source.id, source.epoch, act, facts)
        heapq.heappush(self._queue, (self._now_us + delay_us, self._sequence, self._receive, arrival))

    def _receive(self, node: _Node, source: int, epoch: int, act: Any, facts: tuple[Any, ...]) -> None:
        act(node, source, epoch, *facts)
        if epoch > node.tail:
            node.puller.heard(source, epoch, self._now_us // 1000)
            self._turn(node)

    # -- commits and announcements ---------------------------------------------------------------------

    def _commit(self) -> None:
        leader, number = self._leader, len(self._log) + 1
        entry = seal(
            epoch=number,
            entry_id=number.to_bytes(ENTRY_ID_BYTES, "big"),
            kind=1,
            body=number.to_bytes(100, "big"),
            actor="node 1",
            commit_time_us=self._now_us,
            term=1,
            previous_hash=leader.tail_hash,
        )
        self._log.append(entry)
        self._leader_sent.append(0)
        self._leader_announced.append(0)
        self._take(leader, (entry,))

    def _take(self, node: _Node, entries: Sequence[LogEntry]) -> bool:
        """Begin to apply what is news; the chain must continue the node's own."""
        fresh = [entry for entry in entries if entry.epoch > node.tail]
        if not fresh:
            return False
        problem = verify_chain(fresh, epoch=node.tail, previous_hash=node.tail_hash)
        assert problem is None, problem
        node.tail, node.tail_hash = fresh[-1].epoch, fresh[-1].hash
        if not node.applying:
            node.applying = True
            self._at(self._now_us + SYNC_US, self._applied, node)
        return True

    def _applied(self, node: _Node) -> None:
        node.applying = False
        assert node.tail > node.epoch, "epochs only grow"
        node.epoch, node.hash = node.tail, node.tail_hash
        if node.epoch == self._setting.commits:
            self._behind -= 1
            self._last_us = self._now_us
        leads = node is self._leader
        if node.epoch > node.announced and (
            leads or node.puller.wanted(node.epoch) <= node.epoch + LOG_FETCH_ENTRIES_MAX
        ):
            node.announced = node.epoch
            self._announce(node, leads)
        self._turn(node)

    def _announce(self, node: _Node, leads: bool) -> None:
        told = receivers(Tree(self._ids, node.epoch), node.id, leads=leads, alive=_alive)
        for target in told:
            self._send(node, target, _nothing)
        if leads:
            self._leader_sent[-1] += len(told)
            self._leader_announced[-1] += len(told)
        else:
            self._forwarded += len(told)
            self._node_announced = max(self._node_announced, len(told))

    # -- signs of life ---------------------------------------------------------------------------------

    def _ping(self, node: _Node) -> None:
        node.round += 1
        asked = pinged(self._ids, node.id, node.round)
        self._node_pings = max(self._node_pings, len(asked))
        pause_us = PING_EVERY_US // max(1, -(-len(asked) // PINGED_AT_ONCE))
        for turn, first in enumerate(range(0, len(asked), PINGED_AT_ONCE)):
            at_us = self._now_us + turn * pause_us
            self._at(at_us, self._ping_group, node, asked[first : first + PINGED_AT_ONCE])
        self._at(self._now_us + PING_EVERY_US, self._ping, node)

    def _ping_group(self, node: _Node, asked: tuple[int, ...]) -> None:
        for target in asked:
            self._send(node, target, self._pinged)

    def _pinged(self, node: _Node, source: int, _epoch: int) -> None:
        self._send(node, source, _nothing)

    # -- fetches ---------------------------------------------------------------------------------------

    def _turn(self, node: _Node) -> None:
        now_ms = self._now_us // 1000
        request = node.puller.next(node.tail, now_ms)
        if request is not None:
            self._fetches += 1
            self._send(node, request.peer, self._fetch, request)
        wake_ms = node.puller.wake_ms()
        if wake_ms is None:
            return
        wake_us = max(wake_ms * 1000, self._now_us + 1000)
        if not self._now_us < node.wakes_us <= wake_us:
            node.wakes_us = wake_us
            self._at(wake_us, self._wake, node, wake_us)

    def _wake(self, node: _Node, wake_us: int) -> None:
        if node.wakes_us == wake_us:
            self._turn(node)

    def _fetch(self, node: _Node, source: int, _epoch: int, request: Request[int]) -> None:
        served = min(node.epoch, request.after + LOG_FETCH_ENTRIES_MAX)
        if node is self._leader:
            self._leader_sent[-1] += 1
        self._send(node, source, self._fetched, request, tuple(self._log[request.after : served]))

    def _fetched(
        self, node: _Node, _source: int, epoch: int, request: Request[int], entries: tuple[LogEntry, ...]
    ) -> None:
        took = self._take(node, entries)
        node.puller.answered(request, epoch, took, self._now_us // 1000)
        self._turn(node)


def _alive(_node: int) -> bool:
    return True


def _nothing(_node: _Node, _source: int, _epoch: int) -> None:
    """The epoch on the frame is the message."""
