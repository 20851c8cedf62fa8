"""Starts several nodes of this machine at once: `python -P -m lockstep.local.nursery` loads what nodes run
once, forks each into a session of its own, says their process ids and ends.

Invariant: a node that is started so is as one that was started by itself: nothing ran before its fork but
imports, its output goes to its own log, and lists of processes show it with the command of one node.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from lockstep.local.processes import owner_only

COMMAND: Final = (sys.executable, "-P", "-m", "lockstep.local.nursery")
#: Where a process with everything loaded may be forked safely; elsewhere nodes are started one by one.
IS_USABLE: Final = sys.platform == "linux"
#: Of other people's modules, what nodes load while they start, and not by importing what they run.
LOADED_BY_STARTS: Final = ("concurrent.futures.thread", "encodings.idna", "pickle", "rocksdict", "uvloop")
#: Fields of /proc/self/stat behind the name: where the arguments begin and end.
_ARGUMENTS_BEGIN, _ARGUMENTS_END = 45, 46


class Child(msgspec.Struct, frozen=True):
    """A node to start: its command, and the file to which its output is appended."""

    command: list[str]
    log: str


class Order(msgspec.Struct, frozen=True):
    children: list[Child]


class Started(msgspec.Struct, frozen=True):
    """Process ids, in the order of the children."""

    pids: list[int]


def start(children: Sequence[Child], environment: Mapping[str, str]) -> list[int]:
    """Process ids of nodes that were started. OSError when they could not be."""
    # Room for the command of a node in the place of this one's.
    room = " " * max(len(" ".join(child.command)) for child in children)
    done = subprocess.run(
        [*COMMAND, room],
        input=msgspec.json.encode(Order(list(children))),
        capture_output=True,
        env=dict(environment),
        check=False,
    )
    try:
        return msgspec.json.decode(done.stdout, type=Started).pids
    except msgspec.MsgspecError as error:
        raise OSError(f"nodes could not be started: {done.stderr.decode(errors='replace')}") from error


def main() -> int:
    # What a node loads when it starts is here before the first fork. It all stays: nobody need search it for
    # cycles, least of all while it grows.
    gc.disable()
    for name in LOADED_BY_STARTS:
        importlib.import_module(name)
    from lockstep.server import main as node
    from lockstep.storage.rocks import rocks, rocks_building, rocks_keeping  # noqa: F401

    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    gc.freeze()
    gc.enable()
    pids: list[int] = []
    for child in order.children:
        pid = os.fork()
        if not pid:
            _become(child)
            return node.main(child.command[child.command.index("--config") :])
        pids.append(pid)
    os.write(sys.stdout.fileno(), msgspec.json.encode(Started(pids)))
    return 0


def _become(child: Child) -> None:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = owner_only(child.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for opened, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(opened, number)
    os.close(nothing)
    os.close(log)
    # Who lists processes sees the wrong name where this is refused, and nothing else is lost.
    with contextlib.suppress(OSError):
        _show(child.command)


def _show(command: Sequence[str]) -> None:
    """Have lists of processes show another command. OSError where the kernel does not let it."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[_ARGUMENTS_BEGIN]), int(fields[_ARGUMENTS_END])
    shown = b"\0".join(os.fsencode(argument) for argument in command)[: end - begin - 1]
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(shown.ljust(end - begin, b"\0"))


if __name__ == "__main__":
    sys.exit(main())
