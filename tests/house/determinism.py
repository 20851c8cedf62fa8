"""Rules that keep runs repeatable: what code outside the operating system's doors may not contain."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from .sources import Source, Violation, dotted

#: These touch the operating system; everything else goes through runtime.ports.
EXEMPT = (
    "lockstep/runtime/real/",
    "lockstep/sim/runtime/guard.py",
    "lockstep/sim/reached.py",
    "lockstep/sim/runner.py",
    "lockstep/sim/runner.py",
    "lockstep/local/",
    "lockstep/cli/",
    "lockstep/spark/",
    "lockstep/testing/",
    "lockstep/server/main.py",
)
#: The simulator's own seams: (path, beginning of the finding) with the reason.
ALLOWED = {
    ("lockstep/sim/runtime/streams.py", "import random"): "the one place where seeded generators are made",
    ("lockstep/sim/runtime/world.py", "import gc"): "collects at fixed places of the run",
    ("lockstep/sim/runtime/process.py", "call of .create_task"): "is the Tasks port of the simulated family",
    (
        "lockstep/sim/runtime/process.py",
        "call of .run_in_executor",
    ): "is the Tasks port of the simulated family",
    ("lockstep/sim/runtime/loop.py", "swallows"): "closes the coroutines of a process that is dead",
    ("lockstep/sim/runtime/world.py", "swallows"): "is the loop: what escapes a callback fails the run",
}

FORBIDDEN_MODULES = (
    "concurrent",
    "ctypes",
    "gc",
    "glob",
    "multiprocessing",
    "os",
    "pathlib",
    "queue",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
    "weakref",
)
FORBIDDEN_CALLS = {
    "open": "files go through the Disk port",
    "input": "nobody is there to answer",
    "id": "addresses differ between processes",
    "hash": "text hashes differ between processes",
    "asyncio.create_task": "every task has an owner: use tasks.spawn",
    "asyncio.ensure_future": "every task has an owner: use tasks.spawn",
    "asyncio.wait": "answers with sets: use gather, or a queue",
    "asyncio.as_completed": "keeps a set of awaitables: use gather, or a queue",
    "asyncio.to_thread": "use tasks.run_blocking",
    "asyncio.run": "the runtime owns the loop",
    "asyncio.get_event_loop": "use get_running_loop",
    "asyncio.open_connection": "use the Network port",
    "asyncio.start_server": "use the Network port",
    "datetime.now": "use the Clock port",
    "datetime.utcnow": "use the Clock port",
    "datetime.today": "use the Clock port",
    "date.today": "use the Clock port",
}
FORBIDDEN_METHODS = {
    ".run_in_executor": "use tasks.run_blocking",
    ".create_task": "every task has an owner: use tasks.spawn, or a TaskGroup",
    ".create_server": "use the Network port",
    ".create_connection": "use the Network port",
}
#: What one may do with a set in any order.
ORDERLESS = ("sorted", "set", "frozenset", "len", "any", "all", "sum", "bool")
ORDERED = ("list", "tuple", "next", "iter", "enumerate", "zip", "reversed", "map", "filter", "deque", "dict")
_SET_METHODS = ("union", "intersection", "difference", "symmetric_difference", "copy")


def findings(sources: Iterable[Source]) -> Iterator[Violation]:
    for source in sources:
        if source.path.startswith(EXEMPT):
            continue
        visitor = _Visitor(source.path)
        visitor.visit(source.tree)
        for found in sorted(visitor.found):
            if not any(found.path == path and found.what.startswith(what) for path, what in ALLOWED):
                yield found


class _Visitor(ast.NodeVisitor):
    """Walks one module, knowing which names of the scope at hand hold sets or task groups."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[Violation] = []
        self._sets: list[set[str]] = [set()]
        self._groups: set[str] = set()
        #: Calls that are fine where they stand: hash() in __hash__, wait() whose answer nobody uses.
        self._fine: set[ast.AST] = set()
        self._orderless: set[ast.AST] = set()

    def _hit(self, node: ast.AST, what: str) -> None:
        self.found.append(Violation(self.path, getattr(node, "lineno", 1), "determinism", what))

    # ---- scopes

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        # What a method stores in self is known to all methods.
        attributes = _SetAttributes(self)
        attributes.visit(node)
        self._sets.append(attributes.names)
        self.generic_visit(node)
        self._sets.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__del__":
            self._hit(node, "__del__ runs whenever garbage is collected")
        if node.name == "__hash__":
            self._fine.update(ast.walk(node))
        arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
        scope = {argument.arg for argument in arguments if _is_set_type(argument.annotation)}
        plain = {argument.arg for argument in arguments} - scope
        self._sets.append({name for name in self._all_sets() if name not in plain} | scope)
        self.generic_visit(node)
        self._sets.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def _all_sets(self) -> set[str]:
        return self._sets[-1]

    # ---- what holds a set

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            self._assign(target, self.is_set(node.value))
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        holds = _is_set_type(node.annotation) or (node.value is not None and self.is_set(node.value))
        self._assign(node.target, holds)
        self.generic_visit(node)

    def _assign(self, target: ast.expr, holds: bool) -> None:
        name = dotted(target)
        if not name:
            return
        if holds:
            self._sets[-1].add(name)
        elif not name.startswith("self."):
            self._sets[-1].discard(name)

    def is_set(self, node: ast.expr) -> bool:
        if isinstance(node, ast.Set | ast.SetComp):
            return True
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            if name in ("set", "frozenset"):
                return True
            if isinstance(node.func, ast.Attribute) and node.func.attr in _SET_METHODS:
                return self.is_set(node.func.value)
            return False
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
            sides = (node.left, node.right)
            return any(self.is_set(side) or _is_keys(side) for side in sides)
        if isinstance(node, ast.IfExp):
            return self.is_set(node.body) or self.is_set(node.orelse)
        name = dotted(node)
        return bool(name) and name in self._all_sets()

    # ---- what depends on an order

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        if self.is_set(node.iter):
            self._hit(node, f"iterates the set {ast.unparse(node.iter)}: use sorted() or a dict")
        self.generic_visit(node)

    visit_AsyncFor = visit_For  # type: ignore[assignment]

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        if node not in self._orderless:
            for part in node.generators:
                if self.is_set(part.iter):
                    self._hit(part.iter, f"comprehension over the set {ast.unparse(part.iter)}: use sorted()")
        self.generic_visit(node)

    visit_ListComp = visit_GeneratorExp = visit_DictComp = _comprehension  # type: ignore[assignment]

    def visit_Starred(self, node: ast.Starred) -> None:
        if node not in self._orderless and self.is_set(node.value):
            self._hit(node, f"unpacks the set {ast.unparse(node.value)}")
        self.generic_visit(node)

    def visit_Set(self, node: ast.Set) -> None:
        self._orderless.update(part for part in node.elts if isinstance(part, ast.Starred))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = dotted(node.func)
        self._judge_call(node, name)
        first = node.args[0] if node.args else None
        if name in ORDERLESS or (name in ("min", "max") and not node.keywords):
            self._orderless.update(node.args)
        elif first is not None and self.is_set(first):
            if name in ORDERED or name.endswith((".join", ".fromkeys", ".extend")):
                self._hit(node, f"{name.lstrip('.')}() of the set {ast.unparse(first)}: use sorted()")
            elif name in ("min", "max"):
                self._hit(node, f"{name}() by key of the set {ast.unparse(first)}: ties depend on its order")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Await):
            self._fine.add(node.value.value)
        self.generic_visit(node)

    def _judge_call(self, node: ast.Call, name: str) -> None:
        for forbidden, why in FORBIDDEN_CALLS.items():
            if node in self._fine and forbidden in ("hash", "asyncio.wait"):
                continue
            if name == forbidden or ("." in forbidden and name.endswith(f".{forbidden}")):
                self._hit(node, f"call of {forbidden}: {why}")
        for method, why in FORBIDDEN_METHODS.items():
            owner = name.removesuffix(method)
            if name.endswith(method) and owner != "asyncio" and owner not in self._groups:
                self._hit(node, f"call of {method}: {why}")
        pops = name.endswith(".pop") and not node.args and isinstance(node.func, ast.Attribute)
        if pops and self.is_set(node.func.value):
            self._hit(node, f"pop() of the set {ast.unparse(node.func.value)}")
        for keyword in node.keywords:
            if keyword.arg == "key" and dotted(keyword.value) in ("id", "hash"):
                self._hit(node, f"sorts by {dotted(keyword.value)}")

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        for item in node.items:
            made = item.context_expr
            if isinstance(made, ast.Call) and item.optional_vars and dotted(made.func).endswith("TaskGroup"):
                self._groups.add(dotted(item.optional_vars))
        self.generic_visit(node)

    # ---- imports and handlers

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] in FORBIDDEN_MODULES:
                self._hit(node, f"import {alias.name}: goes through runtime.ports")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if not node.level and (node.module or "").partition(".")[0] in FORBIDDEN_MODULES:
            self._hit(node, f"import {node.module}: goes through runtime.ports")

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        caught = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        names = {dotted(one).rpartition(".")[2] if one is not None else "everything" for one in caught}
        catches_cancel = bool(names & {"everything", "BaseException", "CancelledError"})
        if catches_cancel and not any(isinstance(inner, ast.Raise) for inner in ast.walk(node)):
            self._hit(node, "swallows CancelledError: the task cannot be cancelled")
        self.generic_visit(node)


class _SetAttributes(ast.NodeVisitor):
    """Finds attributes (`self.x`) that a class fills with sets."""

    def __init__(self, owner: _Visitor) -> None:
        self._owner = owner
        self.names: set[str] = set()

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if dotted(target).startswith("self.") and self._owner.is_set(node.value):
                self.names.add(dotted(target))

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if _is_set_type(node.annotation):
            name = dotted(node.target)
            self.names.add(name if name.startswith("self.") else f"self.{name}")


def _is_set_type(annotation: ast.expr | None) -> bool:
    if annotation is None:
        return False
    text = ast.unparse(annotation).strip("'\"")
    return text.startswith(("set[", "frozenset[", "AbstractSet[", "Set[")) or text in ("set", "frozenset")


def _is_keys(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys"
