"""Owns the counting of requests in the load process: totals, recent percentiles, samples for the report.

Invariant: every request that was started is counted once when it ends. The driver ends requests on its own
thread, so each method does a few plain operations under one lock.
"""

from __future__ import annotations

import csv
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from lockstep.local.demo_messages import ERROR, REPORT_WINDOW_S, WRONG, Counts, Report

#: Requests that the recent percentiles look at, at most.
RECENT_MAX: Final = 20_000
#: Samples kept for the report; beyond it only totals are counted. An hour at the default rate.
SAMPLES_MAX: Final = 2_000_000
EXAMPLE_CHARS_MAX: Final = 300

SAMPLE_COLUMNS: Final = ("ended_s", "latency_ms", "operation", "outcome")


class Tally:
    def __init__(self) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_MAX)
        self._samples: list[tuple[float, float, str, str]] = []
        self._keep_samples = False

    def keep_samples(self, keep: bool) -> None:
        """Whether requests that end from now on go into the report."""
        with self._lock:
            self._keep_samples = keep

    def ended(self, operation: str, started_s: float, outcome: str) -> None:
        now = time.monotonic()
        latency_ms = (now - started_s) * 1000
        with self._lock:
            self._recent.append((now, latency_ms))
            if self._keep_samples and len(self._samples) < SAMPLES_MAX:
                self._samples.append((now, latency_ms, operation, outcome))
            if outcome == WRONG:
                self.counts.wrong_reads += 1
            elif outcome == ERROR:
                self.counts.client_errors += 1

    def raw_error(self, kind: str, what: object) -> None:
        """An error that the driver's retry policy saw."""
        with self._lock:
            self.counts.raw_errors += 1
        self.remember(f"raw: {kind}", what)

    def remember(self, kind: str, what: object) -> None:
        with self._lock:
            self.counts.errors[kind] = self.counts.errors.get(kind, 0) + 1
            self.counts.examples.setdefault(kind, str(what)[:EXAMPLE_CHARS_MAX])

    def add(self, **numbers: int) -> None:
        """Add to the named totals."""
        with self._lock:
            for name, number in numbers.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)

    def copy(self) -> Counts:
        with self._lock:
            return msgspec.structs.replace(
                self.counts, errors=dict(self.counts.errors), examples=dict(self.counts.examples)
            )

    def report(self, done: int = 0, total: int = 0) -> Report:
        now = time.monotonic()
        with self._lock:
            while self._recent and self._recent[0][0] < now - REPORT_WINDOW_S:
                self._recent.popleft()
            latencies = sorted(latency for _, latency in self._recent)
            span_s = max(0.1, now - self._recent[0][0]) if self._recent else 1.0
        return Report(
            at_s=now,
            counts=self.copy(),
            ops_per_s=len(latencies) / span_s,
            p50_ms=percentile(latencies, 0.50),
            p99_ms=percentile(latencies, 0.99),
            done=done,
            total=total,
        )

    def write_samples(self, path: Path) -> int:
        """Write the kept samples as CSV; returns their number."""
        with self._lock:
            samples = list(self._samples)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(SAMPLE_COLUMNS)
            writer.writerows(
                (f"{at:.4f}", f"{latency:.3f}", operation, outcome)
                for at, latency, operation, outcome in samples
            )
        return len(samples)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that a `share` of them does not exceed; 0 without values."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]
