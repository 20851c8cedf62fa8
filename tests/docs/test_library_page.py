"""The programs of the page on the parts as a library run as they stand, and print what it shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs/guides/library.md").read_text()
PROGRAMS = re.findall(
    r"## ([^\n]*)\n(?:(?!\n## ).)*?```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.DOTALL
)


def test_each_section_has_a_program() -> None:
    assert len(PROGRAMS) == PAGE.count("\n## ") == PAGE.count("```python\n")


@pytest.mark.parametrize(("code", "shown"), [one[1:] for one in PROGRAMS], ids=[one[0] for one in PROGRAMS])
def test_a_program_prints_what_the_page_shows(code: str, shown: str) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=120
    )
    assert (ran.stdout, ran.stderr) == (shown, "")
