"""Sorted files: cut at partitions, whole or refused, and the same content out of both stores."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.runtime.real import real_runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.model import ModelStore
from lockstep.storage.rocks.rocks import RocksStore
from lockstep.storage.rows import keys
from lockstep.storage.sorted_file import RangeFiles
from lockstep.storage.store import FileSummary, Pair, Store
from lockstep.storage.unchanged import Unchanged
from lockstep.values.errors import CorruptFile, StorageError
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, Range
from tests.storage.support import content_of, open_store, runtime_of
from tests.storage.test_engine import TABLE, engine_with, random_mutation


class Given:
    """A cursor over pairs in memory."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs

    def take(self, count: int) -> list[Pair]:
        taken, self._pairs = self._pairs[:count], self._pairs[count:]
        return taken


class Sink:
    """A file in memory, whose size is that of its keys and values."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []
        self.size_bytes = 0

    def add(self, pairs: Sequence[Pair]) -> None:
        self.pairs += pairs
        self.size_bytes += sum(len(key) + len(value) for key, value in pairs)


def files_of(files: RangeFiles) -> list[tuple[Sink, FileSummary]]:
    found = []
    while True:
        files.begin()
        sink = Sink()
        while files.add_block(sink):
            assert not files.ended or sink.pairs
        assert not files.add_block(sink)
        found.append((sink, files.summary(sink.size_bytes, b"")))
        if files.ended:
            return found


def fragments(sizes: list[tuple[int, int]]) -> list[Pair]:
    """For each (rows, bytes of a value) one partition."""
    found = []
    for token, (count, size) in enumerate(sizes):
        prefix = keys.partition_prefix(TABLE, token, b"k\x00%d" % token)
        found += [(prefix + keys.KIND_ROW + b"%05d" % row, bytes(size)) for row in range(count)]
    return found


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 10, 500, 3000])), max_size=20),
    st.sampled_from([256, 1000, 20_000]),
)
@settings(max_examples=60, deadline=None)
def test_files_hold_everything_in_order_and_end_with_whole_partitions_where_they_can(
    sizes: list[tuple[int, int]], bytes_max: int
) -> None:
    pairs = fragments(sizes)
    found = files_of(RangeFiles(Given(pairs).take, bytes_max))
    assert [pair for file, _ in found for pair in file.pairs] == pairs
    for number, (file, summary) in enumerate(found):
        inside = file.pairs
        assert summary.entries == len(inside) and summary.size_bytes == file.size_bytes
        if not inside:
            assert number == len(found) - 1 and (not pairs or number)
            continue
        assert (summary.first_key, summary.last_key) == (inside[0][0], inside[-1][0])
        prefix = keys.split_partition(summary.last_key)[2]
        rest = [key for key, _ in pairs if key > summary.last_key and key.startswith(prefix)]
        # What is still lacking begins behind the partition, or at its start when the file ends inside it.
        assert summary.next_key == (prefix if rest else keys.partition_end(prefix))
        assert not rest or file.size_bytes > bytes_max
        assert [key for key, _ in pairs if key >= summary.next_key and key <= summary.last_key] == (
            [key for key, _ in pairs if key.startswith(prefix) and key <= summary.last_key] if rest else []
        )


async def made(store: Store, path: str, pairs: list[Pair]) -> bytes:
    """The file that a store makes of pairs."""
    run = store.new_run(path)
    for at in range(0, len(pairs), 100):
        run.add(pairs[at : at + 100])
    await run.finish()
    assert run.count == len(pairs)
    return disk_of(store).read(path)


def disk_of(store: Store) -> Any:
    """Where the files of a store's runs are."""
    if isinstance(store, ModelStore):
        return store._disk
    assert isinstance(store, RocksStore)
    return real_runtime(store._files_root).disk


@pytest.mark.parametrize("kind", ["model", "rocks"])
@pytest.mark.parametrize("damage", ["foreign", "cut", "longer", "empty"])
def test_a_file_that_is_none_is_refused_and_the_store_goes_on(kind: str, damage: str, tmp_path: Path) -> None:
    async def body() -> None:
        store = await open_store(kind, tmp_path, runtime_of())
        store.write([("put", b"kept", b"1")])
        content = await made(store, "whole", [(b"k%05d" % n, b"v" * 50) for n in range(1000)])
        spoilt = {
            "foreign": bytes(range(256)) * 20,
            "cut": content[:-100],
            "longer": content + bytes(100),
            "empty": b"",
        }[damage]
        disk_of(store).append("spoilt", spoilt)
        with pytest.raises(CorruptFile):
            store.ingest(store.run_at("spoilt", 1000))
        assert content_of(store) == {b"kept": b"1"}
        store.ingest(store.run_at("whole", 1000))
        store.write([("put", b"kept", b"2")])
        await store.sync()
        assert len(content_of(store)) == 1001 and store.get(b"kept") == b"2"
        store.close()

    asyncio.run(body())


def test_a_file_is_only_taken_in_for_its_range(tmp_path: Path) -> None:
    async def body() -> None:
        for kind in ("model", "rocks"):
            (tmp_path / kind).mkdir()
            engine = await engine_with(kind, tmp_path / kind, [])
            (first, _), *_, (last, _) = pairs = fragments([(3, 10)] * 20)
            await made(engine._store, "file", pairs)
            for part in (Range(-1, 18), Range(0, 19)):
                with pytest.raises(StorageError, match="not of the range"):
                    engine.run_at(TABLE, part, "file", len(pairs), first, last)
            engine.ingest(engine.run_at(TABLE, Range(-1, 19), "file", len(pairs), first, last))
            await engine.close()

    asyncio.run(body())


def test_what_is_taken_in_is_not_unchanged_since_a_repair(tmp_path: Path) -> None:
    async def body() -> None:
        engine = await engine_with("model", tmp_path, [])
        (first, _), *_, (last, _) = pairs = fragments([(3, 10)] * 20)
        await made(engine._store, "file", pairs)
        await made(engine._store, "again", pairs)
        engine.unchanged.watch("s", TABLE, [FULL_RING])
        engine._store.write(engine.unchanged.equal("s", TABLE, [FULL_RING]))
        assert engine.unchanged.parts(TABLE, [FULL_RING]) == ()
        for path in ("file", "again"):
            await engine.synced(
                engine.take_in(
                    engine.run_at(TABLE, Range(-1, 19), path, len(pairs), first, last), is_indexed=False
                )
            )
            (part,) = engine.unchanged.parts(TABLE, [FULL_RING])
            assert part.contains(0) and part.contains(19) and part != FULL_RING
            assert Unchanged(engine._store).parts(TABLE, [FULL_RING]) == (part,), "as a start would find it"
        await engine.close()

    asyncio.run(body())


def test_files_of_either_store_bring_the_same_content(tmp_path: Path) -> None:
    """Tombstones, range deletions under partition headers and expiring cells among them."""

    async def copied(source: StorageEngine, target: StorageEngine, part: Range, name: str) -> list[int]:
        stream = await source.fragments(TABLE, part)
        files, counts = RangeFiles(stream.take, 700), []
        while not files.ended:
            path = f"{name}-{len(counts)}"
            run = source.begin_run(TABLE, part, path)
            files.begin()
            while files.add_block(run):
                pass
            counts.append(run.count)
            if run.count:
                await run.finish()
                summary = files.summary(0, b"")
                disk_of(target._store).append(path, disk_of(source._store).read(path))
                await target.before_ingest(TABLE, part)
                first, last = summary.first_key, summary.last_key
                await target.synced(target.ingest(target.run_at(TABLE, part, path, run.count, first, last)))
        stream.close()
        return counts

    async def body() -> None:
        dice = Random(11)
        writes = [random_mutation(dice, number) for number in range(150)]
        for part in (FULL_RING, Range(-5, TOKEN_MAX)):
            found = []
            for kind in ("model", "rocks"):
                engines = []
                for role, content in (("source", writes), ("target", []), ("again", [])):
                    directory = tmp_path / f"{kind}{part.left}{role}"
                    directory.mkdir()
                    engines.append(await engine_with(kind, directory, content, background_merge=False))
                source, target, again = engines
                assert len(await copied(source, target, part, "a")) > 1
                await copied(target, again, part, "b")
                pairs = [list((await engine.fragments(TABLE, part)).take(10_000)) for engine in engines]
                assert pairs[0] == pairs[1] == pairs[2]
                digests = [await engine.digest(TABLE, part) for engine in engines]
                found.append((pairs[0], digests))
                for engine in engines:
                    await engine.close()
            assert found[0] == found[1]
            assert len(dict.fromkeys(found[0][1])) == 1

    asyncio.run(body())
