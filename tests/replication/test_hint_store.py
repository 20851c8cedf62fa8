"""The hints that a node keeps, against a plain map; and no look through what was delivered long ago."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import SimpleNamespace

import msgspec
import pytest

from lockstep.handoff.hint_store import Hint, HintStore, Stored
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import Pair
from lockstep.values.ids import MUTATION_ID_BYTES, NodeId
from lockstep.values.rows import Cell, Mutation, Row
from tests.storage.support import open_store, runtime_of

TARGETS = (NodeId(2), NodeId(3))


def hint(number: int, created_us: int) -> Hint:
    row = Row(b"\x00", cells=(Cell(2, b"v", 1),))
    unique = number.to_bytes(MUTATION_ID_BYTES, "big")
    return Hint(created_us, 1, 60, Mutation(7, number, b"k", unique, 1, rows=(row,)))


class Watched:
    """A store of hints, and the deleted keys that were passed in search of the next one."""

    def __init__(self, engine: StorageEngine) -> None:
        self._engine = engine
        self.deleted: dict[bytes, None] = {}
        self.passed = 0
        watched = SimpleNamespace(
            write_records=engine.write_records, records=self._records, synced=engine.synced
        )
        self.hints = HintStore(watched)

    def _records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]:
        found = self._engine.records(lower, upper, count)
        first = found[0][0] if found else upper
        self.passed += sum(1 for key in self.deleted if lower <= key < first)
        return found

    def delete(self, stored: list[Stored]) -> None:
        self.deleted.update(dict.fromkeys(one.key for one in stored))
        self.hints.delete(stored)


async def watched(path: Path) -> Watched:
    runtime = runtime_of()
    return Watched(StorageEngine(await open_store("model", path, runtime), runtime))


def test_who_brings_hints_passes_each_delivered_one_once(tmp_path: Path) -> None:
    async def check() -> None:
        store = await watched(tmp_path)
        store.hints.put([(TARGETS[0], hint(number, 1000 + number)) for number in range(500)])
        while page := store.hints.page(TARGETS[0], count=20):
            store.delete(page)
        assert len(store.deleted) == 500 and store.passed <= 500

    asyncio.run(check())


@pytest.mark.parametrize("seed", range(4))
def test_hints_are_found_as_in_a_map(seed: int, tmp_path: Path) -> None:
    async def check() -> None:
        dice, store = Random(seed), await watched(tmp_path)
        known: dict[NodeId, dict[int, int]] = {target: {} for target in TARGETS}
        for number in range(1, 150):
            target = dice.choice(TARGETS)
            mine = known[target]
            pages = store.hints.page(target, count=dice.randrange(1, 9))
            if dice.random() < 0.5:
                mine[number] = dice.randrange(1, 1000)
                store.hints.put([(target, hint(number, mine[number]))])
            elif pages and dice.random() < 0.3:
                again = hint(pages[0].hint.mutation.token, pages[0].hint.created_us)
                store.hints.put([(target, again)], pages[0])
            elif pages:
                some = dice.sample(pages, dice.randrange(1, len(pages) + 1))
                store.delete(some)
                for one in some:
                    del mine[one.hint.mutation.token]
            for one_target, hints in known.items():
                found = store.hints.page(one_target)
                assert {one.hint.mutation.token: one.hint.created_us for one in found} == hints
                assert [one.hint.created_us for one in found] == sorted(hints.values())
                pending = store.hints.pending.get(one_target)
                assert (0 if pending is None else pending.count) == len(hints)
                assert pending is None or pending.oldest_us == min(hints.values())

    asyncio.run(check())


def test_a_hint_that_is_written_again_is_counted_as_long_as_it_is(tmp_path: Path) -> None:
    async def check() -> None:
        hints = (await watched(tmp_path)).hints
        left = hint(1, 1000)
        later = msgspec.structs.replace(left, epoch=100_000)
        hints.put([(TARGETS[0], left)])
        [read] = hints.page(TARGETS[0])
        hints.put([(TARGETS[0], later), (TARGETS[1], left)])
        [now] = hints.page(TARGETS[0])
        assert now.size > read.size
        assert hints.bytes == now.size + read.size
        hints.validate()
        hints.delete([read])
        assert hints.bytes == hints.pending[TARGETS[1]].bytes == read.size
        hints.put([(TARGETS[1], later)], hints.page(TARGETS[1])[0])
        hints.delete(hints.page(TARGETS[1]))
        assert (hints.bytes, hints.pending) == (0, {})

    asyncio.run(check())


def test_nothing_to_keep_needs_no_sync(tmp_path: Path) -> None:
    async def check() -> None:
        assert (await watched(tmp_path)).hints.put([]) == 0

    asyncio.run(check())
