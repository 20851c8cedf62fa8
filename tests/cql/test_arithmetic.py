"""Arithmetic of every pair of types, against what their documentation promises."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from lockstep.cql.functions.arithmetic import operation, result_type
from lockstep.schema.types import parse_type
from lockstep.values.errors import FunctionFailure, InvalidRequest
from tests.cql.twin import Session

_NAMES = ("tinyint", "smallint", "int", "bigint", "counter", "float", "double", "varint", "decimal")
_RESULTS = """
tinyint smallint int bigint bigint float double varint decimal
smallint smallint int bigint bigint float double varint decimal
int int int bigint bigint float double varint decimal
bigint bigint bigint bigint bigint double double varint decimal
bigint bigint bigint bigint bigint double double varint decimal
float float float double double float double decimal decimal
double double double double double double double decimal decimal
varint varint varint varint varint decimal decimal varint decimal
decimal decimal decimal decimal decimal decimal decimal decimal decimal
"""
_TABLE = (
    "CREATE TABLE n (k int PRIMARY KEY, a tinyint, b smallint, c int, d bigint, e float, f double, "
    "g varint, h decimal, t timestamp, y date, x text)"
)


def one(expression: str, *values: object) -> object:
    session = Session(_TABLE)
    session.run(
        "INSERT INTO n (k, a, b, c, d, e, f, g, h, t, y, x) VALUES "
        "(1, 100, -7, 7, 9223372036854775807, 1.5, -2.5, 10, 1.10, '2024-01-31T10:00:00Z', '2024-03-31', 'x')"
    )
    [(found,)] = session.run(f"SELECT {expression} FROM n", *values)
    return found


def test_results_have_the_types_of_the_table() -> None:
    rows = [line.split() for line in _RESULTS.split("\n") if line]
    for left, row in zip(_NAMES, rows, strict=True):
        for right, wanted in zip(_NAMES, row, strict=True):
            found = result_type("*", parse_type(left), parse_type(right))
            assert found is not None and found.name == wanted, (left, right)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("c + b", 0),
        ("a + a", -56),
        ("d + c", -(1 << 63) + 6),
        ("b / c", -1),
        ("b / 2", -3),
        ("b % 4", -3),
        ("c % -4", 3),
        ("c / 2 * 2", 6),
        ("c - 2 - 3", 2),
        ("c - (2 - 3)", 8),
        ("c + 2 * 3", 13),
        ("-c + 1", -6),
        ("- -c", 7),
        ("-(c + 1)", -8),
        ("e * 2", 3.0),
        ("f / 0", -math.inf),
        ("f % 2", -0.5),
        ("g * g", 100),
        ("g / 3", 3),
        ("h + 1", Decimal("2.10")),
        ("h * e", Decimal("1.650")),
        ("c * 1.5", 10.5),
        ("t + 1mo", 1709200800000),
        ("t - 1h", 1706691600000),
        ("y - 1mo", 19782),
        ("y + 2d", 19815),
        ("x + '!'", "x!"),
        ("1 + 2", 3),
        ("(c)", 7),
        ("(bigint)5 + c", 12),
        ("cast(c AS double) / 2", 3.5),
        ("null + c", None),
    ],
)
def test_expressions_give(expression: str, expected: object) -> None:
    found = one(expression)
    if isinstance(expected, Decimal):
        assert isinstance(found, Decimal) and found == expected.quantize(found)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("expression", "shown"),
    [
        ("h * 1", "1.100"),
        ("h * g", "11.00"),
        ("h + e", "2.60"),
        ("h * (bigint)10000000", "11000000"),
        ("h * d", "10145709240540253600"),
        ("(decimal)5 % 2", "1.0"),
    ],
)
def test_numbers_of_fixed_size_become_decimals_through_doubles(expression: str, shown: str) -> None:
    found = one(expression)
    assert isinstance(found, Decimal) and format(found, "f") == shown


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("y - 10m", "'date - duration' failed: The duration must have a day precision. Was: 10m"),
        (
            "t + 1s10us",
            "'timestamp + duration' failed: The duration must have a millisecond precision. Was: 1s10us",
        ),
    ],
)
def test_durations_are_no_finer_than_what_they_move(expression: str, message: str) -> None:
    with pytest.raises(FunctionFailure) as caught:
        one(expression)
    assert message in caught.value.message


@pytest.mark.parametrize("other", ["NAN", "INFINITY", "-INFINITY", "(float)NAN"])
def test_no_decimal_is_equal_to_what_is_no_number(other: str) -> None:
    why = "A NaN" if "NAN" in other else "An infinite number"
    with pytest.raises(FunctionFailure, match=f"{why} cannot be converted into a decimal"):
        one(f"h + {other}")


def test_a_quotient_of_decimals_has_32_digits() -> None:
    assert one("h / 3") == Decimal("0.36666666666666666666666666666667")
    assert one("h / 4") == Decimal("0.275")


def test_bind_variables_have_a_type_of_their_own_but_beside_times() -> None:
    assert one("c + (int)?", 4) == 11 and one("(decimal)? * h", Decimal(2)) == Decimal("2.20")
    session = Session(_TABLE)
    for text in (
        "SELECT c + ? FROM n",
        "SELECT k FROM n WHERE c < 2 * ? ALLOW FILTERING",
        "SELECT ? + 1d FROM n",
    ):
        with pytest.raises(InvalidRequest, match=r"Ambiguous '.' operation with args .*: use type hint"):
            session.prepare(text)
    prepared = session.prepare("SELECT k FROM n WHERE t > ? - 1d AND c < 2 * (int)? ALLOW FILTERING")
    assert [column.type.text for column in prepared.bind_columns] == ["timestamp", "int"]


@pytest.mark.parametrize("sign", ["/", "%"])
@pytest.mark.parametrize("left", ["c", "g", "h"])
def test_division_by_zero_is_a_failure_of_the_function(left: str, sign: str) -> None:
    why = "/ by zero" if left == "c" else "BigInteger divide by zero"
    with pytest.raises(FunctionFailure, match=f"failed: {why}") as caught:
        one(f"{left} {sign} 0")
    assert caught.value.cql_code == 0x1400 and len(caught.value.arguments) == 2


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("c + x", "the '+' operation is not supported between c and x"),
        ("x - 'a'", "the '-' operation is not supported between x and 'a'"),
        ("t * 1d", "the '*' operation is not supported between t and 1d"),
        ("-x", "the '-' operation is not supported for x"),
        ("? + ?", "Ambiguous '+' operation with args ? and ?"),
    ],
)
def test_what_does_not_fit_is_refused(expression: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        one(expression, *[None] * expression.count("?"))
    assert message in caught.value.message


def test_terms_compute_where_values_stand() -> None:
    session = Session(_TABLE)
    session.run("INSERT INTO n (k, c, f, x) VALUES (1 + 1, 2 * (3 + (int)?), 1 / 4, 'a' + 'b')", 4)
    session.run("UPDATE n SET d = 1 + 2, t = '2024-01-01' + 1d WHERE k = 4 - 2")
    assert session.run("SELECT c, d, f, x, t FROM n WHERE k = 3 - 1") == [(14, 3, 0.25, "ab", 1704153600000)]
    with pytest.raises(InvalidRequest, match="Invalid FLOAT constant"):
        session.run("UPDATE n SET c = 1.5 + 1 WHERE k = 1")


def test_the_operation_names_its_operands() -> None:
    with pytest.raises(InvalidRequest, match="between one and other"):
        operation("+", parse_type("int"), parse_type("boolean"), ("one", "other"))


@pytest.mark.slow
def test_long_and_deep_expressions_are_compiled_once_or_refused() -> None:
    session = Session(_TABLE)
    session.run("INSERT INTO n (k, c) VALUES (1, 1)")
    # Each level compiled twice would take longer than anybody waits.
    assert session.run(f"SELECT c{' + 1' * 90} FROM n") == [(91,)]
    assert session.run(f"SELECT {'abs(' * 60}c{')' * 60} FROM n WHERE k = {'abs(' * 60}1{')' * 60}") == [(1,)]
    session.run(f"UPDATE n SET c = (int)1{' + 1' * 90} WHERE k = 1")
    assert session.run("SELECT c FROM n") == [(91,)]
    for text in (
        f"SELECT c{' + 1' * 15_000} FROM n",
        f"SELECT {'- ' * 300}c FROM n",
        f"SELECT {'abs(' * 300}c{')' * 300} FROM n",
        f"SELECT c FROM n WHERE k = {'abs(' * 450}1{')' * 450}",
        f"SELECT c FROM n WHERE k = 1{' * 1' * 5000}",
    ):
        with pytest.raises(InvalidRequest, match="nested too deeply"):
            session.run(text)


def test_numbers_of_huge_exponents_fail_and_do_not_fill_the_memory() -> None:
    session = Session(_TABLE)
    session.run("INSERT INTO n (k, h) VALUES (1, 1e90000000)")
    with pytest.raises(FunctionFailure, match="out of range"):
        session.run("SELECT h / 3 FROM n")
    with pytest.raises(InvalidRequest, match="cannot be cast"):
        session.run("SELECT cast(h AS varint) FROM n")
    assert session.run("SELECT round(h) FROM n") == [(Decimal("1e90000000"),)]


def test_signs_of_decimals_keep_every_digit() -> None:
    session = Session("CREATE TABLE d (k int PRIMARY KEY, d decimal)")
    digits = "1." + "1234567890" * 5
    session.run(f"INSERT INTO d (k, d) VALUES (1, {digits})")
    assert session.run("SELECT -d, abs(-d) FROM d") == [(Decimal(f"-{digits}"), Decimal(digits))]
    for huge in ("1e2000000000", "1e-2000000000"):
        session.run(f"INSERT INTO d (k, d) VALUES (1, {huge})")
        assert session.run("SELECT -d, abs(-d) FROM d") == [(Decimal(f"-{huge}"), Decimal(huge))]
    assert session.run("SELECT avg(d) FROM d") == [(Decimal(huge),)]


def test_numbers_that_would_keep_a_node_busy_are_refused() -> None:
    session = Session("CREATE TABLE d (k int PRIMARY KEY, v varint, d decimal)")
    for kind in ("varint", "decimal"):
        with pytest.raises(InvalidRequest, match="not a valid binary representation"):
            session.run(f"INSERT INTO d (k, {kind[0]}) VALUES (1, blob_as_{kind}(0x{'7f' * 2000}))")
