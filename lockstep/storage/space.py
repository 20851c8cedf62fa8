"""Whether the disk has room for writes: below a reserve they are refused, while reads, deletions and what the
metadata log needs go on.

Invariant: a refusal is made before anything is written, so it is definite and leaves the store as it was.
"""

from __future__ import annotations

from lockstep.runtime.ports import Runtime
from lockstep.values.errors import DiskRefused
from lockstep.values.limits import DISK_SPACE_LOOK_MS


class Space:
    """`reserve_bytes` 0: the disk is never looked at."""

    def __init__(self, runtime: Runtime, reserve_bytes: int) -> None:
        self._runtime = runtime
        self.reserve_bytes = reserve_bytes
        self._next_look_s = 0.0
        #: Whether `admit` is to look again.
        self._due = reserve_bytes > 0
        self.is_full = False
        #: Writes that were refused.
        self.refused = 0

    def synced(self) -> None:
        """What was written lies on the disk now."""
        self._due = self.reserve_bytes > 0

    def admit(self) -> None:
        """As `require`, before a write: a look between two syncs is enough."""
        if self._due:
            self.require()

    def look(self) -> bool:
        """Whether too little is free; the disk is asked every DISK_SPACE_LOOK_MS at most."""
        if not self.reserve_bytes:
            return False
        now_s = self._runtime.clock.monotonic_s()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + DISK_SPACE_LOOK_MS / 1000
            # Once full, a little more must be free before writes are taken again.
            wanted = self.reserve_bytes * (5 if self.is_full else 4) // 4
            self.is_full = self._runtime.disk.free_bytes() < wanted
        return self.is_full

    def require(self) -> None:
        """DiskRefused while there is too little room for a write."""
        self._due = False
        if self.look():
            self._due = True
            self.refused += 1
            self._runtime.probes.reach("storage.disk_full")
            raise DiskRefused(
                f"less than {self.reserve_bytes} bytes are free: writes are refused",
                hint="make room on the data directory's disk: storage.reserve_bytes stay free",
            )
