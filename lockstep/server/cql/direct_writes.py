"""The hot path: prepared writes of one partition, which need neither a task nor a future.

Invariant: each write that was taken is answered once. Writes that one read brought are all bound before the
first of them begins, and all sent before the first is applied here: an interpreter that does the same for
many in a row is several times as fast as one that takes each through everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from lockstep.coordination.writes import Begun
from lockstep.cql.wire.messages import Execute
from lockstep.server.auth.permits import Session
from lockstep.server.cql.backpressure import Backpressure
from lockstep.server.metrics.latencies import WRITE, Latencies, Latency
from lockstep.values.errors import ColumnsGone, InvalidRequest, LockstepError

if TYPE_CHECKING:
    from lockstep.server.cql.connection import CqlConnection
    from lockstep.server.statements.execution import Executor


class DirectWrites:
    """Of one connection. Inside `with` writes are gathered; they begin at its end."""

    def __init__(
        self, connection: CqlConnection, flow: Backpressure, executor: Executor, latencies: Latencies
    ) -> None:
        self._connection = connection
        self._flow = flow
        self._executor = executor
        self._latencies = latencies
        self._gathers = False
        self._gathered: list[Begun] = []

    def __enter__(self) -> None:
        self._gathers = True

    def __exit__(self, *_: object) -> None:
        self._gathers = False
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            self._executor.begin_writes(gathered)

    def take(self, session: Session, stream: int, request: Execute, size: int) -> bool:
        """False when the request is no such write; it is counted as in flight then, too.

        Raises what is known before anything was sent; it is not counted then."""
        self._flow.begin(size)
        try:
            mutation = self._executor.plan_write(session, request, size)
        except BaseException:
            self._flow.end(size)
            raise
        if mutation is None:
            return False
        level, latencies = request.parameters.consistency, self._latencies
        told = _Written(
            self._connection, stream, request, size, latencies, latencies.of_write(level), latencies.now_s()
        )
        write = Begun(mutation, level, told)
        if self._gathers:
            self._gathered.append(write)
        else:
            self._executor.begin_writes((write,))
        return True


class _Written(msgspec.Struct, eq=False):
    """Answers one write when it has ended."""

    _connection: CqlConnection
    _stream: int
    _request: Execute
    _size: int
    _latencies: Latencies
    _latency: Latency
    _began_s: float

    def __call__(self, error: LockstepError | None) -> None:
        connection = self._connection
        try:
            if isinstance(error, InvalidRequest):
                begun = isinstance(error, ColumnsGone) and error.begun
                connection.again(self._stream, self._request, self._size, begun, self._began_s)
                return
            self._latency.note(self._latencies.now_s() - self._began_s)
            if error is not None:
                self._latencies.failed(WRITE, error)
            connection.written(self._stream, error)
            connection.ended(self._size)
        except Exception as defect:
            # Whoever calls this has other writes to tell.
            connection.broken(defect)
