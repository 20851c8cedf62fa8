"""What was acknowledged or answered survives: power loss at any instant on the model, SIGKILL on RocksDB."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from lockstep.storage.engine import StorageEngine
from lockstep.storage.group_commit import GroupCommit
from lockstep.storage.model import open_model_store
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.store import Family
from lockstep.values.ids import mutation_id
from lockstep.values.rows import ALL_ROWS, Cell, Mutation, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import LoopTasks, LossyDisk, content_of, runtime_of

PARTITIONS = 6


def write_of(number: int) -> Mutation:
    """Two rows of one partition, so that a torn mutation would show."""
    rows = tuple(Row(b"%s%05d" % (side, number), cells=(Cell(1, b"v", number),)) for side in (b"a", b"b"))
    token = number % PARTITIONS
    return Mutation(1, token, b"k%d" % token, mutation_id(1, 1, number), number, rows=rows)


def read_of(token: int | None) -> ReadCommand:
    if token is None:
        return ReadCommand(1, TOKEN_MIN, TOKEN_MAX, None, ALL_ROWS, (), True, False, 0, 0, 1)
    return ReadCommand(1, token - 1, token, b"k%d" % token, ALL_ROWS, (), True, False, 0, 0, 1)


async def numbers_in(engine: StorageEngine, token: int | None) -> dict[int, int]:
    """How many of its two rows each mutation has."""
    found: dict[int, int] = {}
    for partition in (await engine.read(read_of(token))).partitions:
        for row in partition.rows:
            number = int(row.clustering[1:])
            found[number] = found.get(number, 0) + 1
    return found


async def _write(engine: StorageEngine, dice: Random, number: int, promised: dict[int, str]) -> None:
    for _ in range(dice.randrange(20)):
        await asyncio.sleep(0)
    sequence = engine.apply(write_of(number))
    for _ in range(dice.randrange(6)):
        await asyncio.sleep(0)
    await engine.synced(sequence)
    promised[number] = "acknowledged"


async def _read(engine: StorageEngine, dice: Random, promised: dict[int, str]) -> None:
    for _ in range(dice.randrange(20)):
        await asyncio.sleep(0)
    for number in await numbers_in(engine, dice.choice([None, *range(PARTITIONS)])):
        promised.setdefault(number, "answered")


async def lost_after_power_loss(seed: int) -> list[str]:
    """Run writers and readers over some incarnations; every broken promise is one sentence."""
    dice, disk, number = Random(seed), LossyDisk(), 0
    promised: dict[int, str] = {}
    broken: list[str] = []
    for _ in range(4):
        runtime = runtime_of(disk)
        engine = StorageEngine(await open_model_store(disk, "store", log_bytes_max=3000), runtime)
        recovered = await numbers_in(engine, None)
        broken += [f"{n} was {how} and is gone" for n, how in promised.items() if n not in recovered]
        broken += [f"{n} is torn" for n, rows in recovered.items() if rows != 2]
        promised = dict.fromkeys(recovered, "recovered")

        for _ in range(15):
            number += 1
            runtime.tasks.spawn(_write(engine, dice, number, promised), "write")
            runtime.tasks.spawn(_read(engine, dice, promised), "read")
        for _ in range(dice.randrange(30)):
            await asyncio.sleep(0)
        disk = disk.lose_power(lambda size: dice.randrange(size + 1), names=dice.random() < 0.5)
        kept = dict(promised)
        await runtime.tasks.cancel_all()
        promised = kept
    return broken


@pytest.mark.parametrize("seed", range(25))
def test_nothing_promised_is_lost_and_nothing_is_torn(seed: int) -> None:
    assert asyncio.run(lost_after_power_loss(seed)) == []


def test_an_engine_that_answers_unsynced_data_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GroupCommit, "unsynced_partition", lambda self, prefix: 0)
    monkeypatch.setattr(GroupCommit, "unsynced_between", lambda self, lower, upper: 0)
    broken = [sentence for seed in range(25) for sentence in asyncio.run(lost_after_power_loss(seed))]
    assert any("answered" in sentence for sentence in broken)


def test_a_journal_entry_joins_the_batch_of_its_mutation() -> None:
    async def body() -> None:
        disk = LossyDisk()
        store = await open_model_store(disk, "store")
        engine = StorageEngine(store, runtime_of(disk))
        entry = Family.JOURNAL.key(b"1")
        sequence = engine.apply(write_of(1), also=[("put", entry, b"entry")])
        assert len(content_of(store)) == 3
        assert content_of(await open_model_store(disk.lose_power(), "store")) == {}
        await engine.synced(sequence)
        assert len(content_of(await open_model_store(disk.lose_power(), "store"))) == 3

    asyncio.run(body())


CHILD = """
import asyncio, sys
from lockstep.storage.rocks.rocks import open_rocks_store
from tests.storage.support import LoopTasks

async def body():
    store = await open_rocks_store(sys.argv[1], LoopTasks())
    for number in range(1_000_000):
        store.write([("put", b"a%07d" % number, b"v"), ("put", b"b%07d" % number, b"v")])
        if number % 50 == 49:
            await store.sync()
            print(number, flush=True)

asyncio.run(body())
"""


def test_rocksdb_keeps_every_synced_batch_whole_through_sigkill(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path / "db")], stdout=subprocess.PIPE, text=True, cwd=root
    ) as child:
        assert child.stdout is not None
        for _ in range(4):
            synced = int(child.stdout.readline())
        child.send_signal(signal.SIGKILL)
        child.wait()

    async def body() -> None:
        store = await open_rocks_store(str(tmp_path / "db"), LoopTasks())
        numbers = [int(key[1:]) for key, _ in store.scan(b"a", b"b")]
        assert numbers == list(range(len(numbers))) and len(numbers) > synced
        assert [int(key[1:]) for key, _ in store.scan(b"b", b"c")] == numbers
        store.close()

    asyncio.run(body())
