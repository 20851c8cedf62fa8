"""The lower bound of a quorum write: what its messages and its durable storage alone cost in Python.

Three processes; a client frame is one write, its receiver sends it to the two others and stores it itself,
and answers when two of three hold it durably. Frames are length-prefixed MessagePack over uvloop, coalesced
a tick; writes of one tick are one RocksDB batch; a sync runs in a worker thread and acknowledges everything
written before it began. No epochs, plans, checks, deadlines, checksums or CQL: what a request costs above
this is the price of the database. Usage: python bench/bare_path.py [seconds] [in flight] [value bytes]
"""

from __future__ import annotations

import abc
import asyncio
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import mmh3
import msgspec
import uvloop
from measuring import ROOT, SCRATCH, CpuMeter, percentile, save, table

ADDRESSES = ("127.0.0.21", "127.0.0.22", "127.0.0.23")
PORT = 19300
KEY_BYTES = 16
QUORUM = 2
WARM_UP_S = 1.0
_LENGTH = struct.Struct(">I")
_REPLICA_WRITE, _REPLICA_ANSWER, _CLIENT_WRITE, _CLIENT_ANSWER = range(4)
_ANSWER_TO = {_REPLICA_WRITE: _REPLICA_ANSWER, _CLIENT_WRITE: _CLIENT_ANSWER}


class Frame(msgspec.Struct, array_like=True, gc=False):
    verb: int
    stream: int
    epoch: int
    payload: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Frame).decode


class Coalesced(asyncio.Protocol):
    """What one tick sends is one write."""

    def __init__(self) -> None:
        self._rest = b""
        self._out: list[bytes] = []
        self._transport: Any = None
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def queue(self, *parts: bytes) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += parts

    def _flush(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out = []


class Framed(Coalesced, abc.ABC):
    """Length-prefixed frames."""

    def send(self, frame: bytes) -> None:
        self.queue(_LENGTH.pack(len(frame)), frame)

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at, size = 0, len(data)
        while size - at >= 4:
            (length,) = _LENGTH.unpack_from(data, at)
            if size - at - 4 < length:
                break
            self.received(data[at + 4 : at + 4 + length])
            at += 4 + length
        self._rest = data[at:]

    @abc.abstractmethod
    def received(self, frame: bytes) -> None: ...


class Storage:
    """One batch a tick, one sync at a time, acknowledgement after the sync that covers the write."""

    def __init__(self, directory: str) -> None:
        from rocksdict import Options, Rdict, WriteBatch

        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(8 << 20)
        self._database = Rdict(directory, options)
        self._new_batch = WriteBatch
        self._batch: Any = None
        self._written: list[Callable[[], None]] = []
        self._syncing = False
        self._loop = asyncio.get_running_loop()

    def put(self, key: bytes, value: bytes, durable: Callable[[], None]) -> None:
        if self._batch is None:
            self._batch = self._new_batch(raw_mode=True)
            self._loop.call_soon(self._write)
        self._batch.put(key, value)
        self._written.append(durable)

    def _write(self) -> None:
        batch, self._batch = self._batch, None
        self._database.write(batch)
        if not self._syncing:
            self._syncing = True
            self._task = self._loop.create_task(self._sync())

    async def _sync(self) -> None:
        flush = self._database.flush_wal
        while self._written and self._batch is None:
            covered, self._written = self._written, []
            await self._loop.run_in_executor(None, flush, True)
            for durable in covered:
                durable()
            while self._batch is not None:  # noqa: ASYNC110
                await asyncio.sleep(0)
        self._syncing = False


class BareNode:
    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.peers: list[Framed] = []
        self.waiting: dict[int, Callable[[], None]] = {}
        self.streams = 0

    def coordinate(self, payload: bytes, answer: Callable[[], None]) -> None:
        """Store a key and its value; `answer` is called when a quorum holds them."""
        key = payload[:KEY_BYTES]
        mmh3.hash64(key, 0)
        self.streams += 1
        stream, held = self.streams, 0

        def acknowledged() -> None:
            nonlocal held
            held += 1
            if held == QUORUM:
                answer()
            elif held > QUORUM:
                del self.waiting[stream]

        self.waiting[stream] = acknowledged
        message = _encode(Frame(_REPLICA_WRITE, stream, 0, payload))
        for peer in self.peers:
            peer.send(message)
        self.storage.put(key, payload, acknowledged)


class Incoming(Framed):
    def __init__(self, node: BareNode) -> None:
        super().__init__()
        self._node = node

    def received(self, data: bytes) -> None:
        frame = _decode(data)
        answer = Frame(_ANSWER_TO[frame.verb], frame.stream, frame.epoch, b"")

        def held() -> None:
            self.send(_encode(answer))

        if frame.verb == _CLIENT_WRITE:
            self._node.coordinate(frame.payload, held)
        else:
            self._node.storage.put(frame.payload[:KEY_BYTES], frame.payload, held)


class Outgoing(Framed):
    def __init__(self, node: BareNode) -> None:
        super().__init__()
        self._node = node

    def received(self, data: bytes) -> None:
        waiting = self._node.waiting.get(_decode(data).stream)
        if waiting is not None:
            waiting()


async def serve(
    own: str, directory: str, also: Callable[[BareNode, str], Awaitable[None]] | None = None
) -> None:
    """A node, until standard input ends; `also` opens another door to it."""
    loop = asyncio.get_running_loop()
    node = BareNode(Storage(directory))
    await loop.create_server(lambda: Incoming(node), own, PORT)
    if also is not None:
        await also(node, own)
    print("listening", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)
    for address in ADDRESSES:
        if address != own:
            _, peer = await loop.create_connection(lambda: Outgoing(node), address, PORT)
            node.peers.append(peer)
    print("ready", flush=True)
    await loop.run_in_executor(None, sys.stdin.readline)


class Load(Framed):
    """Keeps `in_flight` writes going on one connection."""

    def __init__(self, value: bytes) -> None:
        super().__init__()
        self._value = value
        self._streams = 0
        self._sent_s: dict[int, float] = {}
        self.latencies_s: list[float] = []
        self.done = 0

    def one(self) -> None:
        self._streams += 1
        self._sent_s[self._streams] = time.perf_counter()
        payload = os.urandom(KEY_BYTES) + self._value
        self.send(_encode(Frame(_CLIENT_WRITE, self._streams, 0, payload)))

    def received(self, data: bytes) -> None:
        self.latencies_s.append(time.perf_counter() - self._sent_s.pop(_decode(data).stream))
        self.done += 1
        self.one()


async def load(pids: list[int], seconds: float, in_flight: int, value_bytes: int) -> dict[str, Any]:
    """Warm up, then measure; `in_flight` over all nodes together."""
    loop = asyncio.get_running_loop()
    clients = []
    for address in ADDRESSES:
        _, client = await loop.create_connection(lambda: Load(b"x" * value_bytes), address, PORT)
        clients.append(client)
    for number in range(in_flight):
        clients[number % len(clients)].one()
    await asyncio.sleep(WARM_UP_S)
    meter = CpuMeter(pids)
    for client in clients:
        client.latencies_s, client.done = [], 0
    meter.start()
    await asyncio.sleep(seconds)
    done = sum(client.done for client in clients)
    used = meter.stop()
    latencies_s = sorted(latency for client in clients for latency in client.latencies_s)
    return {
        "requests": done,
        "per_second": done / used["wall_s"],
        "cpu_us_each": used["cpu_s"] / done * 1e6,
        "system_us_each": used["system_s"] / done * 1e6,
        "p50_ms": percentile(latencies_s, 0.5) * 1e3,
        "p99_ms": percentile(latencies_s, 0.99) * 1e3,
    }


@contextmanager
def running(script: str) -> Iterator[list[int]]:
    """Three nodes that `script` makes; their process ids."""
    directory = SCRATCH / "bare"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    nodes = [
        subprocess.Popen(
            [sys.executable, script, "--node", address, str(directory / address)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for address in ADDRESSES
    ]
    try:
        for step in ("listening", "ready"):
            for node in nodes:
                assert node.stdout is not None and node.stdin is not None
                answer = node.stdout.readline().strip()
                if answer != step:
                    raise RuntimeError(f"a node of the bare path said {answer!r} instead of {step!r}")
            if step == "listening":
                for node in nodes:
                    assert node.stdin is not None
                    node.stdin.write("connect\n")
                    node.stdin.flush()
        yield [node.pid for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
        shutil.rmtree(directory, ignore_errors=True)


def measure(seconds: float = 10.0, in_flight: int = 192, value_bytes: int = 100) -> dict[str, Any]:
    """Figures of quorum writes over the bare path."""
    with running(__file__) as pids, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(load(pids, seconds, in_flight, value_bytes))
    return {"in_flight": in_flight, "value_bytes": value_bytes, **figures}


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--node"]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(arguments[1], arguments[2]))
        return
    given = [float(text) for text in arguments[:1]] + [int(text) for text in arguments[1:3]]
    figures = measure(*given)
    save("bare_path", {"writes": figures})
    print(table("Bare path: quorum writes", [list(figures), list(figures.values())]))
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1:])
