"""Lines, modules and files per folder; modules that are small, and modules that only one other imports."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from .tree import APART, FOR_TYPES, PRODUCT, Tree

SMALL_LINES = 60
FOLDER_FILES_MAX = 25


def lines(text: str) -> int:
    return text.count("\n")


def sizes(tree: Tree, files: dict[str, int]) -> dict[str, Any]:
    """`files` gives the number of files that lie flat in each folder, whatever their kind."""
    folders: dict[str, dict[str, int]] = {
        folder: {"files": count, "modules": 0, "lines": 0} for folder, count in sorted(files.items())
    }
    for source in tree.sources:
        row = folders.setdefault(source.path.rpartition("/")[0], {"files": 0, "modules": 0, "lines": 0})
        row["modules"] += 1
        row["lines"] += lines(source.text)
    return {
        "modules": len(tree.sources),
        "lines": sum(lines(source.text) for source in tree.sources),
        "modules under 60 lines": sum(lines(source.text) < SMALL_LINES for source in tree.sources),
        "modules with one importer": len(single_importers(tree)),
        "folders above 25 files": sorted(
            folder for folder, row in folders.items() if row["files"] > FOLDER_FILES_MAX
        ),
        "folders": folders,
    }


def single_importers(tree: Tree) -> dict[str, str]:
    """{module: the only module that imports it}. Packages, and imports for type checkers, are left out."""
    users: dict[str, set[str]] = {}
    for one in tree.imports:
        if one.when == FOR_TYPES:
            continue
        users.setdefault(one.imported, set()).add(one.importer)
    packages = {source.module for source in tree.sources if source.is_package}
    return {
        module: next(iter(by))
        for module, by in sorted(users.items())
        if len(by) == 1 and module not in packages
    }


def flat_files(root: Path, packages: Iterable[str] = PRODUCT) -> dict[str, int]:
    """{folder: files directly in it}, compiled ones left out."""
    counts: dict[str, int] = {}
    for name in packages:
        for path in (root / name).rglob("*"):
            if path.is_file() and path.suffix != ".pyc":
                folder = str(path.parent.relative_to(root))
                counts[folder] = counts.get(folder, 0) + 1
    return counts


def apart(root: Path) -> dict[str, dict[str, int]]:
    """Modules and lines of what is not shipped."""
    found = {}
    for name in APART:
        texts = [path.read_text() for path in (root / name).rglob("*.py")]
        found[name] = {"modules": len(texts), "lines": sum(map(lines, texts))}
    return found
