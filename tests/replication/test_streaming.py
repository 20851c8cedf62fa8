from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.internode.connection import FileReply
from lockstep.internode.throttle import Throttle
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.operations import OPERATIONS
from lockstep.replica.messages import StreamFile, StreamPart, WriteRequest
from lockstep.replica.replica import ReplicaService
from lockstep.replica.session_guards import SessionGuards
from lockstep.storage.model import ModelRun, pairs_in
from lockstep.storage.rows.keys import KIND_ROW, partition_prefix, split_partition
from lockstep.streaming import stream_source, stream_target
from lockstep.streaming.stream_progress import StreamProgress
from lockstep.streaming.stream_source import StreamLimits, StreamService
from lockstep.streaming.stream_target import StreamClient, StreamReport
from lockstep.values.errors import CorruptFile, FrameCorrupt, PeerUnreachable, RangeLacking, SessionClosed
from lockstep.values.rows import Mutation
from lockstep.values.tokens import Range
from tests.storage.support import LossyDisk, MemoryReader

from .clusters import TABLE_ID, TinyEngine, upsert, whole_ring
from .support import TestNode, run, running, until

Pair = tuple[bytes, bytes]
RANGE = Range(0, 1_000_000)
FILE_BYTES = 100_000
PART_BYTES = 30_000


class PairEngine(TinyEngine):
    """Keeps store pairs for streaming beside the tiny engine's partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.fixing = NothingFixed()
        self.disk = LossyDisk()
        self.pairs: dict[bytes, bytes] = {}
        self.open_snapshots = 0
        self.opened_from: list[bytes] = []
        #: Fragments that were made visible, with repetitions, and in how many runs.
        self.ingested = 0
        self.runs = 0
        self.on_ingest: Callable[[], None] = lambda: None

    def apply(self, mutation: Mutation, *, first_epoch: int | None = 0) -> int:
        prefix = partition_prefix(mutation.table_id, mutation.token, mutation.key)
        self.pairs[prefix + KIND_ROW + mutation.mutation_id] = b"written"
        return super().apply(mutation)

    def estimated_bytes(self, table_id: int, tokens: Range, pairs_max: int) -> tuple[int, int]:
        wanted = list(self.within(tokens))
        return sum(len(key) + len(value) for key, value in wanted), len(wanted)

    def within(self, tokens: Range) -> Iterator[Pair]:
        for pair in sorted(self.pairs.items()):
            if tokens.contains(split_partition(pair[0])[0]):
                yield pair

    async def fragments(self, table_id: int, tokens: Range, from_key: bytes = b"") -> Snapshot:
        self.opened_from.append(from_key)
        self.open_snapshots += 1
        return Snapshot(self, [pair for pair in self.within(tokens) if pair[0] >= from_key])

    async def filled(self, table_ids: tuple[int, ...], tokens: Range) -> tuple[int, ...]:
        return tuple(one for one in table_ids if one == TABLE_ID and any(self.within(tokens)))

    def begin_run(self, table_id: int, tokens: Range, path: str) -> ModelRun:
        return ModelRun(self.disk, path)

    async def before_ingest(self, table_id: int, tokens: Range) -> None:
        await asyncio.sleep(0)

    def run_at(
        self, table_id: int, tokens: Range, path: str, count: int, first_key: bytes, last_key: bytes
    ) -> ModelRun:
        return ModelRun(self.disk, path, pairs_in(path, self.disk.read(path), count))

    def ingest(self, run: ModelRun) -> int:
        self.pairs.update(run.pairs)
        self.ingested += run.count
        self.runs += 1
        self.on_ingest()
        return self.runs


class NothingFixed:
    async def fixed(self, table_id: int, tokens: Range, path: str) -> None:
        return None

    def remove(self, path: str) -> None:
        return


class Snapshot:
    def __init__(self, engine: PairEngine, pairs: list[Pair]) -> None:
        self._engine = engine
        self._pairs = pairs

    def take(self, count: int) -> list[Pair]:
        taken, self._pairs = self._pairs[:count], self._pairs[count:]
        return taken

    def close(self) -> None:
        self._engine.open_snapshots -= 1


class StreamNode(TestNode):
    __test__ = False

    def __init__(self, index: int, cluster: ClusterMetadata) -> None:
        super().__init__(index)
        self.cluster = cluster
        self.engine = PairEngine()
        self.behind: asyncio.Event | None = None
        self.disk = LossyDisk()
        self.build_parts()

    def build_parts(self) -> None:
        self.runtime = msgspec.structs.replace(self.runtime, disk=self.disk)
        self.engine.disk = self.disk
        own_id = self.greeting.node_id
        self.replica = ReplicaService(
            self.runtime, self.internode, self.engine, lambda: self.cluster, self.catch_up, lambda: own_id
        )
        self.service = StreamService(
            self.runtime,
            self.internode,
            self.engine,
            self.replica,
            lambda: self.cluster,
            self.catch_up,
            StreamLimits(Throttle(self.runtime.clock, 0), FILE_BYTES),
        )
        self.guards = SessionGuards(lambda: self.cluster)
        self.client = StreamClient(self.runtime, self.internode, self.engine, self.guards)

    def reborn(self, disk: LossyDisk | None = None) -> StreamNode:
        """The same node after a restart: its disk and store are what is left."""
        self.disk = disk or self.disk
        self.engine.open_snapshots = 0
        self.internode = self.build()
        self.build_parts()
        self.service.clean()
        self.client.forget_closed(self.cluster.session_open)
        return self

    async def catch_up(self, epoch: int, source: Any) -> None:
        if self.behind is not None:
            await self.behind.wait()
        assert self.cluster.epoch >= epoch

    async def survey(self, source: StreamNode, *table_ids: int) -> set[int]:
        return set(
            await self.client.survey(
                source=source.address,
                session_id="s1",
                table_ids=table_ids,
                tokens=RANGE,
                epoch=self.cluster.epoch,
            )
        )

    async def copy(self, source: StreamNode, progress: StreamProgress | None = None) -> StreamReport:
        return await self.client.stream_range(
            source=source.address,
            session_id="s1",
            table_id=TABLE_ID,
            range=RANGE,
            epoch=self.cluster.epoch,
            progress=progress,
        )

    @property
    def reached(self) -> list[str]:
        probes: Any = self.runtime.probes
        found: list[str] = probes.reached
        return found

    def names(self) -> list[str]:
        return self.disk.names("streams")

    def close_session(self) -> None:
        self.cluster = msgspec.structs.replace(
            self.cluster.changed(OPERATIONS.set(msgspec.structs.replace(self.cluster.running, sessions=()))),
            epoch=self.cluster.epoch + 1,
        )
        self.service.forget_closed()
        self.client.forget_closed(self.cluster.session_open)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (stream_source, stream_target):
        monkeypatch.setattr(module, "STREAM_PART_BYTES", PART_BYTES)
    monkeypatch.setattr(stream_target, "REPLICA_RETRY_MS", 1)


def two_nodes() -> tuple[StreamNode, StreamNode]:
    cluster = whole_ring(6, [1], [1, 2], group_epoch=6, factors={"": 1}, sessions=["s1"])
    return StreamNode(1, cluster), StreamNode(2, cluster)


def fill(engine: PairEngine, partitions: int, size: int = 10_000) -> None:
    for token in range(1, partitions + 1):
        for row in range(3):
            prefix = partition_prefix(TABLE_ID, token, b"k%d" % token)
            engine.pairs[prefix + KIND_ROW + b"%d" % row] = bytes([row]) * size


def intercept(node: StreamNode, verb: int, change: Callable[[Any, Any], Any]) -> None:
    """Let `change(request, reply)` answer instead of the source."""
    service = node.internode._services[verb]
    real: Any = service.handler

    async def answered(peer: Any, request: Any) -> Any:
        return change(request, await real(peer, request))

    service.handler = answered


def content_of(part: FileReply) -> bytearray:
    content = bytearray(part.size)
    assert part.file.read_into(part.offset, memoryview(content)) == part.size
    return content


def reply_of(part: FileReply, content: bytearray) -> FileReply:
    part.file.close()
    return FileReply(part.reply, MemoryReader(bytes(content)), 0, part.size)


def test_a_range_arrives_whole_in_several_files_and_nothing_is_left_behind() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        source.engine.pairs[partition_prefix(TABLE_ID, 2_000_000, b"out") + KIND_ROW] = b"not in the range"
        async with running(source, target):
            progress = StreamProgress()
            report = await target.copy(source, progress)
            wanted = {k: v for k, v in source.engine.pairs.items() if v != b"not in the range"}
            assert target.engine.pairs == wanted
            assert report.fragments == progress.fragments == target.engine.ingested == 180
            assert report.files == progress.files == progress.files_total == target.engine.runs > 10
            assert report.moved_bytes == progress.moved_bytes == progress.total_bytes > 1_800_000
            assert progress.left_s(progress.rate._marks[-1][0] + 1) == 0
            await until(lambda: source.engine.open_snapshots == 0)
            assert source.service.open_streams() == 0
            assert not source.names() and len(target.names()) == 1, "only the position stays"
            assert source.service.counts.bytes == target.client.counts.bytes == report.moved_bytes

    run(test)


def test_a_stream_that_is_done_is_not_begun_again_under_its_session() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 10)
        async with running(source, target):
            first = await target.copy(source)
            assert await target.copy(source) == first
            assert len(source.engine.opened_from) == 1

    run(test)


def test_an_empty_range_is_a_finished_stream() -> None:
    async def test() -> None:
        source, target = two_nodes()
        async with running(source, target):
            assert await target.copy(source) == StreamReport(0, 0, 0)
            assert target.engine.runs == 0

    run(test)


def test_a_partition_larger_than_files_is_split_and_resumed_from_its_start() -> None:
    async def test() -> None:
        source, target = two_nodes()
        prefix = partition_prefix(TABLE_ID, 5, b"large")
        for row in range(200):
            source.engine.pairs[prefix + KIND_ROW + b"%03d" % row] = bytes(5000)
        fill(source.engine, 3)
        broken: list[int] = []

        def break_once() -> None:
            if not broken and any(key.startswith(prefix) for key in target.engine.pairs):
                broken.append(1)
                source.service.stop()

        target.engine.on_ingest = break_once
        async with running(source, target):
            await target.copy(source)
            assert target.engine.pairs == source.engine.pairs
            assert source.engine.opened_from == [b"", prefix]

    run(test)


def test_the_source_drains_older_writes_before_its_snapshot() -> None:
    async def test() -> None:
        source, target = two_nodes()
        newer = source.cluster
        source.cluster = whole_ring(5, [1], factors={"": 1}, sessions=["s1"])
        source.engine.sync_gate.clear()
        async with running(source, target):
            source.replica.write(WriteRequest(5, 1, upsert(7)), lambda answer: None)
            source.cluster = newer
            copying = asyncio.ensure_future(target.copy(source))
            await until(lambda: "replica.drain" in source.reached)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not source.engine.opened_from, "no snapshot while an older write is not durable"
            source.engine.sync_gate.set()
            await copying
            assert len(target.engine.pairs) == 1

    run(test)


def test_a_survey_names_what_there_is_once_older_writes_are_durable() -> None:
    async def test() -> None:
        source, target = two_nodes()
        newer = source.cluster
        source.cluster = whole_ring(5, [1], factors={"": 1}, sessions=["s1"])
        source.engine.sync_gate.clear()
        async with running(source, target):
            source.replica.write(WriteRequest(5, 1, upsert(7)), lambda answer: None)
            source.cluster = newer
            asking = asyncio.ensure_future(target.survey(source, TABLE_ID, TABLE_ID + 1))
            await until(lambda: "replica.drain" in source.reached)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asking.done(), "nothing is said while an older write is not durable"
            source.engine.sync_gate.set()
            assert await asking == {TABLE_ID}

    run(test)


def test_what_a_source_lacks_or_cannot_tell_is_to_be_streamed() -> None:
    async def test() -> None:
        source, target = two_nodes()

        def lacking(table_id: int, tokens: Range) -> None:
            if table_id == TABLE_ID + 1:
                raise RangeLacking("lost")

        async def damaged(table_ids: tuple[int, ...], tokens: Range) -> tuple[int, ...]:
            raise CorruptFile("000007.sst", 0, "a block cannot be read")

        async with running(source, target):
            source.replica.require_held = lacking
            assert await target.survey(source, TABLE_ID, TABLE_ID + 1) == {TABLE_ID + 1}
            source.engine.filled = damaged  # type: ignore[method-assign]
            assert await target.survey(source, TABLE_ID, TABLE_ID + 2) == {TABLE_ID, TABLE_ID + 2}
            target.close_session()
            with pytest.raises(SessionClosed):
                await target.survey(source, TABLE_ID)
        source, target = two_nodes()
        async with running(source, target):
            source.service._source_of = lambda session_id: Snapshot(source.engine, [])  # type: ignore[assignment, return-value]
            found = await target.survey(source, TABLE_ID, TABLE_ID + 1)
            assert found == {TABLE_ID, TABLE_ID + 1}, "it is not the store that gives them"
        source, target = two_nodes()
        async with running(target):
            assert await target.survey(source, TABLE_ID) == {TABLE_ID}, "nobody is there to ask"

    run(test)


def test_the_source_catches_up_first() -> None:
    async def test() -> None:
        source, target = two_nodes()
        source.behind = asyncio.Event()
        async with running(source, target):
            copying = asyncio.ensure_future(target.copy(source))
            await until(lambda: bool(source.epochs_seen))
            assert not source.engine.opened_from
            source.behind.set()
            await copying

    run(test)


def test_a_session_closed_at_the_target_stops_it_at_once_and_leaves_no_file() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            target.engine.on_ingest = target.close_session
            with pytest.raises(SessionClosed):
                await target.copy(source)
            assert target.engine.runs == 1
            target.client.forget_closed(target.cluster.session_open)
            assert not target.names()

    run(test)


def test_a_session_closed_at_the_source_ends_the_stream() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            target.engine.on_ingest = source.close_session
            with pytest.raises(SessionClosed):
                await target.copy(source)
            assert source.engine.open_snapshots == 0
            await until(lambda: not source.names())

    run(test)


def test_a_stream_without_a_session_never_starts() -> None:
    async def test() -> None:
        source, target = two_nodes()
        target.close_session()
        async with running(source, target):
            with pytest.raises(SessionClosed):
                await target.copy(source)
            assert not source.engine.opened_from

    run(test)


def test_a_late_stream_of_an_earlier_attempt_cannot_bring_deleted_data_back() -> None:
    """A copy begins under one session and hangs with a file verified but not visible yet. The move fails, is
    tried again under another session and completes; the row is deleted, and the deletion is forgotten once it
    is everywhere. Then the first copy goes on."""

    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 2)
        held, goes_on = asyncio.Event(), asyncio.Event()

        async def hold(_table_id: int, _tokens: Range) -> None:
            held.set()
            await goes_on.wait()

        async with running(source, target):
            go_on = target.engine.before_ingest
            target.engine.before_ingest = hold  # type: ignore[method-assign]
            late = asyncio.ensure_future(target.copy(source))
            await held.wait()
            target.engine.before_ingest = go_on  # type: ignore[method-assign]
            retried = whole_ring(8, [1], [1, 2], group_epoch=8, factors={"": 1}, sessions=["s2"])
            for node in (source, target):
                node.close_session()
                node.cluster = retried
            await target.client.stream_range(
                source=source.address, session_id="s2", table_id=TABLE_ID, range=RANGE, epoch=8
            )
            assert len(target.engine.pairs) == 6
            target.engine.pairs.clear()
            source.engine.pairs.clear()
            goes_on.set()
            with pytest.raises(SessionClosed):
                await late
            assert not target.engine.pairs, "the stale copy had no effect"

    run(test)


def test_a_stream_under_another_session_begins_anew() -> None:
    """What an earlier attempt brought was wiped, or may be."""

    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 2)
        async with running(source, target):
            await target.copy(source)
            target.engine.pairs.clear()
            retried = whole_ring(8, [1], [1, 2], group_epoch=8, factors={"": 1}, sessions=["s2"])
            for node in (source, target):
                node.close_session()
                node.cluster = retried
            await target.client.stream_range(
                source=source.address, session_id="s2", table_id=TABLE_ID, range=RANGE, epoch=8
            )
            assert target.engine.pairs == source.engine.pairs

    run(test)


def test_a_broken_stream_goes_on_behind_what_is_visible_with_whole_partitions() -> None:
    """Between the break and the resumption the source merged the fragments of the last partition."""

    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            broken: list[bytes] = []

            def break_once() -> None:
                if broken or target.engine.runs < 3:
                    return
                broken.append(sorted(target.engine.pairs)[-1])
                source.service.stop()
                prefix = split_partition(broken[0])[2]
                for store_key in [key for key in source.engine.pairs if key.startswith(prefix)]:
                    del source.engine.pairs[store_key]
                source.engine.pairs[prefix + KIND_ROW + b"!merged"] = b"all of it"

            target.engine.on_ingest = break_once
            report = await target.copy(source)
            assert len(source.engine.opened_from) == 2
            assert source.engine.opened_from[1] > broken[0]
            assert report.fragments == target.engine.ingested == 180, "nothing that is visible is sent again"

    run(test)


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_target_that_is_started_again_goes_on_where_it_was(loses_power: bool) -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        asked: list[tuple[int, int]] = []
        stop = asyncio.Event()

        def hear(request: Any, reply: Any) -> Any:
            asked.append((request.number, request.offset))
            if request.number == 4 and request.offset:
                stop.set()
                return StreamPart(0)
            return reply

        intercept(source, verbs.STREAM_PART, hear)
        async with running(source):
            async with running(target):
                copying = asyncio.ensure_future(target.copy(source))
                await stop.wait()
                await until(lambda: target.client._files.arrived(key_of(source), 4) > 0)
                await until(lambda: target.engine.runs == 4)
                await until(lambda: "done" not in target.reached)
                await asyncio.sleep(0.01)
                copying.cancel()
                await asyncio.gather(copying, return_exceptions=True)
            stop.clear()
            first = len(asked)
            source.internode._services[verbs.STREAM_PART].handler = source.service._part
            intercept(source, verbs.STREAM_PART, lambda request, reply: asked.append(request) or reply)
            target.reborn(target.disk.lose_power() if loses_power else None)
            async with running(target):
                report = await target.copy(source)
            assert target.engine.pairs == source.engine.pairs
            assert report.fragments == target.engine.ingested == 180
            assert len(source.engine.opened_from) == 1, "the same snapshot serves the new incarnation"
            again: Any = asked[first]
            assert again.number == 4
            assert (again.offset > 0) is not loses_power

    run(test)


def key_of(source: StreamNode) -> Any:
    from lockstep.streaming.stream_files import StreamKey

    return StreamKey("s1", TABLE_ID, RANGE.left, RANGE.right, source.address)


def test_a_source_that_is_started_again_builds_only_what_is_lacking(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_target, "REPLICA_RETRY_MS", 20)

    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        stopped: list[asyncio.Task[None]] = []

        async def restart() -> None:
            await source.stop()
            source.reborn()
            await source.start()

        def break_once() -> None:
            if target.engine.runs == 5 and not stopped:
                stopped.append(asyncio.ensure_future(restart()))

        target.engine.on_ingest = break_once
        async with running(source, target):
            report = await target.copy(source)
            assert target.engine.pairs == source.engine.pairs
            assert len(source.engine.opened_from) == 2 and source.engine.opened_from[1]
            assert report.fragments == target.engine.ingested == 180

    run(test)


def test_an_unreachable_source_gives_up_after_its_attempts() -> None:
    async def test() -> None:
        source, target = two_nodes()
        async with running(target):
            with pytest.raises(PeerUnreachable):
                await target.copy(source)

    run(test)


@pytest.mark.parametrize("what", ["part", "digest", "entries", "order"])
def test_a_damaged_file_is_fetched_again_and_never_visible(what: str) -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 8)
        damages = [2]

        def damage_part(request: Any, part: FileReply) -> FileReply:
            if damages[0] and (request.number, request.offset) == (0, PART_BYTES):
                damages[0] -= 1
                content = content_of(part)
                content[100] ^= 1
                return reply_of(part, content)
            return part

        def damage_header(request: Any, file: StreamFile) -> StreamFile:
            if not damages[0] or request.number or file.summary is None:
                return file
            damages[0] -= 1
            changes: dict[str, Any] = {"digest": bytes(16)} if what == "digest" else {"entries": 7}
            if what == "order":
                changes = {"first_key": b"", "size_bytes": file.summary.size_bytes - 1}
            return msgspec.structs.replace(file, summary=msgspec.structs.replace(file.summary, **changes))

        if what == "part":
            intercept(source, verbs.STREAM_PART, damage_part)
        else:
            intercept(source, verbs.STREAM_FILE, damage_header)
        async with running(source, target):
            await target.copy(source)
            assert target.engine.pairs == source.engine.pairs
            assert target.client.counts.damaged == 2
            assert "stream.target.damaged" in target.reached

    run(test)


def test_a_file_that_stays_damaged_is_told_after_bounded_attempts() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 8)
        intercept(source, verbs.STREAM_PART, lambda request, part: reply_of(part, bytearray(part.size)))
        async with running(source, target):
            with pytest.raises(FrameCorrupt, match="was damaged 4 times"):
                await target.copy(source)
            assert not target.engine.pairs
            assert len(source.engine.opened_from) == 2, "once the source built its files anew"

    run(test)


def test_parts_whose_requests_are_doubled_change_nothing() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            target.internode.faults.duplicates = lambda: True
            report = await target.copy(source)
            assert report.fragments == 180 == target.engine.ingested

    run(test)


def test_running_streams_are_seen_from_both_ends() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        seen: list[Any] = []

        def look() -> None:
            if target.engine.runs == 5:
                seen.extend([*target.client.views(), *source.service.views()])
                seen.extend([seen[0].total_bytes, seen[0].files_total])

        target.engine.on_ingest = look
        async with running(source, target):
            await target.copy(source)
            into, out, total_bytes, files_total = seen
            assert (into.direction, out.direction) == ("in", "out")
            assert into.peer == source.address and out.peer == target.address
            assert into.range == out.range == RANGE and into.table_id == TABLE_ID
            assert total_bytes > 1_700_000 and files_total >= 17
            assert not list(target.client.views())
            await until(lambda: not list(source.service.views()))

    run(test)
