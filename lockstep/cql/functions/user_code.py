"""The Python that user functions may be written in: which constructs and names, and bodies made callable.

Invariant: a compiled body sees its arguments, the names listed here and nothing else; nothing in it can name
an attribute that leads out of a value into the interpreter. These rules keep mistakes and plain mischief out;
what keeps a function that gets around them from the machine is the confinement of the process it runs in.
"""

from __future__ import annotations

import ast
import builtins
import datetime
import decimal
import functools
import inspect
import itertools
import json
import keyword
import math
import re
import textwrap
from collections.abc import Callable, Sequence
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, Final

from lockstep.values.errors import InvalidRequest
from lockstep.values.limits import FUNCTION_BODY_CHARACTERS_MAX

_NODES: Final = (
    *(ast.Module, ast.FunctionDef, ast.arguments, ast.arg, ast.Return, ast.Expr, ast.Pass, ast.Lambda),
    *(ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete, ast.Nonlocal),
    *(ast.For, ast.While, ast.If, ast.Break, ast.Continue, ast.Try, ast.ExceptHandler, ast.Raise, ast.Assert),
    *(ast.Import, ast.ImportFrom, ast.alias, ast.BoolOp, ast.NamedExpr, ast.BinOp, ast.UnaryOp, ast.IfExp),
    *(ast.Dict, ast.Set, ast.List, ast.Tuple, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp),
    *(ast.comprehension, ast.Compare, ast.Call, ast.keyword, ast.FormattedValue, ast.JoinedStr, ast.Constant),
    *(ast.Attribute, ast.Subscript, ast.Starred, ast.Name, ast.Slice),
    *(ast.expr_context, ast.boolop, ast.operator, ast.unaryop, ast.cmpop),
)
#: Attributes through which frames, code, exceptions and format strings lead to everything else, and those
#: that read the clock: a function is one of its arguments.
_ATTRIBUTES_REFUSED: Final = re.compile(
    r"_.*|(gi|cr|ag|f|tb|co)_.*|format|format_map|mro|obj|with_traceback|now|utcnow|today"
)


def _chosen(module: Any, names: str) -> SimpleNamespace:
    return SimpleNamespace(**{name: getattr(module, name) for name in names.split()})


#: Not the modules themselves: their attributes lead to other modules.
MODULES: Final = {
    "datetime": _chosen(datetime, "date datetime time timedelta timezone MINYEAR MAXYEAR"),
    "decimal": _chosen(
        decimal,
        "Decimal DecimalException InvalidOperation ROUND_CEILING ROUND_DOWN ROUND_FLOOR ROUND_HALF_DOWN "
        "ROUND_HALF_EVEN ROUND_HALF_UP ROUND_UP ROUND_05UP",
    ),
    "functools": _chosen(functools, "reduce"),
    "itertools": _chosen(
        itertools,
        "accumulate chain combinations groupby islice permutations product repeat takewhile dropwhile "
        "zip_longest pairwise",
    ),
    "json": _chosen(json, "dumps loads JSONDecodeError"),
    "math": _chosen(math, " ".join(name for name in dir(math) if not name.startswith("_"))),
}

#: Loads what it needs, which a confined process cannot do later.
datetime.datetime.strptime("1970 +0000", "%Y %z")


def _imported(name: str, *_: Any) -> SimpleNamespace:
    if name not in MODULES:
        raise ImportError(f"module {name} is not available")
    return MODULES[name]


_BUILTIN_NAMES: Final = """
    abs all any bin bool bytearray bytes chr complex dict divmod enumerate filter float frozenset hex int
    isinstance iter len list map max min next oct ord pow range repr reversed round set slice sorted str sum
    tuple zip ArithmeticError AssertionError AttributeError Exception IndexError KeyError LookupError
    OverflowError RuntimeError StopIteration TypeError ValueError ZeroDivisionError
"""
_BUILTINS: Final = {name: vars(builtins)[name] for name in _BUILTIN_NAMES.split()} | {"__import__": _imported}


def _body(text: str) -> list[ast.stmt]:
    """The statements of a body, which may be indented as a whole, or from its second line on."""
    if len(text) > FUNCTION_BODY_CHARACTERS_MAX:
        raise InvalidRequest(f"A function body has at most {FUNCTION_BODY_CHARACTERS_MAX} characters")
    try:
        try:
            return ast.parse(textwrap.dedent(text).strip()).body
        except SyntaxError:
            return ast.parse(inspect.cleandoc(text)).body
    except SyntaxError as error:
        raise InvalidRequest(f"{error.msg} (line {error.lineno} of the body)") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"it cannot be parsed: {error}") from None


def _refuse_foreign(node: ast.AST) -> None:
    line = f"(line {getattr(node, 'lineno', 1)} of the body)"
    if not isinstance(node, _NODES):
        raise InvalidRequest(f"{type(node).__name__} is not available in functions {line}")
    if isinstance(node, ast.Attribute):
        if _ATTRIBUTES_REFUSED.fullmatch(node.attr):
            raise InvalidRequest(f"attribute '{node.attr}' is not available in functions {line}")
        if not isinstance(node.ctx, ast.Load):
            raise InvalidRequest(f"attributes cannot be assigned in functions {line}")
    if isinstance(node, ast.FunctionDef) and node.decorator_list:
        raise InvalidRequest(f"decorators are not available in functions {line}")
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [a.name for a in node.names]
        for name in modules:
            if name not in MODULES or (isinstance(node, ast.ImportFrom) and node.level):
                raise InvalidRequest(f"module '{name}' is not available in functions {line}")
    for name in _names(node):
        if name.startswith("_"):
            raise InvalidRequest(f"name '{name}' is not available in functions {line}")


def _names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Name):
        return [node.id]
    if isinstance(node, ast.arg):
        return [node.arg]
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.alias):
        return [node.name, node.asname or ""]
    if isinstance(node, ast.ExceptHandler):
        return [node.name or ""]
    return [node.arg or ""] if isinstance(node, ast.keyword) else []


def compiled(arguments: Sequence[str], body: str) -> Callable[..., Any]:
    """A body as a callable of its arguments. InvalidRequest when it is no Python, or not what is allowed."""
    for name in arguments:
        if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("_"):
            raise InvalidRequest(f"an argument cannot be called '{name}' in Python")
    statements = _body(body)
    for statement in statements:
        for node in ast.walk(statement):
            _refuse_foreign(node)
    if not statements:
        raise InvalidRequest("it has no statement")
    if len(statements) == 1 and isinstance(statements[0], ast.Expr):
        statements = [ast.copy_location(ast.Return(statements[0].value), statements[0])]
    made = ast.parse("def function(): pass")
    definition = made.body[0]
    assert isinstance(definition, ast.FunctionDef), "so it was written"
    definition.args.args = [ast.arg(name) for name in arguments]
    definition.body = statements
    try:
        code = compile(ast.fix_missing_locations(made), "<function>", "exec")
    except SyntaxError as error:
        raise InvalidRequest(f"{error.msg} (line {error.lineno} of the body)") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"it cannot be compiled: {error}") from None
    inner = next(part for part in code.co_consts if isinstance(part, CodeType))
    return FunctionType(inner, {"__builtins__": _BUILTINS, **MODULES})
