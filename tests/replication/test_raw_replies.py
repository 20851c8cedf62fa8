"""Replies that raw bytes follow: whole, beside other messages, and when something breaks."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.internode import verbs
from lockstep.internode.connection import FileReply
from lockstep.internode.frames import FrameReader, encode_frame, encode_raw_frame, raw_body
from lockstep.replica.messages import StreamAskPart, StreamPart
from lockstep.runtime.real import real_runtime
from lockstep.values.errors import DiskRefused, FrameCorrupt, PeerError, PeerTimeout

from .support import TestNode, run, running, until

CONTENT = os.urandom(1_000_000)


class FileNode(TestNode):
    __test__ = False

    def __init__(self, index: int, root: Path) -> None:
        super().__init__(index)
        self.disk = real_runtime(str(root / str(index))).disk
        self.disk.append("content", CONTENT)
        self.internode.register(verbs.STREAM_PART, StreamAskPart, StreamPart, self.part)
        self.pinged = 0

    async def part(self, peer: Any, ask: StreamAskPart) -> Any:
        if not ask.size:
            return StreamPart(0)
        return FileReply(StreamPart(ask.size), self.disk.reader("content"), ask.offset, ask.size)

    def ask(self, source: TestNode, offset: int, size: int, take: Any) -> asyncio.Future[StreamPart]:
        ask = StreamAskPart("s", 1, 1, offset, size)
        return self.internode.lanes.begin(source.address, verbs.STREAM_PART, ask, 5000, take)


def test_a_reader_of_frames_stops_where_raw_bytes_begin() -> None:
    frame = encode_raw_frame(33, 7, 1, b"reply", 5)
    behind = encode_frame(33, 8, 1, 1, b"next")
    reader = FrameReader()
    assert reader.feed(frame[:10]) == []
    (envelope,) = reader.feed(frame[10:] + b"bytes" + behind)
    assert raw_body(envelope.body) == (5, b"reply") and reader.rest == b"bytes" + behind
    (envelope,) = reader.feed(behind)
    assert envelope.body == b"next"
    for body in (b"short", bytes(8), b"\xff" * 8):
        with pytest.raises(FrameCorrupt):
            raw_body(body)


def test_several_parts_arrive_one_after_the_other_beside_other_requests(tmp_path: Path) -> None:
    async def test() -> None:
        source, target = FileNode(1, tmp_path), FileNode(2, tmp_path)
        async with running(source, target):
            got = bytearray()
            parts = [(0, 3), (3, 400_000), (400_003, 0), (400_003, 99_997), (500_000, 500_000)]
            coming = [target.ask(source, offset, size, got.extend) for offset, size in parts]
            plain = target.internode.begin(
                source.address, verbs.STREAM_PART, StreamAskPart("s", 1, 1, 0, 0), 5000
            )
            assert await plain == StreamPart(0)
            assert [(await one).size for one in coming] == [size for _, size in parts]
            assert got == CONTENT
            connections = len(source.internode.own.incoming)
            target.internode.lanes.close(source.address)
            await until(lambda: len(source.internode.own.incoming) < connections)
            assert connections == 2

    run(test)


def test_bytes_that_nobody_waits_for_are_passed_over(tmp_path: Path) -> None:
    async def test() -> None:
        source, target = FileNode(1, tmp_path), FileNode(2, tmp_path)
        target.internode.faults.duplicates = lambda: True
        async with running(source, target):
            got = bytearray()
            await target.ask(source, 0, 10, got.extend)
            for offset in range(10, 200_010, 100_000):
                await target.ask(source, offset, 100_000, got.extend)
            assert got == CONTENT[:200_010]

    run(test)


def test_who_cannot_take_the_bytes_is_told_why_and_the_connection_ends(tmp_path: Path) -> None:
    async def test() -> None:
        source, target = FileNode(1, tmp_path), FileNode(2, tmp_path)
        got = bytearray()

        def refuse(data: memoryview) -> None:
            raise DiskRefused("full")

        async with running(source, target):
            failing = target.ask(source, 0, 400_000, refuse)
            behind = target.ask(source, 0, 1000, got.extend)
            with pytest.raises(DiskRefused):
                await failing
            with pytest.raises(PeerTimeout):
                await behind
            await until(lambda: not target.internode.lanes.peers[source.address].info)
            target.internode.lanes.peers[source.address].wake()
            await target.ask(source, 0, 1000, got.extend)
            assert got == CONTENT[:1000]

    run(test)


def test_a_source_that_has_less_than_it_said_breaks_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        source, target = FileNode(1, tmp_path), FileNode(2, tmp_path)
        async with running(source, target):
            with pytest.raises(PeerError):
                await target.ask(source, 900_000, 200_000, len)

    run(test)


def test_bytes_that_no_such_request_waits_for_close_the_connection(tmp_path: Path) -> None:
    async def test() -> None:
        source, target = FileNode(1, tmp_path), FileNode(2, tmp_path)
        async with running(source, target):
            ask = StreamAskPart("s", 1, 1, 0, 100_000)
            with pytest.raises(PeerTimeout, match="garbled"):
                await target.internode.request(source.address, verbs.STREAM_PART, ask, 5000)
            assert msgspec.structs.replace(ask, size=0)

    run(test)


def test_a_stopped_node_ends_what_is_on_its_way(tmp_path: Path) -> None:
    async def test() -> None:
        source, target = FileNode(1, tmp_path), FileNode(2, tmp_path)
        async with running(source, target):
            coming = [target.ask(source, 0, 1_000_000, len) for _ in range(30)]
            await coming[0]
            await target.stop()
            ends = await asyncio.gather(*coming, return_exceptions=True)
            assert any(isinstance(end, PeerError) for end in ends)
            assert all(isinstance(end, PeerError | StreamPart) for end in ends)

    run(test)
