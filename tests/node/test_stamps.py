"""Timestamps of one node rise whatever its clock does, and whenever it is started again."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Any

import pytest

from lockstep.node.stamps import STAMPS_PATH, Stamps
from lockstep.runtime.ports import Runtime
from lockstep.sim.runtime.disk import DiskSettings
from lockstep.sim.runtime.world import World
from lockstep.testing import SimulatedCluster
from lockstep.values.errors import CorruptFile, DiskRefused, PeerTimeout
from lockstep.values.node_limits import STAMPS_KEPT_BACK_US, STAMPS_RESERVED_US

SKEWS_S = (0.5, 3600.0)


def with_table(cluster: SimulatedCluster) -> SimulatedCluster:
    cluster.execute(
        "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    cluster.execute("CREATE TABLE k.t (a int PRIMARY KEY, b int)")
    return cluster


def written(cluster: SimulatedCluster, value: int, node: str = "n1") -> int:
    """Write, read what is there, and give its timestamp."""
    cluster.execute(f"INSERT INTO k.t (a, b) VALUES (1, {value})", node=node)
    row = cluster.execute("SELECT b, WRITETIME(b) FROM k.t WHERE a = 1", node="n2")[0]
    assert row[0] == value, "a later write has lost to an earlier one"
    return int(row[1])


@pytest.mark.parametrize("back_s", SKEWS_S)
def test_a_clock_that_is_set_back_loses_no_later_write(back_s: float) -> None:
    with with_table(SimulatedCluster(seed=3).start()) as cluster:
        times = [written(cluster, 0)]
        for value in range(1, 4):
            cluster.skew_clock("n1", -back_s)
            times.append(written(cluster, value))
        assert all(first < second for first, second in itertools.pairwise(times))


@pytest.mark.parametrize("back_s", SKEWS_S)
@pytest.mark.parametrize("crash", ["kill", "cut_power"])
def test_nor_does_one_that_is_set_back_over_a_restart(back_s: float, crash: str) -> None:
    with with_table(SimulatedCluster(seed=3).start()) as cluster:
        before = written(cluster, 1)
        getattr(cluster, crash)("n1")
        cluster.skew_clock("n1", -back_s)
        cluster.mend()
        with contextlib.suppress(PeerTimeout):  # After a power cut the old connection is broken.
            cluster.execute("SELECT b FROM k.t WHERE a = 1", node="n1")
        assert written(cluster, 2) > before


def test_a_clock_that_jumps_ahead_and_back_is_remembered() -> None:
    with with_table(SimulatedCluster(seed=3).start()) as cluster:
        cluster.skew_clock("n1", 3600)
        written(cluster, 1)
        cluster.advance(1)
        ahead = written(cluster, 2)
        cluster.kill("n1")
        cluster.skew_clock("n1", -3600)
        cluster.mend()
        assert ahead < written(cluster, 3) < ahead + STAMPS_RESERVED_US + 1_000_000


def test_timestamps_are_those_of_the_clock_again_once_a_node_serves() -> None:
    """What a crash left reserved is waited for; a clean stop leaves nothing."""
    with with_table(SimulatedCluster(seed=3).start()) as cluster:
        for value in range(3):
            cluster.kill("n1")
            cluster.mend()
            stamp_us, now_us = written(cluster, value), cluster.now.timestamp() * 1e6
            assert now_us - 100_000 < stamp_us < now_us + 100_000


def test_the_first_write_after_a_time_without_any_is_of_now() -> None:
    """What another node wrote meanwhile does not hide it."""
    with with_table(SimulatedCluster(seed=3).start()) as cluster:
        written(cluster, 0)
        for value in range(1, 9, 2):
            cluster.advance(20)
            cluster.execute(f"INSERT INTO k.t (a, b) VALUES (1, {value})", node="n3")
            stamp_us = written(cluster, value + 1)
            assert abs(cluster.now.timestamp() * 1e6 - stamp_us) < 500_000


# ---- alone, on a disk of its own


def test_what_is_written_is_never_much_older_than_the_clock() -> None:
    async def main(runtime: Runtime) -> None:
        disk = world.process("n").disk
        stamps = await loaded(runtime)
        assert not stamps.is_behind
        await asyncio.sleep(10)
        assert stamps.is_behind
        await stamps.present()
        assert not stamps.is_behind and runtime.clock.wall_us() - stamps.next_us() < 10_000
        await asyncio.sleep(10)
        disk.settings = DiskSettings(sync_error=1.0)
        with pytest.raises(DiskRefused):
            await stamps.present()

    with World(1) as world:
        world.call(main, name="n")


async def loaded(runtime: Runtime) -> Stamps:
    stamps = Stamps(runtime, lambda event, **facts: None)
    await stamps.load()
    return stamps


def test_a_jump_ahead_waits_for_the_disk() -> None:
    """Nothing is given that a restart could give again: until more is reserved, timestamps lag behind."""

    async def main(runtime: Runtime) -> None:
        stamps = await loaded(runtime)
        first = stamps.next_us()
        world.process("n").jump_wall(3600)
        for _ in range(3):
            assert first < stamps.next_us() < first + STAMPS_RESERVED_US
            await asyncio.sleep(0)
        await asyncio.sleep(0.1)
        assert abs(stamps.next_us() - runtime.clock.wall_us()) < 10_000

    with World(1) as world:
        world.call(main, name="n")


def test_with_a_disk_that_refuses_timestamps_end_and_later_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.node.stamps.STAMPS_KEPT_BACK_US", 5)

    async def main(runtime: Runtime) -> None:
        disk = world.process("n").disk
        stamps = await loaded(runtime)
        stamps.next_us()
        disk.settings = DiskSettings(sync_error=1.0)
        world.process("n").jump_wall(3600)
        given = [stamps.next_us() for _ in range(5)]
        with pytest.raises(DiskRefused):
            stamps.next_us()
        await asyncio.sleep(1)
        with pytest.raises(DiskRefused):
            stamps.next_us()
        disk.settings = DiskSettings()
        await asyncio.sleep(1)
        assert stamps.next_us() > given[-1] + 3000 * 1_000_000

    assert STAMPS_KEPT_BACK_US > 5
    with World(1) as world:
        world.call(main, name="n")


def test_an_idle_node_writes_nothing_and_a_busy_one_seldom() -> None:
    async def main(runtime: Runtime) -> None:
        stamps = await loaded(runtime)
        before = world.probes.counts["stamps.renamed"]
        await asyncio.sleep(30)
        assert world.probes.counts["stamps.renamed"] == before
        for _ in range(1000):
            stamps.next_us()
            await asyncio.sleep(0.01)
        assert world.probes.counts["stamps.renamed"] <= before + 21

    with World(1) as world:
        world.call(main, name="n")


def test_after_a_release_nobody_waits_and_nothing_is_given() -> None:
    async def main(runtime: Runtime) -> None:
        stamps = await loaded(runtime)
        last = stamps.next_us()
        await stamps.release()
        with pytest.raises(DiskRefused):
            stamps.next_us()
        began_s = runtime.clock.monotonic_s()
        again = await loaded(runtime)
        assert runtime.clock.monotonic_s() - began_s < 0.1
        assert last < again.next_us() <= runtime.clock.wall_us()

    with World(1) as world:
        world.call(main, name="n")


@pytest.mark.parametrize("damage", [lambda data: b"", lambda data: data[:-1], lambda data: data + data])
def test_a_damaged_file_is_named(damage: Any) -> None:
    async def main(runtime: Runtime) -> None:
        await loaded(runtime)
        data = runtime.disk.read(STAMPS_PATH)
        runtime.disk.remove(STAMPS_PATH)
        runtime.disk.append(STAMPS_PATH, damage(data))
        with pytest.raises(CorruptFile, match="stamps is corrupt"):
            await loaded(runtime)

    with World(1) as world:
        world.call(main, name="n")
