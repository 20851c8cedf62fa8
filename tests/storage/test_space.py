"""The look at what is free on the disk: how often, when writes are refused, and when they are taken again."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from lockstep.storage.group_commit import Space
from lockstep.values.errors import DiskRefused
from lockstep.values.limits import DISK_SPACE_LOOK_MS

from .support import CountingProbes, LossyDisk, runtime_of

RESERVE = 1000


class Clock:
    def __init__(self) -> None:
        self.now_s = 5.0

    def monotonic_s(self) -> float:
        return self.now_s

    def wall_us(self) -> int:
        return 0

    def pass_a_look(self) -> None:
        self.now_s += DISK_SPACE_LOOK_MS / 1000


class Disk(LossyDisk):
    def __init__(self) -> None:
        super().__init__()
        self.free = RESERVE
        self.looks = 0

    def free_bytes(self) -> int:
        self.looks += 1
        return self.free


def space_of(reserve: int = RESERVE) -> tuple[Space, Disk, Clock, CountingProbes]:
    disk, clock, probes = Disk(), Clock(), CountingProbes()
    runtime = replace(runtime_of(disk), clock=clock, probes=probes)
    return Space(runtime, reserve), disk, clock, probes


def test_the_disk_is_asked_once_in_a_while() -> None:
    space, disk, clock, _ = space_of()
    assert [space.look() for _ in range(3)] == [False] * 3 and disk.looks == 1
    clock.now_s += DISK_SPACE_LOOK_MS / 1000 - 0.001
    disk.free = 0
    assert not space.look() and disk.looks == 1, "what was seen last still counts"
    clock.now_s += 0.001
    assert space.look() and disk.looks == 2


def test_a_full_disk_takes_writes_again_when_a_quarter_more_than_the_reserve_is_free() -> None:
    space, disk, clock, _ = space_of()
    free_then_full = [
        (RESERVE, False),
        (RESERVE - 1, True),
        (RESERVE, True),
        (RESERVE * 5 // 4 - 1, True),
        (RESERVE * 5 // 4, False),
        (RESERVE, False),
    ]
    for free, full in free_then_full:
        disk.free = free
        assert (space.look(), space.is_full) == (full, full), free
        clock.pass_a_look()


def test_a_refusal_is_counted_and_told() -> None:
    space, disk, _, probes = space_of()
    disk.free = 0
    for count in (1, 2):
        with pytest.raises(DiskRefused, match=f"less than {RESERVE} bytes are free") as refused:
            space.require()
        assert "storage.reserve_bytes" in (refused.value.hint or "")
        assert (space.refused, probes.reached) == (count, ["storage.disk_full"] * count)


def test_writes_between_two_syncs_share_a_look() -> None:
    space, disk, clock, _ = space_of()
    space.admit()
    clock.pass_a_look()
    disk.free = 0
    space.admit()
    assert disk.looks == 1, "nothing was synced since"
    space.synced()
    for _ in range(2):
        with pytest.raises(DiskRefused):
            space.admit()
    clock.pass_a_look()
    disk.free = 2 * RESERVE
    space.admit()
    assert (disk.looks, space.refused) == (3, 2)


def test_without_a_reserve_the_disk_is_never_asked() -> None:
    space, disk, clock, _ = space_of(0)
    disk.free = 0
    for _ in range(3):
        space.admit()
        space.require()
        assert not space.look()
        space.synced()
        clock.pass_a_look()
    assert (disk.looks, space.refused) == (0, 0)
