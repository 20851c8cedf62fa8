"""Who is at the other end: the first frame each way, whether the two may talk, and how both prove that they
know the cluster's join secret, which neither says.

The dialer greets with a nonce; the acceptor greets back with its own and a proof; the dialer answers with its
proof, and only then is served. A proof is an HMAC over both nonces, who the two are, and which side it is of,
so that it is worth nothing in any other handshake and cannot be sent back to whom it came from.

Invariant: nodes of different clusters, of different lineages, or with another protocol version never
exchange anything beyond this frame. With a secret, nothing but greetings passes before both proofs were
checked. It keeps strangers out; against who alters what passes between nodes only TLS helps.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from lockstep.values.codec import encode

PROTOCOL_VERSION: Final = 1

Address = tuple[str, int]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """`cluster_id` "" and `lineage` () are a node that has not joined yet; `node_id` 0 likewise.

    `replaces` is the id of the dead node whose place the sender is to take, maybe at its address; else 0.
    `purpose` is free text for logs ("node", "cli"). `address` and `port` are where the sender listens
    for other nodes and name it in fault tests. `takes_shared`: it serves several requests in one frame;
    nodes of older versions do not say so. `nonce` and `proof`: see `Proofs`; empty without a join secret.
    """

    protocol_version: int
    cluster_id: str
    cluster_name: str
    lineage: tuple[bytes, ...]
    host_id: str
    node_id: int
    address: str
    port: int
    purpose: str = "node"
    replaces: int = 0
    takes_shared: bool = False
    nonce: bytes = b""
    proof: bytes = b""

    @property
    def endpoint(self) -> Address:
        return (self.address, self.port)


class PeerInfo(msgspec.Struct, frozen=True, array_like=True):
    """The identity a peer proved in its handshake."""

    node_id: int
    host_id: str
    address: str
    port: int
    purpose: str

    @property
    def endpoint(self) -> Address:
        return (self.address, self.port)


def peer_of(hello: Hello) -> PeerInfo:
    return PeerInfo(hello.node_id, hello.host_id, hello.address, hello.port, hello.purpose)


def refusal(own: Hello, theirs: Hello) -> str | None:
    """Why `own` must not talk to `theirs`, or None."""
    if own.protocol_version != theirs.protocol_version:
        return f"protocol version {theirs.protocol_version}, this node speaks {own.protocol_version}"
    if own.cluster_id and theirs.cluster_id and own.cluster_id != theirs.cluster_id:
        return f"cluster id {theirs.cluster_id}, this node belongs to {own.cluster_id}"
    if own.cluster_name and theirs.cluster_name and own.cluster_name != theirs.cluster_name:
        return f"cluster name {theirs.cluster_name!r}, this node belongs to {own.cluster_name!r}"
    if own.lineage and theirs.lineage and own.lineage != theirs.lineage:
        return "another lineage of the same cluster: one side missed or ran a disaster recovery"
    if own.endpoint == theirs.endpoint and own.host_id != theirs.host_id:
        return f"address {theirs.address}:{theirs.port} is this node's own, used by host {theirs.host_id}"
    return None


class HasEpoch(Protocol):
    """The newest epoch that this node has applied, as it goes into every frame."""

    @property
    def epoch(self) -> int: ...


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
