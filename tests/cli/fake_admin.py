"""A node's admin API with canned answers, on a loopback port of its own."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

#: What an answer is made of: a body, or a status with a body, or a function of the request body.
Answer = Mapping[str, Any] | tuple[int, Any] | Callable[[Any], Any]


class FakeAdmin:
    """Answers `METHOD /path?query` from a table; a list there is used up, but for its last answer."""

    def __init__(self, answers: Mapping[str, Any], address: str = "127.0.0.1") -> None:
        self.answers = dict(answers)
        self.calls: list[tuple[str, Any]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(size)) if size else None
                status, raw = outer.answer(f"{self.command} {self.path}", body)
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            do_GET = do_POST = do_DELETE = _answer

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.server.daemon_threads = True
        self.address, self.port = address, self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def host(self) -> str:
        return f"{self.address}:{self.port}"

    def answer(self, request: str, body: Any) -> tuple[int, bytes]:
        self.calls.append((request, body))
        found = self.answers.get(request, (404, {"message": f"no answer for {request}"}))
        if isinstance(found, list):
            found = found.pop(0) if len(found) > 1 else found[0]
        if callable(found):
            found = found(body)
        status, document = found if isinstance(found, tuple) else (200, found)
        return status, document if isinstance(document, bytes) else json.dumps(document).encode()

    def __enter__(self) -> FakeAdmin:
        self.thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def node(number: int, **changes: Any) -> dict[str, Any]:
    """One member of `nodes` in a status answer."""
    plain = {
        "id": number, "host_id": f"00000000-0000-0000-0000-00000000000{number}",
        "address": f"127.0.0.{number}", "cql_port": 9042, "internode_port": 7000, "admin_port": 7080,
        "dc": "dc1", "rack": "rack1", "state": "normal", "alive": True, "tokens": 16, "owns": 1 / 3,
        "voter": True, "epoch": 42,
    }  # fmt: skip
    return plain | changes


def status(**changes: Any) -> dict[str, Any]:
    plain = {
        "schema": "status/1", "ready": True, "cluster": {"id": "c0ffee", "name": "tour"}, "epoch": 42,
        "hash": "9f3c1a2b4d5e6f70", "node": {"id": 1, "host_id": "h1", "address": "127.0.0.1"}, "leader": 2,
        "level": "healthy", "verdict": "healthy: every range has all its replicas", "conditions": [],
        "nodes": [node(1), node(2), node(3)],
        "operations": [],
    }  # fmt: skip
    return plain | changes
