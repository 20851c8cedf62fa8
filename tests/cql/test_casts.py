"""CAST has the results that Java gives, which clients of Cassandra know."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

import pytest

from lockstep.cql.compile.context import Context
from lockstep.cql.functions.arithmetic import cast_function
from lockstep.schema.types import parse_type
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

CONTEXT = Context(0, 0, 0, 0, b"", bytes)


def cast(value: Any, source: str, target: str) -> Any:
    kinds = parse_type(source), parse_type(target)
    found = cast_function(*kinds, "x")([kinds[0].serialize(value)], CONTEXT)
    return None if found is None else kinds[1].deserialize(found)


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (300, "int", "tinyint", 44),
        (1 << 70, "varint", "bigint", 0),
        (1e300, "double", "bigint", (1 << 63) - 1),
        (-1e300, "double", "int", -(1 << 31)),
        (3e9, "double", "smallint", -1),
        (-3.7, "float", "tinyint", -3),
        (math.inf, "double", "int", (1 << 31) - 1),
        (math.nan, "double", "bigint", 0),
        (1e300, "double", "varint", (1 << 63) - 1),
        (Decimal("18446744073709551617.5"), "decimal", "varint", 1),
        (10**400, "varint", "double", math.inf),
        (-(10**400), "varint", "float", -math.inf),
        (0.1, "float", "decimal", Decimal("0.1")),
        (1e30, "float", "text", "1.0E30"),
        (0.1, "float", "text", "0.1"),
        ("2001:db8::1", "inet", "text", "2001:db8:0:0:0:0:0:1"),
        ("10.0.0.1", "inet", "text", "10.0.0.1"),
        (9999999.0, "double", "text", "9999999.0"),
        (12345678.5, "double", "text", "1.23456785E7"),
        (0.001, "double", "text", "0.001"),
        (-0.00012, "double", "text", "-1.2E-4"),
        (-0.0, "double", "text", "-0.0"),
        (100.0, "double", "ascii", "100.0"),
        (math.nan, "double", "text", "NaN"),
        (True, "boolean", "text", "true"),
        ("it's", "ascii", "text", "it's"),
    ],
)
def test_a_value_is_cast(value: Any, source: str, target: str, expected: Any) -> None:
    assert cast(value, source, target) == expected


@pytest.mark.parametrize(("source", "target"), [("blob", "text"), ("text", "int"), ("int", "counter")])
def test_other_types_are_not_cast(source: str, target: str) -> None:
    with pytest.raises(InvalidRequest, match=f"x cannot be cast to {target}"):
        cast_function(parse_type(source), parse_type(target), "x")


def test_a_column_that_is_cast_to_its_type_keeps_its_name() -> None:
    made = Session("CREATE TABLE t (k int PRIMARY KEY, v bigint)")
    prepared = made.prepare("SELECT CAST(v AS bigint), CAST(v AS int) FROM t")
    assert [column.name for column in prepared.result_columns] == ["v", "cast(v as int)"]
