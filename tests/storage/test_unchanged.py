"""Marks of what is unchanged since a repair, against a set of tokens; they survive as what they mark."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from random import Random

import pytest

from lockstep.storage.engine import StorageEngine
from lockstep.storage.rows import keys
from lockstep.storage.store import Family
from lockstep.storage.unchanged import BUCKETS, Unchanged, bucket_of
from lockstep.values.limits import REPAIR_CHANGED_RANGES_MAX
from lockstep.values.tokens import FULL_RING, TOKEN_MAX, TOKEN_MIN, Range

from .support import content_of, open_store, runtime_of
from .test_engine import TABLE, put

WHOLE = [FULL_RING]


async def opened(path: Path, kind: str = "model") -> StorageEngine:
    runtime = runtime_of()
    return StorageEngine(await open_store(kind, path, runtime), runtime, background_merge=False)


def repaired(engine: StorageEngine, ranges: list[Range], session: str = "s") -> None:
    engine.unchanged.watch(session, TABLE, ranges)
    engine._store.write(engine.unchanged.equal(session, TABLE, ranges))


def changed_tokens(engine: StorageEngine, tokens: list[int]) -> set[int]:
    parts = engine.unchanged.parts(TABLE, WHOLE)
    return {token for token in tokens if any(part.contains(token) for part in parts)}


def test_buckets_cover_the_ring_in_order() -> None:
    assert bucket_of(TOKEN_MIN + 1) == 0 and bucket_of(TOKEN_MAX) == BUCKETS - 1
    dice = Random(1)
    tokens = sorted(dice.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(500))
    assert [bucket_of(token) for token in tokens] == sorted(bucket_of(token) for token in tokens)


@pytest.mark.parametrize("seed", range(5))
def test_what_was_written_since_is_changed_and_little_else(seed: int, tmp_path: Path) -> None:
    async def check() -> None:
        dice = Random(seed)
        engine = await opened(tmp_path)
        assert engine.unchanged.parts(TABLE, WHOLE) == (FULL_RING,)
        repaired(engine, WHOLE)
        assert engine.unchanged.parts(TABLE, WHOLE) == ()
        tokens = [dice.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(200)]
        written = tokens[:100]
        for number, token in enumerate(written):
            engine.apply(put((token, b"k"), b"c", b"v", number + 1, number))
        buckets = {bucket_of(token) for token in written}
        assert changed_tokens(engine, tokens) == {t for t in tokens if bucket_of(t) in buckets}
        again = Unchanged(engine._store)
        assert again.parts(TABLE, WHOLE) == engine.unchanged.parts(TABLE, WHOLE), "as a start would find it"
        half = [Range(TOKEN_MIN, 0)]
        repaired(engine, half, "another")
        assert changed_tokens(engine, tokens) == {t for t in tokens if bucket_of(t) in buckets and t > 0}
        bounds = keys.token_bounds(TABLE, Range(TOKEN_MIN, TOKEN_MAX // 2))
        engine._store.write(engine.unchanged.changed_between(*bounds))
        assert changed_tokens(engine, tokens) >= {token for token in tokens if token <= TOKEN_MAX // 2}
        await engine.close()

    asyncio.run(check())


class Walked:
    """The obvious twin: sets of buckets, walked one by one."""

    def __init__(self) -> None:
        self.unchanged: set[int] = set()
        self.touched: set[int] = set(range(BUCKETS))

    def watch(self, ranges: list[Range]) -> None:
        self.touched = set()
        for range_ in ranges:
            assert bucket_of(range_.left + 1) <= bucket_of(range_.right)

    def equal(self, ranges: list[Range]) -> None:
        for range_ in ranges:
            for bucket in range(bucket_of(range_.left + 1), bucket_of(range_.right) + 1):
                low, high = (bucket << 48) + TOKEN_MIN, ((bucket + 1) << 48) + TOKEN_MIN - 1
                # No key has the lowest token, so the first bucket has one token less.
                whole = range_.contains(max(low, TOKEN_MIN + 1)) and range_.contains(high)
                if whole and bucket not in self.touched:
                    self.unchanged.add(bucket)

    def parts(self, range_: Range) -> list[Range]:
        found: list[Range] = []
        for bucket in range(bucket_of(range_.left + 1), bucket_of(range_.right) + 1):
            if bucket not in self.unchanged:
                left = max((bucket << 48) + TOKEN_MIN - 1, range_.left)
                right = min(((bucket + 1) << 48) + TOKEN_MIN - 1, range_.right)
                if found and found[-1].right == left:
                    found[-1] = Range(found[-1].left, right)
                else:
                    found.append(Range(left, right))
        return found


def some_ranges(dice: Random) -> list[Range]:
    """Disjoint; some begin and end with a bucket, some are within one."""
    near = [((dice.randrange(BUCKETS) << 48) + TOKEN_MIN - 1) for _ in range(4)]
    cuts = {dice.randrange(TOKEN_MIN, TOKEN_MAX) for _ in range(4)} | {max(one, TOKEN_MIN) for one in near}
    cuts |= {one + 1 for one in near if one > TOKEN_MIN}
    bounds = [TOKEN_MIN, *sorted(cuts - {TOKEN_MIN}), TOKEN_MAX]
    pieces = [Range(left, right) for left, right in itertools.pairwise(bounds)]
    return dice.sample(pieces, dice.randrange(1, len(pieces)))


@pytest.mark.parametrize("seed", range(6))
def test_whole_ranges_are_as_bucket_by_bucket(seed: int, tmp_path: Path) -> None:
    async def check() -> None:
        dice, twin = Random(seed), Walked()
        engine = await opened(tmp_path)
        unchanged = engine.unchanged
        for repair in range(4):
            session, ranges = f"s{repair}", some_ranges(dice)
            unchanged.watch(session, TABLE, ranges)
            twin.watch(ranges)
            for token in (dice.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(20)):
                engine._store.write(unchanged.changed(TABLE, token))
                twin.touched.add(bucket_of(token))
                twin.unchanged.discard(bucket_of(token))
            if repair == 2:
                gone = Range(dice.randrange(TOKEN_MIN, 0), dice.randrange(0, TOKEN_MAX))
                engine._store.write(unchanged.changed_between(*keys.token_bounds(TABLE, gone)))
                between = range(bucket_of(gone.left + 1), bucket_of(gone.right + 1) + 1)
                twin.touched |= set(between)
                twin.unchanged -= set(between)
            engine._store.write(unchanged.equal(session, TABLE, ranges))
            twin.equal(ranges)
            again = Unchanged(engine._store)
            for range_ in (FULL_RING, *some_ranges(dice)):
                wanted = tuple(twin.parts(range_))
                assert unchanged.parts(TABLE, [range_]) == wanted
                assert again.parts(TABLE, [range_]) == wanted, "as a start would find it"
            unchanged.forget(lambda _: False)
        await engine.close()

    asyncio.run(check())


def test_what_is_written_while_a_repair_looks_stays_changed(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened(tmp_path)
        engine.unchanged.watch("s", TABLE, WHOLE)
        engine.apply(put((5, b"k"), b"c", b"v", 1, 1))
        engine.apply(put((-5 << 50, b"k"), b"c", b"v", 1, 2), by_repair=True)
        engine._store.write(engine.unchanged.equal("s", TABLE, WHOLE))
        [part] = engine.unchanged.parts(TABLE, WHOLE)
        assert part.contains(5) and not part.contains(-5 << 50)
        engine.unchanged.forget(lambda session: False)
        assert engine.unchanged.equal("s", TABLE, WHOLE) == ()
        await engine.close()

    asyncio.run(check())


def test_a_question_that_comes_twice_forgets_nothing(tmp_path: Path) -> None:
    """A request may be delivered a second time, after the first was answered and trees were built."""

    async def check() -> None:
        engine = await opened(tmp_path)
        engine.unchanged.watch("s", TABLE, WHOLE)
        engine.apply(put((5, b"k"), b"c", b"v", 1, 1))
        engine.unchanged.watch("s", TABLE, WHOLE)
        engine._store.write(engine.unchanged.equal("s", TABLE, WHOLE))
        [part] = engine.unchanged.parts(TABLE, WHOLE)
        assert part.contains(5)
        await engine.close()

    asyncio.run(check())


def test_a_mark_goes_with_the_write_that_ends_it(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened(tmp_path)
        repaired(engine, WHOLE)
        before = content_of(engine._store)
        engine.apply(put((5, b"k"), b"c", b"v", 1, 1))
        marks = {k: v for k, v in content_of(engine._store).items() if k[:1] == Family.REPAIR.value}
        assert marks != {k: v for k, v in before.items() if k[:1] == Family.REPAIR.value}
        await engine.truncate(TABLE)
        assert engine.unchanged.parts(TABLE, WHOLE) == (FULL_RING,)
        await engine.close()

    asyncio.run(check())


def test_a_wipe_of_what_is_empty_takes_its_marks_back(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened(tmp_path)
        repaired(engine, WHOLE)
        await engine.wipe([TABLE], FULL_RING)
        assert engine.unchanged.parts(TABLE, WHOLE) == (FULL_RING,)
        assert Unchanged(engine._store).parts(TABLE, WHOLE) == (FULL_RING,)
        await engine.close()

    asyncio.run(check())


def test_ranges_that_end_inside_a_bucket_leave_it_changed_and_many_pieces_are_joined(tmp_path: Path) -> None:
    async def check() -> None:
        engine = await opened(tmp_path)
        repaired(engine, [Range(100, 1 << 60)])
        assert changed_tokens(engine, [101, 1 << 50, 1 << 60]) == {101, 1 << 60}
        repaired(engine, WHOLE, "another")
        for bucket in range(0, BUCKETS, 16):
            engine.unchanged.changed(TABLE, (bucket << 48) - (1 << 63) + 7)
        parts = engine.unchanged.parts(TABLE, WHOLE)
        assert len(parts) <= REPAIR_CHANGED_RANGES_MAX
        assert sorted(parts) == list(parts)
        await engine.close()

    asyncio.run(check())


def test_joined_pieces_never_reach_over_what_lies_between_the_ranges(tmp_path: Path) -> None:
    """Other nodes replicate that: a repair compared it with replicas that may not have it."""

    async def check() -> None:
        engine = await opened(tmp_path)
        repaired(engine, WHOLE)
        for bucket in range(0, BUCKETS, 8):
            engine.unchanged.changed(TABLE, (bucket << 48) - (1 << 63) + 7)
        width = 1 << 59
        ranges = [Range(at, at + width) for at in range(TOKEN_MIN, TOKEN_MAX - width, 2 * width)]
        parts = engine.unchanged.parts(TABLE, ranges)
        assert len(parts) <= REPAIR_CHANGED_RANGES_MAX
        assert all(any(r.left <= part.left and part.right <= r.right for r in ranges) for part in parts)
        assert all(any(part.intersects(range_) for part in parts) for range_ in ranges)
        await engine.close()

    asyncio.run(check())


def test_what_is_noted_is_watched(tmp_path: Path) -> None:
    async def check() -> None:
        unchanged = (await opened(tmp_path)).unchanged
        unchanged.watch("s", TABLE, WHOLE)
        unchanged.watch("t", TABLE, WHOLE)
        unchanged.validate()
        unchanged.forget(lambda session: session == "t")
        unchanged.validate()
        unchanged._watched.clear()
        with pytest.raises(AssertionError, match="what is noted is watched"):
            unchanged.validate()

    asyncio.run(check())


def test_of_the_sessions_that_watch_a_table_those_that_are_open_go_on(tmp_path: Path) -> None:
    async def run() -> None:
        engine = await opened(tmp_path)
        for session in ("open", "closed"):
            engine.unchanged.watch(session, TABLE, WHOLE)
        engine.apply(put((7, b"k"), b"a", b"v", 1, 1))
        engine.unchanged.forget(lambda session: session == "open")
        engine.unchanged.validate()
        assert [list(sessions) for sessions in engine.unchanged._touched.values()] == [["open"]]
        engine.unchanged.forget(lambda _session: False)
        assert not engine.unchanged._touched
        await engine.close()

    asyncio.run(run())
