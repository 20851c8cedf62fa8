"""What one CQL connection has read, until it begins.

Invariant: envelopes begin in the order in which they were read, as `turns` allows and while the client takes
its responses; while one of them waits nothing more is read. Once `refuse` is set no envelope that is read
then begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import Envelope
from lockstep.server.flow import Flow
from lockstep.server.responses_owed import Responses
from lockstep.server.turns import Turns

Take = Callable[[Envelope], None]
_BATCH: Final = int(Opcode.BATCH)


class Intake:
    """`begin` is given each envelope once; `emptied` hears that the last one that waited has begun."""

    def __init__(
        self, turns: Turns, flow: Flow, responses: Responses, begin: Take, emptied: Callable[[], None]
    ) -> None:
        self._turns = turns
        self._flow = flow
        self._responses = responses
        self._begin = begin
        self._emptied = emptied
        self._waiting: deque[Envelope] = deque()
        self._refuse: Take | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def take(self, envelopes: Sequence[Envelope]) -> None:
        """These were read."""
        begin = self._refuse
        if begin is not None:
            for envelope in envelopes:
                begin(envelope)
            return
        begin, turns, waiting = self._begin, self._turns, self._waiting
        for at, envelope in enumerate(envelopes):
            if (
                waiting
                or not turns.open
                or (envelope.opcode == _BATCH and not turns.batches_open)
                or self._responses.blocked
            ):
                if not waiting:
                    self._flow.unbegun = True
                    turns.wait(self)
                waiting.extend(envelopes[at:])
                return
            begin(envelope)

    def begin_waiting(self, requests_max: int) -> bool:
        """See `turns.Waiting`."""
        waiting, turns, begin = self._waiting, self._turns, self._begin
        while waiting and requests_max and turns.open:
            if self._responses.blocked:
                return False  # `resume` follows.
            if waiting[0].opcode == _BATCH and not turns.batches_open:
                turns.hold(self)
                return False
            requests_max -= 1
            begin(waiting.popleft())
        if waiting:
            return True
        self._flow.unbegun = False
        self._flow.regulate()
        self._emptied()
        return False

    def resume(self) -> None:
        """The client takes its responses again."""
        if self._waiting:
            self._turns.wait(self)

    def refuse(self, refuse: Take) -> None:
        """From now on what is read is given to `refuse` at once; what waits begins all the same."""
        self._refuse = refuse
        self._flow.refuses = True
        self._flow.regulate()

    def lost(self) -> None:
        """The connection has ended, and nobody waits for what has not begun."""
        self._waiting.clear()
        self._turns.forget(self)
