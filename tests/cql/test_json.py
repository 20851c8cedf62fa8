"""SELECT JSON: each row as one JSON text."""

from __future__ import annotations

import json

from lockstep.cql.bind.json_values import row_text
from lockstep.schema.types import parse_type
from tests.cql.twin import Session


def session() -> Session:
    return Session(
        'CREATE TABLE t (k int PRIMARY KEY, "B" boolean, x text, d double, u uuid, b blob, at timestamp, '
        "day date, n decimal, s set<text>, m map<int, text>, p frozen<tuple<int, text>>, i inet)"
    )


def test_every_kind_of_value_has_its_json_form() -> None:
    made = session()
    made.run(
        'INSERT INTO t (k, "B", x, d, u, b, at, day, n, s, m, p, i) VALUES (1, true, \'say "é"\', 1.5, '
        "00000000-0000-1000-8000-000000000000, 0x0aff, '2024-02-03T04:05:06.007Z', '2024-02-03', 12.50, "
        "{'b', 'a'}, {2: 'two', 1: 'one'}, (7, null), '10.0.0.1')"
    )
    ((text,),) = made.run("SELECT JSON * FROM t WHERE k = 1")
    assert json.loads(text) == {
        "k": 1,
        '"B"': True,
        "x": 'say "é"',
        "d": 1.5,
        "u": "00000000-0000-1000-8000-000000000000",
        "b": "0x0aff",
        "at": "2024-02-03 04:05:06.007Z",
        "day": "2024-02-03",
        "n": 12.5,
        "s": ["a", "b"],
        "m": {"1": "one", "2": "two"},
        "p": [7, None],
        "i": "10.0.0.1",
    }


def test_the_text_is_spaced_as_tools_expect_and_null_is_null() -> None:
    made = session()
    made.run("INSERT INTO t (k, d) VALUES (1, NaN)")
    assert made.run("SELECT JSON k, d, x AS title FROM t") == [('{"k": 1, "d": null, "title": null}',)]


def test_aggregates_have_a_json_form() -> None:
    assert session().run("SELECT JSON count(*), max(k) FROM t") == [('{"count": 0, "system.max(k)": null}',)]


def test_only_names_with_capitals_keep_their_quotes() -> None:
    kinds = [parse_type("int")] * 4
    text = row_text(["k", "select", "Mixed", "m['q']"], kinds, [None] * 4)
    assert list(json.loads(text)) == ["k", "select", '"Mixed"', "m['q']"]


def test_numbers_and_addresses_are_written_as_java_does() -> None:
    made = Session("CREATE TABLE f (k int PRIMARY KEY, f float, d double, m map<float, int>, i inet)")
    made.run("INSERT INTO f (k, f, d, m, i) VALUES (1, 123.123, 1e20, {1.23: 4}, '2001:db8::7')")
    assert made.run("SELECT JSON f, d, m, i FROM f") == [
        ('{"f": 123.123, "d": 1.0E20, "m": {"1.23": 4}, "i": "2001:db8:0:0:0:0:0:7"}',)
    ]


def test_an_empty_value_is_an_empty_string() -> None:
    made = Session("CREATE TABLE v (k int PRIMARY KEY, v int)")
    made.run("INSERT INTO v (k, v) VALUES (1, blob_as_int(0x))")
    assert made.run("SELECT JSON v FROM v") == [('{"v": ""}',)]
