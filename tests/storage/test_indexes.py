"""Secondary indexes of one store: reads by index against reads of everything, building, cleaning, files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from lockstep.schema.clustering import after_prefix
from lockstep.schema.model import Column, ColumnKind, KeyspaceHead, Replication, Table, keyspace_of
from lockstep.schema.objects import Index
from lockstep.schema.types import parse_type
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.engine import StorageEngine
from lockstep.storage.index import index_entries, index_reading, indexes
from lockstep.storage.index.index_entries import IndexDefinition, definition_of, entry_bounds
from lockstep.storage.model import open_model_store
from lockstep.storage.rows import keys
from lockstep.storage.rows.visible import live_view
from lockstep.values import limits
from lockstep.values.errors import DiskRefused, IndexNotAvailable, Overloaded, StorageError
from lockstep.values.ids import mutation_id
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    ColumnDeletion,
    Deletion,
    IndexRead,
    Liveness,
    Mutation,
    Partition,
    Place,
    RangeDeletion,
    ReadCommand,
    Row,
)
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

from .support import LoopTasks, open_store, runtime_of, take_in

TABLE, NOW_S = 7, 100
INT = parse_type("int")
SPACE = keyspace_of(KeyspaceHead("ks", Replication("SimpleStrategy", (("", 1),))))
KEYS = [
    (token, b"\x00\x04" + INT.serialize(a) + b"\x00\x00\x01" + b + b"\x00")
    for token, a, b in ((-5, 0, b"x"), (-5, 1, b"x"), (0, 0, b"y"), (TOKEN_MAX, 2, b"x"))
]
STATIC, PLAIN, MAP = 4, 5, 6
INDEXED = Table(
    TABLE,
    "",
    "ks",
    "t",
    (
        Column(1, "a", "int", ColumnKind.PARTITION_KEY, 0),
        Column(2, "b", "text", ColumnKind.PARTITION_KEY, 1),
        Column(3, "c", "int", ColumnKind.CLUSTERING, 0, True),
        Column(STATIC, "s", "int", ColumnKind.STATIC),
        Column(PLAIN, "v", "int", ColumnKind.REGULAR),
        Column(MAP, "m", "map<int, int>", ColumnKind.REGULAR),
    ),
    indexes=(
        Index("by_a", 20, 1),
        Index("by_c", 21, 3),
        Index("by_s", 22, STATIC),
        Index("by_v", 23, PLAIN),
        Index("by_keys", 24, MAP, "keys"),
        Index("by_values", 25, MAP, "values"),
        Index("by_entries", 26, MAP, "entries"),
    ),
)
DEFINITIONS = [definition_of(SPACE, INDEXED, index) for index in INDEXED.indexes]


def value(number: int) -> bytes:
    return INT.serialize(number)


def clustering(number: int) -> bytes:
    return bytes(255 - byte for byte in INT.component(value(number)))


class Ticks:
    """A clock that hardly moves."""

    def monotonic_s(self) -> float:
        return 0.0


async def opened(kind: str, directory: Path) -> StorageEngine:
    runtime = replace(runtime_of(), clock=Ticks())  # type: ignore[arg-type]
    return StorageEngine(await open_store(kind, directory, runtime), runtime, background_merge=False)


def command(index: IndexRead | None, **changes: Any) -> ReadCommand:
    values: dict[str, Any] = {
        "left": TOKEN_MIN,
        "right": TOKEN_MAX,
        "key": None,
        "row_limit": 0,
        "after": None,
    }
    values.update(changes)
    return ReadCommand(
        table_id=TABLE,
        slices=ALL_ROWS,
        columns=(),
        reads_static=True,
        reverse=False,
        partition_row_limit=0,
        now_s=NOW_S,
        index=index,
        **values,
    )


def random_mutation(dice: Random, number: int) -> Mutation:
    token, key = dice.choice(KEYS)
    at = dice.randrange(1, 12)

    def cell(column: int, path: bytes | None = None) -> Cell:
        kind = dice.random()
        if kind < 0.2:
            return Cell(column, None, at, 0, NOW_S - 1, path)
        expires = (10, dice.choice((NOW_S - 1, NOW_S + 1))) if kind < 0.35 else (0, 0)
        return Cell(column, value(dice.randrange(3)), at, *expires, path)

    rows = []
    for one in sorted({clustering(dice.randrange(4)) for _ in range(dice.randrange(3))}):
        cells = [cell(PLAIN)] if dice.random() < 0.7 else []
        cells += [cell(MAP, value(path)) for path in range(3) if dice.random() < 0.4]
        gone = Deletion(at, NOW_S) if dice.random() < 0.1 else None
        whole = (ColumnDeletion(MAP, Deletion(at - 1, NOW_S)),) if dice.random() < 0.2 else ()
        rows.append(Row(one, Liveness(at) if dice.random() < 0.5 else None, gone, tuple(cells), whole))
    static = Row(b"", None, None, (cell(STATIC),)) if dice.random() < 0.3 else None
    deletion = Deletion(at, NOW_S) if dice.random() < 0.05 else None
    ranges = ()
    if dice.random() < 0.1:
        ranges = (RangeDeletion(clustering(2), clustering(0), Deletion(at, NOW_S)),)
    return Mutation(TABLE, token, key, mutation_id(1, 1, number), at, deletion, ranges, static, tuple(rows))


def wanted(definition: IndexDefinition, number: int, second: int) -> IndexRead:
    lower = INT.component(value(number))
    if definition.target == "entries":
        lower += INT.component(value(second))
    return IndexRead(definition.index_id, lower, after_prefix(lower), definition.whole)


def holds(definition: IndexDefinition, key: bytes, row: Row, number: int, second: int) -> bool:
    """The slow twin, of a live row or live static row."""
    name = next(index.name for index in INDEXED.indexes if index.id == definition.index_id)
    cells = [cell for cell in row.cells if cell.column == definition.column]
    return {
        "by_a": lambda: key[2:6] == value(number),
        "by_c": lambda: row.clustering == clustering(number),
        "by_keys": lambda: any(cell.path == value(number) for cell in cells),
        "by_entries": lambda: any(
            (cell.path, cell.value) == (value(number), value(second)) for cell in cells
        ),
    }.get(name, lambda: any(cell.value == value(number) for cell in cells))()


async def shown(engine: StorageEngine, asked: ReadCommand) -> list[Partition]:
    """All live content, page by page."""
    found: list[Partition] = []
    while True:
        result = await engine.read(asked)
        for partition in result.partitions:
            live = live_view(partition, NOW_S)
            if found and (found[-1].token, found[-1].key) == (live.token, live.key):
                live = Partition(live.token, live.key, None, (), live.static, found.pop().rows + live.rows)
            found.append(live)
        if not result.more:
            return [one for one in found if one.rows or one.static is not None]
        asked = command(asked.index, left=asked.left, row_limit=asked.row_limit, after=result.end)


def chosen(
    everything: list[Partition], definition: IndexDefinition, *pairs: tuple[int, int]
) -> list[Partition]:
    """The slow twin: what has one of some values."""

    def has(key: bytes, row: Row) -> bool:
        return any(holds(definition, key, row, *pair) for pair in pairs)

    found = []
    for one in everything:
        if definition.whole:
            rows, kept = one.rows, has(one.key, one.static or Row(b""))
        else:
            rows = tuple(row for row in one.rows if has(one.key, row))
            kept = bool(rows)
        if kept:
            found.append(Partition(one.token, one.key, None, (), one.static, rows))
    return found


async def check(engine: StorageEngine) -> None:
    """Every index finds, for every value and page size, what going through all rows finds."""
    everything = await shown(engine, command(None))
    for definition in DEFINITIONS:
        for number in range(3):
            index = wanted(definition, number, 1)
            expected = chosen(everything, definition, (number, 1))
            for limit in (0, 1, 3):
                asked = command(index, row_limit=limit)
                assert engine.read_now(asked) == await engine.read(asked)
                assert await shown(engine, asked) == expected
        span = IndexRead(
            definition.index_id, INT.component(value(0)), INT.component(value(2)), definition.whole
        )
        expected = chosen(everything, definition, *((a, b) for a in range(2) for b in range(3)))
        for limit in (0, 2):
            assert await shown(engine, command(span, row_limit=limit)) == expected


async def entries(engine: StorageEngine) -> int:
    return len(engine.records(*entry_bounds(TABLE), 100_000))


async def idle(engine: StorageEngine) -> None:
    tasks = engine._runtime.tasks
    assert isinstance(tasks, LoopTasks)
    await tasks.idle()


async def history(kind: str, directory: Path, seed: int, steps: int = 25) -> None:
    dice = Random(seed)
    engine = await opened(kind, directory)
    before = dice.randrange(steps)
    for number in range(steps):
        if number == before:
            engine.indexes.define(TABLE, DEFINITIONS)
        await engine.synced(engine.apply(random_mutation(dice, number)))
    await idle(engine)
    await check(engine)
    await engine.indexes.sweep(TABLE, CooperativeYield(Ticks()))  # type: ignore[arg-type]
    await check(engine)
    await engine.close()


@pytest.mark.parametrize("kind", ["model", "rocks"])
@pytest.mark.parametrize("seed", range(12))
def test_an_index_finds_what_going_through_all_rows_finds(kind: str, seed: int, tmp_path: Path) -> None:
    asyncio.run(history(kind, tmp_path, seed))


def _no_entries_of_static(definition: IndexDefinition, mutation: Mutation, prefix: bytes) -> list[bytes]:
    return [] if definition.whole else index_entries.entries_of(definition, mutation, prefix)


PLANTED = [
    (indexes, "entries_of", _no_entries_of_static),
    (index_reading.IndexReading, "_matches", lambda self, key, row: True),
    (indexes.Indexes, "_holds", lambda self, definition, entry: False),
    (indexes.Indexes, "_entries_of_fragments", lambda self, job, pairs: []),
    (index_reading, "live_at", lambda now_s: index_entries.has_value),
]


@pytest.mark.parametrize("at", range(len(PLANTED)))
def test_planted_bugs_are_found(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, bug = PLANTED[at]
    monkeypatch.setattr(place, name, bug)
    with pytest.raises(AssertionError):
        for seed in range(12):
            asyncio.run(history("model", tmp_path, seed))


def put(number: int, key: tuple[int, bytes], v: int) -> Mutation:
    row = Row(clustering(0), Liveness(number), None, (Cell(PLAIN, value(v), number),))
    return Mutation(TABLE, key[0], key[1], mutation_id(1, 1, number), number, rows=(row,))


async def counted(engine: StorageEngine, v: int) -> int:
    by_v = next(found for found in DEFINITIONS if found.column == PLAIN)
    return sum(len(one.rows) for one in await shown(engine, command(wanted(by_v, v, 0))))


def test_reads_take_outdated_entries_away(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened("rocks", tmp_path)
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        await idle(engine)
        for number in range(1, 5):
            engine.apply(put(number, KEYS[0], number))
        assert await entries(engine) == 4
        assert [await counted(engine, v) for v in range(1, 5)] == [0, 0, 0, 1]
        assert await entries(engine) == 1
        await engine.close()

    asyncio.run(run())


def test_a_dropped_index_leaves_nothing_and_a_wiped_range_is_swept(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened("rocks", tmp_path)
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        await idle(engine)
        for number, key in enumerate(KEYS, 1):
            engine.apply(put(number, key, 1))
        await engine.wipe((TABLE,), Range(TOKEN_MIN, 0))
        await engine.indexes.sweep(TABLE, CooperativeYield(Ticks()))  # type: ignore[arg-type]
        assert await entries(engine) == await counted(engine, 1) == 1
        engine.indexes.define(TABLE, [])
        await idle(engine)
        assert await entries(engine) == 0
        with pytest.raises(IndexNotAvailable):
            await counted(engine, 1)
        await engine.close()

    asyncio.run(run())


def test_building_goes_on_after_a_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "INDEX_BUILD_FRAGMENTS", 4)
    monkeypatch.setattr(limits, "INDEX_NOTED_EVERY", 2)

    async def run() -> None:
        runtime = replace(runtime_of(), clock=Ticks())  # type: ignore[arg-type]
        engine = StorageEngine(await open_model_store(runtime.disk, "store"), runtime)
        for number in range(100):
            engine.apply(put(number + 1, (number, KEYS[0][1]), 1))
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        for _ in range(20):
            await asyncio.sleep(0)
        await engine.synced(engine.apply(put(200, (500, KEYS[0][1]), 1)))
        disk = runtime.disk.lose_power(lambda size: 0)  # type: ignore[attr-defined]
        await engine.close()
        again = replace(runtime_of(disk), clock=Ticks())  # type: ignore[arg-type]
        engine = StorageEngine(await open_model_store(again.disk, "store"), again)
        kept = await entries(engine)
        assert 9 <= kept < 101
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        (job,) = engine.indexes._jobs
        assert job.tokens.left > TOKEN_MIN
        assert await counted(engine, 1) == 101
        await engine.close()

    asyncio.run(run())


def test_building_goes_on_once_what_was_damaged_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "BUILD_RETRY_MS", 1)

    async def run() -> None:
        runtime = replace(runtime_of(), clock=Ticks())  # type: ignore[arg-type]
        store = await open_model_store(runtime.disk, "store")
        engine = StorageEngine(store, runtime)
        for number in range(20):
            engine.apply(put(number + 1, (number, KEYS[0][1]), 1))
        assert store.damage_block(0.5, 1)
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        engine.indexes._ask(indexes.Job(TABLE, None, FULL_RING))
        for _ in range(50):
            await asyncio.sleep(0)
        assert engine.indexes._is_pausing
        await engine.indexes.settled()
        assert engine.indexes.built(TABLE) == [], "who waits for rows that came does not wait for a repair"
        store.blocks.clear()
        assert await counted(engine, 1) == 20
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["model", "rocks"])
def test_rows_that_come_in_files_get_their_entries_before_they_are_read(kind: str, tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened(kind, tmp_path / "target")
        source = await opened("model", tmp_path)
        for number in range(40):
            source.apply(put(number + 1, (number, KEYS[0][1]), number % 2))
        fragments = await source.fragments(TABLE, FULL_RING)
        pairs = fragments.take(1000)
        fragments.close()
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        await idle(engine)
        await take_in(engine, TABLE, FULL_RING, pairs)
        await engine.indexes.settled()
        assert await entries(engine) == 40
        assert [await counted(engine, v) for v in (0, 1)] == [20, 20]
        engine.indexes.define(TABLE, [])
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        assert await counted(engine, 1) == 20
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["model", "rocks"])
@pytest.mark.parametrize("is_known", [True, False])
def test_rows_that_are_taken_in_get_their_entries_though_nothing_was_announced(
    kind: str, is_known: bool, tmp_path: Path
) -> None:
    """Also where the index is defined later, as it is at a start."""

    async def run() -> None:
        engine = await opened(kind, tmp_path / "target")
        source = await opened("model", tmp_path)
        for number in range(40):
            source.apply(put(number + 1, (number, KEYS[0][1]), number % 2))
        fragments = await source.fragments(TABLE, FULL_RING)
        pairs = fragments.take(1000)
        fragments.close()
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        await idle(engine)
        if not is_known:
            engine.indexes.tables.clear()
        run = engine.begin_run(TABLE, FULL_RING, "taken.run")
        run.add(pairs)
        await run.finish()
        sequence = engine.take_in(run, is_indexed=True)
        if not is_known:
            engine.indexes.define(TABLE, [DEFINITIONS[3]])
        assert engine.indexes._jobs == {indexes.Job(TABLE, None, FULL_RING): 1}
        await engine.synced(sequence)
        await idle(engine)
        assert [await counted(engine, v) for v in (0, 1)] == [20, 20]
        assert indexes.missing_ranges(engine._store, TABLE) == []
        # A crash has taken the mark back, and left the rows.
        sequence = engine.came_in(TABLE, FULL_RING, is_indexed=True)
        assert indexes.missing_ranges(engine._store, TABLE) == [FULL_RING]
        assert engine.indexes._jobs == {indexes.Job(TABLE, None, FULL_RING): 1}
        await engine.synced(sequence)
        await idle(engine)
        assert engine.indexes._jobs == {} and indexes.missing_ranges(engine._store, TABLE) == []
        await engine.close()

    asyncio.run(run())


BY_V, BY_KEYS = DEFINITIONS[3], DEFINITIONS[4]
SPAN = IndexRead(BY_V.index_id, INT.component(value(0)), INT.component(value(100)), BY_V.whole)


async def filled(rows: int, directory: Path) -> StorageEngine:
    """One row in each of so many partitions, with values 0, 1, 2, ...; nothing is indexed yet."""
    engine = await opened("model", directory)
    for number in range(rows):
        engine.apply(put(number + 1, (number, KEYS[0][1]), number))
    return engine


def test_an_index_that_goes_while_it_is_built_takes_its_work_along_and_no_other(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await filled(10, tmp_path)
        engine.indexes.define(TABLE, [BY_V, BY_KEYS])
        assert engine.indexes.built(TABLE) == []
        engine.indexes.define(TABLE, [BY_V])
        assert [job.index_id for job in engine.indexes._jobs] == [BY_V.index_id]
        await idle(engine)
        assert engine.indexes.built(TABLE) == [BY_V.index_id]
        assert [await counted(engine, v) for v in (0, 9)] == [1, 1]
        await engine.close()

    asyncio.run(run())


def test_files_that_came_are_gone_through_as_long_as_the_table_has_an_index(tmp_path: Path) -> None:
    async def run() -> None:
        source = await filled(10, tmp_path)
        fragments = await source.fragments(TABLE, FULL_RING)
        pairs = fragments.take(100)
        fragments.close()
        engine = await opened("model", tmp_path)
        engine.indexes.define(TABLE, [BY_V, BY_KEYS])
        await idle(engine)
        assert engine.indexes.announce(TABLE + 1, FULL_RING) == []
        run = engine.begin_run(TABLE, FULL_RING, "taken.run")
        run.add(pairs)
        await run.finish()
        await engine.before_ingest(TABLE, FULL_RING)
        engine.ingest(run)
        engine.indexes.define(TABLE, [BY_V])
        assert [(job.index_id, job.tokens) for job in engine.indexes._jobs] == [(None, FULL_RING)]
        engine.indexes.define(TABLE, [])
        assert not engine.indexes._jobs
        engine.indexes.define(TABLE, [BY_V])
        assert None in [job.index_id for job in engine.indexes._jobs], "no entry of those rows was made"
        await engine.indexes.settled()
        await idle(engine)
        assert await entries(engine) == 10
        await engine.close()
        await source.close()

    asyncio.run(run())


def test_rows_that_nobody_announced_are_not_taken_in_beside_an_index(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await filled(1, tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        with pytest.raises(StorageError, match="since these rows were announced"):
            engine.indexes.came(TABLE, FULL_RING)
        engine.indexes.came(TABLE + 1, FULL_RING)
        await idle(engine)
        await engine.close()

    asyncio.run(run())


def test_entries_that_do_not_fit_beside_a_mutation_are_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        engine = await filled(0, tmp_path)
        engine.indexes.define(TABLE, [BY_V, BY_KEYS])
        await idle(engine)
        monkeypatch.setattr(limits, "STORE_BATCH_ROWS_MAX", 4)
        rows = tuple(
            Row(clustering(n), None, None, (Cell(PLAIN, value(n), 1), Cell(MAP, value(n), 1, 0, 0, value(n))))
            for n in range(3)
        )
        mutation = Mutation(TABLE, *KEYS[0], mutation_id(1, 1, 1), 1, rows=rows)
        joined = engine.indexes.joining(mutation, keys.partition_prefix(TABLE, *KEYS[0]), 2)
        assert await entries(engine) == 4 and len(joined) == 2
        assert engine.indexes.joining(mutation, keys.partition_prefix(TABLE, *KEYS[0]), 4) == []
        engine.apply(mutation)
        assert await entries(engine) == 6
        await engine.close()

    asyncio.run(run())


def stepped(engine: StorageEngine, asked: ReadCommand) -> tuple[int, index_reading.IndexReading]:
    """How often a reading gave the loop a turn, and the reading."""
    snapshot = engine._store.snapshot()
    reading = index_reading.IndexReading(snapshot, asked, None, BY_V)
    count = sum(1 for _ in reading.steps())
    snapshot.close()
    return count, reading


def test_going_through_the_entries_of_a_span_gives_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A span of which nothing is asked for costs as much as its entries."""

    async def run() -> None:
        engine = await filled(40, tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        nothing = command(SPAN, left=1000)
        assert stepped(engine, nothing)[0] == 0
        monkeypatch.setattr(limits, "FRAGMENTS_PER_TURN_MAX", 10)
        assert stepped(engine, nothing)[0] == 4
        await engine.close()

    asyncio.run(run())


def test_few_rows_are_read_at_once_when_they_are_indexed_and_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        engine = await filled(10, tmp_path)
        asked = command(wanted(BY_V, 3, 0))
        assert engine.read_now(asked) is None, "there is no index"
        await engine.synced(engine.apply(put(11, (11, KEYS[0][1]), 3)))
        engine.indexes.define(TABLE, [BY_V])
        assert engine.indexes.built(TABLE) == [] and engine.read_now(asked) is None
        await idle(engine)
        assert engine.read_now(asked) == await engine.read(asked)
        assert len((await engine.read(asked)).partitions) == 2
        sequence = engine.apply(put(12, KEYS[0], 3))
        assert engine.read_now(asked) is None, "what it would tell may be lost"
        await engine.synced(sequence)
        at_once = engine.read_now(asked)
        assert at_once is not None and len(at_once.partitions) == 3
        monkeypatch.setattr(limits, "FRAGMENTS_PER_TURN_MAX", 48)
        looked = 0

        def alone(self: index_reading.IndexReading, *place: bytes) -> tuple[Row | None, int]:
            nonlocal looked
            looked += 1
            return plain(self, *place)

        plain = index_reading.IndexReading._alone
        monkeypatch.setattr(index_reading.IndexReading, "_alone", alone)
        assert engine.read_now(asked) is None and not looked, "three rows take a turn of their own"
        assert await engine.read(asked) == at_once and looked == 3
        await engine.close()

    asyncio.run(run())


def test_rows_by_an_index_are_read_some_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        engine = await filled(40, tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        assert stepped(engine, command(SPAN))[0] == 0
        monkeypatch.setattr(limits, "FRAGMENTS_PER_TURN_MAX", 160)
        # One for the entries, which are many, and one for each ten rows.
        assert stepped(engine, command(SPAN))[0] == 5
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("rows", [1, 3])
def test_a_row_that_is_looked_up_is_merged_as_it_is_by_a_read_of_its_partition(
    rows: int, tmp_path: Path
) -> None:
    """Whether it has one fragment or several, and with deletions of it, its partition and beside it."""

    async def run() -> None:
        engine = await opened("rocks", tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        dice = Random(rows)
        for number in range(1, 400):
            token = number % 40
            mutation = replace(random_mutation(dice, number), token=token, key=KEYS[0][1])
            kept = mutation.rows[:rows] if number % 7 else ()
            await engine.synced(engine.apply(replace(mutation, rows=kept)))
        for v in range(3):
            asked = command(wanted(BY_V, v, 0))
            found = await engine.read(asked)
            assert found.partitions, "some rows have the value"
            for one in found.partitions:
                of = replace(asked, index=None, left=one.token - 1, right=one.token, key=one.key)
                (whole,) = (await engine.read(of)).partitions
                by_clustering = {row.clustering: row for row in whole.rows}
                assert all(by_clustering[row.clustering] == row for row in one.rows)
                assert one.static == whole.static
        await engine.close()

    asyncio.run(run())


@pytest.mark.parametrize("most", [1, 3, 40])
def test_candidates_are_taken_some_at_a_time_and_in_order(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_CANDIDATES_MAX", most)
    monkeypatch.setattr(limits, "INDEX_SPAN_CANDIDATES_MAX", most)

    async def run() -> None:
        engine = await filled(20, tmp_path)
        for number in range(20):
            engine.apply(put(100 + number, (50 + number, KEYS[0][1]), 3))
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        everything = await shown(engine, command(None))
        assert await shown(engine, command(SPAN)) == everything
        assert await shown(engine, command(wanted(BY_V, 3, 0))) == [everything[3], *everything[20:]]
        key = command(SPAN, left=4, right=5, key=KEYS[0][1])
        assert await shown(engine, key) == everything[5:6]
        assert await shown(engine, command(SPAN, left=4, right=6)) == everything[5:7]
        await engine.close()

    asyncio.run(run())


def test_no_more_outdated_entries_are_taken_away_at_once_than_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_STALE_AT_ONCE_MAX", 2)

    async def run() -> None:
        engine = await opened("model", tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        for number in range(5):
            engine.apply(put(number + 1, KEYS[0], number))
        assert await entries(engine) == 5
        for left in (3, 1, 1):
            assert await shown(engine, command(SPAN)) == await shown(engine, command(None))
            assert await entries(engine) == left
        await engine.close()

    asyncio.run(run())


def test_a_page_that_ends_inside_a_partition_judges_no_entry_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was not read says nothing of whether an entry is outdated."""
    monkeypatch.setattr(limits, "READ_RESULT_BYTES_MAX", 100)

    async def run() -> None:
        engine = await opened("model", tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        rows = tuple(
            Row(clustering(n), Liveness(1), None, (Cell(PLAIN, value(1), 1),)) for n in range(19, -1, -1)
        )
        engine.apply(Mutation(TABLE, *KEYS[0], mutation_id(1, 1, 1), 1, rows=rows))
        asked = command(wanted(BY_V, 1, 0))
        first = await engine.read(asked)
        assert first.more and 0 < len(first.partitions[0].rows) < 20
        assert [len(one.rows) for one in await shown(engine, asked)] == [20]
        assert await entries(engine) == 20
        await engine.close()

    asyncio.run(run())


def test_places_are_read_in_their_order_and_of_the_tokens_asked_for(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await filled(6, tmp_path)
        places = tuple(Place(token, KEYS[0][1], ALL_ROWS) for token in (1, 3, 4, 9))
        found = await engine.read(replace(command(None, left=1, right=9), places=places))
        assert [one.token for one in found.partitions if one.rows] == [3, 4]
        assert not found.more
        first = await engine.read(replace(command(None, row_limit=1), places=places))
        assert [one.token for one in first.partitions] == [1] and first.more
        await engine.close()

    asyncio.run(run())


def test_a_full_or_crowded_disk_leaves_outdated_entries_for_later(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened("model", tmp_path)
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        for number in range(2):
            engine.apply(put(number + 1, KEYS[0], number))
        refused: list[type[Exception]] = []

        def write(_batch: object) -> int:
            refused.append(kinds.pop())
            raise refused[-1]("no room")

        kinds: list[type[Exception]] = [Overloaded, DiskRefused]
        sound, engine.indexes._write = engine.indexes._write, write
        for _ in range(2):
            assert await counted(engine, 0) == 0
        assert len(refused) == 2 and await entries(engine) == 2
        engine.indexes._write = sound
        assert await counted(engine, 0) == 0 and await entries(engine) == 1
        await engine.close()

    asyncio.run(run())


def test_a_disk_that_refuses_ends_the_building_and_is_told(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await filled(10, tmp_path)
        told: list[StorageError] = []
        engine.indexes._on_failure = told.append

        def write(_batch: object) -> int:
            raise DiskRefused("no room")

        engine.indexes._write = write
        engine.indexes.define(TABLE, [BY_V])
        await idle(engine)
        assert [error.message for error in told] == ["no room"]
        assert engine.indexes.built(TABLE) == [] and engine.indexes._task is None
        await engine.close()

    asyncio.run(run())


def test_entries_of_a_partition_that_is_gone_are_taken_away_by_who_reads_them(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened("model", tmp_path)
        by_s = DEFINITIONS[2]
        engine.indexes.define(TABLE, [by_s])
        await idle(engine)
        token, key = KEYS[0]
        static = Row(b"", None, None, (Cell(STATIC, value(1), 5),))
        engine.apply(Mutation(TABLE, token, key, mutation_id(1, 1, 1), 5, static=static))
        asked = command(wanted(by_s, 1, 0))
        assert len(await shown(engine, asked)) == await entries(engine) == 1
        engine._store.write([("delete_range", *keys.token_bounds(TABLE, FULL_RING))])
        assert await shown(engine, asked) == [] and await entries(engine) == 0
        await engine.close()

    asyncio.run(run())


def test_what_is_asked_for_while_it_is_gone_through_is_gone_through_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = indexes.Indexes._entries_of_fragments
    jobs: list[indexes.Job] = []

    def made_again(self: indexes.Indexes, job: indexes.Job, pairs: Any) -> Any:
        jobs.append(job)
        if len(jobs) == 1:
            self._ask(job)
        return made(self, job, pairs)

    async def run() -> None:
        engine = await opened("model", tmp_path)
        engine.apply(put(1, KEYS[0], 1))
        monkeypatch.setattr(indexes.Indexes, "_entries_of_fragments", made_again)
        engine.indexes.define(TABLE, [DEFINITIONS[3]])
        await idle(engine)
        assert len(jobs) == 2 and len(set(jobs)) == 1
        assert engine.indexes.built(TABLE) == [DEFINITIONS[3].index_id] and await counted(engine, 1) == 1
        await engine.close()

    asyncio.run(run())
