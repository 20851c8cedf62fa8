"""Nodes of the tests of this room end also when they never began."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from lockstep.values.errors import ConfigurationError
from tests.server import parts


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if "run_forever" in thread.name]


def test_nodes_that_fail_to_start_are_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threads()
    with pytest.raises(ExceptionGroup), parts.nodes(tmp_path / "a", 1, cluster_nothing="1"):
        pass

    async def closed(*_: object) -> None:
        raise ConfigurationError("the door is taken")

    monkeypatch.setattr(parts, "serve", closed)
    with pytest.raises(ExceptionGroup) as caught, parts.nodes(tmp_path / "b", 3):
        pass
    assert caught.group_contains(ConfigurationError, match="the door is taken")
    assert threads() == before
