"""What one CQL connection sends: envelopes that wait for the end of the loop's turn, then leave in one write.

Invariant: envelopes leave in the order in which they were sent, and all of them before `flush` returns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from lockstep.cql.wire import responses
from lockstep.cql.wire.compression import LZ4
from lockstep.cql.wire.constants import VERSION_4, Opcode, has_warnings
from lockstep.cql.wire.frames import Envelope, encode_envelope
from lockstep.cql.wire.segments import encode_segments
from lockstep.values.errors import LockstepError, NodeDraining, Overloaded
from lockstep.values.limits import CQL_ANSWER_BYTES_COALESCED

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
            warnings = warnings if has_warnings(self.version) else ()
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
