"""Becoming a member: founding a cluster together, or joining one through seeds.

Invariants: a cluster is founded once, by its leader, after every founder described itself as empty with
the same founders; a newcomer owns nothing until its bootstrap operation has ended; a data directory that
belongs to one cluster is never used for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from lockstep.metadata.directory import NodeInfo, NodeState
from lockstep.metadata.operations import OperationKind
from lockstep.metadata.transformations import Founder, Initialize, Register, UpdateNode
from lockstep.node.configuration import Configuration
from lockstep.node.identity import IdentityFile
from lockstep.node.messages import Announce, DescribeSelf, FetchLog, LogEntries, SelfDescription
from lockstep.node.metadata_state import MetadataState
from lockstep.node.submission import Submitter
from lockstep.placement.allocation import even_tokens, splitting_tokens
from lockstep.replication import verbs
from lockstep.replication.handshake import Address, PeerInfo
from lockstep.replication.internode import Internode
from lockstep.runtime.ports import Runtime
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.errors import (
    ConfigurationError,
    HandshakeRefused,
    LockstepError,
    OutcomeUnknown,
    PeerError,
    PreconditionError,
    Rejected,
)

#: Between two looks at the same thing that others must do first.
POLL_MS = 20
#: Between two attempts at something that was refused or did not answer.
RETRY_MS = 250
#: One question to a founder or a seed.
ASK_TIMEOUT_MS = 2000
#: One submission during start.
SUBMIT_TIMEOUT_MS = 10_000
VERSION = "5.0.2"


class Membership:
    """`is_leader()` says whether this node leads the metadata group now."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        identity: IdentityFile,
        state: MetadataState,
        internode: Internode,
        submitter: Submitter,
        *,
        founders: tuple[Address, ...],
        is_leader: Callable[[], bool],
        campaign: Callable[[], None],
        log: Callable[..., None],
    ) -> None:
        self._runtime = runtime
        self._configuration = configuration
        self._identity = identity
        self._state = state
        self._internode = internode
        self._submitter = submitter
        self._founders = founders
        self._is_leader = is_leader
        self._campaign = campaign
        self._campaigned = False
        self._log = log
        internode.register(verbs.DESCRIBE_SELF, DescribeSelf, SelfDescription, self._describe)

    @property
    def own(self) -> NodeInfo | None:
        return self._state.current.directory.by_host_id.get(self._identity.value.host_id)

    async def become_member(self) -> NodeInfo:
        """Return this node's directory entry once it is normal and its directory is bound."""
        if self._founders and self._own_address in self._founders:
            await self._found()
        elif self._state.epoch == 0:
            await self._meet_seeds()
        await self._identity.adopt_cluster(self._state.current.identity.cluster_id)
        await self._join()
        own = self.own
        assert own is not None
        await self._update_addresses(own)
        return own

    @property
    def _own_address(self) -> Address:
        network = self._configuration.network
        return (network.address, network.internode_port)

    def _describe_self(self) -> SelfDescription:
        network, placement = self._configuration.network, self._configuration.placement
        return SelfDescription(
            host_id=self._identity.value.host_id,
            address=network.address,
            internode_port=network.internode_port,
            cql_port=network.cql_port,
            admin_port=network.admin_port,
            dc=placement.dc,
            rack=placement.rack,
            version=VERSION,
            num_tokens=placement.num_tokens,
            epoch=self._state.epoch,
        )

    async def _describe(self, _peer: PeerInfo, question: DescribeSelf) -> SelfDescription:
        own = tuple(f"{host}:{port}" for host, port in self._founders)
        if question.founders != own:
            raise PreconditionError(
                f"this node's founders are {', '.join(own) or 'none'}, not {', '.join(question.founders)}",
                hint="give every founder the same [cluster] founders list",
            )
        return self._describe_self()

    async def _found(self) -> None:
        said = ""
        while self._state.epoch == 0:
            if self._own_address == self._founders[0]:
                self._campaign_when_met()
            if self._is_leader():
                try:
                    await self._initialize()
                except (PeerError, PreconditionError, OutcomeUnknown, Rejected) as error:
                    if str(error) != said:
                        said = str(error)
                        self._log("founding.waits", reason=said)
                    await asyncio.sleep(RETRY_MS / 1000)
            await asyncio.sleep(POLL_MS / 1000)

    def _campaign_when_met(self) -> None:
        """Once a majority is met the first founder need not wait for an election timeout; tried once."""
        met = 1 + sum(self._internode.connected(address) for address in self._founders)
        if 2 * met > len(self._founders) and not self._campaigned:
            self._campaigned = True
            self._campaign()
        for address in self._founders:
            if address != self._own_address:
                self._internode.send(address, verbs.ANNOUNCE, Announce())

    async def _initialize(self) -> None:
        question = DescribeSelf(tuple(f"{host}:{port}" for host, port in self._founders))
        described: list[SelfDescription] = []
        for address in self._founders:
            if address == self._own_address:
                described.append(self._describe_self())
            else:
                described.append(
                    await self._internode.request(address, verbs.DESCRIBE_SELF, question, ASK_TIMEOUT_MS)
                )
        if self._state.epoch or any(d.epoch for d in described):
            return
        tokens = even_tokens([d.num_tokens for d in described])
        await self._submitter.submit(
            Initialize(
                cluster_id=self._runtime.random.uuid(),
                cluster_name=self._configuration.cluster.name,
                founders=tuple(
                    Founder(
                        host_id=d.host_id,
                        address=d.address,
                        internode_port=d.internode_port,
                        cql_port=d.cql_port,
                        admin_port=d.admin_port,
                        dc=d.dc,
                        rack=d.rack,
                        version=d.version,
                        tokens=owned,
                    )
                    for d, owned in zip(described, tokens, strict=True)
                ),
            ),
            SUBMIT_TIMEOUT_MS,
        )

    async def _meet_seeds(self) -> None:
        """Fetch the log from any seed; a seed of another cluster is an error, a silent one is asked again."""
        seeds = parse_addresses(self._configuration.cluster.seeds, self._configuration.network.internode_port)
        if not seeds:
            raise ConfigurationError(
                "this node is not a founder and knows no seed",
                hint="set [cluster] seeds to the address of any node of the cluster",
            )
        said = ""
        while self._state.epoch == 0:
            for seed in seeds:
                try:
                    reply: LogEntries = await self._internode.request(
                        seed, verbs.FETCH_LOG, FetchLog(0), ASK_TIMEOUT_MS
                    )
                    if reply.entries:
                        self._state.offer(reply.entries)
                        await self._state.wait_for(reply.entries[-1].epoch)
                        return
                except HandshakeRefused as error:
                    raise ConfigurationError(
                        f"seed {seed[0]}:{seed[1]} refuses this node: {error.message}",
                        hint="check [cluster] name and seeds, and that the data directory is this node's own",
                    ) from error
                except PeerError as error:
                    if str(error) != said:
                        said = str(error)
                        self._log("join.waits", seed=seed[0], reason=said)
            await asyncio.sleep(RETRY_MS / 1000)

    async def _join(self) -> None:
        """Register and bootstrap, or go on with it after a restart."""
        requested, said = False, ""
        while True:
            own = self.own
            if own is not None and own.state is NodeState.NORMAL:
                return
            if own is not None and own.state in (NodeState.LEFT, NodeState.DECOMMISSIONING):
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
                        raise PreconditionError("the bootstrap of this node was cancelled")
                    await self._request_bootstrap(own)
                    requested = True
            except (PeerError, OutcomeUnknown, Rejected) as error:
                if isinstance(error, Rejected) and own is None:
                    raise PreconditionError(error.message, hint=error.hint) from error
                if str(error) != said:
                    said = str(error)
                    self._log("join.waits", reason=said)
                await asyncio.sleep(RETRY_MS / 1000)
            await asyncio.sleep(POLL_MS / 1000)

    def _bootstrapping(self, own: NodeInfo) -> bool:
        return any(operation.node == own.id for operation in self._state.current.operations)

    async def _register(self) -> None:
        described = self._describe_self()
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
            ),
            SUBMIT_TIMEOUT_MS,
        )

    async def _request_bootstrap(self, own: NodeInfo) -> None:
        directory = self._state.current.directory
        owned = [node.tokens for node in directory.nodes]
        tokens = splitting_tokens(owned, self._configuration.placement.num_tokens)
        await self._submitter.submit(
            PrepareOperation(kind=OperationKind.BOOTSTRAP, node=own.id, tokens=tokens), SUBMIT_TIMEOUT_MS
        )

    async def _update_addresses(self, own: NodeInfo) -> None:
        described = self._describe_self()
        wanted = msgspec.structs.replace(
            own,
            address=described.address,
            internode_port=described.internode_port,
            cql_port=described.cql_port,
            admin_port=described.admin_port,
            version=described.version,
        )
        if wanted == own:
            return
        try:
            await self._submitter.submit(
                UpdateNode(
                    node=own.id,
                    address=wanted.address,
                    internode_port=wanted.internode_port,
                    cql_port=wanted.cql_port,
                    admin_port=wanted.admin_port,
                    version=wanted.version,
                ),
                SUBMIT_TIMEOUT_MS,
            )
        except LockstepError as error:
            raise PreconditionError(f"the cluster does not take this node's addresses: {error}") from error


def parse_addresses(texts: tuple[str, ...], default_port: int) -> tuple[Address, ...]:
    """`host` or `host:port` to (host, port)."""
    addresses = []
    for text in texts:
        host, _, port = text.partition(":")
        if port and not port.isdigit():
            raise ConfigurationError(f"{text!r} is not an address", hint="write host or host:port")
        addresses.append((host, int(port) if port else default_port))
    return tuple(addresses)
