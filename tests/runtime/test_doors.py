"""Processes that answer at a door: as many as there are cores, replaced when they end, and none left."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")

from lockstep.runtime.real.doors import DoorProcesses
from lockstep.scans.messages import HEAD, HEAD_LENGTH, Refusal
from lockstep.scans.session_files import DOOR_HANDLER, DOOR_PACKAGES, DoorOrder
from lockstep.values.codec import encode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
PATIENCE_S = 20.0


def children(pid: int) -> list[int]:
    return [
        int(child)
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]


def asked(port: int) -> object:
    """What is answered to what is no request."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
        connection.sendall(HEAD_LENGTH.pack(3) + b"xyz")
        data = b""
        while len(data) < HEAD_LENGTH.size or len(data) < HEAD_LENGTH.size + HEAD_LENGTH.unpack_from(data)[0]:
            data += connection.recv(4096)
        return HEAD.decode(data[HEAD_LENGTH.size :])


async def until(right: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not right():
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.05)


def test_readers_are_replaced_and_end_with_their_door(tmp_path: Path) -> None:
    before = set(children(os.getpid()))
    count = len(os.sched_getaffinity(0))

    async def life() -> None:
        doors = DoorProcesses(DOOR_HANDLER, *DOOR_PACKAGES)
        order = encode(DoorOrder(str(tmp_path), str(tmp_path / "columns"), "one", 0, 0))
        port = await doors.open("127.0.0.1", 0, order, None)
        assert await doors.open("127.0.0.1", 0, b"", None) == port, "it is open"
        assert isinstance(await asyncio.to_thread(asked, port), Refusal)
        (first,) = set(children(os.getpid())) - before
        await until(lambda: len(children(first)) == count, "one a core")
        readers = children(first)
        os.kill(readers[0], signal.SIGKILL)
        await until(lambda: len(set(children(first)) - set(readers)) == 1, "the one that ended is replaced")
        assert isinstance(await asyncio.to_thread(asked, port), Refusal)
        readers = children(first)
        os.kill(first, signal.SIGKILL)
        await until(lambda: not any(map(_runs, readers)), "none outlives the first")
        assert isinstance(await asyncio.to_thread(asked, port), Refusal), "all are started again"
        (first,) = set(children(os.getpid())) - before
        readers = children(first)
        await doors.close()
        await until(lambda: not any(map(_runs, [first, *readers])), "none is left")
        with pytest.raises(ConnectionRefusedError):
            asked(port)

    asyncio.run(life())


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
