"""Drives one Raft machine: ticks it, persists and sends what it asks, hands out what it commits; messages
between nodes, one verb for all groups, each handed to its group's machine; and the bounds of what a group
keeps and sends.

Invariant: the contract of `consensus.effects` is kept: what promises something about this node's disk is sent
only after the write behind it is durable; one write is in flight at a time and covers everything that was
handed out while the previous one ran (group commit). Each write also says what is committed by then; whoever
needs a commit to be durable waits for that (`mark`). A message counts only when it comes from the very host
that is the member it names. After a failure the machine takes no further step. Several groups live on one
node side by side: their drivers share nothing but the transport. Every question is answered once, or its
asker has gone. A message reaches only the member of the group that it names; one for a group that has no
member on this node is dropped, as a lost one would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from lockstep.consensus.configuration import Configuration, RaftSettings
from lockstep.consensus.effects import NOTHING, Accepted, HardState, Ready, Reason, Refused, Role, Stored
from lockstep.consensus.events import (
    Campaign,
    ChunkStored,
    Compact,
    Event,
    Persisted,
    Propose,
    ProposeConfiguration,
    ReadIndex,
    Received,
    SnapshotFailed,
    SnapshotPresent,
    Tick,
    TransferLeadership,
)
from lockstep.consensus.messages import Entry, Message, Snapshot, decode_message, encode_message
from lockstep.consensus.raft import Raft, RaftStatus
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.node.log.commit_marks import CommitMarks
from lockstep.node.log.journal import RaftJournal
from lockstep.node.membership.voters import Member
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import CannotApply, FrameCorrupt, LockstepError, NotLeader
from lockstep.values.limits import MANAGEMENT_SNAPSHOT_ENTRIES, RAFT_KEPT_BYTES_MAX, RAFT_KEPT_ENTRIES


class RaftPayload(msgspec.Struct, frozen=True, array_like=True):
    """One Raft message on its way between nodes, already encoded."""

    data: bytes


class GroupMember(Protocol):
    """What gets a group's messages on this node."""

    group: int

    def received(self, peer: PeerInfo, message: Message) -> None: ...


class RaftTransport:
    def __init__(self, internode: Internode) -> None:
        self._internode = internode
        self._members: dict[int, GroupMember] = {}
        internode.register_fast(verbs.RAFT, RaftPayload, RaftPayload, self._receive)

    def attach(self, member: GroupMember) -> None:
        assert member.group not in self._members, f"group {member.group} has one member on a node"
        self._members[member.group] = member

    def detach(self, member: GroupMember) -> None:
        if self._members.get(member.group) is member:
            del self._members[member.group]

    def send(self, address: Address, message: Message) -> None:
        self._internode.send(address, verbs.RAFT, RaftPayload(encode_message(message)))

    def _receive(self, peer: PeerInfo, payload: RaftPayload, _respond: object) -> None:
        try:
            message = decode_message(payload.data)
        except msgspec.MsgspecError as error:
            raise FrameCorrupt(f"not a Raft message: {error}") from error
        member = self._members.get(message.group)
        if member is not None:
            member.received(peer, message)


class PendingReads:
    """Questions by their context, a number that is never used twice."""

    def __init__(self) -> None:
        self._waiting: dict[int, asyncio.Future[None]] = {}
        self._newest = 0

    async def ask(self, put: Callable[[int], None]) -> None:
        """`put` the question with its context, and return once it is confirmed; NotLeader otherwise."""
        self._newest += 1
        context = self._newest
        answer = self._waiting[context] = asyncio.get_running_loop().create_future()
        try:
            put(context)
            await answer
        finally:
            self._waiting.pop(context, None)

    def confirm(self, context: int) -> None:
        answer = self._waiting.get(context)
        if answer is not None and not answer.done():
            answer.set_result(None)

    def refuse(self, context: int, reason: NotLeader) -> None:
        answer = self._waiting.get(context)
        if answer is not None and not answer.done():
            answer.set_exception(reason)

    def refuse_all(self, reason: NotLeader) -> None:
        for context in list(self._waiting):
            self.refuse(context, reason)


class _Write(msgspec.Struct):
    hard_state: HardState | None
    snapshot: Snapshot | None
    entries: tuple[Entry, ...]
    persisted: Persisted | None
    messages: tuple[Message, ...]


class Snapshots(Protocol):
    """The state machine's side of a group's snapshots. Their bytes never travel with the group: a state
    comes another way (`present` waits for that), or it is small and is the descriptor's data itself."""

    async def present(self, snapshot: Snapshot) -> None:
        """Return when the state machine holds that state or a later one. Only asked where it has bytes."""
        ...

    def install(self, snapshot: Snapshot) -> None:
        """The descriptor is durable: whatever the state machine lacks of it, it takes now."""
        ...

    async def settle(self) -> None:
        """Return when the state machine needs no entry of the journal any more that it has taken so far:
        the journal is about to be written anew, with less."""
        ...


class GroupPlace(msgspec.Struct, frozen=True, eq=False):
    """Which member of which group.

    `voters`: those the group was founded with, equal on all founders; empty for a member that waits to be
    added and learns everything from the log. `member(id)` is where a member is now.
    """

    group: int
    identity: int
    voters: Sequence[int]
    member: Callable[[int], Member | None]


class GroupPace(msgspec.Struct, frozen=True):
    """`settings` count in ticks."""

    settings: RaftSettings
    tick_ms: int


class GroupEvents(msgspec.Struct, frozen=True, eq=False):
    """`on_committed(entries)` gets committed entries in order; `on_role()` is told of each role change;
    `on_broken(reason)` when the member must stop for good."""

    on_committed: Callable[[tuple[Entry, ...]], None]
    on_role: Callable[[], None]
    on_broken: Callable[[LockstepError], None]


class RaftDriver:
    """One member of one group; one that is never compacted needs no `snapshots`."""

    def __init__(
        self,
        runtime: Runtime,
        transport: RaftTransport,
        place: GroupPlace,
        pace: GroupPace,
        events: GroupEvents,
        snapshots: Snapshots | None = None,
    ) -> None:
        self._runtime = runtime
        self._transport = transport
        self.group = place.group
        self._member = place.member
        self._halted = False
        self._tick_s = pace.tick_ms / 1000
        self._on_committed = events.on_committed
        self._on_role = events.on_role
        self._on_broken = events.on_broken
        self._snapshots = snapshots
        #: The snapshot that is being waited for, after a leader offered it.
        self._offered: tuple[Snapshot, asyncio.Task[None]] | None = None
        #: The journal is written anew at the next write.
        self._replace_journal = False
        self._journal = RaftJournal(runtime.disk, place.group)
        stored = self._journal.load()
        self.raft = Raft(
            place.group,
            place.identity,
            sorted(place.voters),
            pace.settings,
            runtime.random.below,
            Stored(
                hard_state=stored.hard_state,
                snapshot=stored.snapshot,
                entries=stored.entries,
                commit_index=stored.commit_index,
            ),
        )
        self._marks = CommitMarks(stored.commit_index)
        self._writes: list[_Write] = []
        self._write_wanted = asyncio.Event()
        self._reads = PendingReads()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        spawn = self._runtime.tasks.spawn
        self._transport.attach(self)
        self._tasks = [
            spawn(self._persist_loop(), f"raft.{self.group}.persist"),
            spawn(self._tick_loop(), f"raft.{self.group}.tick"),
        ]

    async def stop(self) -> None:
        """End this member on this node, as when it was removed from the group; its files stay.

        Returns when nothing of it runs any more, so that another driver of the group may be made.
        """
        self.halt()
        self._transport.detach(self)
        self._write_wanted.set()
        tasks, self._tasks = self._tasks, []
        if tasks:
            persisting, ticking = tasks
            ticking.cancel()
            self._forget_offer()
            # A write under way is finished: what a file holds after half of one is not known.
            await asyncio.wait([persisting])

    @property
    def is_leader(self) -> bool:
        return self.raft.role is Role.LEADER and not self._halted

    @property
    def leader_address(self) -> Address | None:
        leader = self.raft.leader
        member = self._member(leader) if leader is not None else None
        return member.address if member is not None else None

    def halt(self) -> None:
        """Take no further step: no vote, no acknowledgement, no leadership."""
        if self._halted:
            return
        self._halted = True
        self._marks.end()
        self._reads.refuse_all(NotLeader(None))
        self._on_role()

    def propose(self, data: tuple[bytes, ...]) -> Accepted | None:
        """Append at the leader now, all of it; None when the machine refuses (it lost leadership, or too
        much is waiting)."""
        return self._step(Propose(data)).accepted

    def propose_configuration(self, target: Configuration) -> Accepted | Refused:
        """Change the group's members; the machine walks through the joint step by itself."""
        return self._answer(ProposeConfiguration(target))

    def transfer(self, member: int) -> Refused | None:
        """Hand leadership to a voter. None: it was started; watch `on_role`, for it may come to nothing."""
        return self._step(TransferLeadership(member)).refused if not self._halted else self._not_leading()

    def compact(self, index: int, data: bytes, size_bytes: int = 0) -> None:
        """A snapshot of the state at `index`, which was handed out as committed, is durable: `data` says
        which (it is all of it when size_bytes is 0). Entries that members may lack are kept within bounds."""
        raft = self.raft
        if self._halted or index < raft.first_index:
            return
        keep = self._kept_up_to(index)
        self._step(Compact(index=index, data=data, size_bytes=size_bytes, keep_entries=keep))
        if raft.snapshot is not None and raft.snapshot.index == index:
            self._replace_journal = True
            self._write_wanted.set()

    def _kept_up_to(self, index: int) -> int:
        """How many entries up to `index` stay for members that lag."""
        raft, size = self.raft, 0
        most = min(RAFT_KEPT_ENTRIES, index - raft.first_index + 1)
        for kept in range(most):
            size += len(raft.entry(index - kept).data)
            if size > RAFT_KEPT_BYTES_MAX:
                return kept
        return most

    async def mark(self, index: int) -> bool:
        """Return once the journal says durably that `index`, which was handed out, is committed; False when
        this member ends before."""
        marked = self._marks.wait(index)
        if self._marks.is_due:
            self._write_wanted.set()
        return await marked

    def status(self) -> RaftStatus:
        return self.raft.status()

    def _answer(self, event: Event) -> Accepted | Refused:
        ready = self._step(event)
        return ready.accepted or ready.refused or self._not_leading()

    def _not_leading(self) -> Refused:
        return Refused(Reason.NOT_LEADER, self.raft.leader)

    def campaign(self) -> None:
        """Ask for leadership now instead of after an election timeout; harmless where a leader lives."""
        if self.raft.leader is None:
            self._step(Campaign())

    async def confirm_leadership(self) -> None:
        """Return once a quorum confirmed, after this call, that this node leads; NotLeader otherwise."""
        await self._reads.ask(self._ask_quorum)

    def _ask_quorum(self, context: int) -> None:
        self._step(ReadIndex(context))
        if self._halted:
            self._reads.refuse(context, NotLeader(None))

    def received(self, peer: PeerInfo, message: Message) -> None:
        """A message of this group came from `peer`. FrameCorrupt: not its to send, or not ours to get."""
        if message.receiver != self.raft.identity:
            raise FrameCorrupt("a Raft message for another member")
        member = self._member(message.sender)
        if member is None or member.host_id != peer.host_id:
            raise FrameCorrupt(f"host {peer.host_id} is not member {message.sender}")
        self._step(Received(message))

    def _step(self, event: Event) -> Ready:
        if self._halted:
            return NOTHING
        try:
            ready = self.raft.step(event)
            if ready:
                self._execute(ready)
        except Exception as defect:
            self.fail(CannotApply(f"an invariant of the consensus group is broken: {defect!r}"))
            raise
        return ready

    def fail(self, error: LockstepError) -> None:
        """This member takes no further step: what was handed out cannot be applied, or its disk failed."""
        self.halt()
        self._on_broken(error)

    def _execute(self, ready: Ready) -> None:
        for message in ready.messages:
            self._send(message)
        if ready.persisted is not None or ready.messages_after_persist:
            if ready.entries:
                self._marks.accompanied()
            self._writes.append(
                _Write(
                    ready.hard_state,
                    ready.snapshot,
                    ready.entries,
                    ready.persisted,
                    ready.messages_after_persist,
                )
            )
            self._write_wanted.set()
        if ready.chunks_wanted or ready.snapshot_offered is not None:
            self._move_snapshots(ready)
        if ready.soft_state is not None:
            if ready.soft_state.role is Role.LEADER:
                self._runtime.probes.reach("raft.became_leader")
            self._runtime.probes.observe(
                "raft.role",
                group=self.group,
                role=ready.soft_state.role.value,
                term=ready.soft_state.term,
                identity=self.raft.identity,
            )
            self._on_role()
        if ready.committed:
            self._on_committed(ready.committed)
        for state in ready.read_states:
            self._reads.confirm(state.context)
        for context in ready.reads_refused:
            self._reads.refuse(context, NotLeader(self.raft.leader))

    def _move_snapshots(self, ready: Ready) -> None:
        for wanted in ready.chunks_wanted:
            # Members get the state from their peers, not here; whoever asks is offered the newest again.
            self._step(SnapshotFailed(wanted.member, wanted.snapshot))
        offered = ready.snapshot_offered
        if offered is None:
            return
        if offered.size_bytes == 0:
            self._step(ChunkStored(offered, 0))
        elif self._offered is None or self._offered[0] != offered:
            self._forget_offer()
            name = f"raft.{self.group}.snapshot"
            self._offered = (offered, self._runtime.tasks.spawn(self._await_state(offered), name))

    async def _await_state(self, offered: Snapshot) -> None:
        assert self._snapshots is not None, "a group with snapshots has a state machine that knows them"
        try:
            await self._snapshots.present(offered)
        except LockstepError as error:
            self.fail(error)
            return
        self._offered = None
        self._runtime.probes.reach("raft.snapshot.present")
        self._step(SnapshotPresent(offered))

    def _forget_offer(self) -> None:
        if self._offered is not None:
            self._offered[1].cancel()
            self._offered = None

    def _send(self, message: Message) -> None:
        member = self._member(message.receiver)
        if member is not None:
            self._transport.send(member.address, message)

    async def _tick_loop(self) -> None:
        while not self._halted:
            await asyncio.sleep(self._tick_s)
            self._step(Tick())

    async def _persist_loop(self) -> None:
        try:
            while not self._halted:
                await self._write_wanted.wait()
                self._write_wanted.clear()
                if self._marks.is_due and not self._writes and not self._replace_journal:
                    await self._marks.company(self._write_wanted)
                writes, self._writes = self._writes, []
                await self._persist(writes)
        except LockstepError as error:
            self.fail(error)
        except Exception as defect:
            self.fail(CannotApply(f"writing the Raft journal failed: {defect!r}"))
            raise

    async def _persist(self, writes: list[_Write]) -> None:
        if self._replace_journal or any(write.snapshot is not None for write in writes):
            await self._persist_anew(writes)
        else:
            await self._persist_more(writes)
        if self._halted:
            return
        for write in writes:
            for message in write.messages:
                self._send(message)
        newest = next((w.persisted for w in reversed(writes) if w.persisted is not None), None)
        if newest is not None:
            self._step(newest)

    async def _persist_anew(self, writes: list[_Write]) -> None:
        """Write what the machine holds now: all that was handed out to be written, and nothing else."""
        self._replace_journal = False
        raft = self.raft
        if self._snapshots is not None:
            await self._snapshots.settle()
        entries = raft.entries(raft.first_index, raft.last_index)
        committed = self._committed_here()
        self._runtime.probes.reach("raft.replace.before")
        await self._journal.replace(raft.hard_state, raft.snapshot, entries, committed)
        self._marks.reached(committed)
        self._runtime.probes.reach("raft.replace.after")
        if self._snapshots is not None:
            for write in writes:
                if write.snapshot is not None:
                    self._snapshots.install(write.snapshot)

    async def _persist_more(self, writes: list[_Write]) -> None:
        hard_state, entries = _joined(writes)
        if hard_state is not None or entries or self._marks.is_due:
            committed = self._committed_here()
            self._runtime.probes.reach("raft.persist.before")
            await self._journal.append(hard_state, tuple(entries), committed)
            self._marks.reached(committed)
            self._runtime.probes.reach("raft.persist.after")

    def _committed_here(self) -> int:
        """Up to where entries are committed and durable here."""
        return min(self.raft.commit_index, self.raft.durable_index)


def _joined(writes: Sequence[_Write]) -> tuple[HardState | None, list[Entry]]:
    """What several writes come to: the newest hard state, and the entries that no later ones replace."""
    hard_state: HardState | None = None
    entries: list[Entry] = []
    for write in writes:
        hard_state = write.hard_state or hard_state
        if write.entries:
            first = write.entries[0].index
            while entries and entries[-1].index >= first:
                entries.pop()
            entries.extend(write.entries)
    return hard_state, entries


class GroupBounds(msgspec.Struct, frozen=True):
    """`append_bytes_max`: data of one append of the metadata group. `management_entries`: of the management
    group's log, between two snapshots. A simulator takes small ones, to meet every border often."""

    append_bytes_max: int = RaftSettings().append_bytes_max
    management_entries: int = MANAGEMENT_SNAPSHOT_ENTRIES


USUAL = GroupBounds()
