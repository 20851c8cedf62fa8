"""Runs tests or simulated seeds against one mutant, in a process that is forked for it.

Invariant: the parent has imported nothing of the product, so the child imports the mutated module in the
place of the sound one; a child that runs too long or takes too much memory ends as killed by its limits.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from types import CodeType
from typing import NamedTuple

#: Of a sound run's CPU time; mutants that loop are ended by this.
CPU_FACTOR = 6
CPU_S_MIN = 20
#: Longest wall time of what burns little.
WALL_FACTOR = 20
#: Who burns nothing for so long waits for what never comes, also on a machine that others use.
IDLE_S_MAX = 45.0
DATA_BYTES_MAX = 6 << 30


class Verdict(Enum):
    KILLED = "killed"
    SURVIVED = "survived"
    #: It ran into the limit of time or memory, which the sound code does not.
    ENDLESS = "endless"


class Outcome(NamedTuple):
    verdict: Verdict
    cpu_s: float
    #: The last lines that the child wrote.
    tail: str


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class MutatedFinder(importlib.abc.MetaPathFinder):
    """Finds one module, with a text of its own instead of the file's."""

    def __init__(self, name: str, path: Path, text: str) -> None:
        self._name = name
        self._path = path
        self._text = text

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._name:
            return None
        loader = _Loader(name, str(self._path), self._text)
        inside = [str(self._path.parent)] if self._path.name == "__init__.py" else None
        return importlib.util.spec_from_file_location(
            name, self._path, loader=loader, submodule_search_locations=inside
        )


def in_child(work: Callable[[], bool], log: Path, cpu_limit_s: float) -> Outcome:
    """`work` in a forked process: whether it saw nothing wrong. An exception is something wrong."""
    assert not any(name.partition(".")[0] == "lockstep" for name in sys.modules), "the child imports it"
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(work, log, cpu_limit_s)
    burnt, burnt_at = "", began
    while True:
        ended, status, used = os.wait4(child, os.WNOHANG)
        if ended:
            break
        now = time.monotonic()
        if not (said := _burnt(child)) or said != burnt:
            burnt, burnt_at = said, now
        if now - began > cpu_limit_s * WALL_FACTOR or now - burnt_at > IDLE_S_MAX:
            os.killpg(child, signal.SIGKILL)
            _, status, used = os.wait4(child, 0)
            break
        time.sleep(0.02)
    return Outcome(_judge(status), used.ru_utime + used.ru_stime, _tail(log))


def _burnt(child: int) -> str:
    """The ticks of CPU time of a process and those it waited for; "" where nothing tells them."""
    stat = Path(f"/proc/{child}/stat")
    fields = stat.read_text().rpartition(")")[2].split() if stat.exists() else []
    return " ".join(fields[11:15])


def _judge(status: int) -> Verdict:
    if os.WIFSIGNALED(status):
        crashed = os.WTERMSIG(status) not in (signal.SIGKILL, signal.SIGXCPU)
        return Verdict.KILLED if crashed else Verdict.ENDLESS
    return Verdict.SURVIVED if os.WEXITSTATUS(status) == 0 else Verdict.KILLED


def _be_child(work: Callable[[], bool], log: Path, cpu_limit_s: float) -> None:
    code = 1
    try:
        os.setsid()
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(written, 1)
        os.dup2(written, 2)
        limit = int(cpu_limit_s) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
        code = 0 if work() else 1
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _tail(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "\n".join(lines[-15:])


def simulated(seeds: Sequence[int]) -> bool:
    """Whether no checker finds anything in one run of each seed, the scenarios taking turns."""
    from lockstep.sim.runner import work
    from lockstep.sim.scenarios import SCENARIOS

    names = [scenario.name for scenario in SCENARIOS.values() if scenario.by_default]
    for at, seed in enumerate(seeds):
        result = work((names[at % len(names)], seed))
        print(f"{result.scenario} {seed}: {result.violation or 'held'}", flush=True)
        if result.violation:
            return False
    return True
