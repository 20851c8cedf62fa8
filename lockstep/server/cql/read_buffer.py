"""What one CQL connection has read, until it begins.

Invariant: envelopes begin in the order in which they were read, as `turns` allows and while the client takes
its responses; while CQL_UNBEGUN_BYTES_MAX or CQL_UNBEGUN_MAX wait nothing more is read. Once `refuse` is set
no envelope that is read then begins.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import Envelope
from lockstep.server.cql.backpressure import Backpressure
from lockstep.server.cql.loop_budget import LoopBudget
from lockstep.server.cql.responses_owed import Responses
from lockstep.values.request_limits import CQL_UNBEGUN_BYTES_MAX, CQL_UNBEGUN_MAX

Take = Callable[[Envelope], None]
_BATCH: Final = int(Opcode.BATCH)
_SHED: Final = (int(Opcode.EXECUTE), int(Opcode.QUERY), _BATCH)


class ReadBuffer:
    """`begin` is given each envelope once, or `shed` one that waited for too long; `emptied` hears that the
    last one that waited is gone."""

    def __init__(
        self,
        turns: LoopBudget,
        flow: Backpressure,
        responses: Responses,
        begin: Take,
        shed: Take,
        emptied: Callable[[], None],
    ) -> None:
        self._turns = turns
        self._flow = flow
        self._responses = responses
        self._begin = begin
        self._emptied = emptied
        #: With the time at which it was read.
        self._waiting: deque[tuple[Envelope, float]] = deque()
        self._bytes = 0
        self._shed = shed
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
                or not turns.may_begin
                or (envelope.opcode == _BATCH and not turns.batches_open)
                or self._responses.blocked
            ):
                if not waiting:
                    turns.wait(self)
                self._wait(envelopes[at:])
                return
            begin(envelope)

    def begin_waiting(self, requests_max: int) -> bool:
        """See `turns.Waiting`."""
        waiting, turns, begin = self._waiting, self._turns, self._begin
        while waiting and requests_max and turns.may_begin:
            if self._responses.blocked:
                return False  # `resume` follows.
            if waiting[0][0].opcode == _BATCH and not turns.batches_open:
                turns.hold(self)
                return False
            requests_max -= 1
            envelope = waiting.popleft()[0]
            self._bytes -= len(envelope.body)
            begin(envelope)
        self._regulate()
        return bool(waiting)

    def _wait(self, envelopes: Sequence[Envelope]) -> None:
        read_s = self._turns.now_s()
        self._waiting.extend([(one, read_s) for one in envelopes])
        self._bytes += sum([len(one.body) for one in envelopes])
        self._flow.unbegun = self._is_full()

    def _is_full(self) -> bool:
        return self._bytes >= CQL_UNBEGUN_BYTES_MAX or len(self._waiting) >= CQL_UNBEGUN_MAX

    def _regulate(self) -> None:
        """Something that waited is gone."""
        self._flow.unbegun = self._is_full()
        self._flow.regulate()
        if not self._waiting:
            self._emptied()

    def shed(self, before_s: float, batches_before_s: float) -> int:
        """See `turns.Waiting`. What is no request for data is begun in its turn however long it waited."""
        waiting = self._waiting
        if not waiting or waiting[0][1] >= before_s:
            return 0
        kept: deque[tuple[Envelope, float]] = deque()
        for envelope, read_s in waiting:
            limit_s = batches_before_s if envelope.opcode == _BATCH else before_s
            if read_s < limit_s and envelope.opcode in _SHED:
                self._bytes -= len(envelope.body)
                self._shed(envelope)
            else:
                kept.append((envelope, read_s))
        count = len(waiting) - len(kept)
        self._waiting = kept
        if not kept:
            self._turns.forget(self)
        if count:
            self._regulate()
        return count

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
        self._bytes = 0
        self._turns.forget(self)
