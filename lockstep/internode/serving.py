"""Verbs of one node, how their messages decode and who answers them here; how what one connection brought is
served, by a task of its own or several requests in one, and answered, one by one or to many at once.

Invariant: a verb is declared once, with one type of request and one of reply, and before it is sent. Each
request is answered; a defect in a handler is reported and answered, and ends nothing else. A request is
answered at most once, and counts as being answered until then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from math import inf
from typing import Any, Final, Generic, TypeVar

import msgspec

from lockstep.internode import verbs
from lockstep.internode.connection import Connection, FileReply
from lockstep.internode.frames import ERROR, REPLY, SHARED, Envelope
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.own_side import OwnSide, muted
from lockstep.internode.peer import SHARED_STREAMS, SharedRequests
from lockstep.internode.verbs import encode_error
from lockstep.internode.waiters import Waiter
from lockstep.values.codec import UNREADABLE, Decoder, decoder, encode
from lockstep.values.errors import LockstepError, Overloaded, PeerTimeout, ServerFault
from lockstep.values.limits import PEER_REQUESTS_SERVED_MAX

#: In place of a stream: whoever answers now is not heard.
_RELEASED: Final = -1


class Respond(msgspec.Struct, eq=False):
    """Answers one request, once; a call after the peer is gone is dropped."""

    _node: OwnSide
    _connection: Connection
    _verb: int
    _stream: int
    is_open: bool = True
    #: Until when somebody waits for the answer, by this node's clock.
    until_s: float = inf

    def __call__(self, reply: Any) -> None:
        """Send `reply`; a LockstepError is raised at the requester."""
        assert self.is_open, "a request is answered once"
        self.is_open = False
        if self._stream == _RELEASED:
            return
        connection = self._connection
        connection.serving -= 1
        if isinstance(reply, FileReply):
            answer_raw(self._node, connection, self._verb, self._stream, reply)
        elif isinstance(reply, LockstepError):
            self._note(reply)
            self._node.answer(connection, self._verb, self._stream, ERROR, encode_error(reply))
        else:
            self._node.answer(connection, self._verb, self._stream, REPLY, encode(reply))

    def _note(self, error: LockstepError) -> None:
        """This node refuses a request of another one, or failed at it."""
        peer, verb = self._connection.peer, verbs.NAMES.get(self._verb, str(self._verb))
        asker = peer.node_id if peer is not None else 0

        def facts() -> dict[str, Any]:
            return {"verb": verb, "of_node": asker, "code": error.code, "reason": error.message}

        self._node.repeated_log.note("internode.request_refused", verb, error.code, facts=facts)

    def release(self) -> None:
        """Nobody waits: the request no longer counts as being answered, whether or not it ever is."""
        if self.is_open and self._stream != _RELEASED:
            self._stream = _RELEASED
            self._connection.serving -= 1

    @staticmethod
    def all(answers: Iterable[Respond], reply: Any) -> None:
        """As each of them called with this one `reply`, which is no error."""
        body = encode(reply)
        #: (connection, verb) -> the streams; a connection is of one node.
        crowds: dict[tuple[Connection, int], tuple[OwnSide, list[int]]] = {}
        for answer in answers:
            assert answer.is_open, "a request is answered once"
            answer.is_open = False
            stream = answer._stream
            if stream == _RELEASED:
                continue
            crowd = crowds.get((answer._connection, answer._verb))
            if crowd is None:
                crowds[answer._connection, answer._verb] = (answer._node, [stream])
            else:
                crowd[1].append(stream)
        for (connection, verb), (node, streams) in crowds.items():
            connection.serving -= len(streams)
            goes_together = connection.shares(body) and 0 not in streams
            if goes_together and not node.faults.blocked_to:
                connection.reply_all(verb, streams, body)
                continue
            for stream in streams:
                node.answer(connection, verb, stream, REPLY, body)


def answer_raw(node: OwnSide, connection: Connection, verb: int, stream: int, content: FileReply) -> None:
    """Send a reply and the part of a file behind it, unless the peer is gone or blocked."""
    peer = connection.peer
    if stream == 0 or connection.closed or peer is None or peer.endpoint in node.faults.blocked_to:
        content.file.close()
    else:
        connection.reply_raw(verb, stream, encode(content.reply), content)


Q = TypeVar("Q")
A = TypeVar("A")

AsyncHandler = Callable[[PeerInfo, Any], Awaitable[Any]]
FastHandler = Callable[[PeerInfo, Any, Respond], None]


class Service(Generic[Q, A]):
    """One verb: how its messages decode and who answers them here."""

    __slots__ = (
        "fast",
        "handler",
        "reply_decoder",
        "request_decoder",
        "shared_decoder",
        "verb",
    )

    def __init__(self, verb: int, request_type: type[Q], reply_type: type[A]) -> None:
        self.verb = verb
        self.request_decoder = decoder(request_type)
        self.reply_decoder = decoder(reply_type)
        self.handler: AsyncHandler | None = None
        self.fast: FastHandler | None = None
        #: Of frames that hold several requests, where the verb has such.
        self.shared_decoder: Decoder[SharedRequests[Q]] | None = None


class Services:
    """What a node understands; Internode adds the connections."""

    def __init__(self) -> None:
        self._services: dict[int, Service[Any, Any]] = {}

    def declare(self, verb: int, request_type: type[Q], reply_type: type[A]) -> None:
        """Make `verb` known for sending only."""
        assert verb != verbs.HELLO and verb not in self._services, f"verb {verb} is declared once"
        self._services[verb] = Service(verb, request_type, reply_type)

    def register(
        self,
        verb: int,
        request_type: type[Q],
        reply_type: type[A],
        handler: Callable[[PeerInfo, Q], Awaitable[A]],
    ) -> None:
        """Answer `verb` with an async handler, one task a request; its LockstepErrors travel back."""
        if verb not in self._services:
            self.declare(verb, request_type, reply_type)
        self._services[verb].handler = handler

    def register_fast(
        self,
        verb: int,
        request_type: type[Q],
        reply_type: type[A],
        handler: Callable[[PeerInfo, Q, Respond], None],
        *,
        shares: bool = False,
    ) -> None:
        """Answer `verb` without a task: the handler calls `respond` once, now or later, with a reply or
        a LockstepError. One-way messages of the verb get a `respond` whose answer is dropped.

        With `shares`, small requests to one peer leave several in a frame; the handler gets them one by one.
        """
        if verb not in self._services:
            self.declare(verb, request_type, reply_type)
        service = self._services[verb]
        service.fast = handler
        if shares:
            service.shared_decoder = decoder(SharedRequests[request_type])  # type: ignore[valid-type]


#: Requests that are not sent, and are dropped unread, once their senders wait no more. What a dropped write
#: leaves out its coordinator's hint brings, as for any replica that does not answer.
EXPIRING: Final = (verbs.WRITE, verbs.READ)


def ask_no_more(targets: Iterable[tuple[Address, Any]], waiter: Waiter) -> None:
    """This loop stood still until the time of a request was over: nobody is asked, and `waiter` hears so."""
    for (host, port), context in targets:
        error = PeerTimeout(f"{host}:{port} was not asked in time")
        asyncio.get_running_loop().call_soon(waiter.failed, context, error)


def waited_too_long() -> Overloaded:
    return Overloaded("it waited for too long at this replica")


def drop_expired(
    node: OwnSide, connection: Connection, service: Service[Any, Any] | None, envelope: Envelope
) -> None:
    """Refuse requests that waited here, or on their way, until nobody waits for their answers."""
    streams = [envelope.stream]
    if envelope.flags & SHARED and service is not None and service.shared_decoder is not None:
        try:
            streams = SHARED_STREAMS.decode(envelope.body)[0]
        except UNREADABLE as error:
            connection.close(f"expired messages do not decode: {error}")
            return
    node.expired += len(streams)
    node.runtime.probes.reach("internode.expired")
    connection.serving += len(streams)
    for stream in streams:
        Respond(node, connection, envelope.verb, stream)(waited_too_long())


async def report(error: Exception) -> None:
    """Let the owner of tasks hear of a defect in a handler that has no task."""
    raise error


async def serve_later(service: Service[Any, Any], peer: PeerInfo, request: Any, respond: Respond) -> None:
    assert service.handler is not None, "an async verb has a handler"
    try:
        reply = await service.handler(peer, request)
    except LockstepError as error:
        reply = error
    except Exception as error:
        # A defect: the requester gets a definite answer, the task's owner gets the report.
        respond(ServerFault(f"{verbs.NAMES.get(service.verb)} failed: {type(error).__name__}"))
        raise
    respond(reply)


def serve_fast(
    node: OwnSide, service: Service[Any, Any], peer: PeerInfo, request: Any, respond: Respond
) -> None:
    """In this step, as far as the handler goes."""
    assert service.fast is not None, "a fast verb has a handler"
    try:
        service.fast(peer, request, respond)
    except LockstepError as error:
        respond(error)
    except Exception as error:
        # A defect: the requester gets a definite answer, and other requests keep their connection.
        name = verbs.NAMES.get(service.verb, str(service.verb))
        node.runtime.tasks.spawn(report(error), f"internode-{name}")
        if respond.is_open:
            respond(ServerFault(f"{name} failed: {type(error).__name__}"))


def unserved(
    node: OwnSide, connection: Connection, peer: PeerInfo, envelope: Envelope
) -> LockstepError | None:
    """Why nothing of this peer is served now, or not what it planned."""
    if node.excluded.hosts and node.excluded.mutes(peer, envelope.verb):
        return muted(peer)
    if envelope.mark and (other := node.other_ring(peer, envelope)) is not None:
        node.runtime.probes.reach("internode.other_ring")
        return other
    if connection.serving > PEER_REQUESTS_SERVED_MAX:
        return Overloaded("too many requests of this peer are being answered")
    return None


def serve_shared(
    node: OwnSide,
    connection: Connection,
    peer: PeerInfo,
    service: Service[Any, Any] | None,
    envelope: Envelope,
    until_s: float,
) -> None:
    """Several requests in one frame: each is served as if it came alone."""
    verb, name = envelope.verb, verbs.NAMES.get(envelope.verb, envelope.verb)
    if service is None or service.fast is None or service.shared_decoder is None:
        connection.close(f"{name} messages do not share a frame")
        return
    try:
        shared = service.shared_decoder.decode(envelope.body)
    except UNREADABLE as error:
        connection.close(f"{name} messages do not decode: {error}")
        return
    streams, requests = shared.streams, shared.requests
    if len(streams) != len(requests):
        connection.close(f"{len(requests)} {name} messages came for {len(streams)} streams")
        return
    node.runtime.probes.reach("internode.shared")
    connection.serving += len(streams)
    refused = unserved(node, connection, peer, envelope)
    for stream, request in zip(streams, requests, strict=True):
        respond = Respond(node, connection, verb, stream, True, until_s)
        if refused is None:
            serve_fast(node, service, peer, request, respond)
        else:
            respond(refused)
