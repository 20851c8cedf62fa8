"""State digests: equal values, and only they, have equal digests on every node.

A digest is a hash over the digests of the parts. What can be large (tables, nodes, rings, ids, extensions)
keeps the digest of each of its parts, in a hash tree or in the part itself, so that an entry costs only what
it changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import Directory
from lockstep.metadata.requests import Requests
from lockstep.values import codec
from lockstep.values.hash_tree import blake

_KEPT = "_part_digest"


def part_digest(part: Any) -> bytes:
    """Digest of one immutable struct that has a dict, kept there."""
    kept: dict[str, Any] = part.__dict__
    found = kept.get(_KEPT)
    if found is None:
        found = kept[_KEPT] = blake(codec.encode(part))
    assert isinstance(found, bytes)
    return found


def _joined(parts: Iterable[Any], *more: int) -> bytes:
    """Digest of parts in this order, and of numbers."""
    return blake(codec.encode((more, b"".join([part_digest(part) for part in parts]))))


def directory_digest(directory: Directory) -> bytes:
    """A change of one node costs its bytes and 32 of every other."""
    kept: dict[str, Any] = directory.__dict__
    found = kept.get(_KEPT)
    if found is None:
        found = kept[_KEPT] = _joined(directory.nodes, directory.next_node_id)
    assert isinstance(found, bytes)
    return found


def requests_digest(requests: Requests) -> bytes:
    kept: dict[str, Any] = requests.__dict__
    found = kept.get(_KEPT)
    if found is None:
        found = kept[_KEPT] = blake(
            _joined(requests.live, requests.next_id) + _joined(requests.ended, len(requests.ended))
        )
    assert isinstance(found, bytes)
    return found


def part_digests(cluster: ClusterMetadata) -> tuple[tuple[str, bytes], ...]:
    """(part name, digest), in a fixed order: where two nodes differ is visible at once."""
    operations = (
        _joined(cluster.operations, cluster.next_operation_id),
        _joined(cluster.locks),
        _joined(cluster.sessions),
    )
    return (
        ("identity", blake(codec.encode(cluster.identity))),
        ("directory", directory_digest(cluster.directory)),
        ("schema", cluster.schema.digest),
        ("placements", _joined(cluster.placements.rings)),
        ("operations", blake(b"".join(operations))),
        ("requests", requests_digest(cluster.requests)),
        ("excluded", _joined(cluster.excluded)),
        ("degraded", _joined(cluster.degraded)),
        ("features", blake(codec.encode(cluster.features))),
        ("generations", _joined(cluster.generations)),
        ("repairs", part_digest(cluster.repairs)),
        ("access", cluster.access.digest),
        ("service", blake(codec.encode(cluster.service))),
        ("extensions", cluster.extensions.digest),
        ("recent_ids", cluster.recent_ids.digest),
    )


def state_digest(cluster: ClusterMetadata) -> bytes:
    """32 bytes over the epoch, the log's hash and every part."""
    parts = b"".join(digest for _, digest in part_digests(cluster))
    return blake(codec.encode((cluster.epoch, cluster.hash, parts)))
