"""A cluster's way from the ring to a log: asked for at any node, driven by the one that changes go through,
and done at each node as it applies the entry that builds the log.

Invariant: what is under way stands in the metadata, and whoever changes go through now drives it, so a node
that dies, also the one that was asked, leaves nobody held back. Asked for again it is the same one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ringed import RINGED, Ringed, UpgradeState, Upgrading
from lockstep.metadata.groups.upgrade_entries import AbortUpgrade, BeginUpgrade, BuildLog
from lockstep.metadata.log.entries import LogEntry
from lockstep.node.context import NodeContext
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.voters import designated
from lockstep.node.recovery.building import begin_log
from lockstep.recovery.upgrading import Await, Described, asked, described, next_step
from lockstep.values.errors import LockstepError, PreconditionError, Rejected
from lockstep.values.ids import NodeId

#: Between two looks of who drives it, and two attempts at what failed.
LOOK_MS: Final = 250
#: One question; the node asked may have to fetch some entries first.
ASK_TIMEOUT_MS: Final = 2000


class AskDescribed(msgspec.Struct, frozen=True, array_like=True):
    """What does the node have, once it has applied `epoch`?"""

    epoch: int


class UpgradeService:
    """`take_part()` has this node take part in the groups as the metadata says; `fail(error)` is called when
    it must not go on."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        take_part: Callable[[], None],
        fail: Callable[[LockstepError], None],
    ) -> None:
        self._runtime = context.runtime
        self._context = context
        self._log = log
        self._state = log.state
        self._take_part = take_part
        self._fail = fail
        self._switching = False
        #: The upgrade that this node drives, and since when on its steady clock.
        self._driven = 0
        self._since_ms = 0
        #: What is missing, at the node that drives it.
        self.waits = ""
        context.internode.register(verbs.UPGRADE_SURVEY, AskDescribed, Described, self._describe)
        log.state.listen(self._applied)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._drive(), "upgrade.drive")

    # -- operators -------------------------------------------------------------------------------------

    @property
    def ring(self) -> Ringed:
        return self._state.current.parts[RINGED]

    async def begin(self, ignored: tuple[NodeId, ...] = (), actor: str = "") -> UpgradeState:
        """Have the cluster get a log, unless it has one or is on its way. Rejected with what is in the
        way."""
        if self._state.current.upgrade_state is UpgradeState.NOT_UPGRADED:
            wanted = BeginUpgrade(NodeId(self._context.own_id()), actor, tuple(sorted(set(ignored))))
            try:
                await self._log.submit(wanted)
            except Rejected:
                # Another node may have been faster: then it is under way, as asked for.
                if self._state.current.upgrade_state is UpgradeState.NOT_UPGRADED:
                    raise
        return self._state.current.upgrade_state

    async def abort(self, actor: str = "") -> str:
        """Give up the upgrade under way; what was done, for people. PreconditionError when there is none:
        once the log is built there is no way back but to lose it."""
        running = self.ring.upgrading
        if running is None:
            state = self._state.current.upgrade_state
            raise PreconditionError(f"no upgrade is under way: {state}", hint="lockstep upgrade status")
        why = f"{actor or 'an operator'} gave it up"
        try:
            await self._log.submit(AbortUpgrade(running.begun_epoch, why))
        except Rejected as refusal:
            if self._state.current.upgrade_state is UpgradeState.DONE:
                raise PreconditionError("it is done: the log was built", hint="lockstep status") from refusal
            raise
        return f"the upgrade that began at epoch {running.begun_epoch} is given up: {why}"

    # -- driving it ------------------------------------------------------------------------------------

    async def _describe(self, peer: PeerInfo, question: AskDescribed) -> Described:
        await self._context.catch_up.reach(question.epoch, peer.endpoint, ASK_TIMEOUT_MS)
        return self._own()

    def _own(self) -> Described:
        features = self._context.configuration.features
        return described(self._state.current, NodeId(self._context.own_id()), features)

    async def _drive(self) -> None:
        while True:
            await asyncio.sleep(LOOK_MS / 1000)
            running = self.ring.upgrading
            if running is None or not self._drives(running):
                self._driven, self.waits = 0, ""
                continue
            if self._driven != running.begun_epoch:
                self._driven, self._since_ms = running.begun_epoch, self._now_ms
            try:
                await self._step(running)
            except LockstepError as error:
                self._say(str(error))

    def _drives(self, running: Upgrading) -> bool:
        """Whether changes go through this node, of those that are not ignored."""
        cluster, own = self._state.current, self._context.own_id()
        apart = {*running.ignored, *self.ring.silenced}
        if not own or own in apart or not cluster.is_on_ring:
            return False
        return designated(cluster, own, lambda node: node not in apart and self._context.alive(node)) == own

    async def _step(self, running: Upgrading) -> None:
        cluster = self._state.current
        answers, silent = await self._survey(cluster, running)
        if self._state.current is not cluster:
            return
        at_ms = self._runtime.clock.wall_us() // 1000
        step = next_step(cluster, running, answers, silent, self._now_ms - self._since_ms, at_ms)
        if isinstance(step, Await):
            self._say(step.why)
            return
        self._runtime.probes.reach("upgrade.decided")
        self._context.log("upgrade.decides", builds=isinstance(step, BuildLog), **_facts(step))
        await self._log.submit(step)

    async def _survey(
        self, cluster: ClusterMetadata, running: Upgrading
    ) -> tuple[list[Described], dict[int, str]]:
        own, nodes = NodeId(self._context.own_id()), cluster.directory.by_id
        others = [nodes[node] for node in asked(cluster, running) if node != own]

        async def ask(address: tuple[str, int]) -> Described | LockstepError:
            question = AskDescribed(cluster.epoch)
            try:
                answer: Described = await self._context.internode.request(
                    address, verbs.UPGRADE_SURVEY, question, ASK_TIMEOUT_MS
                )
            except LockstepError as error:
                return error
            return answer

        told = await asyncio.gather(*(ask((one.address, one.internode_port)) for one in others))
        answers, silent = [self._own()], dict[int, str]()
        for node, answer in zip(others, told, strict=True):
            if isinstance(answer, LockstepError):
                silent[node.id] = answer.message
            else:
                answers.append(answer)
        return answers, silent

    def _say(self, why: str) -> None:
        if why != self.waits:
            self.waits = why
            self._context.log("upgrade.waits", why=why)

    @property
    def _now_ms(self) -> int:
        return int(self._runtime.clock.monotonic_s() * 1000)

    # -- this node -------------------------------------------------------------------------------------

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: LogEntry) -> None:
        if before.parts[RINGED] is after.parts[RINGED] or self._switching:
            return
        self._switching = True
        self._runtime.tasks.spawn(self._switch(), "upgrade.switch")

    async def _switch(self) -> None:
        """Take part as the metadata says now: on the ring, or in the groups of the log that was built."""
        try:
            if self._context.awaits_log:
                self._context.log("upgrade.log_built", epoch=self.ring.built_epoch)
                await begin_log(self._runtime, self._state, self._context.identity, self._context.log)
        except LockstepError as error:
            self._fail(error)
            return
        finally:
            self._switching = False
        self._take_part()


def _facts(step: BuildLog | AbortUpgrade) -> dict[str, object]:
    return {"voters": step.voters} if isinstance(step, BuildLog) else {"why": step.reason}
