"""Cells to Arrow and values to cells: every type there and back, nulls, and what does not fit."""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("pyspark")


from lockstep.scans.arrow_columns import arrow_type, decode_cells
from lockstep.schema.types import parse_type
from lockstep.spark.columns import spark_type
from lockstep.spark.encoders import encoder
from lockstep.spark.scan import PageDecoder, RawPage
from lockstep.values.errors import InvalidRequest, ProtocolViolation

UTC = datetime.UTC
ONE_UUID = "f81d4fae-7dec-11d0-a765-00a0c91e6bf6"
#: CQL type -> (Spark type, values as Spark shows them).
SAMPLES: dict[str, tuple[str, list[Any]]] = {
    "tinyint": ("tinyint", [-128, 0, 127]),
    "smallint": ("smallint", [-32768, 7]),
    "int": ("int", [-(1 << 31), (1 << 31) - 1]),
    "bigint": ("bigint", [-(1 << 63), (1 << 63) - 1]),
    "float": ("float", [1.5, -0.25]),
    "double": ("double", [1e300, -2.5]),
    "boolean": ("boolean", [True, False]),
    "text": ("string", ["", "naïve ☃"]),
    "ascii": ("string", ["plain"]),
    "blob": ("binary", [b"", b"\x00\xff"]),
    "inet": ("binary", [b"\x7f\x00\x00\x01", bytes(15) + b"\x01"]),
    "uuid": ("string", [ONE_UUID, "00000000-0000-4000-8000-000000000000"]),
    "timeuuid": ("string", [ONE_UUID]),
    "time": ("bigint", [0, 86_399_999_999_999]),
    "date": ("date", [datetime.date(1969, 12, 31), datetime.date(2024, 2, 29)]),
    "timestamp": ("timestamp", [datetime.datetime(1969, 7, 20, 20, 17, 40, 123000, UTC)]),
    "varint": ("decimal(38,0)", [decimal.Decimal(10**38 - 1), decimal.Decimal(-129)]),
    "decimal": ("decimal(38,18)", [decimal.Decimal("-12.500000000000000000"), decimal.Decimal(0)]),
    "list<int>": ("array<int>", [[3, 1, 2], []]),
    "set<text>": ("array<string>", [["a", "b"]]),
    "map<text, int>": ("map<string,int>", [[("a", 1), ("b", 2)], []]),
    "frozen<map<uuid, frozen<list<timestamp>>>>": (
        "map<string,array<timestamp>>",
        [[(ONE_UUID, [datetime.datetime(2020, 1, 1, tzinfo=UTC)])]],
    ),
    "frozen<tuple<int, text>>": (
        "struct<_1:int,_2:string>",
        [{"_1": 1, "_2": None}, {"_1": None, "_2": "x"}],
    ),
    "vector<float, 3>": ("array<float>", [[1.0, 2.0, 3.0]]),
}


@pytest.mark.parametrize("text", SAMPLES)
def test_values_come_back_with_the_declared_type(text: str) -> None:
    kind = parse_type(text)
    shown, values = SAMPLES[text]
    encode = encoder(kind)
    array = decode_cells(kind, [*(encode(value) for value in values), None])
    array.validate(full=True)
    assert spark_type(kind).simpleString() == shown
    assert array.type == arrow_type(kind)
    assert array.to_pylist() == [*values, None]


@pytest.mark.parametrize("text", ["int", "bigint", "uuid", "timestamp", "boolean", "varint"])
def test_the_empty_value_is_null(text: str) -> None:
    assert decode_cells(parse_type(text), [b"", None]).to_pylist() == [None, None]


@pytest.mark.parametrize("text", ["counter", "duration", "frozen<list<duration>>"])
def test_types_without_a_spark_type_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="no Spark type"):
        spark_type(parse_type(text))


def test_a_decimal_is_never_rounded() -> None:
    kind = parse_type("decimal")
    cell = encoder(kind)(decimal.Decimal("0.125"))
    assert decode_cells(kind, [cell], 3).to_pylist() == [decimal.Decimal("0.125")]
    with pytest.raises(InvalidRequest, match="exactly"):
        decode_cells(kind, [cell], 2)
    with pytest.raises(InvalidRequest, match="exactly"):
        decode_cells(kind, [encoder(kind)(decimal.Decimal("1E+30"))], 18)


@given(st.decimals(allow_nan=False, allow_infinity=False), st.integers(0, 38))
@settings(max_examples=150, deadline=None)
def test_decimals_are_exact_or_refused(value: decimal.Decimal, scale: int) -> None:
    kind = parse_type("decimal")
    with decimal.localcontext(decimal.Context(prec=10_000, Emax=10**9, Emin=-(10**9))):
        expected = value.is_zero() or (
            value.as_tuple().exponent > -2000
            and value.adjusted() < 60
            and value.scaleb(scale) == value.scaleb(scale).to_integral_value()
            and abs(value.scaleb(scale)) < 10**38
        )
    cell = kind.serialize(value)
    if expected:
        assert decode_cells(kind, [cell], scale).to_pylist() == [value]
    else:
        with pytest.raises(InvalidRequest):
            decode_cells(kind, [cell], scale)


def test_a_varint_of_39_digits_is_refused() -> None:
    kind = parse_type("varint")
    with pytest.raises(InvalidRequest, match="exactly"):
        decode_cells(kind, [kind.serialize(10**38)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("uuid", "no"),
        ("timestamp", datetime.datetime.fromisoformat("2020-01-01T00:00:00")),
        ("inet", b"123"),
        ("varint", decimal.Decimal("1.5")),
        ("frozen<list<int>>", [1, None]),
        ("vector<float, 2>", [1.0]),
        ("date", "2020-01-01"),
        ("int", "1"),
    ],
)
def test_values_that_do_not_fit_are_refused(text: str, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        encoder(parse_type(text))(value)


def page_of(rows: list[tuple[bytes | None, ...]]) -> RawPage:
    body = b"head" + b"".join(
        struct.pack(">i", -1) if cell is None else struct.pack(">i", len(cell)) + cell
        for row in rows
        for cell in row
    )
    return RawPage(body, 4, len(rows), None)


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "text": st.text(max_size=5),
    "uuid": st.uuids(version=4).map(str),
    "list<int>": st.lists(st.integers(0, 9), max_size=3),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
}


@st.composite
def tables(draw: st.DrawFn) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column types, and rows of them: in some tables without nulls, in others with nulls anywhere."""
    kinds = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
    nulls = draw(st.booleans())
    cells = [st.none() | VALUES[kind] if nulls else VALUES[kind] for kind in kinds]
    return kinds, draw(st.lists(st.tuples(*cells), max_size=8))


@given(tables())
@settings(max_examples=150, deadline=None)
def test_pages_decode_to_the_rows_they_were_made_of(table: tuple[list[str], list[tuple[Any, ...]]]) -> None:
    kinds = [parse_type(text) for text in table[0]]
    encoders = [encoder(kind) for kind in kinds]
    cells = [
        tuple(None if value is None else encode(value) for encode, value in zip(encoders, row, strict=True))
        for row in table[1]
    ]
    names = [f"c{index}" for index in range(len(kinds))]
    batch = PageDecoder(list(zip(names, kinds, strict=True)), 18).decode(page_of(cells))
    batch.validate(full=True)
    assert [tuple(row.values()) for row in batch.to_pylist()] == table[1]
    assert batch.schema.types == [arrow_type(kind) for kind in kinds]


@pytest.mark.parametrize("damage", [lambda body: body[:-1], lambda body: body + b"\x00"])
def test_a_damaged_page_is_refused(damage: Any) -> None:
    whole = page_of([(b"\x00\x00\x00\x01", b"text"), (None, b"more")])
    page = RawPage(damage(whole.body), whole.at, whole.count, None)
    with pytest.raises(ProtocolViolation):
        PageDecoder([("a", parse_type("int")), ("b", parse_type("text"))], 18).decode(page)


def test_uuid_text_equals_the_standard_library() -> None:
    values = [uuid.UUID(int=number * 0x123456789ABCDEF0123456789ABCDEF % (1 << 128)) for number in range(50)]
    array = decode_cells(parse_type("uuid"), [value.bytes for value in values])
    assert array.to_pylist() == [str(value) for value in values]
