"""Writes to other data centres: one message to each, whose receiver passes the write on to the others there.

Invariants. Each replica judges the plan's epoch itself, and whether the coordinator is shut out, and
acknowledges straight to it; who passes a write on vouches for nobody. A replica is forwarded to at most once
a write: when nothing is heard of it in half of the time that is left, or its forwarder cannot be reached, the
coordinator turns to it directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from lockstep.coordination.context import CoordinationContext
from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.serving import Respond
from lockstep.internode.verbs import decode_error, encode_error
from lockstep.internode.waiters import Deadlines
from lockstep.quorum.round import Target
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, NodeExcluded, PeerError, PeerTimeout, PeerUnreachable
from lockstep.values.ids import NodeId


class ForwardRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A write for the receiver, and for `others`: (number at the coordinator, address, port) each.

    `number` is the receiver's own when another replica passed the write on; 0: the coordinator sent it and
    gets the reply.
    """

    write: WriteRequest
    origin: Address
    others: tuple[tuple[int, str, int], ...] = ()
    number: int = 0


class ForwardAnswer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A replica's answer to a write that was passed on to it: `error` is empty when it accepted."""

    number: int
    mutation_id: bytes
    accepted_epoch: int
    error: bytes = b""


class Forwarder(Protocol):
    """A write, as it hears of its replicas."""

    def replied(self, context: Target, reply: WriteReply, sender_epoch: int) -> None: ...

    def failed(self, context: Target, error: LockstepError) -> None: ...


class _Forwarded:
    """One replica that was forwarded to, until it answers."""

    __slots__ = ("_forget", "deadline_s", "mutation_id", "number", "target", "write")

    def __init__(
        self,
        write: Forwarder,
        target: Target,
        mutation_id: bytes,
        deadline_s: float,
        forget: Callable[[int], None],
    ) -> None:
        self.write = write
        self.target = target
        self.mutation_id = mutation_id
        self.deadline_s = deadline_s
        self.number = 0
        self._forget = forget

    def expired(self) -> None:
        self.fail(PeerTimeout("nothing was heard of a write that another replica was to pass on"))

    def fail(self, error: LockstepError) -> None:
        self._forget(self.number)
        self.write.failed(self.target, error)


class _Passing:
    """Hears the forwarder as a Waiter; when it cannot be reached, nobody behind it was."""

    __slots__ = ("_others", "_write")

    def __init__(self, write: Forwarder, others: Sequence[_Forwarded]) -> None:
        self._write = write
        self._others = others

    def replied(self, context: Target, reply: WriteReply, sender_epoch: int) -> None:
        self._write.replied(context, reply, sender_epoch)

    def failed(self, context: Target, error: LockstepError) -> None:
        self._write.failed(context, error)
        if isinstance(error, NodeExcluded):
            # That says nothing of those behind it.
            error = PeerUnreachable(error.message)
        if isinstance(error, PeerError):
            for one in self._others:
                one.fail(error)


class Forwarding:
    def __init__(
        self,
        context: CoordinationContext,
        own_dc: Callable[[], str],
        own_address: Address,
    ) -> None:
        self._context = context
        self._runtime = context.runtime
        self._internode = context.internode
        self._replica = context.replica
        self._own_dc = own_dc
        self._own_address = own_address
        self._deadlines = Deadlines(context.runtime.clock)
        self._open: dict[int, _Forwarded] = {}
        #: Messages that other data centres were spared.
        self.spared = 0
        self._internode.register_fast(verbs.FORWARD, ForwardRequest, WriteReply, self._receive)
        self._internode.register_fast(verbs.FORWARDED, ForwardAnswer, ForwardAnswer, self._answered)

    def send(
        self, write: Forwarder, targets: Sequence[Target], request: WriteRequest, deadline_s: float
    ) -> Sequence[Target]:
        """Forward to data centres with several of the targets; those that are to be asked directly."""
        own_dc = self._own_dc()
        if all(target.dc == own_dc for target in targets):
            return targets
        far: dict[str, list[Target]] = {}
        direct: list[Target] = []
        for target in targets:
            if target.dc != own_dc and self._context.alive(target.node):
                far.setdefault(target.dc, []).append(target)
            else:
                direct.append(target)
        now_s = self._runtime.clock.monotonic_s()
        answer_s = now_s + (deadline_s - now_s) / 2
        for there in far.values():
            if len(there) == 1:
                direct.append(there[0])
                continue
            at = request.mutation.token % len(there)
            others = [
                self._expect(write, target, request, answer_s) for target in there if target is not there[at]
            ]
            named = tuple((one.number, *one.target.address) for one in others)
            body = encode(ForwardRequest(request, self._own_address, named))
            waiter = _Passing(write, others)
            self._internode.submit(there[at].address, verbs.FORWARD, body, deadline_s, waiter, there[at])
            self._runtime.probes.reach("forward.sent")
            self.spared += len(others)
        return direct

    def _expect(self, write: Forwarder, target: Target, request: WriteRequest, at_s: float) -> _Forwarded:
        one = _Forwarded(write, target, request.mutation.mutation_id, at_s, self._forget)
        one.number = self._deadlines.add(one)
        self._open[one.number] = one
        return one

    def _forget(self, number: int) -> None:
        self._deadlines.remove(number)
        self._open.pop(number, None)

    def stop(self) -> None:
        self._deadlines.stop()

    # -- receivers --------------------------------------------------------------------------------

    def _receive(self, peer: PeerInfo, request: ForwardRequest, respond: Respond) -> None:
        if request.number and self._internode.own.excluded.keeps(request.origin, verbs.FORWARD):
            # Who passed it on does not know yet. The coordinator asks itself, and is told.
            self._runtime.probes.reach("forward.origin_shut_out")
            return
        for number, host, port in request.others:
            passed = ForwardRequest(request.write, request.origin, (), number)
            self._internode.send((host, port), verbs.FORWARD, passed)
            self._runtime.probes.reach("forward.passed_on")
        if not request.number:
            self._replica.take(peer.endpoint, request.write, respond)
            return
        number, mutation_id, origin = request.number, request.write.mutation.mutation_id, request.origin

        def answer(reply: Any) -> None:
            if isinstance(reply, LockstepError):
                told = ForwardAnswer(number, mutation_id, 0, encode_error(reply))
            else:
                told = ForwardAnswer(number, mutation_id, reply.accepted_epoch)
            self._internode.send(origin, verbs.FORWARDED, told)

        try:
            self._replica.take(origin, request.write, answer)
        except LockstepError as error:
            answer(error)

    def _answered(self, _peer: PeerInfo, answer: ForwardAnswer, _respond: Respond) -> None:
        one = self._open.get(answer.number)
        # Numbers begin anew with each start; an answer to an earlier incarnation is not ours.
        if one is None or one.mutation_id != answer.mutation_id:
            return
        self._forget(answer.number)
        if answer.error:
            one.write.failed(one.target, decode_error(answer.error))
        else:
            one.write.replied(one.target, WriteReply(answer.accepted_epoch), answer.accepted_epoch)


def dc_of_own(dc_by_id: Callable[[], dict[NodeId, str]], own_id: Callable[[], int]) -> Callable[[], str]:
    """The data centre of this node as the metadata has it; empty before it is a member."""
    return lambda: dc_by_id().get(NodeId(own_id()), "")
