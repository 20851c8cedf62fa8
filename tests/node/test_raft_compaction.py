"""The consensus journal is shortened after snapshots; crashes on the way; members that need a snapshot."""

from __future__ import annotations

from typing import Any

import pytest

from lockstep.consensus.configuration import Configuration
from lockstep.consensus.effects import HardState
from lockstep.consensus.messages import Entry, EntryKind, Snapshot
from lockstep.metadata.log.snapshot_entries import TakeSnapshot
from lockstep.metadata.transformations import SetExtension
from lockstep.node.log import raft_driver
from lockstep.node.log.journal import PARTIAL, Journaled, RaftJournal, journal_path
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.probes import CrashRule
from lockstep.sim.runtime.world import World
from lockstep.values.errors import CorruptFile
from tests.node.support import Outcome, Town

PATH = journal_path(1)


def on_a_disk(work: Any) -> Any:
    with World(1) as world:
        return world.call(work)


def entry(index: int, term: int = 1, size: int = 3) -> Entry:
    return Entry(index, term, EntryKind.NORMAL, bytes(size))


SNAPSHOT = Snapshot(5, 1, Configuration((1,)), b"facts", 10)


def test_a_journal_that_was_replaced_holds_what_is_left_and_what_came_after() -> None:
    async def work(runtime: Runtime) -> None:
        journal = RaftJournal(runtime.disk, 1)
        await journal.append(HardState(1, 1), tuple(entry(index) for index in range(1, 8)))
        before = len(runtime.disk.read(PATH))
        await journal.replace(HardState(2, 3), SNAPSHOT, tuple(entry(index) for index in range(5, 8)))
        assert len(runtime.disk.read(PATH)) < before + 100
        await journal.append(None, (entry(7, 2), entry(8, 2)))
        loaded = RaftJournal(runtime.disk, 1).load()
        kept = (entry(5), entry(6), entry(7, 2), entry(8, 2))
        assert loaded == Journaled(HardState(2, 3), SNAPSHOT, kept)

    on_a_disk(work)


def test_large_entries_are_written_anew_in_records_of_bounded_size() -> None:
    async def work(runtime: Runtime) -> None:
        journal = RaftJournal(runtime.disk, 1)
        entries = tuple(entry(index, size=400_000) for index in range(6, 14))
        await journal.replace(HardState(1, 1), SNAPSHOT, entries)
        assert RaftJournal(runtime.disk, 1).load().entries == entries

    on_a_disk(work)


@pytest.mark.parametrize("first", [1, 8])
def test_entries_that_do_not_continue_the_log_are_corruption(first: int) -> None:
    async def work(runtime: Runtime) -> None:
        journal = RaftJournal(runtime.disk, 1)
        await journal.replace(HardState(1, 1), SNAPSHOT, ())
        await journal.append(None, (entry(first),))
        with pytest.raises(CorruptFile):
            RaftJournal(runtime.disk, 1).load()

    on_a_disk(work)


def test_a_journal_knows_what_is_committed_and_refuses_to_have_less() -> None:
    async def work(runtime: Runtime) -> None:
        journal = RaftJournal(runtime.disk, 1)
        await journal.append(HardState(1, 1), (entry(1), entry(2)))
        await journal.append(None, (entry(3),), 2)
        assert RaftJournal(runtime.disk, 1).load().committed == (entry(1), entry(2))
        await journal.append(None, (), 3)
        await journal.append(HardState(2, 1), ())
        loaded = RaftJournal(runtime.disk, 1).load()
        assert loaded.commit_index == 3 and loaded.committed == (entry(1), entry(2), entry(3))
        await journal.replace(HardState(2, 1), SNAPSHOT, (entry(6), entry(7)), 6)
        loaded = RaftJournal(runtime.disk, 1).load()
        assert loaded.commit_index == 6 and loaded.committed == (entry(6),)
        await journal.append(None, (), 8)
        with pytest.raises(CorruptFile, match="8 were committed"):
            RaftJournal(runtime.disk, 1).load()

    on_a_disk(work)


def commit(town: Town, number: int, count: int) -> None:
    for at in range(count):
        outcome = town.finish(town.submit(number, SetExtension(f"key{at}", b"v" * 100)))
        assert outcome.error is None, outcome.error


def snapshot(town: Town, number: int) -> Outcome:
    after = town.newest.service.snapshot_epoch
    return town.finish(town.submit(number, TakeSnapshot("test", after)))


def grown(town: Town) -> None:
    """Three nodes, all of them voters."""
    town.found()
    town.until(lambda: len(town.newest.voters) == 3)
    town.until(lambda: all(town.node(number).log.driver is not None for number in (1, 2, 3)))


def first_index(town: Town, number: int) -> int:
    driver = town.node(number).log.driver
    return driver.raft.first_index if driver is not None else 0


@pytest.fixture(autouse=True)
def few_entries_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raft_driver, "RAFT_KEPT_ENTRIES", 3)


def test_after_a_snapshot_every_member_forgets_its_old_entries_and_restarts_from_the_rest() -> None:
    with Town() as town:
        grown(town)
        commit(town, 1, 30)
        sizes = {number: len(town.process(number).disk.read(PATH)) for number in (1, 2, 3)}
        assert snapshot(town, 2).error is None
        town.until(lambda: all(first_index(town, number) > 25 for number in (1, 2, 3)))
        town.until(lambda: all(len(town.process(n).disk.read(PATH)) < sizes[n] / 3 for n in (1, 2, 3)))
        commit(town, 2, 5)
        town.agreed(1, 2, 3)
        for number in (1, 2, 3):
            town.process(number).crash("power")
        town.start(1, 2, 3)
        town.until(lambda: town.ready(1, 2, 3))
        commit(town, 3, 3)
        town.agreed(1, 2, 3)
        assert all(first_index(town, number) > 25 for number in (1, 2, 3))


def test_a_voter_that_was_away_takes_the_snapshot_from_its_metadata_and_votes_again() -> None:
    with Town() as town:
        grown(town)
        away = next(number for number in (1, 2, 3) if number != town.leader())
        others = [number for number in (1, 2, 3) if number != away]
        commit(town, others[0], 3)
        town.process(away).crash("power")
        commit(town, others[0], 40)
        assert snapshot(town, others[0]).error is None
        town.until(lambda: all(first_index(town, number) > 30 for number in others))
        commit(town, others[0], 2)
        town.start(away)
        town.until(lambda: town.ready(away) and first_index(town, away) > 30)
        town.agreed(1, 2, 3)
        town.process(next(number for number in others if number != town.leader())).crash("power")
        commit(town, away, 3)


@pytest.mark.parametrize("place", ["raft.replace.before", "raft.replace.after"])
@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_while_the_journal_is_replaced_loses_nothing(place: str, kind: str) -> None:
    with Town() as town:
        grown(town)
        victim = town.leader()
        commit(town, victim, 10)
        rule = CrashRule(label=place, process=f"n{victim}", kind=kind, probability=1.0, restart_after_s=0.5)
        town.world.probes.add(rule)
        town.submit(1 + victim % 3, TakeSnapshot("test", town.newest.service.snapshot_epoch))
        town.until(lambda: rule.fired == 1)
        town.until(lambda: town.ready(1, 2, 3))
        known = town.node(victim).log.state.current.extensions.by_name
        assert sorted(known) == [f"key{at}" for at in range(10)]
        commit(town, victim, 3)
        town.agreed(1, 2, 3)


def test_what_a_crash_left_of_a_new_journal_is_not_believed() -> None:
    async def work(runtime: Runtime) -> None:
        journal = RaftJournal(runtime.disk, 1)
        await journal.append(HardState(1, 1), (entry(1), entry(2)))
        runtime.disk.append(PATH + PARTIAL, b"half a record")
        again = RaftJournal(runtime.disk, 1)
        assert again.load().entries == (entry(1), entry(2))
        await again.replace(HardState(1, 1), None, (entry(1), entry(2)))
        assert RaftJournal(runtime.disk, 1).load().entries == (entry(1), entry(2))

    on_a_disk(work)
