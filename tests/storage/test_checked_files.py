"""Having table files checked by processes beside the node: what is asked, and what becomes of the answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lockstep.storage.rocks.rocks import RocksStore, open_rocks_store
from lockstep.storage.rocks.rocks_building import TableChecker
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import StorageError
from lockstep.values.node_limits import SCRUB_FILE_TIMEOUT_MS

from .support import LoopTasks

_ASKED = decoder(tuple[str, str])


class Helpers:
    """Says of each file in `damaged` why it is not whole."""

    def __init__(self, damaged: dict[str, str] | None = None) -> None:
        self.damaged = damaged or {}
        self.asked: list[tuple[str, str]] = []

    async def do(self, order: bytes, timeout_ms: int) -> bytes:
        assert timeout_ms == SCRUB_FILE_TIMEOUT_MS
        self.asked.append(_ASKED.decode(order))
        return encode(self.damaged.get(self.asked[-1][1], ""))

    async def stop(self) -> None:
        return


LIVE = {"name": "/000007.sst", "start_key": b"a", "end_key": b"q"}


def test_a_damaged_file_is_told_with_what_the_library_says_and_the_keys_it_held() -> None:
    async def body() -> None:
        helpers = Helpers({"000007.sst": "block checksum mismatch"})
        found = await TableChecker(helpers).damage_in("store", "000007.sst", [LIVE])
        assert found is not None
        assert (found.path, found.why) == ("store/000007.sst", "block checksum mismatch")
        assert (found.first_key, found.last_key) == (b"a", b"q")
        assert helpers.asked == [("store", "000007.sst")]
        assert await TableChecker(helpers).damage_in("store", "000008.sst", [LIVE]) is None

    asyncio.run(body())


def test_the_first_damaged_table_file_is_looked_for_among_all_files() -> None:
    async def body() -> None:
        helpers = Helpers({"2.sst": "bad", "3.sst": "worse", "CURRENT": "is no table"})
        checker = TableChecker(helpers)
        found = await checker.first_damaged("store", ["CURRENT", "1.sst", "2.sst", "3.sst"])
        assert found is not None and (found.path, found.why) == ("store/2.sst", "bad")
        assert [name for _, name in helpers.asked] == ["1.sst", "2.sst"]
        assert await checker.first_damaged("store", ["CURRENT", "1.sst", "9.log"]) is None

    asyncio.run(body())


async def with_one_file(path: Path, checker: TableChecker | None) -> RocksStore:
    directory, tasks = str(path / "db"), LoopTasks()
    store = await open_rocks_store(directory, tasks, checker=checker)
    assert isinstance(store, RocksStore)
    store.write([("put", b"key", b"value")])
    await store.before_ingest()
    return store


def test_a_store_notes_what_a_check_finds_and_nothing_of_whole_files(tmp_path: Path) -> None:
    async def body() -> None:
        helpers = Helpers()
        store = await with_one_file(tmp_path, TableChecker(helpers))
        [name] = store.table_files()
        assert await store.check_file(name) is None
        assert (store.damaged.known, store.damaged.count) == ((), 0)
        helpers.damaged[name] = "bad"
        for count in (1, 2):
            found = await store.check_file(name)
            assert found is not None and (found.first_key, found.last_key) == (b"key", b"key")
            assert (store.damaged.known, store.damaged.count) == (store.damaged.known[:1], count)
        assert helpers.asked[0][0].endswith("/db") and store.size_bytes() > 0
        store.close()

    asyncio.run(body())


def test_a_store_without_a_process_beside_it_checks_nothing(tmp_path: Path) -> None:
    async def body() -> None:
        store = await with_one_file(tmp_path, None)
        with pytest.raises(StorageError, match="no process to check files with"):
            await store.check_file("000007.sst")
        store.close()

    asyncio.run(body())
