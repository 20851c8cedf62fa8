"""The management group as every node uses it: founding, admission, and what keeps its state true.

Owns: who runs a member of the group (the nodes of the metadata group or those that an operator named, added
and removed the same safe way);
the record of the metadata voters, which the metadata leader has written; node ids, addresses and departures,
which the group's leader takes over from the metadata. Invariants: whatever was left undone when a node died
is seen from the two states and done by whoever leads next; without a majority of the group commands fail in
bounded time and everything else goes on.

Getting a command to the leader of the management group from any node.

Invariant: a command keeps one id and one base index over all its attempts, so it is applied at most once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from lockstep.consensus.configuration import Configuration, RaftSettings
from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.management import (
    COMMAND_ID_BYTES,
    EMPTY_STATE,
    Action,
    Admit,
    Command,
    Expel,
    Found,
    Host,
    ManagementState,
    Outcome,
    RecordVoters,
)
from lockstep.metadata.groups.membership_step import (
    GroupConfigure,
    HandOver,
    Members,
    Settled,
    WaitFor,
    group_next_step,
)
from lockstep.metadata.groups.placing import named_managers
from lockstep.metadata.groups.service import MANAGEMENT_PLACE
from lockstep.node.context import NodeContext
from lockstep.node.log.journal import MANAGEMENT_GROUP
from lockstep.node.log.messages import AskGroup, GroupReport, Manage, Managed
from lockstep.node.log.raft_driver import GroupPace, GroupPlace
from lockstep.node.log.submission import Group, GroupSubmitter
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.management_group import ManagementGroup
from lockstep.node.membership.voters import Voters
from lockstep.values.errors import (
    LockstepError,
    NotLeader,
    OutcomeUnknown,
    PeerError,
    PeerTimeout,
    PreconditionError,
    StorageError,
)
from lockstep.values.limits import MANAGEMENT_SNAPSHOT_ENTRIES

_GROUP: Final = Group(
    name="leader of the management group",
    effect="it may be done yet",
    hint="lockstep recovery cluster states cmg --global",
    unreachable_hint="lockstep recovery cluster states cmg --global",
    pause_ms=(50, 200),
)
#: The base index of a command whose submitter is no member: the first one asked names it.
UNKNOWN_INDEX = -1


class ManagementSubmitter:
    """`group()` is this node's member, if it has one."""

    def __init__(
        self,
        context: NodeContext,
        voters: Voters,
        group: Callable[[], ManagementGroup | None],
    ) -> None:
        self._runtime = context.runtime
        self._internode = context.internode
        self._voters = voters
        self._own_address = context.address
        self._host_id = context.host_id
        self._group = group
        self._members = GroupSubmitter(context.runtime, _GROUP, self._addresses)
        context.internode.register(verbs.MANAGE, Manage, Managed, self._serve)

    async def submit(self, action: Action, timeout_ms: int) -> Outcome:
        """The committed outcome of a command, from any node.

        PeerUnreachable: nothing was sent to a leader. OutcomeUnknown: it may have been applied.
        """
        command_id = self._runtime.random.bytes(COMMAND_ID_BYTES)
        command = Command(command_id, UNKNOWN_INDEX, self._host_id(), action)

        async def ask(address: Address, limit_ms: int) -> Outcome | None:
            nonlocal command
            group = self._group()
            if address == self._own_address and group is not None:
                if command.base_index == UNKNOWN_INDEX:
                    command = msgspec.structs.replace(command, base_index=group.base_index())
                async with asyncio.timeout(limit_ms / 1000):
                    return await group.submit(command)
            for _ in range(2):
                reply: Managed = await self._internode.request(
                    address, verbs.MANAGE, Manage(command), limit_ms
                )
                if reply.index:
                    return Outcome(command.id, reply.index, reply.refusal)
                # The first leader asked said so; it stays over all retries.
                command = msgspec.structs.replace(command, base_index=reply.base_index)
            return None

        outcome, _ = await self._members.settle(ask, timeout_ms)
        return outcome

    def _addresses(self) -> list[Address]:
        """Members of the group as far as known, the likeliest leader first."""
        group = self._group()
        known = {member.address: None for member in self._voters.managers().values()}
        if group is not None:
            known[self._own_address] = None
            for voter in group.driver.raft.configuration.members():
                member = self._voters.member(voter)
                if member is not None:
                    known[member.address] = None
        leader = group.driver.leader_address if group is not None else None
        if leader is None:
            return list(known)
        return [leader, *(address for address in known if address != leader)]

    async def _serve(self, _peer: object, request: Manage) -> Managed:
        group = self._group()
        if group is None:
            raise NotLeader(None)
        if request.command.base_index == UNKNOWN_INDEX:
            return Managed(0, None, group.base_index())
        outcome = await group.submit(request.command)
        return Managed(outcome.index, outcome.refusal)


#: A tick of this group against one of the metadata group: nobody waits for it while all is well.
TICK_FACTOR = 4
#: One command of a leader that looks again anyway.
LEADER_TIMEOUT_MS = 2000
#: A command, with its retries. Longer than an election of this group.
SUBMIT_TIMEOUT_MS = 10_000
#: A newcomer that is not admitted within this time is told so.
ADMISSION_TIMEOUT_MS = 30_000
#: One question to a member.
QUESTION_TIMEOUT_MS = 500
#: A member that the metadata does not count asks the others whether it is out, once in so many looks.
LOOKS_PER_QUESTION = 5
#: Between two looks at what the leader of either group should do, when nothing woke it before.
STEER_MS = 1000
#: The same while members change: that one has caught up shows by its progress alone.
CHANGE_MS = 50
#: Pause after a look, so that a burst of changes is one.
STEER_PAUSE_MS = 50
#: Commands in one look of the leader: a large cluster's directory is taken over bit by bit.
TAKEN_OVER_AT_ONCE_MAX = 64
#: A member whose log ends this close to the leader's may get a vote.
CAUGHT_UP_ENTRIES = 16


class Management:
    """`snapshot_entries` of the group's log are kept between two snapshots of this node's member."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        on_disk_failed: Callable[[LockstepError], None],
        snapshot_entries: int = MANAGEMENT_SNAPSHOT_ENTRIES,
    ) -> None:
        self._runtime = context.runtime
        self._internode = context.internode
        self._transport = log.transport
        self._metadata = log.state
        self._voters = log.voters
        self._member = log.member
        self._raft = context.configuration.raft
        self._host_id = context.host_id
        #: Without a log there is no such group either: who is in the ring is in the cluster.
        self._context = context
        self._follows_repair: Callable[[], bool] = lambda: context.follows_repair
        self._alive = context.alive
        self._on_disk_failed = on_disk_failed
        self._log = context.log
        log.member.roles.add(self.wake)
        self._wanted = asyncio.Event()
        #: What this metadata leader has had recorded, voters and generation, and by which index.
        self._recorded: tuple[tuple[int, ...], int] | None = None
        self._recorded_at = 0
        #: This node's member was removed from the group.
        self._removed = False
        self._looks = 0
        #: What the group's leader said at this metadata leader's last look, where it lives elsewhere.
        self._told: GroupReport | None = None
        #: This node leads the group, and its members are not yet those that are recorded.
        self._changing = False
        self._snapshot_entries = snapshot_entries
        #: Directory and management state that agree on every node.
        self._taken_over: tuple[object, object] | None = None
        self._said = ""
        self.group: ManagementGroup | None = None
        #: A member that ended may still be writing to the files that another one would use.
        self._ending = False
        self.submitter = ManagementSubmitter(context, log.voters, lambda: self.group)

    @property
    def state(self) -> ManagementState:
        """As far as this node knows; empty on a node that is no member."""
        return self.group.state if self.group is not None else EMPTY_STATE

    def unsettled(self) -> str:
        """Why the group may not have followed the metadata's voters yet, as far as this node knows; empty
        when it has: whoever is no voter is no member then, and who votes here alone is dead.

        A dead one would be waited for until it comes back, and with it every later change of the voters, its
        own removal among them. Safe without it: all living voters are members here, so a majority of the
        metadata's voters that lives is one of the group's members, whether or not the dead one is in by now.
        """
        voters = tuple(self._metadata.current.voters)
        if self._metadata.current.parts[MANAGEMENT_PLACE].members:
            return self._unsettled_elsewhere()
        group = self.group
        if not self._is_there:
            return ""
        if group is None:
            return "this leader is no member of the management group yet"
        if group.broken is not None:
            return f"this leader's member of the management group is broken: {group.broken}"
        configuration = group.driver.status().configuration
        absent = {voter for voter in voters if not self._alive(voter)}.difference(configuration.voters)
        expected = tuple(voter for voter in voters if voter not in absent)
        strangers = set(configuration.learners) - absent
        if configuration.is_joint or strangers or configuration.voters != expected:
            return f"the management group has members {list(configuration.members())}"
        if group.driver.raft.state.configurations.changed_at > group.driver.raft.commit_index:
            return "the management group's new members are not committed yet"
        recorded = self._recorded[0] if self._recorded is not None else ()
        if self.state.index < self._recorded_at or not recorded == self.state.voters.voters == voters:
            # This leader's own word counts: its member may still show the same voters of long ago.
            return "the management group has not recorded the voters yet"
        return ""

    def _unsettled_elsewhere(self) -> str:
        """The same while the group lives on nodes that an operator named: whose vote it is does not matter to
        it, and it has followed when all of them that live are its members, and nobody else is."""
        cluster, said = self._metadata.current, self._told
        if self._recorded is None or self._recorded[0] != tuple(cluster.voters):
            return "the management group has not recorded the voters yet"
        wanted = named_managers(cluster) or tuple(cluster.voters)
        expected = {member for member in wanted if self._alive(member)}
        if said is None or not said.settled or said.outgoing:
            return "the management group has not said who its members are"
        if {*said.voters} & {*expected} != expected or {*said.voters, *said.learners} - {*wanted}:
            return f"the management group has members {list(said.voters)}"
        return ""

    def start(self) -> None:
        """Take part if this node is a member, from now on and whenever it becomes one."""
        self._metadata.listen(lambda *_: self.wake())
        self.take_part()
        self._runtime.tasks.spawn(self._steer_loop(), "management.steer")

    @property
    def _is_there(self) -> bool:
        return not (self._context.is_on_ring or self._context.awaits_log)

    def wake(self) -> None:
        self._wanted.set()

    # -- this node's member ------------------------------------------------------------------------

    def take_part(self) -> None:
        """Start this node's member when it should have one; may be called repeatedly."""
        if not self._is_there:
            return
        own = self._own_member() if not self._follows_repair() else None
        if own is None or self.group is not None or self._ending:
            return
        self._removed = False
        raft = self._raft
        # The founding is told by the log to who comes later, or has lost what it knew of it.
        began = not self._metadata.current.epoch or ManagementGroup.exists(self._runtime)
        founders = self._voters.founding() if began else ()
        settings = RaftSettings(election_ticks=raft.election_ticks, heartbeat_ticks=raft.heartbeat_ticks)
        self.group = ManagementGroup(
            self._runtime,
            self._transport,
            GroupPlace(MANAGEMENT_GROUP, own, founders, self._voters.member),
            GroupPace(settings, raft.tick_ms * TICK_FACTOR),
            on_change=self.wake,
            on_broken=self._member_broke,
            snapshot_entries=self._snapshot_entries,
            hidden=self._context.configuration.testing.hide_commands,
        )
        self.group.start()

    def _member_broke(self, error: LockstepError) -> None:
        """Only this group goes without this member, unless the disk failed: that is every group's disk, and
        a member that stayed behind on it would wait for a restart that nobody knows is due."""
        self._log("management.broken", error=str(error))
        if isinstance(error, StorageError):
            self._on_disk_failed(error)

    def _own_member(self) -> int | None:
        """This node's id when it is, was or is about to be a member."""
        cluster, host_id = self._metadata.current, self._host_id()
        if not cluster.epoch:
            return self._voters.id_of(host_id)
        own = cluster.directory.by_host_id.get(host_id)
        if own is None or own.state is NodeState.LEFT:
            return None
        joins = own.id in (named_managers(cluster) or cluster.service.members)
        was = not self._removed and ManagementGroup.exists(self._runtime)
        return own.id if joins or was else None

    async def _give_up_part(self) -> None:
        """End this node's member when the group has removed it: nobody tells a member that is out."""
        group, cluster = self.group, self._metadata.current
        self._looks += 1
        if group is None or group.is_leader or not cluster.voters or self._looks % LOOKS_PER_QUESTION:
            return
        own = group.driver.raft.identity
        if own in (named_managers(cluster) or cluster.service.members):
            return
        said = await self._leaders_report()
        if said is not None and said.settled and own not in (*said.voters, *said.outgoing, *said.learners):
            self.group, self._removed, self._ending = None, True, True
            await group.stop()
            self._ending = False
            self.wake()
            self._log("management.left", index=group.state.index)

    async def members(self) -> tuple[int, ...]:
        """Of the group, as its leader says; empty when nobody that answers leads it."""
        group = self.group
        if group is not None and group.is_up_to_date:
            return group.driver.raft.configuration.voters
        said = await self._leaders_report()
        return said.voters if said is not None else ()

    async def _leaders_report(self) -> GroupReport | None:
        """What the group's leader says; None when nobody that answers leads."""
        for member in self._voters.managers().values():
            try:
                said: GroupReport = await self._internode.request(
                    member.address, verbs.GROUP_REPORT, AskGroup(MANAGEMENT_GROUP), QUESTION_TIMEOUT_MS
                )
            except LockstepError:
                continue  # Another one knows as well, or all are asked again later.
            if said.leader == said.node:
                return said
        return None

    # -- founding and admission --------------------------------------------------------------------

    async def found(self, cluster_name: str, hosts: Sequence[Host]) -> str:
        """The cluster's id, which the group's first command gives; whoever was first with it.

        Called on a member. PeerError or OutcomeUnknown when the group did not answer: call it again.
        """
        group = self.group
        assert group is not None, "a founder that may begin a cluster is a member"
        if not group.state.cluster_id:
            group.driver.campaign()
            found = Found(self._runtime.random.uuid(), cluster_name, tuple(hosts))
            await self.submitter.submit(found, SUBMIT_TIMEOUT_MS)
            self._runtime.probes.reach("management.founded")
        try:
            async with asyncio.timeout(SUBMIT_TIMEOUT_MS / 1000):
                await group.founded.wait()
        except TimeoutError:
            raise PeerTimeout("the first management command did not arrive here in time") from None
        return group.state.cluster_id

    async def admit(self, host: Host) -> None:
        """Return when the cluster lets `host` in. PreconditionError when it does not, or cannot now."""
        if not self._is_there:
            return
        action = Admit(host, self._metadata.epoch)
        try:
            outcome = await self.submitter.submit(action, ADMISSION_TIMEOUT_MS)
        except (PeerError, OutcomeUnknown) as error:
            raise PreconditionError(
                f"no majority of the management group answered within {ADMISSION_TIMEOUT_MS} ms, "
                f"so no node can be admitted: {error.message}",
                hint="lockstep recovery cluster states cmg --global; start its voters, then this node again",
            ) from error
        if outcome.refusal is not None:
            raise PreconditionError(
                f"the cluster does not admit this node: {outcome.refusal.message}",
                hint="a node that left joins with an empty data directory, as a new one",
            )

    # -- what the leaders see to -------------------------------------------------------------------

    async def _steer_loop(self) -> None:
        while True:
            try:
                async with asyncio.timeout((CHANGE_MS if self._changing else STEER_MS) / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                self._runtime.probes.reach("management.look")
            self._wanted.clear()
            await self._steer()
            await asyncio.sleep(STEER_PAUSE_MS / 1000)

    async def _steer(self) -> None:
        """One look; what fails is tried again at the next one."""
        if not self._is_there:
            return
        self.take_part()
        await self._give_up_part()
        placed = self._metadata.current.parts[MANAGEMENT_PLACE].members
        self._told = await self._leaders_report() if placed and self._member.leads else None
        try:
            await self._record_voters()
            await self._take_over_nodes()
        except (LockstepError, TimeoutError) as error:
            text = str(error)
            if text != self._said:
                self._said = text
                self._log("management.waits", reason=text)
        self._steer_members()

    async def _record_voters(self) -> None:
        """At the metadata leader: have its voters recorded, after each change of them."""
        cluster = self._metadata.current
        wanted = (tuple(cluster.voters), cluster.service.recovery_generation)
        if not cluster.voters or not self._member.leads:
            self._recorded = None
            return
        known = self._recorded
        if self.group is not None and self.group.is_up_to_date:
            # Only there: a member that has just come back may hold a record of long ago.
            record = self.state.voters
            known, self._recorded_at = (record.voters, record.recovery_generation), self.state.index
        if known != wanted:
            action = RecordVoters(wanted[0], self._member.configuration_index, cluster.epoch, wanted[1])
            outcome = await self.submitter.submit(action, LEADER_TIMEOUT_MS)
            self._recorded_at = outcome.index
            if outcome.refusal is not None:
                self._log("management.record_refused", reason=outcome.refusal.message)
        self._recorded = wanted

    async def _take_over_nodes(self) -> None:
        """At the group's leader: node ids and addresses, and who has left, as the metadata has them."""
        group, directory = self.group, self._metadata.current.directory
        if group is None or not group.is_leader or not group.state.cluster_id:
            return
        before = (directory, group.state.nodes)
        if self._taken_over is not None and all(
            one is other for one, other in zip(before, self._taken_over, strict=True)
        ):
            return
        sent = 0
        for node in directory.nodes:
            host = Host(node.host_id, node.address, node.internode_port, node.id)
            action = _missing(group.state, host, node.state is NodeState.LEFT, self._metadata.epoch)
            if action is not None:
                await self.submitter.submit(action, LEADER_TIMEOUT_MS)
                sent += 1
                if sent == TAKEN_OVER_AT_ONCE_MAX:
                    self.wake()
                    return
        self._taken_over = (directory, group.state.nodes)

    def _steer_members(self) -> None:
        """At the group's leader: one step towards the recorded metadata voters as members, or the nodes that
        an operator named."""
        group = self.group
        self._changing = False
        wanted: Sequence[int] = named_managers(self._metadata.current) or self.state.voters.voters
        if group is None or not group.is_leader or not wanted:
            return
        status = group.driver.status()
        configuration = status.configuration
        if configuration.is_joint:
            self._changing = True
            return
        # Who has not answered since it was added holds nothing, however short the log is.
        enough = max(group.driver.raft.configuration_index, status.last_index - CAUGHT_UP_ENTRIES)
        caught_up = [
            member
            for member, progress in sorted(status.members.items())
            if progress.heard and progress.match >= enough
        ]
        members = Members(configuration.voters, configuration.learners)
        down = [voter for voter in wanted if not self._alive(voter)]
        step = group_next_step(wanted, members, [*caught_up, status.identity], status.identity, down)
        waits_for_dead = isinstance(step, WaitFor) and step.member in down
        self._changing = not (isinstance(step, Settled) or waits_for_dead)
        if isinstance(step, GroupConfigure):
            self._runtime.probes.reach("management.configure")
            group.driver.propose_configuration(Configuration(step.members.voters, (), step.members.learners))
        elif isinstance(step, HandOver):
            group.driver.transfer(step.target)


def _missing(state: ManagementState, host: Host, left: bool, epoch: int) -> Action | None:
    """What the group must be told for its record of a node to be right; None when it is."""
    known = state.by_host_id.get(host.host_id)
    if left:
        return Expel(host.host_id, "it left the cluster") if known is not None else None
    if host.host_id in state.expelled:
        return None
    if known is not None and (known.address, known.port, known.node_id) == (
        host.address,
        host.port,
        host.node_id,
    ):
        return None
    return Admit(host, epoch)
