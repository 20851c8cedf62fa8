"""What this version tells clients it is compatible with.

Invariant: drivers choose their schema queries by the release, and cqlsh warns unless it equals the one it
was built for, so it changes only together with the clients that are tested.
"""

from __future__ import annotations

from typing import Final

#: The Cassandra release whose behaviour clients may expect.
CASSANDRA_RELEASE: Final = "5.0.0"
