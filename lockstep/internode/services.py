"""Verbs of one node: how their messages decode and who answers them here.

Invariant: a verb is declared once, with one type of request and one of reply, and before it is sent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import PeerInfo
from lockstep.internode.shared_requests import SharedRequests
from lockstep.values.codec import decoder

if TYPE_CHECKING:
    from lockstep.internode.responding import Respond

Q = TypeVar("Q")
A = TypeVar("A")

AsyncHandler = Callable[[PeerInfo, Any], Awaitable[Any]]
FastHandler = Callable[[PeerInfo, Any, "Respond"], None]


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
        self.shared_decoder: msgspec.msgpack.Decoder[SharedRequests[Q]] | None = None


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
