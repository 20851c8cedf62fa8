"""Entries of a cluster that runs on the ring without a log: what founds it, and what ends a ring without a
change.

Invariant: a cluster that was founded so has no voters, and one that was founded with a log never gets there.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ringed import RING_MODES, RINGED, Ringed
from lockstep.metadata.groups.service import NO_SERVICE, SERVICE
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import Initialize
from lockstep.values.errors import Rejected


class FoundRing(msgspec.Struct, frozen=True, array_like=True):
    """The first entry: the founders are there at once, and all changes are agreed on by `mode`."""

    initialize: Initialize
    mode: str

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if self.mode not in RING_MODES:
            raise Rejected(f"a ring agrees by one of {', '.join(RING_MODES)}, not by {self.mode}")
        if not all(founder.tokens for founder in self.initialize.founders):
            raise Rejected("a founder of a ring owns tokens: without any it has no voice")
        made = self.initialize.apply(cluster, epoch)
        return made.changed(SERVICE.set(NO_SERVICE), RINGED.set(Ringed(self.mode)))


class EndRing(msgspec.Struct, frozen=True, array_like=True):
    """Nothing changes but the ring's number: `op`, proposed on the ring before, can never be agreed on."""

    op: str

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        if not cluster.is_on_ring:
            raise Rejected("only a cluster that runs on the ring ends one")
        return cluster


KINDS: dict[int, type] = {EntryKind.FOUND_RING: FoundRing, EntryKind.END_RING: EndRing}
