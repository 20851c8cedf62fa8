"""Type texts, wire bytes against the drivers' codec, checks and canonical forms."""

from __future__ import annotations

import datetime
import decimal
import ipaddress
import math
import uuid

import cassandra.cqltypes as oracle_types
import cassandra.util as oracle_values
import pytest
from cassandra.cqltypes import lookup_casstype
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.wire.type_options import class_name
from lockstep.schema.types import UserFields, numbers, parse_type, parse_type_with
from lockstep.values.errors import InvalidRequest

from .kinds import KINDS, SCALARS


def oracle(text):
    return lookup_casstype(class_name(parse_type(text)))


def to_oracle(text, value):
    """Our value shape as the driver's."""
    if value is None:
        return None
    if text in ("uuid", "timeuuid"):
        return uuid.UUID(bytes=value)
    if text == "date":
        return oracle_values.Date(value)
    if text == "time":
        return oracle_values.Time(value)
    if text == "duration":
        return oracle_values.Duration(*value)
    return value


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400)
def test_scalars_have_the_drivers_bytes(data):
    kind = data.draw(st.sampled_from([k for k in SCALARS if k.text != "timestamp"]))
    value = data.draw(kind.values)
    expected = oracle(kind.text).serialize(to_oracle(kind.text, value), 5)
    ours = parse_type(kind.text)
    assert ours.serialize(value) == expected
    ours.validate(expected)
    back = ours.deserialize(expected)
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(back)
    elif kind.text == "inet":
        assert ipaddress.ip_address(back) == ipaddress.ip_address(value)
    else:
        assert back == value


@given(st.integers(-62_135_596_800_000, 253_402_300_799_000))
def test_timestamps_have_the_drivers_bytes(ms):
    when = datetime.datetime(1970, 1, 1) + datetime.timedelta(milliseconds=ms)  # noqa: DTZ001
    assert parse_type("timestamp").serialize(ms) == oracle("timestamp").serialize(when, 5)


@given(
    st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 31) - 1), st.integers(0, (1 << 63) - 1), st.booleans()
)
def test_durations_have_the_drivers_bytes(months, days, ns, negative):
    value = (-months, -days, -ns) if negative else (months, days, ns)
    data = oracle("duration").serialize(oracle_values.Duration(*value), 5)
    assert parse_type("duration").serialize(value) == data
    assert parse_type("duration").deserialize(data) == value


@given(st.integers(0, (1 << 64) - 1))
def test_unsigned_vints_have_the_drivers_bytes(value):
    from cassandra.marshal import uvint_pack

    assert numbers.write_unsigned(value) == uvint_pack(value)
    assert numbers.read_unsigned(b"x" + numbers.write_unsigned(value), 1)[0] == value


@pytest.mark.parametrize(
    ("text", "ours", "theirs"),
    [
        ("list<int>", [3, 1, 3], [3, 1, 3]),
        ("list<int>", [], []),
        ("set<text>", ["b", "a", "b"], ["a", "b"]),
        (
            "map<text, frozen<list<int>>>",
            {"b": [1], "a": []},
            oracle_values.OrderedMap([("a", []), ("b", [1])]),
        ),
        ("tuple<int, text, boolean>", (1, None, True), (1, None, True)),
        ("frozen<set<tuple<int, int>>>", [(2, 1), (1, 9)], [(1, 9), (2, 1)]),
        ("vector<float, 3>", [1.0, -2.5, 0.0], [1.0, -2.5, 0.0]),
        ("vector<text, 2>", ["", "abc"], ["", "abc"]),
        ("vector<smallint, 2>", [1, -1], [1, -1]),
        ("vector<vector<int, 2>, 2>", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
    ],
)
def test_compound_values_have_the_drivers_bytes(text, ours, theirs):
    kind = parse_type(text)
    data = kind.serialize(ours)
    assert data == oracle(text).serialize(theirs, 5)
    kind.validate(data)
    assert kind.serialize(kind.deserialize(data)) == data
    assert oracle(text).deserialize(data, 5) is not None


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150)
def test_nested_values_round_trip_and_are_canonical(data):
    kind = data.draw(KINDS)
    value = data.draw(kind.values)
    ours = parse_type(kind.text)
    encoded = ours.serialize(value)
    ours.validate(encoded)
    assert ours.canonical(encoded) == encoded
    assert ours.serialize(ours.deserialize(encoded)) == encoded


def test_canonical_sorts_and_deduplicates_what_a_client_sent():
    ints = parse_type("list<int>")
    messy = ints.serialize([2, -1, 2])
    kind = parse_type("set<int>")
    assert kind.canonical(messy) == kind.serialize([-1, 2]) == ints.serialize([-1, 2])
    assert kind.deserialize(messy) == [-1, 2]
    mapping = parse_type("map<int, int>")
    flat = (3).to_bytes(4, "big") + b"".join(
        (4).to_bytes(4, "big") + n.to_bytes(4, "big") for n in (5, 50, 1, 10, 5, 51)
    )
    assert mapping.deserialize(mapping.canonical(flat)) == [(1, 10), (5, 51)]
    pair = parse_type("tuple<int, int>")
    assert pair.canonical(pair.serialize((1,))) == pair.serialize((1, None))


@pytest.mark.parametrize(
    ("text", "data", "message"),
    [
        ("int", b"abc", "Expected 4 or 0 byte int (3)"),
        ("bigint", b"a", "Expected 8 or 0 byte long (1)"),
        ("smallint", b"", "Expected 2 bytes for a smallint (0)"),
        ("tinyint", b"ab", "Expected 1 byte for a tinyint (2)"),
        ("float", b"a", "Expected 4 or 0 byte value for a float (1)"),
        ("double", b"a", "Expected 8 or 0 byte value for a double (1)"),
        ("boolean", b"ab", "Expected 1 or 0 byte value (2)"),
        ("timestamp", b"a", "Expected 8 or 0 byte long for date (1)"),
        ("date", b"", "Expected 4 byte long for date (0)"),
        ("time", b"", "Expected 8 byte long for time (0)"),
        ("uuid", b"a", "UUID should be 16 or 0 bytes (1)"),
        ("timeuuid", bytes(16), "Invalid version for TimeUUID type."),
        ("decimal", b"abc", "Expected 0 or at least 4 bytes (3)"),
        ("duration", b"", "Expected at least 3 bytes for a duration (0)"),
        ("text", b"\xff", "String didn't validate."),
        ("ascii", b"\xc3", "Invalid byte for ascii: -61"),
        ("inet", b"abc", "Expected 4 or 16 byte inetaddress; got 616263"),
        ("list<int>", b"\0\0\0\1", "Not enough bytes to read a list"),
        ("list<int>", b"\0\0\0\0x", "Unexpected extraneous bytes after list value"),
        ("set<int>", b"\0\0\0\1\xff\xff\xff\xff", "Null value read when not allowed"),
        ("map<int, int>", b"\x7f\xff\xff\xff", "Not enough bytes to read a map"),
        ("list<int>", b"\0\0\0\1\0\0\0\3abc", "Expected 4 or 0 byte int (3)"),
        ("tuple<int>", b"\0\0", "Not enough bytes to read size of 0th component"),
        ("vector<int, 2>", b"\0\0\0\0", "Not enough bytes to read a vector<int, 2>"),
        ("vector<int, 1>", b"\0\0\0\0xy", "Unexpected 2 extraneous bytes after vector<int, 1> value"),
    ],
)
def test_wrong_bytes_are_refused_with_the_known_wording(text, data, message):
    with pytest.raises(InvalidRequest) as caught:
        parse_type(text).validate(data)
    assert caught.value.message == message


EVERY_KIND = [
    *(kind.text for kind in SCALARS),
    *(
        "duration",
        "list<int>",
        "map<text, int>",
        "tuple<int, text>",
        "vector<text, 2>",
        "frozen<set<decimal>>",
    ),
]


@given(st.sampled_from(EVERY_KIND), st.binary(max_size=24))
@settings(max_examples=300)
def test_any_bytes_validate_or_are_an_invalid_request(text, data):
    kind = parse_type(text)
    try:
        kind.validate(data)
    except InvalidRequest:
        return
    kind.deserialize(data)
    stored = kind.canonical(data)
    assert kind.canonical(stored) == stored
    assert kind.from_sort_key(kind.sort_key(stored)) == stored


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("int", 1 << 31), ("int", "1"), ("tinyint", 128), ("text", 1), ("boolean", 1), ("uuid", b"x"),
        ("decimal", decimal.Decimal("NaN")), ("date", 1 << 31), ("time", -1), ("duration", (1, -1, 0)),
        ("inet", "300.0.0.1"), ("list<int>", 5), ("list<int>", [None]), ("map<int, int>", [1]),
        ("vector<int, 2>", [1]), ("tuple<int>", (1, 2)), ("timeuuid", bytes(16)), ("ascii", "é"),
        ("double", "x"), ("varint", 1.5), ("blob", "x"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused(text, value):
    with pytest.raises(InvalidRequest):
        parse_type(text).serialize(value)


def test_empty_values_are_null_where_they_mean_nothing():
    for text in ("int", "bigint", "float", "decimal", "varint", "boolean", "timestamp", "uuid", "inet"):
        kind = parse_type(text)
        assert kind.empty_allowed
        kind.validate(b"")
        assert kind.deserialize(b"") is None
    assert parse_type("text").deserialize(b"") == ""
    assert parse_type("blob").deserialize(b"") == b""


def test_huge_numbers_keep_every_digit():
    number = 7 * 10**3990 + 1
    kind = parse_type("varint")
    assert kind.deserialize(kind.serialize(-number)) == -number
    data = parse_type("decimal").serialize(decimal.Decimal(number))
    assert parse_type("decimal").deserialize(data) == decimal.Decimal(number)
    assert parse_type("decimal").from_sort_key(parse_type("decimal").sort_key(data)) == data


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("varchar", "text"),
        (" INT ", "int"),
        ("list< varchar >", "list<text>"),
        ("frozen<list<list<int>>>", "frozen<list<frozen<list<int>>>>"),
        ("map<text,frozen<set<int>>>", "map<text, frozen<set<int>>>"),
        ("tuple<int,list<text>>", "frozen<tuple<int, frozen<list<text>>>>"),
        ("frozen<tuple<int>>", "frozen<tuple<int>>"),
        ("list<tuple<int>>", "list<frozen<tuple<int>>>"),
        ("Vector<float,3>", "vector<float, 3>"),
        ("frozen<frozen<list<int>>>", "frozen<list<int>>"),
    ],
)
def test_type_texts_have_one_canonical_form(text, canonical):
    kind = parse_type(text)
    assert kind.text == canonical
    assert parse_type(canonical) == kind


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("foo", "Unknown type foo"),
        ("list<foo>", "Unknown type foo"),
        ("list<list<int>>", "Non-frozen collections are not allowed inside collections: list<list<int>>"),
        ("list<counter>", "Counters are not allowed inside collections: list<counter>"),
        ("set<duration>", "Durations are not allowed inside sets: set<duration>"),
        ("map<duration, int>", "Durations are not allowed as map keys: map<duration, int>"),
        ("vector<int, 0>", "Vectors may only have positive dimensions; given 0"),
        ("frozen<int>",
         "frozen<> is only allowed on collections, tuples, and user-defined types (got int)"),
    ],
)  # fmt: skip
def test_impossible_types_are_refused_with_the_known_wording(text, message):
    with pytest.raises(InvalidRequest) as caught:
        parse_type(text)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text", ["", "list<", "list<int", "list<int>>", "map<int>", "int int", "<", "vector<int>", "list<" * 200]
)
def test_broken_type_texts_are_refused(text):
    with pytest.raises(InvalidRequest):
        parse_type(text)


def test_a_resolver_is_asked_for_names_that_are_not_built_in():
    asked = []

    def resolve(keyspace, name):
        asked.append((keyspace, name))
        return UserFields("ks", ("x", "y"), (parse_type("int"), parse_type("text")))

    kind = parse_type_with('map<frozen<Place>, frozen<ks."Point">>', resolve)
    assert asked == [(None, "place"), ("ks", "Point")]
    assert kind.text == 'map<frozen<place>, frozen<"Point">>'
    assert kind.value.elements == (parse_type("int"), parse_type("text"))
    assert (kind.value.is_frozen, kind.value.is_multicell) == (True, False)
    assert parse_type_with("place", resolve).is_multicell


def test_collections_tell_their_parts_and_whether_cells_are_apart():
    kind = parse_type("map<text, frozen<list<int>>>")
    assert (kind.is_collection, kind.is_multicell, kind.is_frozen) == (True, True, False)
    assert kind.key.text == "text"
    assert kind.value.is_frozen
    assert not kind.value.is_multicell
    assert parse_type("tuple<int, text>").elements == (parse_type("int"), parse_type("text"))
    assert not parse_type("tuple<int>").is_multicell
    assert parse_type("list<int>").element.text == "int"


@pytest.mark.parametrize(
    ("text", "value", "literal"),
    [
        ("text", "it's", "'it''s'"), ("blob", b"\x01\xff", "0x01ff"), ("boolean", True, "true"),
        ("uuid", bytes(range(16)), "00010203-0405-0607-0809-0a0b0c0d0e0f"),
        ("timestamp", -1, "'1969-12-31T23:59:59.999Z'"), ("date", -1, "'1969-12-31'"),
        ("time", 3_723_000_000_004, "'01:02:03.000000004'"),
        ("duration", (14, 0, 61_000_000_000), "1y2mo1m1s"),
        ("duration", (0, 0, 0), "0s"), ("duration", (-1, 0, 0), "-1mo"), ("double", math.inf, "Infinity"),
        ("list<text>", ["a", "b"], "['a', 'b']"), ("set<int>", [1, 2], "{1, 2}"), ("double", math.nan, "NaN"),
        ("map<text, int>", [("a", 1)], "{'a': 1}"), ("tuple<int, text>", (1, None), "(1, null)"),
    ],
)  # fmt: skip
def test_values_are_formatted_as_literals(text, value, literal):
    assert parse_type(text).format(value) == literal


def test_every_native_type_is_known_to_the_driver():
    for text in ("counter", "duration", *(kind.text for kind in SCALARS)):
        assert oracle(text) is not oracle_types.BytesType or text == "blob"


@pytest.mark.parametrize("text", ["list<int>", "frozen<set<int>>", "map<int, int>"])
def test_a_collection_of_a_client_has_bounded_entries(text):
    kind = parse_type(text)
    entry = bytes(4) * kind.parts_per_entry
    few, many = ((count.to_bytes(4, "big") + entry * count) for count in (5, 131_073))
    with pytest.raises(InvalidRequest, match="131073 entries, more than 131072"):
        kind.validate(many)
    kind.check_entries(131_072)
    assert len(kind.split(few)) == 5 * kind.parts_per_entry


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        ("vector<int, 2>", b"", "Invalid empty vector value"),
        ("vector<text, 2>", b"", "Invalid empty vector value"),
        ("vector<text, 2>", b"\x01a", "Not enough bytes to read a vector<text, 2>"),
        ("vector<text, 2>", b"\x01a\x09b", "Not enough bytes to read a vector<text, 2>"),
        ("vector<int, 1>", bytes(5), "Unexpected 1 extraneous bytes after vector<int, 1> value"),
    ],
)
def test_vectors_of_a_wrong_length_are_refused(kind: str, data: bytes, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_type(kind).validate(data)
    assert caught.value.message == message
