"""The product of a checkout as the counters see it: its modules, and who imports whom and when."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ..sources import Source, dotted, source_of

PRODUCT = ("lockstep", "pyspark_lockstep", "pytest_lockstep")
#: Counted apart: what is not shipped.
APART = ("tests", "mutation", "bench", "conformance")

#: When an import runs: with the module, for type checkers only, inside a function.
AT_IMPORT, FOR_TYPES, LATE = "import", "types", "late"


class Import(NamedTuple):
    """One module of the tree imports another; `when` is AT_IMPORT, FOR_TYPES or LATE."""

    importer: str
    imported: str
    when: str


class Tree(NamedTuple):
    sources: tuple[Source, ...]
    imports: tuple[Import, ...]

    @property
    def modules(self) -> dict[str, Source]:
        return {source.module: source for source in self.sources}


def tree_of(texts: Mapping[str, str]) -> Tree:
    """A tree of {path: text}; paths are relative to the checkout and begin with a package."""
    sources = tuple(source_of(texts[path], path) for path in sorted(texts))
    known = {source.module for source in sources}
    found = {one: None for source in sources for one in _imports(source, known)}
    return Tree(sources, tuple(sorted(found)))


def read_tree(root: Path, packages: Iterable[str] = PRODUCT) -> Tree:
    paths = [path for name in packages for path in sorted((root / name).rglob("*.py"))]
    return tree_of({str(path.relative_to(root)): path.read_text() for path in paths})


def _imports(source: Source, known: set[str]) -> Iterator[Import]:
    for node, when in _import_nodes(source.tree, AT_IMPORT):
        for imported in _targets(node, source, known):
            if imported != source.module:
                yield Import(source.module, imported, when)


def _import_nodes(node: ast.AST, when: str) -> Iterator[tuple[ast.Import | ast.ImportFrom, str]]:
    for child in _statements(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child, when
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _import_nodes(child, LATE)
        elif isinstance(child, ast.If) and dotted(child.test).endswith("TYPE_CHECKING"):
            yield from _import_nodes(ast.Module(child.body, []), FOR_TYPES)
            yield from _import_nodes(ast.Module(child.orelse, []), when)
        else:
            yield from _import_nodes(child, when)


def all_statements(tree: ast.Module) -> Iterator[ast.AST]:
    """In the order of ast.walk, level by level, without the expressions, which are most of a tree."""
    level: list[ast.AST] = [tree]
    while level:
        yield from level
        level = [below for node in level for below in _statements(node)]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those right below, and what holds some itself: no expression imports anything."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        found = getattr(node, field, ())
        yield from found if isinstance(found, list) else ()


def _targets(node: ast.Import | ast.ImportFrom, source: Source, known: set[str]) -> Iterator[str]:
    """Modules of the tree that one statement names: of `from a import b` it is a.b where that is a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if alias.name in known)
        return
    base = absolute(node, source)
    for alias in node.names:
        inner = f"{base}.{alias.name}"
        if inner in known:
            yield inner
        elif base in known:
            yield base


def absolute(node: ast.ImportFrom, source: Source) -> str:
    """The dotted module that `from ... import` names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = source.module.split(".")
    if not source.is_package:
        package = package[:-1]
    package = package[: len(package) - node.level + 1]
    return ".".join([*package, node.module] if node.module else package)
