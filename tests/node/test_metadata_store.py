"""The metadata directory through crashes: segments, snapshots, dropped entries, installed snapshots."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.digest import state_digest
from lockstep.metadata.entries import LogEntry
from lockstep.metadata.registry import EntryKind, Registry
from lockstep.metadata.snapshot_entries import KINDS as SNAPSHOT_KINDS
from lockstep.metadata.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.snapshot_file import SnapshotFileReader
from lockstep.metadata.tip import Duplicate, Expired, Tip
from lockstep.metadata.transformations import KINDS, Initialize, SetExtension
from lockstep.node import metadata_files as files
from lockstep.node import metadata_store
from lockstep.node.metadata_past import Past
from lockstep.node.metadata_state import MetadataState
from lockstep.node.metadata_store import Retention
from lockstep.runtime.ports import Runtime
from lockstep.sim.disk import DiskPort, SimDisk
from lockstep.sim.probes import SYNC_IN_FLIGHT, CrashRule
from lockstep.sim.world import World, WorldSettings
from lockstep.values.errors import CannotApply, CorruptFile, LockstepError, LogTruncated, Rejected
from tests.metadata.histories import History, founder

REGISTRY = Registry(KINDS, SNAPSHOT_KINDS)


def history(epochs: int, every: int = 5, value_bytes: int = 20) -> History:
    """Epochs divisible by `every` are snapshots."""
    made = History(REGISTRY)
    made.submit(Initialize("id", "name", (founder(1, (0,)),)))
    while made.now.epoch < epochs:
        epoch = made.now.epoch + 1
        if epoch % every == 0:
            made.submit(TakeSnapshot("test", made.now.service.snapshot_epoch))
        else:
            made.submit(SetExtension(f"name-{epoch % 7}", epoch.to_bytes(value_bytes, "big")))
    return made


LONG = history(43)
KEEPS_LITTLE = Retention(entries=5, snapshots=2)
Work = Callable[[MetadataState], Coroutine[Any, Any, Any]]


class Place:
    """One simulated host with nothing on it but a metadata state."""

    def __init__(self, seed: int = 1, retention: Retention = KEEPS_LITTLE) -> None:
        self.world = World(seed, WorldSettings())
        self.retention = retention
        self.state: MetadataState
        self.broken: list[LockstepError] = []
        self.said: list[tuple[str, dict[str, Any]]] = []
        self.archive: SimDisk | None = None
        self.registry = REGISTRY
        self.failed: LockstepError | None = None
        self.process = self.world.process("n1", "127.0.0.1")

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *failure: object) -> None:
        self.world.close()

    @property
    def disk(self) -> SimDisk:
        return self.process.disk

    def start(self, work: Work | None = None) -> None:
        async def main(runtime: Runtime) -> None:
            if self.archive is not None:
                loop = self.process.loop
                assert loop is not None
                port = DiskPort(self.archive, loop, runtime.probes)  # type: ignore[arg-type]
                runtime = msgspec.structs.replace(runtime, archive=port)
            state = MetadataState(
                runtime,
                self.registry,
                self.broken.append,
                lambda event, **facts: self.said.append((event, facts)),
                self.retention,
            )
            try:
                await state.store.settle()
                state.load()
            except LockstepError as error:
                self.failed = error
                return
            self.state = state
            state.start()
            if work is not None:
                await work(state)
            await asyncio.Event().wait()

        self.failed = None
        self.process.start(main)

    def run(self, work: Work | None = None, limit_s: float = 5.0) -> None:
        """Start (again), work, and come to rest."""
        self.start(work)
        self.world.run_for(limit_s)
        self.world.check()

    def restart(self, kind: str = "power") -> None:
        self.process.crash(kind)
        self.run()

    def log(self, event: str) -> list[dict[str, Any]]:
        return [facts for what, facts in self.said if what == event]


def feeding(entries: Sequence[LogEntry], group: int = 1) -> Work:
    async def feed(state: MetadataState) -> None:
        rest = [entry for entry in entries if entry.epoch > state.epoch]
        for at in range(0, len(rest), group):
            state.offer(rest[at : at + group])
            await state.wait_for(rest[min(at + group, len(rest)) - 1].epoch)

    return feed


def same(state: MetadataState, made: History, epoch: int) -> None:
    assert state.epoch == epoch
    assert state.current.hash == made.values[epoch].hash
    assert state_digest(state.current) == state_digest(made.values[epoch])
    assert [e.hash for e in state.entries] == [e.hash for e in made.entries[state.first_epoch - 1 : epoch]]


@pytest.mark.parametrize("group", [1, 3, 100])
def test_entries_survive_in_segments_and_old_ones_are_dropped(group: int) -> None:
    with Place() as place:
        place.run(feeding(LONG.entries, group))
        same(place.state, LONG, 43)
        assert files.segments(place.state._runtime.disk) == [36, 41]
        assert files.snapshots(place.state._runtime.disk) == [35, 40]
        assert place.state.first_epoch == 35
        for kind in ("kill", "power"):
            place.restart(kind)
            same(place.state, LONG, 43)
            assert place.state.first_epoch == 35
        latest = place.state.latest_snapshot()
        assert latest is not None and latest.epoch == 40 and latest.entry.hash == LONG.entries[39].hash


def test_what_was_dropped_is_refused_clearly_and_hashes_of_it_are_kept_sparsely(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metadata_store, "LOG_CHECKPOINT_EPOCHS", 4)
    with Place() as place:
        place.run(feeding(LONG.entries))
        for _ in range(2):
            state = place.state
            with pytest.raises(LogTruncated, match="from epoch 35 on") as refused:
                state.entries_after(33)
            assert refused.value.oldest_epoch == 35
            assert [e.epoch for e in state.entries_after(34)] == list(range(35, 44))
            assert state.entries_after(43) == state.entries_after(99) == ()
            for epoch in range(1, 44):
                known = epoch % 4 == 0 or epoch >= 34
                assert state.hash_at(epoch) == (LONG.values[epoch].hash if known else None), epoch
            place.restart()


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


def damage(disk: SimDisk, path: str) -> None:
    file = disk.file(path)
    file.durable[len(file.durable) // 2] ^= 1
    file.cache[:] = file.durable


def test_an_unreadable_snapshot_is_stepped_back_from_and_written_again() -> None:
    with Place() as place:
        place.run(feeding(LONG.entries))
        place.process.crash()
        damage(place.disk, files.snapshot_path(40))
        place.run()
        same(place.state, LONG, 43)
        assert place.log("metadata.snapshot_unreadable")[0]["epoch"] == 40
        assert place.state.store.infos[40].epoch == 40
        place.restart()
        same(place.state, LONG, 43)
        assert len(place.log("metadata.snapshot_unreadable")) == 1


def test_without_any_readable_history_a_node_does_not_start() -> None:
    with Place() as place:
        place.run(feeding(LONG.entries))
        place.process.crash()
        for epoch in (35, 40):
            damage(place.disk, files.snapshot_path(epoch))
        place.run()
        assert isinstance(place.failed, CorruptFile) and "no snapshot can be read" in place.failed.message


def test_a_missing_or_foreign_segment_is_refused() -> None:
    for lost, message in ((41, None), (36, "missing")):
        with Place() as place:
            place.run(feeding(LONG.entries))
            place.process.crash()
            if lost == 36:
                damage(place.disk, files.snapshot_path(40))
            place.disk.remove(files.segment_path(lost))
            place.run()
            if message is None:
                same(place.state, LONG, 40)
            else:
                assert isinstance(place.failed, CorruptFile) and message in place.failed.message


def test_a_truncation_entry_drops_up_to_the_newest_snapshot() -> None:
    made = history(22)
    assert "beyond the latest snapshot" in str(made.tried(TruncateLog(21)))
    made.submit(TruncateLog(20))
    assert "already" in str(made.tried(TruncateLog(20)))
    made.submit(SetExtension("after", b"1"))
    with Place(retention=Retention(entries=1000, snapshots=2)) as place:
        place.run(feeding(made.entries[:22]))
        assert place.state.first_epoch == 1
        place.process.crash()
        place.run(feeding(made.entries))
        same(place.state, made, 24)
        place.restart()
        same(place.state, made, 24)
        assert place.state.first_epoch == 20 and files.segments(place.state._runtime.disk) == [21]


def test_a_snapshot_entry_of_another_state_stops_the_node() -> None:
    made = history(4)
    forged = TakeSnapshot("forged", 0, 4, bytes(32))
    assert isinstance(made.tried(forged), Rejected) is False
    other = history(5)
    value = msgspec.structs.replace(other.values[4], next_operation_id=99)
    body = REGISTRY.decode(EntryKind.SNAPSHOT, other.entries[4].body)
    with pytest.raises(Rejected, match="has the digest"):
        body.apply(value, 5)
    assert body.apply(other.values[4], 5).service.snapshot_epoch == 5


def test_two_proposals_of_one_interval_give_one_snapshot() -> None:
    made = history(8)
    assert isinstance(made.tried(TakeSnapshot("epochs", 0)), Rejected)
    made.submit(TakeSnapshot("epochs", 5))
    assert "nothing changed" in str(made.tried(TakeSnapshot("asked")))
    made.submit(SetExtension("x", b"1"))
    made.submit(TakeSnapshot("asked"))


@pytest.mark.parametrize("known", [0, 3, 12, 27])
def test_a_snapshot_is_installed_over_a_gap(known: int) -> None:
    with Place() as source, Place(seed=2) as place:
        source.run(feeding(LONG.entries))
        info = source.state.latest_snapshot()
        assert info is not None
        reader = SnapshotFileReader()
        while part := source.state.read_snapshot_chunk(info.epoch, reader.bytes_read, 1000):
            reader.feed(part)
        assert reader.bytes_read == info.size_bytes
        content = reader.finish()
        told: list[tuple[int, int]] = []
        saved: list[int] = []

        async def jump(state: MetadataState) -> None:
            state.offer(LONG.entries[:known])
            state.listen(lambda before, after, entry: told.append((before.epoch, after.epoch)))
            state.listen_snapshots(lambda one: saved.append(one.epoch))
            await state.wait_for(known)
            await state.install(content.value, info.entry, LONG.entries[40:42])
            await state.wait_for(42)

        place.run(jump)
        same(place.state, LONG, 42)
        assert place.state.first_epoch == 40
        assert (known, 40) in told and told[-1] == (41, 42) and saved[-1] == 40
        ours = place.state.read_snapshot_chunk(40, 0, 1 << 30)
        assert ours == source.state.read_snapshot_chunk(40, 0, 1 << 30), "all nodes' files are equal"
        assert place.state.read_snapshot_chunk(39, 0, 10) is None
        place.restart()
        same(place.state, LONG, 42)
        place.process.crash()
        place.run(feeding(LONG.entries))
        same(place.state, LONG, 43)


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


def test_an_older_snapshot_is_not_installed_and_a_wrong_one_is_refused() -> None:
    with Place() as place:
        refused: list[LockstepError] = []

        async def work(state: MetadataState) -> None:
            await feeding(LONG.entries[:12])(state)
            await state.install(LONG.values[9], LONG.entries[9])
            for value, entry in ((LONG.values[38], LONG.entries[39]), (LONG.values[40], LONG.entries[41])):
                try:
                    await state.install(value, entry)
                except CannotApply as error:
                    refused.append(error)

        place.run(work)
        assert len(refused) == 2 and not place.broken
        same(place.state, LONG, 12)


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
    forgetful = msgspec.structs.replace(LONG.now, recent_ids=short)
    assert judged(forgetful, LONG.entries[7].entry_id, 7) == Expired(30)
    assert judged(forgetful, LONG.entries[35].entry_id, 7) == Duplicate(36, committed=True)


def test_what_is_dropped_goes_to_the_archive_and_the_whole_past_can_be_read() -> None:
    with Place() as place:
        place.archive = SimDisk(place.world, "archive")
        found: dict[int, ClusterMetadata] = {}

        async def read(state: MetadataState) -> None:
            await feeding(LONG.entries)(state)
            await asyncio.sleep(1)
            for epoch in range(44):
                found[epoch] = await Past(state).value_at(epoch)

        place.run(read, 20.0)
        assert place.state.first_epoch == 35
        for epoch in range(44):
            assert state_digest(found[epoch]) == state_digest(LONG.values[epoch]), epoch


def test_without_an_archive_the_retained_past_can_be_read_and_no_more() -> None:
    with Place() as place:
        found: dict[int, Any] = {}

        async def read(state: MetadataState) -> None:
            await feeding(LONG.entries)(state)
            await asyncio.sleep(1)
            for epoch in range(44):
                try:
                    found[epoch] = await Past(state).value_at(epoch)
                except LogTruncated as error:
                    found[epoch] = error

        place.run(read, 20.0)
        for epoch in range(44):
            if 1 <= epoch < 34:
                assert isinstance(found[epoch], LogTruncated) and found[epoch].oldest_epoch == 34
            else:
                assert found[epoch].hash == LONG.values[epoch].hash


def test_a_failing_archive_keeps_the_log_and_is_told() -> None:
    with Place() as place:
        place.archive = SimDisk(place.world, "archive")
        place.archive.settings.capacity_bytes = 10
        place.run(feeding(LONG.entries))
        assert place.state.first_epoch == 1 and not place.broken
        assert place.log("metadata.snapshot_failed")
        place.archive.settings.capacity_bytes = None
        place.restart()
        assert place.state.first_epoch == 35


def test_a_snapshot_that_cannot_be_written_leaves_a_node_that_works() -> None:
    with Place() as place:
        place.run(feeding(LONG.entries[:9]))
        place.disk.settings.capacity_bytes = place.disk.used_bytes() + 900
        place.process.crash()
        place.run(feeding(LONG.entries[:11]))
        assert place.state.epoch == 11 and not place.broken
        assert place.log("metadata.snapshot_failed")
        assert not files.partial_files(place.state._runtime.disk)


def test_writing_a_snapshot_lets_others_work() -> None:
    made = history(5)
    for number in range(40):
        made.submit(SetExtension(f"large-{number}", bytes(100_000)))
    made.submit(TakeSnapshot("large"))
    with Place() as place:
        sizes: dict[int, None] = {}

        async def work(state: MetadataState) -> None:
            await feeding(made.entries)(state)
            partial = files.snapshot_path(46) + files.PARTIAL
            for _ in range(200):
                if partial in place.disk.files:
                    sizes[len(place.disk.file(partial).cache)] = None
                await asyncio.sleep(0)

        place.run(work)
        latest = place.state.latest_snapshot()
        assert latest is not None and latest.epoch == 46 and latest.size_bytes > 4_000_000
        assert len(sizes) > 12, "each piece of 256 KiB is a turn of its own"


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
