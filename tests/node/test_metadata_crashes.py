"""The metadata directory of a node that is struck at any of its syncs."""

from __future__ import annotations

import random
from typing import Any

import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.recent_ids import RECENT_IDS
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.log.tip import Duplicate, Expired, Tip
from lockstep.metadata.transformations import SetExtension
from lockstep.node.log import metadata_store as files
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.metadata_store import Retention
from lockstep.sim.runtime.disk import SimDisk
from lockstep.sim.runtime.probes import SYNC_IN_FLIGHT, CrashRule
from lockstep.values.errors import CorruptFile
from tests.metadata.histories import History
from tests.node.metadata_place import LONG, REGISTRY, Place, damage, feeding, history, same


@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("first", range(0, 120, 20))
def test_a_crash_at_any_sync_leaves_a_directory_that_loads(kind: str, first: int) -> None:
    made = history(23)
    for hit in range(first + 1, first + 21):
        with Place(seed=hit) as place:
            acknowledged = 0

            async def feed(state: MetadataState) -> None:
                nonlocal acknowledged
                for entry in made.entries[state.epoch :]:
                    state.offer([entry])
                    await state.wait_for(entry.epoch)
                    acknowledged = entry.epoch

            place.world.probes.add(CrashRule(label=SYNC_IN_FLIGHT, kind=kind, hit=hit))
            place.run(feed, 2.0)
            if place.process.alive:
                continue
            place.run(None, 2.0)
            assert place.failed is None
            assert place.state.epoch >= acknowledged
            same(place.state, made, place.state.epoch)
            place.process.crash(kind)
            place.run(feed, 2.0)
            same(place.state, made, 23)
            assert place.state.latest_snapshot().epoch == 20  # type: ignore[union-attr]
            assert not files.partial_files(place.state._runtime.disk)


@pytest.mark.parametrize(
    "label", ["metadata.snapshot.before_rename", "metadata.snapshot.durable", "metadata.drop_segment"]
)
@pytest.mark.parametrize("kind", ["kill", "power"])
@pytest.mark.parametrize("hit", [1, 3, 6])
def test_a_crash_while_a_snapshot_is_written_or_entries_are_dropped(label: str, kind: str, hit: int) -> None:
    with Place(seed=hit) as place:
        place.world.probes.add(CrashRule(label=label, kind=kind, hit=hit))
        place.run(feeding(LONG.entries))
        assert not place.process.alive
        place.run(feeding(LONG.entries))
        same(place.state, LONG, 43)
        assert files.snapshots(place.state._runtime.disk) == [35, 40]


@pytest.mark.parametrize("hit", range(4, 14))
@pytest.mark.parametrize("kind", ["kill", "power"])
def test_a_crash_during_an_installation_leaves_the_old_or_the_new_state(hit: int, kind: str) -> None:
    with Place(seed=hit) as place:

        async def jump(state: MetadataState) -> None:
            state.offer(LONG.entries[:3])
            await state.wait_for(3)
            await state.install(LONG.values[39], LONG.entries[39])

        place.world.probes.add(CrashRule(label=SYNC_IN_FLIGHT, kind=kind, hit=hit))
        place.run(jump)
        if place.process.alive:
            assert place.state.epoch == 40
            return
        place.run()
        assert place.failed is None and place.state.epoch in (0, 1, 2, 3, 40)
        same(place.state, LONG, place.state.epoch)


def test_entry_ids_survive_a_restart_from_a_snapshot_and_an_installation() -> None:
    def judged(value: ClusterMetadata, entry_id: bytes, base_epoch: int) -> Any:
        kind, body = REGISTRY.encode(SetExtension("again", b"1"))
        return Tip(value, REGISTRY).judge(entry_id, kind, body, "test", 0, 9, base_epoch=base_epoch)

    with Place() as place:
        place.run(feeding(LONG.entries))
        place.restart()
        for entry in LONG.entries:
            assert judged(place.state.current, entry.entry_id, 0) == Duplicate(entry.epoch, committed=True)
    with Place() as place:

        async def jump(state: MetadataState) -> None:
            await state.install(LONG.values[39], LONG.entries[39])

        place.run(jump)
        for entry in LONG.entries[:40]:
            assert judged(place.state.current, entry.entry_id, 0) == Duplicate(entry.epoch, committed=True)
    ids = LONG.now.recent_ids
    short = type(ids).from_listed(30, ids.listed()[29:])
    forgetful = LONG.now.changed(RECENT_IDS.set(short))
    assert judged(forgetful, LONG.entries[7].entry_id, 7) == Expired(30)
    assert judged(forgetful, LONG.entries[35].entry_id, 7) == Duplicate(36, committed=True)


def long_history_with_truncations() -> History:
    made = history(17)
    made.submit(TruncateLog(15))
    while made.now.epoch < 70:
        epoch = made.now.epoch + 1
        if epoch % 5 == 0:
            made.submit(TakeSnapshot("test", made.now.service.snapshot_epoch))
        elif epoch % 23 == 0:
            made.submit(TruncateLog(made.now.service.snapshot_epoch))
        else:
            made.submit(SetExtension(f"name-{epoch % 7}", bytes((epoch,))))
    return made


TRUNCATED = long_history_with_truncations()


class Crashes:
    """One node that is struck at random syncs, again and again, while it follows a log or jumps ahead."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        retention = Retention(self.draw.choice((0, 3, 12)), self.draw.choice((1, 2, 3)))
        self.place = Place(seed, retention)
        if self.draw.random() < 0.4:
            self.place.archive = SimDisk(self.place.world, "archive")
        self.acknowledged = 0

    async def feed(self, state: MetadataState) -> None:
        step = self.draw.choice((1, 1, 4))
        if self.draw.random() < 0.3 and state.epoch < 60:
            epoch = self.draw.choice([e for e in range(state.epoch + 3, 68) if e % 5 == 0])
            entries = TRUNCATED.entries[epoch : epoch + 2]
            await state.install(TRUNCATED.values[epoch - 1], TRUNCATED.entries[epoch - 1], entries)
            self.acknowledged = epoch
        while state.epoch < 70:
            end = min(state.epoch + step, 70)
            state.offer(TRUNCATED.entries[state.epoch : end])
            await state.wait_for(end)
            self.acknowledged = end

    def round(self) -> None:
        board = self.place.world.probes
        board.clear()
        reached = board.process_counts.get(("n1", SYNC_IN_FLIGHT), 0)
        kind = self.draw.choice(("kill", "power", "power"))
        board.add(CrashRule(label=SYNC_IN_FLIGHT, kind=kind, hit=reached + self.draw.randrange(1, 25)))
        self.place.run(self.feed, 2.0)
        assert self.place.failed is None and not self.place.broken


@pytest.mark.parametrize("seed", range(30))
def test_no_series_of_crashes_loses_an_acknowledged_epoch(seed: int) -> None:
    crashes = Crashes(seed)
    with crashes.place as place:
        for _ in range(30):
            crashes.round()
            if place.process.alive:
                break
        place.world.probes.clear()
        place.process.crash("power")
        place.run()
        assert place.failed is None and place.state.epoch >= crashes.acknowledged
        same(place.state, TRUNCATED, place.state.epoch)


def test_an_installation_over_a_segment_that_was_never_written_is_not_stopped_by_it() -> None:
    with Place() as place:
        place.archive = SimDisk(place.world, "archive")
        place.run(feeding(LONG.entries[:20]))
        place.process.crash()
        place.disk.append(files.segment_path(21), b"")

        async def jump(state: MetadataState) -> None:
            await state.install(LONG.values[34], LONG.entries[34])

        place.run(jump)
        place.process.crash()
        place.disk.append(files.segment_path(21), b"")

        async def again(state: MetadataState) -> None:
            await state.install(LONG.values[39], LONG.entries[39])

        place.run(again)
        same(place.state, LONG, 40)


def test_a_node_whose_only_snapshot_is_damaged_does_not_go_back() -> None:
    with Place() as place:

        async def jump(state: MetadataState) -> None:
            state.offer(LONG.entries[:3])
            await state.wait_for(3)
            await state.install(LONG.values[39], LONG.entries[39])

        place.run(jump)
        assert files.segments(place.state._runtime.disk) == []
        place.process.crash()
        damage(place.disk, files.snapshot_path(40))
        place.run()
        assert isinstance(place.failed, CorruptFile) and "ends at epoch 0" in place.failed.message


def test_a_failing_archive_does_not_stop_an_installation() -> None:
    with Place() as place:
        place.archive = SimDisk(place.world, "archive")
        place.archive.settings.capacity_bytes = 10

        async def jump(state: MetadataState) -> None:
            state.offer(LONG.entries[:3])
            await state.wait_for(3)
            await state.install(LONG.values[39], LONG.entries[39], LONG.entries[40:])
            await state.wait_for(43)

        place.run(jump)
        same(place.state, LONG, 43)
        assert not place.broken and files.segments(place.state._runtime.disk) == [1, 41]
        place.restart()
        same(place.state, LONG, 43)
        place.archive.settings.capacity_bytes = None
        place.restart()
        same(place.state, LONG, 43)
        assert files.segments(place.state._runtime.disk) == [41]
        assert files.segment_path(1) in place.archive.files
