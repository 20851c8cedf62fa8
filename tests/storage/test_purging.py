"""Purging against a slow twin that merges all that was ever written and takes away what may go, later."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from lockstep.storage import purging
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.engine import StorageEngine
from lockstep.storage.purging import Purge
from lockstep.storage.rows import keys
from lockstep.storage.rows.reconcile import is_empty
from lockstep.storage.rows.visible import live_view, partition_left, row_left
from lockstep.values import limits
from lockstep.values.ids import mutation_id
from lockstep.values.limits import BACKGROUND_FRAGMENTS_PER_TURN
from lockstep.values.rows import Cell, Deletion, Liveness, Mutation, Partition, RangeDeletion, Row
from lockstep.values.tokens import FULL_RING

from .support import content_of, open_store, runtime_of
from .test_engine import TABLE, command, put, random_mutation, twin_partitions

KEY = (3, b"k")
#: What the mutations of `random_mutation` were deleted at is below; one value expires at 50.
ALL_S = 10


class LoopBudget(CooperativeYield):
    """Turns without a clock; `between` is called in each."""

    def __init__(self, between: Callable[[], None] = lambda: None) -> None:
        self.count = 0
        self._between = between

    async def turn(self) -> None:
        self.count += 1
        self._between()
        await asyncio.sleep(0)


async def opened(kind: str, path: Path) -> StorageEngine:
    runtime = runtime_of()
    return StorageEngine(await open_store(kind, path, runtime), runtime, background_merge=False)


async def purge(engine: StorageEngine, before_s: int, turns: LoopBudget | None = None) -> None:
    engine.purge.before = lambda _table, _token: before_s
    await engine.purge.run(TABLE, turns or LoopBudget())


async def state(engine: StorageEngine) -> dict[tuple[int, bytes], Partition]:
    result = await engine.read(command())
    return {(partition.token, partition.key): partition for partition in result.partitions}


def left_of(mutations: list[Mutation], before_s: int) -> dict[tuple[int, bytes], Partition]:
    """The twin's answer."""
    found = {place: partition_left(one, before_s) for place, one in twin_partitions(mutations).items()}
    return {place: one for place, one in found.items() if not is_empty(one)}


def drawn(seed: int, count: int) -> list[Mutation]:
    dice = Random(seed)
    return [random_mutation(dice, number) for number in range(count)]


@pytest.mark.parametrize(
    ("kind", "seed"), [*(("model", seed) for seed in range(12)), ("rocks", 4), ("rocks", 9)]
)
def test_a_pass_leaves_what_the_twin_leaves(kind: str, seed: int, tmp_path: Path) -> None:
    mutations = drawn(seed, 10 + seed * 12)
    before_s = Random(seed).choice([0, 2, ALL_S, 60])

    async def check() -> None:
        engine = await opened(kind, tmp_path)
        for mutation in mutations:
            engine.apply(mutation)
        await purge(engine, before_s)
        wanted = left_of(mutations, before_s)
        assert await state(engine) == wanted
        now_s = max(before_s, 20)
        seen = {place: live_view(one, now_s) for place, one in twin_partitions(mutations).items()}
        for place, one in (await state(engine)).items():
            assert live_view(one, now_s) == seen.pop(place)
        assert all(is_empty(one) for one in seen.values()), "what is gone had nothing that anybody could see"
        content = content_of(engine._store)
        await purge(engine, before_s)
        assert content_of(engine._store) == content, "a second pass finds nothing to do"
        await engine.close()

    asyncio.run(check())


def wide(rows: int) -> list[Mutation]:
    """A partition of many rows, and its deletion, which is newer."""
    made = [put(KEY, b"%06d" % number, b"v", 100, number) for number in range(rows)]
    deletion = Mutation(TABLE, *KEY, mutation_id(1, 2, 1), 200, Deletion(200, 1))
    return [*made, deletion]


def test_a_wide_partition_is_purged_in_steps_with_turns_in_between(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened("model", tmp_path)
        for mutation in wide(900):
            engine.apply(mutation)
        turns = LoopBudget()
        await purge(engine, ALL_S, turns)
        assert turns.count >= 3
        assert content_of(engine._store) == {}
        await engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("fragments", [1, 5])
def test_many_small_partitions_share_turns_by_what_they_cost(fragments: int, tmp_path: Path) -> None:
    """Finding a partition costs as much as some fragments: there is a turn each time enough was done."""
    partitions = 60

    async def check() -> None:
        engine = await opened("model", tmp_path)
        for number in range(partitions):
            for row in range(fragments):
                engine.apply(put((number, b"k"), b"%d" % row, b"v", 100, number * 10 + row))
        turns = LoopBudget()
        await purge(engine, 0, turns)
        counts = engine.purge.counts[TABLE]
        assert (counts.fragments, counts.passes) == (partitions * fragments, 1)
        each = -(-BACKGROUND_FRAGMENTS_PER_TURN // (fragments + purging._PARTITION_COSTS))
        assert turns.count == partitions // each
        await engine.close()

    asyncio.run(check())


def late_write(engine: StorageEngine, number: int) -> None:
    """An older write arrives, at a row that a pass has been at already."""
    engine.apply(put(KEY, b"%06d" % 0, b"late", 150, 10_000 + number))


async def purged_while_writes_arrive(engine: StorageEngine) -> None:
    for mutation in wide(900):
        engine.apply(mutation)
    arrived: list[int] = []

    def between() -> None:
        if not arrived:
            late_write(engine, len(arrived))
            arrived.append(1)

    await purge(engine, ALL_S, LoopBudget(between))
    assert arrived


def test_what_arrives_during_a_pass_keeps_the_tombstone_above_it(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened("model", tmp_path)
        await purged_while_writes_arrive(engine)
        [partition] = (await state(engine)).values()
        assert partition.deletion is not None and not partition.rows
        await purge(engine, ALL_S)
        assert content_of(engine._store) == {}
        await engine.close()

    asyncio.run(check())


def test_a_row_of_more_fragments_than_a_batch_holds_is_merged_and_then_purged(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened("model", tmp_path)
        for number in range(2500):
            engine.apply(put(KEY, b"r", b"v", 100 + number, number))
        gone = Row(b"r", deletion=Deletion(50_000, 1))
        engine.apply(Mutation(TABLE, *KEY, mutation_id(1, 3, 1), 50_000, rows=(gone,)))
        # An older fragment than any batch of the newest sees.
        await purge(engine, 0)
        assert len(content_of(engine._store)) == 1
        await purge(engine, ALL_S)
        assert content_of(engine._store) == {}
        await engine.close()

    asyncio.run(check())


def test_many_deletions_of_ranges_become_few_and_go(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened("model", tmp_path)
        for number in range(1500):
            bounds = b"%06d" % number, b"%06d" % (number + 1)
            ranges = (RangeDeletion(*bounds, Deletion(number + 1, 1 if number < 1000 else 99)),)
            unique = mutation_id(1, 4, number)
            engine.apply(Mutation(TABLE, *KEY, unique, number + 1, range_deletions=ranges))
        await purge(engine, ALL_S)
        [partition] = (await state(engine)).values()
        assert len(partition.range_deletions) == 500
        assert len(content_of(engine._store)) == 1
        await engine.close()

    asyncio.run(check())


def test_expired_values_go_after_their_grace_and_live_ones_stay(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened("model", tmp_path)
        cells = (Cell(1, b"short", 5, 5, 40), Cell(2, b"long", 5, 5, 400))
        row = Row(b"r", Liveness(5, 5, 40), None, cells)
        engine.apply(Mutation(TABLE, *KEY, mutation_id(1, 5, 1), 5, rows=(row,)))
        await purge(engine, 40)
        [partition] = (await state(engine)).values()
        assert partition.rows == (row,)
        await purge(engine, 41)
        [partition] = (await state(engine)).values()
        assert partition.rows == (Row(b"r", None, None, cells[1:]),)
        await engine.close()

    asyncio.run(check())


# -- planted bugs -------------------------------------------------------------------------------------


def resurrected(seeds: range, path: Path, before_s: int = 2) -> bool:
    """Whether some run shows more than the twin, or less."""

    async def differs(seed: int) -> bool:
        engine = await opened("model", path)
        mutations = drawn(seed, 60)
        for mutation in mutations:
            engine.apply(mutation)
        await purge(engine, before_s)
        found = await state(engine)
        await engine.close()
        return found != left_of(mutations, before_s)

    return any(asyncio.run(differs(seed)) for seed in seeds)


def test_the_twin_sees_nothing_without_a_bug(tmp_path: Path) -> None:
    assert not resurrected(range(8), tmp_path)


def test_the_twin_finds_a_purge_before_the_grace_time(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(purging, "row_left", lambda row, before_s: row_left(row, before_s + 1))
    assert resurrected(range(8), tmp_path, before_s=1)


def test_the_twin_finds_a_tombstone_that_goes_without_the_older_data_of_another_fragment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real: Any = Purge._place

    def newest_alone(self: Purge, partition: Any, place: bytes, pairs: Any, *rest: Any) -> Any:
        return real(self, partition, place, pairs[:1], *rest)

    monkeypatch.setattr(Purge, "_place", newest_alone)
    assert resurrected(range(8), tmp_path)


def test_what_arrives_during_a_pass_is_seen_again_if_the_pass_does_not_hear_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(Purge, "touched", lambda self, prefix: None)

    async def check() -> None:
        engine = await opened("model", tmp_path)
        await purged_while_writes_arrive(engine)
        [partition] = (await state(engine)).values()
        assert partition.rows, "deleted data is back"
        await engine.close()

    asyncio.run(check())


def test_a_place_with_one_fragment_is_left_as_it_is(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened("model", tmp_path)
        mutation = put(KEY, b"a", b"v", 1, 1)
        engine.apply(mutation)
        ((store_key, value),) = engine._store.scan(*keys.token_bounds(TABLE, FULL_RING))
        prefix = keys.split_partition(store_key)[2]
        place = store_key[: -keys.WRITE_BYTES]
        assert purging.merge_place(engine._store, prefix, place) == 1
        assert list(engine._store.scan(*keys.token_bounds(TABLE, FULL_RING))) == [(store_key, value)]
        await engine.close()

    asyncio.run(run())


def test_a_place_for_which_the_queue_has_no_room_is_queued_by_a_later_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        runtime = runtime_of()
        engine = StorageEngine(await open_store("model", tmp_path, runtime), runtime)
        monkeypatch.setattr(limits, "MERGES_QUEUED_MAX", 0)
        for number in range(2 * limits.ROW_FRAGMENTS_MERGE_AT):
            engine.apply(put(KEY, b"a", b"v", 1 + number, number))
        await asyncio.sleep(0.01)
        held = len(list(engine._store.scan(*keys.token_bounds(TABLE, FULL_RING))))
        assert held == 2 * limits.ROW_FRAGMENTS_MERGE_AT, "nothing was merged"
        monkeypatch.setattr(limits, "MERGES_QUEUED_MAX", 4)
        engine.apply(put(KEY, b"a", b"v", 1000, 1000))
        await asyncio.sleep(0.01)
        assert len(list(engine._store.scan(*keys.token_bounds(TABLE, FULL_RING)))) < held
        await engine.close()

    asyncio.run(run())
