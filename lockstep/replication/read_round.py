"""One question to enough replicas: ask, count answers, ask another when one fails or is slow.

One replica is asked for its answer, the others of the quorum may say by a digest that they have the same. Who
has another one is asked for it.

Invariant: the future ends once, with answers that satisfy the plan, or with StaleEpoch from the first
replica that knows a change that matters, or with ReadTimeout or ReadFailure. No answer in it is a digest.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lockstep.replication import verbs
from lockstep.replication.digests import digest_of, filled_in
from lockstep.replication.failure_codes import causes_of, late, note_refusal, reasons_of
from lockstep.replication.handshake import Address
from lockstep.replication.messages import ReadReply, ReadRequest
from lockstep.replication.plans import Plan, Target, first_choice
from lockstep.replication.speculation import Policy
from lockstep.replication.writes import TRANSIENT
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError, ReadFailure, ReadTimeout, StaleEpoch
from lockstep.values.ids import NodeId
from lockstep.values.limits import READ_EXTRA_AFTER_MS, REPLICA_RETRY_MS

if TYPE_CHECKING:
    from lockstep.replication.reads import Reads

Answer = tuple[Target, ReadReply]


class _Slow:
    """A reminder that a round has waited long; all rounds share one timer, for most need none."""

    __slots__ = ("deadline_s", "expired")

    def __init__(self, round_: ReadRound, deadline_s: float) -> None:
        self.deadline_s = deadline_s
        self.expired = round_.waited_long


class ReadRound:
    """Hears its replicas as an internode Waiter, with the target as context."""

    __slots__ = (
        "_answers",
        "_asked",
        "_bodies",
        "_digests",
        "_extra",
        "_extras",
        "_failures",
        "_number",
        "_ordered",
        "_owner",
        "_plan",
        "_policy",
        "_request",
        "_retry",
        "_started_s",
        "deadline_s",
        "future",
        "stale_source",
    )

    def __init__(
        self,
        owner: Reads,
        plan: Plan,
        ordered: list[Target],
        request: ReadRequest,
        deadline_s: float,
        policy: Policy,
    ) -> None:
        self._owner = owner
        self._plan = plan
        self._ordered = ordered
        self._request = request
        #: The request as sent: for the answer, and for a digest of a large one.
        self._bodies = [b"", b""]
        self._policy = policy
        self._started_s = owner.runtime.clock.monotonic_s()
        self.deadline_s = deadline_s
        self.future: asyncio.Future[list[Answer]] = asyncio.get_running_loop().create_future()
        #: Who raised StaleEpoch, to catch up from.
        self.stale_source: Address | None = None
        self._answers: dict[NodeId, Answer] = {}
        #: Whether any answer was a digest.
        self._digests = False
        #: Nodes being asked or done; a failed one may be asked again after a pause.
        self._asked: dict[NodeId, None] = {}
        self._failures: dict[NodeId, LockstepError] = {}
        #: Number of the reminder to ask another replica; 0 for none.
        self._extra = 0
        #: Replicas asked since others were slow.
        self._extras = 0
        self._retry: asyncio.TimerHandle | None = None
        self._number = owner.in_flight.add(self)

    def start(self) -> None:
        chosen = first_choice(self._plan, self._ordered)
        # Ranges differ somewhere too often for a second question each time.
        by_digest = self._request.command.key is not None
        # This node is first in order and answers last: it may answer at once, while the others work.
        for target in reversed(chosen):
            self._ask(target, by_digest=by_digest and target is not chosen[0])
        if self._policy.always:
            self._ask_extra()
        else:
            self._remind()

    def _remind(self) -> None:
        """Come back after a while when there are replicas that were not asked."""
        if len(self._asked) >= len(self._ordered) or self.future.done():
            return
        command, now_s = self._request.command, self._owner.runtime.clock.monotonic_s()
        left_s = self.deadline_s - now_s
        wait_s = self._owner.latencies.wait_s(command.table_id, self._policy, left_s)
        if wait_s is None:
            return
        if command.key is None:
            # How long questions about single partitions take says nothing of ranges.
            wait_s = min(READ_EXTRA_AFTER_MS / 1000, max(left_s, 0.0) / 4)
        self._extra = self._owner.slow.add(_Slow(self, now_s + wait_s))

    def _ask(self, target: Target, *, by_digest: bool = False) -> None:
        self._asked[target.node] = None
        owner = self._owner
        if target.node == owner.own_id():
            try:
                reply = owner.replica.read_now(self._request)
            except LockstepError as error:
                self.failed(target, error)
                return
            if reply is not None:
                self.replied(target, reply, reply.accepted_epoch)
            else:
                owner.runtime.tasks.spawn(self._read_here(target), "read-here")
        else:
            body = self._bodies[by_digest] or self._encoded(by_digest=by_digest)
            owner.internode.submit(target.address, verbs.READ, body, self.deadline_s, self, target)

    def _encoded(self, *, by_digest: bool) -> bytes:
        request = self._request
        if by_digest:
            request = ReadRequest(
                request.epoch, request.needs_epoch, request.command, self._owner.digest_over_bytes
            )
        body = self._bodies[by_digest] = encode(request)
        return body

    async def _read_here(self, target: Target) -> None:
        try:
            reply = await self._owner.replica.read(self._request)
        except LockstepError as error:
            self.failed(target, error)
        else:
            self.replied(target, reply, reply.accepted_epoch)

    def waited_long(self) -> None:
        self._extra = 0
        self._ask_extra()

    def _ask_extra(self) -> None:
        """One more replica, and again when that is not enough."""
        if self.future.done():
            return
        if self.ask_another():
            self._extras += 1
            self._owner.counters.asked += 1
            self._remind()
        else:
            self._owner.counters.insufficient += 1

    def ask_another(self) -> bool:
        """One more replica, the best one not asked yet that a need still misses; False when none is left."""
        if self.future.done():
            return False
        held = [target for target, _ in self._answers.values()]
        for target in self._ordered:
            if target.node in self._asked:
                continue
            if any(self._helps(need.dc, need.count, target, held) for need in self._plan.needs):
                self._owner.reach("read.asked_another")
                self._ask(target)
                return True
        return False

    @staticmethod
    def _helps(dc: str, count: int, target: Target, held: list[Target]) -> bool:
        if dc and target.dc != dc:
            return False
        return sum(1 for one in held if not dc or one.dc == dc) < count

    def replied(self, context: Target, reply: ReadReply, sender_epoch: int) -> None:
        if self.future.done():
            return
        answers = self._answers
        answers[context.node] = (context, reply)
        if reply.digest:
            self._digests = True
        if self._digests:
            self._fill_in()
        if len(answers) >= self._plan.required and self._plan.satisfied_by(answers):
            if self._digests:
                digests = [target for target, reply in answers.values() if reply.digest]
                if digests:
                    self._ask_for_content(digests)
                    return
            self._end(None)

    def _fill_in(self) -> None:
        """Put answers at hand in the places of digests that stand for them."""
        answers = self._answers
        digests = [answer for answer in answers.values() if answer[1].digest]
        if not digests:
            return
        known = {digest_of(reply.result): reply.result for _, reply in answers.values() if not reply.digest}
        for target, reply in digests:
            whole = filled_in(reply, known)
            if whole is not None:
                answers[target.node] = (target, whole)

    def _ask_for_content(self, digests: list[Target]) -> None:
        """Enough have answered, but not all as somebody whose answer is at hand."""
        if self._has_data():
            self._owner.counters.digest_mismatches += 1
            self._owner.reach("digests.differ")
        else:
            # Whoever was asked for the answer failed: perhaps the others agree with the first of these.
            digests = digests[:1]
        for target in digests:
            del self._answers[target.node]
        for target in digests:
            self._ask(target)

    def failed(self, context: Target, error: LockstepError) -> None:
        note_refusal(self._owner.internode.repeated_log, "read", context, error)
        if self.future.done():
            return
        if isinstance(error, StaleEpoch):
            self.stale_source = context.address
            self._end(error)
            return
        self._failures[context.node] = error
        self.ask_another()
        if isinstance(error, TRANSIENT):
            if self._retry is None:
                loop = asyncio.get_running_loop()
                self._retry = loop.call_later(REPLICA_RETRY_MS / 1000, self._ask_failed_again)
            return
        hopeless = [n for n, e in self._failures.items() if not isinstance(e, TRANSIENT)]
        possible = [t.node for t in self._plan.targets if t.node not in hopeless]
        if not self._plan.satisfied_by(possible):
            plan = self._plan
            self._owner.reach("read.hopeless")
            failures = {node: self._failures[node] for node in hopeless}
            self._end(
                ReadFailure(
                    plan.consistency,
                    plan.counted(self._answers),
                    plan.required,
                    len(hopeless),
                    self._has_data(),
                    reasons_of(plan.targets, failures),
                    causes_of(plan.targets, failures),
                )
            )

    def _ask_failed_again(self) -> None:
        self._retry = None
        if self.future.done():
            return
        self._owner.reach("read.retried")
        for target in self._ordered:
            error = self._failures.get(target.node)
            if isinstance(error, TRANSIENT):
                del self._failures[target.node]
                self._ask(target)

    def _has_data(self) -> bool:
        """Whether a replica gave its answer, be it that there is nothing."""
        return any(not reply.digest for _, reply in self._answers.values())

    def expired(self) -> None:
        self._owner.reach("read.expired")
        if self._extras:
            self._owner.counters.missed += 1
        self._note_time()
        plan = self._plan
        received = plan.counted(self._answers)
        timeout = ReadTimeout(plan.consistency, received, plan.required, self._has_data())
        self._end(late(timeout, plan.targets, self._failures))

    def _note_time(self) -> None:
        command = self._request.command
        if command.key is not None:
            took_s = self._owner.runtime.clock.monotonic_s() - self._started_s
            self._owner.latencies.add(command.table_id, took_s)

    def _end(self, error: LockstepError | None) -> None:
        if self._extra:
            self._owner.slow.remove(self._extra)
        if self._retry is not None:
            self._retry.cancel()
        self._owner.in_flight.remove(self._number)
        if self.future.done():
            return
        if error is None:
            self._note_time()
            self.future.set_result(list(self._answers.values()))
        else:
            self.future.set_exception(error)
