"""The main programs of workers and helpers, processes that answer questions over their standard streams, and
taking from the calling process what a computation does not need: files, network, other processes.

Invariant: a worker is confined before it reads the first question; the first message that it writes says why
it could not be, and is empty when it was. A message is its length in four bytes, then its bytes. After
`confine` has returned the kernel refuses every system call that is not listed here, whatever code runs in the
process; it cannot be undone.
"""

from __future__ import annotations

import importlib
import os
import platform
import resource
import struct
import sys
from collections.abc import Callable
from typing import Final

_SET_DEATH_SIGNAL, _SET_SECCOMP, _SET_NO_NEW_PRIVILEGES = 1, 22, 38
_FILTER_MODE = 2
_SIGKILL = 9
#: Instructions of the kernel's packet filter: load a word, jump if equal, return.
_LOAD, _JUMP_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050001, 0x80000000
#: Where the number of the call, the architecture and the first argument lie in what the filter looks at.
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_CALLS: Final = {
    "x86_64": (
        0xC000003E,
        (0, 1),
        # close fstat lseek mmap mprotect munmap brk rt_sigaction rt_sigprocmask rt_sigreturn mremap
        # sched_yield madvise getpid exit sigaltstack gettid futex restart_syscall clock_gettime exit_group
        # getrandom
        (3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 25, 24, 28, 39, 60, 131, 186, 202, 219, 228, 231, 318),
    ),
    "aarch64": (
        0xC00000B7,
        (63, 64),
        (
            57,
            80,
            62,
            222,
            226,
            215,
            214,
            134,
            135,
            139,
            216,
            124,
            233,
            172,
            93,
            132,
            178,
            98,
            128,
            113,
            94,
            278,
        ),
    ),
}


def confine(memory_bytes: int, cpu_s: int) -> str:
    """Confine this process to computing, and to reading 0 and writing 1. The reason when it cannot be: then
    the limits hold, but system calls are not filtered."""
    # Loaded while files may still be opened; a node, which has this module for its doors, does without it.
    import ctypes

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    os.closerange(3, 1024)
    for what, most in (
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 3),
    ):
        resource.setrlimit(what, (most, most))
    if sys.platform != "linux":
        return f"system calls cannot be filtered on {sys.platform}"
    found = _CALLS.get(platform.machine())
    if found is None:
        return f"system calls cannot be filtered on {platform.machine()}"
    end_with_parent()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0) != 0:
        return f"the kernel refuses to give up privileges: {os.strerror(ctypes.get_errno())}"
    code = filter_program(*found)
    held = ctypes.create_string_buffer(code, len(code))
    program = Program(len(code) // 8, ctypes.addressof(held))
    if libc.prctl(_SET_SECCOMP, _FILTER_MODE, ctypes.byref(program), 0, 0) != 0:
        return f"the kernel does not filter system calls: {os.strerror(ctypes.get_errno())}"
    return ""


def end_with_parent() -> None:
    """Have the kernel end this process with the one that started it, which may have no chance to do so."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_DEATH_SIGNAL, _SIGKILL, 0, 0, 0)


def filter_program(architecture: int, transfers: tuple[int, int], allowed: tuple[int, ...]) -> bytes:
    """A filter that lets `allowed` calls pass, reading from 0 and writing to 1 (`transfers`: their numbers),
    and refuses all others; calls of another architecture end the process."""
    steps = [(_LOAD, 0, 0, _ARCHITECTURE), (_JUMP_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _KILL)]
    for stream, number in enumerate(transfers):
        steps += [
            (_LOAD, 0, 0, _NUMBER),
            (_JUMP_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            (_JUMP_EQUAL, 0, 1, stream),
            (_RETURN, 0, 0, _ALLOW),
            (_RETURN, 0, 0, _REFUSE),
        ]
    steps.append((_LOAD, 0, 0, _NUMBER))
    for number in allowed:
        steps += [(_JUMP_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    steps.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("=HBBI", *step) for step in steps)


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
