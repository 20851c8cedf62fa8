"""Groups of modules that import each other in a circle."""

from __future__ import annotations

from collections.abc import Iterable

from .tree import AT_IMPORT, FOR_TYPES, LATE, Tree

#: What each row of the report follows.
VIEWS = {
    "at import time": (AT_IMPORT,),
    "with TYPE_CHECKING": (AT_IMPORT, FOR_TYPES),
    "with late imports too": (AT_IMPORT, FOR_TYPES, LATE),
}


def cycles(tree: Tree) -> dict[str, list[list[str]]]:
    """Per view the groups, the largest first. A module's own package is not what it imports."""
    return {name: groups(tree, whens) for name, whens in VIEWS.items()}


def groups(tree: Tree, whens: Iterable[str]) -> list[list[str]]:
    """Strongly connected groups of more than one module (Tarjan, without recursion)."""
    edges: dict[str, list[str]] = {source.module: [] for source in tree.sources}
    for one in tree.imports:
        if one.when in whens:
            edges[one.importer].append(one.imported)
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for start in edges:
        work = [] if start in index else [(start, iter(edges[start]))]
        if work:
            index[start] = low[start] = len(index)
            stack.append(start)
        while work:
            at, targets = work[-1]
            for target in targets:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(edges[target])))
                    break
                if target in stack:
                    low[at] = min(low[at], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[at])
                if low[at] == index[at]:
                    cut = stack.index(at)
                    found.append(sorted(stack[cut:]))
                    del stack[cut:]
    return sorted((group for group in found if len(group) > 1), key=lambda group: (-len(group), group))
