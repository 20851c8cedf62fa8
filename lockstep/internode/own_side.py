"""What all connections of one node share: who it is, what it has applied, whom it knows, and what is done to
its links.

Two processes that say they are the same host, or stand at the same address.

Invariant: of two that were both heard lately the one that came first stays; one that was silent for long
gives way, and must introduce itself again. A host is judged by its id when it speaks, and by where it stands
when it is spoken to.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from lockstep.internode import verbs
from lockstep.internode.connection import Connection
from lockstep.internode.frames import ERROR, REPLY, Envelope, encode_frame
from lockstep.internode.handshake import Address, HasEpoch, Hello, PeerInfo, Proofs, refusal
from lockstep.internode.repeated_log import Log, RepeatedLog
from lockstep.internode.ring_marks import RingMarks
from lockstep.internode.verbs import encode_error
from lockstep.runtime.ports import Runtime, Tls
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import FrameCorrupt, NodeExcluded, OtherRing
from lockstep.values.limits import PEER_SILENT_MS


class LinkFaults:
    """What can be done to the messages of a node on purpose; nothing is, until somebody says so.

    `duplicates()`: whether the next frame is sent twice, and again on a later connection."""

    __slots__ = ("blocked_from", "blocked_to", "duplicates")

    def __init__(self, duplicates: Callable[[], bool] | None = None) -> None:
        self.duplicates = duplicates
        #: Nothing is sent to, or nothing is taken from these addresses.
        self.blocked_to: frozenset[Address] = frozenset()
        self.blocked_from: frozenset[Address] = frozenset()

    def cut_off(self, addresses: Iterable[Address]) -> None:
        """Exchange nothing with these from now on, and with all others."""
        self.blocked_to = self.blocked_from = frozenset(addresses)


HELLO_DECODER: Final = decoder(Hello)


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


def conflict(
    incoming: Iterable[Connection], connection: Connection, theirs: Hello, heard_after_s: float
) -> str | None:
    """Why `connection`, which introduces itself as `theirs`, is refused; None when nobody is in its way.

    Those in its way that were not heard since `heard_after_s` are closed.
    """
    silent: list[Connection] = []
    for other in incoming:
        known = other.peer
        if other is connection or known is None:
            continue
        if (known.endpoint == theirs.endpoint) == (known.host_id == theirs.host_id):
            continue  # It is the same process, or they have nothing in common.
        if other.heard_s <= heard_after_s:
            silent.append(other)
        elif known.endpoint == theirs.endpoint:
            return f"address {theirs.address}:{theirs.port} is in use by host {known.host_id}"
        else:
            where = f"{known.address}:{known.port}"
            return f"host {known.host_id} is in use at {where}: a data directory serves one node"
    for other in silent:
        other.close("another process has its address or its host id")
    return None


class LinkSecurity(msgspec.Struct, frozen=True, eq=False):
    """How connections are kept from strangers: what encrypts them, and the secrets of which each end proves
    one, the first by which it says so itself."""

    tls: Tls | None = None
    secrets: tuple[bytes, ...] = ()


OPEN: Final = LinkSecurity()


class OwnSide:
    """`hello` is asked anew for each handshake; `accept` may refuse a peer that passed the general checks;
    `listeners` hear a peer's epoch when it rises or is above this node's own."""

    def __init__(
        self,
        runtime: Runtime,
        hello: Callable[[], Hello],
        newest: HasEpoch,
        accept: Callable[[Hello], str | None],
        log: Log,
        security: LinkSecurity,
        faults: LinkFaults,
    ) -> None:
        self.runtime = runtime
        self.hello = hello
        self.newest = newest
        self._listeners: list[Callable[[PeerInfo, int], object]] = []
        self._refused: list[Callable[[Hello], object]] = []
        self._accept = accept
        self.log = log
        #: For what comes in crowds, at whichever part of this node.
        self.repeated_log = RepeatedLog(log)
        self.tls = security.tls
        self.proofs = Proofs(security.secrets, runtime.random.bytes)
        self.faults = faults
        #: Requests of others that were dropped since their senders waited no more.
        self.expired = 0
        self.excluded = NOBODY
        #: None until this node is of a ring.
        self.marks: RingMarks | None = None
        #: Numbers of requests.
        self.streams = itertools.count(1)
        #: Connections of others, with what ends those that do not introduce themselves.
        self.incoming: dict[Connection, asyncio.TimerHandle | None] = {}

    def judge(self, envelope: Envelope) -> tuple[str | None, Hello | None]:
        """Why the sender of this greeting is refused (or None), and what it said (None: unreadable)."""
        if envelope.flags & ERROR:
            return "refused by the other side", None
        try:
            theirs = HELLO_DECODER.decode(envelope.body)
        except UNREADABLE as error:
            return f"the greeting does not decode: {error}", None
        refused = refusal(self.hello(), theirs)
        if refused is not None:
            for listener in self._refused:
                listener(theirs)
        return refused or self._accept(theirs), theirs

    def conflict(self, connection: Connection, theirs: Hello) -> str | None:
        """Another host that was heard lately holds the same address, or another address the same host."""
        heard_after_s = self.runtime.clock.monotonic_s() - PEER_SILENT_MS / 1000
        return conflict(self.incoming, connection, theirs, heard_after_s)

    def listen(self, listener: Callable[[PeerInfo, int], object]) -> None:
        """Be told (peer, epoch) of each newer epoch that a message brings."""
        self._listeners.append(listener)

    def listen_refused(self, listener: Callable[[Hello], object]) -> None:
        """Be told of each greeting that the general checks refuse."""
        self._refused.append(listener)

    def tell(self, peer: PeerInfo, epoch: int) -> None:
        for listener in self._listeners:
            listener(peer, epoch)

    def see_epoch(self, connection: Connection, epoch: int) -> None:
        """Report a peer's epoch when it rose, or whenever it is above our own."""
        if epoch > connection.peer_epoch:
            connection.peer_epoch = epoch
        elif epoch <= self.newest.epoch:
            connection.settled_epoch = max(connection.settled_epoch, epoch)
            return
        assert connection.peer is not None, "epochs are seen after the handshake"
        self.tell(connection.peer, epoch)

    def mark(self, verb: int) -> int:
        """What goes with a request besides the epoch, where the cluster runs on the ring."""
        if self.marks is None or verb not in verbs.PLANNED:
            return 0
        return self.marks.at(self.newest.epoch)

    def note_ring(self, epoch: int, fingerprint: bytes) -> None:
        if self.marks is None:
            self.marks = RingMarks()
        self.marks.note(epoch, fingerprint)

    def other_ring(self, peer: PeerInfo, envelope: Envelope) -> OtherRing | None:
        """Why a request with this mark is not served; None when it is."""
        if self.marks is None:
            return None
        return self.marks.refusal(peer, envelope.epoch, envelope.mark)

    def challenged(self, connection: Connection, theirs: Hello) -> bool:
        """Answer the first greeting of a dialer with one that asks for its proof; False when it is not the
        first, or can lead to none."""
        if connection.greetings is not None or self.proofs.lacking(theirs) is not None:
            return False
        own = self.proofs.accept(theirs, self.hello())
        connection.greetings = (theirs, own)
        if theirs.endpoint not in self.faults.blocked_to:
            connection.send(encode_frame(verbs.HELLO, 0, self.newest.epoch, REPLY, encode(own)))
        return True

    def unproved(self, connection: Connection, theirs: Hello) -> str | None:
        """Why a dialer is not let in; None once it has proved that it knows the secret."""
        if connection.greetings is None:
            return self.proofs.lacking(theirs)
        return self.proofs.refuse_dialer(*connection.greetings, theirs.proof)

    def answer(self, connection: Connection, verb: int, stream: int, flags: int, body: bytes) -> None:
        """Send a reply frame unless it was one-way (stream 0) or the peer is gone or blocked."""
        peer = connection.peer
        if stream == 0 or connection.closed or peer is None:
            return
        if self.faults.blocked_to and peer.endpoint in self.faults.blocked_to:
            return
        if not connection.room():
            connection.close("the peer does not read its replies", abort=True)
            return
        try:
            if flags == REPLY:
                connection.reply(verb, stream, body)
            else:
                connection.send(encode_frame(verb, stream, self.newest.epoch, flags, body))
        except FrameCorrupt as error:
            connection.send(encode_frame(verb, stream, self.newest.epoch, ERROR, encode_error(error)))
