"""Repairs of the groups after their majority was lost: what this node says of itself, promises and does, and
how it conducts a repair.

A repair is decided by the first durable record that it was activated, the conductor's own. Who is only
prepared then hears of it from the conductor, or from the first node that greets it under the new cluster id;
so a conductor that dies after it decided holds nobody up. Before that, nothing has happened anywhere.

Invariant: a node carries out only what it has prepared, and only while it is as it was then. From the moment
it is activated it has no voice in the groups of the former id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Hello
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.lineage import ResetManagement
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import verify_chain
from lockstep.node.context import NodeContext
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.management import Management
from lockstep.node.recovery.audit_file import AuditFile
from lockstep.node.recovery.judging import judged
from lockstep.node.recovery.messages import (
    AskSurvey,
    AskTail,
    Decide,
    Done,
    Migrate,
    Migrated,
    Prepare,
    Restart,
    Tail,
)
from lockstep.node.recovery.moving import Moving
from lockstep.node.recovery.own_state import OwnState
from lockstep.node.recovery.recovery_file import RecoveryFile
from lockstep.recovery import plan as planning
from lockstep.recovery.audit import Step, Told
from lockstep.recovery.fences import Target
from lockstep.recovery.plan import Drawn, ResetPlan, Wish
from lockstep.recovery.replacing import problem_with
from lockstep.recovery.steps import Activated, Diverged, Migrating, Phase, Prepared, Withdrawn
from lockstep.recovery.survey import Survey
from lockstep.values.codec import decoder
from lockstep.values.errors import (
    CannotApply,
    LeadershipLost,
    LockstepError,
    NodeRestarting,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
)
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import RECOVERY_ASKED_AT_ONCE_MAX

#: One question to a node; who does not answer in it counts as absent.
SURVEY_TIMEOUT_MS: Final = 2000
#: A participant fetches what it lacks of the log, and writes the plan down.
PREPARE_TIMEOUT_MS: Final = 10_000
#: The decision is durable already: this only brings it sooner.
DECIDE_TIMEOUT_MS: Final = 2000
#: A node reads its disk and takes part again.
BACK_TIMEOUT_MS: Final = 60_000
#: Between an answer and the restart that it announces.
FAREWELL_S: Final = 0.2
_RESET_MANAGEMENT = decoder(ResetManagement)


class Surveyed(msgspec.Struct, frozen=True):
    """Answers by node id, ascending, and why others gave none."""

    answers: tuple[Survey, ...]
    silent: Mapping[int, str]


class Decided(msgspec.Struct, frozen=True):
    """`told`: participants that confirmed that they carry it out; others do when they hear of it."""

    plan: ResetPlan
    told: tuple[int, ...]
    untold: Mapping[int, str]


class ResetService:
    """`restart(error)` has this node begin another life in its process."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        management: Management,
        restart: Callable[[NodeRestarting], object],
        is_ready: Callable[[], bool],
    ) -> None:
        self._runtime = context.runtime
        self._internode = context.internode
        self._own_id = context.own_id
        self._say = context.log
        self._log = log
        self._management = management
        self._restart = restart
        self._is_ready = is_ready
        self.own = OwnState(context, log, management)
        self.file = RecoveryFile(context.runtime.disk)
        self.audit = AuditFile(context.runtime)
        #: One step of a repair at a time.
        self._busy = asyncio.Lock()
        register = context.internode.register
        register(verbs.RECOVERY_SURVEY, AskSurvey, Survey, self._serve_survey)
        register(verbs.RECOVERY_TAIL, AskTail, Tail, self._serve_tail)
        register(verbs.RECOVERY_PREPARE, Prepare, Done, self._serve_prepare)
        register(verbs.RECOVERY_DECIDE, Decide, Done, self._serve_decision)
        register(verbs.RECOVERY_MIGRATE, Migrate, Migrated, self._serve_migration)
        register(verbs.RECOVERY_RESTART, Restart, Done, self._serve_restart)
        context.internode.own.listen_refused(self._refused)
        Moving(context, log, self.own.tail, self._fall_silent, self._begin_anew)

    def load(self) -> None:
        """CorruptFile, CannotApply when what this node recorded makes no sense."""
        self.file.load()
        self.audit.load()

    async def _note(self, step: Step, text: str, plan: ResetPlan) -> None:
        await self.audit.note(Told(step, plan.actor, text, plan.attempt, plan.cluster_id))

    # -- this node ----------------------------------------------------------------------------------

    async def _serve_survey(self, _peer: object, _question: AskSurvey) -> Survey:
        return self.own.survey()

    async def _serve_tail(self, _peer: object, question: AskTail) -> Tail:
        return Tail(tuple(self.own.tail(question.epoch)))

    async def _serve_prepare(self, _peer: object, order: Prepare) -> Done:
        return await self._prepare(order.plan)

    async def _prepare(self, plan: ResetPlan) -> Done:
        """Rejected when this node is not as the plan has it."""
        state = self._log.state
        ahead = state.current.directory.by_id.get(plan.ahead)
        if plan.ahead != self._own_id() and ahead is not None:
            await self._log.catch_up.reach(
                plan.base_epoch, (ahead.address, ahead.internode_port), PREPARE_TIMEOUT_MS
            )
        async with self._busy:
            planning.check_against(plan, self.own.survey())
            value = state.current
            problem = verify_chain(plan.entries, epoch=value.epoch, previous_hash=value.hash)
            if problem is not None:
                raise Rejected(f"the plan does not go on where node {self._own_id()} is: {problem}")
            for entry in plan.entries:
                value = apply_entry(value, entry, self._log.registry)
            told = f"{len(plan.entries)} entries behind epoch {plan.base_epoch}; voters {plan.voters}"
            await self._note(Step.PREPARED, told, plan)
            await self.file.record(Prepared(plan))
            self._runtime.probes.reach("recovery.prepared")
        self._say("recovery.prepared", attempt=plan.attempt, cluster=plan.cluster_id)
        return Done(self._own_id())

    async def prepare_replacement(self, plan: ResetPlan, after: ClusterMetadata) -> int:
        """The same of a plan that replaces the metadata by others, which are `after` its entries."""
        own = after.directory.by_host_id.get(self._log.context.host_id())
        if own is None or own.state is NodeState.LEFT:
            raise Rejected(f"node {self._own_id()} is not in the metadata that the plan brings")
        async with self._busy:
            self._refuse_other_state(plan)
            # What these groups would still decide is not in the plan.
            self._fall_silent()
            await self._note(Step.PREPARED, f"{plan.kind}: {plan.lost}; voters {plan.voters}", plan)
            await self.file.record(Prepared(plan))
            self._runtime.probes.reach("recovery.prepared")
        self._say("recovery.prepared", attempt=plan.attempt, cluster=plan.cluster_id)
        return own.id

    def _refuse_other_state(self, plan: ResetPlan) -> None:
        """Rejected when this node is not as the plan has it."""
        if not plan.value:
            planning.check_against(plan, self.own.survey())
            return
        problem = problem_with(plan, self.own.survey_of(), broken=self._log.state.broken is not None)
        if problem is not None:
            raise Rejected(problem)

    async def _serve_decision(self, _peer: object, order: Decide) -> Done:
        return await self.decide(order)

    async def decide(self, order: Decide) -> Done:
        if not order.go:
            return await self._withdraw(order.attempt)
        done = await self._activate(order.attempt)
        self._leave()
        return done

    async def _withdraw(self, attempt: str) -> Done:
        async with self._busy:
            plan = self.file.standing.plan
            if self.file.standing.phase is Phase.PREPARED and plan is not None and plan.attempt == attempt:
                await self._note(Step.WITHDRAWN, "it was given up: nothing was changed", plan)
                await self.file.record(Withdrawn(attempt))
                self._say("recovery.withdrawn", attempt=attempt)
                if plan.value and self._log.state.broken is None:
                    self._begin_anew("a repair was given up, and it takes part again")
        return Done(self._own_id())

    async def _activate(self, attempt: str) -> Done:
        """From here on it only goes forward. Rejected when this node is not as it was when it prepared."""
        async with self._busy:
            standing = self.file.standing
            if standing.phase is Phase.ACTIVATED and standing.attempt == attempt:
                return Done(self._own_id())
            if standing.plan is None or standing.attempt != attempt:
                raise Rejected(f"node {self._own_id()} has not prepared attempt {attempt}")
            self._refuse_other_state(standing.plan)
            if standing.plan.value:
                # What it applies meanwhile is replaced, and it may never get further.
                self._fall_silent()
            else:
                self._stand_still()
            await self._note(Step.ACTIVATED, f"cluster {standing.plan.former_id} ends here", standing.plan)
            await self.file.record(Activated(attempt))
            self._runtime.probes.reach("recovery.activated")
        self._say("recovery.activated", attempt=attempt, cluster=standing.plan.cluster_id)
        return Done(self._own_id())

    def _stand_still(self) -> None:
        """No voice, and nothing more is applied: what is carried out is planned for what this node has now.
        Rejected while it is applying something."""
        state = self._log.state
        if state.broken is None and state.tail[0] != state.epoch:
            raise Rejected(f"node {self._own_id()} is applying entries up to epoch {state.tail[0]}")
        self._fall_silent()
        self._log.catch_up.stop()
        state.hold_at(state.epoch)

    def _fall_silent(self) -> None:
        """No voice under the former id from now on, whatever becomes of what is recorded next."""
        self._log.member.halt()
        if self._management.group is not None:
            self._management.group.driver.halt()

    async def _serve_migration(self, _peer: object, order: Migrate) -> Migrated:
        return await self._migrate(order.target, order.actor, dry_run=order.dry_run, parks=order.parks)

    async def _migrate(self, target: Target, actor: str, *, dry_run: bool, parks: bool) -> Migrated:
        """Go to the repaired cluster unless what this node applied is not part of its history, and makes a
        difference there. With `parks` a node that has diverged is only read from, from then on."""
        async with self._busy:
            cluster, own = self._log.state.current, self._own_id()
            found = await judged(self._log, target, self._runtime.clock.wall_us() // 1000)
            fenced = found.fenced
            if fenced is not None:
                if not dry_run:
                    told = Told(Step.REFUSED, actor, fenced.reason, cluster_id=target.cluster_id)
                    await self.audit.note(told)
                hashes = (fenced.own_hash, fenced.other_hash)
                parked = parks and fenced.diverged_at > 0 and not dry_run
                if parked:
                    await self._park(
                        Diverged(target.cluster_id, fenced.diverged_at, *hashes, fenced.reason, actor)
                    )
                return Migrated(own, cluster.epoch, fenced.reason, fenced.diverged_at, *hashes, zombie=parked)
            if own in target.voters:
                why = "it votes there and had no part in it yet; `lockstep cms reconfigure` has another vote"
                return Migrated(own, cluster.epoch, why)
            done = Migrated(own, cluster.epoch, waived=found.harmless)
            if dry_run:
                return done
            self._stand_still()
            left = f"it leaves cluster {cluster.identity.cluster_id} at epoch {found.epoch}{found.given_up}"
            tail = self.own.tail(cluster.epoch)
            if tail:
                left += f"; entries {tail[0].epoch} to {tail[-1].epoch} of its log were never applied and go"
            await self.audit.note(Told(Step.MIGRATING, actor, left, cluster_id=target.cluster_id))
            await self.file.record(Migrating(target.cluster_id, target.addresses, actor, found.epoch))
            self._runtime.probes.reach("recovery.migrating")
        self._say("recovery.migrating", cluster=target.cluster_id, epoch=found.epoch)
        self._leave()
        return done

    async def _park(self, record: Diverged) -> None:
        """No voice and no clients any more: this node is a zombie, of which only its data are read."""
        self._stand_still()
        text = f"it has another history from epoch {record.epoch} on, and is only read from"
        await self.audit.note(Told(Step.DIVERGED, record.actor, text, cluster_id=record.cluster_id))
        await self.file.record(record)
        self._runtime.probes.reach("recovery.diverged")
        self._say("recovery.diverged", cluster=record.cluster_id, epoch=record.epoch)
        self._begin_anew("this node has diverged, and is only read from")

    def _leave(self) -> None:
        """Begin another life, once what is to be answered was answered."""
        standing = self.file.standing
        goal = standing.plan or standing.move
        assert goal is not None, "who leaves was activated, or migrates"
        self._begin_anew(f"this node goes on in cluster {goal.cluster_id}")

    async def _serve_restart(self, _peer: object, order: Restart) -> Done:
        """PreconditionError while it is not serving: what starts already is not started again."""
        if not self._is_ready():
            raise PreconditionError(f"node {self._own_id()} is starting", hint="wait until it serves")
        await self.audit.note(Told(Step.RESTARTING, order.actor, "its members of the groups start anew"))
        self._say("recovery.restarting")
        self._begin_anew("its members of the groups are started again")
        return Done(self._own_id())

    def _begin_anew(self, why: str) -> None:
        error = NodeRestarting(why, hint="connect again in some seconds")
        asyncio.get_running_loop().call_later(FAREWELL_S, self._restart, error)

    def _refused(self, theirs: Hello) -> None:
        """Who greets under the id that this node has prepared for knows that it was decided."""
        standing = self.file.standing
        planned = standing.plan.cluster_id if standing.plan is not None else ""
        if standing.phase is Phase.PREPARED and theirs.cluster_id == planned:
            self._runtime.tasks.spawn(self._follow(standing.attempt), "recovery.follow")

    async def _follow(self, attempt: str) -> None:
        try:
            await self._activate(attempt)
            self._leave()
        except LockstepError as error:
            self._say("recovery.not_followed", attempt=attempt, error=str(error))

    # -- conducting ---------------------------------------------------------------------------------

    async def survey(self) -> Surveyed:
        """Ask every node of the cluster, a bounded number at once."""
        own, directory = self._own_id(), self._log.cluster.directory
        answers = [self.own.survey()]
        silent: dict[int, str] = {}
        others = [node for node in directory.present_ids if node != own]
        for node, answer in (await self._ask_each(others, verbs.RECOVERY_SURVEY, AskSurvey())).items():
            if isinstance(answer, Survey):
                answers.append(answer)
            else:
                silent[node] = answer
        return Surveyed(tuple(sorted(answers, key=lambda one: one.node)), silent)

    async def plan(self, wish: Wish) -> ResetPlan:
        """What `reset` would do now. PreconditionError when there is nothing to repair, or no way to."""
        surveyed = await self.survey()
        wish = await _named(self._management, wish, surveyed)
        planning.refuse(self._log.cluster, surveyed.answers, wish)
        if planning.working(self._log.cluster, surveyed.answers, wish):
            return planning.make_plan(self._log.state.current, surveyed.answers, (), wish, self.drawn())
        if self._own_id() in wish.excluded:
            raise PreconditionError(
                f"node {self._own_id()} is to take no part, and cannot conduct it", hint="ask another node"
            )
        answers = planning.part_of(surveyed.answers, wish)
        ahead, source = planning.ahead_of(answers), planning.source_of(answers)
        if ahead.node != self._own_id():
            await self._log.catch_up.reach(ahead.epoch, self._address(ahead.node), PREPARE_TIMEOUT_MS)
        if source.node == self._own_id():
            tail = tuple(self.own.tail(ahead.epoch))
        else:
            told: Tail = await self._internode.request(
                self._address(source.node), verbs.RECOVERY_TAIL, AskTail(ahead.epoch), SURVEY_TIMEOUT_MS
            )
            tail = told.entries
        cluster = self._log.state.current
        if (cluster.epoch, cluster.hash) != (ahead.epoch, ahead.hash):
            raise PreconditionError("the metadata moved while the repair was planned", hint="plan it again")
        return planning.make_plan(cluster, surveyed.answers, tail, wish, self.drawn())

    def drawn(self) -> Drawn:
        random = self._runtime.random
        return Drawn(random.uuid(), random.uuid(), random.bytes(16), self._runtime.clock.wall_us())

    async def _reset_by_log(self, plan: ResetPlan) -> Decided:
        """Have the metadata group end this cluster id; a leader that ends with it may not answer."""
        named = _RESET_MANAGEMENT.decode(plan.last.body)
        # The leader says which epoch it continues.
        repaired = msgspec.structs.replace(named.repaired, epoch=0, hash=b"")
        wanted = msgspec.structs.replace(named, repaired=repaired)
        try:
            await self._log.submit(wanted)
        except (OutcomeUnknown, LeadershipLost, PeerError) as error:
            deadline_s = self._runtime.clock.monotonic_s() + PREPARE_TIMEOUT_MS / 1000
            while self._log.cluster.identity.cluster_id != plan.cluster_id:
                if self._runtime.clock.monotonic_s() > deadline_s:
                    raise error
                await asyncio.sleep(FAREWELL_S)
        return Decided(plan, plan.participants, {})

    async def reset(self, plan: ResetPlan) -> Decided:
        """Carry a plan out. PreconditionError, and nothing has happened anywhere, when a participant does not
        take part as planned."""
        if plan.by_log:
            return await self._reset_by_log(plan)
        assert self._own_id() in plan.participants, "who plans takes part"
        await self._note(Step.PLANNED, f"participants {plan.participants}, absent {plan.absent}", plan)
        others = [node for node in plan.participants if node != self._own_id()]
        prepared = await self._ask_each(others, verbs.RECOVERY_PREPARE, Prepare(plan), PREPARE_TIMEOUT_MS)
        refused = {node: answer for node, answer in prepared.items() if isinstance(answer, str)}
        if not refused:
            try:
                await self._prepare(plan)
            except (Rejected, CannotApply) as error:
                refused[self._own_id()] = error.message
        if refused:
            await self._ask_each(others, verbs.RECOVERY_DECIDE, Decide(plan.attempt, False))
            await self._withdraw(plan.attempt)
            node, why = min(refused.items())
            await self._note(Step.REFUSED, f"node {node} takes no part: {why}", plan)
            raise PreconditionError(
                f"nothing was changed: node {node} takes no part in the repair: {why}",
                hint="plan it again; a node that stays silent is left out of the next plan",
            )
        await self._activate(plan.attempt)
        answers = await self._ask_each(others, verbs.RECOVERY_DECIDE, Decide(plan.attempt, True))
        untold = {node: answer for node, answer in answers.items() if isinstance(answer, str)}
        told = (self._own_id(), *(node for node in answers if node not in untold))
        await self._note(Step.DECIDED, f"confirmed by nodes {tuple(sorted(told))}", plan)
        self._leave()
        return Decided(plan, tuple(sorted(told)), untold)

    async def restart(self, nodes: Sequence[int], actor: str = "") -> dict[int, str]:
        """Have the nodes begin another life, one after the other, this one last; why it failed, or "" by
        node. The next one is only told once the one before serves again."""
        found: dict[int, str] = {}
        for node in sorted(nodes, key=lambda one: (one == self._own_id(), one)):
            if node == self._own_id():
                await self._serve_restart(None, Restart(actor))
                found[node] = ""
                continue
            answer = await self.ask(node, verbs.RECOVERY_RESTART, Restart(actor), SURVEY_TIMEOUT_MS)
            found[node] = answer if isinstance(answer, str) else await self._back(node)
            if found[node]:
                break
        return found

    async def _back(self, node: int) -> str:
        """Return once the node answers in another life; why it does not."""
        await asyncio.sleep(2 * FAREWELL_S)
        deadline_s = self._runtime.clock.monotonic_s() + BACK_TIMEOUT_MS / 1000
        while self._runtime.clock.monotonic_s() < deadline_s:
            answer = await self.ask(node, verbs.RECOVERY_SURVEY, AskSurvey(), SURVEY_TIMEOUT_MS)
            if isinstance(answer, Survey):
                return ""
            await asyncio.sleep(FAREWELL_S)
        return f"it did not come back within {BACK_TIMEOUT_MS} ms: {answer}"

    async def migrate(
        self, target: Target, actor: str = "", *, dry_run: bool, parks: bool = False
    ) -> tuple[tuple[Migrated, ...], dict[int, str]]:
        """Every node of this cluster that answers goes to the repaired one, or says why not; and who did not
        answer. Each is judged by what it applied itself."""
        others = [node for node in self._log.cluster.directory.present_ids if node != self._own_id()]
        order = Migrate(target, dry_run, actor, parks)
        answers = await self._ask_each(others, verbs.RECOVERY_MIGRATE, order)
        silent = {node: answer for node, answer in answers.items() if isinstance(answer, str)}
        said = [answer for answer in answers.values() if isinstance(answer, Migrated)]
        said.append(await self._migrate(target, actor, dry_run=dry_run, parks=parks))
        return tuple(sorted(said, key=lambda one: one.node)), silent

    async def _ask_each(
        self, nodes: Sequence[int], verb: int, message: Any, timeout_ms: int = SURVEY_TIMEOUT_MS
    ) -> dict[int, Any]:
        """Node -> its answer, or the text of why there is none."""
        spawn = self._runtime.tasks.spawn
        found: dict[int, Any] = {}
        for first in range(0, len(nodes), RECOVERY_ASKED_AT_ONCE_MAX):
            part = nodes[first : first + RECOVERY_ASKED_AT_ONCE_MAX]
            asking = [spawn(self.ask(node, verb, message, timeout_ms), "recovery.ask") for node in part]
            found.update(zip(part, await asyncio.gather(*asking), strict=True))
        return found

    async def ask(self, node: int, verb: int, message: Any, timeout_ms: int) -> Any:
        try:
            return await self._internode.request(self._address(node), verb, message, timeout_ms)
        except LockstepError as error:
            return error.message or error.code

    def _address(self, node: int) -> tuple[str, int]:
        info = self._log.cluster.directory.by_id[NodeId(node)]
        return info.address, info.internode_port


async def _named(management: Management, wish: Wish, surveyed: Surveyed) -> Wish:
    """The wish with the members that the management group has, where it asks for those. PreconditionError
    when nobody leads the group."""
    if not wish.keeps_managers:
        return wish
    members = await management.members()
    if not members:
        raise PreconditionError(
            "nobody leads the management group, so nobody says who its members are",
            hint="name them: --cluster-management-group NODE,...",
        )
    here = {one.node for one in planning.part_of(surveyed.answers, wish)}
    kept = tuple(NodeId(member) for member in members if member in here)
    return msgspec.structs.replace(wish, management=kept)
