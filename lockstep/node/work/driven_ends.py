"""How whoever drives a repair, a backup or a restore ends its session.

Invariant: an end is submitted until it is known what became of it, so no session outlives its driver's work.
"""

from __future__ import annotations

import asyncio

from lockstep.metadata.repairs import RepairState
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.topology.repairs import EndRepair
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.limits import SERVICE_TEXT_CHARACTERS_MAX
from lockstep.values.tokens import Range

#: One submission of an entry that begins or ends a session.
ENTRY_TIMEOUT_MS = 10_000
#: Pause before an end that could not be submitted is tried again.
END_RETRY_MS = 1000


class DrivenEnds:
    """`what` names in the log whose ends wait."""

    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        what: str,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._log = context.log
        self._event = f"{what}.end_waits"

    def ending(
        self,
        repair_id: int,
        state: RepairState,
        reason: str = "",
        ranges: tuple[tuple[Range, ...], ...] = (),
        before_s: int = 0,
        *,
        unchanged_since: int = 0,
    ) -> EndRepair:
        """The entry that ends a session now."""
        now_s = self._runtime.clock.wall_us() // 1_000_000
        text = reason[:SERVICE_TEXT_CHARACTERS_MAX]
        return EndRepair(repair_id, state, ranges, before_s, text, now_s, unchanged_since=unchanged_since)

    async def submit(self, end: EndRepair) -> bool:
        """Return once it is known what became of the end; False: refused, and the session goes on."""
        while self.is_running(end.repair):
            try:
                await self._submitter.submit(end, ENTRY_TIMEOUT_MS)
            except Rejected:
                return not self.is_running(end.repair)
            except LockstepError as error:
                self._log(self._event, id=end.repair, error=str(error))
                await asyncio.sleep(END_RETRY_MS / 1000)
        return True

    def is_running(self, repair_id: int) -> bool:
        """Whether the metadata this node holds knows that session as open."""
        return any(repair.id == repair_id for repair in self._state.current.repairs.running)
