"""What user functions may be written in, and what they are refused."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from lockstep.cql.functions.user_batches import OUTCOMES, Calls, Code, Fold, NamedType, compiled, handle
from lockstep.schema.types import parse_type
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest

INT = parse_type("int")


@pytest.mark.parametrize(
    ("body", "given", "result"),
    [
        ("a + 1", (1,), 2),
        ("return a + 1", (1,), 2),
        ("\n    x = a * 2\n    return x\n  ", (2,), 4),
        ("x = 0\n    for i in range(a):\n        x += i\n    return x".replace("\n    ", "\n"), (4,), 6),
        ("import math\nreturn math.floor(math.sqrt(a))", (17,), 4),
        ("from json import dumps\nreturn dumps({'a': a})", (1,), '{"a": 1}'),
        ("def f(n):\n  return 1 if n < 2 else n * f(n - 1)\nreturn f(a)", (5,), 120),
        ("return [x for x in sorted({3, a}) if x] + list(map(lambda y: -y, [1]))", (1,), [1, 3, -1]),
        ("try:\n  return 1 / a\nexcept ZeroDivisionError as e:\n  return str(e)", (0,), "division by zero"),
        ("return f'{a:03d}'", (7,), "007"),
        ("return datetime.date(2020, 1, a).isoformat()", (5,), "2020-01-05"),
        ("return str(decimal.Decimal('1.10') + a)", (1,), "2.10"),
        ("return datetime.datetime.strptime('2020', '%Y').year", (1,), 2020),
    ],
)
def test_bodies_of_the_allowed_language(body: str, given: tuple[Any, ...], result: Any) -> None:
    assert compiled(("a",), body)(*given) == result


@pytest.mark.parametrize(
    "body",
    [
        "import os\nreturn os.getpid()",
        "import sys",
        "from math.os import path",
        "from . import x",
        "__import__('os')",
        "return __builtins__",
        "().__class__.__base__.__subclasses__()",
        "a.__class__",
        "'{0.__class__}'.format(a)",
        "'{a}'.format_map({})",
        "return (x for x in [1]).gi_frame",
        "(lambda: 1).f_globals",
        "try:\n  1/0\nexcept Exception as e:\n  return e.__traceback__",
        "try:\n  1/0\nexcept Exception as e:\n  return e.tb_frame",
        "math.pi = 3",
        "del math.pi",
        "class A: pass",
        "global a",
        "with a: pass",
        "async def f(): pass",
        "def f():\n  yield 1",
        "match a:\n  case object(__class__=c): return c",
        "def __init__(): pass",
        "import math as __m",
        "_x = 1",
        "f(__a=1)",
        "@print\ndef f(): pass",
        "int.mro()",
        "datetime.datetime.now()",
        "datetime.date.today()",
        "try: pass\nexcept* Exception: pass",
        "",
        "return (",
        "nonlocal q",
        "\0",
        "x" * 70_000,
    ],
)
def test_ways_out_are_refused_before_anything_runs(body: str) -> None:
    with pytest.raises(InvalidRequest):
        compiled(("a",), body)


@pytest.mark.parametrize(
    "name", ["eval", "exec", "open", "getattr", "type", "object", "globals", "vars", "breakpoint", "input"]
)
def test_names_that_lead_out_are_not_there(name: str) -> None:
    with pytest.raises(NameError):
        compiled((), f"return {name}")()


@pytest.mark.parametrize("name", ["class", "a b", "__x", "1"])
def test_arguments_need_names_that_python_has(name: str) -> None:
    with pytest.raises(InvalidRequest, match="cannot be called"):
        compiled((name,), "1")


def code(body: str, of: tuple[str, ...], returns: str, **more: Any) -> Code:
    names = tuple("abcdef"[: len(of)])
    return Code("ks", "f", names, of, returns, body, more.pop("called_on_null", False), **more)


def asked(question: Calls | Fold) -> Any:
    return OUTCOMES.decode(handle(codec.encode(question)))


def test_errors_are_part_of_the_answer() -> None:
    calls = Calls(code("10 // a", ("int",), "int"), tuple((INT.serialize(n),) for n in (0, 5)))
    outcome = asked(calls)
    assert outcome.values == (None, INT.serialize(2))
    assert [index for index, _ in outcome.failures] == [0]
    wrong = asked(Calls(code("'x'", ("int",), "int"), ((INT.serialize(1),),)))
    assert wrong.failures and wrong.values == (None,)


@pytest.mark.parametrize(
    ("kind", "value", "seen"),
    [
        ("timestamp", -1, datetime.datetime(1969, 12, 31, 23, 59, 59, 999000, datetime.UTC)),
        ("date", -1, datetime.date(1969, 12, 31)),
        ("set<int>", [1, 2], {1, 2}),
        ("set<frozen<list<int>>>", [[1], [2]], [[1], [2]]),
        ("map<text, int>", {"a": 1}, {"a": 1}),
        ("tuple<int, text>", (1, None), (1, None)),
        ("pair", ("x", None), {"a": "x", "b": None}),
        ("list<frozen<pair>>", [("x", None)], [{"a": "x", "b": None}]),
    ],
)
def test_values_are_what_python_has_for_them(kind: str, value: Any, seen: Any) -> None:
    from lockstep.schema.types import UserFields, parse_type_with

    pair = NamedType("pair", ("a", "b"), ("text", "int"))
    text = parse_type("text")
    of_kind = parse_type_with(kind, lambda _keyspace, _name: UserFields("ks", pair.fields, (text, INT)))
    data = of_kind.serialize(value)
    shown = asked(Calls(code("repr(a)", (kind,), "text", types=(pair,)), ((data,),)))
    assert shown.values == (repr(seen).encode(),)
    same = asked(Calls(code("a", (kind,), kind, types=(pair,)), ((data,),)))
    assert same.values == (data,) and not same.failures


def test_folds_skip_rows_with_nulls_unless_the_function_takes_them() -> None:
    def rows(*numbers: int | None) -> tuple[tuple[bytes | None, ...], ...]:
        return tuple((None if n is None else INT.serialize(n),) for n in numbers)

    plus = code("a + b", ("int", "int"), "int")
    assert asked(Fold(plus, INT.serialize(1), rows(2, None, 3))).values == (INT.serialize(6),)
    assert asked(Fold(plus, None, rows(2, 3))).values == (None,)
    counting = code("(a or 0) + 1", ("int", "int"), "int", called_on_null=True)
    assert asked(Fold(counting, None, rows(2, None))).values == (INT.serialize(2),)
