"""Messages between nodes: verbs with handlers, requests with deadlines, one connection each way.

Invariants: a node answers only peers that passed its handshake; every frame carries this node's epoch
and every newer epoch seen is reported; `faults` act on whole frames, so a blocked peer looks exactly like a
lost network.

Lanes are a node's second connections, for raw bytes: no other message waits behind those. Only requests whose
replies raw bytes may follow go out on a lane.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from lockstep.internode import verbs
from lockstep.internode.connection import Connection
from lockstep.internode.frames import ERROR, ONE_WAY, REPLY, SHARED, Envelope, encode_frame, encode_request
from lockstep.internode.handshake import Address, HasEpoch, Hello, PeerInfo, peer_of
from lockstep.internode.own_side import OPEN, LinkFaults, LinkSecurity, OwnSide, kept_from
from lockstep.internode.peer import SHARED_REQUEST_BYTES_MAX, Link, Peer
from lockstep.internode.repeated_log import Log
from lockstep.internode.serving import (
    EXPIRING,
    Respond,
    Services,
    ask_no_more,
    drop_expired,
    serve_fast,
    serve_later,
    serve_shared,
    unserved,
)
from lockstep.internode.verbs import encode_error
from lockstep.internode.waiters import CallbackWaiter, FutureWaiter, RawWaiter, Waiter
from lockstep.runtime.ports import Runtime, Server
from lockstep.values.codec import UNREADABLE, encode
from lockstep.values.errors import FrameCorrupt, HandshakeRefused, LockstepError, PeerUnreachable
from lockstep.values.limits import PEER_CONNECT_TIMEOUT_MS


class Receiver(Protocol):
    """Whom `submit_each` sends to."""

    address: Address


Peers = dict[Address, Peer]
#: With the context of each one's answer.
Targets = Sequence[tuple[Address, Any]]


class Lanes:
    def __init__(self, node: Internode) -> None:
        self._node = node
        self.peers: dict[Address, Peer] = {}

    def begin(
        self,
        address: Address,
        verb: int,
        request: Any,
        timeout_ms: float,
        take: Callable[[memoryview], None],
    ) -> asyncio.Future[Any]:
        """As the node's `begin`. The reply is told when `take`, in a thread, got all raw bytes behind it; the
        timeout ends where they begin."""
        node = self._node
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        deadline_s = node.runtime.clock.monotonic_s() + timeout_ms / 1000
        waiter = RawWaiter(future, take)
        node.submit_by(self.peers, ((address, None),), verb, encode(request), deadline_s, waiter)
        return future

    def close(self, address: Address) -> None:
        """End the connection, if there is one."""
        lane = self.peers.pop(address, None)
        if lane is not None:
            lane.stop()


class Internode(Services):
    """All connections of one node incarnation.

    `hello` is asked anew for each handshake; `accept` may refuse a peer that passed the general checks.
    """

    def __init__(
        self,
        runtime: Runtime,
        hello: Callable[[], Hello],
        newest: HasEpoch,
        accept: Callable[[Hello], str | None],
        log: Log,
        security: LinkSecurity = OPEN,
        faults: LinkFaults | None = None,
    ) -> None:
        super().__init__()
        self.faults = LinkFaults() if faults is None else faults
        own = OwnSide(runtime, hello, newest, accept, log, security, self.faults)
        self.own = own
        self.runtime, self.newest, self.log, self.repeated_log = runtime, newest, log, own.repeated_log
        self._peers: dict[Address, Peer] = {}
        self.lanes = Lanes(self)
        self._server: Server | None = None
        self._running = False

    # -- life -------------------------------------------------------------------------------------

    async def start(self, host: str, port: int) -> None:
        """Listen for peers. ConfigurationError when the address is in use."""
        listen = self.runtime.network.listen
        self._server = await listen(host, port, self._incoming_connection, self.own.tls, self._tls_refused)
        self._running = True

    async def stop(self) -> None:
        """Close everything; requests in flight end with PeerTimeout or PeerUnreachable."""
        self._running = False
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.own.incoming):
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
        stream = next(self.own.streams)
        shares = service.shared_decoder is not None and len(body) <= SHARED_REQUEST_BYTES_MAX
        epoch, mark = self.newest.epoch, self.own.mark(verb) if self.own.marks is not None else 0
        frame = b"" if shares else encode_request(verb, stream, epoch, body, now_s, deadline_s, mark=mark)
        for address, context in targets:
            if self.own.excluded.at and self.own.excluded.keeps(address, verb):
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
        if peer is not None and not self.own.excluded.keeps(address, verb):
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

    def _new_peer(self, address: Address, peers: dict[Address, Peer]) -> Peer | None:
        """None before the start and after the stop."""
        if not self._running:
            return None
        peer = peers[address] = Peer(self.own, address)
        return peer

    # -- incoming connections ---------------------------------------------------------------------

    def _incoming_connection(self) -> Connection:
        connection = Connection(self, self.runtime)
        loop = asyncio.get_running_loop()
        limit_s = PEER_CONNECT_TIMEOUT_MS / 1000
        self.own.incoming[connection] = loop.call_later(limit_s, self._greeting_missed, connection)
        return connection

    def _tls_refused(self, reason: str) -> None:
        self.repeated_log.note("internode.tls_refused", reason, facts=lambda: {"reason": reason})

    def _greeting_missed(self, connection: Connection) -> None:
        self.own.incoming[connection] = None
        if connection.peer is None:
            connection.close("no handshake in time", abort=True)

    def hello_received(self, connection: Connection, envelope: Envelope) -> None:
        """A peer introduces itself, or an introduced peer tells its new identity."""
        reason, theirs = self.own.judge(envelope)
        if theirs is not None and theirs.endpoint in self.faults.blocked_from:
            return
        if theirs is not None and reason is None:
            reason = self.own.conflict(connection, theirs)
            if reason is None and connection.peer is None and self.own.proofs.required:
                if self.own.challenged(connection, theirs):
                    return
                reason = self.own.unproved(connection, theirs)
        if reason is not None or theirs is None:
            who = f"{theirs.address}:{theirs.port}" if theirs is not None else "unknown"
            told = {"peer": who, "reason": reason}
            self.repeated_log.note("internode.refused", who, reason, facts=lambda: told)
            own = self.own.hello()
            error = HandshakeRefused(f"{own.address}:{own.port} refuses {who}: {reason}")
            connection.send(encode_frame(verbs.HELLO, 0, self.newest.epoch, ERROR, encode_error(error)))
            connection.close(f"refused: {reason}")
            return
        introduced = connection.peer is not None or connection.greetings is not None
        connection.peer = peer_of(theirs)
        connection.peer_epoch = max(connection.peer_epoch, envelope.epoch)
        if not introduced and theirs.endpoint not in self.faults.blocked_to:
            connection.send(encode_frame(verbs.HELLO, 0, self.newest.epoch, REPLY, encode(self.own.hello())))
        for peers in (self._peers, self.lanes.peers):
            peer = peers.get(theirs.endpoint)
            if peer is not None:
                peer.wake()
        self.own.tell(connection.peer, envelope.epoch)

    def connection_closed(self, connection: Connection, reason: str) -> None:
        timer = self.own.incoming.pop(connection, None)
        if timer is not None:
            timer.cancel()
        if connection.peer is None:
            self.log("internode.stranger_closed", reason=reason)

    # -- serving ----------------------------------------------------------------------------------

    def frame_received(self, connection: Connection, envelope: Envelope) -> None:
        own, peer = self.own, connection.peer
        assert peer is not None, "frames come after the handshake"
        if self.faults.blocked_from and peer.endpoint in self.faults.blocked_from:
            return
        if envelope.epoch > connection.settled_epoch:
            own.see_epoch(connection, envelope.epoch)
        verb, stream = envelope.verb, envelope.stream
        service = self._services.get(verb)
        until_s = inf
        if envelope.left_ms and verb in EXPIRING:
            until_s = connection.waits_until_s(envelope)
            if until_s < connection.heard_s:
                drop_expired(own, connection, service, envelope)
                return
        if envelope.flags & SHARED:
            serve_shared(own, connection, peer, service, envelope, until_s)
            return
        connection.serving += 1
        respond = Respond(own, connection, verb, 0 if envelope.flags & ONE_WAY else stream, True, until_s)
        if service is None or (service.fast is None and service.handler is None):
            respond(PeerUnreachable(f"verb {verb} is not served here"))
            return
        if (refused := unserved(own, connection, peer, envelope)) is not None:
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
        serve_fast(own, service, peer, request, respond)
        if envelope.flags & ONE_WAY:
            respond.release()  # its handler may well say nothing

    def raw_follows(self, connection: Connection, envelope: Envelope, body: bytes) -> None:
        raise FrameCorrupt("raw bytes came on a connection for requests")
