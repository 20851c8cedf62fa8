"""Both stores keep the same promises: order, atomic batches, snapshots, durability of what was synced."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.storage.model import OrderedMap, _portions, open_model_store
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.store import Family, Operation, Store
from lockstep.values import limits
from lockstep.values.errors import CorruptFile, DiskRefused, PreconditionError, StorageError

from .support import LoopTasks, LossyDisk, content_of, ingest, open_store, runtime_of

BOTH = pytest.mark.parametrize("kind", ["model", "rocks"])


def random_key(dice: Random) -> bytes:
    return bytes(dice.choice(b"\x00\x01ab\xfe") for _ in range(dice.randrange(1, 4)))


def random_batch(dice: Random) -> list[Operation]:
    batch: list[Operation] = []
    for _ in range(dice.randrange(1, 8)):
        kind = dice.choices(["put", "delete", "delete_range"], [8, 2, 1])[0]
        if kind == "put":
            batch.append(("put", random_key(dice), dice.randbytes(4)))
        elif kind == "delete":
            batch.append(("delete", random_key(dice)))
        else:
            lower, upper = sorted([random_key(dice), random_key(dice)])
            batch.append(("delete_range", lower, upper))
    return batch


def apply_slowly(content: dict[bytes, bytes], batch: list[Operation]) -> None:
    for operation in batch:
        if operation[0] == "put":
            content[operation[1]] = operation[2]
        elif operation[0] == "delete":
            content.pop(operation[1], None)
        else:
            for key in [k for k in content if operation[1] <= k < operation[2]]:
                del content[key]


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_random_batches_and_scans_equal_a_dictionary(kind: str, seed: int, tmp_path: Path) -> None:
    async def body() -> None:
        dice = Random(seed)
        store = await open_store(kind, tmp_path, runtime_of())
        expected: dict[bytes, bytes] = {}
        frozen: list[tuple[Any, dict[bytes, bytes]]] = []
        for _ in range(150):
            batch = random_batch(dice)
            store.write(batch)
            apply_slowly(expected, batch)
            lower, upper = sorted([random_key(dice), random_key(dice)])
            pairs = sorted((k, v) for k, v in expected.items() if lower <= k < upper)
            assert list(store.scan(lower, upper)) == pairs
            assert list(store.scan(lower, upper, reverse=True)) == pairs[::-1]
            probe = random_key(dice)
            assert store.get(probe) == expected.get(probe)
            if dice.random() < 0.1:
                frozen.append((store.snapshot(), dict(expected)))
        for snapshot, content in frozen:
            assert list(snapshot.scan(b"", b"\xff")) == sorted(content.items())
            snapshot.close()
        store.close()

    asyncio.run(body())


@BOTH
def test_a_scan_does_not_see_writes_made_after_its_first_step(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        store.write([("put", b"a%03d" % n, b"old") for n in range(300)])
        scan = store.scan(b"a", b"b")
        first = next(scan)
        store.write([("delete_range", b"a", b"b"), ("put", b"a500", b"new")])
        assert len([first, *scan]) == 300
        assert content_of(store) == {b"a500": b"new"}
        store.close()

    asyncio.run(body())


@BOTH
def test_a_snapshot_allows_its_newest_scan_until_it_is_closed(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        store.write([("put", b"k%d" % n, b"") for n in range(5)])
        snapshot = store.snapshot()
        first = snapshot.scan(b"", b"\xff")
        next(first)
        second = snapshot.scan(b"k2", b"k4", reverse=True)
        assert [key for key, _ in second] == [b"k3", b"k2"]
        with pytest.raises(StorageError):
            next(first)
        third = snapshot.scan(b"", b"\xff")
        next(third)
        store.close()
        with pytest.raises(StorageError):
            next(third)
        # Nothing of the closed store holds the files, although its scans are still around.
        if kind == "rocks":
            (await open_store(kind, tmp_path, runtime_of())).close()

    asyncio.run(body())


@BOTH
@pytest.mark.parametrize("seed", range(3))
def test_scans_of_a_snapshot_do_not_depend_on_where_others_ended(
    kind: str, seed: int, tmp_path: Path
) -> None:
    """Whole ones, ones that are left early and empty ones; most begin near the end of the one before."""

    async def body() -> None:
        dice = Random(seed)
        store = await open_store(kind, tmp_path, runtime_of())
        content = {b"%03d" % dice.randrange(400): dice.randbytes(2) for _ in range(150)}
        store.write([("put", key, value) for key, value in content.items()])
        snapshot, near = store.snapshot(), 0
        for _ in range(2_000):
            at = max(0, near + dice.randrange(-3, 8)) if dice.random() < 0.8 else dice.randrange(400)
            near = at + dice.randrange(-2, 9)
            lower, upper = b"%03d" % at, b"%03d" % max(0, near)
            reverse, most = dice.random() < 0.2, dice.choice((0, 1, 2, 3, 1000))
            pairs = sorted(pair for pair in content.items() if lower <= pair[0] < upper)
            found = list(itertools.islice(snapshot.scan(lower, upper, reverse), most))
            assert found == (pairs[::-1] if reverse else pairs)[:most]
        snapshot.close()
        store.close()

    asyncio.run(body())


@BOTH
def test_a_run_becomes_visible_whole_and_unsorted_pairs_are_refused(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        store.write([("put", b"k000001", b"replaced"), ("put", b"a", b"kept")])
        many = [(b"k%06d" % n, b"v") for n in range(limits.STORE_BATCH_ROWS_MAX + 500)]
        run = store.new_run("one.run")
        run.add(many[:1000])
        run.add(many[1000:])
        await run.finish()
        assert content_of(store) == {b"a": b"kept", b"k000001": b"replaced"}
        assert run.count == len(many)
        store.ingest(run)
        await ingest(store, [(b"z1", b"1"), (b"z2", b"2")])
        assert content_of(store) == {**dict(many), b"z1": b"1", b"z2": b"2", b"a": b"kept"}
        await ingest(store, [])
        for unsorted in ([(b"b", b""), (b"a", b"")], [(b"b", b""), (b"b", b"")]):
            with pytest.raises(StorageError):
                store.new_run("two.run").add(unsorted)
        later = store.new_run("three.run")
        later.add([(b"m", b"")])
        with pytest.raises(StorageError):
            later.add([(b"l", b"")])
        store.close()

    asyncio.run(body())


@BOTH
def test_a_run_hides_deletions_made_before_it_but_none_made_after(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        store.write([("put", b"k1", b"old")])
        store.write([("delete_range", b"k", b"l")])
        await ingest(store, [(b"k1", b"new"), (b"k2", b"new"), (b"k3", b"new")])
        store.write([("delete", b"k2")])
        store.write([("delete_range", b"k3", b"k4")])
        assert content_of(store) == {b"k1": b"new"}
        store.close()

    asyncio.run(body())


@BOTH
def test_a_cursor_shows_its_instant_and_ends_with_fewer_than_asked_for(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        store.write([("put", b"k%d" % n, b"v") for n in range(8)])
        cursor = store.cursor(b"k1", b"k6")
        store.write([("put", b"k11", b"later"), ("delete", b"k4")])
        await ingest(store, [(b"k21", b"later")])
        assert [key for key, _ in cursor.take(2)] == [b"k1", b"k2"]
        assert [key for key, _ in cursor.take(3)] == [b"k3", b"k4", b"k5"]
        assert cursor.take(3) == [] == cursor.take(3)
        cursor.close()
        empty = store.cursor(b"x", b"y")
        assert empty.take(1) == []
        empty.close()
        store.close()
        if kind == "rocks":
            (await open_store(kind, tmp_path, runtime_of())).close()

    asyncio.run(body())


@BOTH
def test_a_batch_over_the_limit_is_refused_whole(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        with pytest.raises(StorageError):
            store.write([("put", b"k%d" % n, b"") for n in range(limits.STORE_BATCH_ROWS_MAX + 1)])
        assert content_of(store) == {}
        store.close()

    asyncio.run(body())


@BOTH
def test_sync_covers_every_write_before_the_call(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        assert store.write([("put", b"a", b"1")]) == 1
        syncing = asyncio.ensure_future(store.sync())
        await asyncio.sleep(0)
        assert store.write([("put", b"b", b"1")]) == 2
        assert await syncing == 1
        assert await store.sync() == 2
        store.close()
        with pytest.raises(DiskRefused):
            store.write([("put", b"c", b"1")])

    asyncio.run(body())


async def crash_rocks(source: Path, target: Path) -> Store:
    """What is on disk now, opened as another process would after the first was killed."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns("LOCK"))
    return await open_rocks_store(str(target), LoopTasks())


@pytest.mark.parametrize("seed", range(4))
def test_model_and_rocks_agree_through_crashes(seed: int, tmp_path: Path) -> None:
    """Random commands on both, then power loss right after a sync: both hold exactly the synced content."""

    async def body() -> None:
        dice, tasks, disk = Random(seed), LoopTasks(), LossyDisk()
        model: Store = await open_model_store(disk, "store", log_bytes_max=400)
        rocks: Store = await open_rocks_store(str(tmp_path / "db-0"), tasks)
        expected: dict[bytes, bytes] = {}
        for crash in range(5):
            for _ in range(dice.randrange(5, 25)):
                batch = random_batch(dice)
                apply_slowly(expected, batch)
                assert model.write(batch) == rocks.write(batch)
                if dice.random() < 0.2:
                    assert await model.sync() == await rocks.sync()
            await model.sync()
            await rocks.sync()
            assert content_of(model) == content_of(rocks) == expected
            for store in (model, rocks):
                if dice.random() < 0.5 and store is model:
                    model.write(random_batch(dice))
            disk = disk.lose_power(lambda size: dice.randrange(size + 1))
            model = await open_model_store(disk, "store", log_bytes_max=400)
            reopened = await crash_rocks(tmp_path / f"db-{crash}", tmp_path / f"db-{crash + 1}")
            rocks.close()
            rocks = reopened
            assert content_of(model) == content_of(rocks) == expected
        rocks.close()

    asyncio.run(body())


@pytest.mark.parametrize("seed", range(30))
def test_the_model_recovers_a_prefix_of_its_writes_that_holds_all_synced_ones(seed: int) -> None:
    """Power is lost anywhere, also inside a sync or a checkpoint, with any part of tails or names kept."""

    async def body() -> None:
        dice, disk = Random(seed), LossyDisk()
        states: list[dict[bytes, bytes]] = [{}]
        for _ in range(6):
            store = await open_model_store(disk, "store", log_bytes_max=dice.choice([100, 100_000]))
            assert content_of(store) in states
            states = [content_of(store)]
            durable = 0
            for _ in range(dice.randrange(12)):
                batch = random_batch(dice)
                store.write(batch)
                states.append(content_of(store))
                if dice.random() < 0.4:
                    durable = await store.sync()
            syncing = asyncio.ensure_future(store.sync())
            for _ in range(dice.randrange(6)):
                await asyncio.sleep(0)
            if syncing.done():
                durable = syncing.result()
            disk = disk.lose_power(lambda size: dice.randrange(size + 1), names=dice.random() < 0.5)
            syncing.cancel()
            await asyncio.gather(syncing, return_exceptions=True)
            states = states[durable:]

    asyncio.run(body())


def test_a_model_that_acknowledges_before_its_sync_is_caught_by_power_loss() -> None:
    async def body() -> None:
        disk = LossyDisk()
        store = await open_model_store(disk, "store")
        store.write([("put", b"a", b"1")])
        await store.sync()
        store.write([("put", b"b", b"1")])
        acknowledged = content_of(store)
        reopened = await open_model_store(disk.lose_power(), "store")
        assert content_of(reopened) == {b"a": b"1"} != acknowledged

    asyncio.run(body())


def test_a_failed_sync_kills_the_store_for_good() -> None:
    async def body() -> None:
        disk = LossyDisk()
        store = await open_model_store(disk, "store")
        store.write([("put", b"a", b"1")])
        disk.refuse = True
        with pytest.raises(DiskRefused):
            await store.sync()
        disk.refuse = False
        with pytest.raises(DiskRefused):
            store.write([("put", b"b", b"1")])
        with pytest.raises(DiskRefused):
            await store.sync()

    asyncio.run(body())


def test_damage_in_the_middle_of_the_model_log_is_refused() -> None:
    async def body() -> None:
        disk = LossyDisk()
        store = await open_model_store(disk, "store")
        for n in range(3):
            store.write([("put", b"k%d" % n, b"value")])
            await store.sync()
        content = bytearray(disk.read("store/log-0"))
        content[20] ^= 1
        disk.truncate("store/log-0", 0)
        disk.append("store/log-0", bytes(content))
        with pytest.raises(CorruptFile):
            await open_model_store(disk, "store")

    asyncio.run(body())


def test_a_corrupt_block_of_rocksdb_raises_instead_of_ending_the_scan(tmp_path: Path) -> None:
    async def body() -> None:
        tasks = LoopTasks()
        store = await open_rocks_store(str(tmp_path / "db"), tasks)
        await ingest(store, [(b"k%06d" % n, Random(n).randbytes(100)) for n in range(5000)])
        store.close()
        (table,) = (tmp_path / "db").glob("*.sst")
        content = bytearray(table.read_bytes())
        content[len(content) // 2] ^= 0xFF
        table.write_bytes(content)
        store = await open_rocks_store(str(tmp_path / "db"), tasks)
        for reverse in (False, True):
            with pytest.raises(CorruptFile):
                list(store.scan(b"", b"\xff", reverse))
        cursor = store.cursor(b"", b"\xff")
        with pytest.raises(CorruptFile):
            while len(cursor.take(100)) == 100:
                pass
        cursor.close()
        store.close()

    asyncio.run(body())


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_rocks_store(str(tmp_path / "db"), LoopTasks())
        with pytest.raises(PreconditionError):
            await open_rocks_store(str(tmp_path / "db"), LoopTasks())
        store.close()

    asyncio.run(body())


def test_the_ordered_map_stays_valid_and_views_do_not_change() -> None:
    dice = Random(7)
    tested, expected = OrderedMap(), dict[bytes, bytes]()
    views = []
    for step in range(3000):
        key = b"%04d" % dice.randrange(1500)
        choice = dice.random()
        if choice < 0.7:
            tested.put(key, b"%d" % step)
            expected[key] = b"%d" % step
        elif choice < 0.98:
            tested.delete(key)
            expected.pop(key, None)
        else:
            upper = b"%04d" % (int(key) + 60)
            tested.delete_range(key, upper)
            expected = {k: v for k, v in expected.items() if not key <= k < upper}
        if step % 200 == 0:
            tested.validate()
            views.append((tested.view(), sorted(expected.items())))
    assert tested.count == len(expected)
    for view, content in views:
        assert list(view.scan(b"", b"\xff")) == content
        assert list(view.scan(b"03", b"07", True)) == [p for p in content if b"03" <= p[0] < b"07"][::-1]


def test_there_is_no_block_to_damage_in_an_empty_store() -> None:
    async def run() -> None:
        store = await open_model_store(runtime_of().disk, "store")
        assert not store.damage_block(0.5, 3)
        store.write([("put", Family.DATA.key(b"k"), b"v")])
        assert store.damage_block(0.5, 3)
        store.close()

    asyncio.run(run())


def test_a_checkpoint_has_no_empty_portion(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = [(b"k%d" % number, b"v") for number in range(4)]
    monkeypatch.setattr(limits, "CHECKPOINT_PORTION_BYTES", 6)
    assert list(_portions(iter(pairs))) == [pairs[:2], pairs[2:]]
    assert list(_portions(iter(pairs[:3]))) == [pairs[:2], pairs[2:3]]
