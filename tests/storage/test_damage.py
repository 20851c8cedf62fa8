"""A damaged file of the store: whoever reads what is in it is told which file it is."""

from __future__ import annotations

import asyncio
from contextlib import closing
from pathlib import Path

import pytest

from lockstep.runtime.real.certificates import damage_in
from lockstep.storage.damage import DamagedFiles
from lockstep.storage.model import open_model_store
from lockstep.storage.rocks.rocks import RocksStore, open_rocks_store
from lockstep.values.errors import CorruptFile, TableFileDamaged

from .support import LoopTasks, LossyDisk

COUNT = 2000


def key(number: int) -> bytes:
    return b"\x10%08d" % number


async def written(path: Path) -> RocksStore:
    """Two table files: keys below COUNT in the first, the others in the second."""
    store = await open_rocks_store(str(path), LoopTasks())
    for first in (0, COUNT):
        for number in range(first, first + COUNT):
            store.write([("put", key(number), bytes([number % 251]) * 60)])
        await store.before_ingest()
    return store


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)


async def damaged(tmp_path: Path) -> tuple[RocksStore, Path]:
    (await written(tmp_path / "store")).close()
    first = min((tmp_path / "store").glob("*.sst"))
    flip(first)
    return await open_rocks_store(str(tmp_path / "store"), LoopTasks()), first


def test_whoever_reads_is_told_the_file_and_what_is_in_it(tmp_path: Path) -> None:
    async def body() -> None:
        store, first = await damaged(tmp_path)
        told: list[TableFileDamaged] = []
        store.damaged.listen(told.append)
        for read in (
            lambda: [store.get(key(number)) for number in range(COUNT)],
            lambda: list(store.scan(key(0), key(COUNT))),
            lambda: list(store.scan(key(0), key(COUNT), reverse=True)),
            lambda: list(closing(store.snapshot()).thing.scan(key(0), key(COUNT))),
            lambda: store.cursor(key(0), key(COUNT)).take(COUNT),
        ):
            with pytest.raises(TableFileDamaged) as caught:
                read()
            error = caught.value
            assert (error.path, error.first_key, error.last_key) == (str(first), key(0), key(COUNT - 1))
            assert error.offset > 0
        assert len(told) == 1 and len(store.damaged.known) == 1
        assert store.damaged.count == 5
        assert store.get(key(COUNT + 1)) is not None
        store.close()

    asyncio.run(body())


def test_a_store_with_a_damaged_file_takes_writes_as_before(tmp_path: Path) -> None:
    """Once a compaction meets damage the library takes no more writes: none begins any more."""

    async def body() -> None:
        store, _ = await damaged(tmp_path)
        with pytest.raises(TableFileDamaged):
            list(store.scan(key(0), key(COUNT)))
        for turn in range(8):
            for number in range(0, COUNT, 7):
                store.write([("put", key(number), b"%d" % turn)])
            await store.before_ingest()
        await asyncio.sleep(0.05)
        store.write([("put", key(COUNT + 3), b"new")])
        await store.sync()
        assert store.get(key(COUNT + 3)) == b"new"
        store.close()

    asyncio.run(body())


def test_damage_that_a_compaction_met_is_named_by_the_write_that_fails(tmp_path: Path) -> None:
    async def body() -> None:
        store, first = await damaged(tmp_path)
        for number in range(0, COUNT, 2):
            store.write([("put", key(number), b"above")])
        await store.before_ingest()
        store._database.compact_range(None, None)
        with pytest.raises(Exception, match=first.name):
            for number in range(100_000):
                store.write([("put", key(number), b"x")])
        assert [error.path for error in store.damaged.known] == [str(first)]
        store.close()

    asyncio.run(body())


@pytest.mark.parametrize("harm", ["emptied", "cut", "removed"])
def test_a_file_that_is_not_whole_is_named_when_the_store_opens(harm: str, tmp_path: Path) -> None:
    async def body() -> None:
        (await written(tmp_path / "store")).close()
        first = min((tmp_path / "store").glob("*.sst"))
        if harm == "removed":
            first.unlink()
        else:
            content = first.read_bytes()
            first.write_bytes(content[: len(content) // 2] if harm == "cut" else b"")
        with pytest.raises(TableFileDamaged) as caught:
            await open_rocks_store(str(tmp_path / "store"), LoopTasks())
        assert caught.value.path == str(first)

    asyncio.run(body())


def test_damage_that_the_library_meets_while_it_opens_is_no_other_process(tmp_path: Path) -> None:
    """Its texts speak of a block, in which there is a lock."""

    async def body() -> None:
        store = await open_rocks_store(str(tmp_path / "store"), LoopTasks())
        store.write([("put", key(1), b"a")])
        await store.before_ingest()
        store.close()
        first = min((tmp_path / "store").glob("*.sst"))
        content = bytearray(first.read_bytes())
        named = []
        for at in range(0, len(content), 7):
            content[at] ^= 1
            first.write_bytes(content)
            try:
                opened = await open_rocks_store(str(tmp_path / "store"), LoopTasks())
                opened.close()
            except TableFileDamaged as error:
                named.append(error.path)
            except CorruptFile as error:
                named.append(error.path)  # Where the library does not say in which file it is.
            content[at] ^= 1
        assert str(first) in named and set(named) <= {str(first), str(tmp_path / "store")}

    asyncio.run(body())


def test_a_check_finds_every_damaged_bit_but_those_that_only_save_reads(tmp_path: Path) -> None:
    async def body() -> None:
        (await written(tmp_path / "store")).close()
        directory, first = str(tmp_path / "store"), min((tmp_path / "store").glob("*.sst"))
        assert damage_in(directory, first.name) == ""
        assert damage_in(directory, "999999.sst") == ""
        whole = first.read_bytes()
        for at in range(0, len(whole) * 8 // 10, len(whole) // 12):
            content = bytearray(whole)
            content[at] ^= 0x40
            first.write_bytes(content)
            assert "Corruption" in damage_in(directory, first.name)
        assert not list((tmp_path / "store").glob("check-*"))

    asyncio.run(body())


def test_a_simulated_block_that_cannot_be_read_refuses_its_keys_and_no_others() -> None:
    async def body() -> None:
        store = await open_model_store(LossyDisk(), "store")
        store.write([("put", key(number), b"v") for number in range(20)])
        assert store.damage_block(0.5, 3)
        for number in range(20):
            if number in (10, 11, 12):
                with pytest.raises(TableFileDamaged):
                    store.get(key(number))
            else:
                assert store.get(key(number)) == b"v"
        assert len(list(store.scan(key(0), key(10)))) == 10
        with pytest.raises(TableFileDamaged):
            list(store.scan(key(0), key(20)))
        with pytest.raises(TableFileDamaged):
            store.cursor(key(0), key(20)).take(20)
        with pytest.raises(TableFileDamaged):
            list(store.snapshot().scan(key(0), key(20), reverse=True))
        store.blocks.clear()
        assert len(list(store.scan(key(0), key(20)))) == 20
        assert len(store.damaged.known) == 1

    asyncio.run(body())


def test_who_listens_late_hears_of_what_was_found_before() -> None:
    damaged, heard = DamagedFiles(), list[TableFileDamaged]()
    error = TableFileDamaged("store/1.sst", 7, "checksum", b"a", b"b")
    damaged.found(error)
    damaged.listen(heard.append)
    assert heard == [error] == list(damaged.known)
