"""Which of two replicas asks the other one what it holds: a question tells as much as its answer.

Invariant: of each range that something is open of, each of two replicas that live hears of the other one in
every round, whichever asks: who is not asked for a while asks itself.
"""

from __future__ import annotations

from typing import Final

from lockstep.values.node_limits import (
    RECONCILE_HEARD_ROUNDS,
    RECONCILE_INTERVAL_MS,
    RECONCILE_UNASKED_ROUNDS,
)

#: A placement group, and the last token of one of its ranges.
_Shard = tuple[int, int]
_UNASKED_S: Final = RECONCILE_UNASKED_ROUNDS * RECONCILE_INTERVAL_MS / 1000
_RECENT_S: Final = RECONCILE_HEARD_ROUNDS * RECONCILE_INTERVAL_MS / 1000


def is_asker(own: int, other: int) -> bool:
    """Whether this one of two nodes asks the other. Of nodes with numbers in a row each asks as many as it is
    asked by, give or take one."""
    assert own != other, "nobody asks itself"
    return (own < other) == bool((own + other) % 2)


class Asking:
    """What one node notes of questions."""

    def __init__(self) -> None:
        #: Range -> node -> when that asked about it last.
        self._asked_s: dict[_Shard, dict[int, float]] = {}
        #: Nodes that have answered since they were silent: others may know less than they have told them.
        self._answered: set[int] = set()

    def was_asked(self, node: int, shard: _Shard, now_s: float) -> None:
        """A node has told what it holds of a range, and is told the same."""
        self._asked_s.setdefault(shard, {})[node] = now_s

    def has_answered(self, node: int) -> None:
        """A node has answered all that it was asked in a round."""
        self._answered.add(node)

    def is_silent(self, node: int) -> None:
        self._answered.discard(node)

    def spares(self, own: int, node: int, shard: _Shard, now_s: float) -> bool:
        """Whether a node need not be asked about a range, for it asks itself."""
        if node not in self._answered or is_asker(own, node):
            return False
        asked_s = self._asked_s.get(shard, {}).get(node)
        return asked_s is not None and now_s - asked_s < _UNASKED_S

    def forget(self, shard: _Shard) -> None:
        """The range, or its replicas, are others now."""
        self._asked_s.pop(shard, None)


class Hearing:
    """When each replica told last what it holds."""

    def __init__(self) -> None:
        self._told_s: dict[int, float] = {}

    def note(self, node: int, now_s: float) -> None:
        self._told_s[node] = now_s

    def is_recent(self, node: int, now_s: float) -> bool:
        """Whether it did so within the last rounds."""
        return now_s - self._told_s.get(node, -_RECENT_S) < _RECENT_S

    def silent_s(self, node: int, now_s: float) -> float:
        """For how long it has told nothing, or since that was asked first."""
        return now_s - self._told_s.setdefault(node, now_s)
