"""Large streams between two real nodes: stores on disk, sockets, and files built by helper processes."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.internode.throttle import Throttle
from lockstep.metadata.operations import OPERATIONS
from lockstep.replica.replica import ReplicaService
from lockstep.replica.session_guards import SessionGuards
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real import HelperProcesses, real_runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.rocks.rocks_building import (
    BUILD_HANDLER,
    BUILD_PACKAGES,
    BuildAnswer,
    BuildOrder,
    build,
)
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair
from lockstep.streaming import stream_building, stream_target
from lockstep.streaming.stream_source import StreamLimits, StreamService
from lockstep.streaming.stream_target import StreamClient, StreamReport
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import Overloaded, SessionClosed
from lockstep.values.tokens import Range

from .clusters import TABLE_ID, whole_ring
from .support import RecordingProbes, TestNode, running
from .support import run as run_on_loop

PARTITIONS = 4000
RANGE = Range(0, 1_000_000)
STEP = RANGE.right // PARTITIONS
FILE_BYTES = 60_000


class RealNode(TestNode):
    """A node with everything real that a stream touches."""

    __test__ = False

    def __init__(self, index: int, root: Path) -> None:
        super().__init__(index)
        self.root = root / str(index)
        self.helpers = HelperProcesses(BUILD_HANDLER, *BUILD_PACKAGES)
        self.probes = RecordingProbes()
        made: Runtime = real_runtime(str(self.root), self._failed, helpers=self.helpers)
        self.runtime = msgspec.structs.replace(made, probes=self.probes)
        self.failures: list[tuple[str, BaseException]] = []
        self.internode = self.build()
        self.cluster = whole_ring(6, [1], [1, 2], group_epoch=6, factors={"": 1}, sessions=["s1"])
        self.on_ingest: Callable[[], None] = lambda: None
        self.runs = 0

    def _failed(self, name: str, error: BaseException) -> None:
        self.failures.append((name, error))

    async def start(self) -> None:
        self.engine = StorageEngine(
            await open_rocks_store(str(self.root / "store"), self.runtime.tasks), self.runtime
        )
        own_id = self.greeting.node_id
        replica = ReplicaService(
            self.runtime, self.internode, self.engine, lambda: self.cluster, _catch_up, lambda: own_id
        )
        self.service = StreamService(
            self.runtime,
            self.internode,
            self.engine,
            replica,
            lambda: self.cluster,
            _catch_up,
            StreamLimits(Throttle(self.runtime.clock, 0), FILE_BYTES),
        )
        self.service.helped.bytes_min = 4 * FILE_BYTES
        guards = SessionGuards(lambda: self.cluster)
        self.client = StreamClient(self.runtime, self.internode, self.engine, guards)
        ingest = self.engine.ingest

        def counted(run: Any) -> int:
            sequence = ingest(run)
            self.runs += 1
            self.on_ingest()
            return sequence

        self.engine.ingest = counted  # type: ignore[method-assign]
        await super().start()

    async def stop(self) -> None:
        self.service.stop()
        await self.helpers.stop()
        await super().stop()
        await self.engine.close()
        assert not self.failures

    async def fill(self) -> None:
        run = self.engine.begin_run(TABLE_ID, RANGE, "fill.run")
        run.add([pair_of(number) for number in range(PARTITIONS)])
        await run.finish()
        await self.engine.synced(self.engine.ingest(run))
        self.runs = 0

    def pairs(self) -> list[Pair]:
        return self.engine.records(*keys.token_bounds(TABLE_ID, RANGE), 10 * PARTITIONS)

    def files(self) -> list[str]:
        """What streams out of here have on disk."""
        return [one for one in self.runtime.disk.names("streams") if one.startswith("out-")]

    def close_session(self) -> None:
        self.cluster = msgspec.structs.replace(
            self.cluster.changed(OPERATIONS.set(msgspec.structs.replace(self.cluster.running, sessions=()))),
            epoch=self.cluster.epoch + 1,
        )
        self.service.forget_closed()

    async def copy(self, source: RealNode) -> StreamReport:
        return await self.client.stream_range(
            source=source.address, session_id="s1", table_id=TABLE_ID, range=RANGE, epoch=6
        )


async def _catch_up(epoch: int, source: Any) -> None:
    return


def pair_of(number: int) -> Pair:
    prefix = keys.partition_prefix(TABLE_ID, 1 + number * STEP, b"k%d" % number)
    return keys.row_prefix(prefix, b"") + keys.write_suffix(1, b"%014d" % number), Random(number).randbytes(
        200
    )


def damage(path: Path) -> None:
    """A bit of another file than that which may be linked here."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.unlink()
    path.write_bytes(content)


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2000):
        if holds():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it never came")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_target, "REPLICA_RETRY_MS", 1)


def between(root: Path, test: Callable[[RealNode, RealNode], Coroutine[Any, Any, None]]) -> None:
    async def both() -> None:
        source, target = RealNode(1, root), RealNode(2, root)
        async with running(source, target):
            await source.fill()
            await test(source, target)
            # Whatever happened, nothing stays.
            source.service.stop()
            await until(lambda: not source.files())

    run_on_loop(both)


def test_a_large_stream_is_built_by_helpers_and_brings_everything_once(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        report = await target.copy(source)
        assert target.pairs() == source.pairs() and len(target.pairs()) == PARTITIONS
        assert report.fragments == PARTITIONS and report.files == target.runs > 5
        assert source.probes.reached.count("stream.source.helped") >= report.files
        assert "stream.source.block" not in source.probes.reached, "nothing is filled on the loop"
        await until(lambda: not source.files())

    between(tmp_path, test)


def test_a_small_stream_needs_no_helper(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        source.service.helped.bytes_min = 10_000_000
        await target.copy(source)
        assert target.pairs() == source.pairs()
        assert not source.helpers._all and "stream.source.block" in source.probes.reached

    between(tmp_path, test)


def test_what_is_written_later_is_not_in_what_was_fixed(tmp_path: Path) -> None:
    """As with a snapshot; what is fixed has everything of before, whether flushed or not."""

    async def test(source: RealNode, target: RealNode) -> None:
        before = source.pairs()
        late = keys.partition_prefix(TABLE_ID, RANGE.right, b"late") + keys.KIND_ROW

        def write() -> None:
            if target.runs == 1:
                source.engine._store.write([("put", late, b"x"), ("delete", before[-1][0])])

        target.on_ingest = write
        source.engine._store.write([("delete", before[0][0])])
        await target.copy(source)
        assert target.pairs() == before[1:]

    between(tmp_path, test)


def test_a_helper_that_dies_fails_the_stream_which_goes_on_behind_what_is_visible(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        killed: list[int] = []

        def kill() -> None:
            if target.runs in (2, 4):
                for one in source.helpers._all:
                    with suppress(ProcessLookupError):  # It is dead and not yet missed.
                        os.kill(one.process.pid, signal.SIGKILL)
                        killed.append(one.process.pid)

        target.on_ingest = kill
        report = await target.copy(source)
        assert killed and target.pairs() == source.pairs()
        assert report.fragments == PARTITIONS, "nothing that is visible is sent again"

    between(tmp_path, test)


def test_where_helpers_die_again_and_again_files_are_built_without_them(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        do = source.helpers.do

        async def killed(order: bytes, timeout_ms: int) -> bytes:
            doing = asyncio.ensure_future(do(order, timeout_ms))
            await until(lambda: bool(source.helpers._all))
            for one in source.helpers._all:
                one.kill()
            return await doing

        source.helpers.do = killed  # type: ignore[method-assign]
        report = await target.copy(source)
        assert target.pairs() == source.pairs() and report.fragments == PARTITIONS
        assert "stream.source.block" in source.probes.reached

    between(tmp_path, test)


def test_where_nothing_can_be_fixed_files_are_built_without_helpers(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        (source.root / "streams" / "out-fixed-1.tmp" / "in the way").mkdir(parents=True)
        (source.root / "streams" / "out-fixed-1.tmp" / "in the way" / "file").touch()
        await target.copy(source)
        assert target.pairs() == source.pairs() and "stream.source.block" in source.probes.reached
        assert not source.helpers._all
        (source.root / "streams" / "out-fixed-1.tmp" / "in the way" / "file").unlink()
        (source.root / "streams" / "out-fixed-1.tmp" / "in the way").rmdir()
        (source.root / "streams" / "out-fixed-1.tmp").rmdir()

    between(tmp_path, test)


@pytest.mark.parametrize("runs", [1, 3])
def test_a_session_that_closes_ends_helpers_and_leaves_nothing(tmp_path: Path, runs: int) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        def close() -> None:
            if target.runs == runs:
                source.close_session()

        target.on_ingest = close
        with pytest.raises(SessionClosed):
            await target.copy(source)
        await until(lambda: not source.files())
        assert not source.service.open_streams()
        await until(lambda: len(source.helpers._idle) == len(source.helpers._all))

    between(tmp_path, test)


def test_a_broken_stream_goes_on_and_sends_nothing_twice(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        def drop() -> None:
            if target.runs in (3, 6):
                source.service.stop()

        target.on_ingest = drop
        report = await target.copy(source)
        assert target.pairs() == source.pairs() and report.fragments == PARTITIONS
        assert source.service.counts.streams == 3

    between(tmp_path, test)


def test_a_file_that_is_torn_at_the_source_is_built_anew(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        torn: list[str] = []
        service = source.internode._services[verbs.STREAM_FILE]
        told = service.handler

        async def tear(peer: Any, request: Any) -> Any:
            header = await told(peer, request)
            if request.number == 2 and header.ready and not torn:
                (stream,) = source.service._streams.values()
                torn.append(stream.build.files[2].path)
                damage(source.root / torn[0])
            return header

        service.handler = tear
        report = await target.copy(source)
        assert torn and target.client.counts.damaged
        assert target.pairs() == source.pairs() and report.fragments == PARTITIONS

    between(tmp_path, test)


def test_a_helper_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_building, "STREAM_HELPER_TIMEOUT_MS", 1)
    monkeypatch.setattr(stream_building, "STREAM_HELPER_FAILURES_MAX", 1000)
    monkeypatch.setattr(stream_target, "STREAM_ATTEMPTS_MAX", 3)

    async def test(source: RealNode, target: RealNode) -> None:
        with pytest.raises(Overloaded, match=r"the helper process did not build .* longer than 1 ms"):
            await target.copy(source)
        await until(lambda: not source.helpers._all)

    between(tmp_path, test)


def test_a_start_removes_what_was_fixed_before(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        assert await source.engine.fixing.fixed(TABLE_ID, RANGE, "fixed-1")
        await source.engine.fixing.fixed(TABLE_ID, RANGE, "fixed-2")
        (source.root / "streams").mkdir(exist_ok=True)
        (source.root / "fixed-1").rename(source.root / "streams" / "out-fixed-1")
        (source.root / "fixed-2").rename(source.root / "streams" / "out-fixed-2.tmp")
        (source.root / "streams" / "out-5-1").write_bytes(b"half a file")
        source.service.clean()
        assert not source.files()
        assert len(source.pairs()) == PARTITIONS

    between(tmp_path, test)


def test_a_refusal_names_what_the_disk_said(tmp_path: Path) -> None:
    async def test(source: RealNode, target: RealNode) -> None:
        content = await source.engine.fixing.fixed(TABLE_ID, RANGE, "fixed")
        assert content is not None
        lower, upper = keys.token_bounds(TABLE_ID, RANGE)
        order = decoder(BuildOrder).decode(content.order(lower, upper, FILE_BYTES, "file"))
        # The library removes a file that it could not write: only the link.
        (source.root / "full").symlink_to("/dev/full")
        on_full = msgspec.structs.replace(order, path=str(source.root / "full"))
        full = decoder(BuildAnswer).decode(build(encode(on_full)))
        assert str(source.root / "full") in full.refusal and "No space left" in full.refusal
        for sst in (source.root / "fixed").glob("*.sst"):
            damage(sst)
        torn = decoder(BuildAnswer).decode(
            build(encode(msgspec.structs.replace(order, bytes_max=10_000_000)))
        )
        assert torn.summary is None and "fixed" in torn.refusal
        await content.close()
        assert not (source.root / "fixed").exists()

    between(tmp_path, test)


def test_a_stretch_of_which_no_file_is_filled_has_nothing_to_stop() -> None:
    work: Any = SimpleNamespace(table_id=TABLE_ID, from_key=b"", filling={})
    runtime: Any = SimpleNamespace()
    stretch = stream_building.HelpedStretch(runtime, work, Range(0, 10), lambda _tokens, _size: None)
    stretch.stop()
    assert not stretch.ended and work.filling == {}


def test_a_file_that_is_not_ready_is_asked_for_again_while_the_session_is_open() -> None:
    of = {"number": 3, "table_id": TABLE_ID, "left": 0, "right": 10}
    whole = SimpleNamespace(
        ready=True, version=stream_target.FORMAT_VERSION, summary=SimpleNamespace(entries=0), **of
    )
    answers, asked, required = [SimpleNamespace(ready=False), whole], list[Any](), list[str]()

    async def ask(_key: Any, verb: int, request: Any) -> Any:
        asked.append((verb, request.number))
        return answers[len(asked) - 1]

    async def test() -> None:
        client: Any = SimpleNamespace(_ask=ask, _guards=SimpleNamespace(require=required.append))
        key = SimpleNamespace(session_id="s", table_id=TABLE_ID, left=0, right=10)
        copy: Any = SimpleNamespace(key=key, position=SimpleNamespace(stream_id=7, number=2, next_key=b""))
        assert await StreamClient._header(client, copy, 3) is whole

    asyncio.run(test())
    assert asked == [(verbs.STREAM_FILE, 3)] * 2 and required == ["s", "s"]
