"""How far the clocks of other nodes are from this node's, by what they say in answers to questions.

An answer brings the other clock's time; between question and answer lies a round trip, measured by the steady
clock, so the answer was given at its middle, give or take half of it. Of the last answers the one with the
shortest round trip says most; one that contradicts the newest was given before a clock stepped.

Invariant: an estimate is true to within its error as long as no clock stepped since the newest answer. Pure:
times are handed in.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from lockstep.values.clock_limits import CLOCK_SAMPLE_AGE_S_MAX, CLOCK_SAMPLES_MAX


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
        samples = [
            found for at_s, found in self._samples.get(node, ()) if now_s - at_s <= CLOCK_SAMPLE_AGE_S_MAX
        ]
        return min(samples, key=lambda found: found.error_us) if samples else None

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
