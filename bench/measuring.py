"""What the benchmarks share: CPU and memory of processes, percentiles, tables and result files.

Invariant: CPU is what the kernel charged to the named processes and all their threads, user and system
time together; the process that makes the load is never among them.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "bench" / "results"
#: Data of measured processes lies on the file system of the checkout: a memory file system syncs for free.
SCRATCH = ROOT / "build" / "bench-data"
_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER_FIELD, _SYSTEM_FIELD = 11, 12


def cpu_s(pid: int) -> float:
    """Seconds of CPU that a process has used, with all its threads."""
    user_s, system_s = cpu_split_s(pid)
    return user_s + system_s


def cpu_split_s(pid: int) -> tuple[float, float]:
    """(user, system) seconds of CPU of a process."""
    # The command name, in parentheses, may itself hold spaces.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[_USER_FIELD]) / _TICKS, int(fields[_SYSTEM_FIELD]) / _TICKS


def loop_s(pid: int) -> float:
    """Seconds of CPU of a process's first thread alone: without syncs, and what the store does by itself."""
    fields = Path(f"/proc/{pid}/task/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[_USER_FIELD]) + int(fields[_SYSTEM_FIELD])) / _TICKS


def resident_mb(pid: int) -> float:
    """Resident memory in units of 10^6 bytes."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6


def shared_out_mb(pid: int) -> float:
    """Memory of a process in units of 10^6 bytes; what several have in common is divided among them."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ascending values lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else 0.0


class CpuMeter:
    """CPU of some processes between `start` and `stop`."""

    def __init__(self, pids: Sequence[int]) -> None:
        self._pids = list(pids)
        self._before: list[tuple[float, float]] = []
        self._loop_before_s = 0.0
        self._began_s = 0.0

    def start(self) -> None:
        self._began_s = time.perf_counter()
        self._before = [cpu_split_s(pid) for pid in self._pids]
        self._loop_before_s = sum(map(loop_s, self._pids))

    def stop(self) -> dict[str, float]:
        """Wall seconds, and CPU seconds of all processes together."""
        pairs = list(zip(self._before, [cpu_split_s(pid) for pid in self._pids], strict=True))
        user_s = sum(after[0] - before[0] for before, after in pairs)
        system_s = sum(after[1] - before[1] for before, after in pairs)
        wall_s = time.perf_counter() - self._began_s
        loops_s = sum(map(loop_s, self._pids)) - self._loop_before_s
        return {
            "wall_s": wall_s,
            "user_s": user_s,
            "system_s": system_s,
            "cpu_s": user_s + system_s,
            "loop_s": loops_s,
        }


class DescendantsMeter:
    """CPU between `start` and `stop` of all processes below some, also of those that end meanwhile, but not
    of `others` and those below them."""

    _EVERY_S = 0.1

    def __init__(self, roots: Sequence[int], others: Sequence[int] = ()) -> None:
        self._roots, self._others = list(roots), set(others)
        self._seen: dict[int, float] = {}
        self._ended = threading.Event()
        self._watcher: threading.Thread | None = None

    def start(self) -> None:
        self._before = dict(self._look())
        self._seen = dict(self._before)
        self._ended.clear()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()

    def stop(self) -> float:
        self._ended.set()
        assert self._watcher is not None, "it was started"
        self._watcher.join()
        self._seen.update(self._look())
        return sum(used_s - self._before.get(pid, 0.0) for pid, used_s in self._seen.items())

    def _watch(self) -> None:
        while not self._ended.wait(self._EVERY_S):
            self._seen.update(self._look())

    def _look(self) -> list[tuple[int, float]]:
        found = []
        for root in self._roots:
            for pid in self._below(root):
                try:
                    found.append((pid, cpu_s(pid)))
                except (FileNotFoundError, ProcessLookupError):
                    continue  # it has ended just now
        return found

    def _below(self, pid: int) -> list[int]:
        found: list[int] = []
        try:
            for task in list(Path(f"/proc/{pid}/task").iterdir()):
                for child in map(int, (task / "children").read_text().split()):
                    if child not in self._others:
                        found += [child, *self._below(child)]
        except (FileNotFoundError, ProcessLookupError):
            return found
        return found


def environment() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    revision = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "revision": revision,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "load_before": os.getloadavg()[0],
    }


def save(name: str, figures: Mapping[str, Any]) -> Path:
    """Write bench/results/<name>.json."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{name}.json"
    document = {"schema": f"lockstep-bench-{name}/1", "environment": environment(), **figures}
    path.write_text(json.dumps(document, indent=2) + "\n")
    return path


def table(title: str, rows: Sequence[Sequence[object]]) -> str:
    """Rows as aligned text, the first one being the heading; numbers are right-aligned."""
    cells = [[_shown(value) for value in row] for row in rows]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    numeric = [
        all(isinstance(row[column], int | float) for row in rows[1:]) for column in range(len(cells[0]))
    ]
    lines = [
        "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()
        for row in cells
    ]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return f"\n{title}\n" + "\n".join(lines)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return (
            f"{value:.2f}" if abs(value) < 10 else f"{value:,.1f}" if abs(value) < 1000 else f"{value:,.0f}"
        )
    return f"{value:,}" if isinstance(value, int) else str(value)
