"""The bounds of tracking, each named once with its reason."""

from __future__ import annotations

from typing import Final

#: Replicas of a range, as many as a keyspace may ask for in all data centres together.
PARTICIPANTS_MAX: Final = 32
#: Logs that one summary lists: 32 replicas, and as many starts of each that are not reconciled yet.
LOGS_MAX: Final = 1024
#: Runs of one summary: a hundred thousand gaps are 400 KB, and take a core some 50 ms to compare.
RUNS_MAX: Final = 200_000
#: Cohorts of one range: those sets of holders that an outage of five replicas makes in every order.
COHORTS_MAX: Final = 64
#: A client's write ends within this, as at the coordinator; a bound of time stays so far behind the clock,
WRITE_TIMEOUT_US: Final = 2_000_000
#: and further, by what a message may wait in queues,
BOUND_MARGIN_US: Final = 1_000_000
#: and by what the clocks of two nodes may differ.
CLOCK_UNCERTAINTY_US: Final = 500_000
#: Data reads of one tracked read: the second one is of a replica that holds all ids that were told.
DATA_READS_MAX: Final = 2
#: A contacted replica that is silent for so long is replaced by another one, while there are some.
STALL_MS: Final = 50
#: Mutations in one answer to a pull: a mebibyte where they have two kilobytes, the bytes bound larger ones.
PULL_IDS_MAX: Final = 512
#: What the reconciler ships to one peer in a second, and at once after a pause: a tenth of a gigabit link, so
#: that reads and writes have the rest.
RECONCILE_BYTES_PER_S: Final = 12 * 1024 * 1024
RECONCILE_BURST_BYTES: Final = 2 * 1024 * 1024
#: A peer that did not answer is asked again after this, then twice as late each time, up to the most.
BACKOFF_MS: Final = 500
BACKOFF_MS_MAX: Final = 30_000
#: Symbols of one audit: a hundred thousand differences, 4 MB. More is no audit, the data must be compared.
SYMBOLS_MAX: Final = 140_000
#: Ranges that a client remembers mutations of: more than the ranges of a node with 16 tokens and three
#: replicas. What is reconciled leaves it within seconds.
CAUSAL_SPANS_MAX: Final = 64
#: Of a causal token: as many ids with gaps between them as a client sees of 64 ranges in some seconds.
CAUSAL_TOKEN_BYTES_MAX: Final = 16_384
