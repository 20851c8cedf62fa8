"""When a request asks one more replica: the policies of tables, and how long their requests took lately.

Invariant: a histogram has a fixed number of counters, whose sum is bounded, so old requests fade; the same
requests give the same waits on every run.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import msgspec

from lockstep.values.limits import (
    LATENCY_SAMPLES_MAX,
    LATENCY_SAMPLES_MIN,
    LATENCY_TABLES_MAX,
    READ_EXTRA_AFTER_MS,
)

#: Each bucket of a histogram ends a fifth above the one before; the first at a tenth of a millisecond, the
#: last above one minute.
_GROWTH: Final = 1.2
_FIRST_MS: Final = 0.1
_BUCKETS: Final = 76
_BOUNDS_MS: Final = tuple(_FIRST_MS * _GROWTH**at for at in range(_BUCKETS))
_PART = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(p|percentile|ms)\s*", re.ASCII)


class Part(msgspec.Struct, frozen=True):
    """A fixed time, or where `is_percentile` the time that so many of a hundred requests took."""

    number: float
    is_percentile: bool


class Policy(msgspec.Struct, frozen=True):
    """Of several `parts` the shortest or the longest counts. No parts: never, or with `always` at once."""

    parts: tuple[Part, ...] = ()
    longest: bool = False
    always: bool = False


#: Nobody else is asked.
NEVER: Final = Policy()


@lru_cache(maxsize=256)
def policy_of(text: str) -> Policy:
    """The policy that a table option, which was checked, describes."""
    text = text.strip().lower()
    if text in ("none", "always"):
        return Policy(always=text == "always")
    inner = text.partition("(")[2].rstrip(") ") or text
    parts = []
    for one in inner.split(","):
        found = _PART.fullmatch(one)
        assert found is not None, f"the policy {text!r} was checked"
        parts.append(Part(float(found[1]), found[2] != "ms"))
    assert all(part.number <= 100 for part in parts if part.is_percentile), (
        f"{text!r} is of a hundred requests"
    )
    return Policy(tuple(parts), longest=text.startswith("max"))


class Histogram:
    """How long requests took; halved whenever it is full, so that the last ones weigh most."""

    __slots__ = ("_counts", "_known", "_known_at", "total")

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.total = 0
        #: Percentiles found since `_known_at` requests were counted.
        self._known: dict[float, float] = {}
        self._known_at = 0

    def add(self, took_ms: float) -> None:
        self._counts[_bucket(took_ms)] += 1
        self.total += 1
        if self.total >= self._known_at + LATENCY_SAMPLES_MIN:
            self._known.clear()
            self._known_at = self.total
        if self.total >= LATENCY_SAMPLES_MAX:
            self._counts = [count // 2 for count in self._counts]
            self.total = self._known_at = sum(self._counts)

    def percentile(self, percent: float) -> float:
        """Milliseconds that `percent` of the requests did not take longer than, rounded up to a bucket; as it
        was some requests ago."""
        known = self._known.get(percent)
        if known is None:
            known = self._known[percent] = self._walked(percent)
        return known

    def _walked(self, percent: float) -> float:
        assert 0 <= percent <= 100, f"{percent} of a hundred requests"
        missing = math.ceil(self.total * percent / 100) - self._counts[0]
        at = 0
        while missing > 0:
            at += 1
            missing -= self._counts[at]
        return _BOUNDS_MS[at]

    def validate(self) -> None:
        assert self.total == sum(self._counts) < LATENCY_SAMPLES_MAX, "requests are miscounted"
        assert self._known_at <= self.total, "percentiles are of what was counted"


def _bucket(took_ms: float) -> int:
    return min(_BUCKETS - 1, bisect_left(_BOUNDS_MS, took_ms))


class Latencies:
    """Histograms of the tables that were asked lately; the one that came first makes room for another."""

    def __init__(self) -> None:
        self._by_table: dict[int, Histogram] = {}

    def add(self, table_id: int, took_s: float) -> None:
        found = self._by_table.get(table_id)
        if found is None:
            if len(self._by_table) >= LATENCY_TABLES_MAX:
                del self._by_table[next(iter(self._by_table))]
            found = self._by_table[table_id] = Histogram()
        found.add(took_s * 1000)

    def wait_s(self, table_id: int, policy: Policy, left_s: float) -> float | None:
        """How long to wait before one more replica is asked; None: it is not.

        A percentile waits for a quarter of the request's time at most, and while few requests have been seen
        for a time that suits most.
        """
        if not policy.parts:
            return 0.0 if policy.always else None
        choose: Callable[..., float] = max if policy.longest else min
        return choose([self._part_s(table_id, part, left_s) for part in policy.parts])

    def _part_s(self, table_id: int, part: Part, left_s: float) -> float:
        if not part.is_percentile:
            return part.number / 1000
        known = self._by_table.get(table_id)
        wait_ms: float = READ_EXTRA_AFTER_MS
        if known is not None and known.total >= LATENCY_SAMPLES_MIN:
            wait_ms = known.percentile(part.number)
        return min(wait_ms / 1000, max(left_s, 0.0) / 4)

    def validate(self) -> None:
        assert len(self._by_table) <= LATENCY_TABLES_MAX, "tables make room for others"


class ExtraRequests:
    """What came of asking more replicas, for metrics."""

    __slots__ = ("asked", "digest_mismatches", "insufficient", "missed", "repairs_extended")

    def __init__(self) -> None:
        #: Rounds of reads that asked another replica since those asked were slow.
        self.asked = 0
        #: Rounds that timed out although they had.
        self.missed = 0
        #: Rounds that were slow and had nobody left to ask.
        self.insufficient = 0
        #: Repairs that were sent to more replicas since those that lacked something were slow.
        self.repairs_extended = 0
        #: Rounds in which a digest was none of an answer at hand.
        self.digest_mismatches = 0
