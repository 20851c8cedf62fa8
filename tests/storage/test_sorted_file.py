"""Sorted files: the same bytes from both stores, whole or refused, and cut at partitions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.storage import keys
from lockstep.storage.engine import StorageEngine
from lockstep.storage.sorted_file import BlockReader, FileSummary, RangeFiles
from lockstep.storage.store import Pair
from lockstep.values.errors import CorruptFile
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, Range
from tests.storage.support import take_in
from tests.storage.test_engine import TABLE, engine_with, random_mutation


class Given:
    """A cursor over pairs in memory."""

    def __init__(self, pairs: list[Pair]) -> None:
        self._pairs = pairs

    def take(self, count: int) -> list[Pair]:
        taken, self._pairs = self._pairs[:count], self._pairs[count:]
        return taken


def files_of(files: RangeFiles) -> list[tuple[bytes, FileSummary]]:
    found = []
    while True:
        files.begin()
        content = b""
        while block := files.next_block():
            content += block
        found.append((content, files.summary()))
        if files.ended:
            return found


def pairs_in(content: bytes, summary: FileSummary, step: int = 1 << 20) -> list[Pair]:
    reader = BlockReader("file")
    found: list[Pair] = []
    for at in range(0, len(content), step):
        for block in reader.feed(content[at : at + step]):
            found.extend(zip(*reader.columns_of(block), strict=True))
    reader.check(summary)
    return found


def fragments(sizes: list[tuple[int, int]]) -> list[Pair]:
    """For each (rows, bytes of a value) one partition."""
    found = []
    for token, (count, size) in enumerate(sizes):
        prefix = keys.partition_prefix(TABLE, token, b"k\x00%d" % token)
        found += [(prefix + keys.KIND_ROW + b"%05d" % row, bytes(size)) for row in range(count)]
    return found


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([0, 10, 500, 3000])), max_size=20),
    st.sampled_from([256, 1000, 20_000]),
    st.sampled_from([7, 100, 1 << 20]),
)
@settings(max_examples=60, deadline=None)
def test_files_hold_everything_in_order_and_end_with_whole_partitions_where_they_can(
    sizes: list[tuple[int, int]], bytes_max: int, step: int
) -> None:
    pairs = fragments(sizes)
    found = files_of(RangeFiles(Given(pairs).take, bytes_max))
    assert [pair for content, summary in found for pair in pairs_in(content, summary, step)] == pairs
    for number, (content, summary) in enumerate(found):
        inside = pairs_in(content, summary)
        assert summary.entries == len(inside) and summary.size_bytes == len(content)
        if not inside:
            assert number == len(found) - 1 and (not pairs or number)
            continue
        assert (summary.first_key, summary.last_key) == (inside[0][0], inside[-1][0])
        prefix = keys.split_partition(summary.last_key)[2]
        rest = [key for key, _ in pairs if key > summary.last_key and key.startswith(prefix)]
        # What is still lacking begins behind the partition, or at its start when the file ends inside it.
        assert summary.next_key == (prefix if rest else keys.partition_end(prefix))
        assert not rest or len(content) > bytes_max
        assert [key for key, _ in pairs if key >= summary.next_key and key <= summary.last_key] == (
            [key for key, _ in pairs if key.startswith(prefix) and key <= summary.last_key] if rest else []
        )


@pytest.mark.parametrize("damage", ["bit", "cut", "longer", "swapped", "left out", "entries", "digest"])
def test_a_file_that_differs_from_its_header_is_refused(damage: str) -> None:
    ((content, summary),) = files_of(RangeFiles(Given(fragments([(50, 100)] * 40)).take, 1 << 20))
    blocks = []
    rest = content
    while rest:
        size = 8 + int.from_bytes(rest[:4], "big")
        blocks.append(rest[:size])
        rest = rest[size:]
    assert len(blocks) > 3
    match damage:
        case "bit":
            content = content[:-5] + bytes([content[-5] ^ 4]) + content[-4:]
        case "cut":
            content = content[:-3]
        case "longer":
            content += b"\x00\x00"
        case "swapped":
            content = b"".join([blocks[1], blocks[0], *blocks[2:]])
        case "left out":
            content = b"".join(blocks[1:])
        case "entries":
            summary = msgspec.structs.replace(summary, entries=summary.entries + 1)
        case _:
            summary = msgspec.structs.replace(summary, digest=bytes(16))
    with pytest.raises(CorruptFile):
        pairs_in(content, summary, 1000)


def test_both_stores_make_the_same_files_of_the_same_writes_and_take_them_in_alike(tmp_path: Path) -> None:
    """Tombstones, range deletions under partition headers and expiring cells among them."""

    async def files(engine: StorageEngine, part: Range) -> list[tuple[bytes, FileSummary]]:
        stream = await engine.fragments(TABLE, part)
        found = files_of(RangeFiles(stream.take, 700))
        stream.close()
        return found

    async def body() -> None:
        dice = Random(11)
        writes = [random_mutation(dice, number) for number in range(150)]
        for part in (FULL_RING, Range(-5, TOKEN_MAX)):
            name = f"{part.left}"
            sources = {}
            for kind in ("model", "rocks"):
                (tmp_path / f"{kind}{name}").mkdir()
                sources[kind] = await engine_with(kind, tmp_path / f"{kind}{name}", writes)
            made = {kind: await files(engine, part) for kind, engine in sources.items()}
            assert made["model"] == made["rocks"] and len(made["model"]) > 2
            for kind in ("model", "rocks"):
                (tmp_path / f"{kind}{name}-target").mkdir()
                target = await engine_with(kind, tmp_path / f"{kind}{name}-target", [])
                for content, summary in made["rocks"]:
                    await take_in(target, TABLE, part, pairs_in(content, summary))
                assert await target.digest(TABLE, part) == await sources["model"].digest(TABLE, part)
                assert await files(target, part) == made["model"]
                await target.close()
            for engine in sources.values():
                await engine.close()

    asyncio.run(body())
