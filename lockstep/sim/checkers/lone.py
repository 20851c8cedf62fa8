"""Transitions that move by themselves, judged as operations are, at the very entry that each goes on with.

TAB-2: none leaves a stage while a node that lives holds a guard of a session that was closed before. REP-3:
who becomes pending has nothing left of the range. PLC-3: who begins to be read has, with the others, every
acknowledged write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import Stage
from lockstep.metadata.transitions import Lone, Transition


class LoneWatch:
    """`released(value, mover)` judges who has left a stage; `wiped(value, transitions)` who becomes pending;
    `filled(value, transitions)` what begins to be read."""

    def __init__(
        self,
        released: Callable[[ClusterMetadata, Lone], None],
        wiped: Callable[[ClusterMetadata, Sequence[Transition]], None],
        filled: Callable[[ClusterMetadata, Sequence[Transition]], None],
    ) -> None:
        self._released = released
        self._wiped = wiped
        self._filled = filled

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """Each new epoch."""
        if before.transitions is after.transitions:
            return
        by_key = {key: one for key, one in after.transitions.tree.items() if one.position is not None}
        entered: dict[Stage, list[Transition]] = {}
        for key, one in by_key.items():
            if one.position is not None and not _stands(before.transitions.tree.get(key), one):
                entered.setdefault(one.position.stage, []).append(one)
        for key, one in before.transitions.tree.items():
            if one.position is not None and not _stands(one, by_key.get(key)):
                self._released(before, Lone(one))
        if pending := entered.get(Stage.WRITE_BOTH_READ_OLD):
            self._wiped(after, pending)
        if read := entered.get(Stage.WRITE_BOTH_READ_NEW):
            self._filled(after, read)


def _stands(former: Transition | None, now: Transition | None) -> bool:
    """Whether it is where it was. What was read from a snapshot is equal, and not the same object."""
    return former is not None and now is not None and former.position == now.position
