"""Planted bugs of nodes that run on the ring without a log. Those of its machines are in `rings`."""

from __future__ import annotations

import contextlib

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ring_entries import FoundRing
from lockstep.metadata.groups.ringed import RINGED as MODE
from lockstep.metadata.groups.ringed import Ringed
from lockstep.ring import ballots
from lockstep.sim.plant import Planted, replaced


def _one_is_enough() -> contextlib.AbstractContextManager[None]:
    """A third of the members decides."""
    return replaced((ballots, "majority", lambda ring: (len(ring.voters) + 2) // 3))


def _founded_with_voters() -> contextlib.AbstractContextManager[None]:
    """The first founder votes, as where there is a log."""

    def apply(self: FoundRing, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return self.initialize.apply(cluster, epoch).changed(MODE.set(Ringed(self.mode)))

    return replaced((FoundRing, "apply", apply))


RINGED = (
    Planted("ring_one_is_enough", "members stay on rings of their own", "ringed", _one_is_enough),
    Planted("ring_with_voters", "somebody votes without a log", "ringed", _founded_with_voters),
)
