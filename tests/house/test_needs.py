"""Tests say what they need of the machine; and a machine that lacks it is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import needs
from tests.house.sources import ROOT
from tests.house.tidy import PURE_ROOMS


def markers(path: str) -> tuple[str, ...]:
    return needs.markers_of(ROOT / "tests" / path)


def test_needs_are_told_from_what_modules_their_helpers_and_their_fixtures_reach() -> None:
    assert markers("values/test_hash_tree.py") == ("pure",)
    assert markers("storage/test_reconcile.py") == ("pure",), "a pure module of another room"
    assert markers("sim/test_runs.py") == (), "simulated nodes need nothing, yet are no pure code"
    assert "needs_addresses" in markers("replication/test_reads.py"), "by the helper it imports"
    assert "needs_addresses" in markers("server/test_tracing.py"), "by a fixture of its folder"
    assert "needs_processes" in markers("acceptance/test_joining.py")
    assert "needs_spark" in markers("spark/test_reading.py") and "needs_spark" not in markers(
        "cql/test_json.py"
    )
    assert "needs_cqlsh" in markers("server/test_process.py")
    assert "needs_openssl" in markers("runtime/test_tls.py")


#: It lists the modules of the package as files.
IMPURE = {"topology/test_promises.py"}


def test_the_tests_of_pure_rooms_are_pure_or_the_short_suite_shrinks_unseen() -> None:
    modules = [path for room in PURE_ROOMS for path in (ROOT / "tests" / room).glob("test_*.py")]
    assert {f"{path.parent.name}/{path.name}" for path in modules if not needs.is_pure(path)} == IMPURE


@pytest.mark.parametrize("need", needs.NEEDS)
def test_this_machine_is_asked(need: str) -> None:
    assert isinstance(needs.missing(need), str)


CHILD = """
import sys
import pytest
from tests import needs
lost = needs.NEEDS["needs_openssl"]._replace(lacks=lambda: "no openssl on the PATH")
needs.NEEDS["needs_openssl"] = lost
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", *sys.argv[1:]]))
"""


def test_a_lacking_machine_is_an_error_of_the_set_up_and_no_failure(tmp_path: Path) -> None:
    said = subprocess.run(
        [sys.executable, "-c", CHILD, "tests/runtime/test_tls.py"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "MachineLacks: needs_openssl: no openssl on the PATH" in said.stdout
    assert " failed" not in said.stdout and " error" in said.stdout, said.stdout


def test_the_short_suite_reads_pure_modules_only() -> None:
    said = subprocess.run(
        [sys.executable, "-m", "pytest", "--pure", "--collect-only", "-qq", "tests/values", "tests/spark"],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert said.returncode == 0 and "tests/values/test_hash_tree.py" in said.stdout
    assert "tests/spark" not in said.stdout
