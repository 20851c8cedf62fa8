"""HTTP/1.1 on the runtime's network: small answers, one request at a time a connection.

Invariant: a request that cannot be read is answered with 400 and ends its connection; whatever a handler
raises becomes an answer; nothing is buffered beyond one request.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final, cast
from urllib.parse import parse_qs, unquote, urlsplit

import h11
import msgspec

from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError
from lockstep.values.limits import ADMIN_BODY_BYTES_MAX, ADMIN_IDLE_MS

JSON: Final = "application/json"
_REASONS: Final = {
    200: b"OK", 202: b"Accepted", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden",
    404: b"Not Found", 405: b"Method Not Allowed", 409: b"Conflict", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 500: b"Internal Server Error",
    503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip


class HttpRequest(msgspec.Struct, frozen=True):
    """`query` holds the last value of each name, `headers` the values of each name in small letters; `body`
    is the JSON document or None. `peer` is the asker's address, `is_local` whether it is this machine's.
    `principal`: whom the credential belongs to, empty without one."""

    method: str
    path: str
    query: dict[str, str]
    body: Any = None
    headers: dict[str, str] = {}
    peer: str = ""
    is_local: bool = False
    principal: str = ""

    @property
    def says_json(self) -> bool:
        """Whether it says that its body is JSON, which no form of a web page can."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower() == JSON


class HttpResponse(msgspec.Struct, frozen=True):
    """`headers` are names and values beyond those that every answer has."""

    status: int
    body: bytes
    content_type: str = JSON
    headers: tuple[tuple[str, str], ...] = ()


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


def json_response(document: Any, status: int = 200) -> HttpResponse:
    """`document`: a struct of `documents`, or plain values, among which there may be some."""
    return HttpResponse(status, json.dumps(document, default=msgspec.to_builtins).encode())


class HttpConnection(asyncio.Protocol):
    """`handle` answers every readable request and does not raise; `ended` hears of the end."""

    def __init__(self, runtime: Runtime, handle: Handler, ended: Callable[[HttpConnection], None]) -> None:
        self._runtime = runtime
        self._handle = handle
        self._ended = ended
        self._http = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport | None = None
        self._head: h11.Request | None = None
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._idle: asyncio.TimerHandle | None = None
        self._peer, self._is_local = "", False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the interface without the base class.
        self._transport = cast(asyncio.Transport, transport)
        self._peer, self._is_local = _asker(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._stop_waiting()
        self._ended(self)

    def eof_received(self) -> bool:
        return False

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            self._http.receive_data(data)
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint or 400, str(error))

    def _advance(self) -> None:
        while self._transport is not None:
            event = self._http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._stop_waiting()
                self._head = event
                self._body, self._body_bytes = [], 0
            elif isinstance(event, h11.Data):
                self._body_bytes += len(event.data)
                if self._body_bytes > ADMIN_BODY_BYTES_MAX:
                    self._refuse(413, f"a request body holds at most {ADMIN_BODY_BYTES_MAX} bytes")
                    return
                self._body.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                self._begin()
            elif isinstance(event, h11.ConnectionClosed):
                self.close()
                return

    def _begin(self) -> None:
        head = self._head
        assert head is not None, "a body follows its head"
        raw = b"".join(self._body)
        try:
            target = urlsplit(head.target.decode("ascii", "replace"))
            query = {name: values[-1] for name, values in parse_qs(target.query).items()}
        except ValueError as error:
            self._refuse(400, f"the target cannot be read: {error}")
            return
        # A name that comes twice has its values joined, as the standard says; so no second one is overlooked.
        headers: dict[str, str] = {}
        for name, value in head.headers:
            known, text = name.decode("ascii"), value.decode("latin-1")
            headers[known] = f"{headers[known]}, {text}" if known in headers else text
        request = HttpRequest(
            head.method.decode("ascii"),
            unquote(target.path),
            query,
            None,
            headers,
            self._peer,
            self._is_local,
        )
        if raw and request.says_json:
            try:
                # Unlike the standard library's it takes neither half characters nor numbers that are none.
                request = msgspec.structs.replace(request, body=msgspec.json.decode(raw))
            except (ValueError, RecursionError):
                self._refuse(400, "the body is not JSON")
                return
        self._runtime.tasks.spawn(self._answer(request), "admin.request")

    async def _answer(self, request: HttpRequest) -> None:
        response = await self._handle(request)
        self._send(response, with_body=request.method != "HEAD")
        if self._transport is None:
            return
        if self._http.our_state is h11.MUST_CLOSE:
            self.close()
            return
        self._http.start_next_cycle()
        self._await_request()
        try:
            self._advance()
        except h11.RemoteProtocolError as error:
            self._refuse(400, str(error))

    def _refuse(self, status: int, message: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send(json_response({"code": "CONFIGURATION", "message": message}, status), close=True)
        self.close()

    def _send(self, response: HttpResponse, *, with_body: bool = True, close: bool = False) -> None:
        transport = self._transport
        if transport is None:
            return
        headers = [
            ("content-type", response.content_type),
            ("content-length", str(len(response.body))),
            ("cache-control", "no-store"),
            *response.headers,
        ]
        if close:
            headers.append(("connection", "close"))
        head = h11.Response(
            status_code=response.status, headers=headers, reason=_REASONS.get(response.status, b"")
        )
        parts = [self._http.send(head)]
        if with_body:
            parts.append(self._http.send(h11.Data(data=response.body)))
        parts.append(self._http.send(h11.EndOfMessage()))
        transport.write(b"".join(part for part in parts if part))

    def _await_request(self) -> None:
        self._idle = asyncio.get_running_loop().call_later(ADMIN_IDLE_MS / 1000, self.close)

    def _stop_waiting(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None


def _asker(transport: asyncio.BaseTransport) -> tuple[str, bool]:
    """The address of who connected, and whether that is this machine: by loopback, or to an own address."""
    peer, own = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
    host = str(peer[0]) if peer else ""
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host, False
    return host, is_loopback or bool(own and own[0] == host)


def error_document(error: LockstepError) -> dict[str, Any]:
    """How an error is told: code, sentence, hint."""
    return {"code": error.code, "message": error.message, "hint": error.hint}
