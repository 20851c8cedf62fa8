"""Becoming a member: founding a cluster with others, or joining one through seeds.

Invariants: a newcomer owns nothing until its bootstrap operation has ended; a data directory that belongs to
one cluster is never used for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.management_commands import Host
from lockstep.metadata.operations import OperationKind
from lockstep.metadata.requests import RequestState
from lockstep.metadata.transformations import Register, UpdateNode
from lockstep.node.catch_up import CatchUp
from lockstep.node.configuration import Configuration
from lockstep.node.founding import Founding
from lockstep.node.identity import IdentityFile
from lockstep.node.management import Management
from lockstep.node.members import Members
from lockstep.node.messages import AskMembers, EpochQuery, EpochReply, MemberList, SelfDescription
from lockstep.node.metadata_state import MetadataState
from lockstep.node.processors.kinds import RAFT
from lockstep.node.submission import Submitter
from lockstep.placement.allocation import splitting_tokens
from lockstep.replication import verbs
from lockstep.replication.handshake import Address
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.compatibility import CASSANDRA_RELEASE
from lockstep.values.errors import (
    ConfigurationError,
    HandshakeRefused,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
)
from lockstep.values.ids import NodeId

#: Between two looks at the same thing that others must do first.
POLL_MS = 20
#: Between two attempts at something that was refused or did not answer.
RETRY_MS = 250
#: A node in one of these states serves while an operation about it runs.
_SERVING = (NodeState.DECOMMISSIONING, NodeState.REMOVING, NodeState.REBUILDING)
#: One question to a seed.
ASK_TIMEOUT_MS = 2000
#: One submission during start.
SUBMIT_TIMEOUT_MS = 10_000


class Membership:
    """`founding` is None for a node that is no founder; set before `become_member`."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        identity: IdentityFile,
        state: MetadataState,
        internode: Internode,
        submitter: Submitter,
        management: Management,
        members: Members,
        catch_up: CatchUp,
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._configuration = configuration
        self._identity = identity
        self._state = state
        self._internode = internode
        self._submitter = submitter
        self._management = management
        self._members = members
        self._catch_up = catch_up
        self._log = log
        self.founding: Founding | None = None

    @property
    def own(self) -> NodeInfo | None:
        return self._state.current.directory.by_host_id.get(self._identity.value.host_id)

    async def become_member(self) -> NodeInfo:
        """Return this node's directory entry once it is normal and its directory is bound."""
        if self.founding is not None:
            await self.founding.found()
        elif self._state.epoch == 0:
            await self._meet_seeds()
        await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._join()
        own = self.own
        assert own is not None
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
        )

    async def _meet_seeds(self) -> None:
        """Find the cluster through any live member that this node knows of, and fetch the log.

        A configured seed of another cluster is an error; a silent one is asked again, after the members
        that another one named.
        """
        port = self._configuration.network.internode_port
        seeds = parse_addresses(self._configuration.cluster.seeds, port)
        if not self._members.addresses():
            raise ConfigurationError(
                "this node is not a founder and knows no seed",
                hint="set [cluster] seeds to the address of any node of the cluster",
            )
        said = ""
        while self._state.epoch == 0:
            for address in self._members.addresses():
                try:
                    reply: MemberList = await self._internode.request(
                        address, verbs.MEMBERS, AskMembers(0), ASK_TIMEOUT_MS
                    )
                    if reply.epoch:
                        self._members.learn(reply)
                        await self._catch_up.reach(1, address, ASK_TIMEOUT_MS)
                        return
                except PeerError as error:
                    if isinstance(error, HandshakeRefused) and address in seeds:
                        raise ConfigurationError(
                            f"seed {address[0]}:{address[1]} refuses this node: {error.message}",
                            hint="check [cluster] name and seeds, and that the data directory is this "
                            "node's own",
                        ) from error
                    if str(error) != said:
                        said = str(error)
                        self._log("join.waits", seed=address[0], reason=said)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _join(self) -> None:
        """Register and bootstrap, or go on with it after a restart."""
        requested, said = False, ""
        while True:
            own = self.own
            if own is not None and own.state is NodeState.NORMAL:
                return
            if own is not None and own.state in (NodeState.LEFT, *_SERVING):
                if own.state is NodeState.LEFT:
                    raise PreconditionError(
                        "this node has left the cluster",
                        hint="start it with an empty data directory to join as a new node",
                    )
                return
            try:
                if own is None:
                    await self._register()
                elif not self._bootstrapping(own):
                    if requested:
                        raise PreconditionError(self._refused(own))
                    await self._request_bootstrap(own)
                    requested = True
            except (PeerError, OutcomeUnknown, Rejected) as error:
                if isinstance(error, Rejected) and own is None and self.own is None:
                    raise PreconditionError(error.message, hint=error.hint) from error
                if str(error) != said:
                    said = str(error)
                    self._log("join.waits", reason=said)
                await asyncio.sleep(RETRY_MS / 1000)
            await asyncio.sleep(POLL_MS / 1000)

    def _bootstrapping(self, own: NodeInfo) -> bool:
        """Its request waits or runs."""
        return own.id in self._state.current.requests.by_node

    def _refused(self, own: NodeInfo) -> str:
        """Why its last request did not lead to a bootstrap."""
        for request in reversed(self._state.current.requests.ended):
            if own.id in request.nodes and request.state is RequestState.FAILED:
                return f"the bootstrap of this node failed: {request.outcome}"
        return "the bootstrap of this node was cancelled"

    async def _register(self) -> None:
        described = self.describe()
        await self._refuse_alive()
        await self._management.admit(Host(described.host_id, described.address, described.internode_port))
        self._runtime.probes.reach("membership.admitted")
        await self._submitter.submit(
            Register(
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
            ),
            SUBMIT_TIMEOUT_MS,
        )

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
        except PeerError:
            return
        if reply.node == wanted and info.state is NodeState.NORMAL:
            raise PreconditionError(
                f"node {wanted} is alive: only a dead node is replaced",
                hint=f"stop it first, or join without [cluster] replaces and decommission node {wanted}",
            )

    async def _request_bootstrap(self, own: NodeInfo) -> None:
        cluster = self._state.current
        if own.replaces:
            if cluster.directory.by_id[own.replaces].state is NodeState.LEFT:
                raise PreconditionError(
                    f"node {own.replaces}, which this node was to replace, has left the cluster",
                    hint=f"`lockstep topology remove {own.id} --force` forgets this one; then start it with "
                    "an empty data directory and without [cluster] replaces",
                )
            replace = EnqueueRequest(
                OperationKind.REPLACE, own.id, replaced=own.replaces, actor=f"node {own.id}"
            )
            await self._submitter.submit(replace, SUBMIT_TIMEOUT_MS)
            return
        owned = [node.tokens for node in cluster.directory.nodes]
        # Those that wait to join own their tokens by the time it is this node's turn.
        owned += [request.tokens for request in cluster.requests.live if request.tokens]
        tokens = splitting_tokens(owned, self._configuration.placement.num_tokens)
        await self._submitter.submit(
            EnqueueRequest(OperationKind.BOOTSTRAP, own.id, tokens, actor=f"node {own.id}"), SUBMIT_TIMEOUT_MS
        )

    async def _update_addresses(self, own: NodeInfo) -> None:
        described = self.describe()
        wanted = msgspec.structs.replace(
            own,
            address=described.address,
            internode_port=described.internode_port,
            cql_port=described.cql_port,
            admin_port=described.admin_port,
            version=described.version,
            log_version=described.log_version,
        )
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
        )
        while True:
            try:
                await self._submitter.submit(update, SUBMIT_TIMEOUT_MS)
                return
            except (PeerError, OutcomeUnknown) as error:
                # Most nodes may have moved at once: they find each other, and then it goes on.
                self._log("join.waits", reason=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
            except Rejected as error:
                text = f"the cluster does not take this node's addresses: {error.message}"
                raise PreconditionError(text, hint=error.hint) from error


def parse_addresses(texts: tuple[str, ...], default_port: int) -> tuple[Address, ...]:
    """`host` or `host:port` to (host, port)."""
    addresses = []
    for text in texts:
        host, _, port = text.partition(":")
        if port and not port.isdigit():
            raise ConfigurationError(f"{text!r} is not an address", hint="write host or host:port")
        addresses.append((host, int(port) if port else default_port))
    return tuple(addresses)
