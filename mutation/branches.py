"""Writes which branches of the rooms the unit tests take, as a data file of coverage.py.

`make reached` compares that with what simulations reach. The measures are those that mutants are tried by, so
only test modules that changed, or use what changed, are run.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import coverage

from mutation.chosen_tests import PRELOADED
from mutation.tests_of_lines import ALSO, ROOMS, ModuleTests, folders_of, measured, names_of

ROOT = Path(__file__).resolve().parents[1]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m mutation.branches")
    parser.add_argument("written", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="test modules at a time")
    given = parser.parse_args(arguments)
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    for name in PRELOADED:
        importlib.import_module(name)
    folders = dict.fromkeys(folder for room in ROOMS for folder in folders_of(ROOT, room))
    with tempfile.TemporaryDirectory(prefix="branches-") as work:
        names = names_of(ROOT, folders)
        modules = measured(ROOT, names, is_of_rooms, Path(work), given.jobs, _say)
    write(ROOT, modules, given.written)
    print(f"{len(modules)} test modules of {len(ALSO)} rooms: {given.written}")
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def is_of_rooms(path: str) -> bool:
    return path.startswith(tuple(f"lockstep/{room}/" for room in ROOMS))


def write(root: Path, modules: Sequence[ModuleTests], path: Path) -> None:
    """What all of them take together; a file that was there is replaced."""
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    arcs: dict[str, set[tuple[int, int]]] = {}
    for module in modules:
        for file, taken in module.arcs.items():
            arcs.setdefault(str(root / file), set()).update((at, to) for at, to in taken)
    data = coverage.CoverageData(basename=str(path))
    data.add_arcs(arcs)
    data.write()


if __name__ == "__main__":
    sys.exit(main())
