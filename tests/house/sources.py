"""The source files as the house rules see them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "lockstep"


class Source(NamedTuple):
    """One module. `path` is relative to the repository, `module` dotted, `room` what follows lockstep."""

    path: str
    module: str
    room: str
    text: str
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.endswith("__init__.py")


class Violation(NamedTuple):
    path: str
    line: int
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.what}"


@functools.cache
def source_of(text: str, path: str = "lockstep/storage/example.py") -> Source:
    """Parsed once, for the rules and the counters read the same files."""
    parts = Path(path).with_suffix("").parts
    dotted = parts[:-1] if parts[-1] == "__init__" else parts
    room = parts[1] if len(parts) > 2 else ""
    return Source(path, ".".join(dotted), room, text, ast.parse(text, path))


@functools.cache
def product() -> tuple[Source, ...]:
    """Every module of the package, in order of path."""
    return tuple(
        source_of(path.read_text(), str(path.relative_to(ROOT))) for path in sorted(PACKAGE.rglob("*.py"))
    )


def texts() -> Iterator[tuple[str, str]]:
    """(path, text) of everything people read or run, without the files that state the rules."""
    for folder in ("lockstep", "docs", "tests"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".md", ".toml", ".lark"} and "house" not in path.parts:
                yield str(path.relative_to(ROOT)), path.read_text()


def dotted(node: ast.AST) -> str:
    """`a.b.c` of a name or an attribute chain; "" for anything else at its root."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        return f"{base}.{node.attr}" if base else f".{node.attr}"
    return ""


def imported_names(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import; `from a import b` gives both a and a.b."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = source.module.split(".")
                if not source.is_package:
                    package = package[:-1]
                package = package[: len(package) - node.level + 1]
                base = ".".join([*package, base] if base else package)
            yield node.lineno, base
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
