"""One question to the replicas of a partition, until enough of them agree or enough of them do not.

Invariant: it ends once, at the latest at its deadline; who agreed before the end is in `granted`, whatever
the end was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.coordination.driving import carry_out
from lockstep.quorum.failure_codes import note_refusal
from lockstep.quorum.round import Ask, End, Round, Target
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId

if TYPE_CHECKING:
    from lockstep.coordination.conditional import Conditionals


class PaxosRound:
    """`agrees` judges a reply. Hears replicas as an internode Waiter, with the target as context."""

    def __init__(
        self,
        owner: Conditionals,
        round_: Round[Any],
        verb: int,
        request: Any,
        deadline_s: float,
        agrees: Callable[[Any], bool],
    ) -> None:
        self._owner = owner
        self.round = round_
        self._verb = verb
        self._request = request
        self._body = encode(request)
        self._agrees = agrees
        self.deadline_s = deadline_s
        self.granted: dict[NodeId, Any] = {}
        self.refused: dict[NodeId, Any] = {}
        self.retry: asyncio.TimerHandle | None = None
        self._future: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._number = owner.in_flight.add(self)

    async def run(self) -> End:
        carry_out(self, self.round.begin())
        try:
            return await self._future
        finally:
            self.round.stop()
            self._owner.in_flight.remove(self._number)
            if self.retry is not None:
                self.retry.cancel()

    def ask(self, asked: Ask) -> None:
        owner, own = self._owner, self._owner.own_id()
        remote = [target for target in asked.targets if target.node != own]
        if remote:
            owner.internode.submit_each(remote, self._verb, self._body, self.deadline_s, self)
        for target in asked.targets:
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
        if self.round.end is not None:
            return
        if self._agrees(reply):
            self.granted[context.node] = reply
            carry_out(self, self.round.answered(context.node, self.round.plan.epoch))
        else:
            self.refused[context.node] = reply
            carry_out(self, self.round.refused(context.node))

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self._owner.internode.repeated_log, "conditional", context, error)
        carry_out(self, self.round.failed(context, error))

    def again(self) -> None:
        carry_out(self, self.round.again())

    def check(self) -> None:
        carry_out(self, self.round.confirmed(self.round.plan))

    def expired(self) -> None:
        carry_out(self, self.round.expired())

    def finish(self, end: End) -> None:
        if not self._future.done():
            self._future.set_result(end)
