"""Types named by classes in quotes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cql.wire.type_options import class_name
from lockstep.schema.types import CustomType, parse_type
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

PACKAGE = "org.apache.cassandra.db.marshal."
PAIR = f"'{PACKAGE}CompositeType({PACKAGE}AsciiType,{PACKAGE}Int32Type)'"
LETTERS = f"'{PACKAGE}DynamicCompositeType(i=>{PACKAGE}Int32Type,s=>{PACKAGE}UTF8Type)'"


@pytest.mark.parametrize(
    ("given_text", "text"),
    [
        ("'UTF8Type'", "text"),
        (f"'{PACKAGE}LongType'", "bigint"),
        ("'CompositeType(AsciiType, Int32Type)'", PAIR),
        ("'DynamicCompositeType(s => UTF8Type, i => Int32Type)'", LETTERS),
    ],
)
def test_a_class_means_a_type_with_full_names(given_text: str, text: str) -> None:
    kind = parse_type(given_text)
    assert kind.text == text
    assert parse_type(kind.text) == kind
    if isinstance(kind, CustomType):
        assert f"'{class_name(kind)}'" == text


@pytest.mark.parametrize(
    "text", ["''", "'NoSuchType'", "'CompositeType(NoSuchType)'", "'DynamicCompositeType(UTF8Type)'", "'a b'"]
)
def test_unknown_classes_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        parse_type(text)


def test_texts_of_composites_have_their_bytes() -> None:
    session = Session(
        f"CREATE TABLE t (k int PRIMARY KEY, c {PAIR}, d 'DynamicCompositeType(s=>UTF8Type,i=>Int32Type)')"
    )
    session.run("INSERT INTO t (k, c, d) VALUES (1, 'a\\:b:123', 's@x:i@7')")
    ((composite, dynamic),) = session.run("SELECT c, d FROM t WHERE k = 1")
    assert composite == b"\0\3a:b\0" + b"\0\4\0\0\0\x7b\0"
    assert dynamic == b"\x80s\0\1x\0" + b"\x80i\0\4\0\0\0\7\0"
    session.run("INSERT INTO t (k, c) VALUES (1, 'abc')")
    assert session.run("SELECT c FROM t WHERE k = 1") == [(b"\0\3abc\0",)]
    for wrong in ("'abc:x'", "'a:1:2'", "0x00", "0x0005616263", "12"):
        with pytest.raises(InvalidRequest):
            session.run(f"INSERT INTO t (k, c) VALUES (1, {wrong})")


@given(st.binary(max_size=30))
def test_foreign_bytes_are_read_or_refused(data: bytes) -> None:
    for text in (PAIR, LETTERS):
        kind = parse_type(text)
        assert isinstance(kind, CustomType)
        try:
            kind.validate(data)
        except InvalidRequest:
            continue
        assert sum(len(part) for _, part in kind.split(data)) <= len(data)
