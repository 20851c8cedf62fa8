"""Joining: getting this node accepted by a cluster, and answering nodes that want to be.

The phases and what each answer means are those of `topology.joining`.

Invariant: nothing of the cluster is written to the data directory before some member has judged this node; a
refused node changes no more. Who is refused here was refused by the rules of `metadata.joining`, at an epoch
that this node has applied; nobody is accepted but by a committed entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.metadata.directory import NodeState
from lockstep.metadata.groups.management import Host
from lockstep.metadata.joining import JoinCode, JoinRefusal
from lockstep.metadata.transformations import Register
from lockstep.node.configuration import split_address
from lockstep.node.context import NodeContext
from lockstep.node.log.histories import Histories
from lockstep.node.log.messages import AskMembers, EpochQuery, EpochReply, SelfDescription
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.membership.liveness import Clocks, shown
from lockstep.node.membership.management import Management
from lockstep.node.membership.members import Members
from lockstep.node.processors.kinds import RAFT
from lockstep.node.ring.processor import refuse_other_membership
from lockstep.topology.joining import (
    AskJoin,
    Basis,
    JoinAnswer,
    JoinState,
    JoinTerms,
    Phase,
    Presentation,
    Verdict,
    answered,
    basis_of,
    compared,
    entry_id,
    first_attempt,
    given_up,
    judge,
    told_terms,
    unfit,
)
from lockstep.values.errors import (
    ConfigurationError,
    HandshakeRefused,
    LockstepError,
    PeerError,
    PeerTimeout,
    PeerUnreachable,
    PreconditionError,
    Rejected,
)
from lockstep.values.ids import NodeId

#: Between two rounds over all members.
RETRY_MS = 250
#: One question to a member.
ASK_TIMEOUT_MS = 2000
#: A node that takes a dead one's address is refused until the others take that one for dead; this is how long
#: they may need.
REPLACED_SUSPECTED_MS = 20_000
#: One presentation: above the time that a member takes to have an entry committed.
PRESENT_TIMEOUT_MS = 12_000


class Joiner:
    """`describe()` is this node as others should know it; `may_follow` whether it may fetch the log."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        management: Management,
        members: Members,
        describe: Callable[[], SelfDescription],
        clocks: Clocks,
    ) -> None:
        self._runtime = context.runtime
        self._configuration = context.configuration
        self._identity = context.identity
        self._state = state
        self._internode = context.internode
        self._management = management
        self._members = members
        self._catch_up = context.catch_up
        self._describe = describe
        self._clocks = clocks
        #: What is wrong with the clocks of members that answered in this round, empty for those that fit.
        self._clock_problems: list[str] = []
        self._log = context.log
        self._said: dict[Address, str] = {}
        #: When a seed first refused to talk, on the monotonic clock.
        self._refused_s: float | None = None
        self.may_follow = False
        #: By which epoch this node saw whom it has to ask to be let in.
        self._as_of = 0
        #: Where it is; None before the first attempt.
        self.progress: JoinState | None = None

    async def be_accepted(self) -> None:
        """Return when an entry that is applied here accepts this node.

        PreconditionError: refused, with the reason. ConfigurationError: a configured seed is of another
        cluster. Silent members, and those that cannot say now, are asked again.
        """
        if not self._members.addresses():
            raise ConfigurationError(
                "this node is not a founder and knows no seed",
                hint="set [cluster] seeds to the address of any node of the cluster",
            )
        state = first_attempt(self._identity.value.generation)
        while True:
            self._clock_problems = []
            for address in self._members.addresses():
                state = self.progress = await self._attempt(state, address)
                if state.phase is Phase.REFUSED and state.refusal is not None:
                    text = f"the cluster refuses this node: {state.refusal.reason}"
                    raise PreconditionError(text, hint=state.refusal.hint)
                if state.phase is Phase.JOINED:
                    await self._accepted(state, address)
                    return
            self._refuse_clock()
            await asyncio.sleep(RETRY_MS / 1000)

    async def _accepted(self, state: JoinState, address: Address) -> None:
        while self._state.epoch < state.epoch:
            try:
                await self._reach(state.epoch, address)
            except PeerError as error:
                self._say(address, "join.waits", error.message)
        own = self._state.current.directory.by_host_id[self._identity.value.host_id]
        assert own.id == state.node and self._state.epoch >= own.accepted_epoch, "its epoch is reached"
        self._log("join.accepted", node=own.id, epoch=state.epoch, attempt=state.attempt)

    # -- one attempt ---------------------------------------------------------------------------------

    async def _attempt(self, state: JoinState, address: Address) -> JoinState:
        """Where an attempt through the member at `address` leads; ASKING when it came to nothing."""
        try:
            question, asked_us = AskJoin(self._configuration.cluster.name), self._clocks.asks()
            terms: JoinTerms = await self._ask(address, verbs.JOIN_ASK, question, ASK_TIMEOUT_MS)
        except PeerError as error:
            self._unanswered(address, error)
            return state
        if terms.unfit:
            self._say(address, "join.seed_skipped", terms.unfit)
            return state
        problem = self._clock_problem(address, asked_us, terms.wall_us)
        self._clock_problems.append(problem)
        if problem:
            self._say(address, "join.clock_differs", problem)
            return state
        state = told_terms(state)
        try:
            return await self._present(state, address)
        except PeerError as error:
            self._say(address, "join.waits", error.message)
            return given_up(state, error.message)

    async def _ask(self, address: Address, verb: int, question: Any, timeout_ms: float) -> Any:
        """A member's answer. PeerError: it gave none; whatever is wrong with it, another one may be asked."""
        try:
            return await self._internode.request(address, verb, question, timeout_ms)
        except PeerError:
            raise
        except LockstepError as error:
            raise PeerUnreachable(f"{address[0]}:{address[1]} cannot say: {error.message}") from error

    async def _present(self, state: JoinState, address: Address) -> JoinState:
        state = await self._asked(state, address, Basis())
        if state.phase is not Phase.BASICALLY_VALIDATED:
            return state
        self.may_follow = True
        if not self._state.epoch:
            self._members.learn(await self._ask(address, verbs.MEMBERS, AskMembers(0), ASK_TIMEOUT_MS))
        await self._reach(state.basis.epoch, address)
        own = self._basis_at(state.basis.epoch)
        if own is None:
            return given_up(state, f"this node does not know the entry of epoch {state.basis.epoch} any more")
        state = compared(state, own)
        if state.phase is not Phase.METADATA_VALIDATED:
            return state
        refuse_other_membership(self._state.current, self._configuration.cluster)
        await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._refuse_alive()
        described = self._describe()
        # On the ring nobody is asked: whether that is so by the time of the entry, the entry tells.
        self._as_of = self._state.epoch
        await self._management.admit(Host(described.host_id, described.address, described.internode_port))
        self._runtime.probes.reach("membership.admitted")
        return await self._asked(state, address, own)

    async def _asked(self, state: JoinState, address: Address, validated: Basis) -> JoinState:
        presented = Presentation(
            self._register(state.attempt),
            self._configuration.cluster.name,
            self._identity.value.cluster_id or self._state.current.identity.cluster_id,
            Basis(validated.epoch, validated.hash),
        )
        self._runtime.probes.reach("join.presented")
        answer: JoinAnswer = await self._ask(address, verbs.JOIN_PRESENT, presented, PRESENT_TIMEOUT_MS)
        after = answered(state, answer)
        if after.reason:
            self._say(address, "join.waits", after.reason)
        return after if after is not state else given_up(state, "the answer was to another attempt")

    def _register(self, attempt: int) -> Register:
        described = self._describe()
        return Register(
            host_id=described.host_id,
            address=described.address,
            internode_port=described.internode_port,
            cql_port=described.cql_port,
            admin_port=described.admin_port,
            dc=described.dc,
            rack=described.rack,
            version=described.version,
            log_version=described.log_version,
            may_vote=self._configuration.cms.processor == RAFT,
            replaces=NodeId(self._configuration.cluster.replaces),
            num_tokens=described.num_tokens,
            features=described.features,
            attempt=attempt,
            as_of=self._as_of,
        )

    def _basis_at(self, epoch: int) -> Basis | None:
        """This node's side of the comparison; None when it does not know that epoch any more."""
        cluster = self._state.current
        if cluster.epoch == epoch:
            return basis_of(cluster)
        known = self._state.hash_at(epoch)
        return Basis(epoch, known) if known is not None else None

    async def _reach(self, epoch: int, address: Address) -> None:
        """Catch up; PeerTimeout when that does not get on any more."""
        while self._state.epoch < epoch:
            before = self._state.epoch
            try:
                await self._catch_up.reach(epoch, address, ASK_TIMEOUT_MS)
            except PeerTimeout:
                if self._state.epoch == before and not self._catch_up.installing:
                    raise

    async def _refuse_alive(self) -> None:
        """PreconditionError when the node to replace answers: its place is not free.

        Only the one that is to take the place asks, once: whoever is silent now may still come back, and
        then it is safe, for nothing that follows counts on its death.
        """
        wanted = self._configuration.cluster.replaces
        info = self._state.current.directory.by_id.get(NodeId(wanted))
        network = self._configuration.network
        if info is None or (info.address, info.internode_port) == (network.address, network.internode_port):
            return
        try:
            reply: EpochReply = await self._internode.request(
                (info.address, info.internode_port), verbs.EPOCH_QUERY, EpochQuery(0), ASK_TIMEOUT_MS
            )
        except LockstepError:
            return  # Nobody there, or nobody who says so.
        if reply.node == wanted and info.state is NodeState.NORMAL:
            raise PreconditionError(
                f"node {wanted} is alive: only a dead node is replaced",
                hint=f"stop it first, or join without [cluster] replaces and decommission node {wanted}",
            )

    # -- clocks --------------------------------------------------------------------------------------

    def _clock_problem(self, address: Address, asked_us: int, wall_us: int) -> str:
        """Why this node does not join through a member; empty when their clocks are near each other."""
        if not wall_us:
            return ""
        offset = self._clocks.measured(asked_us, wall_us)
        if not self._clocks.too_far(offset):
            return ""
        return f"this node's clock is {shown(-offset.offset_us)} that of {address[0]}:{address[1]}"

    def _refuse_clock(self) -> None:
        """PreconditionError when no member that answered has a clock near this node's."""
        if self._clock_problems and all(self._clock_problems):
            raise PreconditionError(
                f"{self._clock_problems[0]}: a node so far off is not let in",
                hint="set its clock right (NTP), or that of the cluster; [clock] skew_fail_ms is the bound",
            )

    # -- what is said --------------------------------------------------------------------------------

    def _unanswered(self, address: Address, error: PeerError) -> None:
        """A configured seed of another cluster is an error; a silent one is asked again."""
        cluster, port = self._configuration.cluster, self._configuration.network.internode_port
        seeds = [split_address(text, port) for text in cluster.seeds]
        refused = isinstance(error, HandshakeRefused) and address in seeds and not self._state.epoch
        if refused and not self._may_wait():
            raise ConfigurationError(
                f"seed {error.message}",
                hint="check [cluster] name and seeds, and that the data directory is this node's own",
            ) from error
        self._say(address, "join.waits", str(error))

    def _may_wait(self) -> bool:
        """Whether whom this node replaces may have died so lately that the others do not know yet."""
        now_s = self._runtime.clock.monotonic_s()
        self._refused_s = now_s if self._refused_s is None else self._refused_s
        return (
            self._configuration.cluster.replaces > 0
            and now_s - self._refused_s < REPLACED_SUSPECTED_MS / 1000
        )

    def _say(self, address: Address, event: str, reason: str) -> None:
        """Once for each member and reason."""
        if self._said.get(address) != reason:
            self._said[address] = reason
            self._log(event, seed=address[0], reason=reason)


#: One submission of a newcomer's entry; it waits a little longer for the answer.
SUBMIT_TIMEOUT_MS = 8000
#: A refusal is looked at again once this node has what it has heard of: then it is definite.
NEWEST_TIMEOUT_MS = 2000


class JoinService:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        histories: Histories,
        submitter: Submitter,
    ) -> None:
        self._state = state
        self._catch_up = context.catch_up
        self._histories = histories
        self._submitter = submitter
        self._host_id = context.host_id
        self._wall_us = context.runtime.clock.wall_us
        self._log = context.log
        context.internode.register(verbs.JOIN_ASK, AskJoin, JoinTerms, self._tell)
        context.internode.register(verbs.JOIN_PRESENT, Presentation, JoinAnswer, self.judge)

    async def _tell(self, _peer: PeerInfo, _question: AskJoin) -> JoinTerms:
        cluster = self._state.current
        voters = [cluster.directory.by_id[voter] for voter in cluster.voters]
        return JoinTerms(
            cluster.identity.cluster_id,
            cluster.identity.cluster_name,
            cluster.epoch,
            cluster.features_enabled,
            tuple((voter.address, voter.internode_port) for voter in voters),
            unfit(cluster, self._host_id()),
            self._wall_us(),
        )

    async def judge(self, peer: PeerInfo, presented: Presentation) -> JoinAnswer:
        """The answer to a presentation; it is carried out when the newcomer has validated the metadata."""
        attempt = presented.attempt
        problem = unfit(self._state.current, self._host_id())
        if problem:
            return JoinAnswer(attempt, Verdict.LATER, reason=problem)
        answer = await self._judged(peer, presented)
        if answer.verdict is Verdict.REFUSED and answer.refusal is not None:
            self._log("join.refused", peer=peer.address, code=answer.refusal.code, why=answer.refusal.reason)
        if answer.verdict is not Verdict.PASSED or not presented.validated.epoch:
            return answer
        validated = presented.validated
        if self._histories.contradicts(validated.epoch, validated.hash):
            refusal = JoinRefusal(
                JoinCode.METADATA, f"the cluster holds another entry of epoch {validated.epoch}"
            )
            return JoinAnswer(attempt, Verdict.REFUSED, refusal=refusal)
        return await self._submit(presented)

    async def _judged(self, peer: PeerInfo, presented: Presentation) -> JoinAnswer:
        answer = judge(self._state.current, presented)
        if answer.verdict is not Verdict.REFUSED or not self._catch_up.behind():
            return answer
        try:
            await self._catch_up.reach(self._catch_up.newest_heard, peer.endpoint, NEWEST_TIMEOUT_MS)
        except LockstepError as error:
            return JoinAnswer(presented.attempt, Verdict.LATER, reason=error.message)
        return judge(self._state.current, presented)

    async def _submit(self, presented: Presentation) -> JoinAnswer:
        """The leader's word."""
        attempt, register = presented.attempt, presented.register
        try:
            epoch = await self._submitter.submit(register, SUBMIT_TIMEOUT_MS, entry_id=entry_id(register))
        except Rejected as refusal:
            if register.is_before_log(self._state.current):
                return JoinAnswer(attempt, Verdict.LATER, reason=refusal.message)
            found = judge(self._state.current, presented)
            if found.verdict is Verdict.ACCEPTED:
                return found
            code = found.refusal.code if found.refusal is not None else JoinCode.REJECTED
            told = JoinRefusal(code, refusal.message, refusal.hint)
            return JoinAnswer(attempt, Verdict.REFUSED, refusal=told)
        except LockstepError as error:
            # Not known, or not by this member: it may itself be shut out by now.
            return JoinAnswer(attempt, Verdict.LATER, reason=error.message)
        known = self._state.current.directory.by_host_id.get(register.host_id)
        node = known.id if known is not None else NodeId(0)
        return JoinAnswer(attempt, Verdict.ACCEPTED, node, epoch)
