"""Native functions over stored values, and what is chosen inside collections."""

from __future__ import annotations

import hashlib
import math
from decimal import Decimal
from uuid import UUID

import pytest

from lockstep.cql.functions.native import function_names
from lockstep.cql.functions.time_functions import floor_ms, timestamp_plus
from lockstep.schema.types import parse_timestamp, parse_type
from lockstep.values.errors import FunctionFailure, InvalidRequest
from tests.cql.twin import Session

_TABLES = (
    "CREATE TYPE u (a int, b text, n frozen<map<text, int>>)",
    "CREATE TABLE n (k int PRIMARY KEY, a tinyint, c int, d bigint, e float, f double, g varint, h decimal)",
    "CREATE TABLE x (k int PRIMARY KEY, l list<int>, s set<int>, m map<text, int>, "
    "fm frozen<map<text, int>>, mm map<text, frozen<map<int, text>>>, o u, v vector<float, 2>, "
    "w vector<float, 2>, z text)",
    "CREATE TABLE t (k int PRIMARY KEY, at timestamp, d date, i time, id timeuuid)",
)


@pytest.fixture(scope="module")
def session() -> Session:
    made = Session(*_TABLES)
    made.run("INSERT INTO n (k, a, c, d, e, f, g, h) VALUES (1, -128, -7, 9, 2.5, -2.5, 100, 2.345)")
    made.run(
        "INSERT INTO x (k, l, s, m, fm, mm, o, v, w, z) VALUES (1, [3, 1, 2], {4, 6}, "
        "{'a': 1, 'b': 2, 'd': 4}, "
        "{'q': 9}, {'o': {1: 'one'}}, {a: 5, b: 'bee', n: {'i': 7}}, [1, 0], [0.6, 0.8], 'secret')"
    )
    made.run("INSERT INTO x (k, z) VALUES (2, null)")
    made.run("INSERT INTO t (k, at, d, i) VALUES (1, '2024-05-17T13:45:30Z', '2024-05-17', '13:45:30')")
    return made


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("abs(c)", 7),
        ("abs(a)", -128),
        ("abs(h - 5)", Decimal("2.655")),
        ("exp(d)", int(math.exp(9))),
        ("exp(a)", 0),
        ("log(f)", math.nan),
        ("log(g)", 4),
        ("log10(g)", 2),
        ("log(h)", Decimal("0.8522854018982427")),
        ("round(e)", 3.0),
        ("round(f)", -2.0),
        ("round(h)", Decimal(2)),
        ("exp(1000)", (1 << 31) - 1),
    ],
)
def test_math(session: Session, expression: str, expected: object) -> None:
    [(found,)] = session.run(f"SELECT {expression} FROM n")
    if isinstance(expected, float) and math.isnan(expected):
        assert isinstance(found, float) and math.isnan(found)
    elif isinstance(expected, Decimal):
        assert isinstance(found, Decimal) and abs(found - expected) < Decimal("1e-15")
    else:
        assert found == expected


def test_logarithms_of_decimals_need_positive_numbers(session: Session) -> None:
    with pytest.raises(FunctionFailure, match="undefined for zero and less"):
        session.run("SELECT log(h - 3) FROM n")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("map_keys(m)", ["a", "b", "d"]),
        ("map_values(m)", [1, 2, 4]),
        ("collection_count(l)", 3),
        ("collection_count(m)", 3),
        ("collection_min(l)", 1),
        ("collection_max(s)", 6),
        ("collection_sum(l)", 6),
        ("collection_avg(s)", 5),
        ("collection_sum([1, 2])", None),
        ("similarity_cosine(v, w)", 0.8),
        ("similarity_cosine(v, [1, 0])", 1.0),
        ("similarity_euclidean(v, w)", 1 / 1.8),
        ("similarity_dot_product(v, w)", 0.8),
        ("m['b'..]", [("b", 2), ("d", 4)]),
        ("m[..'b']", [("a", 1), ("b", 2)]),
        ("m['b'..'c']", [("b", 2)]),
        ("m['x'..'y']", None),
        ("fm['x'..'y']", []),
        ("s[5..9]", [6]),
        ("mm['o'][1]", "one"),
        ("o.n['i']", 7),
        ("(o).a", None),
        ("[k, 2]", [1, 2]),
        ("(k, z)", (1, "secret")),
        ("{k, 3}", [1, 3]),
        ("{z: k}", [("secret", 1)]),
        ("(list<bigint>)[1, 2]", [1, 2]),
        ("(map<text, int>){'a': 1}", [("a", 1)]),
        ("(tuple<int, text>)(1, 'a')", (1, "a")),
        ("mask_null(z)", None),
        ("mask_default(z)", "****"),
        ("mask_default(k)", 0),
        ("mask_replace(z, 'gone')", "gone"),
        ("mask_inner(z, 1, 2)", "s***et"),
        ("mask_inner(z, null, 2)", "****et"),
        ("mask_outer(z, 1, 2, '#')", "#ecr##"),
        ("mask_outer(z, 5, 5)", "******"),
        ("mask_hash(z)", hashlib.sha256(b"secret").digest()),
        ("mask_hash(z, 'MD5')", hashlib.md5(b"secret").digest()),
        ("mask_hash(z, null)", hashlib.sha256(b"secret").digest()),
        ("mask_default(now())", UUID("13814000-1dd2-11b2-8080-808080808080").bytes),
    ],
)
def test_collections_vectors_and_masks(session: Session, expression: str, expected: object) -> None:
    query = f"SELECT {expression} FROM x WHERE k = 1"
    if expression in ("collection_sum([1, 2])", "(o).a"):
        # An expression in front of which no type stands cannot be chosen from.
        with pytest.raises(Exception, match=r"infer|viable|mismatched"):
            session.run(query)
        return
    [(found,)] = session.run(query)
    assert found == (pytest.approx(expected, abs=1e-6) if isinstance(expected, float) else expected)


def test_null_arguments_give_null_except_to_masks(session: Session) -> None:
    query = "SELECT map_keys(m), collection_sum(l), m['a'..], mask_default(z), toJson(z) FROM x WHERE k = 2"
    assert session.run(query) == [(None, None, None, "****", "null")]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "map_keys(l)",
            "Invalid call to function map_keys: argument of type list<int> where a map is required",
        ),
        ("collection_sum(m)", "Invalid call to function collection_sum"),
        ("abs(z)", "Invalid call to function abs: argument of type text where a number is required"),
        ("abs(k, k)", "Invalid number of arguments in call to function abs: 1 required but 2 provided"),
        ("mask_inner(z)", "Invalid number of arguments in call to function mask_inner: 3 to 4 required"),
        (
            "mask_inner(z, 1, 1, 'ab')",
            "padding argument for function system.mask_inner should be single-character",
        ),
        ("mask_outer(mask_null(z), 1, 1, 'ab')", "but 'ab' has 2 characters"),
        ("mask_hash(z, 'none')", "Hash algorithm not found: none"),
        ("mask_hash(mask_null(z), 'none')", "Hash algorithm not found: none"),
        ("similarity_cosine(v, [1])", "expected 2 elements, but given 1"),
        ("similarity_cosine(v, l)", "where a vector of floats is required"),
        ("l['a'..]", "Slice selection is only allowed on sets and maps, but l is a list"),
        ("l[0]", "Element selection is only allowed on sets and maps, but l is a list"),
        ("k[0]", "Invalid element selection: k is of type int is not a collection"),
        ("mask_null(?)", "Cannot infer type of argument of function mask_null"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(session: Session, expression: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        session.run(f"SELECT {expression} FROM x", *[None] * expression.count("?"))
    assert message in caught.value.message


def test_vectors_of_zeros_have_no_direction(session: Session) -> None:
    with pytest.raises(FunctionFailure, match="all-zero vectors"):
        session.run("SELECT similarity_cosine(v, [0, 0]) FROM x WHERE k = 1")


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("floor(at, 1h)", "2024-05-17T13:00Z"),
        ("floor(at, 1mo)", "2024-05-01"),
        ("floor(at, 1y)", "2024-01-01"),
        ("floor(at, 7m, '2024-05-17T13:01Z')", "2024-05-17T13:43Z"),
        ("floor(at, 1mo, '2024-01-20')", "2024-04-20"),
        ("floor(at, 5d)", "2024-05-17"),
        ("floor(at, 7d)", "2024-05-16"),
        ("floor('2024-05-17T13:45Z', 1d)", "2024-05-17"),
        ("floor(maxTimeuuid(at), 1h)", "2024-05-17T13:00Z"),
    ],
)
def test_times_are_rounded_down(session: Session, expression: str, expected: str) -> None:
    if len(expected) > 10 and expected.count(":") == 1:
        expected = expected.replace("Z", ":00Z")
    assert session.run(f"SELECT {expression} FROM t") == [(parse_timestamp(expected),)]


def test_dates_and_times_of_day_are_rounded_down(session: Session) -> None:
    [(day, time)] = session.run("SELECT floor(d, 1mo), floor(i, 1h) FROM t")
    assert day == parse_timestamp("2024-05-01") // 86_400_000 and time == 13 * 3600 * 10**9
    for refused in ("floor(at, -1h)", "floor(d, 1h)", "floor(i, 1d)", "floor(at, 1h, '2025-01-01')"):
        with pytest.raises(InvalidRequest):
            session.run(f"SELECT {refused} FROM t")


def test_the_floor_is_the_last_multiple_that_is_not_behind() -> None:
    start = parse_timestamp("2023-01-31")
    for day in range(0, 800, 3):
        at = start + day * 86_400_000
        found = floor_ms(at, 1, 2, 0, start)
        multiples = [timestamp_plus(start, count, 2 * count, 0) for count in range(30)]
        assert found == max(multiple for multiple in multiples if multiple <= at)


def test_write_times_of_collections_and_their_parts() -> None:
    made = Session(*_TABLES)
    made.run("INSERT INTO x (k, m, fm, o) VALUES (1, {'a': 1}, {'q': 1}, {a: 1}) USING TIMESTAMP 5")
    made.run("UPDATE x USING TIMESTAMP 9 AND TTL 60 SET m['b'] = 2 WHERE k = 1")
    query = (
        "SELECT writetime(m), maxwritetime(m), writetime(m['b']), ttl(m['b']), writetime(o.a), writetime(fm)"
    )
    assert made.run(f"{query} FROM x") == [([5, 9], 9, 9, 60, 5, 5)]
    assert made.run("SELECT maxwritetime(l), writetime(m['zz']) FROM x") == [(None, None)]
    slices = "writetime(m['a'..'a']), maxwritetime(m['a'..]), ttl(m['b'..'z']), writetime(m['c'..])"
    assert made.run(f"SELECT {slices} FROM x") == [([5], 9, [60], None)]
    assert made.run("SELECT writetime(m[?]) FROM x", "a") == [(5,)]
    of_one_cell = "writetime(fm['q']), writetime(fm['z']), writetime(fm['a'..'z']), writetime(fm['r'..])"
    assert made.run(f"SELECT {of_one_cell} FROM x") == [(5, None, 5, None)]
    with pytest.raises(InvalidRequest, match="Invalid null value for element selection on m"):
        made.run("SELECT writetime(m[?]) FROM x", None)


def test_parts_of_elements_and_fields_are_as_old_as_those() -> None:
    made = Session(*_TABLES, "CREATE TABLE y (k int PRIMARY KEY, f frozen<u>)")
    made.run("INSERT INTO x (k, mm, o) VALUES (1, {'p': {1: 'a'}}, {n: {'i': 1}}) USING TIMESTAMP 5")
    made.run("UPDATE x USING TIMESTAMP 9 AND TTL 60 SET mm['q'] = {2: 'b', 3: 'c'} WHERE k = 1")
    for part, told in (
        ("mm['p'][1]", (5, None)),
        ("mm['p'][2]", (None, None)),
        ("mm['q'][2]", (9, 60)),
        ("mm['z'][2]", (None, None)),
        ("mm['q'][1..2]", (9, 60)),
        ("mm['q'][7..]", (None, None)),
        ("mm['a'..'p']['p']", (5, None)),
        ("mm['a'..'p']['q']", (None, None)),
        ("mm['a'..'z']['q'][3]", (9, 60)),
        ("o.n['i']", (5, None)),
        ("o.n['j']", (None, None)),
    ):
        write_time, ttl = told
        query = f"SELECT writetime({part}), maxwritetime({part}), ttl({part}) FROM x"
        assert made.run(query) == [(write_time, write_time, ttl)], part
    made.run("INSERT INTO y (k, f) VALUES (1, {n: {'i': 1}}) USING TIMESTAMP 7")
    assert made.run("SELECT writetime(f.n['i']), writetime(f.n['j']), writetime(f.a) FROM y") == [
        (7, None, None)
    ]
    with pytest.raises(InvalidRequest, match="writetime of a slice of a slice is not supported"):
        made.run("SELECT writetime(mm['a'..'z']['p'..'q']) FROM x")


def test_sums_and_averages_of_decimals_keep_their_digits() -> None:
    made = Session(*_TABLES)
    for k, text in enumerate(("12345678901234567890123456789012345.25", "0.10")):
        made.run(f"INSERT INTO n (k, h) VALUES ({k}, {text})")
    [(total, average)] = made.run("SELECT sum(h), avg(h) FROM n")
    assert total == Decimal("12345678901234567890123456789012345.35")
    assert str(average) == "6172839450617283945061728394506172.68"


def test_every_type_has_a_default_mask() -> None:
    from lockstep.cql.functions.mask_functions import default_of
    from lockstep.schema.types import NATIVE_NAMES

    for name in (*NATIVE_NAMES, "list<int>", "map<int, text>", "tuple<int, uuid>", "vector<float, 3>"):
        kind = parse_type(name)
        mask = default_of(kind)
        kind.validate(mask)
        assert kind.validate(mask) is None and kind.deserialize(mask) is not None, "a mask is no null"


def test_functions_have_names_in_both_spellings() -> None:
    names = function_names()
    assert {"tojson", "to_json", "map_keys", "floor", "now", "mask_hash", "similarity_cosine"} <= set(names)
    assert names == sorted(names)


_TERMS = (
    ("i", "CAST(1.6 AS int)", 1),
    ("i", "CAST(CAST('a' AS text) AS int)", "cast('a' as text) cannot be cast to int"),
    ("x", "CAST(12 AS text)", "12"),
    ("x", "CAST(12 AS int)", "Type error: cannot assign result of cast(12 as int) (type int) to x"),
    ("x", "CAST(? AS text)", "Ambiguous call to function system.cast_as_text"),
    ("i", "1 + CAST(2.5 AS int)", 3),
    ("b", "to_timestamp(min_timeuuid(7))", 7),
    ("g", "to_timestamp(min_timeuuid(7))", 7),
    ("g", "(int)-3", -3),
    ("y", "(int)1", -2147483647),
    ("m", "(bigint)9", 9),
    ("i", "to_timestamp(min_timeuuid(7))", "Type error: cannot assign"),
    ("t", "'5:a'", (5, "a")),
    ("t", "'@:1\\:1'", (None, "1:1")),
    ("t", "'7'", (7, None)),
    ("t", "'1:2:3'", "too many elements. Type frozen<tuple<int, text>> expects 2 but got 3"),
    ("t", "'a:b'", "Unable to make int from 'a'"),
    ("u", "'[1]'", "Unable to make frozen<list<int>> from '[1]'"),
)


@pytest.mark.parametrize(("column", "term", "expected"), _TERMS)
def test_terms_that_are_cast_or_read_as_another_type(column: str, term: str, expected: object) -> None:
    made = Session(
        "CREATE TABLE w (k int PRIMARY KEY, i int, x text, b bigint, g varint, y date, m time, "
        "t frozen<tuple<int, text>>, u frozen<tuple<list<int>>>)"
    )
    query = f"INSERT INTO w (k, {column}) VALUES (1, {term})"
    if isinstance(expected, str) and expected != "12":
        with pytest.raises(InvalidRequest) as caught:
            made.run(query)
        assert expected in caught.value.message
        return
    made.run(query)
    assert made.run(f"SELECT {column} FROM w") == [(expected,)]
    if column == "g":
        # The bytes are those of a literal.
        filtered = f"SELECT k FROM w WHERE g = {expected} ALLOW FILTERING"
        assert made.run(filtered) == [(1,)]
