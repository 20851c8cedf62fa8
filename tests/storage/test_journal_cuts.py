"""What mutations add to logs of changes: of their own id as long as both lie in one range, and of one beside
it where they do not."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.storage import journal as journal_module
from lockstep.storage.engine import StorageEngine
from lockstep.storage.journal import Journal
from lockstep.storage.journal_cuts import batches
from lockstep.storage.journal_records import ENTRIES, RECORD, bounds_of, entry_of
from lockstep.storage.store import Operation
from lockstep.tracking.held import Held, MutationId, beside, held_of, part_beside, whole_of
from lockstep.tracking.intervals import of
from lockstep.values.ids import NodeId
from lockstep.values.limits import MUTATION_BYTES_MAX
from lockstep.values.node_limits import JOURNAL_PULL_BYTES, JOURNAL_RECORDS_A_BATCH
from lockstep.values.rows import ALL_ROWS, Mutation, ReadCommand, without_log
from lockstep.values.tokens import TOKEN_MAX

from .support import LossyDisk, open_store, runtime_of
from .test_engine import TABLE, put
from .test_journal import Ranges

LOG_TABLE = TABLE + 1
SHARD, LOW = (3, TOKEN_MAX), (3, 10)
NOW_US = 1_000_000
TABLES = {TABLE: 3, LOG_TABLE: 3}


def captured(number: int, token: int = 5, log_token: int = 20) -> Mutation:
    """A write, and a row of a log whose partition has another token."""
    added = put((log_token, b"s%d" % log_token), b"t%d" % number, b"l", number + 1, number, LOG_TABLE)
    return msgspec.structs.replace(
        put((token, b"k%d" % token), b"c", b"v", number + 1, number), captured=added
    )


def read_of(table: int, token: int, key: bytes) -> ReadCommand:
    return ReadCommand(table, token - 1, token, key, ALL_ROWS, (), False, False, 0, 0, 1)


def held(*offsets: int, number: int = 1 << 24) -> Held:
    return held_of({(7, number): of(offsets)})


def held_beside(*offsets: int, number: int = 1 << 24) -> Held:
    return held_of({beside((7, number)): of(offsets)})


class Place:
    """A node's journal, which may be opened again."""

    def __init__(self, path: Path) -> None:
        self.path, self.ranges, self.starts = path, Ranges(), 0
        self.disk: Any = LossyDisk()

    async def start(self) -> Journal:
        runtime = runtime_of(self.disk)
        self.engine = StorageEngine(
            await open_store("model", self.path, runtime), runtime, background_merge=False
        )
        self.starts += 1
        return Journal(self.engine, lambda: 7, self.starts, self.ranges.at)

    async def again(self, journal: Journal) -> Journal:
        await journal.synced()
        await self.engine.close()
        return await self.start()

    def has(self, mutation: Mutation) -> bool:
        """Whether the tables have a write, and not what it adds to a log."""
        read = self.engine.peek(read_of(mutation.table_id, mutation.token, mutation.key))
        found = {row.clustering for partition in read.partitions for row in partition.rows}
        return all(row.clustering in found for row in mutation.rows)


def entries(place: Place) -> dict[tuple[tuple[int, int], int], Mutation | None]:
    """What entries stand for; each has the whole mutation."""
    found: dict[tuple[tuple[int, int], int], Mutation | None] = {}
    for key, value in place.engine.records(*bounds_of(RECORD), 1000):
        entry = ENTRIES.decode(value)
        assert entry.mutation is not None and entry.own_part is not None
        assert entry.place == (entry.own_part.table_id, entry.own_part.token)
        whole = entry.mutation.captured is not None or entry.mutation.table_id == TABLE
        assert whole, "whoever is brought it gets both parts"
        found[entry_of(key)] = entry.own_part
    return found


@pytest.mark.parametrize("bound", [100_000, 3])
def test_a_change_and_its_log_row_have_one_id_in_one_range(
    bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_PLACES_MAX", bound)

    async def check() -> None:
        place = Place(tmp_path)
        journal = await place.start()
        journal.fit(TABLES)
        for number in range(4):
            journal.give(SHARD, captured(number, number), NOW_US)
        journal.give(SHARD, without_log(captured(9, 1)), NOW_US)
        for _ in range(2):
            journal.validate()
            assert journal.held(SHARD) == held(*range(5))
            whole = journal.recent(SHARD, read_of(LOG_TABLE, 20, b"s20"))
            assert whole.covers(held(0, 1, 2, 3)) and (whole == held(0, 1, 2, 3) or bound == 3)
            of_one = journal.recent(SHARD, read_of(TABLE, 1, b"k1"))
            assert of_one.covers(held(1, 4)) and (of_one == held(1, 4) or bound == 3)
            brought = journal.entries(3, held(2), MUTATION_BYTES_MAX)
            assert [one.mutation for one in brought] == [captured(2, 2)]
            journal = await place.again(journal)
        assert journal.reconcile(SHARD, held(0, 1, 2, 3)) == 4
        assert not journal.recent(SHARD, read_of(LOG_TABLE, 20, b"s20")) or bound == 3
        journal.validate()
        await place.engine.close()

    asyncio.run(check())


def test_where_the_log_lies_elsewhere_each_range_has_its_part_under_an_id_that_follows(
    tmp_path: Path,
) -> None:
    async def check() -> None:
        place = Place(tmp_path)
        place.ranges.rights = [LOW[1], TOKEN_MAX]
        journal = await place.start()
        journal.fit(TABLES)
        given = journal.give(LOW, captured(0), NOW_US)
        for _ in range(2):
            journal.validate()
            assert journal.held(LOW) == held(0) and journal.held(SHARD) == held_beside(0)
            added = captured(0).captured
            assert added is not None and place.has(captured(0)) and place.has(added)
            assert journal.recent(SHARD, read_of(LOG_TABLE, 20, b"s20")) == held_beside(0)
            journal = await place.again(journal)
        sequence = journal.sequence
        journal.take(LOW, given, captured(0))
        assert journal.sequence == sequence, "all of it is held"
        # Each part is let go of by its own range.
        journal.reconcile(LOW, held(0))
        journal.validate()
        assert list(entries(place)) == [(beside((7, 1 << 24)), 0)]
        await place.engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("not_here", [LOW[1], TOKEN_MAX])
def test_a_replica_of_one_of_both_takes_what_is_its_own(not_here: int, tmp_path: Path) -> None:
    async def check() -> None:
        place = Place(tmp_path)
        place.ranges.rights, place.ranges.others = [LOW[1], TOKEN_MAX], {not_here}
        journal = await place.start()
        journal.fit(TABLES)
        given, change = MutationId(NodeId(9), 5 << 24, 2, NOW_US), captured(1)
        assert change.captured is not None
        if not_here == LOW[1]:
            for _ in range(2):
                journal.take_captured(3, part_beside(given), change)
            expected = {(beside((9, 5 << 24)), 2): change.captured}
        else:
            for _ in range(2):
                journal.take(LOW, given, change)
            expected = {((9, 5 << 24), 2): without_log(change)}
        journal.validate()
        assert entries(place) == expected
        assert place.has(change) == (not_here != LOW[1])
        assert place.has(change.captured) == (not_here == LOW[1])
        await place.engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("stored", [(), (LOW,), (SHARD,), (LOW, SHARD)])
@pytest.mark.parametrize("gives", [True, False])
def test_a_witness_of_one_range_stores_what_is_of_the_other(
    stored: tuple[tuple[int, int], ...], gives: bool, tmp_path: Path
) -> None:
    """And both once it is a full replica of both."""

    async def check() -> None:
        place = Place(tmp_path)
        place.ranges.rights = [LOW[1], TOKEN_MAX]
        journal = await place.start()
        journal.fit(TABLES)
        journal.keeps = lambda shard: shard in stored
        change = captured(0)
        assert change.captured is not None
        if gives:
            journal.give(LOW, change, NOW_US)
        else:
            journal.take(LOW, MutationId(NodeId(7), 1 << 24, 0, NOW_US), change)
        journal.validate()
        assert journal.held(LOW) == held(0) and journal.held(SHARD) == held_beside(0)
        assert len(entries(place)) == 2, "both are journalled"
        assert place.has(change) == (LOW in stored)
        assert place.has(change.captured) == (SHARD in stored)
        journal.keeps = lambda shard: True
        for shard in (LOW, SHARD):
            await journal.store_again(shard)
        assert place.has(change) and place.has(change.captured)
        await place.engine.close()

    asyncio.run(check())


def test_a_witness_of_a_range_that_has_both_stores_neither(tmp_path: Path) -> None:
    async def check() -> None:
        place = Place(tmp_path)
        journal = await place.start()
        journal.fit(TABLES)
        journal.keeps = lambda shard: False
        change = captured(0)
        given = journal.give(SHARD, change, NOW_US)
        journal.take(SHARD, given, change)
        journal.validate()
        assert change.captured is not None and not place.has(change) and not place.has(change.captured)
        assert [one.mutation for one in journal.entries(3, held(0), 1 << 20)] == [change]
        await place.engine.close()

    asyncio.run(check())


def test_a_part_that_is_held_is_not_stored_again_and_the_other_one_is(tmp_path: Path) -> None:
    async def check() -> None:
        place = Place(tmp_path)
        place.ranges.rights = [LOW[1], TOKEN_MAX]
        journal = await place.start()
        journal.fit(TABLES)
        one, two = (MutationId(NodeId(9), 5 << 24, number, NOW_US) for number in range(2))
        change, other = captured(1), captured(2)
        assert change.captured is not None
        journal.take_captured(3, part_beside(one), change)
        journal.take(LOW, one, change)
        journal.take(LOW, two, without_log(other))
        journal.take(LOW, two, other)
        journal.validate()
        assert len(entries(place)) == 4 and all(map(place.has, (change, change.captured, other)))
        await place.engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("is_started", [False, True])
@pytest.mark.parametrize("bound", [100_000, 3])
def test_an_entry_that_is_cut_in_two_is_made_two(
    is_started: bool, bound: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "JOURNAL_PLACES_MAX", bound)

    async def check() -> None:
        place = Place(tmp_path)
        journal = await place.start()

        async def moved() -> None:
            nonlocal journal
            if is_started:
                journal = await place.again(journal)
            journal.fit(TABLES)
            journal.validate()

        journal.fit(TABLES)
        for number in range(6):
            # Tokens 5 and 15 by turns: of the latter the log row stays beside them.
            journal.give(SHARD, captured(number, 5 + number % 2 * 10), NOW_US)
        journal.reconcile(SHARD, held(0, 1))
        place.ranges.rights = [LOW[1], TOKEN_MAX]
        await moved()
        parts = held_beside(2, 4)
        assert journal.held(LOW) == held(0, 1, 2, 4)
        assert journal.held(SHARD) == held(0, 1, 3, 5).union(parts)
        found = entries(place)
        assert found[(7, 1 << 24), 2] == without_log(captured(2)) and found[(7, 1 << 24), 3] == captured(
            3, 15
        )
        assert found[beside((7, 1 << 24)), 2] == captured(2).captured and len(found) == 6
        assert journal.recent(SHARD, read_of(LOG_TABLE, 20, b"s20")).covers(held(3, 5).union(parts))
        # A mutation that was sent whole before the cut finds that all of it is held.
        sequence = journal.sequence
        journal.take(LOW, MutationId(NodeId(7), 1 << 24, 2, NOW_US), captured(2))
        assert journal.sequence == sequence
        place.ranges.rights = [TOKEN_MAX]
        await moved()
        assert journal.held(SHARD) == held(*range(6)).union(parts)
        place.ranges.rights, place.ranges.others = [LOW[1], TOKEN_MAX], {TOKEN_MAX}
        await moved()
        assert journal.held(LOW) == held(0, 1, 2, 4) and not journal.held(SHARD)
        assert set(entries(place)) == {((7, 1 << 24), 2), ((7, 1 << 24), 4)}
        await place.engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("low_first", [True, False])
def test_an_entry_that_is_cut_again_finds_its_part_there_already(low_first: bool, tmp_path: Path) -> None:
    """The part was taken as its range was apart; the whole came once both were one."""

    async def check() -> None:
        place = Place(tmp_path)
        journal = await place.start()
        place.ranges.rights, place.ranges.others = [LOW[1], TOKEN_MAX], {LOW[1]}
        journal.fit(TABLES)
        given = MutationId(NodeId(9), 5 << 24, 2, NOW_US)
        if low_first:
            journal.take_captured(3, part_beside(given), captured(1))
        place.ranges.rights, place.ranges.others = [TOKEN_MAX], set()
        journal.fit(TABLES)
        journal.take(SHARD, given, captured(1))
        if not low_first:
            journal.take_captured(3, part_beside(given), captured(1))
        place.ranges.rights = [LOW[1], TOKEN_MAX]
        journal.fit(TABLES)
        journal.validate()
        log = (9, 5 << 24)
        assert entries(place) == {(log, 2): without_log(captured(1)), (beside(log), 2): captured(1).captured}
        await place.engine.close()

    asyncio.run(check())


def test_who_keeps_the_range_of_the_log_alone_keeps_what_was_added_to_it(tmp_path: Path) -> None:
    async def check() -> None:
        place = Place(tmp_path)
        journal = await place.start()
        journal.fit(TABLES)
        journal.give(SHARD, captured(0), NOW_US)
        place.ranges.rights, place.ranges.others = [LOW[1], TOKEN_MAX], {LOW[1]}
        journal.fit(TABLES)
        journal.validate()
        assert entries(place) == {(beside((7, 1 << 24)), 0): captured(0).captured}
        await place.engine.close()

    asyncio.run(check())


@pytest.mark.parametrize("kept", [1, 3, 4, 5])
def test_a_crash_within_a_cut_is_made_good_by_the_next_start(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`kept` batches of one operation each are written."""
    monkeypatch.setattr(journal_module, "batches", lambda operations: ([one] for one in operations))

    async def check() -> None:
        place = Place(tmp_path)
        journal = await place.start()
        journal.fit(TABLES)
        for number in range(3):
            journal.give(SHARD, captured(number), NOW_US)
        place.ranges.rights = [LOW[1], TOKEN_MAX]
        written, sequence, write = 0, 0, place.engine.write_records

        def writes(*of: Any, **named: Any) -> int:
            nonlocal written, sequence
            written += 1
            sequence = write(*of, **named) if written <= kept else sequence
            return sequence

        monkeypatch.setattr(place.engine, "write_records", writes)
        journal.fit(TABLES)
        assert written > kept
        monkeypatch.undo()
        journal = await place.again(journal)
        journal.validate()
        journal.fit(TABLES)
        journal.validate()
        assert journal.held(LOW) == held(0, 1, 2) and journal.held(SHARD) == held_beside(0, 1, 2)
        assert len(entries(place)) == 6
        await place.engine.close()

    asyncio.run(check())


def test_ids_of_parts_follow_from_those_of_mutations_and_back() -> None:
    given = MutationId(NodeId(9), 5 << 24, 2, NOW_US)
    part = part_beside(given)
    assert part != given and part.log == beside(given.log) and whole_of(part) == given


def test_batches_are_bounded_by_count_and_by_size() -> None:
    small: list[Operation] = [("delete", b"k")] * (JOURNAL_RECORDS_A_BATCH + 1)
    assert [len(batch) for batch in batches(small)] == [JOURNAL_RECORDS_A_BATCH, 1]
    large: list[Operation] = [("put", b"k", bytes(JOURNAL_PULL_BYTES))] * 3
    assert [len(batch) for batch in batches(large)] == [1, 1, 1]
    assert list(batches([])) == []
