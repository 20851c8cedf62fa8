"""Becoming a member: founding a cluster with others, or joining one through seeds; and this node's part in
both consensus groups: when it begins, and when it ends.

The management group is told first: the cluster's id comes from it, so a founding that was interrupted goes on
with the same one.

Invariant: a newcomer owns nothing until its bootstrap operation has ended; a data directory that belongs to
one cluster is never used for another. The first founder is the only voter of a new cluster, and it founds
only when every founder has written down which host each founder is, and all were new and agreed on that. So a
founder that loses its disk comes back as another host, is not let in by the others, and nothing is founded
twice. Who takes part is said by the metadata, and before there is any by the founders' file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.groups.management import Host
from lockstep.metadata.groups.ring_entries import FoundRing
from lockstep.metadata.groups.upgrade_entries import IGNORED
from lockstep.metadata.joining import JOINING_STATES
from lockstep.metadata.requests import RequestState
from lockstep.metadata.transformations import Founder, Initialize, UpdateNode
from lockstep.node.configuration import Configuration, split_address
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import AskMembers, DescribeSelf, MemberList, SelfDescription
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.joiner import Joiner, JoinService
from lockstep.node.membership.management import Management
from lockstep.node.membership.members import Members
from lockstep.node.membership.voters import BoundFounders
from lockstep.placement.circle import even_tokens, splitting_tokens
from lockstep.recovery.steps import Migrating
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import (
    ConfigurationError,
    HandshakeRefused,
    LockstepError,
    NodeExcluded,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
)
from lockstep.values.ids import CASSANDRA_RELEASE
from lockstep.values.limits import MEMBERS_ASKED_AT_ONCE_MAX


class Voting:
    def __init__(self, log: NodeLog, management: Management) -> None:
        self._log = log
        self._management = management
        log.member.ends.add(self.follow)

    def take_part(self) -> None:
        """Take part in both groups, if this node is a member; may be called repeatedly."""
        self._management.take_part()
        self._log.member.take_part()

    def join_groups(self) -> None:
        """The cluster has another way to agree: take part in that."""
        self.take_part()
        self._management.wake()
        self._log.member.roles.tell()

    def follow(self) -> None:
        """The metadata says who takes part in consensus: begin or end this node's part."""
        cluster = self._log.cluster
        if not cluster.epoch:
            return
        if self._log.context.own_id() in cluster.service.members:
            self.take_part()
        else:
            self._log.member.give_up_part()


#: Between two looks at the same thing that others must do first.
POLL_MS = 20
#: Between two attempts at something that was refused or did not answer.
RETRY_MS = 250
#: One question to a founder.
ASK_TIMEOUT_MS = 2000
#: One question of a node that starts to another one, and the wait for what that knows: others that run
#: answer at once.
NEWS_ASKED_MS = 1000
#: Submission of the first entry.
SUBMIT_TIMEOUT_MS = 10_000


class Founding:
    """`describe()` is this node as others should know it."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        management: Management,
        voting: Voting,
        describe: Callable[[], SelfDescription],
    ) -> None:
        self._runtime = context.runtime
        self._state = log.state
        self._internode = context.internode
        self._catch_up = context.catch_up
        self._submitter = log.submitter
        self._management = management
        self._file = log.founders_file
        self._founders = founders_of(context.configuration)
        self._own_address = context.address
        settings = context.configuration.cluster
        self._cluster_name = settings.name
        self._ring_mode = settings.ring_mode if settings.is_on_ring else ""
        self._describe_self = describe
        self._voting = voting
        self._member = log.member
        self._log = context.log
        self._said = ""
        context.internode.register(verbs.DESCRIBE_SELF, DescribeSelf, SelfDescription, self._describe)

    async def _describe(self, peer: PeerInfo, question: DescribeSelf) -> SelfDescription:
        cluster = self._state.current
        own = _texts(self._founders)
        if cluster.epoch == 0 and question.founders != own:
            raise PreconditionError(
                f"this node's founders are {', '.join(own) or 'none'}, not {', '.join(question.founders)}",
                hint="give every founder the same [cluster] founders list",
            )
        bound = self._file.value
        return msgspec.structs.replace(
            self._describe_self(),
            cluster_id=cluster.identity.cluster_id,
            knows_asker=peer.host_id in cluster.directory.by_host_id,
            bound=bound.host_ids if bound is not None else (),
        )

    async def found(self) -> None:
        """Return when the first entry is applied here. ConfigurationError when it never can be."""
        while self._state.epoch == 0 and self._file.value is None:
            if not await self._try(self._bind):
                await asyncio.sleep(POLL_MS / 1000)
        self._voting.take_part()
        bound = self._file.value
        if bound is None or bound.host_ids[0] != self._describe_self().host_id:
            await self._follow_first()
            return
        # The only voter need not wait for an election timeout.
        self._member.campaign()
        while self._state.epoch == 0:
            if self._member.leads and not await self._try(self._initialize):
                await asyncio.sleep(POLL_MS / 1000)
            await asyncio.sleep(POLL_MS / 1000)

    async def _follow_first(self) -> None:
        """Return when the first founder's first entry is applied here; it announces it, once."""
        while self._state.epoch == 0:
            try:
                async with asyncio.timeout(RETRY_MS / 1000):
                    await self._state.wait_for(1)
            except TimeoutError:
                await self._try(self._ask_first)

    async def _ask_first(self) -> None:
        first: SelfDescription = await self._internode.request(
            self._founders[0], verbs.DESCRIBE_SELF, DescribeSelf(_texts(self._founders)), ASK_TIMEOUT_MS
        )
        if first.epoch:
            await self._catch_up_with(self._founders[0], first)

    async def _try(self, step: Callable[[], Awaitable[None]]) -> bool:
        """False when the step cannot be done yet; says why when the reason is a new one."""
        try:
            await step()
        except HandshakeRefused as error:
            raise ConfigurationError(
                f"another founder refuses this node: {error.message}",
                hint="check [cluster] name and founders, and that the data directory is this node's own",
            ) from error
        except (PeerError, PreconditionError, OutcomeUnknown, Rejected) as error:
            if str(error) != self._said:
                self._said = str(error)
                self._log("founding.waits", reason=self._said)
            return False
        return True

    async def _ask_all(self) -> list[SelfDescription]:
        """Every founder's description, in their order; raises what keeps one of them from answering."""
        answers = await self._ask_each()
        described = [answer for answer in answers if isinstance(answer, SelfDescription)]
        for answer in answers:
            if isinstance(answer, LockstepError):
                raise answer
        return described

    async def _ask_each(self) -> list[SelfDescription | LockstepError]:
        question = DescribeSelf(_texts(self._founders))
        answers: list[SelfDescription | LockstepError] = []
        for address in self._founders:
            if address == self._own_address:
                answers.append(self._describe_self())
                continue
            try:
                answers.append(
                    await self._internode.request(address, verbs.DESCRIBE_SELF, question, ASK_TIMEOUT_MS)
                )
            except LockstepError as error:
                answers.append(error)
        return answers

    async def _bind(self) -> None:
        """Write down who the founders are, when all of them are new and agree."""
        answers = await self._ask_each()
        for address, answer in zip(self._founders, answers, strict=True):
            if isinstance(answer, SelfDescription) and answer.epoch:
                await self._catch_up_with(address, answer)
                return
        for answer in answers:
            if isinstance(answer, LockstepError):
                raise answer
        await self._bind_to([answer for answer in answers if isinstance(answer, SelfDescription)])

    async def _bind_to(self, described: Sequence[SelfDescription]) -> None:
        host_ids = tuple(founder.host_id for founder in described)
        own_at = self._founders.index(self._own_address)
        for founder in described:
            if founder.bound and founder.bound[own_at] != host_ids[own_at]:
                raise ConfigurationError(
                    f"founder {founder.address} began to found a cluster with host {founder.bound[own_at]} "
                    f"at this address, and this node is host {host_ids[own_at]}",
                    hint="restore this node's data directory, or empty all founders': nothing was founded",
                )
            if founder.bound and founder.bound != host_ids:
                raise PreconditionError(f"founder {founder.address} began to found with other hosts")
        await self._file.bind(BoundFounders(self._founders, host_ids))
        self._runtime.probes.reach("founding.bound")

    async def _catch_up_with(self, address: Address, founder: SelfDescription) -> None:
        """That founder has a cluster already: ours, founded a moment ago, or a foreign one."""
        if not founder.knows_asker:
            raise ConfigurationError(
                f"founder {founder.address} belongs to cluster {founder.cluster_id} without this node",
                hint="empty its data directory to found a new cluster, or join it: "
                "set [cluster] seeds instead of founders",
            )
        await self._catch_up.reach(founder.epoch, address, ASK_TIMEOUT_MS)

    async def _initialize(self) -> None:
        described = await self._ask_all()
        if self._state.epoch or any(founder.epoch for founder in described):
            return
        for founder in described[1:]:
            if not founder.bound:
                raise PreconditionError(f"founder {founder.address} is not bound to the others yet")
        hosts = [
            Host(founder.host_id, founder.address, founder.internode_port, number)
            for number, founder in enumerate(described, 1)
        ]
        if self._ring_mode:
            founding: Any = FoundRing(self._first(self._runtime.random.uuid(), described), self._ring_mode)
        else:
            founding = self._first(await self._management.found(self._cluster_name, hosts), described)
        await self._submitter.submit(founding, SUBMIT_TIMEOUT_MS)

    def _first(self, cluster_id: str, described: Sequence[SelfDescription]) -> Initialize:
        tokens = even_tokens([founder.num_tokens for founder in described])
        return Initialize(
            cluster_id=cluster_id,
            cluster_name=self._cluster_name,
            founders=tuple(
                Founder(
                    host_id=founder.host_id,
                    address=founder.address,
                    internode_port=founder.internode_port,
                    cql_port=founder.cql_port,
                    admin_port=founder.admin_port,
                    dc=founder.dc,
                    rack=founder.rack,
                    version=founder.version,
                    log_version=founder.log_version,
                    features=founder.features,
                    tokens=owned,
                )
                for founder, owned in zip(described, tokens, strict=True)
            ),
            at_ms=self._runtime.clock.wall_us() // 1000,
        )


def founders_of(configuration: Configuration) -> tuple[Address, ...]:
    """Where the founders stand that the configuration names."""
    port = configuration.network.internode_port
    return tuple(split_address(text, port) for text in configuration.cluster.founders)


def _texts(founders: tuple[Address, ...]) -> tuple[str, ...]:
    return tuple(f"{host}:{port}" for host, port in founders)


#: What a node tells of itself anew when it starts, and what must stay as it was.
_FACTS = ("address", "internode_port", "cql_port", "admin_port", "version", "log_version", "features")
_PLACE = ("dc", "rack")


class Membership:
    """`founding` is None for a node that is no founder."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        management: Management,
        members: Members,
        voting: Voting,
        moved_to: Callable[[], Migrating | None],
    ) -> None:
        """`moved_to()`: the repaired cluster that this node was brought to."""
        self._runtime = context.runtime
        self._catch_up = context.catch_up
        self._own_address = context.address
        self._moved_to = moved_to
        self._configuration = context.configuration
        self._identity = context.identity
        self._state = log.state
        self._submitter = log.submitter
        self._voters = log.voters
        self._internode = context.internode
        self._members = members
        self._log = context.log
        self.founding: Founding | None = None
        if context.address in founders_of(context.configuration):
            self.founding = Founding(context, log, management, voting, self.describe)
        self.join_desk = JoinService(context, log.state, log.histories, log.submitter)
        self.joiner = Joiner(context, log.state, management, members, self.describe, log.clocks)

    @property
    def own(self) -> NodeInfo | None:
        return self._state.current.directory.by_host_id.get(self._identity.value.host_id)

    def may_follow(self, peer: PeerInfo) -> bool:
        """A founder takes its first entry from the first founder, or from a cluster that knows it; any other
        node once a member has judged it."""
        if self.founding is None:
            return self.joiner.may_follow
        return self._voters.is_first(peer.host_id)

    async def become_member(self) -> NodeInfo:
        """Return this node's directory entry once it is normal and its directory is bound."""
        if self.founding is not None:
            await self.founding.found()
        await self._follow_repaired()
        if self._state.epoch:
            # A directory whose log and identity are of two clusters is not for either of them to judge.
            await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._be_accepted()
        await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._join()
        own = self.own
        assert own is not None and self._state.epoch >= own.accepted_epoch, "it serves what it was let into"
        await self._update_addresses(own)
        await self._hear_of_log(own)
        return own

    async def _hear_of_log(self, own: NodeInfo) -> None:
        """A node of the ring asks the others whether they have a log by now, before clients come to it. Who
        was ignored when it was built serves nobody until an operator takes it back."""
        if self._state.current.is_on_ring:
            others = (member for member in self._voters.members().values())
            addresses = [one.address for one in others if one.address != self._own_address]
            await asyncio.gather(*(self._hear(address) for address in addresses))
        said = False
        while (exclusion := self._state.current.excluded_by_node.get(own.id)) is not None:
            if exclusion.reason != IGNORED:
                return
            if not said:
                said = True
                self._log("join.waits", reason=f"node {own.id} is shut out: {exclusion.reason}")
            await asyncio.sleep(RETRY_MS / 1000)

    async def hear_news(self) -> None:
        """Ask others how far the metadata is, voters first, and wait a moment for what is missing here.

        A node that was away asks before its clients come: else it tells them that a table does not exist
        which was made meanwhile. It serves without an answer, too."""
        addresses = self._members.addresses()[:MEMBERS_ASKED_AT_ONCE_MAX]
        await asyncio.gather(*(self._hear(address) for address in addresses))

    async def _hear(self, address: Address) -> None:
        try:
            told: MemberList = await self._internode.request(
                address, verbs.MEMBERS, AskMembers(self._state.epoch), NEWS_ASKED_MS
            )
            if told.epoch > self._state.epoch:
                await self._catch_up.reach(told.epoch, address, NEWS_ASKED_MS)
        except LockstepError:
            return  # Another one may know; who is alone goes on as it was.

    async def _follow_repaired(self) -> None:
        """Where this node was brought to a repaired cluster: return once its log has come to that."""
        move = self._moved_to()
        if move is None or move.cluster_id in self._state.current.identity.lineage:
            return
        self._log("join.waits", reason=f"the log of cluster {move.cluster_id} is on its way")
        while move.cluster_id not in self._state.current.identity.lineage:
            for address in move.addresses:
                if address != self._own_address:
                    self._catch_up.heard(address, self._state.epoch + 1)
            await asyncio.sleep(RETRY_MS / 1000)

    def describe(self) -> SelfDescription:
        network, placement = self._configuration.network, self._configuration.placement
        return SelfDescription(
            host_id=self._identity.value.host_id,
            address=network.address,
            internode_port=network.internode_port,
            cql_port=network.cql_port,
            admin_port=network.admin_port,
            dc=placement.dc,
            rack=placement.rack,
            version=CASSANDRA_RELEASE,
            num_tokens=placement.num_tokens,
            epoch=self._state.epoch,
            log_version=self._state.registry.version,
            features=self._configuration.features,
        )

    async def _be_accepted(self) -> None:
        """Join, or present itself again when it was accepted as it is not any more."""
        own = self.own
        if own is None or (own.state in JOINING_STATES and self._has_changed(own)):
            await self.joiner.be_accepted()

    async def _join(self) -> None:
        """Bootstrap, or go on with it after a restart."""
        requested, said = False, ""
        while True:
            own = self.own
            if own is None:
                raise PreconditionError(
                    "the cluster does not know this node", hint="start it with an empty data directory"
                )
            if own.state is NodeState.LEFT:
                raise PreconditionError(
                    "this node has left the cluster",
                    hint="start it with an empty data directory to join as a new node",
                )
            if own.state not in JOINING_STATES:
                return
            try:
                self._refuse_excluded(own)
                if not self._bootstrapping(own):
                    if requested:
                        raise PreconditionError(self._refused(own))
                    await self._request_bootstrap(own)
                    requested = True
            except (PeerError, OutcomeUnknown, Rejected, NodeExcluded) as error:
                if str(error) != said:
                    said = str(error)
                    self._log("join.waits", reason=said)
                await asyncio.sleep(RETRY_MS / 1000)
            await asyncio.sleep(POLL_MS / 1000)

    def _refuse_excluded(self, own: NodeInfo) -> None:
        """NodeExcluded while operators keep this node from going on."""
        exclusion = self._state.current.excluded_by_node.get(own.id)
        if exclusion is not None:
            raise NodeExcluded(
                f"node {own.id} is excluded: {exclusion.reason}",
                hint=f"`lockstep topology exclude {own.id} --undo` lets it go on",
            )

    def _bootstrapping(self, own: NodeInfo) -> bool:
        """Its request waits or runs."""
        return own.id in self._state.current.requests.by_node

    def _refused(self, own: NodeInfo) -> str:
        """Why its last request did not lead to a bootstrap."""
        for request in reversed(self._state.current.requests.ended):
            if own.id in request.about.nodes and request.state is RequestState.FAILED:
                return f"the bootstrap of this node failed: {request.outcome}"
        return "the bootstrap of this node was cancelled"

    async def _request_bootstrap(self, own: NodeInfo) -> None:
        cluster = self._state.current
        if own.replaces:
            if cluster.directory.by_id[own.replaces].state is NodeState.LEFT:
                raise PreconditionError(
                    f"node {own.replaces}, which this node was to replace, has left the cluster",
                    hint=f"`lockstep topology remove {own.id} --force` forgets this one; then start it with "
                    "an empty data directory and without [cluster] replaces",
                )
            replace = EnqueueRequest(Replace(own.id, own.replaces), actor=f"node {own.id}")
            await self._submitter.submit(replace, SUBMIT_TIMEOUT_MS)
            return
        owned = [node.tokens for node in cluster.directory.nodes]
        # Those that wait to join own their tokens by the time it is this node's turn.
        owned += [request.about.tokens for request in cluster.requests.live if request.about.tokens]
        count = self._configuration.placement.num_tokens
        tokens = splitting_tokens(owned, count) if count else ()
        await self._submitter.submit(
            EnqueueRequest(Bootstrap(own.id, tokens), actor=f"node {own.id}"), SUBMIT_TIMEOUT_MS
        )

    def _has_changed(self, own: NodeInfo) -> bool:
        """Whether this node is not what its entry says."""
        described = self.describe()
        return any(getattr(own, fact) != getattr(described, fact) for fact in _FACTS + _PLACE) or (
            own.is_zero_token != (described.num_tokens == 0)
        )

    def _refuse_other_place(self, own: NodeInfo) -> None:
        """PreconditionError when the configuration puts this node where it does not stand."""
        described = self.describe()
        if any(getattr(own, fact) != getattr(described, fact) for fact in _PLACE):
            raise PreconditionError(
                f"this node stands in {own.dc}/{own.rack}, and [placement] says "
                f"{described.dc}/{described.rack}",
                hint="set it back; to move the node, decommission it and let it join as a new one",
            )
        if own.is_zero_token != (described.num_tokens == 0):
            what = "joined to own no tokens" if own.is_zero_token else "owns tokens"
            raise PreconditionError(
                f"this node {what}, and [placement] num_tokens is {described.num_tokens}",
                hint="set it back; to change it, decommission the node and let it join as a new one",
            )

    async def _update_addresses(self, own: NodeInfo) -> None:
        self._refuse_other_place(own)
        described = self.describe()
        wanted = msgspec.structs.replace(own, **{fact: getattr(described, fact) for fact in _FACTS})
        if wanted == own:
            return
        update = UpdateNode(
            node=own.id,
            address=wanted.address,
            internode_port=wanted.internode_port,
            cql_port=wanted.cql_port,
            admin_port=wanted.admin_port,
            version=wanted.version,
            log_version=wanted.log_version,
            features=wanted.features,
        )
        while True:
            try:
                await self._submitter.submit(update, SUBMIT_TIMEOUT_MS)
                return
            except (PeerError, OutcomeUnknown, NodeExcluded) as error:
                # Most nodes may have moved at once: they find each other, and then it goes on.
                self._log("join.waits", reason=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            except Rejected as error:
                text = f"the cluster does not take this node's addresses: {error.message}"
                raise PreconditionError(text, hint=error.hint) from error
