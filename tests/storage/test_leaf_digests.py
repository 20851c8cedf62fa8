"""Digests of ranges for repairs: by content, not by fragments; of a large partition a few rows at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from lockstep.storage import unchanged
from lockstep.storage.engine import StorageEngine
from lockstep.storage.reading import WholeFold
from lockstep.values.hash_tree import LEAF_BYTES
from lockstep.values.ids import MUTATION_ID_BYTES
from lockstep.values.limits import BACKGROUND_FRAGMENTS_PER_TURN
from lockstep.values.rows import Cell, Deletion, Liveness, Mutation, RangeDeletion, Row
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

from .support import open_store, runtime_of
from .test_engine import TABLE
from .test_purging import LoopBudget

LEAVES = (Range(TOKEN_MIN, -5), Range(-5, 0), Range(10, TOKEN_MAX))
TOKENS = (-50, -5, -4, 0, 10, 11, 90)


def changes(seed: int) -> list[Mutation]:
    dice, made = Random(seed), list[Mutation]()
    for number in range(1, 300):
        token, at_us = dice.choice(TOKENS), dice.randrange(1, 200)
        gone, clustering = Deletion(at_us, dice.randrange(1, 100)), b"%02d" % dice.randrange(12)
        unique = number.to_bytes(MUTATION_ID_BYTES, "big")
        row = Row(clustering, Liveness(at_us), None, (Cell(2, b"%d" % number, at_us),))
        kind = dice.randrange(20)
        more = {
            0: {"deletion": gone},
            1: {"range_deletions": (RangeDeletion(b"03", b"07", gone),)},
            2: {"static": Row(b"", cells=(Cell(1, b"s", at_us),))},
            3: {"rows": (Row(clustering, deletion=gone),)},
            4: {"rows": (Row(clustering, cells=(Cell(2, None, at_us, 0, gone.deleted_at_s),)),)},
        }.get(kind, {"rows": (row,)})
        made.append(Mutation(TABLE, token, b"k%d" % token, unique, at_us, **more))
    return made


async def digests(path: Path, mutations: list[Mutation], before_s: int, purged_s: int = 0) -> bytes:
    runtime = runtime_of()
    engine = StorageEngine(await open_store("model", path, runtime), runtime, background_merge=False)
    for mutation in mutations:
        engine.apply(mutation)
    if purged_s:
        engine.purge.before = lambda _table, _token: purged_s
        await engine.purge.run(TABLE, LoopBudget())
    return await of_leaves(engine, LEAVES, before_s)


async def of_leaves(engine: StorageEngine, leaves: Sequence[Range], before_s: int) -> bytes:
    snapshot = engine._store.snapshot()
    found, _ = await unchanged.leaf_digests(snapshot, TABLE, leaves, before_s, LoopBudget())
    snapshot.close()
    await engine.close()
    return found


@pytest.mark.parametrize("seed", range(6))
def test_leaves_are_equal_where_content_is(seed: int, tmp_path: Path) -> None:
    async def check() -> None:
        made = changes(seed)
        mixed = Random(seed).sample(made, len(made))
        first = await digests(tmp_path / "a", made, 50)
        assert first == await digests(tmp_path / "b", mixed, 50, purged_s=50), "purged or not, in any order"
        token = Random(seed).choice([-50, -4, 11])
        row = Row(b"99", Liveness(500))
        more = Mutation(TABLE, token, b"k%d" % token, bytes(MUTATION_ID_BYTES), 500, rows=(row,))
        second = await digests(tmp_path / "c", [*made, more], 50)
        leaf = next(at for at, range_ in enumerate(LEAVES) if range_.contains(token))
        unequal = [
            at
            for at in range(3)
            if first[at * LEAF_BYTES :][:LEAF_BYTES] != second[at * LEAF_BYTES :][:LEAF_BYTES]
        ]
        assert unequal == [leaf]

    asyncio.run(check())


def test_a_large_partition_is_never_held_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []

    class Watched(WholeFold):
        __slots__ = ()

        def add(self, pair: tuple[bytes, bytes]) -> bool:
            held.append(len(self._rows))
            return super().add(pair)

    monkeypatch.setattr(unchanged, "WholeFold", Watched)
    rows = [Row(b"%05d" % at, Liveness(1)) for at in range(1000)]
    made = [
        Mutation(TABLE, 1, b"k", at.to_bytes(MUTATION_ID_BYTES, "big"), 1, rows=(row,))
        for at, row in enumerate(rows)
    ]

    async def check() -> None:
        runtime = runtime_of()
        engine = StorageEngine(await open_store("model", tmp_path, runtime), runtime)
        for mutation in made:
            engine.apply(mutation)
        await of_leaves(engine, [FULL_RING], 0)

    asyncio.run(check())
    assert len(held) == 1000 and max(held) <= BACKGROUND_FRAGMENTS_PER_TURN


def test_rows_are_counted_by_leaf_once_and_without_those_that_may_be_purged(tmp_path: Path) -> None:
    def write(token: int, number: int, row: Row) -> Mutation:
        unique = number.to_bytes(MUTATION_ID_BYTES, "big")
        return Mutation(TABLE, token, b"k%d" % token, unique, number, rows=(row,))

    made = [
        write(-5, 1, Row(b"1", Liveness(1))),
        write(-5, 2, Row(b"1", Liveness(2))),
        write(-5, 3, Row(b"2", Liveness(3))),
        write(-50, 4, Row(b"1", deletion=Deletion(4, 10))),
        write(11, 5, Row(b"1", Liveness(5))),
    ]

    async def check() -> None:
        runtime = runtime_of()
        engine = StorageEngine(await open_store("model", tmp_path, runtime), runtime)
        for mutation in made:
            engine.apply(mutation)
        for before_s, expected in ((0, (3, 0, 1)), (11, (2, 0, 1))):
            view = engine._store.snapshot()
            assert (await unchanged.leaf_digests(view, TABLE, LEAVES, before_s, LoopBudget()))[1] == expected
            view.close()
        await engine.close()

    asyncio.run(check())
