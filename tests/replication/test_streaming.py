from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import pytest

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.replication import streaming, verbs
from lockstep.replication.messages import StreamChunk, WriteRequest
from lockstep.replication.replica import ReplicaService
from lockstep.replication.session_guards import SessionGuards
from lockstep.replication.streaming import StreamClient, StreamProgress, StreamService
from lockstep.storage.keys import KIND_ROW, partition_prefix, split_partition
from lockstep.values.errors import FrameCorrupt, PeerUnreachable, SessionClosed
from lockstep.values.rows import Mutation
from lockstep.values.tokens import Range

from .clusters import TABLE_ID, TinyEngine, upsert, whole_ring
from .support import TestNode, run, running, until

Pair = tuple[bytes, bytes]
RANGE = Range(0, 1_000_000)


class PairEngine(TinyEngine):
    """Keeps store pairs for streaming beside the tiny engine's partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: dict[bytes, bytes] = {}
        self.open_snapshots = 0
        self.opened_after: list[bytes] = []
        self.on_ingest: Callable[[], None] = lambda: None

    def apply(self, mutation: Mutation) -> int:
        prefix = partition_prefix(mutation.table_id, mutation.token, mutation.key)
        self.pairs[prefix + KIND_ROW + mutation.mutation_id] = b"written"
        return super().apply(mutation)

    async def fragments(self, table_id: int, tokens: Range, after_key: bytes = b"") -> Snapshot:
        self.opened_after.append(after_key)
        self.open_snapshots += 1
        kept = sorted(self.pairs.items())
        wanted = [pair for pair in kept if tokens.contains(split_partition(pair[0])[0])]
        return Snapshot(self, [pair for pair in wanted if pair[0] > after_key])

    async def ingest(self, pairs: Iterable[Pair]) -> None:
        self.on_ingest()
        self.pairs.update(pairs)


class Snapshot:
    def __init__(self, engine: PairEngine, pairs: list[Pair]) -> None:
        self._engine = engine
        self._pairs = iter(pairs)

    def __iter__(self) -> Iterator[Pair]:
        return self._pairs

    def close(self) -> None:
        self._engine.open_snapshots -= 1


class StreamNode(TestNode):
    __test__ = False

    def __init__(self, index: int, cluster: ClusterMetadata) -> None:
        super().__init__(index)
        self.cluster = cluster
        self.engine = PairEngine()
        self.behind: asyncio.Event | None = None
        self.replica = ReplicaService(
            self.runtime, self.internode, self.engine, lambda: self.cluster, self.catch_up, lambda: index
        )
        self.service = StreamService(
            self.runtime, self.internode, self.engine, self.replica, lambda: self.cluster, self.catch_up
        )
        guards = SessionGuards(lambda: self.cluster)
        self.client = StreamClient(self.runtime, self.internode, self.engine, guards)

    async def catch_up(self, epoch: int, source: Any) -> None:
        if self.behind is not None:
            await self.behind.wait()
        assert self.cluster.epoch >= epoch

    async def copy(self, source: StreamNode, progress: StreamProgress | None = None) -> Any:
        return await self.client.stream_range(
            source=source.address,
            session_id="s1",
            table_id=TABLE_ID,
            range=RANGE,
            epoch=self.cluster.epoch,
            progress=progress,
        )


def two_nodes() -> tuple[StreamNode, StreamNode]:
    cluster = whole_ring(6, [1], [1, 2], group_epoch=6, factors={"": 1}, sessions=["s1"])
    return StreamNode(1, cluster), StreamNode(2, cluster)


def closed(cluster: ClusterMetadata) -> ClusterMetadata:
    return msgspec.structs.replace(cluster, epoch=cluster.epoch + 1, sessions=())


def fill(engine: PairEngine, partitions: int, size: int = 10_000) -> None:
    for token in range(1, partitions + 1):
        for row in range(3):
            prefix = partition_prefix(TABLE_ID, token, b"k%d" % token)
            engine.pairs[prefix + KIND_ROW + b"%d" % row] = bytes([row]) * size


def test_a_range_arrives_whole_in_several_chunks_and_the_snapshot_is_released() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        source.engine.pairs[partition_prefix(TABLE_ID, 2_000_000, b"out") + KIND_ROW] = b"not in the range"
        async with running(source, target):
            progress = StreamProgress()
            report = await target.copy(source, progress)
            wanted = {k: v for k, v in source.engine.pairs.items() if v != b"not in the range"}
            assert target.engine.pairs == wanted
            assert report.fragments == progress.fragments == 180
            assert report.moved_bytes > 1_800_000
            await until(lambda: source.engine.open_snapshots == 0)
            assert source.service.open_streams() == 0

    run(test)


def test_an_empty_range_is_a_finished_stream() -> None:
    async def test() -> None:
        source, target = two_nodes()
        async with running(source, target):
            assert (await target.copy(source)).fragments == 0

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
            probes: Any = source.runtime.probes
            await until(lambda: "replica.drain" in probes.reached)
            for _ in range(20):
                await asyncio.sleep(0)
            assert not source.engine.opened_after, "no snapshot while an older write is not durable"
            source.engine.sync_gate.set()
            await copying
            assert len(target.engine.pairs) == 1

    run(test)


def test_the_source_catches_up_first() -> None:
    async def test() -> None:
        source, target = two_nodes()
        source.behind = asyncio.Event()
        async with running(source, target):
            copying = asyncio.ensure_future(target.copy(source))
            await until(lambda: bool(source.epochs_seen))
            assert not source.engine.opened_after
            source.behind.set()
            await copying

    run(test)


def test_a_session_closed_at_the_target_stops_ingestion_at_once() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            ingested: list[int] = []

            def close_after_first() -> None:
                ingested.append(1)
                target.cluster = closed(target.cluster)

            target.engine.on_ingest = close_after_first
            with pytest.raises(SessionClosed):
                await target.copy(source)
            assert len(ingested) == 1
            await until(lambda: source.engine.open_snapshots == 0)

    run(test)


def test_a_session_closed_at_the_source_ends_the_stream() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):

            def close_source() -> None:
                source.cluster = closed(source.cluster)

            target.engine.on_ingest = close_source
            with pytest.raises(SessionClosed):
                await target.copy(source)
            assert source.engine.open_snapshots == 0

    run(test)


def test_a_stream_without_a_session_never_starts() -> None:
    async def test() -> None:
        source, target = two_nodes()
        target.cluster = closed(target.cluster)
        async with running(source, target):
            with pytest.raises(SessionClosed):
                await target.copy(source)
            assert not source.engine.opened_after

    run(test)


def test_a_broken_stream_goes_on_with_the_whole_partition_it_was_in() -> None:
    """Between the break and the resumption the source merged the fragments of that partition."""

    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            broken: list[bytes] = []

            def break_once() -> None:
                if broken:
                    return
                for number in list(source.service._streams):
                    source.service._drop(number)
                broken.append(b"")
                loop = asyncio.get_running_loop()
                loop.call_soon(merge_last_partition)

            def merge_last_partition() -> None:
                prefix = split_partition(sorted(target.engine.pairs)[-1])[2]
                for store_key in [k for k in source.engine.pairs if k.startswith(prefix)]:
                    del source.engine.pairs[store_key]
                source.engine.pairs[prefix + KIND_ROW + b"!merged"] = b"all of it"

            target.engine.on_ingest = break_once
            report = await target.copy(source)
            assert source.engine.pairs.items() <= target.engine.pairs.items()
            assert len(source.engine.opened_after) == 2
            assert report.fragments < 2 * 180, "what had arrived is not copied again"

    run(test)


def test_an_unreachable_source_gives_up_after_its_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "REPLICA_RETRY_MS", 1)

    async def test() -> None:
        source, target = two_nodes()
        async with running(target):
            with pytest.raises(PeerUnreachable):
                await target.copy(source)

    run(test)


@pytest.mark.parametrize("what", ["crc", "digest", "pairs"])
def test_damaged_chunks_are_never_ingested(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "REPLICA_RETRY_MS", 1)

    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 2)
        real = source.service._next

        async def damaged(peer: Any, request: Any) -> StreamChunk:
            chunk = await real(peer, request)
            changes = {"crc": chunk.crc ^ 1, "digest": bytes(32), "pairs": chunk.pairs + b"\x00"}
            return msgspec.structs.replace(chunk, **{what: changes[what]})

        source.internode._services[verbs.STREAM_NEXT].handler = damaged
        async with running(source, target):
            with pytest.raises(FrameCorrupt):
                await target.copy(source)
            assert not target.engine.pairs

    run(test)


def test_a_chunk_whose_answer_was_lost_is_served_again() -> None:
    async def test() -> None:
        source, target = two_nodes()
        fill(source.engine, 60)
        async with running(source, target):
            target.internode.duplicate = lambda: True
            report = await target.copy(source)
            assert report.fragments == 180

    run(test)
