"""The main program of processes that answer clients at a door of the node: connections from a listening
socket that they share, each process one at a time. The first of them answers nobody: it imports what answers,
and the others are its copies, each replaced when it ends.

A connection brings one request, its length in four bytes before it, and takes the parts of its answer as they
are made; a client that takes nothing for SESSION_SILENT_MS loses it. The process ends with the node.
"""

from __future__ import annotations

import contextlib
import importlib
import mmap
import os
import resource
import select
import shutil
import socket
import ssl
import struct
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final

from lockstep.runtime.ports import Tls
from lockstep.runtime.real.worker_process import end_with_parent
from lockstep.values.node_limits import (
    DOOR_REQUEST_BYTES_MAX,
    SESSION_READER_PAUSE_MS,
    SESSION_READER_REST_MS,
    SESSION_SILENT_MS,
)

_LENGTH: Final = struct.Struct(">I")
#: How long a process waits for a connection before it rests.
_IDLE_S: Final = 1.0
#: Of a file that is read piece by piece: what the caches of a processor hold.
_PIECE_BYTES: Final = 1024 * 1024
_Wrap = Callable[[socket.socket], socket.socket]


class DoorWorld:
    """What a handler may ask of the world."""

    monotonic_s = staticmethod(time.monotonic)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def read(self, path: str) -> bytes:
        """Whole content; FileNotFoundError when absent."""
        with open(path, "rb") as file:
            return file.read()

    def pieces(self, path: str) -> Iterator[bytes]:
        """The content piece by piece; OSError when it cannot be read."""
        with open(path, "rb", buffering=0) as file:
            while piece := file.read(_PIECE_BYTES):
                yield piece

    def overwrite(self, path: str, data: bytes) -> None:
        """Have `data` at the beginning of a file; FileNotFoundError when absent."""
        with open(path, "r+b") as file:
            file.write(data)

    def listed(self, directory: str) -> list[tuple[str, int, float]]:
        """(name, bytes, seconds since it was written or touched) of each file, by name; none without the
        directory."""
        now_s, found = time.time(), []
        try:
            entries = sorted(os.scandir(directory), key=lambda one: one.name)
        except FileNotFoundError:
            return []
        for entry in entries:
            try:
                told = entry.stat()
            except FileNotFoundError:
                continue
            found.append((entry.name, told.st_size, now_s - told.st_mtime))
        return found

    def mapped(self, path: str) -> memoryview:
        """The content, in memory that the system gives and takes; FileNotFoundError when absent, ValueError
        when empty."""
        with open(path, "rb") as file:
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def create(self, path: str) -> BinaryIO:
        """A new file to write to, in a directory that is made if there is none; OSError when it cannot be."""
        os.makedirs(os.path.dirname(path), exist_ok=True)
        return open(path, "xb")

    def rename(self, path: str, to: str) -> None:
        os.rename(path, to)

    def remove(self, path: str) -> None:
        """A file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)

    def touch(self, path: str) -> None:
        """Have a file, if it is there, be as new as now."""
        with contextlib.suppress(FileNotFoundError):
            os.utime(path)

    def free_bytes(self, directory: str) -> int:
        """Of its disk."""
        return shutil.disk_usage(directory).free

    def unique(self) -> str:
        """A name that nobody has."""
        return uuid.uuid4().hex

    def say(self, text: str) -> None:
        """Into the node's log."""
        print(text, flush=True)


def keep_doors(
    handler: str, niceness: int, descriptor: int, order: bytes, tls: Tls | None, count: int
) -> None:
    """Have as many copies of this process as `count` serve until standard input ends. `handler` names what
    makes of order and world something with `answer(request)`, the parts of an answer, and `rest()`, called
    when there is time, `module:function`."""
    end_with_parent()
    os.setpgid(0, 0)
    os.nice(niceness)
    # Whatever is printed goes to the log.
    os.dup2(2, 1)
    module, _, name = handler.partition(":")
    # Imported once: that is most of what it costs to start one.
    make = getattr(importlib.import_module(module), name)
    children: set[int] = set()
    while True:
        while len(children) < count:
            child = os.fork()
            if not child:
                end_with_parent()
                _keep(make(order, DoorWorld()), socket.socket(fileno=descriptor), _wrapping(tls))
                return
            children.add(child)
        readable, _, _ = select.select([0], [], [], SESSION_READER_PAUSE_MS / 1000)
        if readable and not os.read(0, 1):
            return
        children -= {child for child in children if os.waitpid(child, os.WNOHANG)[0]}


def _keep(made: Any, listener: socket.socket, wrap: _Wrap) -> None:
    listener.setblocking(False)
    descriptor = listener.fileno()
    while True:
        readable, _, _ = select.select([descriptor, 0], [], [], _IDLE_S)
        made.rest()
        if 0 in readable and not os.read(0, 1):
            return
        if descriptor not in readable:
            continue
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            continue  # another process took it, or its client left
        _serve(connection, wrap, made.answer)


def _wrapping(tls: Tls | None) -> _Wrap:
    if tls is None:
        return lambda plain: plain
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tls.certificate, tls.key)
    if tls.mutual:
        context.load_verify_locations(tls.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return lambda plain: context.wrap_socket(plain, server_side=True)


def _interruptions() -> int:
    """How often this process wanted to go on, and others were let."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


class RestBetweenParts:
    """Leaves the processor to others after a part that they interrupted, for as long as it took: who is busy
    has no reader on its heels, and beside an idle node nothing is lost."""

    def __init__(
        self,
        now_s: Callable[[], float] = time.monotonic,
        interruptions: Callable[[], int] = _interruptions,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._now_s, self._interruptions, self._sleep = now_s, interruptions, sleep
        self._began_s, self._before = now_s(), interruptions()

    def rest(self) -> None:
        """A part has been made and sent."""
        if self._interruptions() > self._before:
            self._sleep(min(self._now_s() - self._began_s, SESSION_READER_REST_MS / 1000))
        self._began_s, self._before = self._now_s(), self._interruptions()


def _serve(plain: socket.socket, wrap: _Wrap, answer: Callable[[bytes], Iterator[Any]]) -> None:
    """A client that leaves is nobody's fault: it asks again."""
    with plain:
        plain.settimeout(SESSION_SILENT_MS / 1000)
        try:
            with wrap(plain) as connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                size = _LENGTH.unpack(_received(connection, _LENGTH.size))[0]
                if size > DOOR_REQUEST_BYTES_MAX:
                    return
                resting = RestBetweenParts()
                for part in answer(_received(connection, size)):
                    connection.sendall(part)
                    resting.rest()
        except OSError:
            return


def _received(connection: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the client left")
        data += part
    return bytes(data)
