"""The join secret: nodes that know it talk, and nobody else is told or served anything."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.internode.frames import ERROR, REPLY, REQUEST, Envelope, FrameReader, encode_frame
from lockstep.internode.handshake import Hello, Proofs, _proof, secrets_in
from lockstep.internode.internode import Internode
from lockstep.internode.own_side import HELLO_DECODER
from lockstep.internode.verbs import decode_error
from lockstep.values.codec import encode
from lockstep.values.errors import HandshakeRefused

from .support import TestNode, run, running, until
from .test_internode import Ping, Pong, echo

SECRET = "a-join-secret-of-some-length"
OLD, NEW = "old-secret-of-some-length", "new-secret-of-some-length"
DIALER = Hello(1, "c", "test", (), "host-1", 1, "127.0.1.1", 7000)
ACCEPTOR = Hello(1, "c", "test", (), "host-2", 2, "127.0.1.2", 7000)


class ProvingNode(TestNode):
    """A node with a join secret; empty: with none."""

    def __init__(self, index: int, secret: str, **identity: Any) -> None:
        self._secret = secret
        super().__init__(index, **identity)
        self.internode.register(verbs.PING, Ping, Pong, echo)

    def build(self, **security: Any) -> Internode:
        return super().build(**security, secrets=secrets_in(self._secret))


def refused(node: TestNode) -> list[str]:
    return [facts["reason"] for event, facts in node.events if event == "internode.refused"]


@pytest.mark.parametrize(
    ("dialer", "acceptor", "reason"),
    [
        (SECRET, SECRET, None),
        ("", "", None),
        (OLD, f"{OLD} {NEW}", None),
        (f"{NEW} {OLD}", f"{OLD} {NEW}", None),
        (f"{NEW} {OLD}", NEW, None),
        ("", SECRET, "does not prove that it knows the join secret"),
        (SECRET, "", "does not prove that it knows the join secret"),
        (OLD, NEW, "of another join secret"),
    ],
)
def test_nodes_talk_when_each_accepts_what_the_other_proves(
    dialer: str, acceptor: str, reason: str | None
) -> None:
    async def test() -> None:
        one, two = ProvingNode(1, dialer), ProvingNode(2, acceptor)
        async with running(one, two):
            asking = one.internode.request(two.address, verbs.PING, Ping("a"), 1000)
            if reason is None:
                assert await asking == Pong("a")
                assert await two.internode.request(one.address, verbs.PING, Ping("b"), 1000) == Pong("b")
                one.greeting = msgspec.structs.replace(one.greeting, node_id=9)
                one.internode.introduce()
                await until(lambda: (9, 1) in two.epochs_seen)
            else:
                with pytest.raises(HandshakeRefused, match=reason):
                    await asking
                assert any(reason in told for told in refused(one) + refused(two))
                assert not acceptor or not two.epochs_seen

    run(test)


class Stranger:
    """A raw connection to a node's internode port."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer, self._frames = reader, writer, FrameReader()
        self._waiting: list[Envelope] = []

    @classmethod
    async def at(cls, node: TestNode) -> Stranger:
        return cls(*await asyncio.open_connection(node.host, node.port))

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()

    def say(self, verb: int, body: Any, stream: int = 0) -> None:
        self._writer.write(encode_frame(verb, stream, 1, REQUEST, encode(body)))

    async def hear(self) -> Envelope | None:
        """The next frame; None at the end of the connection."""
        while not self._waiting:
            data = await asyncio.wait_for(self._reader.read(65536), 5)
            if not data:
                return None
            self._waiting += self._frames.feed(data)
        return self._waiting.pop(0)

    async def greeting(self) -> Hello:
        heard = await self.hear()
        assert heard is not None and heard.flags == REPLY
        return HELLO_DECODER.decode(heard.body)

    async def refusal(self) -> str:
        heard = await self.hear()
        assert heard is not None and heard.flags & ERROR, heard
        assert await self.hear() is None
        return decode_error(heard.body).message


def with_stranger(test: Any) -> None:
    async def main() -> None:
        node = ProvingNode(1, SECRET)
        async with running(node):
            stranger = await Stranger.at(node)
            try:
                await test(node, stranger)
            finally:
                await stranger.close()
        assert not node.epochs_seen

    run(main)


def test_a_stranger_with_the_right_cluster_id_is_served_nothing() -> None:
    async def test(node: ProvingNode, stranger: Stranger) -> None:
        stranger.say(verbs.HELLO, ACCEPTOR)
        stranger.say(verbs.PING, Ping("who is there"), 1)
        assert "does not prove" in await stranger.refusal()

    with_stranger(test)


def test_what_comes_between_greeting_and_proof_is_not_served() -> None:
    async def test(node: ProvingNode, stranger: Stranger) -> None:
        stranger.say(verbs.HELLO, msgspec.structs.replace(ACCEPTOR, nonce=b"n" * 32))
        theirs = await stranger.greeting()
        assert theirs.nonce and theirs.proof and SECRET.encode() not in encode(theirs)
        stranger.say(verbs.PING, Ping("who is there"), 1)
        assert await stranger.hear() is None

    with_stranger(test)


@pytest.mark.parametrize("how", ["no proof", "reflected", "random", "of another secret"])
def test_a_proof_that_is_none_is_refused(how: str) -> None:
    async def test(node: ProvingNode, stranger: Stranger) -> None:
        mine = msgspec.structs.replace(ACCEPTOR, nonce=b"n" * 32)
        stranger.say(verbs.HELLO, mine)
        theirs = await stranger.greeting()
        proof = {
            "no proof": b"",
            "reflected": theirs.proof,
            "random": b"r" * 32,
            "of another secret": _proof(b"a-guess-of-about-that-length", "dialer", mine, theirs),
        }[how]
        stranger.say(verbs.HELLO, msgspec.structs.replace(mine, proof=proof))
        assert "join secret" in await stranger.refusal()

    with_stranger(test)


def test_a_proof_is_worth_nothing_in_another_handshake() -> None:
    numbers = iter(range(100))
    own = Proofs(secrets_in(SECRET), lambda size: bytes([next(numbers)]) * size)
    dialer = own.dial(DIALER)
    acceptor = own.accept(dialer, ACCEPTOR)
    assert own.refuse_acceptor(dialer, acceptor) is None
    proof = own.answer(dialer, acceptor).proof
    assert own.refuse_dialer(dialer, acceptor, proof) is None
    changed = msgspec.structs.replace
    for one, other in (
        (own.dial(DIALER), acceptor),
        (dialer, own.accept(dialer, ACCEPTOR)),
        (changed(dialer, host_id="host-3"), acceptor),
        (changed(dialer, address="127.0.1.3"), acceptor),
        (dialer, changed(acceptor, port=7001)),
        (changed(dialer, cluster_id="d"), acceptor),
    ):
        assert own.refuse_dialer(one, other, proof) is not None
        if other is acceptor:
            assert own.refuse_acceptor(one, other) is not None
    assert own.refuse_acceptor(dialer, changed(acceptor, proof=proof)) is not None


def test_versions_that_append_to_greetings_still_agree() -> None:
    own = Proofs(secrets_in(SECRET), lambda size: b"x" * size)
    dialer, takes = own.dial(DIALER), msgspec.structs.replace
    acceptor = own.accept(dialer, ACCEPTOR)
    assert own.refuse_acceptor(takes(dialer, takes_shared=True, purpose="other"), acceptor) is None
