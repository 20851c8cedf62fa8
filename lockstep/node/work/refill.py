"""Having this node filled again after it lost a part of its store.

Invariant: as long as other replicas have something that this node lacks, a rebuild of it runs, waits in the
queue, or is asked for again soon.
"""

from __future__ import annotations

import asyncio
from typing import Final

from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.submission import Submitter
from lockstep.node.work.lacking import Lacking
from lockstep.topology.kinds.rebuild import Rebuild
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId

#: Between two looks at whether a rebuild is under way.
LOOK_S: Final = 2
SUBMIT_TIMEOUT_MS: Final = 10_000


def refill_actor(node: int) -> str:
    """Who asks for the rebuild of a node that lost something, as requests tell it."""
    return f"node {node}, which lost a part of its store"


class Refill:
    def __init__(
        self,
        context: NodeContext,
        state: MetadataState,
        submitter: Submitter,
        lacking: Lacking,
    ) -> None:
        self._runtime = context.runtime
        self._state = state
        self._submitter = submitter
        self._lacking = lacking
        self._own_id = context.own_id
        self._log = context.log
        self._refused = ""

    def start(self) -> None:
        if self._lacking.fillable:
            for lack in self._lacking.fillable:
                self._log("storage.lacking", lost=lack.lost or "the whole store")
            self._runtime.tasks.spawn(self._run(), "node.refill")

    async def _run(self) -> None:
        while self._lacking.fillable:
            own = NodeId(self._own_id())
            if own not in self._state.current.requests.by_node:
                await self._ask(own)
            await asyncio.sleep(LOOK_S)
        self._runtime.probes.reach("refill.done")
        left = sum(lack.sole for lack in self._lacking.current)
        self._log("storage.filled", lost_for_good=left)

    async def _ask(self, own: NodeId) -> None:
        wanted = EnqueueRequest(Rebuild(own), actor=refill_actor(own))
        try:
            await self._submitter.submit(wanted, SUBMIT_TIMEOUT_MS)
            self._refused = ""
        except LockstepError as error:
            # It is asked again, until it can be; the reason is told when it is another one.
            if error.message != self._refused:
                self._log("storage.refill_waits", reason=error.message)
            self._refused = error.message
