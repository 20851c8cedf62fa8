"""Who seems alive, a phi-accrual detector over each node's own rhythm of messages, and how far the clocks of
other nodes are from this node's, by what they say in answers to questions.

Phi is minus the decimal logarithm of the chance that a node which is alive stays silent for so long, its
intervals taken as normally distributed with the mean and deviation of a window of measured ones. A node whose
phi passes the threshold is suspected; already at half of it, it is slow, and others are preferred.

An answer brings the other clock's time; between question and answer lies a round trip, measured by the steady
clock, so the answer was given at its middle, give or take half of it. Of the last answers the one with the
shortest round trip says most; one that contradicts the newest was given before a clock stepped.

Invariant: a node that was never heard, or was forgotten, is not alive; hearing a node makes it alive at once;
the allowed silence stays between two bounds whatever the rhythm was. The bounds follow the rhythm that is
expected of everyone: in a large cluster a node is asked for a sign of life less often. An estimate is true to
within its error as long as no clock stepped since the newest answer. Pure: times are handed in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import erfc, inf, log10, sqrt
from operator import attrgetter
from typing import Final

import msgspec

from lockstep.metadata.cluster import Newest
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import CLOCK_SAMPLE_AGE_S_MAX, CLOCK_SAMPLES_MAX

#: The rhythm of a node of which nothing else is said.
EXPECTED_S: Final = 0.5
#: Phi at which a node is suspected, unless a setting says otherwise: one in 10^8 silences of a live node.
PHI_THRESHOLD: Final = 8.0
#: At the usual threshold three lost messages in a row are no reason to suspect, however regular the node was.
SILENCE_INTERVALS_MIN: Final = 4
#: However irregular a node was, after so many expected intervals without a word it is suspected.
SILENCE_INTERVALS_MAX: Final = 20
#: Measured intervals that count: half a minute of a small cluster, and few enough for a large one.
WINDOW: Final = 64
#: Phi of a silence whose chance is too small to be told from 0.
PHI_MAX: Final = 300.0
#: Messages closer than this are one burst, which says nothing about the rhythm.
_BURST_S: Final = 0.1
#: Part of the threshold from which a node is slow.
_SLOW: Final = 0.5
_US: Final = 1_000_000


def phi_of(deviations: float) -> float:
    """Phi of a silence that is longer than the mean by so many standard deviations."""
    chance = 0.5 * erfc(deviations / sqrt(2.0))
    return min(PHI_MAX, -log10(chance)) if chance > 0 else PHI_MAX


def deviations_of(phi: float) -> float:
    """Inverse of `phi_of`, to within rounding, for 0.31 (the mean) and more; by halving."""
    assert phi >= phi_of(0.0), "a silence shorter than the mean is no number of deviations above it"
    low, high = 0.0, 40.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if phi_of(middle) < phi else (low, middle)
    return high


#: Deviation, in mean intervals, below which no rhythm is believed: chance makes short windows look regular.
SPREAD_MIN: Final = (SILENCE_INTERVALS_MIN - 1) / deviations_of(PHI_THRESHOLD)


class _Limits:
    """What one threshold means: deviations from the mean until a node is slow, and until it is suspected."""

    __slots__ = ("slow", "suspect")

    def __init__(self, threshold_phi: float) -> None:
        self.suspect = deviations_of(threshold_phi)
        self.slow = deviations_of(threshold_phi * _SLOW)
        assert 0 < self.slow < self.suspect, "a node is slow before it is suspected"


class _Rhythm:
    """Sums are of whole microseconds, so that they do not drift as intervals come and go."""

    __slots__ = (
        "_limits", "_squares", "_sum", "excused_s", "expected_s", "heard_s", "intervals_us", "measured_s",
        "silent_after_s", "slow_after_s",
    )  # fmt: skip

    def __init__(self, now_s: float, expected_s: float, limits: _Limits) -> None:
        self._limits = limits
        self.heard_s = now_s
        self.measured_s = now_s
        #: Part of the silence in which nobody listened.
        self.excused_s = 0.0
        self.expected_s = expected_s
        self.intervals_us: deque[int] = deque()
        self._sum = self._squares = 0
        #: When silence begins to be slow, and suspicious; kept because every request asks.
        self.slow_after_s = self.silent_after_s = now_s
        self._set()

    def hear(self, now_s: float) -> None:
        self.heard_s = max(self.heard_s, now_s)
        self.excused_s = 0.0
        self._measure(now_s)
        self._set()

    def _measure(self, now_s: float) -> None:
        interval_s = now_s - self.measured_s
        if interval_s < _BURST_S:
            return
        self.measured_s = now_s
        if interval_s > SILENCE_INTERVALS_MAX * self.expected_s:
            return  # it was away; that is no rhythm
        interval_us = round(interval_s * _US)
        self.intervals_us.append(interval_us)
        self._sum += interval_us
        self._squares += interval_us * interval_us
        if len(self.intervals_us) > WINDOW:
            gone_us = self.intervals_us.popleft()
            self._sum -= gone_us
            self._squares -= gone_us * gone_us
            assert self._sum > 0 and self._squares > 0, "sums are of what is in the window"

    def expect(self, interval_s: float) -> None:
        self.expected_s = interval_s
        self._set()

    def excuse(self, deaf_s: float, now_s: float) -> None:
        self.excused_s = min(self.excused_s + deaf_s, max(0.0, now_s - self.heard_s))
        assert self.excused_s >= 0, "no more silence is excused than there was"
        self._set()

    def mean_s(self) -> float:
        """Never below the expected rhythm: that a node spoke more often promises nothing."""
        count = len(self.intervals_us)
        return max(self.expected_s, self._sum / count / _US) if count else self.expected_s

    def deviation_s(self) -> float:
        """At least the part of the mean that chance could hide."""
        return self._deviation_s(self.mean_s())

    def _deviation_s(self, mean_s: float) -> float:
        floor_s = SPREAD_MIN * mean_s
        count = len(self.intervals_us)
        if count < 2:
            return floor_s
        assert count * self._squares >= self._sum * self._sum, "both sums are of the same intervals"
        variance = (count * self._squares - self._sum * self._sum) / (count * count)
        return max(floor_s, sqrt(max(0.0, variance)) / _US)

    def phi(self, now_s: float) -> float:
        silent_s = now_s - self.heard_s - self.excused_s
        return phi_of((silent_s - self.mean_s()) / self.deviation_s())

    def allowed_s(self, deviations: float) -> float:
        """The silence that stays below so many deviations, within the bounds."""
        return self._allowed_s(deviations, self.mean_s(), self.deviation_s())

    def _allowed_s(self, deviations: float, mean_s: float, deviation_s: float) -> float:
        longest_s = self.expected_s * SILENCE_INTERVALS_MAX
        return min(longest_s, mean_s + deviations * deviation_s)

    def _set(self) -> None:
        # Each sign of life comes here: both limits are of one mean and one deviation.
        mean_s = self.mean_s()
        deviation_s = self._deviation_s(mean_s)
        since_s = self.heard_s + self.excused_s
        self.slow_after_s = since_s + self._allowed_s(self._limits.slow, mean_s, deviation_s)
        self.silent_after_s = since_s + self._allowed_s(self._limits.suspect, mean_s, deviation_s)
        assert since_s < self.slow_after_s <= self.silent_after_s, "a node is slow before it is suspected"


class FailureDetector:
    """Times are seconds of one monotonic clock."""

    def __init__(self, threshold_phi: float = PHI_THRESHOLD) -> None:
        assert threshold_phi >= 1, "a threshold that every silence passes suspects everybody"
        self.threshold_phi = threshold_phi
        self._limits = _Limits(threshold_phi)
        self._rhythms: dict[int, _Rhythm] = {}
        self._expected_s = EXPECTED_S

    def expect(self, interval_s: float) -> None:
        """Every node is asked for a sign of life about once in so many seconds from now on."""
        assert interval_s > 0, "a sign of life now and then"
        if interval_s != self._expected_s:
            self._expected_s = interval_s
            for rhythm in self._rhythms.values():
                rhythm.expect(interval_s)

    def heard(self, node: int, now_s: float) -> None:
        """Any message of `node` arrived."""
        rhythm = self._rhythms.get(node)
        if rhythm is None:
            self._rhythms[node] = _Rhythm(now_s, self._expected_s, self._limits)
        else:
            rhythm.hear(now_s)

    def excuse(self, deaf_s: float, now_s: float) -> None:
        """This node itself stood still for so long until now: that silence speaks against nobody."""
        assert deaf_s >= 0, "time does not go back"
        for rhythm in self._rhythms.values():
            rhythm.excuse(deaf_s, now_s)

    def alive(self, node: int, now_s: float) -> bool:
        rhythm = self._rhythms.get(node)
        return rhythm is not None and now_s <= rhythm.silent_after_s

    def alive_until_s(self, node: int) -> float:
        """When `alive` ends unless more is heard; what is expected of its rhythm may change by then."""
        rhythm = self._rhythms.get(node)
        return rhythm.silent_after_s if rhythm is not None else -inf

    def prompt(self, node: int, now_s: float) -> bool:
        """Alive, and not so long silent that another one is the better choice."""
        rhythm = self._rhythms.get(node)
        return rhythm is not None and now_s <= rhythm.slow_after_s

    def phi(self, node: int, now_s: float) -> float:
        """The level of suspicion, at most PHI_MAX; that of a node never heard."""
        rhythm = self._rhythms.get(node)
        return rhythm.phi(now_s) if rhythm is not None else PHI_MAX

    def silent_s(self, node: int, now_s: float) -> float | None:
        """Seconds since it was heard; None when it never was."""
        rhythm = self._rhythms.get(node)
        return max(0.0, now_s - rhythm.heard_s) if rhythm is not None else None

    def suspected_in_s(self, node: int, now_s: float) -> float:
        """Seconds of further silence until it is suspected; 0 when it is."""
        rhythm = self._rhythms.get(node)
        return max(0.0, rhythm.silent_after_s - now_s) if rhythm is not None else 0.0

    def forget(self, node: int) -> None:
        """The node left, or must prove itself anew."""
        self._rhythms.pop(node, None)

    def validate(self) -> None:
        shortest = 1 + SPREAD_MIN * self._limits.suspect
        for node, rhythm in self._rhythms.items():
            allowed_s = rhythm.allowed_s(self._limits.suspect)
            allowed = allowed_s / self._expected_s
            bounds = min(shortest, SILENCE_INTERVALS_MAX) - 1e-6, SILENCE_INTERVALS_MAX + 1e-6
            assert bounds[0] <= allowed <= bounds[1], f"rhythm of node {node}"
            assert len(rhythm.intervals_us) <= WINDOW, f"rhythm of node {node}"
            assert rhythm.measured_s <= rhythm.heard_s, f"rhythm of node {node}"
            assert rhythm.slow_after_s <= rhythm.silent_after_s, f"rhythm of node {node}"
            since_s = rhythm.heard_s + rhythm.excused_s
            assert rhythm.silent_after_s == since_s + allowed_s, f"rhythm of node {node}"


class Opinions:
    """Of one node about the others, by the metadata of now and a clock of seconds that it is handed."""

    def __init__(
        self,
        detector: FailureDetector,
        newest: Newest,
        own_id: Callable[[], int],
        now_s: Callable[[], float],
    ) -> None:
        self.detector = detector
        self.own_id = own_id
        self._newest = newest
        self._now_s = now_s
        #: Nodes that say of themselves that they do not serve yet: others are preferred.
        self.avoided: frozenset[int] = frozenset()

    def alive(self, node: int) -> bool:
        """This node always seems alive to itself; nobody does whose address another node has taken, or who is
        shut out."""
        if node in self._newest.cluster.not_served:
            return node == self.own_id()
        return self.detector.alive(node, self._now_s()) or node == self.own_id()

    def alive_until_s(self, node: int) -> float:
        """It is alive until then by the metadata of now, and longer if more is heard of it."""
        if node == self.own_id():
            return inf
        return -inf if node in self._newest.cluster.not_served else self.detector.alive_until_s(node)

    def prefers(self, node: int) -> bool:
        """Whether requests should go there before they go to a node that is alive but slow or not ready."""
        if NodeId(node) in self._newest.cluster.directory.shadowed:
            return False
        prompt = self.detector.prompt(node, self._now_s()) and node not in self.avoided
        return prompt or node == self.own_id()

    def phi(self, node: int) -> float:
        """How strongly the node is suspected; 0 for this one."""
        return 0.0 if node == self.own_id() else self.detector.phi(node, self._now_s())

    def silent_s(self, node: int) -> float | None:
        """Seconds since a sign of life; None when there never was one."""
        return 0.0 if node == self.own_id() else self.detector.silent_s(node, self._now_s())

    def suspected_in_s(self, node: int) -> float:
        """Seconds of further silence until it does not seem alive any more."""
        return self.detector.suspected_in_s(node, self._now_s())


class Offset(msgspec.Struct, frozen=True):
    """The other clock less this node's, give or take `error_us`."""

    offset_us: int
    error_us: int

    @property
    def certain_us(self) -> int:
        """By how much the clocks differ at least."""
        return max(0, abs(self.offset_us) - self.error_us)

    def contradicts(self, other: Offset) -> bool:
        return abs(self.offset_us - other.offset_us) > self.error_us + other.error_us


def measured(asked_us: int, other_us: int, round_trip_us: int) -> Offset:
    """`asked_us`: this node's wall clock when it asked; `other_us`: the other's when it answered."""
    assert round_trip_us >= 0, "the steady clock does not step back"
    half_us = (round_trip_us + 1) // 2
    return Offset(other_us - (asked_us + half_us), half_us)


class ClockOffsets:
    """What this node knows of the clocks of others."""

    def __init__(self) -> None:
        #: By node, the newest last, with the seconds of the steady clock at which each came.
        self._samples: dict[int, list[tuple[float, Offset]]] = {}

    def heard(self, node: int, found: Offset, now_s: float) -> None:
        assert found.error_us >= 0, "an error is a width"
        samples = self._samples.setdefault(node, [])
        assert not samples or samples[-1][0] <= now_s, "the steady clock does not step back"
        samples[:] = [sample for sample in samples if not sample[1].contradicts(found)]
        samples.append((now_s, found))
        del samples[:-CLOCK_SAMPLES_MAX]

    def forget(self, node: int) -> None:
        self._samples.pop(node, None)

    def stepped(self) -> None:
        """This node's own clock did: what was measured by it means nothing."""
        self._samples.clear()

    def of(self, node: int, now_s: float) -> Offset | None:
        """None when nothing was heard of its clock lately."""
        samples = self._samples.get(node, ())
        assert not samples or samples[-1][0] <= now_s, "the steady clock does not step back"
        lately = [found for at_s, found in samples if now_s - at_s <= CLOCK_SAMPLE_AGE_S_MAX]
        return min(lately, key=attrgetter("error_us")) if lately else None

    def known(self, now_s: float) -> dict[int, Offset]:
        """By node, ascending."""
        found = ((node, self.of(node, now_s)) for node in sorted(self._samples))
        return {node: offset for node, offset in found if offset is not None}

    def validate(self) -> None:
        for node, samples in self._samples.items():
            assert 0 < len(samples) <= CLOCK_SAMPLES_MAX, f"samples of node {node}"
            newest_s, newest = samples[-1]
            for at_s, found in samples:
                assert at_s <= newest_s and not newest.contradicts(found), f"samples of node {node}"


def own_skew(offsets: Iterable[Offset]) -> Offset:
    """How far this node's clock is ahead of the middle of all clocks, its own among them.

    So one wrong clock among three or more finds itself wrong and no other. Where as many clocks say one thing
    as say another, each is counted as wrong: nobody can tell which are."""
    clocks = sorted((*offsets, Offset(0, 0)), key=lambda found: found.offset_us)
    low, high = clocks[(len(clocks) - 1) // 2], clocks[len(clocks) // 2]
    middle = max(low, high, key=lambda found: found.certain_us)
    return Offset(-middle.offset_us, middle.error_us)
