"""The bounds of tracking, each named once with its reason."""

from __future__ import annotations

from typing import Final

#: Replicas of a range, as many as a keyspace may ask for in all data centres together.
PARTICIPANTS_MAX: Final = 32
#: Symbols of one audit: a hundred thousand differences, 4 MB. More is no audit, the data must be compared.
SYMBOLS_MAX: Final = 140_000
#: Ranges of tables that a client remembers mutations of: more than two tables have on three nodes with 16
#: tokens. What is reconciled leaves it within seconds.
CAUSAL_SPANS_MAX: Final = 128
#: Of a causal token: as many ids with gaps between them as a client sees of so many ranges in some seconds.
CAUSAL_TOKEN_BYTES_MAX: Final = 16_384
