"""One node of a test's cluster, what a test does to it, and a small blocking CQL session, so that a test
needs no driver.

Owns: one connection to one node.

Invariant: a call returns when what it says has happened to the process; what other nodes think of it they
notice later, which `wait_until_seen_down` and `wait_until_seen_up` wait for. Requests go one after another;
after a timeout or a broken connection the session is closed, as a late answer could be taken for the next
one's.
"""

from __future__ import annotations

import select
import socket
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.frames import EnvelopeReader, encode_request
from lockstep.local.clusters import LocalCluster
from lockstep.local.layout import LocalNode
from lockstep.local.processes import State
from lockstep.testing.conversation import VERSION, CqlError, Values, conversation, credentials, startup
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


class Surroundings(Protocol):
    """The cluster of a node, as far as the node acts on it."""

    local: LocalCluster

    @property
    def port(self) -> int: ...

    @property
    def nodes(self) -> list[Node]: ...

    def disturbed(self, node: str, *, stopped: bool = False) -> None: ...

    def restored(self, node: str) -> None: ...

    def partition(self, one: Sequence[Node], other: Sequence[Node]) -> None: ...

    def operate(self, kind: str, node: Node, timeout_s: float) -> None: ...

    def wait_until_seen(self, node: Node, *, alive: bool, timeout_s: float) -> None: ...

    def session(self, node: Node, **settings: Any) -> Session: ...


class Node:
    """`name` is n1, n2, ...; `address` and `port` are what drivers see."""

    def __init__(self, cluster: Surroundings, node: LocalNode) -> None:
        self._cluster = cluster
        self._local = cluster.local
        self.name = node.name
        self.address = node.address
        self.port = cluster.port
        self.dc = node.dc
        self.rack = node.rack

    def __repr__(self) -> str:
        return f"<Node {self.name} at {self.address}, {self.state.value}>"

    @property
    def state(self) -> State:
        """RUNNING, PAUSED or STOPPED."""
        return self._local.state(self.name)

    @property
    def running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def log_path(self) -> Path:
        return self._local.paths.log(self.name)

    def log_tail(self, lines: int = 30) -> list[str]:
        """The last lines that the node logged."""
        if not self.log_path.exists():
            return []
        return self.log_path.read_text(errors="replace").splitlines()[-lines:]

    def kill(self) -> None:
        """SIGKILL, as a crash; clients' connections break at once."""
        self._cluster.disturbed(self.name, stopped=True)
        self._local.kill(self.name)

    def stop(self) -> None:
        """SIGTERM: it finishes requests in flight and ends in good order."""
        self._cluster.disturbed(self.name, stopped=True)
        self._local.stop([self.name])

    def start(self) -> None:
        """Start it after `kill` or `stop`; returns when it serves clients."""
        self._local.start([self.name])
        self._cluster.restored(self.name)

    def restart(self) -> None:
        """Stop it in good order, and start it."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, as in a long pause of a machine."""
        self._cluster.disturbed(self.name)
        self._local.pause(self.name)

    def resume(self) -> None:
        self._local.resume(self.name)

    def isolate(self) -> None:
        """Cut it off from all other nodes; clients still reach it."""
        self._cluster.partition([self], [node for node in self._cluster.nodes if node.name != self.name])

    def decommission(self, timeout_s: float = 60.0) -> None:
        """Let it give its data to others and leave; its process ends, and it is no longer among the nodes."""
        self._cluster.operate("decommission", self, timeout_s)
        self._local.stop([self.name])
        self._local.forget(self.name)

    def wait_until_seen_down(self, timeout_s: float = 15.0) -> None:
        """Until all other running nodes have noticed that it does not answer: from then on requests that
        need it are refused (Unavailable) instead of timing out."""
        self._cluster.wait_until_seen(self, alive=False, timeout_s=timeout_s)

    def wait_until_seen_up(self, timeout_s: float = 15.0) -> None:
        """Until all other running nodes count on it."""
        self._cluster.wait_until_seen(self, alive=True, timeout_s=timeout_s)

    def session(self, **settings: Any) -> Session:
        """A session of the kit that has this node coordinate."""
        return self._cluster.session(node=self, **settings)
