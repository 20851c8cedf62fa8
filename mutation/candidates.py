"""Enumerates the mutants of a source file: one changed expression or statement each.

The operators are mutmut's, without those of texts (a message that reads differently is no fault), and two
more that stand for what people forget: a statement that is not there, and a check that never applies. What
stands in annotations, decorators, f-strings, messages of assertions and raised errors is left alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

Operator = Callable[[Any], Iterable[cst.CSTNode]]
#: What differs between the two texts of a mutant is shown with so many characters of both sides.
CONTEXT_CHARACTERS = 24
SHOWN_CHARACTERS = 160


def _forgotten(node: cst.SimpleStatementLine) -> Iterable[cst.CSTNode]:
    """A call for its effect, or an assignment to an attribute or an entry, is left out."""
    if len(node.body) != 1:
        return
    (one,) = node.body
    if isinstance(one, cst.Expr) and isinstance(one.value, cst.Call | cst.Await):
        yield node.with_changes(body=[cst.Pass()])
    if isinstance(one, cst.Assign | cst.AugAssign):
        target = one.targets[0].target if isinstance(one, cst.Assign) else one.target
        if isinstance(target, cst.Attribute | cst.Subscript):
            yield node.with_changes(body=[cst.Pass()])


def _never(node: cst.If) -> Iterable[cst.CSTNode]:
    """A condition never holds."""
    yield node.with_changes(test=cst.Name("False"))


#: Groups of operators: a score of each is told, as mutants that crash at once are easy to kill.
GROUPS: Mapping[str, Sequence[tuple[type, Operator]]] = {
    "logic": (
        (cst.BaseNumber, mutators.operator_number),
        (cst.Name, mutators.operator_name),
        (cst.UnaryOperation, mutators.operator_remove_unary_ops),
        (cst.CSTNode, mutators.operator_keywords),
        (cst.CSTNode, mutators.operator_swap_op),
        (cst.IfExp, mutators.operator_if_exp),
        (cst.Match, mutators.operator_match),
    ),
    "omission": ((cst.SimpleStatementLine, _forgotten), (cst.If, _never)),
    "data": (
        (cst.Assign, mutators.operator_assignment),
        (cst.AnnAssign, mutators.operator_assignment),
        (cst.AugAssign, mutators.operator_augmented_assignment),
        (cst.Call, mutators.operator_dict_arguments),
        (cst.Call, mutators.operator_arg_removal),
        (cst.Call, mutators.operator_symmetric_string_methods_swap),
        (cst.Call, mutators.operator_unsymmetrical_string_methods_swap),
        (cst.Lambda, mutators.operator_lambda),
    ),
}


class Mutant(NamedTuple):
    """`path` is relative to the root; `place` counts equal changes of one function, from 1 on."""

    path: str
    line: int
    function: str
    before: str
    after: str
    place: int
    group: str
    #: Lines that the changed statement covers.
    lines: tuple[int, ...]

    @property
    def module(self) -> str:
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def name(self) -> str:
        """Stays the same while the function does, whatever moves above it."""
        return f"{self.path}::{self.function}: {self.before} -> {self.after} #{self.place}"

    def rank(self, seed: int) -> bytes:
        """Where it stands in the drawn order of a seed."""
        return hashlib.blake2b(f"{seed} {self.name}".encode(), digest_size=8).digest()


class _Found(NamedTuple):
    original: cst.CSTNode
    mutated: cst.CSTNode
    lines: tuple[int, ...]
    function: str
    group: str


_LEFT_ALONE = (
    cst.Annotation, cst.Decorator, cst.FormattedString, cst.Raise, cst.Import, cst.ImportFrom,
)  # fmt: skip


class _Collector(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[_Found] = []
        self._scopes: list[cst.FunctionDef | cst.ClassDef] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.FunctionDef | cst.ClassDef):
            self._scopes.append(node)
            if isinstance(node, cst.ClassDef):
                node.body.visit(self)  # the options of a class are left alone
            return isinstance(node, cst.FunctionDef)
        if isinstance(node, _LEFT_ALONE):
            return False
        if isinstance(node, cst.Assert):
            node.test.visit(self)
            return False
        if self._scopes and not self._says_nothing(node):
            self._mutate(node)
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        if isinstance(original_node, cst.FunctionDef | cst.ClassDef):
            self._scopes.pop()

    def _says_nothing(self, node: cst.CSTNode) -> bool:
        """False and 0 are as good as None nearly everywhere, and the text of a member of an enumeration as
        any other text."""
        value = node.value if isinstance(node, cst.Assign | cst.AnnAssign) else None
        if isinstance(value, cst.SimpleString):
            return isinstance(self._scopes[-1], cst.ClassDef)
        return isinstance(value, cst.Name | cst.Integer) and value.value in ("False", "0")

    def _mutate(self, node: cst.CSTNode) -> None:
        position = self.get_metadata(PositionProvider, node, None)
        if position is None:
            return
        lines = tuple(range(position.start.line, position.end.line + 1))
        if isinstance(node, cst.If):
            lines = lines[:1]
        function = ".".join(scope.name.value for scope in self._scopes)
        for group, operators in GROUPS.items():
            for kind, operator in operators:
                if isinstance(node, kind):
                    self.found.extend(_Found(node, made, lines, function, group) for made in operator(node))


class MutatedFile:
    """One file with all its mutants; `source_of` gives the whole text of one."""

    def __init__(self, root: Path, path: str) -> None:
        self._module = cst.parse_module((root / path).read_text())
        collector = _Collector()
        wrapper = MetadataWrapper(self._module, unsafe_skip_copy=True)
        wrapper.visit(collector)
        self._changes: dict[str, _Found] = {}
        self.mutants: list[Mutant] = []
        counts: dict[str, int] = {}
        for found in collector.found:
            before, after = _shortened(self._text(found.original), self._text(found.mutated))
            if before == after:
                continue
            key = f"{found.function} {before} {after}"
            counts[key] = counts.get(key, 0) + 1
            place = counts[key]
            mutant = Mutant(
                path, found.lines[0], found.function, before, after, place, found.group, found.lines
            )
            self.mutants.append(mutant)
            self._changes[mutant.name] = found

    def _text(self, node: cst.CSTNode) -> str:
        return " ".join(self._module.code_for_node(node).split())

    def source_of(self, mutant: Mutant) -> str:
        change = self._changes[mutant.name]
        changed = self._module.deep_replace(change.original, change.mutated)
        assert isinstance(changed, cst.Module), "a module stays one"
        return changed.code


def _shortened(before: str, after: str) -> tuple[str, str]:
    """Both texts around where they differ."""
    shorter = min(len(before), len(after))
    start = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    start = max(0, start - CONTEXT_CHARACTERS)
    shown = (text[start : start + SHOWN_CHARACTERS] for text in (before, after))
    one, other = (f"…{text}" if start else text for text in shown)
    return one, other


def of_room(root: Path, room: str) -> list[MutatedFile]:
    """Every file of `lockstep/<room>`, ascending by path, but for those that only say what a room owns."""
    paths = sorted(path.relative_to(root).as_posix() for path in (root / "lockstep" / room).rglob("*.py"))
    files = [MutatedFile(root, path) for path in paths]
    return [file for file in files if file.mutants]


def sample(files: Sequence[MutatedFile], count: int, seed: int) -> list[tuple[MutatedFile, Mutant]]:
    """`count` mutants in all, as many of each group, drawn by the seed; all there are when `count` is 0."""
    pairs = [(file, mutant) for file in files for mutant in file.mutants]
    pairs.sort(key=lambda pair: pair[1].rank(seed))
    if not count:
        return pairs
    each = -(-count // len(GROUPS))
    return [pair for group in GROUPS for pair in [one for one in pairs if one[1].group == group][:each]]
