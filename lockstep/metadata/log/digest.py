"""State digests: equal values, and only they, have equal digests on every node.

A digest is a hash over the digests of the parts. What can be large keeps the digest of each of its elements,
in a hash tree or in the element itself, so that an entry costs only what it changed.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.values import codec
from lockstep.values.hash_tree import blake


def part_digests(cluster: ClusterMetadata) -> tuple[tuple[str, bytes], ...]:
    """(part name, digest), in a fixed order: where two nodes differ is visible at once."""
    return cluster.parts.digests()


def state_digest(cluster: ClusterMetadata) -> bytes:
    """32 bytes over the epoch, the log's hash and every part."""
    parts = b"".join(digest for _, digest in part_digests(cluster))
    return blake(codec.encode((cluster.epoch, cluster.hash, parts)))
