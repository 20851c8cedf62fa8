"""How two nodes prove to each other that both know the cluster's join secret, which neither sends.

The dialer greets with a nonce; the acceptor greets back with its own and a proof; the dialer answers with
its proof, and only then is served. A proof is an HMAC over both nonces, who the two are, and which side it is
of, so that it is worth nothing in any other handshake and cannot be sent back to whom it came from.

Invariant: with a secret, nothing but greetings passes before both proofs were checked. It keeps strangers
out; against who alters what passes between nodes only TLS helps.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec

from lockstep.internode.connection import Connection
from lockstep.internode.frames import REPLY, encode_frame
from lockstep.internode.handshake import Hello
from lockstep.internode.verbs import HELLO
from lockstep.values.codec import encode

if TYPE_CHECKING:
    from lockstep.internode.internode import Internode

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
