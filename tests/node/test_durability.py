"""What is durable before it is said, and what a failing disk leads to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from lockstep.metadata.log.entries import LogEntry
from lockstep.node.log import journal
from lockstep.node.log.journal import METADATA_GROUP, Journal, RaftJournal, journal_path
from lockstep.node.node import Node
from lockstep.node.processors.raft import logged_entries
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.disk import SimDisk
from lockstep.sim.runtime.world import World
from lockstep.values.codec import decoder, frame_record, scan_records
from lockstep.values.errors import CannotApply, CorruptFile, DiskRefused
from lockstep.values.node_limits import STAMPS_RESERVED_US
from tests.node.support import Town, keyspace

_ENTRIES = decoder(list[LogEntry])
_RECORD = decoder(journal._Record)


def durable_epoch(disk: SimDisk) -> int:
    """The epoch at which a node would start after a power cut now: by the metadata's own file, or by what the
    journal of its group says to be committed."""
    files = disk.durable()
    data = files.get("metadata/log-000000000001", b"")
    records = scan_records("metadata/log-000000000001", data, record_bytes_max=1 << 28)
    own = sum(len(_ENTRIES.decode(body)) for _, body in records)
    entries: dict[int, Any] = {}
    commit_index = 0
    records = scan_records("raft", files.get(journal_path(METADATA_GROUP), b""), record_bytes_max=1 << 28)
    for _, body in records:
        record = _RECORD.decode(body)
        commit_index = max(commit_index, record.commit_index)
        entries.update((entry.index, entry) for entry in record.entries)
    committed = tuple(entry for index, entry in entries.items() if index <= commit_index)
    return max([own, *(entry.epoch for entry in logged_entries(committed))])


def test_an_epoch_is_durable_before_any_message_carries_it() -> None:
    shown: list[int] = []

    def watch(town: Town, name: str, node: Node) -> None:
        disk, told = town.world.processes[name].disk, node.log.state.newest

        class Watched:
            @property
            def epoch(self) -> int:
                now = told.epoch
                assert now <= durable_epoch(disk), f"{name} shows epoch {now} too early"
                shown.append(now)
                return now

        node.context.internode.newest = node.context.internode.own.newest = Watched()

    with Town() as town:
        town.prepare = lambda name, node: watch(town, name, node)
        for number in (1, 2, 3):
            town.process(number).disk.settings.sync_high_s = 0.05
        town.found()
        begin = town.newest.epoch
        for number in range(5):
            assert town.finish(town.submit(1 + number % 3, keyspace(f"k{number}"))).error is None
        town.process(2).crash("power")
        town.start(2)
        town.until(lambda: town.ready(2))
        town.agreed(1, 2, 3)
        assert max(shown) == begin + 5


@pytest.mark.parametrize("path", ["raft/group-1", "metadata/log-000000000001"])
def test_a_node_whose_journal_cannot_be_synced_stops_serving_and_voting(path: str) -> None:
    with Town() as town:
        town.found()
        leader = town.leader()
        name = f"n{leader}"
        node, disk = town.node(leader), town.process(leader).disk
        finish = disk.finish_sync

        def failing(what: str, file: Any, sequence: int) -> None:
            if what == path:
                raise DiskRefused("sync failed: input/output error")
            finish(what, file, sequence)

        disk.finish_sync = failing  # type: ignore[method-assign]
        other = 1 + leader % 3
        assert town.finish(town.submit(other, keyspace("k"))).error is None
        town.until(lambda: name in town.ended)
        assert isinstance(town.ended[name], DiskRefused)
        assert not node.log.is_leader and not node.ready
        before = disk.files[path].sequence
        town.wait(2)
        assert disk.files[path].sequence == before, "nothing is written behind a failed sync"
        # A new start finds what was durable, and goes on.
        disk.finish_sync = finish  # type: ignore[method-assign]
        disk.power_loss()
        town.start(leader)
        town.until(lambda: town.ready(1, 2, 3))
        town.agreed(1, 2, 3)


def test_a_broken_node_takes_no_part_in_consensus_any_more() -> None:
    with Town() as town:
        town.found()
        leader = town.leader()
        node = town.node(leader)
        driver = node.log.driver
        assert driver is not None
        # Who watches over the node is slow to stop it: it must be silent by itself.
        held = asyncio.Event()
        node.stop = held.wait  # type: ignore[method-assign, assignment]
        node._break(CannotApply("planted"))
        term, ticks = driver.raft.term, driver.raft.state.election_elapsed
        town.world.run_for(0.0005)
        assert not driver.is_leader and not node.context.internode._running
        town.until(
            lambda: any(town.ready(n) and town.node(n).log.is_leader for n in (1, 2, 3) if n != leader)
        )
        assert (driver.raft.term, driver.raft.state.election_elapsed) == (term, ticks)


def test_a_defect_while_applying_stops_the_node() -> None:
    with Town() as town:
        town.found()
        node = town.node(2)

        def fail(*_: object) -> None:
            raise KeyError("a defect in a listener")

        node.log.state.listen(fail)
        town.world.settings = type(town.world.settings)(stop_on_error=False)
        town.submit(1, keyspace("k"))
        town.world.run_for(2)
        assert isinstance(town.ended["n2"], CannotApply)
        assert "a defect in a listener" in str(town.ended["n2"])
        assert [error.kind for error in town.world.errors] == ["task"]


def on_a_disk(work: Any) -> Any:
    with World(1) as world:
        return world.call(work)


def test_a_journal_survives_a_torn_tail_and_refuses_damage_before_whole_records() -> None:
    async def work(runtime: Runtime) -> None:
        journal = Journal(runtime.disk, "some/log")
        for body in (b"one", b"two"):
            await journal.append(body)
        runtime.disk.append("some/log", frame_record(b"three")[:-2])
        again = Journal(runtime.disk, "some/log")
        assert again.load() == [b"one", b"two"]
        await again.append(b"four")
        assert Journal(runtime.disk, "some/log").load() == [b"one", b"two", b"four"]
        runtime.disk.append("some/log", b"\x00" * 40 + frame_record(b"five"))
        with pytest.raises(CorruptFile):
            Journal(runtime.disk, "some/log").load()

    on_a_disk(work)


def test_a_journal_takes_nothing_after_a_failed_append() -> None:
    async def work(runtime: Runtime) -> None:
        journal = Journal(runtime.disk, "log")

        async def refuse(_path: str, _data: bytes) -> None:
            raise DiskRefused("no")

        append, runtime.disk.append_synced = runtime.disk.append_synced, refuse  # type: ignore[method-assign]
        with pytest.raises(DiskRefused):
            await journal.append(b"one")
        runtime.disk.append_synced = append  # type: ignore[method-assign]
        with pytest.raises(AssertionError):
            await journal.append(b"two")

    on_a_disk(work)


@pytest.mark.parametrize("body", [b"\xc1 no message", b"\x01"])
def test_records_that_this_version_cannot_read_are_corruption(body: bytes) -> None:
    async def work(runtime: Runtime) -> None:
        await Journal(runtime.disk, "raft/group-1").append(body)
        with pytest.raises(CorruptFile):
            RaftJournal(runtime.disk, 1).load()

    on_a_disk(work)


@pytest.mark.parametrize("path", ["metadata/log-000000000001", "raft/group-1", "raft/founders", "identity"])
def test_what_a_killed_predecessor_left_unsynced_is_durable_before_it_is_believed(path: str) -> None:
    """Bytes, or a name, that only the page cache has are read by the next incarnation."""
    with Town() as town:
        process = town.process(2)
        disk, finish = process.disk, process.disk.finish_sync

        def dies(what: str, file: Any, sequence: int) -> None:
            if what == path:
                process.crash()
            else:
                finish(what, file, sequence)

        disk.finish_sync = dies  # type: ignore[method-assign]
        town.start(1, 2, 3)
        town.until(lambda: process.incarnation == 1 and not process.alive)
        assert disk.file(path).pending
        disk.finish_sync = finish  # type: ignore[method-assign]
        # Nobody gives it anything to write.
        town.world.network.isolate(process.host)
        town.start(2)
        town.until(lambda: "n2" in town.nodes and town.node(2).context.identity.value.host_id != "")
        if path == "metadata/log-000000000001":
            # After a kill it first waits until the clock has passed the timestamps that were reserved.
            town.until(lambda: town.node(2).log.state.epoch > 0, limit_s=STAMPS_RESERVED_US / 1e6 + 0.1)
        town.wait(0.1)
        seen = disk.read(path)
        assert disk.durable()[path] == seen != b""
        if path == "metadata/log-000000000001":
            assert town.node(2).log.state.epoch == durable_epoch(disk) >= 1
        town.world.network.heal()
        process.crash("power")
        town.start(2)
        town.until(lambda: town.ready(1, 2, 3))


def test_boot_generations_grow_with_every_start_whatever_happens_to_it() -> None:
    with Town(founders=1) as town:
        town.found()
        seen = [town.node(1).context.identity.value.generation]
        for kind in ("kill", "power", "kill", "power"):
            town.process(1).crash(kind)
            town.start(1)
            town.until(lambda: town.ready(1))
            seen.append(town.node(1).context.identity.value.generation)
        assert seen == sorted(set(seen))
        ids = {town.node(1).data.new_mutation_id() for _ in range(3)}
        assert len(ids) == 3
