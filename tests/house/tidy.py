"""Rules of tidiness: sizes, docstrings, names, leftovers, purity of the pure rooms, ownership of files."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator

from .sources import Source, Violation, imported_names

MODULE_LINES_MAX = 600
CLASS_LINES_MAX = 400
FUNCTION_LINES_MAX = 70
FOLDER_FILES_MAX = 25
DOCSTRING_CHARACTERS_MIN = 20

BANNED_MODULE_NAMES = ("utils", "util", "helpers", "helper", "manager", "misc", "common", "stuff")
LEFTOVERS = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|\bNotImplementedError\b")
MACHINE_PATHS = re.compile(r"(?<![\w.\-])/(work|root|home/\w+)(/|\b)")

PURE_ROOMS = (
    "values",
    "documents",
    "consensus",
    "schema",
    "placement",
    "metadata",
    "topology",
    "recovery",
    "gossip",
    "ring",
    "cql",
    "tracking",
)
PURE_MODULES = ("lockstep.quorum.round", "lockstep.quorum.round")
IMPURE_MODULES = (
    "asyncio",
    "concurrent",
    "io",
    "logging",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "structlog",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
)
#: Modules that the outside starts: the command, `python -m`, names given to Spark or to test code.
ENTRY_POINTS = (
    "lockstep.cli.main",
    "lockstep.runtime.real.worker_process",
    "lockstep.server.main",
    "lockstep.spark.daemon",
    "lockstep.spark.source",
    "lockstep.testing.ccm",
    "lockstep.testing.ccm_log",
    "lockstep.testing.ccm_nodetool",
    "lockstep.testing.plugin",
    "lockstep.testing.watchdog",
)


def sizes(sources: Iterable[Source]) -> Iterator[Violation]:
    for source in sources:
        lines = source.text.count("\n")
        if lines > MODULE_LINES_MAX:
            yield Violation(source.path, 1, "size", f"module of {lines} lines (at most {MODULE_LINES_MAX})")
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                kind, limit = "class", CLASS_LINES_MAX
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                kind, limit = "function", FUNCTION_LINES_MAX
            else:
                continue
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > limit:
                what = f"{kind} {node.name} of {length} lines (at most {limit})"
                yield Violation(source.path, node.lineno, "size", what)


def docstrings(sources: Iterable[Source]) -> Iterator[Violation]:
    for source in sources:
        text = ast.get_docstring(source.tree) or ""
        if len(text) < DOCSTRING_CHARACTERS_MIN:
            yield Violation(source.path, 1, "docstring", "the module does not say what it owns")


def names(sources: Iterable[Source]) -> Iterator[Violation]:
    for source in sources:
        name = source.module.rpartition(".")[2]
        if any(name == banned or name.endswith(f"_{banned}") for banned in BANNED_MODULE_NAMES):
            yield Violation(source.path, 1, "name", f"a module called {name} says nothing about its concept")


def leftovers(files: Iterable[tuple[str, str]]) -> Iterator[Violation]:
    for path, text in files:
        for number, line in enumerate(text.splitlines(), 1):
            for rule, pattern in (("leftover", LEFTOVERS), ("machine path", MACHINE_PATHS)):
                if match := pattern.search(line):
                    yield Violation(path, number, rule, match.group())


def purity(sources: Iterable[Source]) -> Iterator[Violation]:
    """Pure rooms import nothing that does I/O, reads a clock, draws randomness or runs an event loop."""
    for source in sources:
        if source.room in PURE_ROOMS or source.module in PURE_MODULES:
            # An import under TYPE_CHECKING runs nothing, but even a name of such a thing is a smell.
            for line, name in imported_names(source):
                top = name.partition(".")[0]
                if top in IMPURE_MODULES and "." not in name:
                    yield Violation(source.path, line, "purity", f"pure {source.module} imports {name}")


def ownership(sources: Iterable[Source]) -> Iterator[Violation]:
    """Every module is imported by another one or started from outside."""
    sources = tuple(sources)
    used = {name for source in sources for _, name in imported_names(source) if name != source.module}
    used |= {name for source in sources if source.module in ENTRY_POINTS for name in _named(source)}
    for source in sources:
        started = source.module in ENTRY_POINTS or source.module.endswith("__main__")
        if not source.is_package and not started and source.module not in used:
            yield Violation(source.path, 1, "unowned", "nothing imports this module")


def _named(source: Source) -> Iterator[str]:
    """Modules beside an entry point that it may load by a name in a string."""
    package = source.module.rpartition(".")[0]
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield f"{package}.{node.value.partition(':')[0]}"


def module_state(sources: Iterable[Source]) -> Iterator[Violation]:
    """No state at module level: a node starts and stops many times in one process."""
    for source in sources:
        for node in source.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            if isinstance(node, ast.AnnAssign) and node.value is not None:
                targets = [node.target]
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            for target in targets:
                if not isinstance(target, ast.Name) or target.id == "__all__":
                    continue
                if _grows(value) and not target.id.strip("_").isupper():
                    yield Violation(source.path, node.lineno, "module state", f"mutable {target.id}")
        for inner in ast.walk(source.tree):
            if isinstance(inner, ast.Global):
                yield Violation(source.path, inner.lineno, "module state", f"global {', '.join(inner.names)}")


def _grows(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Dict | ast.List | ast.Set | ast.ListComp | ast.DictComp | ast.SetComp):
        return True
    return (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Name)
        and value.func.id in {"dict", "list", "set", "defaultdict", "deque", "OrderedDict", "Counter"}
    )


def swallowed(sources: Iterable[Source]) -> Iterator[Violation]:
    """No handler of everything that does nothing."""
    for source in sources:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.ExceptHandler):
                continue
            caught = ast.unparse(node.type) if node.type is not None else "everything"
            idle = all(isinstance(step, ast.Pass | ast.Continue) or _is_ellipsis(step) for step in node.body)
            if idle and caught in ("everything", "Exception", "BaseException"):
                yield Violation(source.path, node.lineno, "swallowed", f"an error of kind {caught} vanishes")


def _is_ellipsis(step: ast.stmt) -> bool:
    return isinstance(step, ast.Expr) and isinstance(step.value, ast.Constant) and step.value.value is ...


#: Words of an earlier dialect, and what the field calls them; see docs/internals/glossary.md.
RETIRED = {
    "Farewell": "DecommissionHandoff",
    "JoinDesk": "JoinService",
    "BackupDesk": "BackupService",
    "Canvass": "PaxosRound",
    "Notes": "RequestTrace",
    "Fixing": "Checkpoint",
    "Pace": "CooperativeYield",
    "Turns": "LoopBudget",
    "Intake": "ReadBuffer",
    "Flow": "Backpressure",
    "Outbox": "WriteBuffer",
    "Doorway": "Executor",
    "begin_told": "submit",
    "begin_all": "submit_batch",
    "give_here": "apply_locally",
    "OwedWrite": "GuaranteedWrite",
    "begin_owed": "begin_guaranteed",
    "ShutOut": "ExcludedNodes",
    "Newcomer": "JoiningNode",
    "PlanningAside": "LongStatements",
    "Unacknowledged": "HintingWrite",
    "crowd": "batch",
    "farewell": "decommission_handoff",
    "desk": "service",
    "rivals": "duplicate_identity",
    "canvass": "paxos_round",
    "planted": "mutants",
}


def words(sources: Iterable[Source]) -> Iterator[Violation]:
    """Modules, classes and functions have the names of the glossary."""
    for source in sources:
        named = [(1, source.module.rpartition(".")[2])]
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                named.append((node.lineno, node.name))
        for line, name in named:
            if name in RETIRED:
                yield Violation(source.path, line, "word", f"{name} is called {RETIRED[name]}")


def folders(sources: Iterable[Source]) -> Iterator[Violation]:
    """A folder can be seen at one glance."""
    found: dict[str, int] = {}
    for source in sources:
        folder, _, file = source.path.rpartition("/")
        found[folder] = found.get(folder, 0) + (file != "__init__.py")
    for folder, count in found.items():
        if count > FOLDER_FILES_MAX:
            yield Violation(folder, 1, "folder", f"{count} modules (at most {FOLDER_FILES_MAX})")


RULES: dict[str, Callable[[Iterable[Source]], Iterator[Violation]]] = {
    "sizes": sizes,
    "docstrings": docstrings,
    "names": names,
    "words": words,
    "folders": folders,
    "purity": purity,
    "ownership": ownership,
    "module state": module_state,
    "swallowed errors": swallowed,
}
