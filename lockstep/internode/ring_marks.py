"""Which ring a request for data was planned with, where a cluster runs on the ring without a log.

The epoch in each frame says how many changes its sender has applied; the mark, the first bytes of the ring's
fingerprint, which of them. It goes with requests for data alone, and only on the ring.

Invariant: a mark is told with the epoch that it is of, and compared with that of the same epoch here.
"""

from __future__ import annotations

from typing import Final

from lockstep.internode.handshake import PeerInfo
from lockstep.values.errors import OtherRing

#: Of a fingerprint. Rings that differ have the same by a chance of one in 2 to the 64th.
MARK_BYTES: Final = 8
#: Epochs of which the mark is kept: who is further behind is refused for its epoch, or plans again.
RING_MARKS_MAX: Final = 64


def mark_of(fingerprint: bytes) -> int:
    """Never 0, which is none."""
    return int.from_bytes(fingerprint[:MARK_BYTES], "big") or 1


class RingMarks:
    def __init__(self) -> None:
        self._by_epoch: dict[int, int] = {}

    def note(self, epoch: int, fingerprint: bytes) -> None:
        """This node has this ring at this epoch."""
        self._by_epoch[epoch] = mark_of(fingerprint)
        while len(self._by_epoch) > RING_MARKS_MAX:
            del self._by_epoch[min(self._by_epoch)]

    def at(self, epoch: int) -> int:
        """0 where there is no ring, or it is not known any more."""
        return self._by_epoch.get(epoch, 0)

    def refusal(self, peer: PeerInfo, epoch: int, mark: int) -> OtherRing | None:
        """Why a request planned at that epoch with a ring of that mark is not served; None when it is."""
        own = self.at(epoch)
        if not own or own == mark:
            return None
        return OtherRing(
            f"node {peer.node_id} plans with another ring of epoch {epoch} than this node: "
            f"{mark:016x} there, {own:016x} here",
            hint="`lockstep ring why` at both; the one that differs from most must not serve",
        )
