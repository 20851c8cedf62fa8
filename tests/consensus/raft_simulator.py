"""A whole group in memory under a seeded schedule: lossy network, disks that lose what was not synced.

Everything a driver may do late, twice or never happens here: messages are dropped, doubled and reordered,
writes complete in order but at any time, crashes keep any prefix of the outstanding writes. The checks are
made on everything each step hands out; the first broken one raises Violation.
"""

from __future__ import annotations

import random
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.effects import HardState, Ready, Role, Stored
from lockstep.consensus.events import (
    Campaign,
    Compact,
    Event,
    Persisted,
    Propose,
    ProposeConfiguration,
    ReadIndex,
    Received,
    Tick,
    TransferLeadership,
    Unreachable,
)
from lockstep.consensus.messages import Entry, Message, Snapshot, VoteRequest
from lockstep.consensus.raft import Raft
from lockstep.consensus.settings import RaftSettings


class Violation(AssertionError):
    """A promise of the group was broken."""


def require(condition: bool, promise: str) -> None:
    if not condition:
        raise Violation(promise)


@dataclass
class Write:
    """One Ready's writes on their way to the disk."""

    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    persisted: Persisted | None
    messages: tuple[Message, ...]


@dataclass
class Disk:
    """What survives a crash."""

    hard_state: HardState = field(default_factory=HardState)
    snapshot: Snapshot | None = None
    entries: list[Entry] = field(default_factory=list)

    def do(self, write: Write, parts: int = 1_000_000) -> None:
        """Carry out the first `parts` parts of a write: hard state, snapshot, then entry by entry."""
        if write.hard_state is not None and parts > 0:
            self.hard_state = write.hard_state
        if write.snapshot is not None and parts > 1:
            self.snapshot, self.entries = write.snapshot, []
        if write.entries and parts > 2:
            first = write.entries[0].index
            self.entries = [entry for entry in self.entries if entry.index < first]
            self.entries.extend(write.entries[: parts - 2])

    def holds(self, index: int, term: int) -> bool:
        if self.snapshot is not None and self.snapshot.index >= index:
            return True
        if not self.entries:
            return False
        offset = index - self.entries[0].index
        return 0 <= offset < len(self.entries) and self.entries[offset].term == term


@dataclass
class Member:
    raft: Raft
    disk: Disk = field(default_factory=Disk)
    writes: deque[Write] = field(default_factory=deque)
    applied: int = 0
    state: int = 0
    incarnation: int = 0
    commit_seen: int = 0


class History:
    """Everything that was ever promised in the group, over all members and incarnations."""

    def __init__(self) -> None:
        self.leaders: dict[int, tuple[int, int]] = {}
        self.entries: dict[tuple[int, int], tuple[int, Entry]] = {}
        self.committed: dict[int, Entry] = {}
        self.committed_max = 0
        self.states: dict[int, int] = {0: 0}

    def leads(self, term: int, identity: int, member: Member) -> None:
        who = (identity, member.incarnation)
        require(self.leaders.setdefault(term, who) == who, f"one leader in term {term}")
        raft = member.raft
        for index in range(raft.first_index, self.committed_max + 1):
            require(raft.term_at(index) == self.committed[index].term, "a leader holds all committed entries")

    def appended(self, entry: Entry, previous_term: int | None) -> None:
        if previous_term is not None:
            known = self.entries.setdefault((entry.index, entry.term), (previous_term, entry))
            require(known == (previous_term, entry), f"logs match at {entry.index}/{entry.term}")

    def commits(self, entry: Entry) -> None:
        known = self.committed.setdefault(entry.index, entry)
        require(known == entry, f"one committed entry at {entry.index}")
        self.committed_max = max(self.committed_max, entry.index)

    def applies(self, index: int, state: int) -> None:
        require(self.states.setdefault(index, state) == state, f"one state at {index}")


class Group:
    """`bugs` names faults of the driver to plant (see `_deliver_effects` and `_write`). A `storm` is three
    voters with nothing that calms elections, for faults that need several leaders within a few entries."""

    def __init__(self, seed: int, bugs: frozenset[str] = frozenset(), storm: bool = False) -> None:
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
            pre_vote=rng.random() < 0.6,
            check_quorum=rng.random() < 0.6,
        )
        if storm:
            self.size, self.voters = 3, (1, 2, 3)
            self.settings = msgspec.structs.replace(
                self.settings, append_bytes_max=1, in_flight_appends_max=1, pre_vote=False, check_quorum=False
            )
        self.history = History()
        self.network: list[Message] = []
        self.blocked: set[tuple[int, int]] = set()
        self.reads: dict[int, int] = {}
        self.loss, self.double = rng.choice(((0.0, 0.0), (0.05, 0.05), (0.2, 0.1)))
        self.steps = 0
        #: Share of actions that disturb, and how often a turn of each member's disk completes a write.
        self.chaos = 0.1 if storm else rng.choice((0.01, 0.03, 0.1))
        self.disk_speed = [rng.choice((0.03, 0.5, 1.0)) for _ in range(self.size + 1)]
        self.changes_members = rng.random() < 0.5
        self.members = {i: Member(self._raft(i, Stored())) for i in range(1, self.size + 1)}

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
        if raft.is_leader and raft.commit_index > member.commit_seen:
            self._check_durable(raft)
        member.commit_seen = raft.commit_index
        if ready.soft_state is not None and ready.soft_state.role is Role.LEADER:
            history.leads(raft.term, identity, member)
        for read in ready.read_states:
            require(read.index >= self.reads[read.context], "a read sees everything committed before it")
        if self.steps % 16 == 0:
            raft.validate()

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
        self._apply(member, ready.committed)
        persisted = ready.persisted if member.raft.is_leader else None
        if persisted is not None and "leader counts itself before persisting" in self.bugs:
            self.step(identity, persisted)

    def _send(self, messages: Iterable[Message]) -> None:
        for message in messages:
            if self.random.random() >= self.loss:
                self.network.append(message)

    def _apply(self, member: Member, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            require(entry.index == member.applied + 1, "entries are applied in order, without gaps")
            self.history.commits(entry)
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
        member.applied, member.state = snapshot.index, int(snapshot.data)
        self.history.applies(member.applied, member.state)

    def _write(self, disk: Disk, write: Write, parts: int = 1_000_000) -> None:
        if "forgets its vote" in self.bugs and write.hard_state is not None:
            write.hard_state = HardState(write.hard_state.term, None)
        disk.do(write, parts)

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
        base = disk.snapshot.index if disk.snapshot is not None else 0
        if member.applied < base or rng.random() < 0.5:
            member.applied = member.state = 0
            if disk.snapshot is not None:
                self._install(member, disk.snapshot)
        stored = Stored(disk.hard_state, disk.snapshot, tuple(disk.entries), member.applied)
        member.raft = self._raft(identity, stored)
        member.writes = deque()
        member.incarnation += 1
        member.commit_seen = member.raft.commit_index
        member.raft.validate()

    def compact(self, identity: int) -> None:
        member = self.members[identity]
        raft, index = member.raft, member.applied
        if index < raft.first_index or any(write.snapshot for write in member.writes):
            return
        keep = self.random.randrange(5)
        self.step(identity, Compact(index, b"%d" % member.state, keep_entries=keep))
        if raft.snapshot is not None and raft.snapshot.index == index:
            member.disk.snapshot = raft.snapshot
            member.disk.entries = [e for e in member.disk.entries if e.index > index - keep]

    def deliver(self, position: int) -> None:
        network = self.network
        network[position], network[-1] = network[-1], network[position]
        message = network.pop()
        if (message.sender, message.receiver) in self.blocked:
            return
        if self.random.random() < self.double:
            network.append(message)
        self.step(message.receiver, Received(message))

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
        self.step(leader, ProposeConfiguration(Configuration(tuple(voters), (), tuple(learners))))

    def ask(self, leader: int) -> None:
        """Something a client or operator wants of who believes to lead."""
        rng = self.random
        kind = rng.randrange(20)
        if kind < 9:
            data = tuple(b"%d-%d" % (self.steps, n) for n in range(rng.randrange(1, 4)))
            self.step(leader, Propose(data))
        elif kind < 16:
            self.reads[self.steps] = self.history.committed_max
            self.step(leader, ReadIndex(self.steps))
        elif kind < 17:
            self.step(leader, TransferLeadership(rng.choice(list(self.members))))
        elif kind < 18:
            self.step(leader, Unreachable(rng.choice(list(self.members))))
        elif self.changes_members:
            self.change_members(leader)

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
            if dice < 0.5 and self.network:
                window = len(self.network) if rng.random() < 0.2 else min(4, len(self.network))
                self.deliver(rng.randrange(window))
            elif dice < 0.75:
                identity = rng.choice(identities)
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
        self.blocked, self.loss, self.double = set(), 0.0, 0.0
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
        if any(self.members[i].applied != raft.commit_index for i in raft.configuration.members()):
            return False
        ready = self.step(leader, Propose((b"last",)))
        self.drain()
        accepted = ready.accepted
        return accepted is not None and raft.commit_index >= accepted.last_index


def simulate(seed: int, *, actions: int = 1500, bugs: frozenset[str] = frozenset()) -> Group:
    """One seed from start to a healed end. Violation or AssertionError when a promise is broken."""
    group = Group(seed, bugs)
    group.run(actions)
    group.settle()
    return group
