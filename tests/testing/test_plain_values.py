"""Values of every type come back as the Python values that were sent."""

from __future__ import annotations

import datetime
import ipaddress
import uuid
from decimal import Decimal
from typing import Any

import pytest

from lockstep.schema.types import parse_type
from lockstep.testing.conversation import deserialized, serialized
from lockstep.values.errors import InvalidRequest

SAMPLES: list[tuple[str, Any]] = [
    ("int", -3),
    ("varint", 10**30),
    ("decimal", Decimal("1.50")),
    ("double", 2.5),
    ("boolean", True),
    ("text", "é"),
    ("blob", b"\x00\xff"),
    ("timestamp", datetime.datetime(2026, 2, 3, 4, 5, 6, 789000)),  # noqa: DTZ001
    ("date", datetime.date(1969, 12, 31)),
    ("time", datetime.time(23, 59, 59, 123456)),
    ("uuid", uuid.UUID(int=7)),
    ("timeuuid", uuid.UUID("00000000-0000-1000-8000-000000000000")),
    ("inet", "127.0.0.1"),
    ("duration", (1, 2, 3)),
    ("list<int>", [3, 1, 3]),
    ("set<date>", {datetime.date(2026, 1, 1)}),
    ("map<uuid, frozen<list<text>>>", {uuid.UUID(int=1): ["a", "b"]}),
    ("set<frozen<list<int>>>", {(1, 2)}),
    ("tuple<int, timestamp>", (1, None)),
    ("vector<float, 2>", [0.5, 1.0]),
]


@pytest.mark.parametrize(("name", "value"), SAMPLES, ids=[name for name, _ in SAMPLES])
def test_a_value_comes_back(name: str, value: Any) -> None:
    kind = parse_type(name)
    assert deserialized(kind, serialized(kind, value)) == value
    assert deserialized(kind, serialized(kind, None)) is None


def test_other_spellings_of_the_same_value() -> None:
    aware = datetime.datetime(2026, 1, 1, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
    assert serialized(parse_type("timestamp"), aware) == serialized(parse_type("timestamp"), 1767225600000)
    text = str(uuid.UUID(int=7))
    assert deserialized(parse_type("uuid"), serialized(parse_type("uuid"), text)) == uuid.UUID(int=7)
    address = ipaddress.ip_address("::1")
    assert deserialized(parse_type("inet"), serialized(parse_type("inet"), address)) == "::1"


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(InvalidRequest):
        serialized(parse_type("int"), "seven")


def test_times_beyond_pythons_stay_numbers() -> None:
    kind = parse_type("timestamp")
    assert deserialized(kind, serialized(kind, 2**60)) == 2**60
