"""Who seems alive: silence compared with each node's own rhythm of messages.

Invariant: a node that was never heard, or was forgotten, is not alive; hearing a node makes it alive at
once; the allowed silence stays between two bounds whatever the rhythm was. The bounds follow the rhythm that
is expected of everyone: in a large cluster a node is asked for a sign of life less often.
"""

from __future__ import annotations

from typing import Final

#: The rhythm of a node of which nothing else is said.
EXPECTED_S: Final = 0.5
#: Expected intervals that may pass in silence: three lost messages in a row are no reason to suspect.
SILENCE_INTERVALS_MIN: Final = 4
#: However irregular a node was, after so many expected intervals without a word it is suspected.
SILENCE_INTERVALS_MAX: Final = 20
#: Weight of a new interval in the running mean, and of its deviation, as TCP weighs round trips.
_MEAN_WEIGHT: Final = 0.125
_DEVIATION_WEIGHT: Final = 0.25
#: The allowed silence is this many mean intervals plus as many mean deviations.
_TOLERANCE: Final = 4.0
#: Messages closer than this are one burst, which says nothing about the rhythm.
_BURST_S: Final = 0.1


class _Rhythm:
    __slots__ = ("deviation_s", "expected_s", "heard_s", "mean_s", "measured_s", "silent_after_s")

    def __init__(self, now_s: float, expected_s: float) -> None:
        self.heard_s = now_s
        self.measured_s = now_s
        self.expected_s = expected_s
        self.mean_s = expected_s
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
        if interval_s > SILENCE_INTERVALS_MAX * self.expected_s:
            return  # it was away; that is no rhythm
        self.deviation_s += _DEVIATION_WEIGHT * (abs(interval_s - self.mean_s) - self.deviation_s)
        self.mean_s += _MEAN_WEIGHT * (interval_s - self.mean_s)

    def expect(self, interval_s: float) -> None:
        self.expected_s = interval_s
        self.silent_after_s = self.heard_s + self.allowed_s()

    def allowed_s(self) -> float:
        wanted_s = _TOLERANCE * (self.mean_s + self.deviation_s)
        shortest_s, longest_s = (
            self.expected_s * SILENCE_INTERVALS_MIN,
            self.expected_s * SILENCE_INTERVALS_MAX,
        )
        return min(longest_s, max(shortest_s, wanted_s))


class FailureDetector:
    """Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._rhythms: dict[int, _Rhythm] = {}
        self._expected_s = EXPECTED_S

    def expect(self, interval_s: float) -> None:
        """Every node is asked for a sign of life about once in so many seconds from now on."""
        if interval_s != self._expected_s:
            self._expected_s = interval_s
            for rhythm in self._rhythms.values():
                rhythm.expect(interval_s)

    def heard(self, node: int, now_s: float) -> None:
        """Any message of `node` arrived."""
        rhythm = self._rhythms.get(node)
        if rhythm is None:
            self._rhythms[node] = _Rhythm(now_s, self._expected_s)
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
            allowed = rhythm.allowed_s() / self._expected_s
            assert SILENCE_INTERVALS_MIN - 1e-6 <= allowed <= SILENCE_INTERVALS_MAX + 1e-6, (
                f"rhythm of node {node}"
            )
            assert rhythm.mean_s >= 0 and rhythm.deviation_s >= 0, f"rhythm of node {node}"
            assert rhythm.measured_s <= rhythm.heard_s, f"rhythm of node {node}"
            assert rhythm.silent_after_s == rhythm.heard_s + rhythm.allowed_s(), f"rhythm of node {node}"
