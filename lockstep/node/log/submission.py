"""Getting a transformation into the log from any node."""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.responding import Respond
from lockstep.node.context import NodeContext
from lockstep.node.log.commit_times import ACCEPTED, CommitTimes, outcome_of
from lockstep.node.log.group_submitter import Group, GroupSubmitter
from lockstep.node.log.messages import Submit, Submitted
from lockstep.node.log.metadata_member import MetadataMember
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.voters import Voters
from lockstep.values.codec import encode
from lockstep.values.errors import (
    LockstepError,
    NotLeader,
    OutcomeUnknown,
    PeerTimeout,
    PeerUnreachable,
    Rejected,
)

_GROUP: Final = Group(
    name="metadata leader",
    effect="the change may be in the log",
    hint="lockstep cms log",
    unreachable_hint="lockstep status",
    pause_ms=(20, 120),
    # Several elections. A client that is told before its own deadline knows that nothing was done.
    leaderless_ms=4000,
)


class Submitter:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        voters: Voters,
        member: MetadataMember,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._internode = context.internode
        self._catch_up = context.catch_up
        self._voters = voters
        self._member = member
        self._own = context.address
        self._members = GroupSubmitter(context.runtime, _GROUP, self._addresses)
        self._own_id = context.own_id
        self.times = CommitTimes()
        #: Term in which each voter last said it leads.
        self._terms: dict[Address, int] = {}
        context.internode.register_fast(verbs.SUBMIT, Submit, Submitted, self._serve)

    def _serve(self, _peer: object, submit: Submit, respond: Respond) -> None:
        processor = self._member.processor
        if processor is None:
            raise NotLeader(None)
        term = processor.leading_term()
        if submit.term != term:
            respond(Submitted(0, term))
        else:
            processor.take(submit, _Answer(respond, term))

    def _addresses(self) -> tuple[Address, ...]:
        """Voters, the likeliest leader first."""
        driver = self._member.driver
        addresses = [member.address for member in self._voters.members().values()]
        leader = driver.leader_address if driver is not None else None
        if leader in addresses:
            addresses.remove(leader)
            addresses.insert(0, leader)
        return tuple(addresses)

    async def submit(
        self, transformation: Any, timeout_ms: int, entry_id: bytes = b"", base_epoch: int | None = None
    ) -> int:
        """Epoch of the committed entry, applied here on return.

        Rejected: judged and refused; what it was judged at is applied here if that was possible in time.
        OutcomeUnknown: it may be in the log. Retry with the same `entry_id`, and with the epoch this node
        had before the first try as `base_epoch`, to find out. PeerUnreachable: no leader was found, and
        nothing was done.
        """
        submit = Submit(
            entry_id or self._runtime.random.bytes(16),
            self._state.registry.kind_of(transformation),
            encode(transformation),
            f"node {self._own_id() or self._own[0]}",
            self._state.epoch if base_epoch is None else base_epoch,
        )
        began_s = self._runtime.clock.monotonic_s()
        try:
            epoch = await self._until_settled(submit, timeout_ms)
        except BaseException as error:
            self.times.note(outcome_of(error), self._runtime.clock.monotonic_s() - began_s)
            raise
        self.times.note(ACCEPTED, self._runtime.clock.monotonic_s() - began_s)
        return epoch

    async def _until_settled(self, submit: Submit, timeout_ms: int) -> int:
        deadline_s = self._runtime.clock.monotonic_s() + timeout_ms / 1000

        async def ask(address: Address, limit_ms: int) -> int | None:
            try:
                processor = self._member.processor
                if address == self._own and processor is not None:
                    async with asyncio.timeout(limit_ms / 1000):
                        return await processor.submit(submit)
                return await self._ask(address, submit, limit_ms)
            except Rejected as refusal:
                await self._see_refusal(refusal, address, self._members.left_ms(deadline_s))
                raise

        epoch, source = await self._members.settle(ask, timeout_ms)
        await self._applied_here(epoch, source, max(1, self._members.left_ms(deadline_s)))
        return epoch

    async def _ask(self, address: Address, submit: Submit, limit_ms: int) -> int | None:
        """Ask the leader of the term last heard of there, and once more when it leads in another one."""
        for _ in range(2):
            addressed = msgspec.structs.replace(submit, term=self._terms.get(address, 0))
            try:
                reply: Submitted = await self._internode.request(address, verbs.SUBMIT, addressed, limit_ms)
            except PeerTimeout as error:
                if addressed.term:
                    raise
                # Nobody leads in no term, so nothing was judged wherever the question is by now.
                raise PeerUnreachable(error.message) from error
            if reply.epoch:
                return reply.epoch
            self._terms[address] = reply.term
        return None

    async def _applied_here(self, epoch: int, source: Address, limit_ms: int) -> None:
        try:
            if source == self._own:
                await self._applied_locally(epoch, limit_ms)
            else:
                await self._catch_up.reach(epoch, source, limit_ms)
        except LockstepError as error:
            # Also when this node can apply no more: it is in the log all the same.
            raise OutcomeUnknown(f"the change is committed at epoch {epoch}, but {error.message}") from error

    async def _applied_locally(self, epoch: int, limit_ms: int) -> None:
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await self._state.wait_for(epoch)
        except TimeoutError:
            raise PeerTimeout(f"it was not applied here within {limit_ms} ms") from None

    async def _see_refusal(self, refusal: Rejected, source: Address, limit_ms: int) -> None:
        """Apply what the refusal was judged at, so that the caller sees its reason; best effort."""
        try:
            await self._catch_up.reach(refusal.epoch, source, max(1, limit_ms))
        except LockstepError:
            return  # The refusal is the news; the caller only sees its reason later.


class _Answer:
    """Settles a submission of another node."""

    __slots__ = ("_respond", "_term")

    def __init__(self, respond: Respond, term: int) -> None:
        self._respond = respond
        self._term = term

    def __call__(self, outcome: int | LockstepError) -> None:
        if isinstance(outcome, LockstepError):
            self._respond(outcome)
        else:
            self._respond(Submitted(outcome, self._term))
