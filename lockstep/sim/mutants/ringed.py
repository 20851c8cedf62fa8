"""Planted bugs of nodes that run on the ring without a log. Those of its machines are in `rings`."""

from __future__ import annotations

import contextlib

from lockstep.internode.own_side import OwnSide
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.ring_entries import FoundRing
from lockstep.metadata.groups.ringed import RINGED as MODE
from lockstep.metadata.groups.ringed import Ringed
from lockstep.node.ring.processor import RingProcessor
from lockstep.ring import ballots
from lockstep.sim.plant import Planted, replaced
from lockstep.values.errors import NotLeader


def _one_is_enough() -> contextlib.AbstractContextManager[None]:
    """A third of the members decides."""
    return replaced((ballots, "majority", lambda ring: (len(ring.voters) + 2) // 3))


def _founded_with_voters() -> contextlib.AbstractContextManager[None]:
    """The first founder votes, as where there is a log."""

    def apply(self: FoundRing, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return self.initialize.apply(cluster, epoch).changed(MODE.set(Ringed(self.mode)))

    return replaced((FoundRing, "apply", apply))


def _one_term() -> contextlib.AbstractContextManager[None]:
    """Whoever changes go through judges in the same term in each of its lives and turns."""

    def leading_term(self: RingProcessor) -> int:
        if not self.leads:
            raise NotLeader(None)
        return 1

    return replaced((RingProcessor, "leading_term", leading_term))


def _marks_unread() -> contextlib.AbstractContextManager[None]:
    """Whatever ring a request was planned with, it is served."""
    return replaced((OwnSide, "other_ring", lambda self, peer, envelope: None))


DIRECTED = (
    Planted("ring_one_term", "a late copy makes what was refused", "", _one_term),
    Planted("ring_marks_unread", "rows lie with owners of another ring", "", _marks_unread),
)

RINGED = (
    Planted("ring_one_is_enough", "members stay on rings of their own", "ringed", _one_is_enough),
    Planted("ring_with_voters", "somebody votes without a log", "ringed", _founded_with_voters),
)
