"""One internode byte stream: coalesced writes, checked reads, the handshake's state, and how two nodes prove
to each other that both know the cluster's join secret, which neither says.

How long a message waited on its way, from the sender's own clock.

The clocks of two nodes differ by something unknown, so the difference between sending and receiving says
nothing. How much larger it is than the smallest one seen lately says how much longer than the fastest message
this one took.

The dialer greets with a nonce; the acceptor greets back with its own and a proof; the dialer answers with its
proof, and only then is served. A proof is an HMAC over both nonces, who the two are, and which side it is of,
so that it is worth nothing in any other handshake and cannot be sent back to whom it came from.

Invariant: no frame but HELLO is handed to the owner before the handshake succeeded; after a corrupt frame
nothing more is read; what one loop tick sends goes out in one write. Apart from the drift of clocks within
DELAY_WINDOW_S a delay is never told too long. With a secret, nothing but greetings passes before both proofs
were checked. It keeps strangers out; against who alters what passes between nodes only TLS helps.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from lockstep.internode import verbs
from lockstep.internode.frames import (
    RAW,
    REPLY,
    SHARED,
    Envelope,
    FrameReader,
    SharedReply,
    encode_frame,
    encode_raw_frame,
    raw_body,
)
from lockstep.internode.handshake import Hello, PeerInfo
from lockstep.internode.raw_bytes import FileReply, RawReceiver, RawSender
from lockstep.internode.verbs import HELLO
from lockstep.internode.waiters import RawWaiter
from lockstep.runtime.ports import Runtime
from lockstep.values.codec import encode
from lockstep.values.errors import FrameCorrupt
from lockstep.values.limits import PEER_QUEUED_BYTES_MAX, RAW_SILENT_MS
from lockstep.values.node_limits import EXPIRED_SLACK_MS

if TYPE_CHECKING:
    from lockstep.internode.internode import Internode


#: The smallest difference is of the last one or two such times: clocks drift by some ms a minute at worst.
DELAY_WINDOW_S: Final = 30.0


class QueueingDelay:
    """Of the messages of one connection."""

    __slots__ = ("_before_s", "_least_s", "_until_s")

    def __init__(self) -> None:
        self._before_s: float | None = None
        self._least_s: float | None = None
        self._until_s = 0.0

    def delay_s(self, sent_s: float, now_s: float) -> float:
        """How much longer than the fastest lately a message took that was sent then and is read now."""
        took_s = now_s - sent_s
        if now_s >= self._until_s:
            self._until_s = now_s + DELAY_WINDOW_S
            self._before_s, self._least_s = self._least_s, took_s
        if self._least_s is None or took_s < self._least_s:
            self._least_s = took_s
        least_s = self._least_s if self._before_s is None else min(self._least_s, self._before_s)
        return took_s - least_s


#: Longer replies are rarely equal, and comparing them would cost more than a frame.
SHARED_BODY_BYTES_MAX: Final = 32
#: Above this, queued frames go out one by one instead of as one write: each is large, or they are many.
WRITE_BYTES_COALESCED: Final = 256 * 1024
#: What a queued small reply counts towards the backlog.
REPLY_BYTES: Final = 40
#: How often a transport is looked at that has yet to write something before raw bytes.
DRAIN_MS: Final = 1


class Owner(Protocol):
    """What a connection tells and asks; both directions implement it."""

    def epoch(self) -> int: ...

    def hello_received(self, connection: Connection, envelope: Envelope) -> None: ...

    def frame_received(self, connection: Connection, envelope: Envelope) -> None: ...

    def raw_follows(self, connection: Connection, envelope: Envelope, body: bytes) -> RawWaiter | None:
        """Who takes the raw bytes behind this frame of a reply `body`; nobody: they are dropped."""
        ...

    def connection_closed(self, connection: Connection, reason: str) -> None: ...


class Connection(asyncio.Protocol):
    def __init__(self, owner: Owner, runtime: Runtime) -> None:
        self._owner = owner
        self._clock = runtime.clock
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._raw_out = RawSender(self, runtime)
        self._raw_in = RawReceiver(self, runtime)
        #: Small replies of this tick: (verb, body) -> streams.
        self._replies: dict[tuple[int, bytes], list[int]] = {}
        self._out_bytes = 0
        #: Has more to send in this tick, and is asked for it before the write.
        self._before_flush: Callable[[], None] | None = None
        self._paused = False
        self._reason = "closed by the other side"
        #: Identity from the handshake; None until it succeeded.
        self.peer: PeerInfo | None = None
        #: Both sides' greetings, of a connection whose dialer is to prove itself or has.
        self.greetings: tuple[Hello, Hello] | None = None
        #: Whether it takes several requests in one frame, by its handshake.
        self.takes_shared = False
        #: Highest epoch this connection's peer has shown.
        self.peer_epoch = 0
        #: Highest epoch seen here that this node had applied by then: of such nothing is to be told.
        self.settled_epoch = 0
        #: Requests of the peer that are being answered.
        self.serving = 0
        self.heard_s = self._clock.monotonic_s()
        self._delay = QueueingDelay()
        self.closed = False

    # -- asyncio.Protocol -------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport = transport  # type: ignore[assignment]
        if self.closed:
            transport.close()
        else:
            self.flush()

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self.heard_s = self._clock.monotonic_s()
        try:
            envelopes = self._reader.feed(data)
        except FrameCorrupt as error:
            self.close(error.message)
            return
        owner = self._owner
        for envelope in envelopes:
            if self.closed:
                return
            if envelope.verb == verbs.HELLO:
                owner.hello_received(self, envelope)
            elif self.peer is not None:
                if envelope.flags & RAW:
                    self._raw_follows(envelope)
                    return
                owner.frame_received(self, envelope)
            else:
                self.close("a message came before the handshake")

    def is_expired(self, envelope: Envelope) -> bool:
        """Whether who sent this request, which was read just now, waits no more."""
        delay_s = self._delay.delay_s(envelope.sent_ms / 1000, self.heard_s)
        return delay_s * 1000 > envelope.left_ms + EXPIRED_SLACK_MS

    def _raw_follows(self, envelope: Envelope) -> None:
        """Let the raw bytes behind this frame be taken; it is the last one that was read."""
        transport, rest = self._transport, self._reader.rest
        assert transport is not None, "frames come from a transport"
        self._reader.rest = memoryview(b"")
        transport.pause_reading()
        try:
            size, body = raw_body(envelope.body)
            waiter = self._owner.raw_follows(self, envelope, body)
        except FrameCorrupt as error:
            self.close(error.message)
            return
        self._raw_in.receive(transport, rest, size, waiter)

    def read_on(self, rest: bytes) -> None:
        """All raw bytes were taken; `rest` was read behind them."""
        self.heard_s = self._clock.monotonic_s()
        if self.closed or self._transport is None:
            return
        self._transport.resume_reading()
        if rest:
            self.data_received(rest)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.flush()

    def connection_lost(self, exc: Exception | None) -> None:
        already = self.closed
        self.closed = True
        self._transport = None
        self._forget()
        if not already:
            self._owner.connection_closed(self, str(exc) if exc is not None else self._reason)

    # -- sending ----------------------------------------------------------------------------------

    def room(self) -> bool:
        """False when the peer does not read and its backlog has reached the limit."""
        return self._out_bytes < PEER_QUEUED_BYTES_MAX

    def send(self, frame: bytes) -> None:
        """Queue a whole frame for this tick's write; a closed connection drops it."""
        if self.closed:
            return
        self._flush_soon()
        self._out.append(frame)
        self._out_bytes += len(frame)

    def before_flush(self, ask: Callable[[], None]) -> None:
        """Call `ask` once, before what this tick sends is written."""
        if self.closed:
            return
        self._flush_soon()
        self._before_flush = ask

    def _flush_soon(self) -> None:
        """Called before the first thing of a tick is queued, and before each other, where it does nothing."""
        if not self._out and not self._replies and self._before_flush is None:
            self._loop.call_soon(self.flush)

    def reply_raw(self, verb: int, stream: int, body: bytes, content: FileReply) -> None:
        """Queue a reply and the part of a file behind it."""
        self._raw_out.send(encode_raw_frame(verb, stream, self._owner.epoch(), body, content.size), content)

    async def drained(self) -> asyncio.Transport:
        """The transport, once it has written everything. OSError when it is gone."""
        await asyncio.sleep(0)  # What was written in this turn may not be counted yet.
        for _ in range(RAW_SILENT_MS // DRAIN_MS):
            transport = self._transport
            if transport is None or self.closed:
                raise ConnectionResetError("the connection is closed")
            if not transport.get_write_buffer_size():
                return transport
            await asyncio.sleep(DRAIN_MS / 1000)
        raise TimeoutError("the peer does not read")

    def reply(self, verb: int, stream: int, body: bytes) -> None:
        """Queue a reply; equal ones of one tick share a frame, for acknowledgements come in crowds."""
        if len(body) > SHARED_BODY_BYTES_MAX:
            self.send(encode_frame(verb, stream, self._owner.epoch(), REPLY, body))
            return
        self.reply_all(verb, (stream,), body)

    def small(self, body: bytes) -> bool:
        """Whether replies with this body share frames."""
        return len(body) <= SHARED_BODY_BYTES_MAX

    def reply_all(self, verb: int, streams: Sequence[int], body: bytes) -> None:
        """As `reply` with a small body, to the requests of several streams."""
        if self.closed:
            return
        self._flush_soon()
        crowd = self._replies.get((verb, body))
        if crowd is None:
            self._replies[verb, body] = list(streams)
        else:
            crowd.extend(streams)
        self._out_bytes += REPLY_BYTES * len(streams)

    def _frame_replies(self) -> None:
        replies, self._replies = self._replies, {}
        epoch = self._owner.epoch()
        for (verb, body), streams in replies.items():
            if len(streams) == 1:
                frame = encode_frame(verb, streams[0], epoch, REPLY, body)
            else:
                frame = encode_frame(verb, 0, epoch, REPLY | SHARED, encode(SharedReply(body, streams)))
            self._out.append(frame)

    def flush(self) -> None:
        """Write what is queued, unless something is in the way that calls again."""
        if self._paused or self._transport is None or self._raw_out.busy:
            return
        if self._before_flush is not None:
            self._before_flush()
            self._before_flush = None
        if self._replies:
            self._frame_replies()
        if not self._out:
            return
        if self._out_bytes > WRITE_BYTES_COALESCED:
            self._flush_large()
            return
        out = self._out
        self._out = []
        self._out_bytes = 0
        self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _flush_large(self) -> None:
        """Frame by frame while the transport takes them: its buffer would be moved with each byte sent."""
        transport, out = self._transport, self._out
        assert transport is not None, "a flush has a transport"
        sent = 0
        while sent < len(out) and not self._paused:
            frame = out[sent]
            sent += 1
            self._out_bytes -= len(frame)
            transport.write(frame)
        # Small replies are counted with a fixed size, so what is left is summed up anew.
        self._out = out[sent:]
        self._out_bytes = sum(map(len, self._out))

    # -- ending -----------------------------------------------------------------------------------

    def close(self, reason: str, *, abort: bool = False) -> None:
        """Stop at once; what was queued before still goes out unless `abort`."""
        if self.closed:
            return
        if not abort:
            self.flush()
        self.closed = True
        self._forget()
        if self._transport is not None:
            if abort:
                self._transport.abort()
            else:
                self._transport.close()
        self._owner.connection_closed(self, reason)

    def _forget(self) -> None:
        self._out = []
        self._before_flush = None
        self._replies = {}
        self._raw_out.stop()
        self._raw_in.stop()


NONCE_BYTES: Final = 32
_DIALER: Final = "dialer"
_ACCEPTOR: Final = "acceptor"
_NOT_SHOWN: Final = (
    "it does not prove that it knows the join secret: give all nodes of the cluster the same "
    "cluster.join_secret_file"
)
_ANOTHER: Final = "its proof is of another join secret than this node's"


def secrets_in(text: str) -> tuple[bytes, ...]:
    """The words of a text: the first is what a node proves to who dials, any of them is what it accepts."""
    return tuple(word.encode() for word in text.split())


class Proofs:
    """Of one node; without `secrets` it neither proves nor asks for anything."""

    def __init__(self, secrets: tuple[bytes, ...], random_bytes: Callable[[int], bytes]) -> None:
        self._secrets = secrets
        self._random_bytes = random_bytes

    @property
    def required(self) -> bool:
        return bool(self._secrets)

    def dial(self, own: Hello) -> Hello:
        """The greeting of the side that connects."""
        return msgspec.structs.replace(own, nonce=self._nonce()) if self._secrets else own

    def accept(self, dialer: Hello, own: Hello) -> Hello:
        """The greeting of the other side, to a dialer for whom `lacking` found nothing."""
        assert self._secrets and dialer.nonce, "there is something to prove"
        greeting = msgspec.structs.replace(own, nonce=self._nonce())
        proof = _proof(self._secrets[0], _ACCEPTOR, dialer, greeting)
        return msgspec.structs.replace(greeting, proof=proof)

    def answer(self, dialer: Hello, acceptor: Hello) -> Hello:
        """The dialer's second greeting, to an acceptor that has proved itself: by its secret."""
        secret = self._matching(_ACCEPTOR, dialer, acceptor, acceptor.proof)
        assert secret is not None, "the acceptor has proved itself"
        proof = _proof(secret, _DIALER, dialer, acceptor)
        return msgspec.structs.replace(dialer, proof=proof)

    def lacking(self, dialer: Hello) -> str | None:
        """Why a first greeting can lead to no proof."""
        return _NOT_SHOWN if self._secrets and len(dialer.nonce) != NONCE_BYTES else None

    def refuse_acceptor(self, dialer: Hello, acceptor: Hello) -> str | None:
        """Why the greeting of an acceptor proves nothing."""
        if self._secrets and len(acceptor.nonce) != NONCE_BYTES:
            return _NOT_SHOWN
        return self._judge(_ACCEPTOR, dialer, acceptor, acceptor.proof)

    def refuse_dialer(self, dialer: Hello, acceptor: Hello, proof: bytes) -> str | None:
        """Why the second greeting of a dialer, with this proof, proves nothing."""
        return self._judge(_DIALER, dialer, acceptor, proof)

    def _judge(self, side: str, dialer: Hello, acceptor: Hello, proof: bytes) -> str | None:
        if not self._secrets:
            return None
        if not proof:
            return _NOT_SHOWN
        return _ANOTHER if self._matching(side, dialer, acceptor, proof) is None else None

    def _matching(self, side: str, dialer: Hello, acceptor: Hello, proof: bytes) -> bytes | None:
        """The secret that a proof is of; None when it is of none known here."""
        for secret in self._secrets:
            if hmac.compare_digest(proof, _proof(secret, side, dialer, acceptor)):
                return secret
        return None

    def _nonce(self) -> bytes:
        return self._random_bytes(NONCE_BYTES)


def _proof(secret: bytes, side: str, dialer: Hello, acceptor: Hello) -> bytes:
    """Over named members, so that versions which append to a greeting still agree."""
    said = ("lockstep internode 1", side, _bound(dialer), _bound(acceptor))
    return hmac.new(secret, encode(said), hashlib.sha256).digest()


def _bound(greeting: Hello) -> tuple[bytes, str, str, str, str, int]:
    who = (greeting.cluster_name, greeting.cluster_id, greeting.host_id, greeting.address, greeting.port)
    return (greeting.nonce, *who)


def challenged(node: Internode, connection: Connection, theirs: Hello) -> bool:
    """Answer the first greeting of a dialer with one that asks for its proof; False when it is not the first,
    or can lead to none."""
    if connection.greetings is not None or node.proofs.lacking(theirs) is not None:
        return False
    own = node.proofs.accept(theirs, node.hello())
    connection.greetings = (theirs, own)
    if theirs.endpoint not in node.faults.blocked_to:
        connection.send(encode_frame(HELLO, 0, node.epoch(), REPLY, encode(own)))
    return True


def unproved(node: Internode, connection: Connection, theirs: Hello) -> str | None:
    """Why a dialer is not let in; None once it has proved that it knows the secret."""
    if connection.greetings is None:
        return node.proofs.lacking(theirs)
    return node.proofs.refuse_dialer(*connection.greetings, theirs.proof)
