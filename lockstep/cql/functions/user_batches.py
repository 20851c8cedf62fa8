"""What a worker that evaluates user functions is asked and answers, its answering, and the Python that they
may be written in: which constructs and names, and bodies made callable.

Invariant: an answer depends on the question alone; an error inside a function is part of the answer, never an
exception here. What goes in and comes out unchanged has the same bytes, except that a set of values that
Python cannot hold in a set is a list, and a map with such keys a list of pairs. UUIDs are texts, times whole
numbers of nanoseconds and durations (months, days, nanoseconds), which Python's own types would round. A
compiled body sees its arguments, the names listed here and nothing else; nothing in it can name an attribute
that leads out of a value into the interpreter. These rules keep mistakes and plain mischief out; what keeps a
function that gets around them from the machine is the confinement of the process it runs in.
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
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any, Final

import msgspec

from lockstep.schema.types import (
    CqlType,
    ListType,
    MapType,
    SetType,
    TupleType,
    UserDefinedType,
    UserFields,
    VectorType,
    parse_type_with,
    parse_uuid,
    uuid_text,
)
from lockstep.values import codec
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
    if name == "_strptime":
        # From Python 3.12 on `strptime` asks for it so, and takes what is loaded already.
        return SimpleNamespace()
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


_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST_DAY = datetime.date(1970, 1, 1)
_MS = datetime.timedelta(milliseconds=1)


def _hashable(kind: CqlType) -> bool:
    return not kind.is_collection and not isinstance(kind, TupleType | VectorType)


def to_python(kind: CqlType, data: bytes | None) -> Any:
    """A serialised value for a function. InvalidRequest when Python has no such value."""
    return None if data is None else _shaped(kind, kind.deserialize(data))


def _shaped(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    try:
        if kind.name == "timestamp":
            return _EPOCH + value * _MS
        if kind.name == "date":
            return _FIRST_DAY + datetime.timedelta(days=value)
    except OverflowError:
        raise InvalidRequest(f"a {kind.name} outside the years 1 to 9999") from None
    if kind.name in ("uuid", "timeuuid"):
        return uuid_text(value)
    if isinstance(kind, ListType | VectorType):
        return [_shaped(kind.element, item) for item in value]
    if isinstance(kind, SetType):
        items = [_shaped(kind.element, item) for item in value]
        return set(items) if _hashable(kind.element) else items
    if isinstance(kind, MapType):
        pairs = [(_shaped(kind.key, key), _shaped(kind.value, item)) for key, item in value]
        return dict(pairs) if _hashable(kind.key) else pairs
    if isinstance(kind, TupleType):
        parts = [_shaped(part, item) for part, item in zip(kind.elements, value, strict=False)]
        if not isinstance(kind, UserDefinedType):
            return tuple(parts)
        missing = [None] * (len(kind.field_names) - len(parts))
        return dict(zip(kind.field_names, parts + missing, strict=True))
    return value


def from_python(kind: CqlType, value: Any) -> bytes | None:
    """What a function returned, serialised. InvalidRequest when it is not of the type."""
    return None if value is None else kind.serialize(_plain(kind, value))


def _plain(kind: CqlType, value: Any) -> Any:
    if value is None:
        return None
    if kind.name in ("uuid", "timeuuid") and isinstance(value, str):
        return parse_uuid(value)
    if isinstance(value, datetime.datetime) and kind.name in ("timestamp", "date"):
        at = value if value.tzinfo is not None else value.replace(tzinfo=datetime.UTC)
        return (at - _EPOCH) // _MS if kind.name == "timestamp" else (at.date() - _FIRST_DAY).days
    if isinstance(value, datetime.date) and kind.name == "date":
        return (value - _FIRST_DAY).days
    if kind.name == "decimal" and isinstance(value, int | float) and not isinstance(value, bool):
        return Decimal(str(value))
    if isinstance(kind, ListType | VectorType | SetType) and isinstance(
        value, list | tuple | set | frozenset
    ):
        return [_plain(kind.element, item) for item in value]
    if isinstance(kind, MapType) and isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else value
        return [(_plain(kind.key, key), _plain(kind.value, item)) for key, item in pairs]
    if isinstance(kind, UserDefinedType) and isinstance(value, Mapping):
        known = {name: _plain(part, value.get(name)) for name, part in _fields(kind)}
        return known | {name: item for name, item in value.items() if name not in known}
    if isinstance(kind, TupleType) and isinstance(value, list | tuple):
        if len(value) > len(kind.elements):
            raise InvalidRequest(f"{len(value)} values for {kind.text}")
        return tuple(_plain(part, item) for part, item in zip(kind.elements, value, strict=False))
    return value


def _fields(kind: UserDefinedType) -> list[tuple[str, CqlType]]:
    return list(zip(kind.field_names, kind.elements, strict=True))


Arguments = tuple[bytes | None, ...]


class NamedType(msgspec.Struct, frozen=True, array_like=True):
    """A user-defined type that a function's types name, directly or inside others."""

    name: str
    fields: tuple[str, ...]
    types: tuple[str, ...]


class Code(msgspec.Struct, frozen=True, array_like=True):
    """A function as it is evaluated; types are canonical texts."""

    keyspace: str
    name: str
    argument_names: tuple[str, ...]
    argument_types: tuple[str, ...]
    returns: str
    body: str
    called_on_null: bool
    types: tuple[NamedType, ...] = ()

    @property
    def text(self) -> str:
        """For messages: the qualified name and the types of its arguments."""
        return f"{self.keyspace}.{self.name}[{', '.join(self.argument_types)}]"


class Calls(msgspec.Struct, frozen=True, array_like=True, tag="calls"):
    """Calls of one function; each is answered with one value."""

    code: Code
    calls: tuple[Arguments, ...]


class Fold(msgspec.Struct, frozen=True, array_like=True, tag="fold"):
    """A state folded over rows by a state function; the answer is one value, the last state."""

    code: Code
    state: bytes | None
    rows: tuple[Arguments, ...]


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """`failures`: (index of a call, what went wrong); its value is null. A fold has index 0."""

    values: tuple[bytes | None, ...]
    failures: tuple[tuple[int, str], ...] = ()


_DECODER = codec.decoder(Calls | Fold)  # type: ignore[arg-type]
OUTCOMES = codec.decoder(Outcome)


def handle(question: bytes) -> bytes:
    """The answer to one encoded Calls or Fold."""
    asked: Calls | Fold = _DECODER.decode(question)
    return codec.encode(_fold(asked) if isinstance(asked, Fold) else _calls(asked))


class _Callable:
    """A function ready to be called with serialised arguments."""

    def __init__(self, code: Code) -> None:
        found = {named.name: named for named in code.types}

        def resolve(keyspace: str | None, name: str) -> UserFields | None:
            named = found.get(name)
            if named is None:
                return None
            kinds = tuple(parse_type_with(text, resolve) for text in named.types)
            return UserFields(code.keyspace, named.fields, kinds)

        self._kinds: list[CqlType] = [parse_type_with(text, resolve) for text in code.argument_types]
        self._returns = parse_type_with(code.returns, resolve)
        self._run: Callable[..., Any] = compiled(code.argument_names, code.body)

    def __call__(self, arguments: Sequence[bytes | None]) -> bytes | None:
        given = [to_python(kind, data) for kind, data in zip(self._kinds, arguments, strict=True)]
        return from_python(self._returns, self._run(*given))


#: Functions that are called again and again; a worker serves one keyspace.
_ready = functools.lru_cache(maxsize=256)(_Callable)


def _calls(asked: Calls) -> Outcome:
    values: list[bytes | None] = []
    failures: list[tuple[int, str]] = []
    try:
        function = _ready(asked.code)
    except Exception as error:
        why = described(error)
        return Outcome((None,) * len(asked.calls), tuple((at, why) for at in range(len(asked.calls))))
    for index, arguments in enumerate(asked.calls):
        value = None
        try:
            value = function(arguments)
        except Exception as error:
            failures.append((index, described(error)))
        values.append(value)
    return Outcome(tuple(values), tuple(failures))


def _fold(asked: Fold) -> Outcome:
    code, state = asked.code, asked.state
    try:
        function = _ready(code)
        for row in asked.rows:
            # As Cassandra: a row with a null is skipped, and a null state stays null.
            if code.called_on_null or None not in row:
                takes = code.called_on_null or state is not None
                state = function((state, *row)) if takes else None
    except Exception as error:
        return Outcome((None,), ((0, described(error)),))
    return Outcome((state,))


def described(error: Exception) -> str:
    """What went wrong, for a client: errors of functions have no long texts."""
    if isinstance(error, InvalidRequest):
        text = error.message
    else:
        try:
            text = f"{type(error).__name__}: {error}"
        except Exception:
            text = type(error).__name__  # It does not even tell about itself.
    # Half a character is text to Python, and cannot be sent.
    return text[:1000].encode("utf-8", "backslashreplace").decode("utf-8")
