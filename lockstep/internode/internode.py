"""Messages between nodes: verbs with handlers, requests with deadlines, one connection each way.

Invariants: a node answers only peers that passed its handshake; every frame carries this node's epoch
and every newer epoch seen is reported; `faults` act on
whole frames, so a blocked peer looks exactly like a lost network.

Two processes that say they are the same host, or stand at the same address.

Invariant: of two that were both heard lately the one that came first stays; one that was silent for long
gives way, and must introduce itself again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Protocol

import msgspec

from lockstep.internode import verbs
from lockstep.internode.connection import Connection, Proofs, challenged, unproved
from lockstep.internode.frames import ERROR, ONE_WAY, REPLY, SHARED, Envelope, encode_frame, encode_request
from lockstep.internode.handshake import Address, Hello, PeerInfo, peer_of, refusal
from lockstep.internode.link_faults import LinkFaults
from lockstep.internode.peer import HELLO_DECODER, Lanes, Link, Peer
from lockstep.internode.repeated_log import Log, RepeatedLog
from lockstep.internode.services import NOBODY, Services, kept_from
from lockstep.internode.serving import (
    EXPIRING,
    Respond,
    ask_no_more,
    drop_expired,
    serve_fast,
    serve_later,
    serve_shared,
    unserved,
)
from lockstep.internode.shared_requests import SHARED_REQUEST_BYTES_MAX
from lockstep.internode.verbs import encode_error
from lockstep.internode.waiters import CallbackWaiter, FutureWaiter, Waiter
from lockstep.runtime.ports import Runtime, Server, Tls
from lockstep.values.codec import UNREADABLE, encode
from lockstep.values.errors import FrameCorrupt, HandshakeRefused, LockstepError, PeerUnreachable
from lockstep.values.limits import PEER_CONNECT_TIMEOUT_MS, PEER_SILENT_MS


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


class Receiver(Protocol):
    """Whom `submit_each` sends to."""

    address: Address


Peers = dict[Address, Peer]
#: With the context of each one's answer.
Targets = Sequence[tuple[Address, Any]]


class LinkSecurity(msgspec.Struct, frozen=True, eq=False):
    """How connections are kept from strangers: what encrypts them, and the secrets of which each end proves
    one, the first by which it says so itself."""

    tls: Tls | None = None
    secrets: tuple[bytes, ...] = ()


OPEN: Final = LinkSecurity()


class Internode(Services):
    """All connections of one node incarnation.

    `hello` is asked anew for each handshake; `accept` may refuse a peer that passed the general checks;
    `on_peer_epoch` hears a peer's epoch when it rises or is above this node's own.
    """

    def __init__(
        self,
        runtime: Runtime,
        hello: Callable[[], Hello],
        epoch: Callable[[], int],
        on_peer_epoch: Callable[[PeerInfo, int], None],
        accept: Callable[[Hello], str | None],
        log: Log,
        security: LinkSecurity = OPEN,
        faults: LinkFaults | None = None,
    ) -> None:
        super().__init__()
        self.runtime = runtime
        self.hello = hello
        self.epoch = epoch
        self.told_epoch = on_peer_epoch
        self.log = log
        #: For what comes in crowds, at whichever part of this node.
        self.repeated_log = RepeatedLog(log)
        self.tls = security.tls
        self.proofs = Proofs(security.secrets, runtime.random.bytes)
        self.faults = LinkFaults() if faults is None else faults
        #: Requests of others that were dropped since their senders waited no more.
        self.expired = 0
        self.excluded = NOBODY
        self._accept = accept
        self._peers: dict[Address, Peer] = {}
        self.lanes = Lanes(self)
        self._incoming: dict[Connection, asyncio.TimerHandle | None] = {}
        self._server: Server | None = None
        self._streams = 0
        self._running = False

    # -- life -------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listen for peers. ConfigurationError when the address is in use."""
        listen = self.runtime.network.listen
        self._server = await listen(host, port, self._incoming_connection, self.tls, self._tls_refused)
        self._running = True

    async def stop(self) -> None:
        """Close everything; requests in flight end with PeerTimeout or PeerUnreachable."""
        self._running = False
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self._incoming):
            connection.close("this node stops")
        for peer in [*self._peers.values(), *self.lanes.peers.values()]:
            peer.stop()
        self.repeated_log.stop()
        self._peers, self.lanes.peers = {}, {}

    # -- sending ----------------------------------------------------------------------------------

    async def request(self, address: Address, verb: int, request: Any, timeout_ms: float) -> Any:
        """The peer's reply. PeerUnreachable, NodeExcluded: nothing was done. PeerTimeout: outcome unknown.
        HandshakeRefused, or the error that the peer's handler raised."""
        return await self.begin(address, verb, request, timeout_ms)

    def begin(self, address: Address, verb: int, request: Any, timeout_ms: float) -> asyncio.Future[Any]:
        """As `request`, for whoever has several under way; a cancelled future is not heard of again."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deadline_s = self.runtime.clock.monotonic_s() + timeout_ms / 1000
        self.submit(address, verb, encode(request), deadline_s, FutureWaiter(future), None)
        return future

    def call(
        self,
        address: Address,
        verb: int,
        request: Any,
        deadline_s: float,
        on_reply: Callable[[Any, int], None],
        on_error: Callable[[LockstepError], None],
    ) -> None:
        """As `request` without a task; the deadline is on the monotonic clock. Exactly one of the
        callbacks is called, and not before this returns."""
        self.submit(address, verb, encode(request), deadline_s, CallbackWaiter(on_reply, on_error), None)

    def submit(
        self, address: Address, verb: int, body: bytes, deadline_s: float, waiter: Waiter, context: Any
    ) -> None:
        """Hot path of `call`: an encoded body (shared by several targets), one waiter for all of them."""
        self.submit_by(self._peers, ((address, context),), verb, body, deadline_s, waiter)

    def submit_each(
        self, targets: Sequence[Receiver], verb: int, body: bytes, deadline_s: float, waiter: Waiter
    ) -> None:
        """The same frame to several receivers, each being the context of its own answer."""
        pairs = [(target.address, target) for target in targets]
        self.submit_by(self._peers, pairs, verb, body, deadline_s, waiter)

    def submit_by(
        self, peers: Peers, targets: Targets, verb: int, body: bytes, deadline_s: float, waiter: Waiter
    ) -> None:
        service = self._services.get(verb)
        assert service is not None, f"verb {verb} is declared before it is sent"
        now_s = self.runtime.clock.monotonic_s()
        if deadline_s <= now_s and verb in EXPIRING:
            ask_no_more(targets, waiter)
            return
        stream = self.next_stream()
        shares = service.shared_decoder is not None and len(body) <= SHARED_REQUEST_BYTES_MAX
        frame = b"" if shares else encode_request(verb, stream, self.epoch(), body, now_s, deadline_s)
        for address, context in targets:
            if self.excluded.at and self.excluded.keeps(address, verb):
                asyncio.get_running_loop().call_soon(waiter.failed, context, kept_from(address))
                continue
            peer = peers.get(address) or self._new_peer(address, peers)
            if peer is None:
                error = PeerUnreachable("this node's internode service is not running")
                asyncio.get_running_loop().call_soon(waiter.failed, context, error)
            else:
                peer.submit(stream, verb, body, frame, deadline_s, waiter, context, service.reply_decoder)

    def send(self, address: Address, verb: int, message: Any) -> None:
        """One-way, best effort, in order while the connection lasts."""
        peer = self._peers.get(address) or self._new_peer(address, self._peers)
        if peer is not None and not self.excluded.keeps(address, verb):
            peer.send_one_way(verb, encode(message))

    def connected(self, address: Address) -> bool:
        """Whether an outgoing connection is open and not blocked either way."""
        peer = self._peers.get(address)
        open_ = peer is not None and peer.link is Link.OPEN
        return open_ and address not in self.faults.blocked_to and address not in self.faults.blocked_from

    def peer(self, address: Address) -> PeerInfo | None:
        """Who answered at `address`, while connected."""
        found = self._peers.get(address)
        return found.info if found is not None else None

    def introduce(self) -> None:
        """Tell all open peers this node's new identity (it was given an id, or joined a cluster)."""
        for peer in [*self._peers.values(), *self.lanes.peers.values()]:
            peer.introduce()

    def next_stream(self) -> int:
        self._streams += 1
        return self._streams

    def _new_peer(self, address: Address, peers: dict[Address, Peer]) -> Peer | None:
        """None before the start and after the stop."""
        if not self._running:
            return None
        peer = peers[address] = Peer(self, address)
        return peer

    # -- incoming connections ---------------------------------------------------------------------

    def _incoming_connection(self) -> Connection:
        connection = Connection(self, self.runtime)
        loop = asyncio.get_running_loop()
        limit_s = PEER_CONNECT_TIMEOUT_MS / 1000
        self._incoming[connection] = loop.call_later(limit_s, self._greeting_missed, connection)
        return connection

    def _tls_refused(self, reason: str) -> None:
        self.repeated_log.note("internode.tls_refused", reason, facts=lambda: {"reason": reason})

    def _greeting_missed(self, connection: Connection) -> None:
        self._incoming[connection] = None
        if connection.peer is None:
            connection.close("no handshake in time", abort=True)

    def judge(self, envelope: Envelope) -> tuple[str | None, Hello | None]:
        """Why the sender of this greeting is refused (or None), and what it said (None: unreadable)."""
        if envelope.flags & ERROR:
            return "refused by the other side", None
        try:
            theirs = HELLO_DECODER.decode(envelope.body)
        except UNREADABLE as error:
            return f"the greeting does not decode: {error}", None
        return refusal(self.hello(), theirs) or self._accept(theirs), theirs

    def hello_received(self, connection: Connection, envelope: Envelope) -> None:
        """A peer introduces itself, or an introduced peer tells its new identity."""
        reason, theirs = self.judge(envelope)
        if theirs is not None and theirs.endpoint in self.faults.blocked_from:
            return
        if theirs is not None and reason is None:
            reason = self.conflict(connection, theirs)
            if reason is None and connection.peer is None and self.proofs.required:
                if challenged(self, connection, theirs):
                    return
                reason = unproved(self, connection, theirs)
        if reason is not None or theirs is None:
            who = f"{theirs.address}:{theirs.port}" if theirs is not None else "unknown"
            told = {"peer": who, "reason": reason}
            self.repeated_log.note("internode.refused", who, reason, facts=lambda: told)
            own = self.hello()
            error = HandshakeRefused(f"{own.address}:{own.port} refuses {who}: {reason}")
            connection.send(encode_frame(verbs.HELLO, 0, self.epoch(), ERROR, encode_error(error)))
            connection.close(f"refused: {reason}")
            return
        introduced = connection.peer is not None or connection.greetings is not None
        connection.peer = peer_of(theirs)
        connection.peer_epoch = max(connection.peer_epoch, envelope.epoch)
        if not introduced and theirs.endpoint not in self.faults.blocked_to:
            connection.send(encode_frame(verbs.HELLO, 0, self.epoch(), REPLY, encode(self.hello())))
        for peers in (self._peers, self.lanes.peers):
            peer = peers.get(theirs.endpoint)
            if peer is not None:
                peer.wake()
        self.told_epoch(connection.peer, envelope.epoch)

    def conflict(self, connection: Connection, theirs: Hello) -> str | None:
        """Another host that was heard lately holds the same address, or another address the same host."""
        heard_after_s = self.runtime.clock.monotonic_s() - PEER_SILENT_MS / 1000
        return conflict(self._incoming, connection, theirs, heard_after_s)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        timer = self._incoming.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.peer is None:
            self.log("internode.stranger_closed", reason=reason)

    # -- serving ----------------------------------------------------------------------------------

    def see_epoch(self, connection: Connection, epoch: int) -> None:
        """Report a peer's epoch when it rose, or whenever it is above our own."""
        if epoch > connection.peer_epoch:
            connection.peer_epoch = epoch
        elif epoch <= self.epoch():
            connection.settled_epoch = max(connection.settled_epoch, epoch)
            return
        assert connection.peer is not None, "epochs are seen after the handshake"
        self.told_epoch(connection.peer, epoch)

    def frame_received(self, connection: Connection, envelope: Envelope) -> None:
        peer = connection.peer
        assert peer is not None, "frames come after the handshake"
        if self.faults.blocked_from and peer.endpoint in self.faults.blocked_from:
            return
        if envelope.epoch > connection.settled_epoch:
            self.see_epoch(connection, envelope.epoch)
        verb, stream = envelope.verb, envelope.stream
        service = self._services.get(verb)
        if envelope.left_ms and verb in EXPIRING and connection.is_expired(envelope):
            drop_expired(self, connection, service, envelope)
            return
        if envelope.flags & SHARED:
            serve_shared(self, connection, peer, service, envelope)
            return
        connection.serving += 1
        respond = Respond(self, connection, verb, 0 if envelope.flags & ONE_WAY else stream)
        if service is None or (service.fast is None and service.handler is None):
            respond(PeerUnreachable(f"verb {verb} is not served here"))
            return
        if (refused := unserved(self, connection, peer, verb)) is not None:
            respond(refused)
            return
        try:
            request = service.request_decoder.decode(envelope.body)
        except UNREADABLE as error:
            connection.close(f"a {verbs.NAMES.get(verb, verb)} message does not decode: {error}")
            return
        if service.fast is None:
            work = serve_later(service, peer, request, respond)
            self.runtime.tasks.spawn(work, f"internode-{verbs.NAMES.get(verb, str(verb))}")
            return
        serve_fast(self, service, peer, request, respond)
        if envelope.flags & ONE_WAY:
            respond.release()  # its handler may well say nothing

    def raw_follows(self, connection: Connection, envelope: Envelope, body: bytes) -> None:
        raise FrameCorrupt("raw bytes came on a connection for requests")

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
                connection.send(encode_frame(verb, stream, self.epoch(), flags, body))
        except FrameCorrupt as error:
            connection.send(encode_frame(verb, stream, self.epoch(), ERROR, encode_error(error)))
