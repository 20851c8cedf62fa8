"""Who is at the other end: the first frame each way, and whether the two may talk.

Invariant: nodes of different clusters, of different lineages, or with another protocol version never
exchange anything beyond this frame.
"""

from __future__ import annotations

from typing import Final

import msgspec

PROTOCOL_VERSION: Final = 1

Address = tuple[str, int]


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """`cluster_id` "" and `lineage` () are a node that has not joined yet; `node_id` 0 likewise.

    `replaces` is the id of the dead node whose place the sender is to take, maybe at its address; else 0.
    `purpose` is free text for logs ("node", "cli"). `address` and `port` are where the sender listens
    for other nodes and name it in fault tests. `takes_shared`: it serves several requests in one frame;
    nodes of older versions do not say so. `nonce` and `proof`: see `proving`; empty without a join secret.
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
