"""This node's member of the management group: its Raft driver, and the state its commands make.

Invariants: the state is a function of the group's log alone; a command is answered only once it is committed
and applied here, and with the outcome of its id, which may be an earlier one. A member that cannot go on
breaks alone: metadata and data are served without it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

from lockstep.consensus.effects import Role
from lockstep.consensus.messages import Entry, EntryKind, Snapshot
from lockstep.metadata.groups import management
from lockstep.metadata.groups.management import (
    EMPTY_STATE,
    Command,
    ManagementState,
    Outcome,
    decode_command,
    decode_state,
    encode_command,
    encode_state,
)
from lockstep.node.log.journal import MANAGEMENT_GROUP, has_journal
from lockstep.node.log.raft_driver import (
    GroupEvents,
    GroupPace,
    GroupPlace,
    RaftDriver,
    RaftTransport,
)
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import UNREADABLE
from lockstep.values.errors import CannotApply, LockstepError, NotLeader, OutcomeUnknown, Overloaded
from lockstep.values.limits import MANAGEMENT_SNAPSHOT_ENTRIES


class ManagementGroup:
    """`on_change()` is told when the role or the state changed. `hidden`: kinds of commands that this member
    does not know, as if its version lacked them."""

    def __init__(
        self,
        runtime: Runtime,
        transport: RaftTransport,
        place: GroupPlace,
        pace: GroupPace,
        on_change: Callable[[], None],
        on_broken: Callable[[LockstepError], None],
        snapshot_entries: int = MANAGEMENT_SNAPSHOT_ENTRIES,
        hidden: Collection[str] = (),
    ) -> None:
        self._hidden = hidden
        self._snapshot_entries = snapshot_entries
        self._runtime = runtime
        self._on_change = on_change
        self._on_broken = on_broken
        self._waiting: dict[bytes, list[asyncio.Future[Outcome]]] = {}
        self.state = EMPTY_STATE
        runtime.probes.observe("management.began")
        self.broken: LockstepError | None = None
        #: Set once the first command is applied here.
        self.founded = asyncio.Event()
        self.driver = RaftDriver(
            runtime,
            transport,
            place,
            pace,
            GroupEvents(self._committed, self._role_changed, self._broke),
            self,
        )
        if self.driver.raft.snapshot is not None:
            self.install(self.driver.raft.snapshot)

    def start(self) -> None:
        self.driver.start()
        raft = self.driver.raft
        if raft.configuration.voters == (raft.identity,):
            self.driver.campaign()  # Nobody else can lead: there is nothing to wait for.

    async def stop(self) -> None:
        await self.driver.stop()

    @property
    def is_leader(self) -> bool:
        return self.driver.is_leader

    @property
    def is_up_to_date(self) -> bool:
        """Whether the state is surely no older than what the group had committed when this term began."""
        return self.driver.is_leader and self.driver.raft.is_term_committed

    def base_index(self) -> int:
        """The index that a command first sent now names; NotLeader where that is not surely known."""
        if not self.is_up_to_date:
            raise NotLeader(self.driver.raft.leader)
        return self.state.index

    @staticmethod
    def exists(runtime: Runtime) -> bool:
        """Whether this node ever had a member of the group."""
        return has_journal(runtime.disk, MANAGEMENT_GROUP)

    async def submit(self, command: Command) -> Outcome:
        """The outcome of the command's id, applied here.

        NotLeader, Overloaded: it was not proposed. OutcomeUnknown: it was, and leadership is lost.
        """
        if self.state.is_known(command.id):
            known = self.state.outcome_of(command.id)
            assert known is not None, "a known id has an outcome"
            return known
        if not self.driver.is_leader:
            raise NotLeader(self.driver.raft.leader)
        future: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        joined = self._waiting.setdefault(command.id, [])
        joined.append(future)
        try:
            if len(joined) == 1 and not self._propose(command):
                raise Overloaded("too many management commands wait for their commit")
            return await future
        finally:
            self._leave(command.id, future)

    def _propose(self, command: Command) -> bool:
        self._runtime.probes.reach("management.propose")
        accepted = self.driver.propose((encode_command(command),))
        self._runtime.probes.reach("management.proposed")
        return accepted is not None

    def _leave(self, command_id: bytes, future: asyncio.Future[Outcome]) -> None:
        joined = self._waiting.get(command_id, [])
        if future in joined:
            joined.remove(future)
        if not joined:
            self._waiting.pop(command_id, None)

    def _committed(self, entries: tuple[Entry, ...]) -> None:
        for entry in entries:
            if entry.kind is EntryKind.NORMAL:
                try:
                    self._apply(entry)
                except CannotApply as error:
                    self.driver.fail(error)
                    return
        snapshot, last = self.driver.raft.snapshot, entries[-1].index
        if last - (snapshot.index if snapshot is not None else 0) >= self._snapshot_entries:
            # Not within the step that handed the entries out.
            asyncio.get_running_loop().call_soon(self._compact, last, self.state)
        self._on_change()

    def _compact(self, index: int, state: ManagementState) -> None:
        """The state is small, so it is the snapshot's descriptor itself."""
        self._runtime.probes.reach("management.compact")
        self.driver.compact(index, encode_state(state))

    async def present(self, snapshot: Snapshot) -> None:
        raise AssertionError("a snapshot of the management group has no bytes beside its descriptor")

    async def settle(self) -> None:
        """The state is made from the journal alone, and a journal that is written anew begins with it."""

    def install(self, snapshot: Snapshot) -> None:
        """The state of a snapshot, from this node's journal or from the leader."""
        if snapshot.index <= self.state.index:
            return
        self.state = decode_state(snapshot.data)
        self._runtime.probes.observe("management.installed", state=self.state)
        if self.state.cluster_id:
            self.founded.set()
        for command_id in list(self._waiting):
            self._answer(command_id)
        self._on_change()

    def _apply(self, entry: Entry) -> None:
        try:
            command = decode_command(entry.data)
        except UNREADABLE as error:
            raise CannotApply(f"management command {entry.index} cannot be read: {error}") from error
        kind = management.ACTION_NAMES[type(command.action)]
        if kind in self._hidden:
            raise CannotApply(f"management command {entry.index}, {kind}, is not known to this version")
        self.state = management.apply(self.state, entry.index, command)
        self._runtime.probes.observe("management.applied", state=self.state, command_id=command.id)
        if self.state.cluster_id:
            self.founded.set()
        self._answer(command.id)

    def _answer(self, command_id: bytes) -> None:
        outcome = self.state.outcome_of(command_id)
        if outcome is None:
            return
        for future in self._waiting.pop(command_id, ()):
            if not future.done():
                future.set_result(outcome)

    def _role_changed(self) -> None:
        if self.driver.raft.role is not Role.LEADER or not self.driver.is_leader:
            waiting, self._waiting = self._waiting, {}
            for joined in waiting.values():
                for future in joined:
                    if not future.done():
                        future.set_exception(OutcomeUnknown("leadership of the management group is lost"))
        self._on_change()

    def _broke(self, error: LockstepError) -> None:
        if self.broken is None:
            self.broken = error
            self._on_broken(error)
            self._on_change()
