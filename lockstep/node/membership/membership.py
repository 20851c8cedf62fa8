"""Becoming a member: founding a cluster with others, or joining one through seeds.

Invariants: a newcomer owns nothing until its bootstrap operation has ended; a data directory that belongs to
one cluster is never used for another.
"""

from __future__ import annotations

import asyncio

import msgspec

from lockstep.internode.handshake import PeerInfo
from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.joining import JOINING_STATES
from lockstep.metadata.requests import RequestState
from lockstep.metadata.transformations import UpdateNode
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import SelfDescription
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.founding import Founding, founders_of
from lockstep.node.membership.join_service import JoinService
from lockstep.node.membership.joiner import Joiner
from lockstep.node.membership.management import Management
from lockstep.node.membership.members import Members
from lockstep.node.voting import Voting
from lockstep.placement.allocation import splitting_tokens
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.replace import Replace
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import (
    NodeExcluded,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
)
from lockstep.values.ids import CASSANDRA_RELEASE

#: Between two looks at the same thing that others must do first.
POLL_MS = 20
#: Between two attempts at something that was refused or did not answer.
RETRY_MS = 250
#: What a node tells of itself anew when it starts, and what must stay as it was.
_FACTS = ("address", "internode_port", "cql_port", "admin_port", "version", "log_version", "features")
_PLACE = ("dc", "rack")
#: One submission during start.
SUBMIT_TIMEOUT_MS = 10_000


class Membership:
    """`founding` is None for a node that is no founder."""

    def __init__(
        self,
        context: NodeContext,
        log: NodeLog,
        management: Management,
        members: Members,
        voting: Voting,
    ) -> None:
        self._runtime = context.runtime
        self._configuration = context.configuration
        self._identity = context.identity
        self._state = log.state
        self._submitter = log.submitter
        self._voters = log.voters
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
        if self._state.epoch:
            # A directory whose log and identity are of two clusters is not for either of them to judge.
            await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._be_accepted()
        await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._join()
        own = self.own
        assert own is not None and self._state.epoch >= own.accepted_epoch, "it serves what it was let into"
        await self._update_addresses(own)
        return own

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
