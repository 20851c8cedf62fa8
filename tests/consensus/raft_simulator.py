"""A whole group in memory under a seeded schedule: lossy network, disks that lose what was not synced.

Everything a driver may do late, twice or never happens here: messages are dropped, doubled and reordered,
writes complete in order but at any time, crashes keep any prefix of the outstanding writes. The checks are
made on everything each step hands out; the first broken one raises Violation.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from lockstep.consensus.configuration import Configuration, RaftSettings
from lockstep.consensus.effects import ChunkReceived, ChunkWanted, HardState, Ready, Role, Stored
from lockstep.consensus.events import (
    Campaign,
    ChunkStored,
    Compact,
    Event,
    ForgetLeader,
    Propose,
    ProposeConfiguration,
    ReadIndex,
    Received,
    SnapshotChunk,
    SnapshotFailed,
    SnapshotPresent,
    Tick,
    TransferLeadership,
    Unreachable,
)
from lockstep.consensus.messages import (
    AppendReply,
    Entry,
    InstallReply,
    InstallSnapshot,
    Message,
    Snapshot,
    TimeoutNow,
    VoteRequest,
)
from lockstep.consensus.raft import Raft
from tests.consensus.raft_history import Disk, History, Member, Violation, Write, require, snapshot_bytes

Weather = Literal["mixed", "storm", "snapshots", "changes"]


class Group:
    """`bugs` names faults of the driver to plant (see `_deliver_effects` and `_write`); `weather` makes some
    things happen more often than a mixed schedule does (see `_make_weather`)."""

    def __init__(self, seed: int, bugs: frozenset[str] = frozenset(), weather: Weather = "mixed") -> None:
        self.random = random.Random(seed)
        self.bugs = bugs
        rng = self.random
        self.size = rng.choice((3, 3, 3, 4, 5))
        founders = rng.choice((1, 2, 3, 3, 3, self.size))
        self.voters = tuple(range(1, founders + 1))
        self.settings = RaftSettings(
            election_ticks=rng.choice((4, 10)),
            heartbeat_ticks=rng.choice((1, 2)),
            in_flight_appends_max=rng.choice((1, 2, 16)),
            append_bytes_max=rng.choice((1, 64, 4096)),
            uncommitted_bytes_max=rng.choice((64, 4096)),
            snapshot_ticks=10,
            chunk_ticks=rng.choice((1, 3)),
            chunk_bytes_max=rng.choice((1, 5, 1000)),
            pre_vote=rng.random() < 0.6,
            check_quorum=rng.random() < 0.6,
        )
        self.history = History()
        self.history.configurations.append((0, Configuration(self.voters)))
        #: How often each interesting thing happened; a run in which one never does proves nothing about it.
        self.seen: Counter[str] = Counter()
        self.network: list[Message] = []
        self.blocked: set[tuple[int, int]] = set()
        self.reads: dict[int, int] = {}
        self.loss, self.double = rng.choice(((0.0, 0.0), (0.05, 0.05), (0.2, 0.1)))
        self.steps = 0
        #: Share of actions that disturb, and how often a turn of each member's disk completes a write.
        self.chaos = rng.choice((0.01, 0.03, 0.1))
        self.disk_speed = [rng.choice((0.03, 0.5, 1.0)) for _ in range(6)]
        self.changes_members = rng.random() < 0.5
        self.change_share, self.shuffle = 0.1, 0.2
        #: How often a member gets a state another way than from the leader, and how often members compact.
        self.pulls = rng.choice((0.0, 0.0, 0.3))
        self.compacts = rng.choice((0.02, 0.3))
        self.chunk_speed, self.damage = rng.choice((0.1, 0.5)), rng.choice((0.0, 0.05))
        self._make_weather(weather)
        self.members = {i: Member(self._raft(i, Stored())) for i in range(1, self.size + 1)}

    def _make_weather(self, weather: Weather) -> None:
        """storm: three voters, nothing that calms elections, slow disks: many leaders within a few entries.
        snapshots: members compact all the time, chunks are small, and the network shuffles them.
        changes: five members, and leaders are mostly asked to change who belongs to the group."""
        rng = self.random
        if weather == "mixed":
            return
        self.chaos, self.size, self.voters = 0.1, 3, (1, 2, 3)
        calm: dict[str, int] = {"pre_vote": False, "check_quorum": False}
        if weather == "storm":
            calm |= {"append_bytes_max": 1, "in_flight_appends_max": 1}
            self.disk_speed = [rng.choice((0.03, 0.3)) for _ in range(6)]
        elif weather == "snapshots":
            calm |= {"chunk_bytes_max": rng.choice((3, 8)), "chunk_ticks": 1, "election_ticks": 10}
            self.compacts, self.loss, self.double, self.shuffle = 1.0, 0.05, 0.3, 0.7
        else:
            self.size = 5
            self.voters, self.changes_members, self.change_share = (1, 2, 3), True, 0.7
        self.settings = msgspec.structs.replace(self.settings, **calm)

    def _raft(self, identity: int, stored: Stored) -> Raft:
        voters = self.voters if identity in self.voters else ()
        return Raft(7, identity, voters, self.settings, self.random.randrange, stored)

    # -- one step and its effects

    def step(self, identity: int, event: Event) -> Ready:
        self.steps += 1
        member = self.members[identity]
        ready = member.raft.step(event)
        self._check(identity, member, ready)
        if ready:
            self._deliver_effects(identity, member, ready)
        return ready

    def _check(self, identity: int, member: Member, ready: Ready) -> None:
        raft, history = member.raft, self.history
        for entry in ready.entries:
            history.appended(entry, raft.term_at(entry.index - 1))
        require(raft.commit_index >= member.commit_seen, "the commit index never falls")
        first = max(member.commit_seen, raft.first_index - 1) + 1
        for entry in raft.entries(first, raft.commit_index):
            history.commits(entry)
        if raft.commit_index > member.commit_seen or ready.snapshot is not None:
            self._check_configuration(raft)
        if raft.is_leader and raft.commit_index > member.commit_seen:
            self._check_durable(raft)
        member.commit_seen = raft.commit_index
        if ready.snapshot is not None:
            self._check_snapshot(identity, ready.snapshot)
        if ready.soft_state is not None and ready.soft_state.role is Role.LEADER:
            history.leads(raft.term, identity, member)
        for read in ready.read_states:
            require(read.index >= self.reads[read.context], "a read sees everything committed before it")
        if self.steps % 16 == 0:
            raft.validate()

    def _check_configuration(self, raft: Raft) -> None:
        """A member that knows who belongs to the group, by committed entries, knows it rightly."""
        configuration = raft.configuration
        if configuration.members() and raft.is_configuration_committed:
            known = self.history.configuration_at(raft.commit_index)
            require(configuration == known, f"one configuration at {raft.commit_index}")
            self.seen["joint configuration committed"] += configuration.is_joint
            self.seen["learner in a committed configuration"] += bool(configuration.learners)

    def _check_snapshot(self, identity: int, snapshot: Snapshot) -> None:
        history, configuration = self.history, self.members[identity].raft.configuration
        require(snapshot.index <= history.committed_max, "a snapshot holds committed entries only")
        require(history.committed[snapshot.index].term == snapshot.term, "a snapshot is of the group's log")
        require(
            snapshot.configuration == history.configuration_at(snapshot.index),
            "a snapshot carries its configuration",
        )
        require(configuration == snapshot.configuration, "an installed configuration is in force")
        self.seen["snapshot installed"] += 1
        self.seen["snapshot installed by a learner"] += identity in configuration.learners
        self.seen["snapshot with a changed configuration"] += len(history.configurations) > 1

    def _check_durable(self, raft: Raft) -> None:
        index = raft.commit_index
        term = raft.term_at(index)
        assert term is not None
        holders = [i for i, member in self.members.items() if member.disk.holds(index, term)]
        for voters in (raft.configuration.voters, raft.configuration.outgoing):
            have = len([voter for voter in voters if voter in holders])
            require(not voters or 2 * have > len(voters), f"a majority holds committed entry {index} on disk")

    def _deliver_effects(self, identity: int, member: Member, ready: Ready) -> None:
        self._send(ready.messages)
        after = ready.messages_after_persist
        if "acknowledges before persisting" in self.bugs:
            self._send(after)
            after = ()
        if "asks for votes before its own is durable" in self.bugs:
            self._send(message for message in after if isinstance(message, VoteRequest))
            after = tuple(message for message in after if not isinstance(message, VoteRequest))
        if ready.persisted is not None or after:
            member.writes.append(
                Write(ready.hard_state, ready.snapshot, ready.entries, ready.persisted, after)
            )
        member.wanted.extend(ready.chunks_wanted)
        if member.arriving and member.raft.state.incoming is None:
            self.seen["log reached the snapshot first"] += ready.snapshot is None
        if ready.snapshot_offered is not None:
            member.arriving = [ready.snapshot_offered]
        if ready.chunk_received is not None:
            require(not member.arriving, "one chunk is handed out at a time")
            member.arriving = [ready.chunk_received]
        self._count(ready)
        self._apply(member, ready.committed)
        persisted = ready.persisted if member.raft.is_leader else None
        if persisted is not None and "leader counts itself before persisting" in self.bugs:
            self.step(identity, persisted)

    def _count(self, ready: Ready) -> None:
        self.seen["read answered"] += len(ready.read_states)
        self.seen["read refused"] += len(ready.reads_refused)
        if ready.refused is not None:
            self.seen[f"refused: {ready.refused.reason.value}"] += 1
        if ready.soft_state is not None and ready.soft_state.role is Role.LEADER:
            self.seen["leader elected"] += 1
        for message in ready.messages:
            self.seen["append rejected"] += isinstance(message, AppendReply) and message.rejected
            self.seen["leadership handed over"] += isinstance(message, TimeoutNow)

    def _send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self.random.random() >= self.loss:
                self.network.append(message)
            elif isinstance(message, InstallSnapshot | InstallReply):
                self.seen["chunk or its answer lost"] += 1

    def _apply(self, member: Member, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            require(entry.index == member.handed + 1, "entries are applied in order, without gaps")
            self.history.commits(entry)
            member.handed = entry.index
            if entry.index <= member.applied:
                continue
            member.applied = entry.index
            member.state = zlib.crc32(b"%d %d " % (entry.index, entry.term) + entry.data, member.state)
            self.history.applies(member.applied, member.state)

    def complete_write(self, identity: int) -> None:
        """The oldest outstanding write becomes durable."""
        member = self.members[identity]
        write = member.writes.popleft()
        self._write(member.disk, write)
        if write.snapshot is not None:
            self._install(member, write.snapshot)
        self._send(write.messages)
        if write.persisted is not None:
            self.step(identity, write.persisted)

    def _install(self, member: Member, snapshot: Snapshot) -> None:
        """The state machine takes the stored bytes, unless it is further already."""
        member.handed = snapshot.index
        if member.applied >= snapshot.index:
            return
        data = member.disk.stored(snapshot)
        require(len(data) == snapshot.size_bytes, "a snapshot is installed when all its bytes are here")
        index, state = map(int, data.split(b";")[:2])
        require(data == snapshot_bytes(snapshot.index, state), "the bytes are those of the snapshot")
        member.applied, member.state = index, state
        self.history.applies(member.applied, member.state)

    def _write(self, disk: Disk, write: Write, parts: int = 1_000_000) -> None:
        if "forgets its vote" in self.bugs and write.hard_state is not None:
            write.hard_state = HardState(write.hard_state.term, None)
        disk.do(write, parts)

    # -- snapshots on their way

    def answer_chunk(self, identity: int) -> None:
        """The driver reads bytes that a member wants, or answers what arrived."""
        member = self.members[identity]
        if member.arriving:
            arrived = member.arriving.pop()
            if isinstance(arrived, Snapshot):
                self._answer_offer(identity, arrived)
            else:
                self._store(identity, arrived)
        elif member.wanted:
            self._read(identity, member.wanted.pop(self.random.randrange(len(member.wanted))))

    def _read(self, identity: int, wanted: ChunkWanted) -> None:
        disk, snapshot = self.members[identity].disk, wanted.snapshot
        data = disk.stored(snapshot)
        if len(data) != snapshot.size_bytes or self.random.random() < self.damage:
            self.seen["chunk cannot be read"] += 1
            self.step(identity, SnapshotFailed(wanted.member, snapshot))
            return
        size = self.random.randrange(1, wanted.bytes_max + 1)
        chunk = data[wanted.offset : wanted.offset + size]
        self.step(identity, SnapshotChunk(wanted.member, snapshot, wanted.offset, chunk))

    def _answer_offer(self, identity: int, snapshot: Snapshot) -> None:
        member, rng = self.members[identity], self.random
        if "says that a snapshot is present" in self.bugs and rng.random() < 0.1:
            self.step(identity, SnapshotPresent(snapshot))
            return
        if rng.random() < self.pulls and member.applied < snapshot.index:
            member.applied = rng.choice([i for i in self.history.states if i >= snapshot.index])
            member.state = self.history.states[member.applied]
        if member.applied >= snapshot.index:
            self.seen["snapshot is present"] += 1
            state = self.history.states[snapshot.index]
            member.disk.store(snapshot, snapshot_bytes(snapshot.index, state))
            self.step(identity, SnapshotPresent(snapshot))
            return
        stored = member.disk.stored(snapshot)
        self.seen["transfer resumed"] += bool(stored)
        self.step(identity, ChunkStored(snapshot, len(stored)))

    def _store(self, identity: int, chunk: ChunkReceived) -> None:
        disk, snapshot = self.members[identity].disk, chunk.snapshot
        stored = disk.stored(snapshot)
        require(chunk.offset == len(stored), "chunks join without gap or overlap")
        stored += chunk.data
        require(len(stored) <= snapshot.size_bytes, "a snapshot has its size")
        self.seen["chunk stored"] += 1
        self.seen["chunk in the middle"] += (
            len(stored) > len(chunk.data) and len(stored) < snapshot.size_bytes
        )
        if self.random.random() < self.damage:
            self.seen["stored bytes damaged"] += 1
            stored = b""
        disk.store(snapshot, stored)
        done = snapshot.size_bytes if "installs the first part" in self.bugs else len(stored)
        self.step(identity, ChunkStored(snapshot, done))

    # -- faults

    def crash(self, identity: int) -> None:
        """Keep a prefix of the outstanding writes, lose the rest and all memory; start again."""
        member, rng = self.members[identity], self.random
        for write in list(member.writes)[: rng.randrange(len(member.writes) + 1)]:
            self._write(member.disk, write)
            member.writes.popleft()
        if member.writes and rng.random() < 0.5:
            self._write(member.disk, member.writes[0], rng.randrange(6))
        disk = member.disk
        self.seen["crash loses writes"] += bool(member.writes)
        kept = (disk.snapshot.index, disk.snapshot.term) if disk.snapshot is not None else None
        for name, data in disk.files.items():
            if name != kept and rng.random() < 0.5:
                disk.files[name] = data[: rng.randrange(len(data) + 1)]
        base = disk.snapshot.index if disk.snapshot is not None else 0
        if member.handed < base or rng.random() < 0.5:
            member.handed = 0
            if rng.random() < 0.5:
                member.applied = member.state = 0
            if disk.snapshot is not None:
                self._install(member, disk.snapshot)
        stored = Stored(disk.hard_state, disk.snapshot, tuple(disk.entries), member.handed)
        member.raft = self._raft(identity, stored)
        member.writes = deque()
        member.wanted, member.arriving = [], []
        member.incarnation += 1
        member.commit_seen = member.raft.commit_index
        member.raft.validate()

    def compact(self, identity: int) -> None:
        member, rng = self.members[identity], self.random
        raft, index = member.raft, member.handed
        if (
            index != member.applied
            or index < raft.first_index
            or any(write.snapshot for write in member.writes)
        ):
            return
        keep = rng.randrange(5)
        data = snapshot_bytes(index, member.state)
        event = Compact(index, b"%d" % member.state, size_bytes=len(data), keep_entries=keep)
        self.step(identity, event)
        disk, snapshot = member.disk, raft.snapshot
        if snapshot is not None and snapshot.index == index:
            configuration = self.history.configuration_at(index)
            require(snapshot.configuration == configuration, "a snapshot carries its configuration")
            disk.snapshot = snapshot
            disk.store(snapshot, data)
            disk.entries = [e for e in disk.entries if e.index > index - keep]
            for name in sorted(disk.files)[: -rng.randrange(1, 3)]:
                if name != (index, snapshot.term):
                    del disk.files[name]

    def deliver(self, position: int) -> None:
        network = self.network
        network[position], network[-1] = network[-1], network[position]
        message = network.pop()
        if (message.sender, message.receiver) in self.blocked:
            return
        if self.random.random() < self.double:
            network.append(message)
        self._count_delivery(message)
        self.step(message.receiver, Received(message))

    def _count_delivery(self, message: Message) -> None:
        incoming = self.members[message.receiver].raft.state.incoming
        if incoming is None or not isinstance(message, InstallSnapshot):
            return
        if message.snapshot != incoming.snapshot:
            self.seen["another snapshot replaces the one arriving"] += 1
            return
        self.seen["transfer goes on under a new leader"] += message.term > incoming.leader_term
        if message.data and message.offset != incoming.next_offset:
            self.seen["chunk that is not wanted"] += 1

    def partition(self) -> None:
        identities = list(self.members)
        side = set(self.random.sample(identities, self.random.randrange(1, len(identities))))
        pairs = [(a, b) for a in identities for b in identities if a != b]
        self.blocked = {(a, b) for a, b in pairs if (a in side) != (b in side)}
        if self.random.random() < 0.3:
            self.blocked = {(a, b) for a, b in self.blocked if a in side}

    # -- schedule

    def leaders(self) -> list[int]:
        return [i for i, member in self.members.items() if member.raft.is_leader]

    def change_members(self, leader: int) -> None:
        rng = self.random
        identities = list(self.members)
        voters = sorted(rng.sample(identities, rng.randrange(1, len(identities) + 1)))
        learners = [i for i in identities if i not in voters and rng.random() < 0.5]
        before = self.members[leader].raft.configuration
        target = Configuration(tuple(voters), (), tuple(learners))
        if self.step(leader, ProposeConfiguration(target)).accepted is not None:
            self.seen["leader removes itself"] += leader not in target.members()
            self.seen["leader becomes a learner"] += leader in learners
            self.seen["voter becomes a learner"] += any(i in learners for i in before.voters)
            self.seen["learner becomes a voter"] += any(i in voters for i in before.learners)
            self.seen["change of one voter"] += len({*voters} ^ {*before.voters}) == 1
            self.seen["change in two steps"] += self.members[leader].raft.configuration.is_joint

    def ask(self, leader: int) -> None:
        """Something a client or operator wants of who believes to lead."""
        rng = self.random
        if rng.random() < self.change_share and self.changes_members:
            self.change_members(leader)
            return
        kind = rng.randrange(18)
        if kind < 9:
            data = tuple(b"%d-%d" % (self.steps, n) for n in range(rng.randrange(1, 4)))
            self.step(leader, Propose(data))
        elif kind < 16:
            self.reads[self.steps] = self.history.committed_max
            self.step(leader, ReadIndex(self.steps))
        elif kind < 17:
            self.step(leader, TransferLeadership(rng.choice(list(self.members))))
        else:
            self.step(leader, Unreachable(rng.choice(list(self.members))))
            self.step(rng.choice(list(self.members)), ForgetLeader())

    def disturb(self) -> None:
        rng = self.random
        identity = rng.choice(list(self.members))
        kind = rng.randrange(10)
        if kind < 4:
            self.crash(identity)
            if rng.random() < 0.3:
                self.step(identity, Campaign())
        elif kind < 6:
            self.partition()
        elif kind < 8:
            self.blocked = set()
        elif kind < 9:
            self.compact(identity)
        else:
            self.blocked = set()
            self.step(identity, Campaign())

    def run(self, actions: int) -> None:
        rng = self.random
        identities = list(self.members)
        for _ in range(actions):
            dice = rng.random()
            if rng.random() < self.compacts / 10:
                self.compact(rng.choice(identities))
            if dice < 0.5 and self.network:
                window = len(self.network) if rng.random() < self.shuffle else min(4, len(self.network))
                self.deliver(rng.randrange(window))
            elif dice < 0.75:
                identity = rng.choice(identities)
                if rng.random() < self.chunk_speed:
                    self.answer_chunk(identity)
                if self.members[identity].writes and rng.random() < self.disk_speed[identity]:
                    self.complete_write(identity)
            elif dice < 0.88:
                self.step(rng.choice(identities), Tick())
            elif dice < 1 - self.chaos:
                leaders = self.leaders()
                if leaders:
                    self.ask(rng.choice(leaders))
            else:
                self.disturb()

    def settle(self, rounds: int = 400) -> None:
        """Heal everything; the group must elect a leader and bring every member up to date."""
        self.blocked, self.loss, self.double, self.damage = set(), 0.0, 0.0, 0.0
        for _ in range(rounds):
            for identity in self.members:
                self.step(identity, Tick())
            self.drain()
            if self._is_settled():
                break
        else:
            raise Violation("a healed group elects a leader and catches up")
        for member in self.members.values():
            member.raft.validate()

    def isolate(self, identity: int) -> None:
        others = [other for other in self.members if other != identity]
        self.blocked = {pair for other in others for pair in ((identity, other), (other, identity))}

    def drain(self) -> None:
        self.drain_until(lambda: False)

    def drain_until(self, is_enough: Callable[[], bool]) -> None:
        """Write everything and deliver in some order, until nothing is left or it is enough."""
        for _ in range(100_000):
            for identity, member in self.members.items():
                if member.writes and not is_enough():
                    self.complete_write(identity)
                while (member.arriving or member.wanted) and not is_enough():
                    self.answer_chunk(identity)
            if is_enough():
                return
            if self.network:
                self.deliver(0)
            elif not any(member.writes for member in self.members.values()):
                return
        raise Violation("the group comes to rest")

    def _is_settled(self) -> bool:
        leaders = self.leaders()
        if not leaders:
            return False
        leader = max(leaders, key=lambda i: self.members[i].raft.term)
        raft = self.members[leader].raft
        if raft.commit_index != raft.last_index or raft.configuration.is_joint:
            return False
        if any(self.members[i].handed != raft.commit_index for i in raft.configuration.members()):
            return False
        ready = self.step(leader, Propose((b"last",)))
        self.drain()
        accepted = ready.accepted
        return accepted is not None and raft.commit_index >= accepted.last_index


def simulate(seed: int, weather: Weather = "mixed", actions: int = 1500) -> Group:
    """One seed from start to a healed end. Violation or AssertionError when a promise is broken."""
    group = Group(seed, weather=weather)
    group.run(actions)
    group.settle()
    return group
