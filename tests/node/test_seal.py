"""The seal of a stop in good order: any change of a sealed file is damage, and is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from lockstep.node.node import SEAL_PATH, Seal
from lockstep.runtime.real import real_runtime
from lockstep.values.codec import frame_record, scan_records
from lockstep.values.errors import CorruptFile

FILES = ("identity", "raft/group-1", "metadata/log-000000000001")


def sealed(path: Path) -> None:
    """Files of a node under a seal."""
    for name in FILES:
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(frame_record(b"first") + frame_record(name.encode()))
    asyncio.run(with_seal(path, Seal.close))


async def with_seal(path: Path, do: Callable[[Seal], Coroutine[Any, Any, None]]) -> list[str]:
    said: list[str] = []
    runtime = real_runtime(str(path))
    await do(Seal(runtime.disk, lambda event, **_facts: said.append(event)))
    return said


def test_an_unchanged_directory_opens_and_the_seal_is_off(tmp_path: Path) -> None:
    sealed(tmp_path)
    assert asyncio.run(with_seal(tmp_path, Seal.open)) == []
    assert not (tmp_path / SEAL_PATH).exists()
    (tmp_path / "identity").write_bytes(b"what the node writes next is no damage")
    assert asyncio.run(with_seal(tmp_path, Seal.open)) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("harm", ["flipped", "cut", "emptied", "removed"])
def test_a_changed_file_is_named(name: str, harm: str, tmp_path: Path) -> None:
    sealed(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    if harm == "removed":
        (tmp_path / name).unlink()
    elif harm == "flipped":
        content[-1] ^= 1
        (tmp_path / name).write_bytes(content)
    else:
        (tmp_path / name).write_bytes(content[:-3] if harm == "cut" else b"")
    with pytest.raises(CorruptFile) as caught:
        asyncio.run(with_seal(tmp_path, Seal.open))
    assert caught.value.path == name
    first_bytes = len(frame_record(b"first"))
    assert caught.value.offset == {"flipped": first_bytes, "cut": len(content) - 3}.get(harm, 0)
    assert (tmp_path / SEAL_PATH).exists(), "whoever starts it again is told again"


@pytest.mark.parametrize("tail", [b"half a rec", frame_record(b"whole")])
def test_what_is_appended_to_a_file_begins_where_it_ended(tail: bytes, tmp_path: Path) -> None:
    sealed(tmp_path)
    whole = (tmp_path / "identity").read_bytes()
    (tmp_path / "identity").write_bytes(whole + tail)
    with pytest.raises(CorruptFile) as caught:
        asyncio.run(with_seal(tmp_path, Seal.open))
    assert (caught.value.path, caught.value.offset) == ("identity", len(whole))


def test_a_damaged_seal_is_told_of_and_keeps_nobody_from_starting(tmp_path: Path) -> None:
    sealed(tmp_path)
    content = bytearray((tmp_path / SEAL_PATH).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / SEAL_PATH).write_bytes(content)
    assert asyncio.run(with_seal(tmp_path, Seal.open)) == ["seal.unreadable"]


@pytest.mark.parametrize("size", [1, 40])
def test_a_last_record_that_is_one_bit_off_is_damage_and_a_torn_one_is_not(size: int) -> None:
    first, last = frame_record(b"first"), frame_record(bytes(range(size)))
    whole = first + last
    for bit in range(8 * len(first), 8 * len(whole)):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptFile):
            list(scan_records("journal", bytes(damaged), record_bytes_max=1 << 20))
    for end in range(len(first), len(whole)):
        torn = whole[:end]
        for left in (torn, torn + bytes(len(whole) - end)):
            found = [body for _, body in scan_records("journal", left, record_bytes_max=1 << 20)]
            assert found == [b"first"] or left == whole
