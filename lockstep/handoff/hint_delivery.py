"""Brings hints to the nodes that lack them, once these are back.

Invariants. A hint is planned when it is sent and judged by its replica like any write; it is forgotten only
when the replica accepted it under a plan that still holds. When the replica group has changed since the hint
was left, nobody can tell from whom its new replicas were filled: the hint is left anew for all of them, in
the step that forgets it. A node that leaves gives its hints to another one before it goes.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence

import msgspec

from lockstep.coordination.context import CoordinationContext
from lockstep.handoff.hint_store import DroppedHints, Hint, Stored
from lockstep.handoff.hints import INVALID, Hints
from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.throttle import Throttle
from lockstep.metadata.directory import NodeState
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import Target
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.values.errors import InvalidRequest, LockstepError, StaleEpoch
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import (
    HINT_TIMEOUT_MS,
    HINTS_AT_ONCE_MAX,
    HINTS_HANDED_BYTES_MAX,
    HINTS_PAGE,
    HINTS_ROUND_MS,
)


class HandedOver(msgspec.Struct, frozen=True, array_like=True):
    """Hints of a node that leaves: (target, hint) each."""

    hints: tuple[tuple[NodeId, Hint], ...]


class Taken(msgspec.Struct, frozen=True, array_like=True):
    count: int


class Fate(enum.Enum):
    """What is to be done about a hint by the metadata of now."""

    SEND = enum.auto()
    #: Its group has changed: it is left anew for the replicas of now.
    AGAIN = enum.auto()
    #: Its table is gone.
    GONE = enum.auto()
    EXPIRED = enum.auto()


class HintDelivery:
    """`delivered` and `failed` count attempts at hints."""

    def __init__(self, context: CoordinationContext, hints: Hints) -> None:
        self._context = context
        self._runtime = context.runtime
        self._internode = context.internode
        self._hints = hints
        self._store = hints.store
        self._plans = hints.plans
        self._wake = asyncio.Event()
        self._busy: dict[NodeId, None] = {}
        self.throttle = Throttle(context.runtime.clock, hints.policy.throttle_bytes_s)
        self.delivered = 0
        self.failed = 0
        hints.on_left = self._wake.set
        context.internode.register(verbs.HINTS_HANDOVER, HandedOver, Taken, self._take_over)

    @property
    def own_id(self) -> NodeId:
        """This node's."""
        return NodeId(self._context.own_id())

    def start(self) -> None:
        self._runtime.tasks.spawn(self._run(), "hints.rounds")

    async def _run(self) -> None:
        while True:
            if not self._store.pending:
                self._wake.clear()
                await self._wake.wait()
            if self.is_leaving:
                await self.hand_over()
            for target in list(self._store.pending):
                if target not in self._busy:
                    self._busy[target] = None
                    is_away = not self._is_gone(target) and not self._context.alive(target)
                    work = self._give_up(target) if is_away else self._deliver(target)
                    self._runtime.tasks.spawn(work, f"hints.deliver.{target}")
            await asyncio.sleep(HINTS_ROUND_MS / 1000)

    def _is_gone(self, target: NodeId) -> bool:
        return target not in self._plans.cluster.directory.present_ids

    # -- one node ---------------------------------------------------------------------------------

    async def _deliver(self, target: NodeId) -> None:
        """Send a node what it lacks, oldest first, until nothing is left or it does not take it."""
        after = b""
        try:
            while page := self._store.page(target, after):
                for at in range(0, len(page), HINTS_AT_ONCE_MAX):
                    if not await self._deliver_some(target, page[at : at + HINTS_AT_ONCE_MAX]):
                        return
                after = page[-1].key
        except LockstepError:
            self.failed += 1  # the store is dying, or was busy: the next round sees
        finally:
            del self._busy[target]

    async def _give_up(self, target: NodeId) -> None:
        """Forget, oldest first, what a node that is away will never get: else it held purging back, and
        repairs, for as long as nobody removes the node."""
        try:
            count = 1
            while page := self._store.page(target, count=count):
                judged = [(one, self.judge(target, one.hint)[0]) for one in page]
                late = [(one, fate) for one, fate in judged if fate in (Fate.GONE, Fate.EXPIRED)]
                if not late:
                    break
                marks = [
                    mark
                    for one, fate in late
                    if fate is Fate.EXPIRED
                    for mark in self._hints.expired(target, one.hint)
                ]
                self._store.delete([one for one, _ in late], marks)
                count = HINTS_PAGE
                await asyncio.sleep(0)
        except LockstepError:
            self.failed += 1  # as with a delivery
        finally:
            del self._busy[target]

    async def _deliver_some(self, target: NodeId, page: Sequence[Stored]) -> bool:
        """Whether to go on."""
        delivered: list[Stored] = []
        marks: list[DroppedHints] = []
        sent: list[tuple[Stored, Plan, asyncio.Future[WriteReply]]] = []
        for stored in page:
            fate, plan = self.judge(target, stored.hint)
            if fate is Fate.SEND:
                assert plan is not None, "what is sent has a plan"
                await self.throttle.take(stored.size, HINTS_ROUND_MS)
                sent.append((stored, plan, self._send(plan, target, stored.hint)))
            elif fate is Fate.AGAIN:
                assert plan is not None, "what is left anew has a plan"
                self._leave_again(plan, stored)
            else:
                delivered.append(stored)
                if fate is Fate.EXPIRED:
                    marks += self._hints.expired(target, stored.hint)
        goes_on = True
        for stored, plan, answer in sent:
            try:
                reply = await answer
            except StaleEpoch as error:
                goes_on = await self._learn(plan, target, error.epoch) and goes_on
            except InvalidRequest:
                # It would not take it the next time either, and others wait behind.
                delivered.append(stored)
                marks += self._hints.given_up(INVALID, target, stored.hint)
            except LockstepError:
                self.failed += 1
                goes_on = False
            else:
                if self._holds(plan, stored.hint, reply):
                    delivered.append(stored)
        self.delivered += len(delivered) - len(marks)
        self._store.delete(delivered, marks)
        if delivered:
            self._runtime.probes.reach("hints.delivered")
        return goes_on

    def judge(self, target: NodeId, hint: Hint) -> tuple[Fate, Plan | None]:
        """What to do about a hint now, with the plan of its write."""
        mutation = hint.mutation
        gc_grace_s = self._hints.gc_grace_s(mutation.table_id)
        if gc_grace_s is None:
            return Fate.GONE, None
        is_late = self._hints.is_late(min(gc_grace_s, hint.gc_grace_s), hint.created_us)
        if is_late or self._hints.outlived(mutation, hint.created_us):
            return Fate.EXPIRED, None
        plan = self._plans.plan_of(mutation, Consistency.ONE)
        is_target = any(one.node == target for one in plan.targets)
        if is_target and plan.group.epoch <= hint.epoch:
            return Fate.SEND, plan
        return Fate.AGAIN, plan

    def _leave_again(self, plan: Plan, stored: Stored) -> None:
        self._runtime.probes.reach("hints.left_again")
        hint = msgspec.structs.replace(stored.hint, epoch=plan.epoch)
        self._store.put([(target.node, hint) for target in plan.targets], stored)
        self._wake.set()

    def _send(self, plan: Plan, target: NodeId, hint: Hint) -> asyncio.Future[WriteReply]:
        request = WriteRequest(plan.epoch, plan.needs_epoch, hint.mutation)
        place = next(one for one in plan.targets if one.node == target)
        if target != self._context.own_id():
            return self._internode.begin(place.address, verbs.HINT, request, HINT_TIMEOUT_MS)
        future: asyncio.Future[WriteReply] = asyncio.get_running_loop().create_future()

        def answered(answer: WriteReply | LockstepError) -> None:
            if future.done():
                return
            if isinstance(answer, LockstepError):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        try:
            self._context.replica.write(request, answered)
        except LockstepError as error:
            answered(error)
        return future

    def _holds(self, plan: Plan, hint: Hint, reply: WriteReply) -> bool:
        """Whether an acceptance counts: nothing that matters has changed since its plan was made."""
        if reply.accepted_epoch < plan.needs_epoch:
            return False
        try:
            newest = self._plans.plan_of(hint.mutation, Consistency.ONE)
        except InvalidRequest:
            return True  # the table is gone
        return newest.needs_epoch <= plan.epoch

    async def _learn(self, plan: Plan, target: NodeId, epoch: int) -> bool:
        """Learn a change that a replica knows; False when that does not succeed."""
        place = next(one for one in plan.targets if one.node == target)
        try:
            await self._context.catch_up(epoch, place.address)
        except LockstepError:
            return False
        return True

    # -- leaving ----------------------------------------------------------------------------------

    async def _take_over(self, _peer: PeerInfo, given: HandedOver) -> Taken:
        sequence = self._store.put(given.hints)
        if sequence:
            await self._store.synced(sequence)
        self._wake.set()
        self._runtime.probes.reach("hints.taken_over")
        return Taken(len(given.hints))

    @property
    def is_leaving(self) -> bool:
        info = self._plans.cluster.directory.by_id.get(NodeId(self._context.own_id()))
        return info is not None and info.state in (NodeState.DECOMMISSIONING, NodeState.LEFT)

    def _heirs(self) -> list[Target]:
        """Who may take this node's hints, near ones first."""
        directory, own = self._plans.cluster.directory, NodeId(self._context.own_id())
        dc = directory.dc_by_id.get(own, "")
        heirs = [
            Target(node.id, (node.address, node.internode_port), node.dc)
            for node in directory.nodes
            if node.state is NodeState.NORMAL and node.id != own and self._context.alive(node.id)
        ]
        return sorted(heirs, key=lambda heir: heir.dc != dc)

    async def hand_over(self) -> bool:
        """Give all hints to another node, the nearest that takes them; False when nobody did."""
        while self._store.pending:
            target = next(iter(self._store.pending))
            if target in self._busy:
                await asyncio.sleep(0.01)
                continue
            self._busy[target] = None
            try:
                given = await self._give(target, self._heirs())
            finally:
                del self._busy[target]
            if not given:
                return False
        return True

    async def _give(self, target: NodeId, heirs: Sequence[Target]) -> bool:
        for heir in heirs:
            try:
                while page := _portion(self._store.page(target)):
                    body = HandedOver(tuple((target, stored.hint) for stored in page))
                    await self._internode.request(heir.address, verbs.HINTS_HANDOVER, body, HINT_TIMEOUT_MS)
                    self._store.delete(page)
                    self._runtime.probes.reach("hints.handed_over")
            except LockstepError:
                continue
            return True
        return False


def _portion(page: Sequence[Stored]) -> list[Stored]:
    """The first hints of a page that fit one message; one goes even when it is larger."""
    portion: list[Stored] = []
    size = 0
    for stored in page[:HINTS_AT_ONCE_MAX]:
        size += stored.size
        if portion and size > HINTS_HANDED_BYTES_MAX:
            break
        portion.append(stored)
    return portion
