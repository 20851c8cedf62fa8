"""Who seems alive: silence compared with each node's own rhythm of messages.

Invariant: a node that was never heard, or was forgotten, is not alive; hearing a node makes it alive at
once; the allowed silence stays between the two bounds whatever the rhythm was.
"""

from __future__ import annotations

from typing import Final

#: A node that speaks every half second is not suspected for three lost messages in a row.
SILENCE_S_MIN: Final = 2.0
#: However irregular a node was, after this long without a word it is suspected.
SILENCE_S_MAX: Final = 10.0
#: Weight of a new interval in the running mean, and of its deviation, as TCP weighs round trips.
_MEAN_WEIGHT: Final = 0.125
_DEVIATION_WEIGHT: Final = 0.25
#: The allowed silence is this many mean intervals plus as many mean deviations.
_TOLERANCE: Final = 4.0
#: Messages closer than this are one burst, which says nothing about the rhythm.
_BURST_S: Final = 0.1


class _Rhythm:
    __slots__ = ("deviation_s", "heard_s", "mean_s", "measured_s", "silent_after_s")

    def __init__(self, now_s: float) -> None:
        self.heard_s = now_s
        self.measured_s = now_s
        self.mean_s = SILENCE_S_MIN / _TOLERANCE
        self.deviation_s = 0.0
        #: When silence begins to be suspicious; kept because every request asks.
        self.silent_after_s = now_s + self.allowed_s()

    def hear(self, now_s: float) -> None:
        self.heard_s = max(self.heard_s, now_s)
        self._measure(now_s)
        self.silent_after_s = self.heard_s + self.allowed_s()

    def _measure(self, now_s: float) -> None:
        interval_s = now_s - self.measured_s
        if interval_s < _BURST_S:
            return
        self.measured_s = now_s
        if interval_s > SILENCE_S_MAX:
            return  # it was away; that is no rhythm
        self.deviation_s += _DEVIATION_WEIGHT * (abs(interval_s - self.mean_s) - self.deviation_s)
        self.mean_s += _MEAN_WEIGHT * (interval_s - self.mean_s)

    def allowed_s(self) -> float:
        wanted_s = _TOLERANCE * (self.mean_s + self.deviation_s)
        return min(SILENCE_S_MAX, max(SILENCE_S_MIN, wanted_s))


class FailureDetector:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._rhythms: dict[int, _Rhythm] = {}

    def heard(self, node: int, now_s: float) -> None:
        """Any message of `node` arrived."""
        rhythm = self._rhythms.get(node)
        if rhythm is None:
            self._rhythms[node] = _Rhythm(now_s)
        else:
            rhythm.hear(now_s)

    def alive(self, node: int, now_s: float) -> bool:
        rhythm = self._rhythms.get(node)
        return rhythm is not None and now_s <= rhythm.silent_after_s

    def explain(self, node: int, now_s: float) -> str:
        """Why `alive` says what it says, for people."""
        rhythm = self._rhythms.get(node)
        if rhythm is None:
            return "never heard"
        silent_s = now_s - rhythm.heard_s
        verb = "alive" if now_s <= rhythm.silent_after_s else "suspected"
        return f"{verb}: silent for {silent_s:.1f} s, {rhythm.allowed_s():.1f} s allowed"

    def forget(self, node: int) -> None:
        """The node left, or must prove itself anew."""
        self._rhythms.pop(node, None)

    def validate(self) -> None:
        for node, rhythm in self._rhythms.items():
            assert SILENCE_S_MIN <= rhythm.allowed_s() <= SILENCE_S_MAX, f"rhythm of node {node}"
            assert rhythm.mean_s >= 0 and rhythm.deviation_s >= 0, f"rhythm of node {node}"
            assert rhythm.measured_s <= rhythm.heard_s, f"rhythm of node {node}"
            assert rhythm.silent_after_s == rhythm.heard_s + rhythm.allowed_s(), f"rhythm of node {node}"
