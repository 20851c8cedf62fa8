"""Founding a cluster: the founders meet and bind to each other, and the first of them writes the first entry.

The management group is told first: the cluster's id comes from it, so a founding that was interrupted goes
on with the same one.

Invariants: the first founder is the only voter of a new cluster, and it founds only when every founder has
written down which host each founder is, and all were new and agreed on that. So a founder that loses its disk
comes back as another host, is not let in by the others, and nothing is founded twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.metadata.groups.management_commands import Host
from lockstep.metadata.transformations import Founder, Initialize
from lockstep.node.configuration import Configuration, split_address
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import DescribeSelf, SelfDescription
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.founders_file import BoundFounders
from lockstep.node.membership.management import Management
from lockstep.node.voting import Voting
from lockstep.placement.allocation import even_tokens
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
#: One question to a founder.
ASK_TIMEOUT_MS = 2000
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
        self._cluster_name = context.configuration.cluster.name
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
        cluster_id = await self._management.found(self._cluster_name, hosts)
        tokens = even_tokens([founder.num_tokens for founder in described])
        await self._submitter.submit(
            Initialize(
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
            ),
            SUBMIT_TIMEOUT_MS,
        )


def founders_of(configuration: Configuration) -> tuple[Address, ...]:
    """Where the founders stand that the configuration names."""
    port = configuration.network.internode_port
    return tuple(split_address(text, port) for text in configuration.cluster.founders)


def _texts(founders: tuple[Address, ...]) -> tuple[str, ...]:
    return tuple(f"{host}:{port}" for host, port in founders)
