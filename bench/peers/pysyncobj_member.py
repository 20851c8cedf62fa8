"""One member of a PySyncObj group: `pysyncobj_member.py OWN OTHER OTHER DIRECTORY [--unsynced]`, run by the
interpreter that has the library.

The library writes its journal file through a memory map and never waits for the disk. So that its members
promise what the others do, this one syncs the map, when it changed, before it sends entries or acknowledges
them: one sync for all that came since the last. With `--unsynced` it is left as it is. Reads commands, one
JSON line each; the member that leads runs the submitters itself, as closed loops of callbacks, for the
library has no protocol for clients.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

from pysyncobj import FAIL_REASON, SyncObj, SyncObjConf, replicated

_SYNCS = [0]


class Extensions(SyncObj):
    def __init__(self, own: str, others: list[str], directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        settings = SyncObjConf(
            journalFile=os.path.join(directory, "journal"),
            fullDumpFile=os.path.join(directory, "dump"),
            commandsWaitLeader=True,
            autoTickPeriod=0.001,
            logCompactionMinEntries=10**9,
            logCompactionMinTime=10**9,
        )
        # The library's own thread begins in its constructor.
        self._values: dict[str, bytes] = {}
        self._synced = 0
        super().__init__(own, others, settings)

    def _sync(self) -> None:
        log = self._SyncObj__raftLog
        if "--unsynced" not in sys.argv and len(log) != self._synced:
            self._synced = len(log)
            _SYNCS[0] += 1
            log.flush()

    def _SyncObj__sendAppendEntries(self) -> None:
        self._sync()
        super()._SyncObj__sendAppendEntries()

    def _SyncObj__sendNextNodeIdx(self, *arguments: Any, **named: Any) -> None:
        self._sync()
        super()._SyncObj__sendNextNodeIdx(*arguments, **named)

    @replicated
    def put(self, name: str, value: bytes) -> None:
        self._values[name] = value


class Load:
    """Closed loops; the callbacks run in the library's own thread."""

    def __init__(self, group: Extensions, submitters: int, seconds: float, warm: float, size: int) -> None:
        self._group = group
        self._value = b"v" * size
        self.counted_s = time.perf_counter() + warm
        self.ends_s = self.counted_s + seconds
        self.latencies_us: list[int] = []
        self.errors = 0
        self._left = submitters
        self._done = threading.Event()
        for number in range(submitters):
            self._next(number)
        self._done.wait(seconds + warm + 3)

    def _next(self, number: int) -> None:
        sent_s = time.perf_counter()
        if sent_s > self.ends_s:
            self._left -= 1
            if not self._left:
                self._done.set()
            return

        def settled(_result: Any, reason: Any) -> None:
            done_s = time.perf_counter()
            if reason != FAIL_REASON.SUCCESS:
                self.errors += 1
            elif sent_s > self.counted_s and done_s < self.ends_s:
                self.latencies_us.append(int((done_s - sent_s) * 1e6))
            self._next(number)

        self._group.put(f"bench/{number}", self._value, callback=settled)


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


def main() -> None:
    own, first, second, directory = sys.argv[1:5]
    group = Extensions(own, [first, second], directory)
    while not group.isReady():
        time.sleep(0.01)
    say({"ready": True})
    for line in sys.stdin:
        command = json.loads(line)
        if command["run"] == "status":
            say({"leads": group._isLeader(), "syncs": _SYNCS[0]})
        else:
            load = Load(group, command["submitters"], command["seconds"], command["warm"], command["size"])
            say(
                {
                    "commits": len(load.latencies_us),
                    "errors": load.errors,
                    "seconds": command["seconds"],
                    "latencies_us": load.latencies_us,
                }
            )


if __name__ == "__main__":
    main()
