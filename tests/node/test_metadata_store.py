"""The metadata directory: segments, snapshots, dropped entries, installed snapshots, the archive."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import REGISTERED, ClusterMetadata
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.entries import hash_of
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.log.snapshot_entries import TakeSnapshot, TruncateLog
from lockstep.metadata.log.snapshot_file import SnapshotFileReader
from lockstep.metadata.operations import OPERATIONS
from lockstep.metadata.transformations import SetExtension
from lockstep.node.log import metadata_store
from lockstep.node.log.metadata_past import Past
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.metadata_store import Retention
from lockstep.sim.runtime.disk import SimDisk
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.requests import EnqueueRequest
from lockstep.topology.transformations import PrepareOperation
from lockstep.values.codec import frame_record
from lockstep.values.errors import CannotApply, CorruptFile, LockstepError, LogTruncated, Rejected
from lockstep.values.ids import NodeId
from tests.metadata.histories import simple, started
from tests.node.metadata_place import LONG, REGISTRY, Place, damage, feeding, history, same


@pytest.mark.parametrize("group", [1, 3, 100])
def test_entries_survive_in_segments_and_old_ones_are_dropped(group: int) -> None:
    with Place() as place:
        place.run(feeding(LONG.entries, group))
        same(place.state, LONG, 43)
        assert metadata_store.segments(place.state._runtime.disk) == [36, 41]
        assert metadata_store.snapshots(place.state._runtime.disk) == [35, 40]
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


def test_a_snapshot_with_a_running_operation_and_a_queue_is_read_again() -> None:
    """Bodies of kinds are in its very first piece, from which the header is read too."""
    made = started([(at * 100,) for at in range(5)], ("ks", simple(2)))
    for node in (4, 5):
        made.submit(EnqueueRequest(Decommission(NodeId(node)), actor="test"))
    made.submit(PrepareOperation(Decommission(NodeId(4)), request_id=1))
    made.submit(TakeSnapshot("test", 0))
    with Place() as place:
        place.registry = made.registry
        place.run(feeding(made.entries))
        assert metadata_store.snapshots(place.state._runtime.disk) == [made.now.epoch]
        place.restart()
        same(place.state, made, made.now.epoch)
        assert place.state.current.operations and place.state.current.requests.queue
        assert not place.log("metadata.snapshot_unreadable")


def test_an_unreadable_snapshot_is_stepped_back_from_and_written_again() -> None:
    with Place() as place:
        place.run(feeding(LONG.entries))
        place.process.crash()
        damage(place.disk, metadata_store.snapshot_path(40))
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
            damage(place.disk, metadata_store.snapshot_path(epoch))
        place.run()
        assert isinstance(place.failed, CorruptFile) and "no snapshot can be read" in place.failed.message


def test_a_missing_or_foreign_segment_is_refused() -> None:
    for lost, message in ((41, None), (36, "missing")):
        with Place() as place:
            place.run(feeding(LONG.entries))
            place.process.crash()
            if lost == 36:
                damage(place.disk, metadata_store.snapshot_path(40))
            place.disk.remove(metadata_store.segment_path(lost))
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
        assert place.state.first_epoch == 20 and metadata_store.segments(place.state._runtime.disk) == [21]


def test_a_snapshot_entry_of_another_state_stops_the_node() -> None:
    made = history(4)
    forged = TakeSnapshot("forged", 0, 4, bytes(32))
    assert isinstance(made.tried(forged), Rejected) is False
    other = history(5)
    value = other.values[4].changed(
        OPERATIONS.set(msgspec.structs.replace(other.values[4].running, next_id=99))
    )
    body = REGISTRY.decode(EntryKind.SNAPSHOT, other.entries[4].body)
    with pytest.raises(Rejected, match="has the digest"):
        body.apply(value, 5)
    assert body.apply(other.values[4], 5).service.snapshot_epoch == 5


def test_what_comes_before_an_entry_that_cannot_be_applied_is_applied() -> None:
    """However the entries were grouped, the node stops at the same epoch."""
    foreign = msgspec.structs.replace(LONG.entries[7], kind=99)
    foreign = msgspec.structs.replace(foreign, hash=hash_of(foreign))
    with Place() as place:

        async def work(state: MetadataState) -> None:
            state.offer([*LONG.entries[:7], foreign])

        place.run(work)
        assert place.state.epoch == 7 and "99" in str(place.broken[0])
        place.restart()
        same(place.state, LONG, 7)


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
        reader = SnapshotFileReader(REGISTERED)
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


def test_a_copy_that_a_killed_node_left_in_the_archive_is_durable_before_it_counts() -> None:
    with Place() as place:
        place.archive = archive = SimDisk(place.world, "archive")
        path = metadata_store.segment_path(1)

        async def again(state: MetadataState) -> None:
            await feeding(LONG.entries[:3])(state)
            port = state._runtime.archive
            assert port is not None
            port.append(path + metadata_store.PARTIAL, place.disk.read(path))
            await port.sync(path + metadata_store.PARTIAL)
            port.rename(path + metadata_store.PARTIAL, path)
            assert path not in archive.durable()
            await state.store._archived(path)

        place.run(again)
        assert path in archive.durable()


def test_a_damaged_copy_here_does_not_hide_the_one_in_the_archive() -> None:
    with Place() as place:
        place.archive = SimDisk(place.world, "archive")
        found: list[ClusterMetadata] = []

        async def read(state: MetadataState) -> None:
            await feeding(LONG.entries)(state)
            await asyncio.sleep(1)
            state._runtime.disk.append(metadata_store.segment_path(6), b"x" * 50 + frame_record(b"whole"))
            found.append(await Past(state).value_at(8))

        place.run(read)
        assert found and found[0].hash == LONG.values[8].hash


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
        assert not metadata_store.partial_files(place.state._runtime.disk)


def test_writing_a_snapshot_lets_others_work() -> None:
    made = history(5)
    for number in range(40):
        made.submit(SetExtension(f"large-{number}", bytes(100_000)))
    made.submit(TakeSnapshot("large"))
    with Place() as place:
        sizes: dict[int, None] = {}

        async def work(state: MetadataState) -> None:
            await feeding(made.entries)(state)
            partial = metadata_store.snapshot_path(46) + metadata_store.PARTIAL
            for _ in range(200):
                if partial in place.disk.files:
                    sizes[len(place.disk.file(partial).cache)] = None
                await asyncio.sleep(0)

        place.run(work)
        latest = place.state.latest_snapshot()
        assert latest is not None and latest.epoch == 46 and latest.size_bytes > 4_000_000
        assert len(sizes) > 12, "each piece of 256 KiB is a turn of its own"
