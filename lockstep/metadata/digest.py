"""State digests: equal values, and only they, have equal digests on every node.

A digest is a hash over the digests of the parts. A part's digest is kept with the part object, so that
an entry costs only the parts it changed.
"""

from __future__ import annotations

import hashlib
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.values import codec

_KEPT = "_part_digest"


def _blake(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=32).digest()


def part_digest(part: Any) -> bytes:
    """Digest of one immutable part; kept in the part when it is a struct with a dict."""
    kept: dict[str, Any] | None = getattr(part, "__dict__", None)
    if kept is None:
        return _blake(codec.encode(part))
    found = kept.get(_KEPT)
    if found is None:
        found = kept[_KEPT] = _blake(codec.encode(part))
    assert isinstance(found, bytes)
    return found


def part_digests(cluster: ClusterMetadata) -> tuple[tuple[str, bytes], ...]:
    """(part name, digest), in a fixed order: where two nodes differ is visible at once."""
    recent = cluster.recent_ids
    rings = b"".join(part_digest(ring) for ring in cluster.placements.rings)
    operations = (cluster.operations, cluster.locks, cluster.sessions, cluster.next_operation_id)
    return (
        ("identity", part_digest(cluster.identity)),
        ("directory", part_digest(cluster.directory)),
        ("schema", cluster.schema.digest),
        ("placements", _blake(rings)),
        ("operations", part_digest(operations)),
        ("service", part_digest(cluster.service)),
        ("extensions", _blake(codec.encode(tuple(sorted(cluster.extensions.items()))))),
        ("recent_ids", _blake(codec.encode((recent.first_epoch, recent.listed())))),
    )


def state_digest(cluster: ClusterMetadata) -> bytes:
    """32 bytes over the epoch, the log's hash and every part."""
    parts = b"".join(digest for _, digest in part_digests(cluster))
    return _blake(codec.encode((cluster.epoch, cluster.hash, parts)))
