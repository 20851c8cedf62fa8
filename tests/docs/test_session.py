"""The terminal session of the README is what the same commands print, but for numbers and who leads."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def session() -> ModuleType:
    spec = importlib.util.spec_from_file_location("session", ROOT / "docs/session.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_session_has_the_shape_of_what_its_commands_print(session: ModuleType) -> None:
    shown = session.written((ROOT / "README.md").read_text())
    assert len(shown) > 8
    for page, now in zip(shown, session.run([one.command for one in shown], "127.0.98."), strict=True):
        assert session.shapes(page) == session.shapes(now), f"{page.command}: run `make session`"


def test_another_output_has_another_shape(session: ModuleType) -> None:
    text = (ROOT / "README.md").read_text()
    shown = session.written(text)
    assert session.page(text, shown).count("$ lockstep") == text.count("$ lockstep")
    (status,) = [one for one in shown if one.command == "lockstep status"]
    told = "\n".join(status.lines)
    again = told.replace("node: 2", "node: 3").replace("epoch 15", "epoch 99")
    assert session.shapes(status._replace(lines=tuple(again.splitlines()))) == session.shapes(status)
    other = told.replace("degraded", "healthy", 1)
    assert session.shapes(status._replace(lines=tuple(other.splitlines()))) != session.shapes(status)
