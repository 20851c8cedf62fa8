"""What differs between two metadata values, for people and for `metadata diff`.

Invariant: equal values give no lines; the head comes first, then the parts by number.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.comparison import Difference, compare


def diff(before: ClusterMetadata, after: ClusterMetadata) -> tuple[Difference, ...]:
    """Differences of the head and of every part that both values have."""
    head = (
        *compare("epoch", before.epoch, after.epoch),
        *compare("hash", before.hash, after.hash),
    )
    return head + tuple(
        difference
        for part in after.parts.listed()
        if not before.parts.is_same(after.parts, part) and before.parts[part] != after.parts[part]
        for difference in part.compare(part.name, before.parts[part], after.parts[part])
    )
