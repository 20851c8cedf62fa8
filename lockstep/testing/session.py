"""A small blocking CQL session, so that a test needs no driver.

Owns: one connection to one node. Invariant: requests go one after another; after a timeout or a broken
connection the session is closed, as a late answer could be taken for the next one's.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from types import TracebackType
from typing import Any

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.frames import EnvelopeReader, encode_request
from lockstep.testing.conversation import (
    VERSION,
    CqlError,
    Values,
    conversation,
    credentials,
    startup,
)
from lockstep.values.errors import ConfigurationError, PeerTimeout, PeerUnreachable
from lockstep.values.ids import Consistency

_READ_BYTES = 1 << 16


class Session:
    """`execute` runs a statement at one node; use as a context manager, or call `close`."""

    def __init__(
        self, address: str, port: int, *, timeout_s: float = 15.0, user: str = "", password: str = ""
    ) -> None:
        """PeerUnreachable when nobody listens there, CqlError when the node does not let the user in."""
        self.address = address
        self._timeout_s = timeout_s
        self._prepared: dict[str, wire.PreparedResult] = {}
        self._reader = EnvelopeReader(responses=True)
        self._lock = threading.Lock()
        try:
            self._socket = socket.create_connection((address, port), timeout=timeout_s)
        except OSError as error:
            raise PeerUnreachable(f"no node answers at {address}:{port}: {error}") from error
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._log_in(user, password)
        except BaseException:
            self.close()
            raise

    def execute(
        self, text: str, values: Values = (), *, consistency: str | Consistency = "QUORUM"
    ) -> list[Any]:
        """Rows as named tuples, of all pages. Markers are `?` or `:name`, with a sequence or a mapping of
        values.

        CqlError is the node's answer. PeerTimeout means that the outcome is not known.
        """
        with self._lock:
            talk = conversation(self._prepared, text, values, consistency)
            said = next(talk)
            while True:
                answer = self._ask(*said)
                try:
                    said = talk.send(answer)
                except StopIteration as done:
                    rows: list[Any] = done.value
                    return rows

    @property
    def broken(self) -> bool:
        """Whether the node has closed the connection, or we have."""
        if self._socket.fileno() < 0:
            return True
        readable, _, _ = select.select([self._socket], [], [], 0)
        try:
            return bool(readable) and self._socket.recv(1, socket.MSG_PEEK) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _log_in(self, user: str, password: str) -> None:
        answer = self._ask(*startup())
        if isinstance(answer, wire.Authenticate):
            if not user:
                raise ConfigurationError(f"{self.address} asks for a password", hint="pass user and password")
            answer = self._ask(*credentials(user, password))
        if isinstance(answer, wire.ErrorResponse):
            raise CqlError(answer)

    def _ask(self, opcode: int, body: bytes) -> wire.Body:
        deadline = time.monotonic() + self._timeout_s
        try:
            self._socket.sendall(encode_request(VERSION, opcode, 0, body))
            while True:
                self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    raise ConnectionError("the node closed the connection")
                for envelope in self._reader.feed(data):
                    return wire.decode_response(
                        envelope.version, envelope.opcode, envelope.flags, envelope.body
                    ).body
        except OSError as error:
            self.close()
            raise PeerTimeout(f"{self.address} did not answer: {error}") from error
