"""What holds for the whole suite."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """What collecting the tests has made stays to the end, so collections of garbage need not walk it: that
    was half of the time of simulations, which begin with one and have more on the way."""
    gc.collect()
    gc.freeze()
