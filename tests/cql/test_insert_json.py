"""INSERT JSON, fromJson and toJson."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.bind.json_values import json_text, parse_json, serialized
from lockstep.cql.wire.messages import UNSET
from lockstep.schema.types import parse_type
from lockstep.values.errors import FunctionFailure, InvalidRequest
from tests.cql.twin import Session

_TABLE = (
    'CREATE TABLE t (k int PRIMARY KEY, "B" boolean, x text, d double, n decimal, l list<int>, '
    "m map<int, text>, p frozen<tuple<int, text>>, at timestamp, u uuid, b blob, v vector<float, 2>, "
    "f frozen<map<text, int>>)"
)


def test_a_row_goes_in_and_out_as_one_text() -> None:
    session = Session(_TABLE)
    row = {
        "k": 1,
        '"B"': True,
        "x": 'say "é"',
        "d": 1.5,
        "n": 12.5,
        "l": [3, 1],
        "m": {"1": "one"},
        "p": [1, "t"],
        "at": "2024-02-03 04:05:06.007Z",
        "u": "00000000-0000-1000-8000-000000000000",
        "b": "0x0aff",
        "v": [1.0, 2.0],
        "f": {"a": 1},
    }
    session.run("INSERT INTO t JSON ?", json.dumps(row))
    ((text,),) = session.run("SELECT JSON * FROM t")
    assert json.loads(text) == row


def test_what_is_not_named_is_null_or_left_alone() -> None:
    session = Session(_TABLE)
    session.run('INSERT INTO t JSON \'{"k": 1, "x": "a", "l": [1], "d": "2.5"}\'')
    session.run('INSERT INTO t JSON \'{"K": "1", "d": 3}\' DEFAULT UNSET USING TTL 50')
    assert session.run("SELECT x, l, d, ttl(d), ttl(x) FROM t") == [("a", [1], 3.0, 50, None)]
    session.run('INSERT INTO t JSON \'{"k": 1, "x": null}\' DEFAULT UNSET')
    assert session.run("SELECT x, l FROM t") == [(None, [1])]
    session.run('INSERT INTO t JSON \'{"k": 1, "x": "b"}\'')
    assert session.run("SELECT x, l, d FROM t") == [("b", None, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "Could not decode JSON string as a map"),
        ("{", "Could not decode JSON string as a map"),
        ("null", "Got null for INSERT JSON values"),
        ('{"k": 1, "zz": 2}', "JSON values map contains unrecognized column: zz"),
        ('{"k": "a"}', "Error decoding JSON value for k: Unable to make int from 'a'"),
        ('{"k": 1.5}', "Error decoding JSON value for k: Expected an int value, but got a Double: 1.5"),
        ('{"k": 99999999999}', "Error decoding JSON value for k"),
        (
            '{"k": 1, "x": 5}',
            "Error decoding JSON value for x: Expected a UTF-8 string, but got a Integer: 5",
        ),
        ('{"k": 1, "l": {"a": 1}}', "Error decoding JSON value for l: Expected a list, but got a Map"),
        ('{"k": 1, "l": [null]}', "Error decoding JSON value for l: Invalid null element in list"),
        ('{"k": 1, "p": [1]}', "Error decoding JSON value for p: Tuple is missing items"),
        ('{"k": 1, "p": [1, "a", 2]}', "Error decoding JSON value for p: Tuple contains extra items"),
        ('{"k": 1, "v": [1]}', "Error decoding JSON value for v: Invalid vector: expected 2 elements"),
        ('{"k": 1, "b": "0xf"}', "Error decoding JSON value for b: Value '0xf' is not a valid blob"),
        ('{"k": 1, "d": NaN}', "Could not decode JSON string as a map"),
        ('{"k": null}', "Invalid null value in condition for column k"),
        ('{"x": "a"}', "Invalid null value in condition for column k"),
        ("[" * 100_000, "Could not decode JSON string as a map"),
    ],
)
def test_texts_that_do_not_fit_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Session(_TABLE).run("INSERT INTO t JSON ?", text)
    assert message in caught.value.message


def test_null_and_unset_texts_are_refused() -> None:
    session = Session(_TABLE)
    for value, message in ((None, "Got null for INSERT JSON"), (UNSET, "Invalid unset value")):
        with pytest.raises(InvalidRequest, match=message):
            session.run("INSERT INTO t JSON ?", value)


def test_functions_turn_values_into_json_and_back() -> None:
    session = Session(_TABLE)
    session.run(
        "INSERT INTO t (k, l, m, x) VALUES (1, fromJson('[1, 2]'), from_json(?), fromJson('null'))",
        '{"5": "e"}',
    )
    chosen = "SELECT toJson(l), to_json(m), toJson(x), toJson(k + 1) FROM t WHERE k = fromJson('1')"
    assert session.run(chosen) == [("[1, 2]", '{"5": "e"}', "null", "2")]
    with pytest.raises(FunctionFailure, match="Could not decode JSON string"):
        session.run("INSERT INTO t (k) VALUES (fromJson('x'))")
    with pytest.raises(InvalidRequest, match="cannot be used in the selection clause"):
        session.run("SELECT fromJson('1') FROM t")


_VALUES = {
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "varint": st.integers(),
    "text": st.text(st.characters(exclude_categories=("Cs",)), max_size=8),
    "boolean": st.booleans(),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "blob": st.binary(max_size=6),
    "date": st.integers(-700_000, 2_000_000),
    "time": st.integers(0, 86_400_000_000_000 - 1),
    "timestamp": st.integers(-62_135_596_800_000, 253_402_300_799_999),
}


@settings(max_examples=150, deadline=None)
@given(
    st.data(),
    st.sampled_from(sorted(_VALUES)),
    st.sampled_from(("{}", "list<{}>", "map<{}, int>", "set<{}>")),
)
def test_json_of_a_value_is_the_value_again(data: st.DataObject, name: str, shape: str) -> None:
    kind = parse_type(shape.format(name))
    members = _VALUES[name]
    if shape.startswith("map"):
        value: object = list(data.draw(st.dictionaries(members, st.integers(0, 9), max_size=3)).items())
    elif shape == "{}":
        value = data.draw(members)
    else:
        value = data.draw(st.lists(members, max_size=3, unique=True))
    written = kind.canonical(kind.serialize(value))
    assert serialized(kind, parse_json(json_text(kind, written))) == written
