"""One question to the replicas of a partition, until enough of them agree or enough of them do not.

Invariant: it ends once, at the latest at its deadline; who agreed before the end is in `granted`, whatever
the end was.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lockstep.replication.failure_codes import note_refusal
from lockstep.replication.handshake import Address
from lockstep.replication.plans import Target
from lockstep.replication.writes import TRANSIENT
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, StaleEpoch
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPLICA_RETRY_MS

if TYPE_CHECKING:
    from lockstep.replication.conditional import Conditionals


class End(enum.StrEnum):
    ENOUGH = "enough"
    #: So many refused that the others cannot suffice.
    BEATEN = "beaten"
    #: A replica knows of a change that matters: see `stale`.
    STALE = "stale"
    #: So many failed for good that the others cannot suffice.
    FAILED = "failed"
    LATE = "late"


class Canvass:
    """`agrees` judges a reply, `suffices` those who agreed. Hears replicas as an internode Waiter, with the
    target as context."""

    def __init__(
        self,
        owner: Conditionals,
        targets: Sequence[Target],
        verb: int,
        request: Any,
        deadline_s: float,
        agrees: Callable[[Any], bool],
        suffices: Callable[[Sequence[NodeId]], bool],
    ) -> None:
        self._owner = owner
        self._targets = targets
        self._verb = verb
        self._request = request
        self._body = encode(request)
        self._agrees = agrees
        self._suffices = suffices
        self.deadline_s = deadline_s
        self.granted: dict[NodeId, Any] = {}
        self.refused: dict[NodeId, Any] = {}
        self.failures: dict[NodeId, LockstepError] = {}
        #: (epoch, address) of the replica that is ahead.
        self.stale: tuple[int, Address] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._future: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._number = owner.in_flight.add(self)

    async def run(self) -> End:
        self._ask(self._targets)
        self._judge()
        try:
            return await self._future
        finally:
            self._owner.in_flight.remove(self._number)
            if self._retry is not None:
                self._retry.cancel()

    def _ask(self, targets: Sequence[Target]) -> None:
        owner, own = self._owner, self._owner.own_id()
        remote = [target for target in targets if target.node != own]
        if remote:
            owner.internode.submit_each(remote, self._verb, self._body, self.deadline_s, self)
        for target in targets:
            if target.node == own:
                owner.runtime.tasks.spawn(self._answer_here(target), "ballots.here")

    async def _answer_here(self, target: Target) -> None:
        try:
            reply = await self._owner.ballots.answer(self._request)
        except LockstepError as error:
            self.failed(target, error)
        else:
            self.replied(target, reply, reply.accepted_epoch)

    def replied(self, context: Target, reply: Any, sender_epoch: int) -> None:
        if self._future.done():
            return
        (self.granted if self._agrees(reply) else self.refused)[context.node] = reply
        self._judge()

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self._owner.internode.repeated_log, "conditional", context, error)
        if self._future.done():
            return
        if isinstance(error, StaleEpoch):
            self.stale = error.epoch, context.address
            self._future.set_result(End.STALE)
            return
        self.failures[context.node] = error
        if isinstance(error, TRANSIENT):
            if self._retry is None:
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(REPLICA_RETRY_MS / 1000, self._ask_again)
        else:
            self._judge()

    def _ask_again(self) -> None:
        self._retry = None
        if self._future.done():
            return
        again = [target for target in self._targets if isinstance(self._failure(target), TRANSIENT)]
        for target in again:
            del self.failures[target.node]
        self._ask(again)

    def _failure(self, target: Target) -> LockstepError | None:
        return self.failures.get(target.node)

    def _judge(self) -> None:
        if self._suffices(list(self.granted)):
            self._future.set_result(End.ENOUGH)
            return
        possible = [target.node for target in self._targets if target.node not in self.refused]
        if not self._suffices(possible):
            self._future.set_result(End.BEATEN)
            return
        hopeless = [node for node, error in self.failures.items() if not isinstance(error, TRANSIENT)]
        if hopeless and not self._suffices([node for node in possible if node not in hopeless]):
            self._future.set_result(End.FAILED)

    def expired(self) -> None:
        if not self._future.done():
            self._future.set_result(End.LATE)
