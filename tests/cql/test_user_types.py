"""User-defined types in statements: literals, fields, cells apart, keys, selection, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.wire.type_options import class_name, read_type, type_of_class, type_option
from lockstep.schema.types import UserDefinedType, UserFields, parse_type
from lockstep.schema.user_types import type_in
from lockstep.values.errors import InvalidRequest, Rejected, SyntaxError_
from tests.cql.twin import Session

_TYPES = (
    "CREATE TYPE point (x int, y int)",
    'CREATE TYPE "Place" ("Name" text, at frozen<point>, tags set<text>)',
)
_FROZEN = 'CREATE TABLE t (k int PRIMARY KEY, p frozen<point>, q frozen<"Place">, l list<frozen<point>>)'
_APART = "CREATE TABLE u (k int, c int, s point static, p point, PRIMARY KEY (k, c))"


def session(*statements: str) -> Session:
    return Session(*_TYPES, *statements)


def test_literals_name_fields_and_leave_the_others_null() -> None:
    made = session(_FROZEN)
    made.run(
        "INSERT INTO t (k, p, q, l) VALUES (1, {y: 2}, {\"Name\": 'a', at: {x: 1, y: ?}, tags: {'v', 'u'}}, "
        "[{x: 1}, {x: 2, y: 3}])",
        9,
    )
    assert made.run("SELECT p, q, l FROM t") == [((None, 2), ("a", (1, 9), ["u", "v"]), [(1, None), (2, 3)])]
    made.run("INSERT INTO t (k, p) VALUES (2, ?)", (5,))
    made.run("INSERT INTO t (k, p) VALUES (3, ?)", None)
    made.run("INSERT INTO t (k, p) VALUES (4, {x: null})")
    assert sorted(made.run("SELECT k, p FROM t WHERE k IN (2, 3, 4)")) == [
        (2, (5, None)), (3, None), (4, (None, None))
    ]  # fmt: skip


def test_fields_can_be_selected_at_any_depth() -> None:
    made = session(_FROZEN, "CREATE TABLE m (k int PRIMARY KEY, v map<text, frozen<point>>)")
    made.run("INSERT INTO t (k, p, q) VALUES (1, {x: 7}, {at: {y: 8}})")
    made.run("INSERT INTO m (k, v) VALUES (1, {'a': {x: 3, y: 4}})")
    assert made.run('SELECT p.x, p.y, q.at.y AS deep, q."Name" FROM t') == [(7, None, 8, None)]
    assert [c.name for c in made.prepare("SELECT p.x, q.at.y, p.y AS z FROM t").result_columns] == [
        "p.x", "q.at.y", "z"
    ]  # fmt: skip
    assert made.run("SELECT v['a'].y, v['b'].y FROM m") == [(4, None)]
    assert made.run("SELECT max(p.x) FROM t") == [(7,)]
    assert made.run("SELECT min(p).x, max(q).at.y FROM t") == [(7, 8)]
    assert made.run("SELECT max(v)['a'].y FROM m") == [(4,)]
    assert [c.name for c in made.prepare("SELECT min(p).x FROM t").result_columns] == ["system.min(p).x"]
    assert made.run("SELECT JSON p, q FROM t") == [
        ('{"p": {"x": 7, "y": null}, "q": {"\\"Name\\"": null, "at": {"x": null, "y": 8}, "tags": null}}',)
    ]


def test_literals_of_a_type_choose_elements() -> None:
    made = session("CREATE TABLE m (k int PRIMARY KEY, v map<frozen<point>, int>, s set<frozen<point>>)")
    made.run("INSERT INTO m (k, v, s) VALUES (1, {{x: 1, y: null}: 5, {y: 2}: 6}, {{x: 1}, {x: 1, y: null}})")
    assert made.run("SELECT v[{x: 1}], v[{x: null, y: 2}], v[{x: 3}] FROM m") == [(5, 6, None)]
    assert made.run("SELECT s FROM m") == [([(1, None)],)]


def test_fields_of_a_value_that_is_not_frozen_are_cells_of_their_own() -> None:
    made = session(_APART)
    made.run("INSERT INTO u (k, c, s, p) VALUES (1, 1, {x: 5}, {x: 1, y: 2})")
    made.run("UPDATE u SET p.y = 3, s.y = ? WHERE k = 1 AND c = 1", 6)
    assert made.run("SELECT s, p FROM u") == [((5, 6), (1, 3))]
    made.run("DELETE p.x FROM u WHERE k = 1 AND c = 1")
    assert made.run("SELECT p, p.x, p.y FROM u") == [((None, 3), None, 3)]
    made.run("UPDATE u SET p = {x: 9} WHERE k = 1 AND c = 1")
    assert made.run("SELECT p FROM u") == [((9, None),)]
    made.run("UPDATE u SET p.x = null WHERE k = 1 AND c = 1")
    assert made.run("SELECT p FROM u") == [(None,)]
    made.run("DELETE s FROM u WHERE k = 1")
    assert made.run("SELECT s FROM u WHERE k = 1 AND c = 1") == [(None,)]


_FIELDS = st.one_of(st.none(), st.integers(-3, 3))
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("whole"), st.tuples(_FIELDS, _FIELDS)),
        st.tuples(st.just("x"), _FIELDS),
        st.tuples(st.just("y"), _FIELDS),
        st.tuples(st.just("delete x"), st.none()),
        st.tuples(st.just("delete"), st.none()),
    ),
    max_size=8,
)


@pytest.mark.slow
@settings(max_examples=80, deadline=None)
@given(_STEPS)
def test_changes_of_fields_agree_with_a_dictionary(steps: list[tuple]) -> None:
    made = session(_APART)
    made.run("INSERT INTO u (k, c) VALUES (0, 0)")
    model: dict[str, int | None] = {"x": None, "y": None}
    for what, value in steps:
        if what == "whole":
            made.run("UPDATE u SET p = ? WHERE k = 0 AND c = 0", value)
            model = {"x": value[0], "y": value[1]}
        elif what.startswith("delete"):
            made.run(f"DELETE {'p' if what == 'delete' else 'p.x'} FROM u WHERE k = 0 AND c = 0")
            model = {"x": None, "y": None if what == "delete" else model["y"]}
        else:
            made.run(f"UPDATE u SET p.{what} = ? WHERE k = 0 AND c = 0", value)
            model[what] = value
    whole = (model["x"], model["y"])
    assert made.run("SELECT p FROM u") == [(None if whole == (None, None) else whole,)]


def test_frozen_values_are_keys_in_the_order_of_their_fields() -> None:
    made = session(
        "CREATE TABLE o (k frozen<point>, c frozen<point>, v int, PRIMARY KEY (k, c))"
        " WITH CLUSTERING ORDER BY (c DESC)"
    )
    values = [(None, None), (None, 1), (1, None), (1, -1), (1, 0), (2, None)]
    for number, value in enumerate(reversed(values)):
        made.run("INSERT INTO o (k, c, v) VALUES ({x: 1}, ?, ?)", value, number)
    assert made.run("SELECT c FROM o WHERE k = ?", (1, None)) == [(value,) for value in reversed(values)]
    # A value whose last fields are not sent is the same key.
    assert made.run("SELECT v FROM o WHERE k = ? AND c = {x: 2}", (1,)) == [(0,)]
    assert made.run("SELECT c FROM o WHERE k = {x: 1} AND c > {x: 1} AND c <= {x: 1, y: 0}") == [
        ((1, 0),), ((1, -1),)
    ]  # fmt: skip
    assert made.run("SELECT c FROM o WHERE k = {x: 1} AND c IN ?", [(2, None), (1, 0)]) == [
        ((2, None),), ((1, 0),)
    ]  # fmt: skip
    assert made.run("SELECT v FROM o WHERE k IN ({x: 1}, {x: 3}) AND (c) = ({x: 2})") == [(0,)]


def test_a_field_added_later_is_null_in_older_values() -> None:
    made = session(
        "CREATE TABLE o (k int, c frozen<point>, p point, f frozen<point>, PRIMARY KEY (k, c))",
    )
    made.run("INSERT INTO o (k, c, p, f) VALUES (1, {x: 1, y: 2}, {x: 1}, {x: 1})")
    made.run("ALTER TYPE point ADD z text")
    assert made.run("SELECT c, p, f, f.z FROM o") == [((1, 2, None), (1, None, None), (1, None, None), None)]
    made.run("UPDATE o SET p.z = 'new' WHERE k = 1 AND c = {x: 1, y: 2}")
    made.run("INSERT INTO o (k, c) VALUES (1, {x: 1, y: 2, z: 'a'})")
    assert made.run("SELECT c, p FROM o") == [((1, 2, None), (1, None, "new")), ((1, 2, "a"), None)]
    made.run("ALTER TYPE point RENAME x TO abscissa AND y TO ordinate")
    assert made.run("SELECT p.abscissa, c.z FROM o") == [(1, None), (None, "a")]
    assert made.run("SELECT f FROM o WHERE f = {abscissa: 1} ALLOW FILTERING") == [((1, None, None),)]


def test_write_times_and_ttls_are_those_of_the_field(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(_APART, _FROZEN)
    made.run("INSERT INTO u (k, c, p, s) VALUES (1, 1, {x: 1, y: 2}, {y: 1}) USING TIMESTAMP 5")
    made.run("UPDATE u USING TIMESTAMP 9 AND TTL 100 SET p.y = 3, s.x = 4 WHERE k = 1 AND c = 1")
    assert made.run(
        "SELECT writetime(p.x), writetime(p.y), ttl(p.x), ttl(p.y), writetime(s.x), p FROM u"
    ) == [(5, 9, None, 100, 9, (1, 3))]
    made.run("DELETE p.x FROM u WHERE k = 1 AND c = 1")
    # One fact for each field, and null for those that have none.
    monkeypatch.setattr(made, "_plain", lambda prepared, row: tuple(row))
    [(told,)] = made.run("SELECT writetime(p) FROM u")
    assert told == bytes.fromhex("00000002 ffffffff 00000008 0000000000000009")
    monkeypatch.undo()
    made.run("INSERT INTO t (k, p) VALUES (1, {x: 1}) USING TIMESTAMP 7")
    assert made.run("SELECT writetime(p), writetime(p.x), writetime(p.y) FROM t") == [(7, 7, None)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("INSERT INTO t (k, p) VALUES (1, {z: 1})", "Unknown field 'z' in value of user defined type point"),
        ("INSERT INTO t (k, p) VALUES (1, {x: 'a'})",
         "Invalid user type literal for p: field x is not of type int"),
        ("INSERT INTO t (k, l) VALUES (1, {x: 1})", "Invalid user type literal for l of type list<frozen<"),
        ("INSERT INTO t (k, p) VALUES (1, {'x': 1})", "Invalid map literal for p of type frozen<point>"),
        ("INSERT INTO t (k, p) VALUES (1, (1, 2))", "Invalid tuple type literal for p of type frozen<point>"),
        ("INSERT INTO t (k, p) VALUES (1, [1])", "Invalid list literal for p of type frozen<point>"),
        ("INSERT INTO t (k, p) VALUES (1, 1)", 'Invalid INTEGER constant (1) for "p" of type frozen<point>'),
        ("UPDATE t SET p.x = 1 WHERE k = 1", "Invalid operation (p.x = 1) for frozen UDT column p"),
        ("UPDATE t SET l.x = 1 WHERE k = 1", "Invalid operation (l.x = 1) for non-UDT column l"),
        ("UPDATE u SET p.z = 1 WHERE k = 1 AND c = 1", "UDT column p does not have a field named z"),
        ("UPDATE u SET p.x = 1, p = {y: 1} WHERE k = 1 AND c = 1",
         "Multiple incompatible setting of column p"),
        ("DELETE p.x FROM t WHERE k = 1", "Invalid field deletion operation for frozen UDT column p"),
        ("DELETE l.x FROM t WHERE k = 1", "Invalid field deletion operation for non-UDT column l"),
        ("DELETE p.z FROM u WHERE k = 1 AND c = 1", "UDT column p does not have a field named z"),
        ("UPDATE u SET p = p + {x: 1} WHERE k = 1 AND c = 1", "(p = p + {x: 1}) for tuple column p"),
        ("SELECT p.z FROM t", "p of type frozen<point> has no field z"),
        ("SELECT l.z FROM t", "Invalid field selection: l of type list<frozen<point>> is not a user type"),
        ("SELECT * FROM u WHERE p = {x: 1} ALLOW FILTERING",
         "Non-frozen UDT column 'p' (point) cannot be restricted by any relation"),
        ("SELECT ttl(p.z) FROM u", "p of type point has no field z"),
    ],
)  # fmt: skip
def test_refusals_name_type_and_field(text: str, message: str) -> None:
    made = session(_FROZEN, _APART)
    with pytest.raises((InvalidRequest, SyntaxError_, Rejected)) as caught:
        made.run(text)
    assert message in caught.value.message


def test_types_read_back_from_the_wire_and_from_class_names() -> None:
    made = session()
    space = made.schema.by_name["ks"]
    for text in ('frozen<"Place">', "point", 'map<text, frozen<list<frozen<"Place">>>>'):
        kind = type_in(space, text)
        option = type_option(5, kind)
        found, end = read_type(option, 0)
        assert end == len(option)
        assert type_option(5, found) == option
        again = type_of_class(class_name(kind))
        assert type_option(5, again) == option
    place = read_type(type_option(4, type_in(space, '"Place"')), 0)[0]
    assert isinstance(place, UserDefinedType)
    assert (place.keyspace, place.type_name, place.field_names) == ("ks", "Place", ("Name", "at", "tags"))
    vector = type_in(space, "vector<frozen<point>, 2>")
    assert type_of_class(class_name(vector)).text == vector.text


def test_clients_get_every_field_of_what_is_stored_without_the_last_nulls() -> None:
    made = session()
    space = made.schema.by_name["ks"]
    one, null = b"\0\0\0\4\0\0\0\1", b"\xff" * 4
    whole = one + null

    def sized(part: bytes) -> bytes:
        return len(part).to_bytes(4, "big") + part

    for text, stored, given_ in (
        ("point", one, whole),
        ("point", null, null + null),
        ("point", one + one, one + one),
        ("point", b"", b""),
        ("list<frozen<point>>", b"\0\0\0\1" + sized(one), b"\0\0\0\1" + sized(whole)),
        ("map<int, frozen<point>>", b"\0\0\0\1" + one + sized(one), b"\0\0\0\1" + one + sized(whole)),
        ("tuple<int, point>", one + sized(one), one + sized(whole)),
        ("tuple<int, point>", one, one + null),
        ("vector<frozen<point>, 1>", b"\x08" + one, b"\x0c" + whole),
        ('"Place"', null + sized(one), null + sized(whole) + null),
        ("list<int>", b"\0\0\0\1" + one, b"\0\0\0\1" + one),
    ):
        kind = type_in(space, text)
        assert kind.completed(stored) == given_, text
        assert kind.name == "vector" or kind.canonical(given_) == kind.canonical(stored)


def test_elements_of_vectors_are_stored_as_they_are_bound() -> None:
    """Two drivers' own tests bind sets in vectors in any order, and twice the same."""
    one, two = b"\0\0\0\4\0\0\0\1", b"\0\0\0\4\0\0\0\2"
    bound = b"\0\0\0\3" + two + one + two
    assert parse_type("frozen<set<int>>").canonical(bound) == b"\0\0\0\2" + one + two
    for text in ("vector<set<int>, 1>", "vector<frozen<set<int>>, 1>"):
        kind = parse_type(text)
        data = bytes([len(bound)]) + bound
        kind.validate(data)
        assert kind.canonical(data) == data
        assert kind.from_sort_key(kind.sort_key(data)) == data


def test_bytes_that_end_early_name_the_field() -> None:
    fields = UserFields("ks", ("f", "g"), (parse_type("int"), parse_type("int")))
    kind = UserDefinedType(fields, "point", "point", frozen=True)
    for data, message in (
        (b"\0\0\0\4\0", "Not enough bytes to read 0th field f"),
        (b"\0\0\0\4\0\0\0\1\0", "Not enough bytes to read size of 1th field g"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            kind.validate(data)
