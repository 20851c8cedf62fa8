"""Byte order of single values and of clustering tuples, against comparisons of Python values."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.schema.clustering import (
    EMPTY_SLICE,
    after_prefix,
    decode,
    encode_prefix,
    slice_bounds,
    slice_for,
)
from lockstep.schema.types import parse_type
from lockstep.values.rows import Slice

from .kinds import KINDS, SCALARS


def compare(left, right):
    return (left > right) - (left < right)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=500)
def test_sort_keys_and_components_order_as_the_values_do(data):
    kind = data.draw(KINDS)
    ours = parse_type(kind.text)
    left, right = data.draw(kind.values), data.draw(kind.values)
    a, b = ours.serialize(left), ours.serialize(right)
    expected = compare(kind.key(left), kind.key(right))
    for one, two in ((ours.sort_key(a), ours.sort_key(b)), (ours.component(a), ours.component(b))):
        if expected:
            assert compare(one, two) == expected
        assert (one == two) == (a == b)
    assert ours.from_sort_key(ours.sort_key(a)) == a
    assert ours.take_component(b"?" + ours.component(a) + b"\x00\x01", 1) == (a, 1 + len(ours.component(a)))


@pytest.mark.parametrize(
    ("text", "ordered"),
    [
        ("double", ["fff0000000000000", "8000000000000000", "0000000000000000", "7ff0000000000000",
                    "7ff8000000000000"]),
        ("int", ["", "80000000", "ffffffff", "00000000", "7fffffff"]),
        ("varint", ["", "ff00", "80", "ff", "00", "0000", "7f", "0080"]),
        ("decimal", ["", "00000000ff", "0000000000", "0000000101", "00000000" "01", "00000001" "0a",
                     "0000000065"]),
        ("text", ["", "00", "0000", "0001", "01", "61", "6100", "62"]),
        ("timestamp", ["", "8000000000000000", "0000000000000001"]),
    ],
)  # fmt: skip
def test_corner_values_sort_as_listed(text, ordered):
    kind = parse_type(text)
    components = [kind.component(bytes.fromhex(data)) for data in ordered]
    assert components == sorted(components)
    assert len(set(components)) == len(components)


def test_negative_nan_sorts_last_and_keeps_its_bits():
    kind = parse_type("double")
    nan = bytes.fromhex("fff8000000000001")
    infinity = bytes.fromhex("7ff0000000000000")
    assert kind.sort_key(nan) > kind.sort_key(infinity)
    assert kind.from_sort_key(kind.sort_key(nan)) == nan


class Shape:
    """Types and directions of some clustering columns, and the twin's order of their tuples."""

    def __init__(self, kinds, descending):
        self.kinds = kinds
        self.descending = descending
        self.types = [parse_type(kind.text) for kind in kinds]

    def serialise(self, values):
        pairs = zip(self.types, values, strict=False)
        return [b"" if value is None else kind.serialize(value) for kind, value in pairs]

    def encode(self, values):
        return encode_prefix(self.types, self.descending, self.serialise(values))

    def column_order(self, index, left, right):
        """Ascending order of one column; None is the empty value."""
        if left is None or right is None:
            return compare(left is not None, right is not None)
        key = self.kinds[index].key
        if compare(key(left), key(right)) == 0:
            # Equal to the type, yet different bytes: told apart by the encoding alone.
            kind = self.types[index]
            return compare(kind.sort_key(kind.serialize(left)), kind.sort_key(kind.serialize(right)))
        return compare(key(left), key(right))

    def order(self, left, right):
        for index, (a, b) in enumerate(zip(left, right, strict=True)):
            result = self.column_order(index, a, b)
            if result:
                return -result if self.descending[index] else result
        return 0


SMALL = {
    "int": st.integers(-3, 3),
    "text": st.text("\x00\x01ab", max_size=2),
    "blob": st.lists(st.sampled_from([0, 1, 255]), max_size=2).map(bytes),
    "varint": st.sampled_from([-(1 << 70), -129, -1, 0, 1, 128, 1 << 70]),
    "double": st.sampled_from([-1.5, -0.0, 0.0, 2.0, float("inf"), float("nan")]),
}


def small(kind):
    return kind._replace(values=SMALL.get(kind.text, kind.values))


@st.composite
def shapes(draw):
    kinds = [small(kind) for kind in draw(st.lists(st.sampled_from(SCALARS) | KINDS, min_size=1, max_size=3))]
    descending = [draw(st.booleans()) for _ in kinds]
    return Shape(kinds, descending)


def column_values(kind):
    values = kind.values
    return (
        st.none() | values
        if parse_type(kind.text).empty_allowed and kind.text not in EMPTY_IS_A_VALUE
        else values
    )


EMPTY_IS_A_VALUE = ("text", "ascii", "blob")


def tuples_of(shape):
    return st.tuples(*(column_values(kind) for kind in shape.kinds))


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300)
def test_clusterings_order_and_decode(data):
    shape = data.draw(shapes())
    left, right = data.draw(tuples_of(shape)), data.draw(tuples_of(shape))
    a, b = shape.encode(left), shape.encode(right)
    assert compare(a, b) == shape.order(left, right)
    assert list(decode(shape.types, shape.descending, a)) == shape.serialise(left)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300)
def test_a_prefix_covers_exactly_its_extensions(data):
    shape = data.draw(shapes())
    left, right = data.draw(tuples_of(shape)), data.draw(tuples_of(shape))
    width = data.draw(st.integers(0, len(left)))
    prefix = encode_prefix(shape.types, shape.descending, shape.serialise(left)[:width])
    assert list(decode(shape.types, shape.descending, prefix)) == shape.serialise(left)[:width]
    shares = shape.serialise(left)[:width] == shape.serialise(right)[:width]
    assert Slice(prefix, after_prefix(prefix)).contains(shape.encode(right)) == shares
    assert shape.encode(right).startswith(prefix) == shares


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400)
def test_slices_contain_exactly_what_their_bounds_say(data):
    shape = data.draw(shapes())
    pool = data.draw(st.lists(tuples_of(shape), min_size=2, max_size=6))
    model = pool[0]
    at = data.draw(st.integers(0, len(model) - 1))
    bounds = [
        (data.draw(st.sampled_from(pool))[at], data.draw(st.booleans())) if data.draw(st.booleans()) else None
        for _ in range(2)
    ]
    raw = [
        None
        if bound is None
        else (shape.types[at].serialize(bound[0]) if bound[0] is not None else b"", bound[1])
        for bound in bounds
    ]
    prefix = shape.serialise(model)[:at]
    piece = slice_for(shape.types, shape.descending, prefix, raw[0], raw[1])
    for row in pool:
        inside = shape.serialise(row)[:at] == prefix
        if bounds[0] is not None:
            order = shape.column_order(at, row[at], bounds[0][0])
            inside = inside and (order > 0 or (order == 0 and bounds[0][1]))
        if bounds[1] is not None:
            order = shape.column_order(at, row[at], bounds[1][0])
            inside = inside and (order < 0 or (order == 0 and bounds[1][1]))
        assert piece.contains(shape.encode(row)) == inside


def test_no_clustering_columns_are_the_empty_bytes():
    assert encode_prefix([], [], []) == b""
    assert decode([], [], b"") == ()
    assert slice_for([parse_type("int")], [True], [], None, None) == Slice()


def test_contradicting_bounds_contain_nothing():
    ints = [parse_type("int")]
    five, three = (5).to_bytes(4, "big"), (3).to_bytes(4, "big")
    piece = slice_for(ints, [False], [], (five, False), (three, False))
    assert not any(piece.contains(encode_prefix(ints, [False], [n.to_bytes(4, "big")])) for n in range(10))


def test_bounds_at_the_empty_value_of_a_descending_column_stay_bounded():
    ints = [parse_type("int")]
    empty = encode_prefix(ints, [True], [b""])
    some = encode_prefix(ints, [True], [bytes(4)])
    assert slice_for(ints, [True], [], None, (b"", True)).contains(empty)
    assert not slice_for(ints, [True], [], None, (b"", False)).contains(some)
    assert not slice_for(ints, [True], [], None, (b"", False)).contains(empty)


def bounded(types, descending, start, end):
    """The slice that two bounds of values mean."""
    first = encode_prefix(types, descending, start.values) if start.values else b""
    last = encode_prefix(types, descending, end.values) if end.values else b""
    first = first if start.inclusive else after_prefix(first)
    return Slice(first, after_prefix(last) if end.inclusive else last)


@given(st.data())
@settings(max_examples=200)
def test_a_slice_is_told_by_bounds_that_mean_it(data):
    kinds = [data.draw(st.sampled_from(SCALARS)) for _ in range(3)]
    types = [parse_type(kind.text) for kind in kinds]
    descending = [data.draw(st.booleans()) for _ in kinds]
    row = [kind_type.serialize(data.draw(kind.values)) for kind, kind_type in zip(kinds, types, strict=True)]
    width = data.draw(st.integers(0, 2))
    bound = types[width].serialize(data.draw(kinds[width].values))
    lower = (row[width], data.draw(st.booleans())) if data.draw(st.booleans()) else None
    upper = (bound, data.draw(st.booleans())) if data.draw(st.booleans()) else None
    wanted = slice_for(types, descending, row[:width], lower, upper)
    if wanted != EMPTY_SLICE:
        told = slice_bounds(types, descending, wanted.start, wanted.end)
        assert bounded(types, descending, *told) == wanted


@pytest.mark.parametrize(
    ("text", "lower", "upper", "told"),
    [
        ("int", (4, True), (6, True), ((4, True), (6, True))),
        ("int", (255, False), None, ((255, False), None)),
        ("text", ("a", False), ("b", False), (("a", False), ("b", False))),
        ("boolean", (False, False), None, ((True, True), None)),
    ],
)
def test_bounds_are_told_as_they_were_written_where_they_can_be(text, lower, upper, told):
    kind = parse_type(text)

    def side(given):
        return (kind.serialize(given[0]), given[1]) if given is not None else None

    found = slice_for([kind], [False], [], side(lower), side(upper))
    shown = slice_bounds([kind], [False], found.start, found.end)
    for bound, wanted in zip(shown, told, strict=True):
        expected = ((kind.serialize(wanted[0]),), wanted[1]) if wanted is not None else ((), True)
        assert tuple(bound) == expected
