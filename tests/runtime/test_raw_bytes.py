"""Content of files between sockets and threads: plain and encrypted, whole, ended too early, given up."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from lockstep.runtime.ports import Disk, Tls
from lockstep.runtime.real import real_runtime
from lockstep.runtime.real.network import RealNetwork
from tests.server.certificates import Authority

HOST = "127.0.101.9"
BEHIND = b"frames again"
SIZES = [1, 40_000, 3_000_001]
LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


class Kept(asyncio.Protocol):
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.got = bytearray()
        self.enough = asyncio.Event()
        self.made: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.made.set_result(transport)  # type: ignore[arg-type]

    def data_received(self, data: bytes) -> None:
        self.got += data
        if len(self.got) >= len(BEHIND):
            self.enough.set()


@asynccontextmanager
async def connected(
    tls: Tls | None = None,
) -> AsyncIterator[tuple[RealNetwork, asyncio.Transport, asyncio.Transport]]:
    network, accepted = RealNetwork(), Kept()
    server = await network.listen(HOST, 0, lambda: accepted, tls)
    try:
        out, _ = await network.connect(HOST, server.port, asyncio.Protocol, tls)
        into = await accepted.made
        await asyncio.sleep(0)  # uvloop begins to read after it told.
        into.pause_reading()
        yield network, out, into
        out.abort()
        into.abort()
    finally:
        server.close()


def bounded(make_loop: Callable[[], Any], test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await test()

    with asyncio.Runner(loop_factory=make_loop) as runner:
        runner.run(run())


def written(disk: Disk, size: int) -> bytes:
    content = bytes(range(256)) * (size // 256 + 1)
    disk.append("source", content[:size])
    return content[:size]


@pytest.mark.parametrize("make_loop", LOOPS)
@pytest.mark.parametrize("encrypted", [False, True])
def test_a_part_of_a_file_arrives_between_what_is_before_and_behind(
    tmp_path: Path, encrypted: bool, make_loop: Callable[[], Any]
) -> None:
    disk = real_runtime(str(tmp_path / "node")).disk
    tls = None
    if encrypted:
        authority = Authority(tmp_path)
        certificate, key = authority.issue("node")
        tls = Tls(str(certificate), str(key), str(authority.certificate), True)
    content = written(disk, 3_100_000)

    async def test() -> None:
        async with connected(tls) as (network, out, into):
            kept = into.get_protocol()
            assert isinstance(kept, Kept)
            for size in SIZES:
                got = bytearray()
                file = disk.reader("source")
                sending = asyncio.ensure_future(network.send_file(out, b"head", file, 77, size))
                first = memoryview(b"read before ")
                behind = await network.receive(into, first, len(first) + 4 + size, got.extend)
                await sending
                file.close()
                assert got == b"read before head" + content[77 : 77 + size]
                assert behind == b"" and into.get_protocol() is kept
            out.write(BEHIND)
            into.resume_reading()
            await kept.enough.wait()
            assert kept.got == BEHIND

    bounded(make_loop, test)


@pytest.mark.parametrize("make_loop", LOOPS)
def test_what_was_read_behind_the_bytes_is_returned(make_loop: Callable[[], Any]) -> None:
    async def test() -> None:
        async with connected() as (network, _, into):
            got = bytearray()
            assert (
                await network.receive(into, memoryview(b"bytes and a frame"), 5, got.extend)
                == b" and a frame"
            )
            assert got == b"bytes"

    bounded(make_loop, test)


def test_a_stream_that_ends_within_the_bytes_is_an_error(tmp_path: Path) -> None:
    async def test() -> None:
        async with connected() as (network, out, into):
            receiving = asyncio.ensure_future(network.receive(into, memoryview(b""), 5_000_000, len))
            out.write(bytes(100_000))
            out.close()
            with pytest.raises(OSError):
                await receiving

    bounded(uvloop.new_event_loop, test)


def test_a_file_that_is_shorter_than_promised_is_an_error(tmp_path: Path) -> None:
    disk = real_runtime(str(tmp_path)).disk
    written(disk, 100_000)

    async def test() -> None:
        async with connected() as (network, out, _):
            file = disk.reader("source")
            with pytest.raises(OSError, match="shorter"):
                await network.send_file(out, b"", file, 50_000, 60_000)
            file.close()

    bounded(uvloop.new_event_loop, test)


def test_whoever_gives_up_leaves_no_thread_waiting() -> None:
    async def test() -> None:
        async with connected() as (network, _, into):
            receiving = asyncio.ensure_future(network.receive(into, memoryview(b""), 5_000_000, len))
            await asyncio.sleep(0.02)
            receiving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await receiving
            assert network._threads is not None
            # Another one would wait until the time limit if the thread went on waiting.
            network._threads._max_workers = 1
            await asyncio.get_running_loop().run_in_executor(network._threads, len, b"")

    bounded(uvloop.new_event_loop, test)


def test_silence_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.runtime.real import files

    monkeypatch.setattr(files, "_SILENT", files.struct.pack("@ll", 0, 20_000))

    async def test() -> None:
        async with connected() as (network, _, into):
            with pytest.raises(TimeoutError):
                await network.receive(into, memoryview(b""), 100_000, len)

    bounded(uvloop.new_event_loop, test)


def test_an_open_file_outlives_its_name_and_is_quiet_once_closed(tmp_path: Path) -> None:
    disk = real_runtime(str(tmp_path)).disk
    writer = disk.writer("new/file")
    writer.write_at(0, b"0123456789")
    writer.write_at(5, b"56789ABC")
    assert disk.read("new/file") == b"0123456789ABC"
    reader = disk.reader("new/file")
    disk.remove("new/file")
    buffer = bytearray(20)
    assert reader.read_into(10, memoryview(buffer)) == 3 and buffer[:3] == b"ABC"
    for file in (reader, writer):
        file.close()
        file.close()
    writer.write_at(0, b"late")
    assert reader.read_into(0, memoryview(buffer)) == 0
    assert not disk.exists("new/file")


def test_sockets_are_as_the_loop_left_them() -> None:
    async def test() -> None:
        async with connected() as (network, out, into):
            out.write(bytes(100_000))
            await network.receive(into, memoryview(b""), 100_000, len)
            shared = into.get_extra_info("socket")
            link = socket.socket(fileno=os.dup(shared.fileno()))
            with link, pytest.raises(BlockingIOError):
                link.recv(1, socket.MSG_PEEK)

    bounded(uvloop.new_event_loop, test)
