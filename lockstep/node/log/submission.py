"""Getting a submission to the leader of a Raft group, and a transformation into the log from any node; how
long such changes took, by how they ended; and asking for a snapshot when enough was written since the last
one.

Invariant: what is submitted keeps one id over all attempts, so it is applied at most once; when the deadline
passes and some attempt may have been appended, OutcomeUnknown is raised, never a failure. A submission is
counted once, when it ends, whichever node judged it; counts only grow. Only the leader asks, once for each
interval: the entry names the snapshot that its interval began at, so that a second proposal of the same
interval, by whomever, is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address
from lockstep.internode.serving import Respond
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.node.context import NodeContext
from lockstep.node.log.messages import Submit, Submitted
from lockstep.node.log.metadata_member import MetadataMember
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.membership.voters import Voters
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import (
    HandshakeRefused,
    InvalidRequest,
    LeadershipLost,
    LockstepError,
    NodeExcluded,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
    PeerTimeout,
    PeerUnreachable,
    Rejected,
)

ACCEPTED: Final = "accepted"
REJECTED: Final = "rejected"
UNKNOWN: Final = "unknown"
#: No voter could be asked: nothing was done, and nothing was judged.
UNREACHED: Final = "unreached"
OUTCOMES: Final = (ACCEPTED, REJECTED, UNKNOWN, UNREACHED)
#: Upper bounds in seconds: from a commit on one fast disk to the end of a client's patience.
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Times(msgspec.Struct):
    """`counts` has one more element than BOUNDS_S: those that took longer than all of them."""

    counts: list[int]
    total_s: float = 0.0


class CommitTimes:
    def __init__(self) -> None:
        self.by_outcome = {outcome: Times([0] * (len(BOUNDS_S) + 1)) for outcome in OUTCOMES}

    def note(self, outcome: str, took_s: float) -> None:
        times = self.by_outcome[outcome]
        at = next((at for at, bound in enumerate(BOUNDS_S) if took_s <= bound), len(BOUNDS_S))
        times.counts[at] += 1
        times.total_s += took_s


def outcome_of(error: BaseException) -> str:
    """How a submission ended that raised this; one that its caller gave up may be in the log."""
    if isinstance(error, Rejected | InvalidRequest):
        return REJECTED
    if isinstance(error, OutcomeUnknown) or not isinstance(error, Exception):
        return UNKNOWN
    return UNREACHED


R = TypeVar("R")

#: One attempt at one member; an election takes about as long.
ATTEMPT_TIMEOUT_MS: Final = 2000
#: What settles a submission.
_SETTLED = (Rejected, OutcomeUnknown, InvalidRequest)
#: What says that a member appended nothing.
_NOTHING_DONE = (NotLeader, PeerUnreachable, HandshakeRefused, Overloaded, NodeExcluded)


class Group(msgspec.Struct, frozen=True):
    """What differs between the groups.

    `name` and the hints are for people; `effect` says what may have happened. `pause_ms` is (least, most)
    between rounds over all members: well below an election, and no busy loop. `leaderless_ms`: how long
    members are asked while none leads and none has appended anything; 0: until the deadline. `judges_once`:
    whoever judges last knows of all that others took before.
    """

    name: str
    effect: str
    hint: str
    unreachable_hint: str
    pause_ms: tuple[int, int]
    leaderless_ms: int = 0
    judges_once: bool = True


class GroupSubmitter:
    """`members()` gives the addresses to ask, the likeliest leader first."""

    def __init__(self, runtime: Runtime, group: Group, members: Callable[[], Sequence[Address]]) -> None:
        self._runtime = runtime
        self._group = group
        self._members = members

    async def settle(
        self, ask: Callable[[Address, int], Awaitable[R | None]], timeout_ms: int
    ) -> tuple[R, Address]:
        """(the answer that settles it, who gave it).

        `ask(address, limit_ms)` makes one attempt; None: this member gave no answer that settles it. What it
        raises is told apart by what it means for the outcome. OutcomeUnknown: some attempt may have been
        appended. PeerUnreachable: nothing was done.
        """
        begin_s = self._runtime.clock.monotonic_s()
        deadline_s = begin_s + timeout_ms / 1000
        attempts = _Attempts()
        while (left_ms := self.left_ms(deadline_s)) > 0:
            if attempts.leaderless and 0 < self._group.leaderless_ms <= timeout_ms - left_ms:
                break
            for address in self._members():
                found = await self._attempt(ask, address, attempts, deadline_s)
                if found is not None:
                    return found, address
                if self.left_ms(deadline_s) <= 0:
                    break
            else:
                low, high = self._group.pause_ms
                await asyncio.sleep((low + self._runtime.random.below(high - low)) / 1000)
        waited_ms = int((self._runtime.clock.monotonic_s() - begin_s) * 1000)
        raise attempts.verdict(self._group, min(waited_ms, timeout_ms))

    def left_ms(self, deadline_s: float) -> int:
        return int((deadline_s - self._runtime.clock.monotonic_s()) * 1000)

    async def _attempt(
        self,
        ask: Callable[[Address, int], Awaitable[R | None]],
        address: Address,
        attempts: _Attempts,
        deadline_s: float,
    ) -> R | None:
        limit_ms = max(1, min(ATTEMPT_TIMEOUT_MS, self.left_ms(deadline_s)))
        try:
            return await ask(address, limit_ms)
        except Rejected as error:
            if not self._group.judges_once and attempts.may_be_elsewhere(address):
                raise attempts.refused_now(self._group, error) from error
            raise
        except _SETTLED:
            raise
        except LeadershipLost as error:
            attempts.unknown(error, address)
        except _NOTHING_DONE as error:
            attempts.nothing_done(error)
        except LockstepError as error:
            # Whatever went wrong there, it may have been after the append.
            attempts.unknown(error, address)
        except TimeoutError:
            attempts.unknown(PeerTimeout(f"this member did not commit within {limit_ms} ms"), address)
        return None


class _Attempts:
    """What is known of a submission after some attempts."""

    def __init__(self) -> None:
        #: Who may have appended it, or may do so yet.
        self._takers: dict[Address, None] = {}
        self._last: LockstepError | None = None
        #: Whether no attempt found anyone who leads, or who may have led.
        self.leaderless = True

    def nothing_done(self, error: LockstepError) -> None:
        self._last = error
        if isinstance(error, Overloaded):
            self.leaderless = False

    def unknown(self, error: LockstepError, address: Address) -> None:
        self._takers[address] = None
        self.leaderless = False
        self._last = error

    def may_be_elsewhere(self, address: Address) -> bool:
        """Whether another member may have it in its queue."""
        return any(taker != address for taker in self._takers)

    def refused_now(self, group: Group, refusal: Rejected) -> OutcomeUnknown:
        return OutcomeUnknown(
            f"it is refused now, and another member that was asked before may propose it yet: "
            f"{refusal.message}",
            hint=group.hint,
        )

    def verdict(self, group: Group, waited_ms: int) -> LockstepError:
        if self._takers:
            return OutcomeUnknown(
                f"no {group.name} answered within {waited_ms} ms; {group.effect}", hint=group.hint
            )
        return PeerUnreachable(
            f"nothing was changed, as no {group.name} was found within {waited_ms} ms: {self._last}",
            hint=group.unreachable_hint,
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


#: Where there is no log, and the node that changes go through is asked.
_ON_RING: Final = msgspec.structs.replace(
    _GROUP,
    name="member of the ring that changes go through",
    effect="the change may have been agreed on",
    hint="lockstep ring status",
    unreachable_hint="lockstep ring why",
    # Two may take themselves for the one that changes go through, and each has a queue.
    judges_once=False,
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
        self._context = context
        self._group = GroupSubmitter(context.runtime, _GROUP, self._addresses)
        self._ring = GroupSubmitter(context.runtime, _ON_RING, self._addresses)
        self._own_id = context.own_id
        self.times = CommitTimes()
        #: Term in which each voter last said it leads.
        self._terms: dict[Address, int] = {}
        context.internode.register_fast(verbs.SUBMIT, Submit, Submitted, self._serve)

    @property
    def _members(self) -> GroupSubmitter:
        """Who is asked, as the cluster agrees on changes now."""
        return self._ring if self._context.is_on_ring else self._group

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
        """Voters, the likeliest leader first; on the ring the one node that changes go through."""
        driver = self._member.driver
        addresses = [member.address for member in self._voters.asked()]
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


#: After a proposal failed: leadership or a peer is in motion.
RETRY_MS = 1000


class SnapshotTrigger:
    """Epochs and bytes of the configuration count from the last snapshot entry; 0 never triggers by them."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        member: MetadataMember,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._member = member
        self._timeout_ms = context.configuration.timeouts.metadata_ms
        self._log = context.log
        self._every_epochs = context.configuration.metadata.snapshot_every_epochs
        self._every_bytes = context.configuration.metadata.snapshot_every_bytes
        self._look = asyncio.Event()
        state.listen(lambda *_: self.wake())
        member.roles.add(self.wake)

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "metadata.snapshot_trigger")

    def wake(self) -> None:
        """Something was applied, or this node's role changed."""
        if self.due() and self._member.leads:
            self._look.set()

    def due(self) -> str:
        """Why a snapshot is due; empty when it is not."""
        cluster = self._state.current
        if cluster.is_on_ring:
            return ""  # Where there is no log nothing shortens it.
        since = cluster.epoch - cluster.service.snapshot_epoch
        if self._every_epochs and since >= self._every_epochs:
            return f"{self._every_epochs} epochs"
        if self._every_bytes and since > 1 and self._state.store.log_bytes >= self._every_bytes:
            return f"{self._every_bytes} bytes"
        by_id = cluster.directory.by_id
        for voter in cluster.service.snapshot_voters:
            if voter not in by_id or by_id[voter].state is NodeState.LEFT:
                return f"node {voter}, which the last one names, has left"
        return ""

    async def _run(self) -> None:
        while self._state.broken is None:
            await self._look.wait()
            self._look.clear()
            reason = self.due()
            if not reason or not self._member.leads:
                continue
            after = self._state.current.service.snapshot_epoch
            try:
                await self._submitter.submit(TakeSnapshot(reason, after), self._timeout_ms)
            except Rejected as refusal:
                self._log("metadata.snapshot_refused", reason=refusal.message)
            except LockstepError as error:
                self._log("metadata.snapshot_waits", error=str(error))
                await asyncio.sleep(RETRY_MS / 1000)
                self.wake()
