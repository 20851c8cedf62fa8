"""The journal: ids that are claimed are mutations that are held, on both kinds of store."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest

from lockstep.storage import journal as journal_module
from lockstep.storage.engine import StorageEngine
from lockstep.storage.journal import Journal
from lockstep.storage.journal_records import BOUNDS, shard_key
from lockstep.storage.shard_logs import Taking
from lockstep.storage.store import Family
from lockstep.tracking.held import Held, MutationId, held_of
from lockstep.tracking.intervals import of
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import NodeId
from lockstep.values.limits import MUTATION_BYTES_MAX
from lockstep.values.rows import ALL_ROWS, Mutation, ReadCommand
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

from .support import LossyDisk, open_store, runtime_of
from .test_engine import TABLE, put

SHARD = (3, TOKEN_MAX)
OTHER = (3, -5)
NOW_US = 1_000_000
KINDS = ("model", "rocks")


def range_at(group: int, token: int) -> tuple[Range, bool] | None:
    """Group 3 has two ranges, both of this node."""
    if group != SHARD[0]:
        return None
    return (Range(TOKEN_MIN, OTHER[1]) if token <= OTHER[1] else Range(OTHER[1], SHARD[1])), True


async def opened(
    path: Path, kind: str, start: int = 1, disk: LossyDisk | None = None
) -> tuple[StorageEngine, Journal]:
    runtime = runtime_of(disk)
    engine = StorageEngine(await open_store(kind, path, runtime), runtime, background_merge=False)
    return engine, Journal(engine, lambda: 7, start, range_at)


def mutation(number: int, token: int = 5, value: bytes = b"v") -> Mutation:
    return put((token, b"k%d" % token), b"c", value, number + 1, number)


def read_of(token: int, key: bytes | None = None) -> ReadCommand:
    left = token - 1 if key is not None else TOKEN_MIN
    return ReadCommand(TABLE, left, token, key, ALL_ROWS, (), False, False, 0, 0, 1)


def held(*offsets: int, start: int = 1) -> Held:
    """Of the first log of a start."""
    return held_of({(7, start << 24): of(offsets)})


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_held_is_known_again_after_a_start(kind: str, tmp_path: Path) -> None:
    async def check() -> None:
        disk = LossyDisk()
        engine, journal = await opened(tmp_path, kind, 1, disk)
        given = [journal.give(SHARD, mutation(number), NOW_US) for number in range(5)]
        assert [one.offset for one in given] == [0, 1, 2, 3, 4]
        journal.take(OTHER, MutationId(NodeId(9), 4, 2, NOW_US), mutation(9, -9))
        assert journal.reconcile(SHARD, held(0, 1, 3)) == 3
        await journal.synced()
        await engine.close()
        engine, again = await opened(tmp_path, kind, 2, disk)
        again.validate()
        assert again.held(SHARD) == held(0, 1, 2, 3, 4)
        assert again.reconciled(SHARD) == held(0, 1, 3)
        assert again.held(OTHER) == held_of({(9, 4): of([2])})
        entries = again.entries(3, again.held(SHARD), MUTATION_BYTES_MAX)
        assert [(one.id.offset, one.mutation) for one in entries] == [(2, mutation(2)), (4, mutation(4))]
        assert again.give(SHARD, mutation(6), NOW_US) == MutationId(NodeId(7), 2 << 24, 0, NOW_US)
        await engine.close()

    asyncio.run(check())


def test_what_is_refused_gets_no_id_and_what_comes_twice_is_held_once(tmp_path: Path) -> None:
    async def check() -> None:
        engine, journal = await opened(tmp_path, "model")
        large = mutation(1, value=b"x" * (MUTATION_BYTES_MAX + 1))
        with pytest.raises(InvalidRequest):
            journal.give(SHARD, large, NOW_US)
        assert not journal.held(SHARD)
        given = journal.give(SHARD, mutation(1), NOW_US)
        assert given.offset == 0
        sequence = journal.sequence
        journal.take(SHARD, given, mutation(1))
        assert journal.sequence == sequence and journal.held(SHARD) == held(0)
        journal.reconcile(SHARD, held(0))
        journal.take(SHARD, given, mutation(1))
        journal.validate()
        assert journal.entries(3, held(0), 1) == []
        await engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("bound", [3, 1000])
def test_reads_are_told_of_their_partition_and_of_more_where_too_many_are_listed(
    bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_PLACES_MAX", bound)

    async def check() -> None:
        engine, journal = await opened(tmp_path, "model")
        dice, of_token = Random(1), dict[int, list[int]]()
        for number in range(40):
            token = dice.randrange(3)
            of_token.setdefault(token, []).append(journal.give(SHARD, mutation(number, token), NOW_US).offset)
        journal.reconcile(SHARD, held(*range(7)))
        journal.validate()
        for token, offsets in of_token.items():
            found = journal.recent(SHARD, read_of(token, b"k%d" % token))
            exact = held(*(offset for offset in offsets if offset >= 7))
            assert found.covers(exact)
            assert (found == exact) == (bound == 1000)
        assert journal.recent(SHARD, read_of(TOKEN_MAX)) == held(*range(7, 40))
        journal.reconcile(SHARD, held(*range(40)))
        journal.give(SHARD, mutation(50, 1), NOW_US)
        assert journal.recent(SHARD, read_of(1, b"k1")) == held(40)
        assert not journal.recent(SHARD, read_of(2, b"k2"))
        journal.validate()
        await engine.close()

    asyncio.run(check())


def test_entries_come_in_bounds_and_a_range_that_is_forgotten_gives_no_id_again(tmp_path: Path) -> None:
    async def check() -> None:
        engine, journal = await opened(tmp_path, "model")
        for number in range(6):
            journal.give(SHARD, mutation(number, value=b"x" * 1000), NOW_US)
        assert [one.id.offset for one in journal.entries(3, held(1, 2, 4), 2500)] == [1, 2]
        assert [one.id.offset for one in journal.entries(3, held(5), 1)] == [5]
        journal.fit({})
        journal.validate()
        assert not journal.held(SHARD)
        again = journal.give(SHARD, mutation(7), NOW_US)
        assert (again.start, again.offset) == ((1 << 24) + 1, 0)
        journal.validate()
        await engine.close()

    asyncio.run(check())


class Ranges:
    """Where the ranges of group 3 end, and which of them this node has."""

    def __init__(self) -> None:
        self.rights = [TOKEN_MAX]
        self.others: set[int] = set()

    def at(self, group: int, token: int) -> tuple[Range, bool] | None:
        if group not in (3, 4):
            return None
        right = next(right for right in self.rights if token <= right)
        left = max((one for one in (TOKEN_MIN, *self.rights) if one < right), default=TOKEN_MIN)
        return Range(left, right), right not in self.others


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize("bound", [100_000, 3])
def test_ids_follow_the_cuts_of_ranges_and_are_let_go_of_with_them(
    tmp_path: Path, is_started: bool, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_PLACES_MAX", bound)
    ranges, tables = Ranges(), {TABLE: 3}

    async def check() -> None:
        disk = LossyDisk()
        engine = StorageEngine(
            await open_store("model", tmp_path, runtime_of(disk)), runtime_of(disk), background_merge=False
        )
        journal = Journal(engine, lambda: 7, 1, ranges.at)
        starts = 1

        async def moved() -> None:
            """As an entry is applied, or as a start finds that it was."""
            nonlocal engine, journal, starts
            if is_started:
                await journal.synced()
                await engine.close()
                engine = StorageEngine(
                    await open_store("model", tmp_path, runtime_of(disk)),
                    runtime_of(disk),
                    background_merge=False,
                )
                starts += 1
                journal = Journal(engine, lambda: 7, starts, ranges.at)
            journal.fit(tables)
            journal.validate()

        journal.fit(tables)
        for number in range(10):
            journal.give(SHARD, mutation(number, number), NOW_US)
        assert journal.reconcile(SHARD, held(0, 9)) == 2
        ranges.rights = [4, TOKEN_MAX]
        await moved()
        assert journal.held((3, 4)) == held(0, 1, 2, 3, 4, 9)
        assert journal.held(SHARD) == held(0, 5, 6, 7, 8, 9)
        journal.reconcile((3, 4), held(1, 2))
        assert journal.give((3, 4), mutation(20, 3), NOW_US).offset == 0, "a range has a log of its own"
        ranges.others = {TOKEN_MAX}
        await moved()
        assert not journal.held(SHARD), "nothing is claimed of what was given up"
        assert {one.id.offset for one in journal.entries(3, held(*range(10)), MUTATION_BYTES_MAX)} == {3, 4}
        ranges.rights, ranges.others = [TOKEN_MAX], set()
        await moved()
        assert journal.reconciled(SHARD) == held(0, 1, 2, 9)
        assert journal.held(SHARD).count == 7
        tables[TABLE] = 4
        await moved()
        assert not journal.held(SHARD) and journal.held((4, TOKEN_MAX)).count == 7
        journal.adopt((4, TOKEN_MAX), held(3, 5))
        journal.validate()
        assert journal.reconciled((4, TOKEN_MAX)) == held(0, 1, 2, 3, 5, 9)
        await engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_apart_has_no_entry_and_is_known_again_after_a_start(kind: str, tmp_path: Path) -> None:
    async def check() -> None:
        disk = LossyDisk()
        engine, journal = await opened(tmp_path, kind, 1, disk)
        for number in range(6):
            journal.give(SHARD, mutation(number), NOW_US)
        assert journal.set_apart(SHARD, held(0, 1, 2, 9)) == 3
        assert journal.set_apart(SHARD, held(1)) == 0
        journal.claim(SHARD, held(1, 4, start=8))
        journal.take_from(SHARD, Taking((9,)))
        journal.validate()
        await journal.synced()
        await engine.close()
        engine, again = await opened(tmp_path, kind, 2, disk)
        again.validate()
        assert again.apart(SHARD) == held(0, 1, 2).union(held(1, 4, start=8))
        assert not again.reconciled(SHARD) and again.apart_count == 5 and again.entry_count == 3
        assert again.taking(SHARD) == Taking((9,))
        assert [one.id.offset for one in again.entries(3, again.held(SHARD), MUTATION_BYTES_MAX)] == [3, 4, 5]
        assert again.recent(SHARD, read_of(5, b"k5")) == again.held(SHARD), "a read is told of all of it"
        assert again.recent(SHARD, read_of(6, b"k6")) == again.apart(SHARD), "and of what may be of its token"
        assert again.held_in(3) == held(3, 4, 5), "what is apart is of its own range alone"
        assert again.reconcile(SHARD, held(0, 1, 3)) == 3
        again.take_from(SHARD, None)
        again.release(SHARD, held(1, start=8).union(held(0)))
        assert again.apart(SHARD) == held(2).union(held(4, start=8))
        assert again.reconciled(SHARD) == held(0, 1, 3)
        again.validate()
        await again.synced()
        await engine.close()
        engine, last = await opened(tmp_path, kind, 3, disk)
        assert last.held(SHARD) == again.held(SHARD) and last.taking(SHARD) is None
        assert last.apart(SHARD) == again.apart(SHARD)
        await engine.close()

    asyncio.run(check())


def test_a_log_that_lost_an_id_gives_no_more(tmp_path: Path) -> None:
    async def check() -> None:
        engine, journal = await opened(tmp_path, "model")
        given = journal.give(SHARD, mutation(1), NOW_US)
        journal.set_apart(SHARD, held(0))
        journal.release(SHARD, held(0))
        again = journal.give(SHARD, mutation(2), NOW_US)
        assert again.log != given.log
        journal.validate()
        await engine.close()

    asyncio.run(check())


def test_what_is_apart_goes_to_both_sides_of_a_cut_and_a_join_of_one_that_is_got_is_compared(
    tmp_path: Path,
) -> None:
    ranges, tables = Ranges(), {TABLE: 3}

    async def check() -> None:
        disk = LossyDisk()
        runtime = runtime_of(disk)
        engine = StorageEngine(await open_store("model", tmp_path, runtime), runtime, background_merge=False)
        journal = Journal(engine, lambda: 7, 1, ranges.at)
        journal.fit(tables)
        for number in range(4):
            journal.give(SHARD, mutation(number, number), NOW_US)
        journal.set_apart(SHARD, held(0, 1, 2))
        ranges.rights = [1, TOKEN_MAX]
        journal.fit(tables)
        assert journal.apart((3, 1)) == journal.apart(SHARD) == held(0, 1, 2)
        assert journal.held(SHARD) == held(0, 1, 2, 3)
        journal.reconcile((3, 1), held(0, 1))
        journal.take_from(SHARD, Taking((9,)))
        ranges.rights = [TOKEN_MAX]
        journal.fit(tables)
        journal.validate()
        assert journal.apart(SHARD) == held(0, 1, 2), "what is reconciled on one side is not on the other"
        assert not journal.reconciled(SHARD)
        assert journal.taking(SHARD) == Taking((9,), is_joined=True)
        await journal.synced()
        await engine.close()
        engine = StorageEngine(
            await open_store("model", tmp_path, runtime_of(disk)), runtime_of(disk), background_merge=False
        )
        again = Journal(engine, lambda: 7, 2, ranges.at)
        assert again.apart(SHARD) == held(0, 1, 2) and again.taking(SHARD) == Taking((9,), is_joined=True)
        assert set(again.shards) == {SHARD}
        again.fit({})
        again.validate()
        assert not again.held(SHARD) and again.taking(SHARD) is None
        await engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("bound", [100_000, 300])
@pytest.mark.parametrize("kind", KINDS)
def test_a_start_finds_each_entry_where_it_was(
    kind: str, bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some blocks of them, of several logs, tables and ranges; those of a range without bounds go."""
    monkeypatch.setattr(journal_module, "JOURNAL_PLACES_MAX", bound)

    async def check() -> None:
        disk, dice = LossyDisk(), Random(3)
        engine, journal = await opened(tmp_path, kind, 1, disk)
        ends: dict[tuple[int, int], int] = {}
        for number in range(1500):
            # Long stretches of one log and table, and short ones.
            log = (8, number // 700) if number % 1400 < 700 else (7 + dice.randrange(3), dice.randrange(2))
            offset = ends[log] = ends.get(log, -1) + 1 + (dice.random() < 0.01)
            token = dice.randrange(-10, 100)
            shard = OTHER if token <= OTHER[1] else SHARD
            made = put(
                (token, b"k"), b"c", b"v", 1, number, TABLE + (number % 1400 > 900) * dice.randrange(2)
            )
            journal.take(shard, MutationId(NodeId(log[0]), log[1], offset, 1), made)
        journal.reconcile(SHARD, held_of({(8, 0): of(range(100, 300))}))
        await journal.synced()
        await engine.close()
        engine, again = await opened(tmp_path, kind, 2, disk)
        again.validate()
        for shard in (SHARD, OTHER):
            assert again.held(shard) == journal.held(shard)
            assert again.reconciled(shard) == journal.reconciled(shard)
            for table, token in ((TABLE + one % 2, one // 2) for one in range(-24, 200)):
                command = msgspec.structs.replace(read_of(token, b"k"), table_id=table)
                before, after = journal.recent(shard, command), again.recent(shard, command)
                assert after == before or (bound == 300 and after.covers(before))
        assert again.estimated_bytes(1) > 0
        await engine.close()

    asyncio.run(check())


def test_a_start_deletes_entries_of_ranges_that_it_has_not(tmp_path: Path) -> None:
    async def check() -> None:
        disk = LossyDisk()
        engine, journal = await opened(tmp_path, "model", 1, disk)
        for number in range(1200):
            token = 5 if number % 3 else -9
            shard = OTHER if token < OTHER[1] else SHARD
            journal.take(shard, MutationId(NodeId(9), 4, number, 1), mutation(number, token))
        engine.write_records(Family.JOURNAL, [("delete", shard_key(BOUNDS, OTHER))])
        await journal.synced()
        await engine.close()
        engine, again = await opened(tmp_path, "model", 2, disk)
        again.validate()
        assert again.held(SHARD) == journal.held(SHARD) and set(again.shards) == {SHARD}
        await engine.close()

    asyncio.run(check())
