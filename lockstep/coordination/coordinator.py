"""The request coordinator of one node: reads and writes of clients, kept right while ownership moves.

Invariant: raises RequestError subclasses only; a change of topology is never one of them.
"""

from __future__ import annotations

import asyncio

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.reads import Reads
from lockstep.coordination.writes import Writes
from lockstep.quorum.speculation import ExtraRequests
from lockstep.replica.scanned import Thresholds
from lockstep.values.ids import Consistency
from lockstep.values.rows import Mutation, ReadCommand, ReadResult


class Coordinator:
    def __init__(
        self, context: CoordinationContext, writes: Writes, thresholds: Thresholds | None = None
    ) -> None:
        self.plans = context.plans
        self._writes = writes
        #: `begin_write` for crowds.
        self.submit_batch = self._writes.submit_batch
        self._reads = Reads(context, writes, thresholds if thresholds is not None else Thresholds())

    @property
    def writes(self) -> Writes:
        """For those who write what they have worked out themselves."""
        return self._writes

    async def write(
        self,
        mutation: Mutation,
        consistency: Consistency,
        timeout_ms: float,
        write_type: str = "SIMPLE",
    ) -> None:
        """Return when enough replicas hold the mutation durably.

        Unavailable, Overloaded, InvalidRequest: not applied. WriteTimeout, WriteFailure: unknown; the
        identical mutation may be sent again.
        """
        await self._writes.begin(mutation, consistency, timeout_ms, write_type)

    def begin_write(
        self,
        mutation: Mutation,
        consistency: Consistency,
        timeout_ms: float,
        write_type: str = "SIMPLE",
    ) -> asyncio.Future[None]:
        """`write` without a task: the future ends with None, WriteTimeout or WriteFailure.

        Unavailable, Overloaded and InvalidRequest are raised here; nothing was sent then.
        """
        return self._writes.begin(mutation, consistency, timeout_ms, write_type)

    async def read(self, command: ReadCommand, consistency: Consistency, timeout_ms: float) -> ReadResult:
        """Live content only, merged and repaired; see `Reads.read`."""
        return await self._reads.read(command, consistency, timeout_ms)

    def in_flight(self) -> tuple[int, int]:
        """(writes, read questions) that have not ended."""
        return len(self._writes.in_flight), len(self._reads.shared.in_flight)

    def replans(self) -> tuple[int, int]:
        """(writes, reads) that were planned again because something that matters had changed."""
        return self._writes.replans, self._reads.replans

    def catch_ups(self) -> tuple[int, int]:
        """How often (a write, a read) was refused by a replica ahead, and this node learned of it first."""
        return self._writes.catch_ups, self._reads.catch_ups

    def extra_requests(self) -> ExtraRequests:
        """What came of asking more replicas than a read's level needs."""
        return self._reads.shared.counters

    def ask_digests_over(self, size_bytes: int) -> None:
        """From now on answers larger than this are told by digest; other nodes may have other bounds."""
        self._reads.shared.digest_over_bytes = size_bytes

    def stop(self) -> None:
        """End everything in flight as timed out."""
        self._reads.stop()
        self._writes.stop()
