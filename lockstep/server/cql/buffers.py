"""What one CQL connection has read, until it begins, and what it sends, until it leaves in one write.

Invariant: envelopes begin in the order in which they were read, as `turns` allows and while the client takes
its responses; while CQL_UNBEGUN_BYTES_MAX or CQL_UNBEGUN_MAX wait nothing more is read. Once `refuse` is set
no envelope that is read then begins. Envelopes leave in the order in which they were sent, and all of them
before `flush` returns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from lockstep.cql.wire import responses
from lockstep.cql.wire.constants import HAS_WARNINGS, VERSION_4, Opcode
from lockstep.cql.wire.frames import LZ4, Envelope, encode_envelope, encode_segments
from lockstep.server.cql.backpressure import Backpressure, Responses
from lockstep.server.cql.loop_budget import LoopBudget
from lockstep.values.errors import LockstepError, NodeDraining, Overloaded
from lockstep.values.limits import CQL_ANSWER_BYTES_COALESCED
from lockstep.values.node_limits import CQL_UNBEGUN_BYTES_MAX, CQL_UNBEGUN_MAX

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


#: The same bytes in all versions of the protocol.
_TOO_LATE: Final = responses.error(VERSION_4, Overloaded("This node has more requests than it can answer"))
_RESULT: Final = int(Opcode.RESULT)
_ERROR: Final = int(Opcode.ERROR)


class WriteBuffer:
    """`version`, `compressed` (with `algorithm`) and `segmented` are what the client has agreed to;
    `transport` is None while there is no connection."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.version = VERSION_4
        self.compressed = False
        self.algorithm = LZ4
        self.segmented = False
        self._out: list[bytes] = []
        self._bytes = 0
        self._flush_due = False
        #: Bytes of all envelopes so far.
        self.sent = 0

    @property
    def unsent(self) -> int:
        """Bytes that the client has not made room for."""
        transport = self.transport
        return 0 if transport is None else self._bytes + transport.get_write_buffer_size()

    def send(self, opcode: int, stream: int, body: bytes, flags: int = 0, version: int = 0) -> None:
        """`version`: another than the client's, for a client that has none yet."""
        if self.transport is None:
            return
        envelope = encode_envelope(
            version or self.version,
            opcode,
            stream,
            body,
            flags,
            compress=self.compressed and not self.segmented,
            algorithm=self.algorithm,
        )
        self._out.append(envelope)
        self._bytes += len(envelope)
        self.sent += len(envelope)
        if self._bytes >= CQL_ANSWER_BYTES_COALESCED:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            asyncio.get_running_loop().call_soon(self._flush_turn)

    def error(self, stream: int, error: LockstepError, version: int = 0) -> None:
        """`version`: as in `send`."""
        version = version or self.version
        self.send(_ERROR, stream, responses.error(version, error), version=version)

    def refuse_late(self, envelope: Envelope) -> None:
        """A request that waited for too long."""
        self.send(_ERROR, envelope.stream, _TOO_LATE)

    def refuse_drained(self, envelope: Envelope) -> None:
        self.error(envelope.stream, NodeDraining(), envelope.version)

    def result(
        self,
        stream: int,
        body: bytes,
        warnings: Sequence[str],
        trace_id: bytes | None,
        payload: Mapping[str, bytes | None] | None,
    ) -> None:
        """A RESULT, with what this version of the protocol may put before it."""
        flags = 0
        if warnings or trace_id is not None or payload is not None:
            warnings = warnings if self.version in HAS_WARNINGS else ()
            flags, body = responses.with_prefix(body, trace_id=trace_id, warnings=warnings, payload=payload)
        self.send(_RESULT, stream, body, flags)

    def _flush_turn(self) -> None:
        self._flush_due = False
        self.flush()

    def flush(self) -> None:
        """Write what waits."""
        out, transport = self._out, self.transport
        if not out or transport is None:
            return
        self._out = []
        self._bytes = 0
        if transport.is_closing():
            return
        if self.segmented:
            transport.write(encode_segments(out, compress=self.compressed))
        else:
            transport.write(out[0] if len(out) == 1 else b"".join(out))

    def half_close(self) -> bool:
        """Write what waits and then the end of the stream: a reset, for bytes that nobody has read, could
        overtake the last answers. What is sent later goes nowhere. False where a connection can only be
        closed."""
        transport = self.transport
        if transport is None or not transport.can_write_eof():
            return False
        self.flush()
        transport.write_eof()
        self.transport = None
        return True

    def lost(self) -> None:
        """The connection has ended: what waits goes nowhere."""
        self.transport = None
        self._out = []
        self._bytes = 0
