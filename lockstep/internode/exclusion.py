"""Who is shut out: nothing but what lets it catch up goes to such a node or is taken from it.

Invariant: a host is judged by its id when it speaks, and by where it stands when it is spoken to.
"""

from __future__ import annotations

import msgspec

from lockstep.internode import verbs
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.values.errors import NodeExcluded


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
