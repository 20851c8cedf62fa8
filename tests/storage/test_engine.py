"""The engine on both stores: reads against a slow twin, paging, durability, merging, moving ranges."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.storage import reading
from lockstep.storage.engine import StorageEngine
from lockstep.storage.group_commit import GroupCommit
from lockstep.storage.model import open_model_store
from lockstep.storage.purging import merge_place
from lockstep.storage.reading import normal_slices, partitions_between
from lockstep.storage.rows import folding, keys
from lockstep.storage.rows.reconcile import is_empty, merge_partitions
from lockstep.storage.rows.visible import live_view
from lockstep.storage.store import Batch
from lockstep.values import limits
from lockstep.values.errors import CorruptFile, DiskRefused, InvalidRequest, Overloaded, StorageError
from lockstep.values.ids import mutation_id
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    Partition,
    Position,
    RangeDeletion,
    ReadCommand,
    ReadResult,
    Row,
    Slice,
)
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

from .support import LossyDisk, content_of, open_store, runtime_of, take_in

BOTH = pytest.mark.parametrize("kind", ["model", "rocks"])
TABLE = 7
NOW_S = 100
KEYS = [(-5, b"k\x00"), (-5, b"k"), (0, b"a"), (9, b"z\x00\xff"), (TOKEN_MAX, b"\xff\xff")]
CLUSTERINGS = [b"", b"\x00", b"a", b"a\x00", b"b", b"c", b"\xff"]


def command(key: tuple[int, bytes] | None = None, **changes: Any) -> ReadCommand:
    values: dict[str, Any] = {
        "left": TOKEN_MIN if key is None else key[0] - 1,
        "right": TOKEN_MAX if key is None else key[0],
        "key": None if key is None else key[1],
        "slices": ALL_ROWS,
        "columns": (),
        "reads_static": True,
        "reverse": False,
        "row_limit": 0,
        "partition_row_limit": 0,
        "now_s": NOW_S,
    }
    return ReadCommand(table_id=TABLE, **{**values, **changes})


def put(
    key: tuple[int, bytes], clustering: bytes, value: bytes, at: int, number: int, table: int = TABLE
) -> Mutation:
    row = Row(clustering, Liveness(at), None, (Cell(1, value, at),))
    return Mutation(table, key[0], key[1], mutation_id(1, 1, number), at, rows=(row,))


def random_row(dice: Random, clustering: bytes) -> Row:
    def stamp() -> int:
        return dice.randrange(1, 8)

    cells = []
    for column, path in [(1, None), (2, None), (3, b"x"), (3, b"y")]:
        if dice.random() < 0.4:
            dead = dice.random() < 0.3
            ttl, expires = (0, 1) if dead else dice.choice([(0, 0), (5, 50), (5, 200)])
            value = None if dead else dice.randbytes(1)
            cells.append(Cell(column, value, stamp(), ttl, expires, path))
    return Row(
        clustering,
        Liveness(stamp()) if dice.random() < 0.4 else None,
        Deletion(stamp(), 1) if dice.random() < 0.2 else None,
        tuple(cells),
        (ColumnDeletion(3, Deletion(stamp(), 1)),) if dice.random() < 0.2 else (),
    )


def random_mutation(dice: Random, number: int) -> Mutation:
    token, key = dice.choice(KEYS)
    ranges = ()
    if dice.random() < 0.2:
        start, end = sorted([dice.choice(CLUSTERINGS), dice.choice(CLUSTERINGS)])
        ranges = (RangeDeletion(start, end, Deletion(dice.randrange(1, 6), 2)),)
    chosen = dice.sample(CLUSTERINGS, dice.randrange(4))
    return Mutation(
        TABLE,
        token,
        key,
        mutation_id(1, 1, number),
        dice.randrange(1, 8),
        Deletion(dice.randrange(1, 4), 2) if dice.random() < 0.1 else None,
        ranges,
        random_row(dice, b"") if dice.random() < 0.2 else None,
        tuple(random_row(dice, clustering) for clustering in chosen),
    )


def twin_partitions(mutations: list[Mutation]) -> dict[tuple[int, bytes], Partition]:
    """What all replicas of these writes must know, from the writes alone."""
    sources: dict[tuple[int, bytes], list[Partition]] = {}
    for m in mutations:
        one = Partition(m.token, m.key, m.deletion, m.range_deletions, m.static, m.rows)
        sources.setdefault((m.token, m.key), []).append(one)
    return {place: merge_partitions(sources[place]) for place in sorted(sources)}


def live_rows(result: ReadResult) -> list[tuple[bytes, Row]]:
    return [(p.key, row) for p in result.partitions for row in live_view(p, NOW_S).rows]


async def engine_with(kind: str, path: Path, mutations: list[Mutation], **options: Any) -> StorageEngine:
    runtime = runtime_of()
    engine = StorageEngine(await open_store(kind, path, runtime), runtime, **options)
    for m in mutations:
        engine.apply(m)
    return engine


@BOTH
def test_large_rows_are_merged_beside_the_loop_and_read_as_others(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        dice = Random(1)
        mutations = [random_mutation(dice, number) for number in range(150)]
        engine = await engine_with(kind, tmp_path, mutations)
        asked = [command(), *(command(place, row_limit=limit) for place in KEYS for limit in (0, 1, 2))]
        expected = [await engine.read(one) for one in asked]
        for module in (folding, reading):
            monkeypatch.setattr(module, "MERGED_BYTES_INLINE", 10)
        assert [await engine.read(one) for one in asked] == expected
        assert all(engine.read_now(one) is None for one in asked), "it would be merged on the loop"
        assert [engine.peek(one) for one in asked] == expected
        await engine.close()

    asyncio.run(body())


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_reads_equal_the_twin_for_slices_order_and_limits(kind: str, seed: int, tmp_path: Path) -> None:
    async def body() -> None:
        dice = Random(seed)
        mutations = [random_mutation(dice, number) for number in range(dice.choice([5, 60, 150]))]
        engine = await engine_with(kind, tmp_path, mutations)
        for m in dice.sample(mutations, 5):
            engine.apply(m)
        twin = twin_partitions(mutations)
        full = await engine.read(command())
        assert list(full.partitions) == [p for p in twin.values() if not is_empty(p)]
        assert not full.more
        for _ in range(60):
            place = dice.choice(KEYS)
            slices = tuple(
                Slice(*sorted([dice.choice(CLUSTERINGS), dice.choice(CLUSTERINGS)]))
                for _ in range(dice.randrange(1, 3))
            )
            if dice.random() < 0.3:
                slices = ALL_ROWS
            reverse, limit = dice.random() < 0.5, dice.randrange(4)
            asked = command(place, slices=slices, reverse=reverse, row_limit=limit)
            result = await engine.read(asked)
            assert engine.read_now(asked) == result, "after the read nothing of the partition is unsynced"
            whole = twin.get(place, Partition(*place))
            expected = [
                row for row in live_view(whole, NOW_S).rows if any(s.contains(row.clustering) for s in slices)
            ]
            if reverse:
                expected.reverse()
            found = [row for _, row in live_rows(result)]
            assert found == (expected[:limit] if limit else expected)
            assert result.more or len(found) == len(expected)
        await engine.close()

    asyncio.run(body())


@BOTH
@pytest.mark.parametrize("seed", range(6))
def test_paging_by_end_sees_every_row_once_in_order(kind: str, seed: int, tmp_path: Path) -> None:
    async def body() -> None:
        dice = Random(seed)
        mutations = [random_mutation(dice, number) for number in range(80)]
        engine = await engine_with(kind, tmp_path, mutations)
        for reverse in (False, True):
            for slices in (ALL_ROWS, (Slice(b"\x00", b"b"), Slice(b"b\x00", b""))):
                options = {"reverse": reverse, "slices": slices}
                whole = live_rows(await engine.read(command(**options)))
                limit = dice.randrange(1, 4)
                paged: list[tuple[bytes, Row]] = []
                after: Position | None = None
                for _ in range(200):
                    page = await engine.read(command(**options, row_limit=limit, after=after))
                    rows = live_rows(page)
                    assert len(rows) <= limit
                    paged += rows
                    after = page.end
                    if not page.more:
                        break
                assert paged == whole
        await engine.close()

    asyncio.run(body())


@BOTH
def test_a_partition_limit_bounds_each_partition(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        writes = [
            put(place, c, b"v", 1, n)
            for n, (place, c) in enumerate((p, c) for p in KEYS for c in CLUSTERINGS)
        ]
        engine = await engine_with(kind, tmp_path, writes)
        result = await engine.read(command(partition_row_limit=2))
        assert [len(p.rows) for p in result.partitions] == [2] * len(KEYS)
        assert not result.more
        result = await engine.read(command(partition_row_limit=2, row_limit=3))
        assert [len(p.rows) for p in result.partitions] == [2, 1] and result.more
        await engine.close()

    asyncio.run(body())


@BOTH
def test_a_partition_with_only_a_live_static_row_counts_as_one(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        static = Row(b"", cells=(Cell(4, b"s", 1),))
        writes = [
            Mutation(TABLE, *place, mutation_id(1, 1, n), 1, static=static) for n, place in enumerate(KEYS)
        ]
        engine = await engine_with(kind, tmp_path, writes)
        result = await engine.read(command(row_limit=2))
        assert len(result.partitions) == 2 and result.more
        rest = await engine.read(command(row_limit=10, after=result.end))
        assert len(rest.partitions) == len(KEYS) - 2
        assert (await engine.read(command(reads_static=False))).partitions == ()
        sliced = await engine.read(command(row_limit=1, slices=(Slice(b"a", b""),)))
        assert len(sliced.partitions) == len(KEYS), "with clustering restricted, static rows do not count"
        await engine.close()

    asyncio.run(body())


@BOTH
def test_an_answer_is_cut_at_its_byte_limit_and_continues_behind_end(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        dead = [
            Mutation(
                TABLE, 0, b"a", mutation_id(1, 1, n), 5, rows=(Row(b"%03d" % n, deletion=Deletion(5, 1)),)
            )
            for n in range(50)
        ]
        engine = await engine_with(kind, tmp_path, [*dead, put((0, b"a"), b"999", b"v", 1, 99)])
        monkeypatch.setattr(limits, "READ_RESULT_BYTES_MAX", 300)
        pages, after = 0, None
        while True:
            page = await engine.read(command((0, b"a"), row_limit=5, after=after))
            pages, after = pages + 1, page.end
            if not page.more:
                break
            assert live_rows(page) == []
        assert pages > 5 and [row.clustering for _, row in live_rows(page)] == [b"999"]
        await engine.close()

    asyncio.run(body())


@BOTH
def test_mutations_over_a_limit_are_refused_whole(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        engine = await engine_with(kind, tmp_path, [])
        rows = tuple(Row(b"%05d" % n, Liveness(1)) for n in range(limits.STORE_BATCH_ROWS_MAX + 1))
        with pytest.raises(InvalidRequest):
            engine.apply(Mutation(TABLE, 0, b"a", mutation_id(1, 1, 1), 1, rows=rows))
        with pytest.raises(InvalidRequest):
            engine.apply(put((0, b"a"), b"", bytes(limits.MUTATION_BYTES_MAX), 1, 1))
        assert (await engine.read(command())).partitions == ()
        await engine.close()

    asyncio.run(body())


@BOTH
def test_two_changes_of_one_row_in_one_mutation_are_both_kept(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        first, second = Row(b"c", cells=(Cell(1, b"1", 1),)), Row(b"c", cells=(Cell(2, b"2", 2),))
        write = Mutation(TABLE, 0, b"a", mutation_id(1, 1, 1), 2, rows=(first, second))
        engine = await engine_with(kind, tmp_path, [write])
        (partition,) = (await engine.read(command())).partitions
        assert partition.rows == (Row(b"c", cells=(Cell(1, b"1", 1), Cell(2, b"2", 2))),)
        await engine.close()

    asyncio.run(body())


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_merging_fragments_changes_no_answer_and_survives_redelivery(
    kind: str, seed: int, tmp_path: Path
) -> None:
    async def body() -> None:
        dice = Random(seed)
        mutations = [random_mutation(dice, number) for number in range(150)]
        runtime = runtime_of()
        store = await open_store(kind, tmp_path, runtime)
        engine = StorageEngine(store, runtime)
        for m in mutations:
            engine.apply(m)
        count = len(content_of(store))
        before, digest = await engine.read(command()), await engine.digest(TABLE, FULL_RING)
        await runtime.tasks.idle()  # type: ignore[attr-defined]
        assert len(content_of(store)) < count
        assert await engine.read(command()) == before
        assert await engine.digest(TABLE, FULL_RING) == digest
        for m in mutations[::2]:
            engine.apply(m)
        assert await engine.read(command()) == before
        await engine.close()

    asyncio.run(body())


def test_replicas_that_merged_different_fragments_lose_nothing_when_one_streams_to_the_other(
    tmp_path: Path,
) -> None:
    async def body() -> None:
        cells = [
            Mutation(TABLE, 0, b"a", mutation_id(1, 1, n), 9, rows=(Row(b"c", cells=(Cell(n, b"v", 9),)),))
            for n in (1, 2, 3)
        ]
        prefix = keys.partition_prefix(TABLE, 0, b"a")
        place = keys.row_prefix(prefix, b"c")
        stores = []
        for chosen in (cells[:2] + cells[2:], cells[1:]):
            store = await open_model_store(LossyDisk(), "store")
            engine = StorageEngine(store, runtime_of())
            for m in chosen:
                engine.apply(m)
            assert merge_place(store, prefix, place) == len(chosen)
            assert len(content_of(store)) == 1
            stores.append(store)
        target = StorageEngine(stores[0], runtime_of())
        await take_in(target, TABLE, FULL_RING, list(stores[1].scan(*keys.table_bounds(TABLE))))
        (partition,) = (await target.read(command())).partitions
        assert [cell.column for cell in partition.rows[0].cells] == [1, 2, 3]

    asyncio.run(body())


@BOTH
def test_a_place_that_is_written_often_is_merged_though_nobody_reads(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        often = limits.ROW_FRAGMENTS_MERGE_AT
        runtime = runtime_of()
        store = await open_store(kind, tmp_path, runtime)
        engine = StorageEngine(store, runtime)
        most = 0
        for n in range(1, 20 * often):
            engine.apply(put((1, b"a"), b"c", b"%d" % n, n, n))
            engine.apply(put((1, b"new-%d" % n), b"c", b"v", n, 1000 + n))
            await runtime.tasks.idle()  # type: ignore[attr-defined]
            most = max(most, len(list(store.scan(*keys.table_bounds(TABLE)))) - n)
        assert most <= often
        (partition,) = (await engine.read(command((1, b"a")))).partitions
        assert [cell.value for cell in partition.rows[0].cells] == [b"%d" % n]
        await engine.close()

    asyncio.run(body())


def test_a_row_that_grows_is_not_written_again_for_each_of_its_small_writes() -> None:
    async def body() -> None:
        runtime = runtime_of()
        store = await open_model_store(LossyDisk(), "store")
        written = 0
        write = store.write

        def counted(batch: Batch) -> int:
            nonlocal written
            written += sum(len(operation[2]) for operation in batch if operation[0] == "put")
            return write(batch)

        store.write = counted  # type: ignore[method-assign]
        engine = StorageEngine(store, runtime)
        cells, most = 800, 0
        for n in range(1, cells + 1):
            row = Row(b"c", cells=(Cell(1, b"v" * 20, n, path=b"%08d" % n),))
            engine.apply(Mutation(TABLE, 0, b"a", mutation_id(1, 1, n), n, rows=(row,)))
            await runtime.tasks.idle()  # type: ignore[attr-defined]
            most = max(most, len(content_of(store)))
        once = sum(len(value) for value in content_of(store).values())
        assert most <= 2 * limits.ROW_FRAGMENTS_MERGE_AT
        assert written < 8 * once, (written, once)
        (partition,) = (await engine.read(command((0, b"a")))).partitions
        assert len(partition.rows[0].cells) == cells
        await engine.close()

    asyncio.run(body())


@BOTH
def test_background_merge_can_be_switched_off(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        writes = [put((0, b"a"), b"c", b"%d" % n, n, n) for n in range(1, 20)]
        engine = await engine_with(kind, tmp_path, writes, background_merge=False)
        await engine.read(command())
        stream = await engine.fragments(TABLE, FULL_RING)
        assert len(stream.take(100)) == 19
        stream.close()
        await engine.close()

    asyncio.run(body())


@BOTH
def test_a_streamed_range_gives_the_same_digest_and_ingests_again_without_change(
    kind: str, tmp_path: Path
) -> None:
    async def body() -> None:
        dice = Random(3)
        source = await engine_with(kind, tmp_path / "source", [random_mutation(dice, n) for n in range(100)])
        target = await engine_with(kind, tmp_path / "target", [])
        part = Range(-5, TOKEN_MAX)
        from_key = b""
        while True:
            stream = await source.fragments(TABLE, part, from_key)
            source.apply(put((9, b"z\x00\xff"), b"zz", b"later", 1, 1000, table=8))
            chunk = stream.take(13)
            stream.close()
            if not chunk:
                break
            for _ in range(2):
                await take_in(target, TABLE, part, chunk)
            from_key = chunk[-1][0] + b"\x00"
        assert await target.digest(TABLE, part) == await source.digest(TABLE, part)
        assert await target.digest(TABLE, FULL_RING) != await source.digest(TABLE, FULL_RING)
        with pytest.raises(StorageError):
            await take_in(target, TABLE, part, [(b"\x30local", b"")])
        with pytest.raises(StorageError):
            await take_in(target, TABLE, part, [(keys.partition_prefix(TABLE, -5, b"k") + b"\x02", b"")])
        await source.close()
        await target.close()

    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    asyncio.run(body())


@BOTH
def test_wipe_and_truncate_touch_only_their_range_and_table(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        writes = [put(place, b"c", b"v", 1, n, table) for n, place in enumerate(KEYS) for table in (6, 7, 8)]
        engine = await engine_with(kind, tmp_path, writes)

        async def left(table: int) -> list[tuple[int, bytes]]:
            asked = command()
            read = await engine.read(
                ReadCommand(table, *[getattr(asked, f) for f in asked.__struct_fields__[1:]])
            )
            return [(p.token, p.key) for p in read.partitions]

        everything = sorted(KEYS)
        await engine.wipe([6, 7], Range(-5, 9))
        assert await left(7) == await left(6) == [p for p in everything if p[0] in (-5, TOKEN_MAX)]
        await engine.wipe([7], Range(9, TOKEN_MAX))
        assert await left(7) == [p for p in everything if p[0] == -5]
        await engine.truncate(7)
        await engine.drop_tables([6])
        assert await left(7) == await left(6) == [] and await left(8) == everything
        await engine.close()

    asyncio.run(body())


@BOTH
def test_a_wipe_of_many_tables_is_one_sync_and_writes_to_those_that_hold_something(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body() -> None:
        monkeypatch.setattr(limits, "TABLES_DROPPED_AT_ONCE_MAX", 7)
        full = (3, 4, 40, 41, 77, 99)
        engine = await engine_with(kind, tmp_path, [put((0, b"a"), b"", b"v", 1, t, t) for t in full])
        tables = tuple(range(3, 100))
        assert await engine.filled(tables, Range(-1, 0)) == full
        assert await engine.filled(tables[2:], Range(-1, 0)) == full[2:]
        assert await engine.filled(tables, Range(0, 1)) == await engine.filled((), FULL_RING) == ()
        store, deleted, syncs = engine._store, list[int](), 0
        write, sync = store.write, store.sync

        def seen(batch: Batch) -> int:
            deleted.extend(int.from_bytes(one[1][1:5], "big") for one in batch if one[0] == "delete_range")
            return write(batch)

        async def counted() -> int:
            nonlocal syncs
            syncs += 1
            return await sync()

        store.write, store.sync = seen, counted  # type: ignore[method-assign]
        await engine.wipe(tables, Range(0, 9))
        assert not deleted and syncs == 1
        await engine.wipe(tables, Range(-1, 0))
        assert deleted == list(full) and syncs == 2
        assert await engine.filled(tables, FULL_RING) == ()
        await engine.close()

    asyncio.run(body())


def test_what_of_a_wiped_range_cannot_be_read_is_deleted_too() -> None:
    async def body() -> None:
        store = await open_model_store(LossyDisk(), "store")
        engine = StorageEngine(store, runtime_of())
        engine.apply(put((0, b"a"), b"", b"v", 1, 1, TABLE))
        scan = store.scan

        def damaged(*bounds: Any) -> Any:
            raise CorruptFile("000007.sst", 0, "a block cannot be read")

        store.scan = damaged  # type: ignore[method-assign]
        await engine.wipe([TABLE], FULL_RING)
        store.scan = scan  # type: ignore[method-assign]
        assert await engine.filled([TABLE], FULL_RING) == ()
        await engine.close()

    asyncio.run(body())


def test_many_writers_share_a_sync_and_each_is_durable_when_told() -> None:
    async def body() -> None:
        disk = LossyDisk()
        runtime = runtime_of(disk)
        engine = StorageEngine(await open_model_store(disk, "store"), runtime)
        acknowledged: list[int] = []

        async def write(number: int) -> None:
            await asyncio.sleep(0)
            for _ in range(number % 7):
                await asyncio.sleep(0)
            await engine.synced(engine.apply(put((number, b"k"), b"", b"v", 1, number)))
            acknowledged.append(number)
            reopened = await open_model_store(disk.lose_power(), "store")
            again = StorageEngine(reopened, runtime_of())
            found = await again.read(command((number, b"k")))
            assert len(found.partitions) == 1

        await asyncio.gather(*(write(number) for number in range(200)))
        assert len(acknowledged) == 200
        assert disk.syncs < 20
        reached = runtime.probes.reached  # type: ignore[attr-defined]
        assert reached.count("storage.batch.written") == 200
        assert reached.count("storage.sync.started") == reached.count("storage.sync.finished") > 0

    asyncio.run(body())


@pytest.mark.parametrize("partitions", [1, 100])
def test_a_disk_that_stalls_makes_no_more_than_so_many_writes_wait(
    partitions: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of one partition."""
    monkeypatch.setattr(limits, "UNSYNCED_WRITES_MAX", 50)

    async def body() -> None:
        disk = LossyDisk()
        engine = StorageEngine(await open_model_store(disk, "store"), runtime_of(disk))
        for number in range(50):
            sequence = engine.apply(put((number % partitions, b"k"), b"", b"v", 1, number))
        with pytest.raises(Overloaded):
            engine.apply(put((0, b"k"), b"", b"v", 1, 50))
        await engine.synced(sequence)
        engine.apply(put((0, b"k"), b"", b"v", 1, 50))

    asyncio.run(body())


def test_a_read_answers_only_durable_data_and_waits_for_no_other_partition() -> None:
    async def body() -> None:
        disk = LossyDisk()
        engine = StorageEngine(await open_model_store(disk, "store"), runtime_of(disk))
        await engine.synced(engine.apply(put((1, b"a"), b"", b"v", 1, 1)))
        engine.apply(put((5, b"b"), b"", b"v", 1, 2))
        synced = disk.syncs
        assert len((await engine.read(command((1, b"a")))).partitions) == 1
        assert engine.read_now(command((1, b"a"))) is not None
        assert engine.read_now(command((5, b"b"))) is None, "it would have to wait for the sync"
        assert len((await engine.read(command(right=4))).partitions) == 1
        assert disk.syncs == synced
        assert len((await engine.read(command(left=4))).partitions) == 1
        assert disk.syncs == synced + 1
        assert engine.read_now(command((5, b"b"))) is not None
        survivor = StorageEngine(await open_model_store(disk.lose_power(), "store"), runtime_of())
        assert len((await survivor.read(command((5, b"b")))).partitions) == 1

    asyncio.run(body())


@BOTH
def test_a_read_that_needs_many_turns_is_not_answered_in_one(kind: str, tmp_path: Path) -> None:
    async def body() -> None:
        rows = limits.FRAGMENTS_PER_TURN_MAX + 1
        writes = [put((1, b"a"), b"%08d" % number, b"v", 1, number) for number in range(rows)]
        engine = await engine_with(kind, tmp_path, writes)
        assert len((await engine.read(command((1, b"a")))).partitions[0].rows) == rows
        assert engine.read_now(command((1, b"a"))) is None
        found = engine.read_now(command((1, b"a"), row_limit=3))
        assert found is not None and len(found.partitions[0].rows) == 3 and found.more
        await engine.close()

    asyncio.run(body())


def test_a_group_commit_that_tells_before_its_sync_is_caught_by_power_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def tell_at_once(self: GroupCommit, sequence: int) -> None:
        return None

    async def survives() -> bool:
        disk = LossyDisk()
        engine = StorageEngine(await open_model_store(disk, "store"), runtime_of(disk))
        await engine.synced(engine.apply(put((1, b"a"), b"", b"v", 1, 1)))
        again = StorageEngine(await open_model_store(disk.lose_power(), "store"), runtime_of())
        return bool((await again.read(command((1, b"a")))).partitions)

    assert asyncio.run(survives())
    monkeypatch.setattr(GroupCommit, "synced", tell_at_once)
    assert not asyncio.run(survives())


def test_a_failed_sync_fails_its_waiters_and_everything_after() -> None:
    async def body() -> None:
        disk = LossyDisk()
        engine = StorageEngine(await open_model_store(disk, "store"), runtime_of(disk))
        sequence = engine.apply(put((1, b"a"), b"", b"v", 1, 1))
        disk.refuse = True
        outcomes = await asyncio.gather(*(engine.synced(sequence) for _ in range(3)), return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [DiskRefused] * 3
        with pytest.raises(DiskRefused):
            await engine.read(command((1, b"a")))
        with pytest.raises(DiskRefused):
            engine.apply(put((1, b"a"), b"", b"v", 1, 2))

    asyncio.run(body())


@pytest.mark.parametrize("by_merge", [False, True])
def test_a_store_that_takes_no_write_is_reported_once_though_nobody_waits_for_a_sync(by_merge: bool) -> None:
    async def body() -> None:
        disk, told = LossyDisk(), []
        store, runtime = await open_model_store(disk, "store"), runtime_of(disk)
        engine = StorageEngine(store, runtime, on_failure=told.append)
        # The last one asks for a merge, if there are so many.
        for number in range(1, limits.ROW_FRAGMENTS_MERGE_AT + by_merge):
            sequence = engine.apply(put((1, b"a"), b"", b"v", number, number))

        def refuse(batch: Batch) -> int:
            raise DiskRefused("the log cannot grow")

        store.write = refuse  # type: ignore[method-assign]
        await engine.synced(sequence)
        assert len(told) == by_merge
        for number in (50, 51):
            with pytest.raises(DiskRefused):
                engine.apply(put((1, b"a"), b"", b"v", number, number))
        assert len(told) == 1
        assert len((await engine.read(command((1, b"a")))).partitions) == 1, "what is durable is still read"

    asyncio.run(body())


def test_a_write_after_the_close_is_refused_and_no_failure() -> None:
    async def body() -> None:
        disk, told = LossyDisk(), []
        engine = StorageEngine(
            await open_model_store(disk, "store"), runtime_of(disk), on_failure=told.append
        )
        await engine.close()
        with pytest.raises(DiskRefused):
            engine.apply(put((1, b"a"), b"", b"v", 1, 1))
        assert not told

    asyncio.run(body())


def test_slices_are_sorted_and_joined() -> None:
    assert normal_slices((Slice(b"c", b"d"), Slice(b"a", b"b"), Slice(b"b", b"c\x00"))) == (
        Slice(b"a", b"d"),
    )
    assert normal_slices((Slice(b"b", b""), Slice(b"a", b"a"), Slice(b"c", b"d"))) == (Slice(b"b", b""),)


def test_going_through_partitions_gives_turns(tmp_path: Path) -> None:
    async def run() -> None:
        written = [put(key, b"a", b"v", 1, number) for number, key in enumerate(KEYS)]
        engine = await engine_with("model", tmp_path, written)
        snapshot = engine._store.snapshot()
        bounds = keys.token_bounds(TABLE, FULL_RING)
        for per_turn, turns in ((1, len(KEYS)), (2, len(KEYS) // 2), (100, 0)):
            found = list(partitions_between(snapshot, *bounds, per_turn))
            assert [one.key for one in found if one is not None] == [key for _, key in sorted(KEYS)]
            assert found.count(None) == turns
        snapshot.close()
        await engine.close()

    asyncio.run(run())


def test_a_row_of_which_nothing_is_said_changes_no_digest(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await engine_with("model", tmp_path, [])
        empty = await engine.digest(TABLE, FULL_RING)
        engine.apply(Mutation(TABLE, 3, b"k", mutation_id(1, 1, 1), 1, rows=(Row(b"a"),)))
        assert len(list(engine._store.scan(*keys.token_bounds(TABLE, FULL_RING)))) == 1
        assert await engine.digest(TABLE, FULL_RING) == empty
        await engine.close()

    asyncio.run(run())
