"""The Java that tests start: it passes on what it is given, and where nothing was made nothing is offered."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import quick_java


def stand_in(path: Path) -> Path:
    """A program that prints what it is given."""
    path.parent.mkdir(parents=True)
    path.write_text('#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\n')
    path.chmod(0o755)
    return path


def test_the_launcher_names_the_archive_and_passes_everything_on(tmp_path: Path) -> None:
    home = tmp_path / "made"
    program = quick_java.launcher(stand_in(tmp_path / "real" / "java"), home)
    said = subprocess.run([str(program), "-cp", "a b", ""], capture_output=True, text=True, check=True)
    first, *others = said.stdout.splitlines()
    assert first == f"<-XX:SharedArchiveFile={home / 'spark.jsa'}>"
    assert others[-3:] == ["<-cp>", "<a b>", "<>"]


def test_nothing_is_offered_before_the_archive_is_whole(tmp_path: Path) -> None:
    assert quick_java.quick_home(tmp_path) is None
    quick_java.launcher(tmp_path / "java", tmp_path)
    (tmp_path / "spark.jsa.part").touch()
    assert quick_java.quick_home(tmp_path) is None
    (tmp_path / "spark.jsa").touch()
    assert quick_java.quick_home(tmp_path) == tmp_path


def test_a_runtime_without_an_archive_of_its_own_is_left_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = stand_in(tmp_path / "small" / "bin" / "java")
    real.write_text("#!/bin/sh\necho 'openjdk version \"21\"' >&2\n")
    monkeypatch.setenv("PATH", f"{real.parent}:/bin")
    assert "has no archive of its own classes" in quick_java.make(tmp_path / "made")
    assert quick_java.quick_home(tmp_path / "made") is None
