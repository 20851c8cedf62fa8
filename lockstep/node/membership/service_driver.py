"""Keeps the voters of the metadata group as the metadata wants them, while this node leads the group.

Invariant: this module decides nothing: `metadata.membership_step` says what is next, from the newest value in
this leader's log and the Raft configuration in force at the same moment; here it is carried out. All that
must survive is in the log, so any other leader goes on from it.

Which nodes that were to vote come no nearer to it, as far as this leader saw.

Owns the patience with them. Invariant: an opinion, made of nothing but the leader's steady clock and what it
waits for; it is forgotten with the term, and only proposes: the entry that gives a node up is judged by the
log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import msgspec

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.effects import Refused
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import CancelMembership
from lockstep.metadata.groups.membership_step import (
    Action,
    Configure,
    GroupView,
    Idle,
    Members,
    Observed,
    Submit,
    Transfer,
    Waits,
    next_step,
)
from lockstep.metadata.groups.voter_choice import eligible
from lockstep.metadata.log.registry import Registry
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import EpochQuery, EpochReply
from lockstep.node.log.messages import Submit as Submission
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.raft_driver import RaftDriver
from lockstep.node.processors.raft import RaftProcessor
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId

#: A coming voter without any progress for this long is given up: a restart is over sooner, and whoever takes
#: its place has its vote in a second.
GIVE_UP_AFTER_S = 10.0
#: It is not chosen again for this long: one that answers and does not follow would end every next change too.
AVOID_S = 60.0


class LateVoters:
    def __init__(self) -> None:
        self._awaited: tuple[NodeId, object] | None = None
        self._since = 0.0
        self._late: dict[NodeId, float] = {}

    def forget(self) -> None:
        """Another term: what was seen before is no evidence."""
        self._awaited = None
        self._late.clear()

    def waits(self, node: NodeId, progress: object, now_s: float) -> None:
        """A change waits for `node` (0: for nobody) now; `progress` is how far it got, by equality."""
        awaited = (node, progress) if node else None
        if awaited != self._awaited:
            self._awaited, self._since = awaited, now_s
        elif awaited is not None and now_s - self._since >= GIVE_UP_AFTER_S:
            self._late[node] = now_s

    def late(self, now_s: float) -> tuple[NodeId, ...]:
        """Nodes given up lately, ascending."""
        self._late = {node: since for node, since in self._late.items() if now_s - since < AVOID_S}
        return tuple(sorted(self._late))


#: Between two looks while a change runs: a member that catches up says so by nothing but its progress.
STEP_PAUSE_MS = 20
#: Between two looks while nothing changes: who is down is noticed by looking.
LOOK_MS = 500
#: A node that does not answer for this long counts as down when voters are chosen.
DOWN_AFTER_MS = 2000
#: One question whether a node has applied the change that adds it.
QUERY_TIMEOUT_MS = 1000
#: One entry; a leader that cannot commit in it has probably lost its place.
SUBMIT_TIMEOUT_MS = 10_000
#: A member whose log ends this close to the leader's may get a vote: the rest is one append.
CAUGHT_UP_ENTRIES = 64


class Blocked(msgspec.Struct, frozen=True):
    """What the voters wait for: the node (0: the group itself), why, and since when (wall clock)."""

    node: int
    reason: str
    since_us: int


class ServiceDriver:
    """`group()` is this node's member of the metadata group and what judges there. `follows()` says why the
    group that follows the voters has not done so yet, empty when it has."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        registry: Registry,
        group: Callable[[], tuple[RaftDriver, RaftProcessor] | None],
        follows: Callable[[], str],
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._internode = context.internode
        self._registry = registry
        self._group = group
        self._own_id = context.own_id
        self._alive = context.alive
        self._follows = follows
        self._replace_after_ms = context.configuration.cms.replace_after_ms
        self._log = context.log
        self._wake = asyncio.Event()
        self._term = 0
        #: When this leader first found each node silent, in seconds of the steady clock.
        self._silent_since: dict[NodeId, float] = {}
        self._reached: dict[NodeId, int] = {}
        self._late = LateVoters()
        #: Change and position of the present removal, and where the log ended when it was first seen.
        self._removal: tuple[tuple[int, int], int] | None = None
        #: What the last look that found nothing to do had looked at.
        self._settled: tuple[object, ...] | None = None
        self._said = ""
        #: What the voters wait for, for people; None when nothing is to be done or this node does not lead.
        self.blocked: Blocked | None = None
        state.listen(self._applied, parts_only=True)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "service.voters")

    def wake(self) -> None:
        """The role of this node's member changed."""
        self._wake.set()

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        decided_by = ("service", "directory", "excluded")
        if any(getattr(before, part) is not getattr(after, part) for part in decided_by):
            self._wake.set()

    # -- the loop ----------------------------------------------------------------------------------

    async def _run(self) -> None:
        pause_ms = LOOK_MS
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_ms / 1000):
                    await self._wake.wait()
            self._wake.clear()
            try:
                pause_ms = await self._look()
            except (LockstepError, TimeoutError) as error:
                self._say(str(error) or "an entry was not committed in time")
                pause_ms = STEP_PAUSE_MS

    async def _look(self) -> int:
        """Do what is next; the pause until the next look in milliseconds."""
        found = self._group()
        if found is None or not found[0].is_leader or self._state.broken is not None:
            self.blocked, self._settled = None, None
            return LOOK_MS
        driver, processor = found
        self._note_term(driver.raft.term)
        cluster = processor.tip_value()
        view = group_view(driver, NodeId(self._own_id()), self._proof_index(cluster, driver))
        observed = self._observed(cluster)
        looked_at = (
            cluster.directory, cluster.service, cluster.excluded, view.members, view.settled, observed
        )  # fmt: skip
        if self._settled is not None and _same(self._settled, looked_at):
            return LOOK_MS
        action = next_step(cluster, view, observed)
        self._settled = looked_at if isinstance(action, Idle) else None
        if isinstance(action, Idle):
            self.blocked = None
            return LOOK_MS
        self._note_progress(action, cluster, driver)
        await self._do(action, driver, processor)
        waits_for_people = isinstance(action, Waits) and cluster.service.change is None
        return LOOK_MS if waits_for_people else STEP_PAUSE_MS

    def _note_term(self, term: int) -> None:
        """What an earlier leader saw is not this one's evidence."""
        if term != self._term:
            self._term = term
            self._silent_since.clear()
            self._late.forget()
            self._settled, self._removal = None, None

    def _proof_index(self, cluster: ClusterMetadata, driver: RaftDriver) -> int:
        """Where the log ended when this leader first saw the present removal: whoever has the log up to there
        was alive since. The group becomes smaller only by those that it can still decide without."""
        change = cluster.service.change
        if change is None or change.adds:
            self._removal = None
            return 0
        step = (change.id, change.index)
        if self._removal is None or self._removal[0] != step:
            self._removal = (step, driver.status().last_index)
        return self._removal[1]

    def _observed(self, cluster: ClusterMetadata) -> Observed:
        now = self._runtime.clock.monotonic_s()
        silent: dict[NodeId, float] = {}
        for node in sorted({*cluster.voters, *(info.id for info in eligible(cluster))}):
            if not self._alive(node):
                silent[node] = self._silent_since.get(node, now)
        self._silent_since = silent
        down = tuple(n for n, since in silent.items() if (now - since) * 1000 >= DOWN_AFTER_MS)
        limit_s = self._replace_after_ms / 1000
        lost = tuple(n for n in down if limit_s and n in cluster.voters and now - silent[n] >= limit_s)
        change = cluster.service.change
        coming = change.additions if change is not None else ()
        reached = {node: self._reached[node] for node in coming if node in self._reached}
        follows = self._follows() if change is not None else ""
        return Observed(reached, down, lost, follows, self._late.late(now))

    def _note_progress(self, action: Action, cluster: ClusterMetadata, driver: RaftDriver) -> None:
        """How far the node that is to vote next is, while nothing but that node is waited for."""
        change, node = cluster.service.change, NodeId(0)
        if isinstance(action, Waits) and change is not None and change.adds and action.node == change.member:
            node = action.node
        member = driver.status().members.get(node)
        progress = (
            change.id if change is not None else 0,
            # What the group could not commit yet no other node can have applied.
            change is not None and self._state.epoch >= change.id,
            self._reached.get(node, 0),
            member.match if member is not None else 0,
        )
        self._late.waits(node if progress[1] else NodeId(0), progress, self._runtime.clock.monotonic_s())

    # -- doing -------------------------------------------------------------------------------------

    async def _do(self, action: Action, driver: RaftDriver, processor: RaftProcessor) -> None:
        if isinstance(action, Waits):
            await self._wait(action)
            return
        self.blocked = None
        if isinstance(action, Submit):
            # Judged before anything else happens: what it says of the configuration is true in the log.
            self._runtime.probes.reach("service.submit")
            if isinstance(action.transformation, CancelMembership):
                self._log("service.voter_given_up", node=action.transformation.unreached)
            await self._submit(processor, action.transformation)
        elif isinstance(action, Configure):
            self._runtime.probes.reach("service.configure")
            wanted = Configuration(action.members.voters, (), action.members.learners)
            answer = driver.propose_configuration(wanted)
            if isinstance(answer, Refused):
                self._say(f"the group does not take a configuration now: {answer.reason.value}")
        elif isinstance(action, Transfer):
            self._runtime.probes.reach("service.transfer")
            driver.transfer(action.to)

    async def _submit(self, processor: RaftProcessor, transformation: Any) -> None:
        submission = Submission(
            self._runtime.random.bytes(16),
            self._registry.kind_of(transformation),
            encode(transformation),
            f"metadata leader, node {self._own_id()}",
            self._state.epoch,
        )
        async with asyncio.timeout(SUBMIT_TIMEOUT_MS / 1000):
            await processor.submit(submission)

    async def _wait(self, waits: Waits) -> None:
        known = self.blocked
        if known is None or (known.node, known.reason) != (waits.node, waits.reason):
            self.blocked = Blocked(waits.node, waits.reason, self._runtime.clock.wall_us())
        if waits.epoch:
            await self._query(waits.node, waits.epoch)

    async def _query(self, node: NodeId, epoch: int) -> None:
        info = self._state.current.node(node)
        if info is None or self._state.epoch < epoch:
            return
        reply: EpochReply = await self._internode.request(
            (info.address, info.internode_port), verbs.EPOCH_QUERY, EpochQuery(epoch), QUERY_TIMEOUT_MS
        )
        if reply.node != node:
            return  # Another one that stands at its address.
        self._reached[node] = max(self._reached.get(node, 0), reply.epoch)
        self._wake.set()

    def _say(self, text: str) -> None:
        """Log why a step failed, once for each reason."""
        if text != self._said:
            self._said = text
            self._log("service.step_failed", reason=text)


def group_view(driver: RaftDriver, own: NodeId, proof_index: int = 0) -> GroupView:
    """What the leader knows of its group; only who has the log up to `proof_index` counts as caught up."""
    raft, status = driver.raft, driver.status()
    configuration, state = status.configuration, driver.raft.state
    enough = max(state.configurations.changed_at, status.last_index - CAUGHT_UP_ENTRIES, proof_index)
    return GroupView(
        own,
        Members(configuration.voters, configuration.learners),
        settled=(
            not configuration.is_joint
            and state.configurations.changed_at <= status.commit_index
            and raft.is_term_committed
            and state.transfer_target is None
        ),
        caught_up=(
            own,
            *(
                NodeId(member)
                for member, progress in sorted(status.members.items())
                if progress.heard and progress.match >= enough
            ),
        ),
    )


def _same(one: tuple[object, ...], other: tuple[object, ...]) -> bool:
    """The parts of the value by identity, the small rest by value."""
    return one[0] is other[0] and one[1] is other[1] and one[2:] == other[2:]
