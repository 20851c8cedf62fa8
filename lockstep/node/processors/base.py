"""What every processor does: take a submission, and settle it once.

Invariant: a submission is settled exactly once, with the epoch of its committed entry or with what is known
instead: Rejected is final and valid at the epoch it names, NotLeader and Overloaded say that nothing of this
attempt was or will be appended, LeadershipLost and OutcomeUnknown that it may be in the log.
"""

from __future__ import annotations

import abc
import asyncio
from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.tip import Expired
from lockstep.node.log.messages import Submit
from lockstep.values.errors import LockstepError, NotLeader, OutcomeUnknown

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
