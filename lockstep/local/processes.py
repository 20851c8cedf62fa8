"""Owns the handling of one background process that may outlive the Python process that started it, its
environment, and files for its own user alone: configurations with secrets, logs, dumps.

Invariant: a signal reaches a process only when its id and its start time equal those recorded when it was
started, so a reused process id is never touched. Settings meant for another node never reach one, and the
process imports this very package. Nobody else reads what is opened with `owner_only`, or made in a directory
of mode OWNER_DIRECTORY.
"""

from __future__ import annotations

import contextlib
import enum
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

import lockstep

OWNER_DIRECTORY: Final = 0o700
_OWNER_FILE: Final = 0o600


def owner_only(path: str, flags: int) -> int:
    """An opener for `open`: a new file is for its owner alone."""
    return os.open(path, flags, _OWNER_FILE)


#: How often a wait looks again. A look costs microseconds; a node starts in some hundred milliseconds.
POLL_S: Final = 0.01


class State(enum.Enum):
    """What the operating system says about a recorded process."""

    RUNNING = "running"
    PAUSED = "paused"
    STOPPED = "stopped"


class ProcessIdentity(msgspec.Struct, frozen=True):
    """A process id, with the start time that tells it from a later process of the same id."""

    pid: int
    started: str


def available_memory_bytes(told: Path = Path("/proc/meminfo")) -> int:
    """What new processes may take before something else has to go, as the kernel estimates it."""
    for line in told.read_text().splitlines():
        name, _, amount = line.partition(":")
        if name == "MemAvailable":
            return int(amount.split()[0]) * 1024
    raise OSError(f"{told} does not say MemAvailable")


def spawn(
    command: Sequence[str], *, log: Path, pid_file: Path, environment: Mapping[str, str]
) -> ProcessIdentity:
    """Start `command` in a session of its own, output appended to `log`, identity kept in `pid_file`.

    Raises OSError when the program cannot be started.
    """
    with open(log, "ab", opener=owner_only) as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
    # The process belongs to the directory, not to this object; `look` reaps it if it is still our child.
    child.returncode = 0
    return record(child.pid, pid_file)


def record(pid: int, pid_file: Path) -> ProcessIdentity:
    """Keep the identity of a process that was started in `pid_file`."""
    seen = _inspect(pid)
    identity = ProcessIdentity(pid, seen[1] if seen else "")
    partial = pid_file.with_name("pid.new")
    partial.write_bytes(msgspec.json.encode(identity))
    partial.replace(pid_file)
    return identity


def recorded(pid_file: Path) -> ProcessIdentity | None:
    """The identity in `pid_file`, or None when there is none."""
    try:
        return msgspec.json.decode(pid_file.read_bytes(), type=ProcessIdentity)
    except FileNotFoundError:
        return None


def look(identity: ProcessIdentity | None) -> State:
    """What the recorded process does now; a process of another start time counts as STOPPED."""
    if identity is None or not identity.started:
        return State.STOPPED
    seen = _inspect(identity.pid)
    if seen is None or seen[1] != identity.started:
        return State.STOPPED
    if seen[0] in "ZX":
        with contextlib.suppress(ChildProcessError):
            os.waitpid(identity.pid, os.WNOHANG)
        return State.STOPPED
    return State.PAUSED if seen[0] in "Tt" else State.RUNNING


def send(identity: ProcessIdentity | None, number: signal.Signals) -> bool:
    """Signal the recorded process; False when it no longer runs."""
    if identity is None or look(identity) is State.STOPPED:
        return False
    try:
        os.kill(identity.pid, number)
    except ProcessLookupError:
        return False
    return True


def wait_until(condition: Callable[[], bool], timeout_s: float) -> bool:
    """True as soon as `condition` holds; False when it does not within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return False
        time.sleep(POLL_S)
    return True


def _inspect(pid: int) -> tuple[str, str] | None:
    """State letter and start time of a process, or None when there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None if Path("/proc/self/stat").exists() else _inspect_by_ps(pid)
    # The command name, in parentheses, may itself hold spaces and parentheses.
    fields = status.rpartition(")")[2].split()
    # A killed process shows as a zombie while threads of it still end, and until then its ports are taken.
    ending = fields[0] == "Z" and int(fields[17]) > 1
    return "R" if ending else fields[0], fields[19]


def _inspect_by_ps(pid: int) -> tuple[str, str] | None:
    """For systems without /proc. `lstart` has seconds, which is enough to tell reuse in practice."""
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    letter, _, started = answer.stdout.strip().partition(" ")
    return (letter[:1], started.strip()) if letter else None


def node_environment(own: Mapping[str, str]) -> dict[str, str]:
    """What a node process inherits: everything but settings meant for another node, and this package."""
    environment = {key: value for key, value in own.items() if not key.startswith("LOCKSTEP_")}
    package_root = str(Path(lockstep.__file__).parents[1])
    others = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{package_root}{os.pathsep}{others}" if others else package_root
    environment["PYTHONUNBUFFERED"] = "1"
    # Who wants no `__pycache__` beside the sources gets it elsewhere: compiling them anew costs every start
    # of a node three times what importing them does.
    if environment.pop("PYTHONDONTWRITEBYTECODE", "") and "PYTHONPYCACHEPREFIX" not in environment:
        caches = own.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
        environment["PYTHONPYCACHEPREFIX"] = os.path.join(caches, "lockstep", "bytecode")
    return environment
