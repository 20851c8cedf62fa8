"""What makes an operation kind stands in its own module: nobody else asks which kind it is."""

from __future__ import annotations

import ast

import pytest

from .sources import Source, product

KINDS = "lockstep.topology.kinds"
#: In the folder, and no kinds.
SHARED = (f"{KINDS}.ring", f"{KINDS}.registry")


def imported(source: Source) -> set[str]:
    """Modules that it takes names from."""
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
        elif isinstance(node, ast.Import):
            found |= {name.name for name in node.names}
    return found


def kinds_named(module: str, names: set[str]) -> set[str]:
    """The kinds' modules that a module imports; the registry, which has them all, is no kind."""
    own = {name for name in names if name.startswith(f"{KINDS}.") and name.count(".") == 3}
    return own - {module, *SHARED}


def test_drivers_of_operations_know_no_kind_by_name() -> None:
    for source in product():
        inside = source.module.startswith(("lockstep.metadata.", "lockstep.topology."))
        if inside and source.module != SHARED[1]:
            assert not kinds_named(source.module, imported(source)), source.path


def test_nobody_compares_kinds() -> None:
    """There is no list of kinds to compare with, and no kind is told by its word."""
    for source in product():
        assert "OperationKind" not in source.text, source.path
        if source.module.startswith(KINDS):
            continue
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Compare) and source.module.startswith("lockstep.topology."):
                words = [one for one in ast.walk(node) if isinstance(one, ast.Constant)]
                assert not any(one.value in WORDS for one in words), (source.path, node.lineno)


WORDS = ("bootstrap", "decommission", "move", "replace", "remove", "rebuild", "replication_change")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from lockstep.topology.kinds.move import Move", {f"{KINDS}.move"}),
        ("from lockstep.topology.kinds import move", {f"{KINDS}.move"}),
        ("from lockstep.topology.kinds.ring import owned", set()),
        ("from lockstep.topology.kind import Kind", set()),
    ],
)
def test_a_kind_that_is_imported_is_found(text: str, found: set[str]) -> None:
    tree = ast.parse(text)
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{name.name}" for name in node.names)}
    assert kinds_named("lockstep.topology.step", names) == found
