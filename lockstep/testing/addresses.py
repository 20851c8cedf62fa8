"""Loopback addresses that no other cluster of this machine uses.

Owns: which block of 127.0.0.0/8 belongs to which test process. Invariant: a block is held by an exclusive
lock on a file, which the system drops with the last process that holds it: no crash leaves a block taken.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from lockstep.values.errors import PreconditionError

#: Second octets of the blocks: away from 127.0.x.x, which people and other tools use.
_FIRST_OCTET: Final = 64
_OCTETS: Final = 32
_BLOCKS: Final = _OCTETS * 256
#: Blocks that are tried: more are only ever taken when something else is wrong.
_TRIED_MAX: Final = 512


class Block:
    """Addresses x.y.z.1 to x.y.z.254, ours until `release`. `descriptor` holds the lock."""

    def __init__(self, prefix: str, descriptor: int) -> None:
        self.prefix = prefix
        self.first_address = f"{prefix}.1"
        self.descriptor = descriptor
        self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            os.close(self.descriptor)


def claim(ports: Sequence[int]) -> Block:
    """A block on whose first address all `ports` are free. PreconditionError when none is found."""
    locks = Path(tempfile.gettempdir()) / f"lockstep-addresses-{os.getuid()}"
    locks.mkdir(mode=0o700, exist_ok=True)
    begin = os.getpid() * 61 % _BLOCKS
    for step in range(_TRIED_MAX):
        number = (begin + step) % _BLOCKS
        block = _locked(locks, f"127.{_FIRST_OCTET + number // 256}.{number % 256}")
        if block is None:
            continue
        if all(_free(block.first_address, port) for port in ports):
            return block
        block.release()
    raise PreconditionError(
        f"{_TRIED_MAX} blocks of loopback addresses are in use", hint="lockstep cluster list"
    )


def _locked(locks: Path, prefix: str) -> Block | None:
    descriptor = os.open(locks / prefix, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return Block(prefix, descriptor)
    os.close(descriptor)
    return None


def _free(address: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):
            probe.bind((address, port))
            return True
    return False
