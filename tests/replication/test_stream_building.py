"""Files of a stream in their order, in whatever order they are built, and the stretches they come from."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.storage.rows import keys
from lockstep.storage.store import FileSummary
from lockstep.streaming.stream_building import HelpedBuilds, HelpedStretches, StreamBuild
from lockstep.values.errors import DiskRefused, Overloaded
from lockstep.values.tokens import Range
from tests.storage.support import LossyDisk

from .support import real_runtime, run

TABLE = 7


def summary_of(key: int, entries: int) -> FileSummary:
    name = b"%08d" % key
    return FileSummary(entries, 0, name, name, name, b"")


class PlannedStretch:
    """Has so many entries in each of its files."""

    def __init__(self, of: Planned, files: list[int]) -> None:
        self._of = of
        self._files = files

    @property
    def ended(self) -> bool:
        return not self._files

    async def fill(self, path: str) -> tuple[FileSummary, Callable[[], Awaitable[None]]]:
        of = self._of
        of.filling += 1
        of.begun += 1
        of.most = max(of.most, of.filling)
        key = of.key_of(self)
        await of.pause()
        of.filling -= 1
        of.disk.append(path, b"%d" % key)
        return summary_of(key, self._files.pop(0)), of.pause

    def stop(self) -> None:
        return


class Planned:
    """Stretches whose files take any number of turns."""

    def __init__(
        self, plan: list[list[int]], seed: int, at_once: int, kept_max: int, disk: LossyDisk
    ) -> None:
        self.at_once, self.kept_max, self.disk = at_once, kept_max, disk
        self.ahead_max = at_once - 1
        self._random = Random(seed)
        self.stretches = [PlannedStretch(self, list(files)) for files in plan]
        self._left = list(self.stretches)
        self._made: dict[int, int] = {}
        self.filling = self.most = self.begun = 0
        self.closed = False

    def key_of(self, stretch: PlannedStretch) -> int:
        """Where its next file is among all."""
        at = self.stretches.index(stretch)
        self._made[at] = self._made.get(at, 0) + 1
        return at * 1000 + self._made[at]

    async def pause(self) -> None:
        for _ in range(self._random.randrange(6)):
            await asyncio.sleep(0)

    def next(self) -> PlannedStretch | None:
        return self._left.pop(0) if self._left else None

    @property
    def exhausted(self) -> bool:
        return not self._left

    def close(self) -> None:
        self.closed = True


PLANS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3), min_size=1, max_size=6)


@settings(max_examples=100, deadline=None)
@given(PLANS, st.integers(0, 1 << 30), st.integers(1, 3))
def test_files_come_in_key_order_without_gaps_and_only_the_last_says_so(
    plan: list[list[int]], seed: int, at_once: int
) -> None:
    async def test() -> None:
        disk = LossyDisk()
        runtime = msgspec.structs.replace(real_runtime(), disk=disk)
        stretches = Planned(plan, seed, at_once, 3, disk)
        build = StreamBuild(runtime, "streams/out-1", stretches, asyncio.Semaphore(4))
        build.go_on()
        seen: list[FileSummary] = []
        number = 0
        while True:
            # The target has done with all but what it takes in.
            build.release(max(0, number - 1))
            build.go_on()
            waiting, coming = build.numbered, asyncio.ensure_future(build.wait(number))
            for _ in range(400):
                await asyncio.sleep(0)
            assert coming.done(), f"nothing goes on behind file {waiting}"
            assert len(disk.names("streams")) <= stretches.kept_max + stretches.ahead_max
            built = build.files[number]
            assert not built.summary.entries or disk.exists(built.path)
            seen.append(built.summary)
            if built.last:
                break
            number += 1
        assert build.ended and not build.comes(number + 1)
        wanted = [entries for files in plan for entries in files]
        assert [one.entries for one in seen if one.entries] == [one for one in wanted if one]
        assert all(one.entries for one in seen[:-1])
        found = [one.first_key for one in seen if one.entries]
        assert found == sorted(found)
        assert stretches.most <= at_once
        build.close()
        assert stretches.closed and not disk.names("streams")

    run(test)


@pytest.mark.parametrize("refused", [OSError("no space"), Overloaded("later")])
def test_a_build_that_fails_says_why_in_the_words_of_the_database(refused: Exception) -> None:
    async def test() -> None:
        disk = LossyDisk()
        runtime = msgspec.structs.replace(real_runtime(), disk=disk)
        stretches = Planned([[1, 1]], 1, 1, 3, disk)

        async def fill(path: str) -> None:
            raise refused

        stretches.stretches[0].fill = fill  # type: ignore[method-assign, assignment]
        build = StreamBuild(runtime, "streams/out-1", stretches, asyncio.Semaphore(1))
        build.go_on()
        await build.wait(0)
        wanted = DiskRefused if isinstance(refused, OSError) else Overloaded
        assert type(build.error) is wanted and str(refused) in build.error.message
        assert not build.comes(0) and not build.files
        build.close()

    run(test)


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_a_build_that_is_closed_at_any_time_leaves_nothing(turns: int) -> None:
    async def test() -> None:
        disk = LossyDisk()
        runtime = msgspec.structs.replace(real_runtime(), disk=disk)
        stretches = Planned([[1, 1]] * 4, turns, 2, 4, disk)
        build = StreamBuild(runtime, "streams/out-1", stretches, asyncio.Semaphore(1))
        build.go_on()
        for _ in range(turns):
            await asyncio.sleep(0)
        build.close()
        filling = stretches.begun
        for _ in range(40):
            await asyncio.sleep(0)
        assert stretches.begun == filling, "nothing begins any more"
        assert not disk.names("streams") and not build.files and not build.comes(build.numbered)

    run(test)


class _FixedAlready:
    """An engine whose content need not be fixed."""

    def __init__(self) -> None:
        self.fixed_for: list[Range] = []

    async def fixed(self, table_id: int, tokens: Range, path: str) -> Any:
        self.fixed_for.append(tokens)
        return self

    def remove(self, path: str) -> None:
        return


async def stretches_of(
    tokens: Range, total_bytes: int, from_key: bytes = b"", file_bytes: int = 1000
) -> HelpedStretches | None:
    runtime = msgspec.structs.replace(real_runtime(), disk=LossyDisk(), helpers=object())
    builds = HelpedBuilds(runtime, _FixedAlready(), file_bytes, lambda *_, **__: None)
    builds.bytes_min = 10_000
    return await builds.stretches(TABLE, tokens, from_key, total_bytes, "streams/fixed")


@settings(max_examples=60, deadline=None)
@given(st.integers(-(1 << 62), 1 << 62), st.integers(1, 1 << 62), st.integers(10_000, 1 << 40), st.integers())
def test_stretches_cover_the_range_without_gaps(left: int, width: int, total: int, seed: int) -> None:
    async def test() -> None:
        tokens = Range(left, left + width)
        found = await stretches_of(tokens, total)
        assert found is not None
        at, random = left, Random(seed)
        for _ in range(100):
            assert not found.exhausted
            stretch = found.next()
            assert stretch is not None
            assert stretch._tokens.left == at < stretch._tokens.right <= tokens.right
            assert (stretch._lower, stretch._upper) == keys.token_bounds(TABLE, stretch._tokens)
            at = stretch._tokens.right
            if at == tokens.right:
                assert found.exhausted and found.next() is None
                return
            found._built(stretch._tokens.right - stretch._tokens.left, random.randrange(5000))

    run(test)


def test_stretches_become_as_wide_as_what_was_built_lets_expect() -> None:
    async def test() -> None:
        found = await stretches_of(Range(0, 1_000_000), 1_000_000)
        assert found is not None
        first = found.next()
        assert first is not None and first._tokens == Range(0, 750)
        found._built(750, 1500)
        second = found.next()
        assert second is not None and second._tokens == Range(750, 750 + 375)
        found._built(375, 0)
        found._built(100_000, 0)
        third = found.next()
        assert third is not None and third._tokens.right - third._tokens.left == 8 * 375, (
            "not much wider at once"
        )

    run(test)


def test_stretches_become_small_towards_the_end() -> None:
    async def test() -> None:
        found = await stretches_of(Range(0, 20_000), 20_000)
        widths = []
        while found is not None and (stretch := found.next()) is not None:
            widths.append(stretch._tokens.right - stretch._tokens.left)
        assert set(widths[:-3]) == {750} and widths[-3:] == [625, 312, 313]

    run(test)


def test_a_stream_that_goes_on_is_judged_by_what_is_left() -> None:
    async def test() -> None:
        tokens = Range(0, 1000)
        whole = keys.partition_end(keys.partition_prefix(TABLE, 400, b"k"))
        found = await stretches_of(tokens, 100_000, whole)
        stretch = found.next() if found else None
        assert stretch is not None and stretch._tokens.left == 399 and stretch._lower == whole
        within = keys.partition_prefix(TABLE, 951, b"k")
        assert await stretches_of(tokens, 100_000, within) is None, "less than helpers are started for"
        assert await stretches_of(tokens, 9_999) is None

    run(test)


class _Refused(_FixedAlready):
    """Content that cannot be removed, and a helper that takes some turns to end."""

    def __init__(self) -> None:
        super().__init__()
        self.helpers = 0
        self.open_at_close: list[int] = []

    def order(self, lower: bytes, upper: bytes, bytes_max: int, path: str) -> bytes:
        return b""

    async def do(self, order: bytes, timeout_ms: int) -> bytes:
        self.helpers += 1
        try:
            await asyncio.sleep(60)
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            self.helpers -= 1
        return b""

    async def close(self) -> None:
        self.open_at_close.append(self.helpers)
        raise DiskRefused("it is in use")


def test_what_was_fixed_is_removed_when_no_helper_has_it_open_and_a_refusal_is_told() -> None:
    async def test() -> None:
        content, said, disk = _Refused(), list[str](), LossyDisk()
        runtime = msgspec.structs.replace(real_runtime(), disk=disk, helpers=content)
        builds = HelpedBuilds(runtime, content, 1000, lambda event, **facts: said.append(f"{event} {facts}"))
        builds.bytes_min = 10_000
        stretches = await builds.stretches(TABLE, Range(0, 10**6), b"", 10**6, "streams/fixed")
        assert stretches is not None
        build = StreamBuild(runtime, "streams/out-1", stretches, asyncio.Semaphore(4))
        build.go_on()
        for _ in range(5):
            await asyncio.sleep(0)
        assert content.helpers == stretches.at_once
        build.close()
        for _ in range(40):
            await asyncio.sleep(0)
        assert content.open_at_close == [0]
        assert said == ["stream.fixed_not_removed {'reason': 'it is in use'}"]

    run(test)
