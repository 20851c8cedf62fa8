"""A metadata value as its stored bytes, and back."""

from __future__ import annotations

from unittest import mock

from lockstep.metadata.cluster import PARTS, ClusterMetadata
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.part import Registered
from lockstep.topology.kinds.registry import UNIONS

#: With the kinds of operations.
REGISTERED = Registered(PARTS, unions=UNIONS)


def stored(cluster: ClusterMetadata) -> bytes:
    """Canonical bytes: equal values give equal bytes."""
    return b"".join(pieces(cluster))


def from_stored(data: bytes, registered: Registered = REGISTERED) -> ClusterMetadata:
    decoder = SnapshotDecoder(registered=registered)
    decoder.feed(data)
    return decoder.finish()


def as_stored(data: bytes) -> ClusterMetadata:
    """What the bytes say, whether or not it is a valid value."""
    with mock.patch.object(ClusterMetadata, "validate"):
        return from_stored(data)
