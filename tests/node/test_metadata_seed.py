"""An empty data directory that begins at a dump."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.log.snapshot_file import dump_file, load_file
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log.metadata_store import seed_directory
from lockstep.node.membership.identity import IdentityFile
from lockstep.runtime.real import real_runtime
from lockstep.values.errors import ConfigurationError, CorruptFile
from tests.node.metadata_place import LONG, REGISTRY


@pytest.mark.parametrize(("base", "first"), [(0, 40), (12, 40), (39, 40), (40, None), (0, None)])
def test_a_directory_is_seeded_from_a_dump_with_entries(base: int, first: int | None, tmp_path: Path) -> None:
    end = 43 if first or base else 4
    dump = load_file(dump_file(LONG.values[base], LONG.entries[base:end]), REGISTRY)

    async def seed() -> MetadataState:
        assert await seed_directory(real_runtime(str(tmp_path / "d")), dump) == end
        state = MetadataState(real_runtime(str(tmp_path / "d")), REGISTRY, lambda error: None)
        await state.store.settle()
        state.load()
        return state

    if base == 40:
        with pytest.raises(ConfigurationError, match="no snapshot entry"):
            asyncio.run(seed())
        return
    state = asyncio.run(seed())
    assert state.epoch == end and state_digest(state.current) == state_digest(LONG.values[end])
    assert state.first_epoch == (first or 1)


@pytest.mark.parametrize("kept", ["", "raft/group-1", "store/CURRENT", "stamps"])
def test_a_seeded_directory_gets_an_identity_and_one_that_lost_its_own_gets_none(
    kept: str, tmp_path: Path
) -> None:
    dump = load_file(dump_file(LONG.values[0], LONG.entries[0:4]), REGISTRY)
    runtime = real_runtime(str(tmp_path / "d"))
    asyncio.run(seed_directory(runtime, dump))
    if not kept:
        assert asyncio.run(IdentityFile(runtime).boot()).generation == 1
        return
    (tmp_path / "d" / kept).parent.mkdir(exist_ok=True)
    (tmp_path / "d" / kept).write_bytes(b"a node's")
    with pytest.raises(CorruptFile, match=r"identity .* it says nothing") as caught:
        asyncio.run(IdentityFile(runtime).boot())
    assert kept.partition("/")[0] in caught.value.why


def test_a_directory_with_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "identity").write_text("mine")
    dump = load_file(dump_file(LONG.values[0], LONG.entries), REGISTRY)
    with pytest.raises(ConfigurationError, match="not empty"):
        asyncio.run(seed_directory(real_runtime(str(tmp_path)), dump))
