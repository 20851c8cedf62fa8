"""How many requests of clients a node works on at once, and how long others may wait: learned, not set.

Two measurements decide. How long requests are worked on follows from how many were in flight and how many
ended (Little's law); how busy the loop is from how late its timer comes. While requests take longer than
ADMISSION_TARGET_MS on a busy loop, fewer are admitted; while others wait although requests are fast, or
though the loop has time (what is slow then is elsewhere), more are.

Invariants: ADMISSION_MIN <= limit <= ADMISSION_MAX. A request waits for ADMISSION_PATIENCE_MS at most, and
for ADMISSION_STANDING_MS once others have waited all the time for that long: a burst is taken in, a queue
that stays is shortened. Time is given in, never asked for.
"""

from __future__ import annotations

from lockstep.values.request_limits import (
    ADMISSION_BUSY_MS,
    ADMISSION_MAX,
    ADMISSION_MIN,
    ADMISSION_PATIENCE_MS,
    ADMISSION_STANDING_MS,
    ADMISSION_START,
    ADMISSION_TARGET_MS,
    ADMISSION_WINDOW_MS,
)


class Admission:
    """Fed by `observe`; answers with `limit` and `patience_s`."""

    def __init__(self) -> None:
        self.limit = ADMISSION_START
        self._began_s = -1.0
        self._seen_s = 0.0
        self._ended_before = 0
        #: Requests in flight times seconds.
        self._area = 0.0
        self._late_s = 0.0
        self._observed = 0
        self._wanted = False
        self._standing_since_s = -1.0

    def observe(self, now_s: float, in_flight: int, ended: int, late_s: float, *, waiting: bool) -> None:
        """`ended`: requests so far; `late_s`: by how much the timer that calls this was late; `waiting`: some
        requests wait for admission."""
        if not waiting:
            self._standing_since_s = -1.0
        elif self._standing_since_s < 0:
            self._standing_since_s = now_s
        if self._began_s < 0:
            self._begin(now_s, ended)
            return
        self._area += in_flight * (now_s - self._seen_s)
        self._seen_s = now_s
        self._late_s += late_s
        self._observed += 1
        self._wanted = self._wanted or waiting
        if now_s - self._began_s >= ADMISSION_WINDOW_MS / 1000:
            self._judge(now_s, ended)
            self._begin(now_s, ended)

    def rest(self) -> None:
        """Nothing is in flight and nobody waits: what was observed says nothing of what comes next."""
        self._began_s = self._standing_since_s = -1.0

    def patience_s(self, now_s: float) -> float:
        """How long a request may have waited that is still admitted."""
        since_s = self._standing_since_s
        stands = since_s >= 0 and now_s - since_s >= ADMISSION_PATIENCE_MS / 1000
        return (ADMISSION_STANDING_MS if stands else ADMISSION_PATIENCE_MS) / 1000

    def _begin(self, now_s: float, ended: int) -> None:
        self._began_s = self._seen_s = now_s
        self._ended_before = ended
        self._area = self._late_s = 0.0
        self._observed = 0
        self._wanted = False

    def _judge(self, now_s: float, ended: int) -> None:
        done = ended - self._ended_before
        assert done >= 0, "what has ended stays so"
        took_s = self._area / max(done, 1)
        busy = self._late_s / self._observed >= ADMISSION_BUSY_MS / 1000
        target_s = ADMISSION_TARGET_MS / 1000
        if busy and took_s > target_s:
            # No lower than half, for one window may be an accident.
            worked_on = min(self.limit, self._area / (now_s - self._began_s))
            self.limit = max(ADMISSION_MIN, int(worked_on * max(0.5, target_s / took_s)))
        elif self._wanted:
            self.limit = min(ADMISSION_MAX, self.limit + max(4, self.limit // 8))
        assert ADMISSION_MIN <= self.limit <= ADMISSION_MAX, f"a limit of {self.limit}"
