"""A store whose files were damaged, cut short, emptied or removed: refused at its start, or whole."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest

from lockstep.runtime.real.disk import RealDisk
from lockstep.storage.model import open_model_store
from lockstep.storage.rocks.rocks import RocksSettings, RocksStore, open_rocks_store
from lockstep.storage.rocks.rocks_keeping import KeptFiles, whole_records
from lockstep.storage.store import Pair, Store
from lockstep.storage.store_position import PositionFile, StorePosition
from lockstep.values.errors import CorruptFile

from .support import LoopTasks, LossyDisk

T = TypeVar("T")
SMALL = RocksSettings(write_buffer_bytes=64 * 1024)


def disk_of(root: Path) -> RealDisk:
    async def run(work: Callable[[], None]) -> None:
        work()

    return RealDisk(str(root), run)


async def open_kept(root: Path, settings: RocksSettings | None = None) -> RocksStore:
    kept = KeptFiles(disk_of(root), "store")
    return await open_rocks_store(str(root / "store"), LoopTasks(), settings, kept=kept)


def content_of(store: Store) -> list[Pair]:
    return list(store.scan(b"", b"\xff"))


async def fill(store: Store, dice: Random, batches: int) -> None:
    for _ in range(batches):
        store.write([("put", dice.randbytes(8), dice.randbytes(dice.choice([20, 200, 3000])))])
        await store.sync()


async def noted(store: RocksStore) -> None:
    """Returns when it is known how far the store has got."""
    if store._following is not None:
        await store._following


async def killed(root: Path, target: Path) -> None:
    """What a process that was killed leaves there: a copy during which nothing was flushed or merged."""

    def files() -> list[tuple[str, int]]:
        return sorted((path.name, path.stat().st_size) for path in (root / "store").iterdir())

    while True:
        try:
            before = files()
            shutil.copytree(root, target, ignore=shutil.ignore_patterns("LOCK"))
            if before == files():
                return
        except OSError:
            await asyncio.sleep(0)
        shutil.rmtree(target, ignore_errors=True)


async def outcome(root: Path, expected: list[Pair]) -> str:
    """refused, whole or lost."""
    try:
        store = await open_kept(root)
    except CorruptFile as error:
        assert "lockstep node recover" in error.hint or ".sst" in error.why
        return "refused"
    try:
        return "whole" if content_of(store) == expected else "lost"
    finally:
        store.close()


def damaged(content: bytes, dice: Random) -> list[bytes | None]:
    """Flipped, cut short, emptied and, as None, removed."""
    found: list[bytes | None] = [None]
    if content:
        found.append(b"")
    for _ in range(6 if content else 0):
        at = dice.randrange(len(content))
        found.append(content[:at])
        found.append(content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :])
    return found


@pytest.mark.parametrize("ending", ["killed", "closed"])
def test_no_damage_of_a_log_or_manifest_loses_a_write_silently(ending: str, tmp_path: Path) -> None:
    async def body() -> None:
        dice = Random(7)
        store = await open_kept(tmp_path / "node", SMALL)
        await fill(store, dice, 150)
        await noted(store)
        expected = content_of(store)
        if ending == "closed":
            store.close()
        await killed(tmp_path / "node", tmp_path / "kept")
        names = sorted(path.name for path in (tmp_path / "kept" / "store").iterdir())
        judged = dict.fromkeys(["refused", "whole", "lost"], 0)
        for name in names:
            content = (tmp_path / "kept" / "store" / name).read_bytes()
            for form in damaged(content, dice):
                if name.endswith(".sst") and form and len(form) == len(content):
                    continue  # A block that is read and found damaged is another matter.
                case = tmp_path / "case"
                shutil.copytree(tmp_path / "kept", case)
                if form is None:
                    (case / "store" / name).unlink()
                else:
                    (case / "store" / name).write_bytes(form)
                found = await outcome(case, expected)
                assert found != "lost", f"{name} with {form and len(form)} of {len(content)} bytes"
                judged[found] += 1
                shutil.rmtree(case)
        assert judged["refused"] > 30 and judged["whole"] > 10
        if ending == "killed":
            store.close()

    asyncio.run(body())


def test_a_log_with_a_flipped_bit_is_refused_with_file_and_offset(tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_kept(tmp_path / "node")
        await fill(store, Random(1), 40)
        await killed(tmp_path / "node", tmp_path / "copy")
        store.close()
        (log,) = (tmp_path / "copy" / "store").glob("*.log")
        content = bytearray(log.read_bytes())
        content[len(content) // 10] ^= 4
        log.write_bytes(content)
        with pytest.raises(CorruptFile) as refusal:
            await open_kept(tmp_path / "copy")
        assert refusal.value.path == f"store/{log.name}"
        assert 0 < refusal.value.offset <= len(content) // 10
        assert "lockstep node recover" in refusal.value.hint

    asyncio.run(body())


def test_a_torn_end_behind_what_is_known_is_no_damage(tmp_path: Path) -> None:
    """What a crash leaves: the last record begun, or its sectors not all there."""

    async def body() -> None:
        store = await open_kept(tmp_path / "node")
        await fill(store, Random(2), 10)
        await noted(store)
        expected = content_of(store)
        store.write([("put", b"last", bytes(range(1, 200)) * 10)])
        store._write_staged()
        store._database.flush_wal(False)
        await killed(tmp_path / "node", tmp_path / "kept")
        store.close()
        (log,) = (tmp_path / "kept" / "store").glob("*.log")
        content = log.read_bytes()
        for cut in (1, 100, 1900, 2000):
            for tail in (b"", bytes(cut)):
                shutil.copytree(tmp_path / "kept", tmp_path / "case")
                torn = tmp_path / "case" / "store" / log.name
                torn.write_bytes(content[:-cut] + tail)
                if cut >= 1900 or not tail:
                    assert await outcome(tmp_path / "case", expected) == "whole"
                shutil.rmtree(tmp_path / "case")

    asyncio.run(body())


def test_sectors_that_a_power_loss_left_unwritten_end_what_was_synced(tmp_path: Path) -> None:
    """File systems write pages in any order: whole records may stand behind a hole. Nothing there was synced;
    where the file is known to have been, a hole is damage."""

    async def body() -> None:
        store = await open_kept(tmp_path / "node")
        await fill(store, Random(3), 20)
        await noted(store)
        expected = content_of(store)
        (log,) = (tmp_path / "node" / "store").glob("*.log")
        known = log.stat().st_size
        for number in range(6):
            store.write([("put", b"late%d" % number, Random(number).randbytes(1500))])
            store._write_staged()
        store._database.flush_wal(False)
        await killed(tmp_path / "node", tmp_path / "kept")
        store.close()
        content = (tmp_path / "kept" / "store" / log.name).read_bytes()
        behind, before = -(-known // 512) * 512, known // 2 // 512 * 512
        for start, wanted in ((behind, "whole"), (behind + 512, "whole"), (before, "refused")):
            shutil.copytree(tmp_path / "kept", tmp_path / "case")
            holed = content[:start] + bytes(1024) + content[start + 1024 :]
            (tmp_path / "case" / "store" / log.name).write_bytes(holed)
            assert await outcome(tmp_path / "case", expected) == wanted, start
            shutil.rmtree(tmp_path / "case")

    asyncio.run(body())


def test_a_store_that_is_gone_is_not_made_anew(tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_kept(tmp_path / "node")
        await fill(store, Random(3), 5)
        store.close()
        shutil.rmtree(tmp_path / "node" / "store")
        with pytest.raises(CorruptFile, match="it is missing"):
            await open_kept(tmp_path / "node")
        assert not (tmp_path / "node" / "store").exists()

    asyncio.run(body())


def test_the_file_of_positions_may_be_damaged_or_gone(tmp_path: Path) -> None:
    async def body() -> None:
        dice = Random(4)
        store = await open_kept(tmp_path / "node")
        await fill(store, dice, 30)
        await noted(store)
        await fill(store, dice, 30)
        expected = content_of(store)
        store.close()
        content = (tmp_path / "node" / "store-position").read_bytes()
        for form in damaged(content, dice):
            shutil.copytree(tmp_path / "node", tmp_path / "case")
            if form is None:
                (tmp_path / "case" / "store-position").unlink()
            else:
                (tmp_path / "case" / "store-position").write_bytes(form)
            assert await outcome(tmp_path / "case", expected) == "whole"
            shutil.rmtree(tmp_path / "case")

    asyncio.run(body())


def test_the_sequence_that_files_show_is_the_one_that_the_library_goes_on_with(tmp_path: Path) -> None:
    """Over flushes, merges, ranges that are deleted, ingested files and kills."""

    async def body() -> None:
        dice, root = Random(5), tmp_path / "node-0"
        for turn in range(6):
            store = await open_kept(root, SMALL)
            for step in range(40):
                await fill(store, dice, 3)
                store.write([("delete_range", b"\x10", b"\x11"), ("delete", b"\x12")])
                if step % 10 == 5:
                    run = store.new_run(f"run-{turn}-{step}")
                    run.add([(b"run-%d" % step, b"value")])
                    await run.finish()
                    if step % 20 == 5:
                        await store.before_ingest()
                    store.ingest(run)
            await store.sync()
            if turn % 2:
                await noted(store)
            expected = content_of(store)
            await killed(root, tmp_path / f"node-{turn + 1}")
            root = tmp_path / f"node-{turn + 1}"
            store.close()
            assert await outcome(root, expected) == "whole"

    asyncio.run(body())


def test_a_model_store_that_is_gone_or_shorter_is_refused() -> None:
    async def body() -> None:
        for harm in ("removed", "cut", "older"):
            disk = LossyDisk()
            store = await open_model_store(disk, "store", log_bytes_max=100)
            for number in range(5):
                store.write([("put", b"%d" % number, bytes(60))])
                await store.sync()
            store = await open_model_store(disk, "store", log_bytes_max=100)
            names = disk.names("store")
            for name in names:
                if harm == "cut" and name.startswith("checkpoint"):
                    disk.truncate(f"store/{name}", disk.size(f"store/{name}") - 1)
                elif harm != "cut":
                    disk.remove(f"store/{name}")
            if harm == "older":
                disk.append("store/log-0", b"")
            with pytest.raises(CorruptFile):
                await open_model_store(disk, "store")

    asyncio.run(body())


def test_records_of_a_log_are_read_over_its_blocks() -> None:
    with pytest.raises(CorruptFile):
        list(whole_records("x", b"\x01\x00" * 200))
    assert list(whole_records("x", bytes(1000))) == []
    assert list(whole_records("x", b"\x01\x02\x03")) == []


def test_a_position_that_is_durable_is_not_synced_again() -> None:
    async def run() -> None:
        disk = LossyDisk()
        file = PositionFile(disk, "store")
        file.note(StorePosition(3))
        await file.settle(StorePosition(3))
        syncs = disk.syncs
        await file.settle(StorePosition(3))
        assert disk.syncs == syncs > 0
        disk.lose_power()
        assert file.load() == StorePosition(3)

    asyncio.run(run())
