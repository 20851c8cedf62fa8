"""The main program of a worker: a confined process that answers questions over its standard streams.

Invariant: it is confined before it reads the first question. A message is its length in four bytes, then its
bytes; the first one that it writes says why it could not be confined, and is empty when it was.
"""

from __future__ import annotations

import importlib
import os
import struct
import sys
from collections.abc import Callable

from lockstep.runtime.real.confinement import confine

_LENGTH = struct.Struct(">I")


def main(handler: str, memory_bytes: int, cpu_s: int) -> None:
    """Answer with the function that `handler` names, `module:function`, until the input ends."""
    module, _, name = handler.partition(":")
    answer: Callable[[bytes], bytes] = getattr(importlib.import_module(module), name)
    _warm()
    _write(confine(memory_bytes, cpu_s).encode())
    while (question := _read()) is not None:
        _write(answer(question))


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


def _write(message: bytes) -> None:
    left = memoryview(_LENGTH.pack(len(message)) + message)
    while left:
        left = left[os.write(1, left) :]
