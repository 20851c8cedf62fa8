"""The main programs of workers and helpers: processes that answer questions over their standard streams.

Invariant: a worker is confined before it reads the first question; the first message that it writes says why
it could not be, and is empty when it was. A message is its length in four bytes, then its bytes.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
from collections.abc import Callable

from lockstep.runtime.real.confinement import confine, end_with_parent

_LENGTH = struct.Struct(">I")


def main(handler: str, memory_bytes: int, cpu_s: int) -> None:
    """Answer with the function that `handler` names, `module:function`, until the input ends."""
    answer = _function(handler)
    _warm()
    _write(confine(memory_bytes, cpu_s).encode())
    while (question := _read()) is not None:
        _write(answer(question))


def help_out(handler: str, niceness: int) -> None:
    """As `main`, of a helper: it may do what its node may, after everybody else."""
    end_with_parent()
    # Signals from a terminal are for the node, which ends its helpers.
    os.setpgid(0, 0)
    os.nice(niceness)
    answers = os.dup(1)
    # Whatever else is printed goes to the log.
    os.dup2(2, 1)
    work = _function(handler)
    while (order := _read()) is not None:
        _write(work(order), answers)


def _function(handler: str) -> Callable[[bytes], bytes]:
    module, _, name = handler.partition(":")
    found: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    return found


def _warm() -> None:
    """Use once what loads files on first use."""
    "\u00e9".encode("ascii", "backslashreplace").decode("utf-8")
    sys.setrecursionlimit(500)


def _read() -> bytes | None:
    head = _exactly(_LENGTH.size)
    return _exactly(_LENGTH.unpack(head)[0]) if head is not None else None


def _exactly(size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(0, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _write(message: bytes, descriptor: int = 1) -> None:
    left = memoryview(_LENGTH.pack(len(message)) + message)
    while left:
        left = left[os.write(descriptor, left) :]
