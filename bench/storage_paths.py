"""Costs of the storage engine's hot paths on RocksDB: `python bench/storage_paths.py [operations]`.

Prints microseconds an operation (best of three rounds) as JSON, and the resident size of the process.
"""

from __future__ import annotations

import asyncio
import json
import random
import resource
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from typing import Any

from lockstep.runtime.ports import Runtime
from lockstep.runtime.real.tasks import NoProbes, RealTasks
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.values.ids import mutation_id
from lockstep.values.rows import ALL_ROWS, Cell, Liveness, Mutation, ReadCommand, Row, Slice
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of

ROUNDS = 3
NOW_US = 1_700_000_000_000_000


def mutation(number: int, clustering: bytes) -> Mutation:
    key = b"user-%08d" % number
    stamp = NOW_US + number
    cells = tuple(Cell(column, b"0123456789abcdef", stamp) for column in range(1, 6))
    row = Row(clustering, Liveness(stamp), None, cells)
    return Mutation(1, token_of(key), key, mutation_id(1, 1, number), stamp, rows=(row,))


def point(write: Mutation, slices: tuple[Slice, ...]) -> ReadCommand:
    return ReadCommand(1, write.token - 1, write.token, write.key, slices, (), False, False, 1, 0, 1)


async def best(work: Callable[[int], Awaitable[Any]], operations: int) -> float:
    times = []
    for turn in range(ROUNDS):
        started = time.perf_counter()
        await work(turn)
        times.append((time.perf_counter() - started) / operations * 1e6)
    return round(min(times), 2)


async def measure(directory: str, operations: int) -> dict[str, float]:
    absent: Any = None
    tasks = RealTasks(lambda name, error: print(name, error, file=sys.stderr))
    runtime = Runtime(absent, absent, absent, absent, tasks, NoProbes())
    engine = StorageEngine(await open_rocks_store(f"{directory}/db", tasks), runtime)
    costs: dict[str, float] = {"idle_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
    clustering = b"\x80\x00\x00\x05"
    writes = [
        [mutation(turn * operations + n, clustering) for n in range(operations)] for turn in range(ROUNDS)
    ]

    async def apply(turn: int) -> None:
        sequence = 0
        for write in writes[turn]:
            sequence = engine.apply(write)
        await engine.synced(sequence)

    costs["apply_row_of_5_cells_us"] = await best(apply, operations)

    async def together(turn: int) -> None:
        async def one(write: Mutation) -> None:
            await engine.synced(engine.apply(write))

        for start in range(0, operations, 100):
            await asyncio.gather(*(one(write) for write in writes[turn][start : start + 100]))

    costs["apply_and_sync_100_writers_us"] = await best(together, operations)
    chosen = random.Random(1).sample([w for turn in writes for w in turn], operations)
    exact = (Slice(clustering, clustering + b"\x00"),)

    def reader(slices: tuple[Slice, ...]) -> Callable[[int], Awaitable[Any]]:
        commands = [point(write, slices) for write in chosen]

        async def read(turn: int) -> None:
            for command in commands:
                result = await engine.read(command)
                assert len(result.partitions) == 1

        return read

    costs["read_partition_of_one_row_us"] = await best(reader(ALL_ROWS), operations)
    costs["read_row_by_clustering_us"] = await best(reader(exact), operations)

    async def scan(turn: int) -> None:
        after, rows = None, 0
        while True:
            command = ReadCommand(
                1, TOKEN_MIN, TOKEN_MAX, None, ALL_ROWS, (), False, False, 5000, 0, 1, after
            )
            page = await engine.read(command)
            rows += len(page.partitions)
            after = page.end
            if not page.more:
                break
        assert rows == ROUNDS * operations

    costs["scan_row_us"] = await best(scan, ROUNDS * operations)
    costs["rss_mb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    await engine.close()
    return costs


def main() -> None:
    operations = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    with tempfile.TemporaryDirectory() as directory:
        print(json.dumps(asyncio.run(measure(directory, operations)), indent=2))


if __name__ == "__main__":
    main()
