"""An archive of the metadata log takes the files of one node."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from lockstep.node.membership.identity import Identity, claim_archive
from lockstep.runtime.real.disk import RealDisk
from lockstep.values.errors import ConfigurationError


def test_an_archive_is_refused_to_a_second_node_and_stays_the_firsts(tmp_path: Path) -> None:
    async def test() -> None:
        disk = RealDisk(str(tmp_path), asyncio.to_thread)
        first, second = Identity("host-1", "", 1), Identity("host-2", "", 1)
        await claim_archive(None, first)
        await claim_archive(disk, first)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="that of node host-1, and this is host-2"):
                await claim_archive(disk, second)
            await claim_archive(disk, first)
        assert disk.names("") == ["owner-host-1"]

    asyncio.run(test())
