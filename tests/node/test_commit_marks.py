"""How far a journal says that entries are committed: who waits for it, what a mark waits for, and what a
start makes of it."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from lockstep.consensus.messages import Entry, EntryKind
from lockstep.node.log.commit_marks import CommitMarks
from lockstep.node.log.journal import METADATA_GROUP, RaftJournal
from lockstep.node.log.metadata_state import MetadataState
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.world import World
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile
from lockstep.values.node_limits import COMMIT_MARK_WAIT_MS, LOG_DEFERRED_ENTRIES_MAX, LOG_DEFERRED_MS
from tests.node.metadata_place import LONG, Place, history, same


def run(work: Any) -> Any:
    async def main(_runtime: Runtime) -> Any:
        return await work()

    with World(1) as world:
        return world.call(main)


def test_whoever_waits_is_told_when_it_is_durable_or_never_will_be() -> None:
    async def work() -> None:
        marks = CommitMarks(3)
        assert await marks.wait(3) and not marks.is_due
        early, late = marks.wait(5), marks.wait(7)
        assert marks.is_due
        marks.reached(4)
        assert not early.done()
        marks.reached(6)
        assert early.result() and not late.done() and marks.is_due
        marks.end()
        assert late.result() is False
        assert await marks.wait(6) and not await marks.wait(7)

    run(work)


def test_a_mark_waits_for_company_only_after_one_that_had_some() -> None:
    async def work() -> tuple[float, float, float]:
        loop, marks, wanted = asyncio.get_running_loop(), CommitMarks(0), asyncio.Event()

        async def taken_s() -> float:
            began = loop.time()
            await marks.company(wanted)
            return loop.time() - began

        marks.wait(1)
        alone = await taken_s()
        marks.accompanied()
        marks.reached(1)
        marks.accompanied()  # Nothing is due: it is the company of none.
        marks.wait(2)
        loop.call_later(0.001, wanted.set)
        accompanied = await taken_s()
        assert not wanted.is_set()
        marks.accompanied()
        marks.reached(2)
        marks.wait(3)
        in_vain = await taken_s()
        assert await taken_s() == 0, "the last one was alone"
        return alone, accompanied, in_vain

    alone, accompanied, in_vain = run(work)
    assert alone == 0
    assert 0.001 <= accompanied < 0.002
    assert COMMIT_MARK_WAIT_MS / 1000 <= in_vain < COMMIT_MARK_WAIT_MS / 1000 + 0.001


class Journal:
    """Holds everything, and says so when it is asked."""

    def __init__(self) -> None:
        self.marked: list[int] = []
        self.holds = True

    def covers(self, epoch: int) -> bool:
        return self.holds

    async def mark(self, epoch: int) -> bool:
        self.marked.append(epoch)
        return True


def logged(first: int, last: int) -> tuple[Entry, ...]:
    """Entries of the group with these epochs, at the indices that follow them."""
    return tuple(
        Entry(entry.epoch + 1, 1, EntryKind.NORMAL, encode(entry)) for entry in LONG.entries[first - 1 : last]
    )


def test_what_the_group_holds_is_written_to_the_own_files_only_later() -> None:
    made = history(8, every=100)
    with Place() as place:
        journal = Journal()

        async def work(state: MetadataState) -> None:
            state.journal = journal
            for entry in made.entries[:6]:
                state.offer([entry])
                await state.wait_for(entry.epoch)

        place.run(work, limit_s=LOG_DEFERRED_MS / 2000)
        assert journal.marked == [1, 2, 3, 4, 5, 6]
        path = "metadata/log-000000000001"
        assert path not in place.disk.files
        place.world.run_for(LOG_DEFERRED_MS / 1000)
        assert place.disk.durable()[path] == bytes(place.disk.file(path).cache)
        # What only peers sent is durable at once, with all before it.
        syncs = place.disk.syncs
        journal.holds = False
        place.state.offer(made.entries[6:8])
        place.world.run_for(0.1)
        assert place.disk.syncs > syncs and place.state.epoch == 8
        place.restart()
        same(place.state, made, 8)


def test_a_start_goes_on_to_what_the_journal_knows_to_be_committed() -> None:
    with Place() as place:

        async def work(state: MetadataState) -> None:
            state.offer(LONG.entries[:3])
            await state.wait_for(3)
            journal = RaftJournal(state._runtime.disk, METADATA_GROUP)
            noop = Entry(1, 1, EntryKind.NOOP, b"")
            await journal.append(None, (noop, *logged(1, 9)), 8)

        place.run(work)
        # Epoch 5 is a snapshot; the one at index 9 may never have been committed.
        place.restart()
        same(place.state, LONG, 7)
        assert place.state.store.infos.keys() == {5}
        place.disk.files.pop("raft/group-1")
        place.restart("kill")
        same(place.state, LONG, 7)


def test_what_was_applied_here_and_is_missing_is_told() -> None:
    with Place() as place:

        async def work(state: MetadataState) -> None:
            state.offer(LONG.entries[:3])
            await state.wait_for(3)
            journal = RaftJournal(state._runtime.disk, METADATA_GROUP)
            first = logged(5, 7)
            first = tuple(msgspec.structs.replace(one, index=at) for at, one in enumerate(first, 1))
            await journal.append(None, first, 3)

        place.run(work)
        place.restart()
        assert isinstance(place.failed, CorruptFile) and "4 to 4" in str(place.failed)


def test_many_are_written_before_they_are_more() -> None:
    made = history(LOG_DEFERRED_ENTRIES_MAX + 10, every=1000)
    with Place() as place:

        async def work(state: MetadataState) -> None:
            state.journal = Journal()
            for entry in made.entries:
                state.offer([entry])
                await state.wait_for(entry.epoch)

        place.run(work, limit_s=LOG_DEFERRED_MS / 2000)
        assert len(place.state.store._deferred) == 10
        assert place.state.store._last_epoch == LOG_DEFERRED_ENTRIES_MAX
