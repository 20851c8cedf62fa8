"""What an engine tells of and what it gives: many rows and few."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from lockstep.scans.outlined_engine import OutlinedEngine
from lockstep.storage.reading import Reading
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.storage.store import Pair
from lockstep.values.ids import mutation_id
from lockstep.values.outlines import Outline, OutlineFold
from lockstep.values.rows import ALL_ROWS, Cell, Liveness, Mutation, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import NOW_S, TABLE_ID, Opened, View

COUNT = Outline(("blob",), (("blob", False),), folds=(OutlineFold("count"),))


class Engine:
    """One that has everything synced, but for what `waits` says."""

    ask_merge = None

    def __init__(self) -> None:
        self.waits = 0
        self.waited: list[int] = []

    def apply(self, mutation: Mutation, *, first_epoch: int | None) -> int:
        return 0

    def unsynced(self, command: ReadCommand) -> int:
        return self.waits

    async def synced(self, sequence: int) -> None:
        self.waited.append(sequence)


class Store:
    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.pairs = pairs

    def snapshot(self) -> View:
        return View(self.pairs)

    def cursor(self, lower: bytes, upper: bytes, *, caches: bool) -> Opened:
        assert caches, "others may read it too"
        return View(self.pairs).cursor(lower, upper)


def made(rows: int) -> tuple[OutlinedEngine, Engine]:
    """With one partition of so many rows, at token 7."""
    prefix = keys.partition_prefix(TABLE_ID, 7, b"key")
    pairs: dict[bytes, bytes] = {}
    for number in range(rows):
        row = Row(b"%05d" % number, Liveness(5), None, (Cell(9, b"v", 5),))
        mutation = Mutation(TABLE_ID, 7, b"key", mutation_id(1, 1, number), 5, rows=(row,))
        pairs.update((key, value) for _, key, value in fragments_of(mutation, prefix))
    engine: Any = Engine()
    store: Any = Store(sorted(pairs.items()))
    tasks: Any = None
    return OutlinedEngine(engine, store, tasks), engine


def command(*, key: bool, limit: int, outline: Outline | None = COUNT) -> ReadCommand:
    left, right, name = (6, 7, b"key") if key else (TOKEN_MIN, TOKEN_MAX, None)
    return ReadCommand(
        TABLE_ID, left, right, name, ALL_ROWS, (), False, False, limit, 0, NOW_S, outline=outline
    )


def test_few_rows_are_given_as_by_any_read() -> None:
    outlined, engine = made(100)
    for key in (True, False):
        for limit in (10, 100, 5000):
            asked = command(key=key, limit=limit)
            rows = command(key=key, limit=limit, outline=None)
            plain = Reading(outlined._store.snapshot(), rows, None)
            plain.run()
            assert asyncio.run(outlined.read(asked)) == plain.result()
            if key:
                assert outlined.read_now(asked) == plain.result()
    assert not engine.waited


def test_many_rows_are_told_of() -> None:
    outlined, _ = made(1500)
    for key in (True, False):
        result = asyncio.run(outlined.read(command(key=key, limit=5000)))
        assert result.told is not None and result.told.rows == 1500 and not result.partitions
    assert outlined.read_now(command(key=True, limit=5000)) is None
    few = asyncio.run(outlined.read(command(key=True, limit=60)))
    assert few.told is None and len(few.partitions[0].rows) == 60 and few.more


def test_what_is_not_durable_is_awaited() -> None:
    outlined, engine = made(1500)
    engine.waits = 12
    assert outlined.read_now(command(key=True, limit=10)) is None
    asyncio.run(outlined.read(command(key=True, limit=10)))
    asyncio.run(outlined.read(command(key=True, limit=5000)))
    assert engine.waited == [12, 12]
