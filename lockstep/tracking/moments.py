"""Moments up to which everything is reconciled: nothing older comes to a replica of the range any more.

What anybody held at a moment is noted, and once all of it is reconciled the moment is complete; then the next
one is noted. Invariant: moments of a range ascend, until its replicas or bounds change.
"""

from __future__ import annotations

from lockstep.tracking.held import Held

#: A placement group, and the last token of one of its ranges.
_Shard = tuple[int, int]


class Moments:
    def __init__(self) -> None:
        #: (moment, what anybody held then) of a range; and the last moment of which all is reconciled.
        self._watched: dict[_Shard, tuple[int, Held]] = {}
        self.complete_us: dict[_Shard, int] = {}
        #: Placement groups of which somebody looks on what is complete, until when each is taken to do so.
        self._followed: dict[int, float] = {}

    def is_due(self, shard: _Shard, reconciled: Held) -> bool:
        """Whether another moment is to be watched, for what was watched is reconciled."""
        watched = self._watched.get(shard)
        if watched is not None and reconciled.covers(watched[1]):
            self.complete_us[shard] = watched[0]
            watched = None
        return watched is None

    def watch(self, shard: _Shard, at_us: int, held: Held) -> None:
        """`held` is what anybody held at a moment or later."""
        assert at_us > 0, "a moment is one of a clock"
        self._watched[shard] = at_us, held

    def void(self, shard: _Shard) -> None:
        """What was told may be lost: what is watched is not all of it."""
        self._watched.pop(shard, None)

    def forget(self, shard: _Shard) -> None:
        """The range, or its replicas, are others now."""
        self.void(shard)
        self.complete_us.pop(shard, None)

    def follow(self, group: int, until_s: float) -> None:
        """Somebody looks on a placement group."""
        self._followed[group] = until_s

    def followed(self, now_s: float) -> list[int]:
        self._followed = {group: until_s for group, until_s in self._followed.items() if until_s > now_s}
        return list(self._followed)
