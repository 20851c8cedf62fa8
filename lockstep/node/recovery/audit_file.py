"""The audit of repairs in this node's data directory.

Invariant: it is only appended to, and a step that it has no room for is not taken. What it says is durable
before the step that it tells of.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lockstep.node.log.journal import Journal
from lockstep.recovery.audit import Recorded, Told, follow, problem_in
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import CorruptFile, PreconditionError
from lockstep.values.node_limits import RECOVERY_AUDIT_BYTES_MAX, RECOVERY_AUDIT_TEXT_MAX

AUDIT_PATH: Final = "recovery-audit"
_DECODER = decoder(Recorded)


class AuditFile:
    """Errors: CorruptFile on load; PreconditionError when it is full, DiskRefused."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._journal = Journal(runtime.disk, AUDIT_PATH)
        self._writing = asyncio.Lock()
        self.records: list[Recorded] = []
        self._size_bytes = 0

    def load(self) -> None:
        self.records = self._journal.load_as(_DECODER)
        problem = problem_in(self.records)
        if problem is not None:
            raise CorruptFile(AUDIT_PATH, 0, problem)
        self._size_bytes = self._runtime.disk.size(AUDIT_PATH) if self.records else 0

    async def note(self, told: Told) -> None:
        """Durable on return."""
        async with self._writing:
            last = self.records[-1] if self.records else None
            cut = told.text[:RECOVERY_AUDIT_TEXT_MAX]
            record = follow(
                last,
                Told(told.step, told.actor, cut, told.attempt, told.cluster_id),
                self._runtime.clock.wall_us(),
            )
            body = encode(record)
            if self._size_bytes + len(body) > RECOVERY_AUDIT_BYTES_MAX:
                raise PreconditionError(
                    f"the audit of repairs has {self._size_bytes} bytes and takes no more",
                    hint=f"stop the node and move {AUDIT_PATH} out of its data directory",
                )
            await self._journal.append(body)
            self.records.append(record)
            self._size_bytes += len(body)
