"""Submissions to the metadata log through any node's door, and the record of what was told of each.

Invariant: a submission has an entry id of its own that all its tries keep; whatever a try was told, or not
told, is in the record, so that LOG-2 can be judged at the end.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockstep.metadata.log.registry import EntryKind
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.log import Submitted
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import Answer, DoorClient, Submission
from lockstep.sim.runtime.streams import Stream
from lockstep.values.codec import encode

_CONNECT_MS = 500
_PATIENCE_S = 12.0
#: How long one submission is retried before its outcome stays unknown.
_TRIES_MAX = 4
_REFUSALS = ("REJECTED", "VERSION_MISMATCH")


class Submitting:
    """`submissions` is the record, in the order in which they began."""

    def __init__(self, cluster: SimCluster, draw: Stream) -> None:
        self.submissions: list[Submitted] = []
        self._cluster = cluster
        self._draw = draw
        self.number = 0
        #: Those that are being tried now.
        self.open: list[Submitted] = []

    async def submit(
        self,
        runtime: Runtime,
        kind: EntryKind,
        transformation: Any,
        *,
        patience_s: float = _PATIENCE_S,
        tries: int = _TRIES_MAX,
        through: str = "",
    ) -> Submitted:
        """Retried with one entry id; `patience_s` bounds each try, `through` is the node asked, any one
        without it. A refusal says nothing of a try before it
        whose answer was lost: that one may be judged later, when the change is in order."""
        self.number += 1
        submitted = Submitted(
            entry_id=self.number.to_bytes(4, "big") + runtime.random.bytes(12),
            outcome="unknown",
            kind=int(kind),
            body=encode(transformation),
            base_epoch=self._cluster.newest.epoch,
        )
        self.submissions.append(submitted)
        self.open.append(submitted)
        try:
            await self._until_known(runtime, submitted, patience_s, tries, through)
        finally:
            self.open.remove(submitted)
        name = type(transformation).__name__
        self._cluster.tell("operator", f"{name} {submitted.outcome} {submitted.epoch or ''}")
        return submitted

    async def _until_known(
        self, runtime: Runtime, submitted: Submitted, patience_s: float, tries: int, through: str
    ) -> None:
        doubt = lost = False
        for _ in range(tries):
            answer = await self._ask(runtime, submitted, patience_s, through)
            if answer is None:
                # The node that was asked may still be at it.
                lost = True
            elif not answer.code:
                submitted.outcome, submitted.epoch = "ok", answer.epoch
                break
            elif answer.code in _REFUSALS:
                submitted.outcome = "unknown" if lost else "rejected"
                submitted.refusals.append((answer.epoch, answer.text))
                break
            else:
                doubt = doubt or not answer.known
            await asyncio.sleep(0.2 + self._draw.random())
        else:
            submitted.outcome = "unknown" if lost or doubt else "failed"

    async def again(self, runtime: Runtime, submitted: Submitted, patience_s: float) -> None:
        """Ask once more, through any node, for what was done or may have been done long ago."""
        assert submitted.outcome in ("ok", "unknown"), "what is refused or failed is over"
        answer = await self._ask(runtime, submitted, patience_s)
        if answer is None:
            return
        fact = self._cluster.fact
        if not answer.code:
            if submitted.outcome == "unknown":
                fact("retry: unknown no more")
            elif answer.epoch != submitted.epoch:
                raise Violation("LOG-2", f"acknowledged at epoch {submitted.epoch}, later at {answer.epoch}")
            else:
                fact("retry: same epoch again")
                if self._cluster.newest.service.snapshot_epoch > answer.epoch:
                    fact("retry: same epoch after a snapshot")
            submitted.outcome, submitted.epoch = "ok", answer.epoch
        elif answer.code in _REFUSALS and submitted.outcome == "ok":
            raise Violation("LOG-2", f"acknowledged at epoch {submitted.epoch}, later refused: {answer.text}")
        elif "no longer kept" in answer.text:
            fact("retry: id expired")

    async def _ask(
        self, runtime: Runtime, submitted: Submitted, patience_s: float, through: str = ""
    ) -> Answer | None:
        """None when the outcome is unknown."""
        name = through or self._draw.choice(self._cluster.in_service())
        host = self._cluster.processes[name].host
        try:
            door = await DoorClient.connect(runtime, host, _CONNECT_MS)
        except (OSError, TimeoutError):
            return None
        request = Submission(submitted.entry_id, submitted.kind, submitted.body, submitted.base_epoch)
        try:
            async with asyncio.timeout(patience_s):
                return await door.ask(request)
        except (TimeoutError, ConnectionError):
            return None
        finally:
            door.close()
