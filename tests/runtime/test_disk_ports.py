"""Both families of the Disk port keep one contract; the real one on a real directory."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.runtime.ports import Disk, Runtime
from lockstep.runtime.real.disk import RealDisk
from lockstep.runtime.real.family import real_runtime
from lockstep.sim.runtime.world import World
from lockstep.values.errors import DiskRefused
from lockstep.values.limits import DISK_OPEN_FILES_MAX

Steps = Callable[[Disk], Coroutine[Any, Any, None]]


async def _directly(work: Callable[[], None]) -> None:
    work()


def _on_both(tmp_path: Path, steps: Steps) -> None:
    async def main(runtime: Runtime) -> None:
        await steps(runtime.disk)

    with World(1) as world:
        world.call(main)
    runtime = real_runtime(str(tmp_path / "data"))
    asyncio.run(steps(runtime.disk))
    disk = runtime.disk
    assert isinstance(disk, RealDisk)
    disk.close()


def test_append_read_truncate_rename_remove(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        assert disk.names("") == []
        assert disk.names("absent") == []
        disk.append("log/1", b"abc")
        disk.append("log/1", b"def")
        disk.append("log/0", b"")
        disk.append("vote", b"v")
        await disk.sync("log/1")
        await disk.sync_names("log")
        await disk.sync_names("")
        assert disk.names("") == ["log", "vote"]
        assert disk.names("log") == ["0", "1"]
        assert disk.read("log/1") == b"abcdef"
        disk.truncate("log/1", 4)
        disk.truncate("log/1", 100)
        assert disk.read("log/1") == b"abcd"
        disk.append("log/1", b"!")
        assert disk.read("log/1") == b"abcd!"
        disk.rename("log/1", "vote")
        disk.append("vote", b"?")
        assert disk.read("vote") == b"abcd!?"
        assert not disk.exists("log/1")
        disk.append("log/1", b"fresh")
        assert (disk.read("log/1"), disk.read("vote")) == (b"fresh", b"abcd!?")
        disk.remove("log/1")
        assert not disk.exists("log/1")
        assert disk.exists("vote")
        assert not disk.exists("log")

    _on_both(tmp_path, steps)


def test_what_is_absent_is_not_found(tmp_path: Path) -> None:
    async def steps(disk: Disk) -> None:
        for action in (
            disk.read,
            disk.remove,
            lambda path: disk.rename(path, "b"),
            lambda p: disk.truncate(p, 0),
        ):
            with pytest.raises(FileNotFoundError):
                action("absent")
        with pytest.raises(FileNotFoundError):
            await disk.sync("absent")
        assert not disk.exists("absent")

    _on_both(tmp_path, steps)


_PATHS = st.sampled_from(["a", "b", "d/a", "d/b"])
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), _PATHS, st.binary(max_size=9)),
        st.tuples(st.just("truncate"), _PATHS, st.integers(0, 12)),
        st.tuples(st.just("rename"), _PATHS, _PATHS),
        st.tuples(st.just("remove"), _PATHS),
        st.tuples(st.just("sync"), _PATHS),
    ),
    max_size=25,
)


async def _outcomes(disk: Disk, operations: list[tuple[Any, ...]]) -> list[Any]:
    seen: list[Any] = []
    for name, *arguments in operations:
        try:
            result = getattr(disk, name)(*arguments)
            if name == "sync":
                result = await result
            seen.append(result)
        except FileNotFoundError:
            seen.append("absent")
    paths = [path for path in ("a", "b", "d/a", "d/b") if disk.exists(path)]
    return [*seen, [(path, disk.read(path)) for path in paths], disk.names("d")]


@settings(max_examples=60, deadline=None)
@given(operations=_OPERATIONS)
def test_both_families_behave_alike(operations: list[tuple[Any, ...]], tmp_path_factory: Any) -> None:
    async def main(runtime: Runtime) -> list[Any]:
        return await _outcomes(runtime.disk, operations)

    with World(1) as world:
        simulated = world.call(main)
    disk = RealDisk(str(tmp_path_factory.mktemp("data")), _directly)
    assert asyncio.run(_outcomes(disk, operations)) == simulated
    disk.close()


def test_open_descriptors_are_bounded_and_a_syncing_one_is_not_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))

    async def steps() -> None:
        disk: RealDisk
        opened: list[int] = []

        async def while_syncing(work: Callable[[], None]) -> None:
            for number in range(DISK_OPEN_FILES_MAX + 5):
                disk.append(f"many/{number}", b"x")
            opened.append(len(os.listdir("/proc/self/fd")))
            work()

        disk = RealDisk(str(tmp_path), while_syncing)
        before = len(os.listdir("/proc/self/fd"))
        disk.append("log", b"x")
        await disk.sync("log")
        assert opened[0] - before <= DISK_OPEN_FILES_MAX + 1
        assert len(os.listdir("/proc/self/fd")) - before <= DISK_OPEN_FILES_MAX
        disk.close()
        assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(steps())
    assert synced == [os.path.realpath(tmp_path / "log")]


def test_a_full_disk_is_refused_and_leaves_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path), _directly)
    disk.append("log", b"whole")
    real_write, calls = os.write, []

    def short_then_full(descriptor: int, data: Any) -> int:
        calls.append(len(data))
        if len(calls) > 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real_write(descriptor, bytes(data[:3]))

    monkeypatch.setattr(os, "write", short_then_full)
    with pytest.raises(DiskRefused, match="No space left"):
        disk.append("log", b"second")
    monkeypatch.undo()
    assert disk.read("log") == b"whole"
    disk.append("log", b"!")
    assert disk.read("log") == b"whole!"
    disk.close()


def test_a_failing_sync_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = RealDisk(str(tmp_path), _directly)
    disk.append("log", b"x")

    def fail(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(DiskRefused, match="sync of log"):
        asyncio.run(disk.sync("log"))
    disk.close()


def test_what_is_appended_and_synced_at_once_is_synced_after_it_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path), _directly)
    found: list[bytes] = []
    monkeypatch.setattr(os, "fdatasync", lambda fd: found.append(disk.read("log")))
    asyncio.run(disk.append_synced("log", b"one"))
    asyncio.run(disk.append_synced("log", b"two"))
    assert found == [b"one", b"onetwo"]

    def full(descriptor: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(DiskRefused, match="append of log"):
        asyncio.run(disk.append_synced("log", b"three"))
    assert len(found) == 2
    disk.close()


def test_an_append_whose_caller_was_cancelled_before_it_was_written_never_is(tmp_path: Path) -> None:
    waiting: list[Callable[[], None]] = []

    async def later(work: Callable[[], None]) -> None:
        waiting.append(work)
        await asyncio.Event().wait()

    async def steps() -> None:
        disk = RealDisk(str(tmp_path), later)
        task = asyncio.create_task(disk.append_synced("log", b"late"))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        written = RealDisk(str(tmp_path), later)
        waiting[0]()
        assert written.read("log") == b""
        disk.close()

    asyncio.run(steps())


def test_a_descriptor_stays_open_while_a_thread_syncs_for_a_caller_that_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waiting: list[Callable[[], None]] = []
    synced: list[str] = []

    async def later(work: Callable[[], None]) -> None:
        waiting.append(work)
        await asyncio.Event().wait()

    async def steps() -> None:
        disk = RealDisk(str(tmp_path), later)
        task = asyncio.create_task(disk.append_synced("log", b"late"))
        await asyncio.sleep(0)

        def cancel_and_close(descriptor: int) -> None:
            thread = threading.Thread(target=disk.close)
            thread.start()
            thread.join()
            synced.append(os.readlink(f"/proc/self/fd/{descriptor}"))

        monkeypatch.setattr(os, "fdatasync", cancel_and_close)
        waiting[0]()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert str(tmp_path / "log") not in [_target(fd) for fd in os.listdir("/proc/self/fd")]

    asyncio.run(steps())
    assert synced == [os.path.realpath(tmp_path / "log")]


def _target(descriptor: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        return ""


def test_names_of_new_directories_are_synced_up_to_the_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path), _directly)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    disk.append("a/b/log", b"x")
    asyncio.run(disk.sync_names("a/b"))
    asyncio.run(disk.sync_names("a/b"))
    disk.close()
    root = os.path.realpath(tmp_path)
    assert synced == [f"{root}/a/b", f"{root}/a", root, f"{root}/a/b"]
    # Another process cannot know what this one had made durable.
    synced.clear()
    disk = RealDisk(str(tmp_path), _directly)
    asyncio.run(disk.sync_names("a/b"))
    disk.close()
    assert synced == [f"{root}/a/b", f"{root}/a", root]


def test_a_new_root_is_made_durable_with_the_first_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = RealDisk(str(tmp_path / "data" / "node"), _directly)
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.readlink(f"/proc/self/fd/{fd}")))
    disk.append("log", b"x")
    asyncio.run(disk.sync_names(""))
    asyncio.run(disk.sync_names(""))
    disk.close()
    root = os.path.realpath(tmp_path)
    assert synced == [f"{root}/data/node", f"{root}/data", root, f"{root}/data/node"]


@pytest.mark.parametrize("path", ["/etc/passwd", "../outside", "a/../../b"])
def test_paths_stay_below_the_root(path: str, tmp_path: Path) -> None:
    disk = RealDisk(str(tmp_path), _directly)
    with pytest.raises(AssertionError):
        disk.append(path, b"x")
