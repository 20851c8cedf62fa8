"""What every processor does, take a submission and settle it once, and the processor of a node that is its
own metadata service: a counter and the store, no consensus.

Invariant: a submission is settled exactly once, with the epoch of its committed entry or with what is known
instead: Rejected is final and valid at the epoch it names, NotLeader and Overloaded say that nothing of this
attempt was or will be appended, LeadershipLost and OutcomeUnknown that it may be in the log. An entry that
was judged is handed to the metadata state in the same turn, which makes it durable before anybody sees it; a
submission is settled when that has happened. So nothing is lost but what was never answered, and there is one
leader for ever: this node, in one term.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry
from lockstep.metadata.log.tip import Appended, Expired, Judgement, Refused, Tip
from lockstep.node.log.messages import Submit
from lockstep.node.log.metadata_state import MetadataState
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import (
    CannotApply,
    InvalidRequest,
    LockstepError,
    NotLeader,
    OutcomeUnknown,
    Overloaded,
)
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX, LOCAL_PENDING_BYTES_MAX, REFUSED_IDS_MAX

#: Told how a submission ended.
Settle = Callable[[int | LockstepError], None]


def expired(outcome: Expired) -> OutcomeUnknown:
    return OutcomeUnknown(
        f"this change was first sent before epoch {outcome.oldest_epoch}; its id is no longer kept",
        hint="look for it in the log: lockstep cms log",
    )


class Processor(abc.ABC):
    """Exists on nodes that may append to the log."""

    @abc.abstractmethod
    def take(self, submit: Submit, settle: Settle) -> None:
        """Judge `submit` and have it committed; `settle` is called once, now or later."""

    @abc.abstractmethod
    def leading_term(self) -> int:
        """The term in which this node judges; NotLeader when it does not."""

    @property
    def leads(self) -> bool:
        """Whether this node judges submissions now."""
        try:
            self.leading_term()
        except NotLeader:
            return False
        return True

    def known_value(self, entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        """What applying `entry` to `before` makes, when that was found out while it was judged here."""
        return None

    async def submit(self, submit: Submit) -> int:
        """Epoch at which the submission's entry is committed. Errors: see the module."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def settle(outcome: int | LockstepError) -> None:
            if future.done():
                return
            if isinstance(outcome, LockstepError):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)

        self.take(submit, settle)
        return await future


#: The only term there is.
TERM = 1


class LocalProcessor(Processor):
    def __init__(self, runtime: Runtime, state: MetadataState, registry: Registry) -> None:
        self._runtime = runtime
        self._state = state
        self._tip = Tip(state.current, registry)
        self._waiting: dict[bytes, list[Settle]] = {}
        #: Refusals that wait until the epoch they were judged at is applied.
        self._refused: list[tuple[Refused, Settle]] = []
        #: What was refused lately: an attempt that arrives late gets the same answer, whatever changed.
        self._refusals: dict[bytes, Refused] = {}
        self._batch: list[LogEntry] = []
        self._pending_bytes = 0
        state.listen(self._applied)

    def leading_term(self) -> int:
        if self._state.broken is not None:
            raise self._state.broken
        return TERM

    @property
    def leads(self) -> bool:
        return self._state.broken is None

    def take(self, submit: Submit, settle: Settle) -> None:
        try:
            outcome = self._judge(submit)
        except LockstepError as error:
            settle(error)
            return
        if isinstance(outcome, Appended):
            self._waiting[submit.entry_id] = [settle]
            self._pending_bytes += len(outcome.entry.body)
            if not self._batch:
                asyncio.get_running_loop().call_soon(self._hand_over)
            self._batch.append(outcome.entry)
        elif isinstance(outcome, Refused):
            self._refusals[submit.entry_id] = outcome
            if len(self._refusals) > REFUSED_IDS_MAX:
                del self._refusals[next(iter(self._refusals))]
            if outcome.judged_epoch <= self._state.epoch:
                settle(outcome.rejection)
            else:
                self._refused.append((outcome, settle))
        elif isinstance(outcome, Expired):
            settle(expired(outcome))
        elif outcome.committed:
            settle(outcome.epoch)
        else:
            self._waiting[submit.entry_id].append(settle)

    def _judge(self, submit: Submit) -> Judgement:
        self.leading_term()
        if len(submit.body) > ENTRY_BODY_BYTES_MAX:
            raise InvalidRequest(f"a metadata entry holds at most {ENTRY_BODY_BYTES_MAX} bytes")
        if self._pending_bytes > LOCAL_PENDING_BYTES_MAX:
            raise Overloaded("too many metadata changes wait for the disk")
        return self._refusals.get(submit.entry_id) or self._tip.judge(
            submit.entry_id,
            submit.kind,
            submit.body,
            submit.actor,
            self._runtime.clock.wall_us(),
            TERM,
            base_epoch=submit.base_epoch,
        )

    def _hand_over(self) -> None:
        batch, self._batch = self._batch, []
        self._runtime.probes.reach("processor.appended")
        if self._state.offer(batch) < batch[-1].epoch:
            self._state.give_up(CannotApply("another node wrote to the log of a local metadata service"))

    def known_value(self, entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        return self._tip.value_at(entry, before)

    def _applied(self, _before: ClusterMetadata, after: ClusterMetadata, entry: LogEntry) -> None:
        if self._tip.forked_at(after):
            self._state.give_up(CannotApply("another node wrote to the log of a local metadata service"))
            return
        self._tip.applied_now(after)
        self._pending_bytes = max(0, self._pending_bytes - len(entry.body))
        for settle in self._waiting.pop(entry.entry_id, ()):
            settle(entry.epoch)
        if self._refused:
            due = [pair for pair in self._refused if pair[0].judged_epoch <= after.epoch]
            self._refused = [pair for pair in self._refused if pair[0].judged_epoch > after.epoch]
            for refused, settle in due:
                settle(refused.rejection)
