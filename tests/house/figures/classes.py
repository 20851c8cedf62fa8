"""Classes over their whole inheritance inside the project, and what their constructors take."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..sources import Source, dotted
from .tree import Tree, absolute, all_statements

ARGUMENTS_MAX = 8
LINES_MAX = 400
LARGEST = 15
#: Bases that make the annotated fields of a class the arguments of its constructor.
_FIELD_BASES = ("Struct", "NamedTuple")


class Class(NamedTuple):
    module: str
    name: str
    node: ast.ClassDef

    @property
    def title(self) -> str:
        return f"{self.module}:{self.name}"

    @property
    def lines(self) -> int:
        return (self.node.end_lineno or self.node.lineno) - self.node.lineno + 1


class Classes:
    """All classes of a tree that stand at the top of a module, by (module, name).

    Bases are found through imports, also where a package hands a name on.
    """

    def __init__(self, tree: Tree) -> None:
        self._modules = tree.modules
        self._names = {source.module: dict(_bindings(source)) for source in tree.sources}
        self.all: dict[tuple[str, str], Class] = {}
        for source in tree.sources:
            for node in source.tree.body:
                if isinstance(node, ast.ClassDef):
                    self.all[source.module, node.name] = Class(source.module, node.name, node)

    def family(self, one: Class) -> list[Class]:
        """The class and all its ancestors in the tree, each once."""
        found: dict[tuple[str, str], Class] = {}
        waiting = [one]
        while waiting:
            at = waiting.pop(0)
            if (at.module, at.name) not in found:
                found[at.module, at.name] = at
                waiting += self._bases(at)
        return list(found.values())

    def has_fields(self, one: Class) -> bool:
        """Whether its fields are the arguments of its constructor."""
        family = self.family(one)
        names = {dotted(_plain(base)).rpartition(".")[2] for at in family for base in at.node.bases}
        return bool(names & set(_FIELD_BASES)) or any(
            "dataclass" in ast.unparse(item) for at in family for item in at.node.decorator_list
        )

    def _bases(self, one: Class) -> Iterator[Class]:
        for base in one.node.bases:
            found = self._find(one.module, dotted(_plain(base)), 0)
            if found is not None:
                yield found

    def _find(self, module: str, name: str, depth: int) -> Class | None:
        """The class that a dotted name means in a module; re-exports are followed."""
        if (module, name) in self.all:
            return self.all[module, name]
        first, _, rest = name.partition(".")
        target = self._names.get(module, {}).get(first)
        if target is None or depth > 5:
            return None
        whole = f"{target}.{rest}" if rest else target
        owner, _, leaf = whole.rpartition(".")
        return self._find(owner, leaf, depth + 1) if owner in self._modules else None


def _bindings(source: Source) -> Iterator[tuple[str, str]]:
    """(name, dotted thing that it stands for) of every import of a module; the deepest ones last."""
    for node in all_statements(source.tree):
        if isinstance(node, ast.ImportFrom):
            base = absolute(node, source)
            yield from ((alias.asname or alias.name, f"{base}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.partition(".")[0]
                yield alias.asname or first, alias.name if alias.asname else first


def _plain(base: ast.expr) -> ast.expr:
    return base.value if isinstance(base, ast.Subscript) else base


def whole_sizes(classes: Classes) -> list[dict[str, Any]]:
    """Every class by the lines of itself and its ancestors in the tree, the largest first."""
    rows = []
    for one in classes.all.values():
        family = classes.family(one)
        whole = sum(at.lines for at in family)
        rows.append({"class": one.title, "lines": whole, "of": {at.title: at.lines for at in family}})
    return sorted(rows, key=lambda row: (-row["lines"], row["class"]))


def figures(tree: Tree) -> dict[str, Any]:
    """The largest classes, how many are above 400 lines, and constructors of more than 8 arguments."""
    classes = Classes(tree)
    rows = whole_sizes(classes)
    return {
        "largest": rows[:LARGEST],
        "above 400 lines": sum(row["lines"] > LINES_MAX for row in rows),
        **constructors(classes),
    }


def constructors(classes: Classes) -> dict[str, dict[str, int]]:
    """Constructors of more than 8 arguments (self not counted), and values of more than 8 fields."""
    written: dict[str, int] = {}
    values: dict[str, int] = {}
    for one in classes.all.values():
        init = next(
            (node for node in one.node.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"),
            None,
        )
        if init is not None:
            count = len(init.args.posonlyargs) + len(init.args.args) + len(init.args.kwonlyargs) - 1
            if count > ARGUMENTS_MAX:
                written[one.title] = count
        elif classes.has_fields(one):
            fields = {name for at in classes.family(one) for name in _fields(at.node)}
            if len(fields) > ARGUMENTS_MAX:
                values[one.title] = len(fields)
    return {"constructors": _by_count(written), "values": _by_count(values)}


def _fields(node: ast.ClassDef) -> Iterator[str]:
    for item in node.body:
        if not isinstance(item, ast.AnnAssign) or "ClassVar" in ast.unparse(item.annotation):
            continue
        if isinstance(item.target, ast.Name):
            yield item.target.id


def _by_count(found: dict[str, int]) -> dict[str, int]:
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))
