"""Open files for threads, and bytes between files and sockets without the loop.

Invariants: a descriptor is closed only when no thread uses it, so its number is never another file's then.
A socket blocks only while a thread here moves bytes on a descriptor of its own; the loop reads nothing from
it meanwhile, or reads what the kernel said is there, and writes no more than fits its buffer. Each call moves
as much as it can: a thread that comes back has to wait for a busy interpreter.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
import threading
from collections.abc import Callable

from lockstep.values.limits import RAW_PIECE_BYTES, RAW_SILENT_MS

_SILENT = struct.pack("@ll", RAW_SILENT_MS // 1000, RAW_SILENT_MS % 1000 * 1000)
#: So few bytes are moved by the loop itself: a thread would take longer to begin.
SMALL_BYTES = 32 * 1024


class _Used:
    """A descriptor and how many calls use it: closed, it goes with the last of them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._users = 0
        self._closed = False

    def _enter(self) -> bool:
        with self._lock:
            if self._closed:
                return False
            self._users += 1
            return True

    def _leave(self) -> None:
        with self._lock:
            self._users -= 1
            is_last = self._closed and not self._users
        if is_last:
            os.close(self._descriptor)

    def close(self) -> None:
        with self._lock:
            is_last = not self._closed and not self._users
            self._closed = True
        if is_last:
            os.close(self._descriptor)


class RealReader(_Used):
    def __init__(self, path: str) -> None:
        super().__init__(os.open(path, os.O_RDONLY | os.O_CLOEXEC))

    def read_into(self, offset: int, buffer: memoryview) -> int:
        if not self._enter():
            return 0
        try:
            done = 0
            while done < len(buffer) and (got := os.preadv(self._descriptor, [buffer[done:]], offset + done)):
                done += got
            return done
        finally:
            self._leave()

    def fileno(self) -> int:
        return self._descriptor


class RealWriter(_Used):
    def __init__(self, path: str, judged: Callable[[OSError], Exception]) -> None:
        # Not O_APPEND: with it the kernel would put everything at the end.
        super().__init__(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        self._judged = judged

    def write_at(self, offset: int, data: bytes | memoryview) -> None:
        if not self._enter():
            return
        try:
            view, done = memoryview(data), 0
            while done < len(view):
                done += os.pwrite(self._descriptor, view[done:], offset + done)
        except OSError as error:
            raise self._judged(error) from error
        finally:
            self._leave()


class BlockingSocket:
    """A socket of the loop's with a descriptor for a thread, which waits in the kernel and not for long."""

    def __init__(self, transport: asyncio.Transport) -> None:
        shared = transport.get_extra_info("socket")
        if shared is None or transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self.socket = socket.socket(fileno=os.dup(shared.fileno()))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _SILENT)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _SILENT)

    def run(self, work: Callable[[socket.socket], None]) -> None:
        """In the thread."""
        try:
            self.socket.setblocking(True)
            work(self.socket)
        except BlockingIOError as error:
            raise TimeoutError("nothing moved for too long") from error
        finally:
            self.socket.setblocking(False)
            self.socket.close()

    def wake(self) -> None:
        """The stream is given up: whoever waits for it ends."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # Ended already.


def send_file(link: socket.socket, head: bytes, descriptor: int, offset: int, size: int) -> None:
    """All of it. OSError when the file is shorter, or the peer takes nothing."""
    link.sendall(head, socket.MSG_MORE)
    end = offset + size
    while offset < end:
        sent = os.sendfile(link.fileno(), descriptor, offset, end - offset)
        if not sent:
            raise OSError("the file is shorter than what was promised of it")
        offset += sent


class Buffers(threading.local):
    """One for each thread, so its pages stay in memory and perhaps in the cache."""

    def __init__(self) -> None:
        self.piece = memoryview(bytearray(RAW_PIECE_BYTES))


def receive(
    link: socket.socket, first: memoryview, size: int, take: Callable[[memoryview], None], buffers: Buffers
) -> None:
    """All of it. OSError when the stream ends before, or nothing comes."""
    if first:
        take(first)
    left = size - len(first)
    piece = buffers.piece
    while left:
        # The kernel waits until the piece is whole, so the interpreter is needed once for each.
        got = link.recv_into(piece, min(left, len(piece)), socket.MSG_WAITALL)
        if not got:
            raise ConnectionResetError("the stream ended")
        take(piece[:got])
        left -= got
