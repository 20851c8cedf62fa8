"""How a task tries again what another host, or the same one a little later, may answer."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Final

from lockstep.spark.cql_client import may_retry
from lockstep.values.errors import LockstepError
from lockstep.values.limits import SPARK_ATTEMPTS_MAX, SPARK_RETRY_MS_MAX, SPARK_RETRY_MS_MIN

_MILLISECONDS: Final = 1000


class Retry:
    """Counts failures in a row and pauses between them; the last one is raised."""

    def __init__(self, pause: Callable[[float], None] = time.sleep) -> None:
        self._failures = 0
        self._pause = pause

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, error: LockstepError) -> None:
        """Raises `error` when no retry can help or there were enough; else returns after a pause."""
        self._failures += 1
        if not may_retry(error) or self._failures >= SPARK_ATTEMPTS_MAX:
            raise error
        if self._failures == 1:
            return
        pause_ms = min(SPARK_RETRY_MS_MIN << (self._failures - 2), SPARK_RETRY_MS_MAX)
        self._pause(pause_ms * random.uniform(0.5, 1.0) / _MILLISECONDS)
