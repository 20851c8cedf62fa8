"""What nodes believe of each other never reaches the rooms that decide who owns what."""

from __future__ import annotations

import ast

import pytest

from .sources import PACKAGE

DECIDING = ("metadata", "topology", "placement", "schema")
OPINIONS = ("lockstep.gossip", "lockstep.node")


def imported(tree: ast.Module) -> list[str]:
    found = []
    for item in ast.walk(tree):
        if isinstance(item, ast.Import):
            found += [alias.name for alias in item.names]
        elif isinstance(item, ast.ImportFrom):
            found.append(item.module or "")
    return found


@pytest.mark.parametrize("room", DECIDING)
def test_rooms_that_decide_know_no_gossip(room: str) -> None:
    paths = sorted((PACKAGE / room).rglob("*.py"))
    assert paths
    for path in paths:
        names = imported(ast.parse(path.read_text()))
        assert not [name for name in names if name.startswith(OPINIONS)], path
