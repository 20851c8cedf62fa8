"""Limits of clocks: of the timestamps that a node gives, and of what it knows of other nodes' clocks.

Invariant: each number is named once, with its reason; nothing here depends on anything.
"""

from __future__ import annotations

from typing import Final

#: How far ahead of its clock a node reserves timestamps. After a crash it waits until they have passed, so
#: longer would keep it away; shorter would let a slow disk hold timestamps back.
STAMPS_RESERVED_US: Final = 2_000_000
#: With less than this reserved, more is: one small write to the disk in half a second at most.
STAMPS_RENEWED_BELOW_US: Final = 1_500_000
#: What is left of a reservation when the clock is at its end, until more is durable: as many timestamps.
STAMPS_KEPT_BACK_US: Final = 500_000
#: Longest wait for a timestamp that is not behind the clock: a few syncs of a disk that is busy.
STAMPS_CAUGHT_UP_MS: Final = 500
#: Pause before timestamps are reserved again after the disk refused.
STAMPS_RETRY_MS: Final = 500
#: Answers of one node from which its clock is known: the one with the shortest way of so many counts.
CLOCK_SAMPLES_MAX: Final = 8
#: Older ones say nothing: two clocks part by a few milliseconds a minute, and a dead node's may be set.
CLOCK_SAMPLE_AGE_S_MAX: Final = 60
#: Beyond that the wall clock of a node was set, and did not run.
CLOCK_STEP_US: Final = 50_000
