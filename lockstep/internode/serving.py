"""How what one connection brought is served: by a task of its own, or several requests in one step.

Invariant: each request is answered; a defect in a handler is reported and answered, and ends nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from lockstep.internode import verbs
from lockstep.internode.connection import Connection
from lockstep.internode.exclusion import muted
from lockstep.internode.frames import SHARED, Envelope
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.responding import Respond
from lockstep.internode.services import Service
from lockstep.internode.shared_requests import SHARED_STREAMS
from lockstep.internode.waiters import Waiter
from lockstep.values.codec import UNREADABLE
from lockstep.values.errors import LockstepError, Overloaded, PeerTimeout, ServerFault
from lockstep.values.limits import PEER_REQUESTS_SERVED_MAX

if TYPE_CHECKING:
    from lockstep.internode.internode import Internode


#: Requests that are not sent, and are dropped unread, once their senders wait no more. What a dropped write
#: leaves out its coordinator's hint brings, as for any replica that does not answer.
EXPIRING: Final = (verbs.WRITE, verbs.READ)


def ask_no_more(targets: Iterable[tuple[Address, Any]], waiter: Waiter) -> None:
    """This loop stood still until the time of a request was over: nobody is asked, and `waiter` hears so."""
    for (host, port), context in targets:
        error = PeerTimeout(f"{host}:{port} was not asked in time")
        asyncio.get_running_loop().call_soon(waiter.failed, context, error)


def drop_expired(
    node: Internode, connection: Connection, service: Service[Any, Any] | None, envelope: Envelope
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
        Respond(node, connection, envelope.verb, stream)(Overloaded("it waited for too long at this replica"))


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
    node: Internode, service: Service[Any, Any], peer: PeerInfo, request: Any, respond: Respond
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


def unserved(node: Internode, connection: Connection, peer: PeerInfo, verb: int) -> LockstepError | None:
    """Why nothing of this peer is served now."""
    if node.shut_out.hosts and node.shut_out.mutes(peer, verb):
        return muted(peer)
    if connection.serving > PEER_REQUESTS_SERVED_MAX:
        return Overloaded("too many requests of this peer are being answered")
    return None


def serve_shared(
    node: Internode,
    connection: Connection,
    peer: PeerInfo,
    service: Service[Any, Any] | None,
    envelope: Envelope,
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
    refused = unserved(node, connection, peer, verb)
    for stream, request in zip(streams, requests, strict=True):
        respond = Respond(node, connection, verb, stream)
        if refused is None:
            serve_fast(node, service, peer, request, respond)
        else:
            respond(refused)
