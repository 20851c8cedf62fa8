"""Prints how the house stands: `make house`, or `python -m tests.house.report`.

Counts what the sources say (sizes, classes, cycles, memos, asserts) and what runs in the simulator (which
validate() is called, five walks). Invariant: the same tree gives the same figures each time.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from .figures import asserts, classes, cycles, memos, sizes, tables, validates, walks
from .figures.tree import Tree, read_tree
from .sources import ROOT
from .tidy import PURE_ROOMS


def static_figures(tree: Tree, files: dict[str, int]) -> dict[str, Any]:
    """What the sources alone tell, with the numbers of files that lie flat in folders."""
    return {
        "sizes": sizes.sizes(tree, files),
        "classes": classes.figures(tree),
        "cycles": cycles.cycles(tree),
        "memos": memos.memos(tree),
        "cached properties": memos.cached_properties(tree),
        "asserts": asserts.asserts(tree.sources, PURE_ROOMS, asserts.BESIDE),
    }


def all_figures(root: Path, *, runs: bool = True) -> dict[str, Any]:
    """Everything about the checkout at `root`; without `runs` only what the sources tell."""
    tree = read_tree(root)
    found = static_figures(tree, sizes.flat_files(root))
    found |= {"revision": _revision(root), "apart": sizes.apart(root)}
    if runs:
        # Before anything imports the product: the one of that checkout is meant.
        assert "lockstep" not in sys.modules
        sys.path.insert(0, str(root))
        found["walks"] = walks.walks(root)
        found["validates"] = validates.in_simulations(tree)
    return found


def _revision(root: Path) -> str:
    """The commit, with a plus when the work tree differs from it."""
    said = [
        subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=False).stdout
        for words in (("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--untracked-files=no"))
    ]
    return (said[0].strip() or "no revision") + ("+" if said[1].strip() else "")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="report", description=__doc__.partition("\n")[0])
    parser.add_argument("--tree", type=Path, default=ROOT, help="the checkout to count; this one by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="figures of another run, shown beside")
    parser.add_argument("--static", action="store_true", help="count sources only, run nothing")
    given = parser.parse_args(arguments)
    before = json.loads(given.compare.read_text()) if given.compare else None
    figures = all_figures(given.tree.resolve(), runs=not given.static)
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    print(tables.report(figures) if before is None else tables.comparison(before, figures))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
