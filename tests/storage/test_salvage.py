"""Reading what is left of a database with damaged blocks: nothing is made up, and no gap is untold."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.rocks.rocks_errors import Salvage
from lockstep.values.errors import CorruptFile

from .support import LoopTasks

PAIRS = {b"%016d" % number: b"%d" % number * 40 for number in range(2500)}


def made(path: Path) -> Path:
    """A database of one table file with many blocks; the file."""

    async def body() -> None:
        store = await open_rocks_store(str(path), LoopTasks())
        items = list(PAIRS.items())
        for at in range(0, len(items), 500):
            store.write([("put", key, value) for key, value in items[at : at + 500]])
        await store.before_ingest()
        store.close()

    asyncio.run(body())
    [table] = path.glob("*.sst")
    return table


def salvaged(path: Path) -> tuple[dict[bytes, bytes], list[tuple[bytes, bytes]], list[int]]:
    salvage = Salvage(str(path))
    portions = list(salvage.portions())
    keys = [key for portion in portions for key, _ in portion]
    assert keys == sorted(set(keys)), "in order, each once"
    found = {key: value for portion in portions for key, value in portion}
    return found, salvage.stretches, [len(portion) for portion in portions]


def check(found: dict[bytes, bytes], stretches: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Keys that are not there; each pair is as it was, and what lacks lies in a stretch without any pair."""
    assert all(PAIRS[key] == value for key, value in found.items())
    assert all(first < last for first, last in stretches)
    assert all(before[1] <= after[0] for before, after in pairwise(stretches))
    lost = [key for key in PAIRS if key not in found]
    for key in lost:
        assert any(first <= key <= last for first, last in stretches)
    return lost


def damage(table: Path, at: int) -> None:
    content = bytearray(table.read_bytes())
    content[at] ^= 0xFF
    table.write_bytes(bytes(content))


def test_a_whole_database_is_given_whole_in_portions(tmp_path: Path) -> None:
    made(tmp_path / "db")
    found, stretches, sizes = salvaged(tmp_path / "db")
    assert found == PAIRS and stretches == []
    assert sizes == [1000, 1000, 500]


@pytest.mark.parametrize("places", [(0.0,), (0.4,), (0.1, 0.5), (0.2, 0.25, 0.6)])
def test_a_damaged_block_costs_its_own_keys_alone(places: tuple[float, ...], tmp_path: Path) -> None:
    table = made(tmp_path / "db")
    size = table.stat().st_size
    for place in places:
        damage(table, int(size * place) + 30)
    found, stretches, _ = salvaged(tmp_path / "db")
    lost = check(found, stretches)
    assert 0 < len(lost) < 250 * len(places), "a block of four kibibytes holds some hundred of them at most"
    assert 0 < len(stretches) <= len(places)


def test_damage_up_to_the_end_is_one_stretch_to_the_last_key(tmp_path: Path) -> None:
    table = made(tmp_path / "db")
    content = bytearray(table.read_bytes())
    for at in range(len(content) // 3, len(content) * 4 // 5, 100):
        content[at] ^= 0xFF
    table.write_bytes(bytes(content))
    found, stretches, _ = salvaged(tmp_path / "db")
    lost = check(found, stretches)
    assert len(lost) > 500
    assert stretches[-1][1] >= lost[-1]


def test_what_is_no_database_is_named(tmp_path: Path) -> None:
    table = made(tmp_path / "db")
    for name in ("CURRENT", table.name):
        (tmp_path / "db" / name).unlink()
    with pytest.raises(CorruptFile, match="db"):
        list(Salvage(str(tmp_path / "db")).portions())
