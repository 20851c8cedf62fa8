"""Streaming between two processes, beside what the machine does without it.

Both pairs are measured in this run on the same file system and loopback. Transfer: finished sorted files of
the source to the target's disk by the product's messages, beside a raw copy of as many bytes (file, socket,
file) by blocking calls. End to end: snapshot, build, send, verify, ingest of rows of 100 bytes, beside the
storage library's file writer alone, given the same pairs in memory. Also the CPU of both processes, which
says what the wall clock would on an idle machine, and how late their loops' turns are.
What is compared is done in turn, and the median of the rounds counts. Neither copy is synced within its
time; end to end every file is.
Usage: python bench/streaming.py [megabytes [rounds]]
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import shutil
import socket
import statistics
import sys
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import msgspec
from measuring import SCRATCH

from lockstep.internode.handshake import Hello, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.operations import OPERATIONS, Session, Stage
from lockstep.replica.replica import ReplicaService
from lockstep.replica.session_guards import SessionGuards
from lockstep.runtime.real import HelperProcesses, real_runtime, run
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.rocks.rocks_building import BUILD_HANDLER, BUILD_PACKAGES
from lockstep.storage.rows import keys
from lockstep.streaming.stream_building import HelpedStretches
from lockstep.streaming.stream_source import StreamService
from lockstep.streaming.stream_target import StreamClient
from lockstep.values.limits import STREAM_FILE_BYTES
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN

HOST = "127.0.101.1"
TABLE = 1
VALUE_BYTES = 100
#: Of a pair, about.
ROW_BYTES = 160
SESSION = "bench"
#: What the raw copy reads and writes at once: large for few calls.
RAW_BYTES = 1024 * 1024
TARGET_TRANSFER, TARGET_END_TO_END = 0.5, 0.6
_SPAWN = multiprocessing.get_context("spawn")


def rows(count: int) -> Iterator[list[tuple[bytes, bytes]]]:
    """Fragments in key order, some thousand at a time; the values do not compress."""
    step = (TOKEN_MAX - TOKEN_MIN) // count
    noise = os.urandom(1 << 20)
    for first in range(0, count, 4000):
        batch = []
        for number in range(first, min(first + 4000, count)):
            at = number * 97 % (len(noise) - VALUE_BYTES)
            prefix = keys.partition_prefix(TABLE, TOKEN_MIN + 1 + number * step, b"key%09d" % number)
            key = keys.row_prefix(prefix, b"") + keys.write_suffix(number, b"%014d" % number)
            batch.append((key, noise[at : at + VALUE_BYTES]))
        yield batch


def touch_memory(root: Path, size: int) -> None:
    """Have the kernel use as many pages as will be written, and free them: on a virtual machine the first use
    of a page since the host took it back costs more than copying it does."""
    path = root / "touched"
    with open(path, "wb", buffering=0) as file:
        for _ in range(size // RAW_BYTES + 1):
            file.write(bytes(RAW_BYTES))
    path.unlink()


def cluster() -> ClusterMetadata:
    session = Session(SESSION, 1, Stage.WRITE_BOTH_READ_OLD, 1)
    return msgspec.structs.replace(
        empty_cluster().changed(
            OPERATIONS.set(msgspec.structs.replace(empty_cluster().running, sessions=(session,)))
        ),
        epoch=1,
    )


class Ticker:
    """How late a loop's turns are: what a request would wait."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._cpu_s = time.process_time()

    def restart(self) -> None:
        self._late.clear()
        self._cpu_s = time.process_time()

    async def run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(0.002)
            self._late.append((time.perf_counter() - began - 0.002) * 1000)

    def figures(self) -> dict[str, float]:
        late = sorted(self._late) or [0.0]
        return {
            "cpu_s": round(time.process_time() - self._cpu_s, 3),
            "late_p50_ms": round(late[len(late) // 2], 2),
            "late_p99_ms": round(late[int(len(late) * 0.99)], 2),
            "late_max_ms": round(late[-1], 2),
        }


class BenchNode:
    def __init__(self, number: int, port: int, root: Path) -> None:
        self.address = (HOST, port)
        self.root = root / str(number)
        self.helpers = HelperProcesses(BUILD_HANDLER, *BUILD_PACKAGES)
        self.runtime = real_runtime(str(self.root), helpers=self.helpers)
        hello = Hello(1, "bench", "bench", (b"l",), f"h{number}", number, *self.address)
        value = cluster()
        self.internode = Internode(
            self.runtime, lambda: hello, lambda: 1, _told, lambda _hello: None, lambda *_a, **_k: None
        )
        self.metadata = lambda: value
        self.ticker = Ticker()

    async def start(self) -> None:
        self.store = await open_rocks_store(str(self.root / "store"), self.runtime.tasks)
        self.engine = StorageEngine(self.store, self.runtime)
        replica = ReplicaService(
            self.runtime, self.internode, self.engine, self.metadata, _catch_up, lambda: 1
        )
        self.service = StreamService(
            self.runtime, self.internode, self.engine, replica, self.metadata, _catch_up
        )
        self.client = StreamClient(self.runtime, self.internode, self.engine, SessionGuards(self.metadata))
        await self.internode.start(*self.address)
        self.runtime.tasks.spawn(self.ticker.run(), "ticker")

    async def stop(self) -> None:
        await self.internode.stop()
        await self.helpers.stop()
        await self.runtime.tasks.cancel_all()
        self.service.stop()
        await self.engine.close()


def _told(peer: PeerInfo, epoch: int) -> None:
    return


async def _catch_up(epoch: int, source: tuple[str, int]) -> None:
    return


# -- the product ------------------------------------------------------------------------------------


def source_process(port: int, root: str, count: int, finished: bool, pipe: Connection) -> None:
    run(lambda: _source(BenchNode(1, port, Path(root)), count, finished, pipe))


async def _source(node: BenchNode, count: int, finished: bool, pipe: Connection) -> None:
    await node.start()
    fill = node.engine.begin_run(TABLE, FULL_RING, "fill.run")
    for batch in rows(count):
        fill.add(batch)
    await fill.finish()
    await node.engine.before_ingest(TABLE, FULL_RING)
    await node.engine.synced(node.engine.ingest(fill))
    await _warm(node)
    if finished:
        # Let the source build everything before the first part is asked for.
        HelpedStretches.kept_max = 1 << 30
    loop = asyncio.get_running_loop()
    node.ticker.restart()
    pipe.send("ready")
    while await loop.run_in_executor(None, pipe.recv) == "wait for files":
        for stream in node.service._streams.values():
            while not stream.build.ended:
                await stream.build.wait(stream.build.numbered)
        node.ticker.restart()
        pipe.send("built")
    await node.stop()
    pipe.send(node.ticker.figures())


async def _warm(node: BenchNode) -> None:
    """Have the kernel hold the source's rows, as the pairs of the writer alone are in memory: the library
    tells it to drop what it made of them."""
    held = await node.engine.fragments(TABLE, FULL_RING)
    for _ in iter(lambda: len(held.take(400)) == 400, False):
        await asyncio.sleep(0)
    held.close()


async def _target(node: BenchNode, source: tuple[str, int], pipe: Connection, size: int) -> dict[str, Any]:
    await node.start()
    await node.runtime.disk.sync_names("")
    await asyncio.get_running_loop().run_in_executor(None, touch_memory, node.root, size)
    node.ticker.restart()
    began = time.perf_counter()
    report = await node.client.stream_range(
        source=source, session_id=SESSION, table_id=TABLE, range=FULL_RING, epoch=1
    )
    seconds = time.perf_counter() - began
    figures = {
        "seconds": seconds,
        "bytes": report.moved_bytes,
        "rows": report.fragments,
        **_mb(report, seconds),
    }
    await node.stop()
    pipe.send("stop")
    return {
        **figures,
        "files": report.files,
        "target_loop": node.ticker.figures(),
        "source_loop": pipe.recv(),
    }


def _mb(report: Any, seconds: float) -> dict[str, float]:
    return {"mb_s": report.moved_bytes / seconds / 1e6, "rows_s": report.fragments / seconds}


async def _transfer(node: BenchNode, source: tuple[str, int], pipe: Connection, size: int) -> dict[str, Any]:
    """Fetch finished files only: what comes after their arrival is left out."""
    from lockstep.streaming.stream_files import Position, StreamKey
    from lockstep.streaming.stream_progress import StreamProgress
    from lockstep.streaming.stream_target import _Copy

    await node.start()
    key = StreamKey(SESSION, TABLE, TOKEN_MIN, TOKEN_MAX, source)
    copy = _Copy(Position(key), 1, node.runtime.clock, StreamProgress())
    await node.client._open(copy)
    pipe.send("wait for files")
    loop = asyncio.get_running_loop()
    await loop.run_in_executor(None, pipe.recv)
    await loop.run_in_executor(None, touch_memory, node.root, size)
    node.ticker.restart()
    began = time.perf_counter()
    number = moved = 0
    while True:
        header = await node.client._header(copy, number)
        assert header.summary is not None
        await node.client._fetch_content(copy, number, header.summary)
        moved += header.summary.size_bytes
        if header.last:
            break
        number += 1
    seconds = time.perf_counter() - began
    loop_figures = node.ticker.figures()
    await node.stop()
    pipe.send("stop")
    return {
        "seconds": seconds,
        "bytes": moved,
        "mb_s": moved / seconds / 1e6,
        "target_loop": loop_figures,
        "source_loop": pipe.recv(),
    }


def _measured(root: Path, count: int, finished: bool) -> dict[str, Any]:
    shutil.rmtree(root, ignore_errors=True)
    ports = free_port(), free_port()
    ours, theirs = _SPAWN.Pipe()
    child = _SPAWN.Process(target=source_process, args=(ports[0], str(root), count, finished, theirs))
    child.start()
    try:
        assert ours.recv() == "ready"
        node = BenchNode(2, ports[1], root)
        work = _transfer if finished else _target
        return run(lambda: work(node, (HOST, ports[0]), ours, count * ROW_BYTES))
    finally:
        child.join(30)
        if child.is_alive():
            child.kill()
        shutil.rmtree(root, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


# -- beside it --------------------------------------------------------------------------------------


def raw_source(port: int, path: str, pipe: Connection) -> None:
    with socket.create_connection((HOST, port)) as link, open(path, "rb", buffering=0) as file:
        pipe.send("ready")
        pipe.recv()
        cpu_began = time.process_time()
        while data := file.read(RAW_BYTES):
            link.sendall(data)
        pipe.send(time.process_time() - cpu_began)


def raw_copy(root: Path, size: int) -> dict[str, float]:
    """File, socket, file, by blocking calls in two processes; files as large as ours, and what is read is on
    the disk and in memory as ours is. Nothing is checked, and nobody else is served."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    path = root / "raw"
    with open(path, "wb") as file:
        for _ in range(size // RAW_BYTES):
            file.write(os.urandom(RAW_BYTES))
        file.flush()
        os.fsync(file.fileno())
    ours, theirs = _SPAWN.Pipe()
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        listener.listen()
        child = _SPAWN.Process(target=raw_source, args=(listener.getsockname()[1], str(path), theirs))
        child.start()
        link, _ = listener.accept()
        ours.recv()
        touch_memory(root, size)
        ours.send("go")
        began, cpu_began, moved, number = time.perf_counter(), time.process_time(), 0, 0
        buffer = memoryview(bytearray(RAW_BYTES))
        out = open(root / "out-0", "wb", buffering=0)  # noqa: SIM115
        while count := link.recv_into(buffer):
            out.write(buffer[:count])
            moved += count
            if moved >= (number + 1) * STREAM_FILE_BYTES:
                out.close()
                number += 1
                out = open(root / f"out-{number}", "wb", buffering=0)  # noqa: SIM115
        out.close()
        seconds = time.perf_counter() - began
        cpu_s = {"source": ours.recv(), "target": time.process_time() - cpu_began}
        link.close()
        child.join()
    shutil.rmtree(root, ignore_errors=True)
    return {"seconds": seconds, "bytes": moved, "mb_s": moved / seconds / 1e6, "cpu_s": cpu_s}


def writer_alone(root: Path, count: int) -> dict[str, float]:
    """The library's file writer with the settings of a node's files, given pairs that are in memory."""
    import rocksdict

    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    seconds, cpu_s, size, per_file = 0.0, 0.0, 0, STREAM_FILE_BYTES // ROW_BYTES
    batches = rows(count)
    written = number = 0
    while written < count:
        table = rocksdict.BlockBasedOptions()
        table.set_bloom_filter(10, False)
        options = rocksdict.Options(raw_mode=True)
        options.set_block_based_table_factory(table)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        held = []
        while len(held) < per_file and (batch := next(batches, None)):
            held += batch
        touch_memory(root, STREAM_FILE_BYTES)
        began, cpu_began = time.perf_counter(), time.process_time()
        writer = rocksdict.SstFileWriter(options)
        writer.open(str(root / f"{number}.sst"))
        for key, value in held:
            writer[key] = value
        writer.finish()
        seconds += time.perf_counter() - began
        cpu_s += time.process_time() - cpu_began
        written += len(held)
        size += sum(len(key) + len(value) for key, value in held)
        number += 1
    shutil.rmtree(root, ignore_errors=True)
    return {
        "seconds": seconds,
        "cpu_s": cpu_s,
        "rows": written,
        "rows_s": written / seconds,
        "mb_s": size / seconds / 1e6,
    }


def measure(megabytes: int = 1000, rounds: int = 3) -> dict[str, Any]:
    """Median of the rounds; what is compared is measured in turn."""
    root = SCRATCH / "streaming"
    count = megabytes * 1_000_000 // ROW_BYTES
    transfers, ends = [], []
    for _ in range(rounds):
        raw = raw_copy(root, megabytes * 1_000_000)
        ours = _measured(root, count, finished=True)
        transfers.append({"raw": raw, "ours": ours, "ratio": ours["mb_s"] / raw["mb_s"]})
        alone = writer_alone(root, count)
        whole = _measured(root, count, finished=False)
        ends.append({"alone": alone, "ours": whole, "ratio": whole["rows_s"] / alone["rows_s"]})
    return {
        "megabytes": megabytes,
        "transfer": _middle(transfers),
        "end_to_end": _middle(ends),
        "targets": {"transfer": TARGET_TRANSFER, "end_to_end": TARGET_END_TO_END},
    }


def _middle(found: list[dict[str, Any]]) -> dict[str, Any]:
    ratios = [one["ratio"] for one in found]
    middle = statistics.median_low(ratios)
    return {**next(one for one in found if one["ratio"] == middle), "ratios": ratios}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    transfer, whole = figures["transfer"], figures["end_to_end"]
    return [
        ["", "MB/s", "beside", "MB/s", "ratio", "target", "CPU s (source, target)", "loop late p99 ms"],
        [
            "finished files",
            transfer["ours"]["mb_s"],
            "raw copy",
            transfer["raw"]["mb_s"],
            transfer["ratio"],
            TARGET_TRANSFER,
            _both(transfer["ours"], "cpu_s"),
            _both(transfer["ours"], "late_p99_ms"),
        ],
        [
            "end to end",
            whole["ours"]["mb_s"],
            "file writer alone",
            whole["alone"]["mb_s"],
            whole["ratio"],
            TARGET_END_TO_END,
            _both(whole["ours"], "cpu_s"),
            _both(whole["ours"], "late_p99_ms"),
        ],
    ]


def _both(ours: dict[str, Any], name: str) -> str:
    return f"{ours['source_loop'][name]} {ours['target_loop'][name]}"


if __name__ == "__main__":
    _numbers = [int(one) for one in sys.argv[1:]]
    _found = measure(*_numbers)
    print(json.dumps(_found, indent=1))
    for _name, _of in (("finished files", "transfer"), ("end to end", "end_to_end")):
        _one, _target_ratio = _found[_of], _found["targets"][_of]
        _all = ", ".join(f"{ratio:.2f}" for ratio in _one["ratios"])
        _cpu = _both(_one["ours"], "cpu_s")
        print(
            f"{_name}: {_one['ratio']:.2f} (target {_target_ratio}) of {_all}; CPU s source, target: {_cpu}"
        )
