"""Rooms import only rooms below them; the contract is `.importlinter`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .sources import ROOT


def test_the_import_contract_is_kept() -> None:
    tool = str(Path(sys.executable).parent / "lint-imports")
    outcome = subprocess.run(
        [tool, "--config", str(ROOT / ".importlinter"), "--no-cache"],
        cwd=ROOT,
        env=dict(os.environ, PYTHONPATH=str(ROOT), NO_COLOR="1"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
