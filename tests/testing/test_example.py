"""The example project works as its page says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


def test_the_tests_of_the_example_pass(tmp_path: Path) -> None:
    project = shutil.copytree(ROOT / "examples" / "orders", tmp_path / "orders")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "lockstep.testing.plugin", "-q"],
        cwd=project, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "5 passed" in done.stdout, done.stdout + done.stderr
