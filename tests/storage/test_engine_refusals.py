"""Every way into the engine on a disk that refuses, that has no room, or to which too much is owed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from lockstep.storage.engine import FragmentRun, StorageEngine
from lockstep.storage.model import open_model_store
from lockstep.storage.store import Family
from lockstep.values import limits
from lockstep.values.errors import DiskRefused, Overloaded, StorageError
from lockstep.values.tokens import FULL_RING, Range

from .support import LossyDisk, content_of, runtime_of
from .test_engine import TABLE, command, put

KEY = (5, b"k")
RESERVE = 1000
LOCAL = Family.LOCAL.key(b"fact")


class Clock:
    """Each look at it is a second later, so nothing that was seen is still believed."""

    now_s = 0.0

    def monotonic_s(self) -> float:
        self.now_s += 1
        return self.now_s

    def wall_us(self) -> int:
        return 0


class Disk(LossyDisk):
    free = 1 << 50

    def free_bytes(self) -> int:
        return self.free


class Opened:
    """An engine with a row, and a finished run of another one."""

    engine: StorageEngine
    run: FragmentRun

    def __init__(self) -> None:
        self.failures: list[StorageError] = []
        self.disk = Disk()

    async def open(self) -> Opened:
        runtime = replace(runtime_of(self.disk), clock=Clock())
        store = await open_model_store(self.disk, "store")
        self.engine = StorageEngine(
            store, runtime, background_merge=False, on_failure=self.failures.append, reserve_bytes=RESERVE
        )
        self.engine.apply(put((9, b"other"), b"r", b"v", 1, 1))
        fragments = await self.engine.fragments(TABLE, FULL_RING)
        pairs = fragments.take(10)
        fragments.close()
        self.run = self.engine.begin_run(TABLE, FULL_RING, "taken.run")
        self.run.add(pairs)
        await self.run.finish()
        await self.engine.synced(self.engine.apply(put(KEY, b"r", b"v", 1, 2)))
        return self


async def _apply(made: Opened) -> None:
    made.engine.apply(put(KEY, b"s", b"v", 2, 3))


async def _fact(made: Opened) -> None:
    made.engine.keep_local_fact(b"fact", b"value")


async def _records(made: Opened) -> None:
    made.engine.write_records(Family.LOCAL, [("put", LOCAL, b"value")])


async def _ingest(made: Opened) -> None:
    made.engine.ingest(made.run)


async def _before_ingest(made: Opened) -> None:
    await made.engine.before_ingest(TABLE, FULL_RING)


async def _wipe(made: Opened) -> None:
    await made.engine.wipe([TABLE], FULL_RING)


async def _forget(made: Opened) -> None:
    made.engine.forget([TABLE], FULL_RING)


async def _truncate(made: Opened) -> None:
    await made.engine.truncate(TABLE)


async def _drop(made: Opened) -> None:
    await made.engine.drop_tables([TABLE])


async def _purge(made: Opened) -> None:
    await made.engine.purge_table(TABLE, lambda _table, _token: 0)


Way = Callable[[Opened], Awaitable[None]]
WAYS: dict[str, Way] = {
    "apply": _apply,
    "fact": _fact,
    "records": _records,
    "ingest": _ingest,
    "before ingest": _before_ingest,
    "wipe": _wipe,
    "forget": _forget,
    "truncate": _truncate,
    "drop": _drop,
    "purge": _purge,
}
#: What takes no room, or is what makes room.
ON_A_FULL_DISK = ("fact", "ingest", "wipe", "forget", "truncate", "drop", "purge")
#: What is asked for by clients and may be asked for again.
BOUNDED = ("apply", "records", "before ingest", "wipe", "truncate", "drop")


def refuse(*_: Any) -> Any:
    raise DiskRefused("no room")


async def refuse_later() -> None:
    refuse()


@pytest.mark.parametrize("name", WAYS)
def test_a_disk_that_refuses_is_told_of_once_and_nothing_is_taken_then(name: str) -> None:
    async def body() -> None:
        made = await Opened().open()
        engine, store = made.engine, made.engine._store
        if name == "purge":
            for number in range(30):  # enough of one row to be merged
                engine.apply(put(KEY, b"r", b"v", 1, 10 + number))
        before = content_of(store)
        for write in ("write", "ingest"):
            setattr(store, write, refuse)
        store.before_ingest = refuse_later  # type: ignore[method-assign]
        assert not engine.failed
        for _ in range(2):
            with pytest.raises(DiskRefused, match="no room"):
                await WAYS[name](made)
        assert engine.failed and [error.message for error in made.failures] == ["no room"]
        assert content_of(store) == before
        with pytest.raises(DiskRefused):
            await _apply(made)

    asyncio.run(body())


@pytest.mark.parametrize("name", WAYS)
def test_a_full_disk_takes_what_makes_room_and_nothing_else(name: str) -> None:
    async def body() -> None:
        made = await Opened().open()
        made.disk.free = RESERVE - 1
        if name in ON_A_FULL_DISK:
            await WAYS[name](made)
        else:
            with pytest.raises(DiskRefused, match="bytes are free"):
                await WAYS[name](made)
        assert not made.engine.failed and not made.failures
        made.disk.free = 2 * RESERVE
        await WAYS[name](made)
        await made.engine.close()

    asyncio.run(body())


def test_deletions_of_records_are_taken_on_a_full_disk() -> None:
    async def body() -> None:
        made = await Opened().open()
        await _records(made)
        made.disk.free = 0
        made.engine.write_records(Family.LOCAL, [("delete", LOCAL)])
        assert made.engine.local_fact(b"fact") is None
        await made.engine.close()

    asyncio.run(body())


@pytest.mark.parametrize("name", WAYS)
def test_what_clients_ask_for_waits_while_too_much_is_unsynced(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        made = await Opened().open()
        monkeypatch.setattr(limits, "UNSYNCED_WRITES_MAX", 1)
        made.engine.apply(put(KEY, b"t", b"v", 2, 4))
        if name in BOUNDED:
            with pytest.raises(Overloaded):
                await WAYS[name](made)
        else:
            await WAYS[name](made)
        assert not made.engine.failed
        await made.engine.close()

    asyncio.run(body())


def test_what_is_written_before_a_file_comes_is_durable_then() -> None:
    async def body() -> None:
        made = await Opened().open()
        made.engine.apply(put((-5, b"old"), b"r", b"v", 3, 5))
        made.engine.apply(put((6, b"in"), b"r", b"v", 3, 6))
        prepared: list[bool] = []

        async def prepare() -> None:
            prepared.append(made.engine._commit.unsynced_between(b"", b"\xff") > 0)

        made.engine._store.before_ingest = prepare  # type: ignore[method-assign]
        await made.engine.before_ingest(TABLE, Range(0, 10))
        assert prepared == [True], "the store prepares itself before the sync that is waited for"
        after = StorageEngine(
            await open_model_store(made.disk.lose_power(), "store"), runtime_of(), background_merge=False
        )
        assert {part.key for part in (await after.read(command())).partitions} >= {b"in", b"k"}

    asyncio.run(body())


def test_a_file_from_elsewhere_is_checked_against_the_range_it_is_said_to_be_of() -> None:
    async def body() -> None:
        made = await Opened().open()
        fragments = await made.engine.fragments(TABLE, FULL_RING)
        pairs = fragments.take(10)
        fragments.close()
        first, last = pairs[0][0], pairs[-1][0]
        made.engine.run_at(TABLE, FULL_RING, "taken.run", 1, first, last)
        for tokens, bounds in (
            (Range(-9, 4), (first, last)),
            (Range(6, 9), (first, last)),
            (FULL_RING, (last, first)),
        ):
            with pytest.raises(StorageError, match="not of the range"):
                made.engine.run_at(TABLE, tokens, "taken.run", 1, *bounds)
        run = made.engine.begin_run(TABLE, Range(-9, 4), "other.run")
        run.add([])
        with pytest.raises(StorageError, match="not of the range"):
            run.add(pairs)
        await made.engine.close()

    asyncio.run(body())
