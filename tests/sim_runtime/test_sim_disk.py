"""Only sync is a promise: what power cuts, kills and failing disks do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.runtime.ports import Disk, Runtime
from lockstep.sim.runtime.disk import DiskSettings
from lockstep.sim.runtime.world import World
from lockstep.values.errors import DiskRefused


def _written_then(
    world: World, write: Callable[[Disk], None], kind: str, *, sync_first: bool
) -> dict[str, bytes]:
    """Files of a process that synced "base" (or not), then wrote, then crashed; read after its restart."""

    async def main(runtime: Runtime) -> None:
        runtime.disk.append("log", b"base")
        if sync_first:
            await runtime.disk.sync("log")
            await runtime.disk.sync_names("")
        write(runtime.disk)
        await asyncio.Event().wait()

    process = world.process("n")
    process.start(main)
    world.run_for(1)
    process.crash(kind)
    return {path: process.disk.read(path) for path in process.disk.files}


def test_a_kill_keeps_what_was_not_synced() -> None:
    with World(1) as world:
        files = _written_then(world, lambda disk: disk.append("log", b"more"), "kill", sync_first=False)
    assert files == {"log": b"basemore"}


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), writes=st.lists(st.binary(min_size=1, max_size=700), max_size=5))
def test_a_power_cut_keeps_what_was_synced(seed: int, writes: list[bytes]) -> None:
    def write(disk: Disk) -> None:
        for data in writes:
            disk.append("log", data)

    with World(seed) as world:
        files = _written_then(world, write, "power", sync_first=True)
        assert files["log"].startswith(b"base")
        assert world.process("n").disk.durable() == files


def test_power_cuts_lose_keep_tear_and_punch_holes() -> None:
    outcomes = set()
    effects: dict[str, int] = {}
    for seed in range(60):
        with World(seed) as world:
            files = _written_then(
                world, lambda disk: disk.append("log", b"x" * 600), "power", sync_first=True
            )
            tail = files["log"][4:]
            if not tail:
                outcomes.add("lost")
            elif tail == b"x" * 600:
                outcomes.add("kept")
            elif len(tail) == 600 and set(tail) <= {0, ord("x")}:
                outcomes.add("holes")
            elif set(tail) == {ord("x")}:
                outcomes.add("prefix")
            else:
                outcomes.add("junk")
            for effect, times in world.effects.items():
                effects[effect] = effects.get(effect, 0) + times
    assert outcomes == {"lost", "kept", "holes", "prefix", "junk"}
    assert {"disk.lost", "disk.torn", "disk.holes", "disk.junk_tail"} <= set(effects)


def test_names_that_were_not_synced_may_be_lost_and_a_rename_is_atomic() -> None:
    def swap(disk: Disk) -> None:
        disk.append("new", b"newer")
        disk.rename("new", "log")

    seen = set()
    for seed in range(40):
        with World(seed) as world:
            files = _written_then(world, swap, "power", sync_first=True)
            assert "log" in files
            seen.add(files["log"] == b"base")
    assert seen == {True, False}


@pytest.mark.parametrize("scattered", [0.0, 1.0])
def test_where_names_are_scattered_a_later_removal_may_outlive_an_earlier_name(scattered: float) -> None:
    def replace(disk: Disk) -> None:
        disk.append("newer", b"newer")
        disk.remove("log")

    seen = set()
    for seed in range(60):
        with World(seed) as world:
            world.process("n").disk.settings.names_scattered = scattered
            files = _written_then(world, replace, "power", sync_first=True)
            seen.add(("log" in files, "newer" in files))
    in_order = {(True, False), (True, True), (False, True)}
    assert seen == (in_order | {(False, False)} if scattered else in_order)


def test_a_synced_rename_survives() -> None:
    async def main(runtime: Runtime) -> None:
        disk = runtime.disk
        disk.append("d/a.tmp", b"content")
        await disk.sync("d/a.tmp")
        disk.rename("d/a.tmp", "d/a")
        await disk.sync_names("d")
        await asyncio.Event().wait()

    for seed in range(20):
        with World(seed) as world:
            process = world.process("n")
            process.start(main)
            world.run_for(1)
            process.crash("power")
            assert {path: process.disk.read(path) for path in process.disk.files} == {"d/a": b"content"}


def test_a_synced_removal_is_final() -> None:
    async def main(runtime: Runtime) -> None:
        disk = runtime.disk
        disk.append("a", b"content")
        await disk.sync("a")
        await disk.sync_names("")
        disk.remove("a")
        await disk.sync_names("")
        disk.append("b", b"later")
        await asyncio.Event().wait()

    for seed in range(100):
        with World(seed) as world:
            process = world.process("n")
            process.start(main)
            world.run_for(1)
            process.crash("power")
            assert "a" not in process.disk.files


def test_a_renamed_file_that_was_not_synced_may_be_empty() -> None:
    async def main(runtime: Runtime) -> None:
        runtime.disk.append("a.tmp", b"content")
        runtime.disk.rename("a.tmp", "a")
        await runtime.disk.sync_names("")
        await asyncio.Event().wait()

    contents = set()
    for seed in range(30):
        with World(seed) as world:
            process = world.process("n")
            process.start(main)
            world.run_for(1)
            process.crash("power")
            contents.add(process.disk.read("a"))
    assert b"" in contents


def test_bytes_appended_during_a_sync_are_not_covered_by_it() -> None:
    async def main(runtime: Runtime) -> None:
        disk = runtime.disk
        disk.append("log", b"one")
        syncing = runtime.tasks.spawn(disk.sync("log"), "sync")
        await asyncio.sleep(0.00001)
        disk.append("log", b"two")
        await syncing

    with World(1) as world:
        process = world.process("n")
        process.disk.settings = DiskSettings(sync_low_s=0.01, sync_high_s=0.02)
        process.start(main)
        world.run_for(1)
        world.check()
        file = process.disk.file("log")
        assert bytes(file.durable) == b"one"
        assert bytes(file.cache) == b"onetwo"


def test_a_failed_sync_drops_pages_though_reads_still_see_them() -> None:
    async def main(runtime: Runtime) -> bytes:
        disk = runtime.disk
        disk.append("log", b"gone")
        with pytest.raises(DiskRefused):
            await disk.sync("log")
        return disk.read("log")

    with World(1) as world:
        disk = world.process("caller").disk
        disk.settings.sync_error = 1.0
        assert world.call(main) == b"gone"
        assert bytes(disk.file("log").durable) == b""
        assert world.effects["disk.sync_error"] == 1


def test_a_full_disk_refuses_appends_and_changes_nothing() -> None:
    async def main(runtime: Runtime) -> bytes:
        runtime.disk.append("log", b"12345678")
        with pytest.raises(DiskRefused, match="no space"):
            runtime.disk.append("log", b"123")
        return runtime.disk.read("log")

    with World(1) as world:
        world.process("caller").disk.settings.capacity_bytes = 10
        assert world.call(main) == b"12345678"
        assert world.effects["disk.full"] == 1


def test_a_slow_disk_takes_its_time() -> None:
    async def main(runtime: Runtime) -> float:
        began = runtime.clock.monotonic_s()
        runtime.disk.append("log", b"x")
        await runtime.disk.sync("log")
        return runtime.clock.monotonic_s() - began

    with World(1) as world:
        world.process("caller").disk.settings = DiskSettings(sync_low_s=4, sync_high_s=5)
        assert world.call(main) >= 4
        assert world.effects["disk.slow_sync"] == 1


def test_rot_flips_one_bit_of_what_is_durable() -> None:
    with World(3) as world:
        _written_then(world, lambda disk: None, "kill", sync_first=True)
        disk = world.process("n").disk
        assert disk.rot() == "log"
        damaged = disk.read("log")
        assert sum((a ^ b).bit_count() for a, b in zip(damaged, b"base", strict=True)) == 1


def test_wipe_clone_and_swap() -> None:
    with World(3) as world:
        _written_then(world, lambda disk: None, "kill", sync_first=True)
        process = world.process("n")
        backup = process.disk.clone("backup")
        process.wipe_disk()
        assert process.disk.files == {}
        process.swap_disk(backup)
        assert process.disk.read("log") == b"base"
        process.disk.power_loss()
        assert process.disk.read("log") == b"base"


def test_read_errors_are_refusals() -> None:
    async def main(runtime: Runtime) -> None:
        runtime.disk.append("log", b"x")
        with pytest.raises(DiskRefused):
            runtime.disk.read("log")

    with World(3) as world:
        world.process("caller").disk.settings.read_error = 1.0
        world.call(main)
