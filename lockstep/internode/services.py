"""Verbs of one node: how their messages decode, who answers them here, and who is shut out: nothing but what
lets it catch up goes to such a node or is taken from it.

Invariant: a verb is declared once, with one type of request and one of reply, and before it is sent. A host
is judged by its id when it speaks, and by where it stands when it is spoken to.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.shared_requests import SharedRequests
from lockstep.values.codec import decoder
from lockstep.values.errors import NodeExcluded

if TYPE_CHECKING:
    from lockstep.internode.serving import Respond


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


class ExcludedNodes(msgspec.Struct, frozen=True):
    """`hosts` are host ids, `at` their addresses where nobody else stands."""

    hosts: frozenset[str] = frozenset()
    at: frozenset[Address] = frozenset()

    def keeps(self, address: Address, verb: int) -> bool:
        """Whether nothing of `verb` may be sent to `address`."""
        return address in self.at and verb not in verbs.CATCH_UP

    def mutes(self, peer: PeerInfo, verb: int) -> bool:
        """Whether nothing of `verb` is taken from the peer."""
        return peer.host_id in self.hosts and verb not in verbs.CATCH_UP


NOBODY = ExcludedNodes()


def kept_from(address: Address) -> NodeExcluded:
    return NodeExcluded(f"the node at {address[0]}:{address[1]} is excluded from the cluster")


def muted(peer: PeerInfo) -> NodeExcluded:
    hint = f"`lockstep topology exclude {peer.node_id} --undo` once it has caught up"
    return NodeExcluded(f"node {peer.node_id} is excluded from the cluster", hint=hint)
