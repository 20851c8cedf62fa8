"""Text forms of times, addresses and identifiers."""

from __future__ import annotations

import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.schema.types import (
    parse_date,
    parse_duration,
    parse_inet,
    parse_time,
    parse_timestamp,
    parse_type,
    parse_uuid,
    uuid_text,
)
from lockstep.schema.types.scalars import date_of, days_in_month, days_of
from lockstep.values.errors import InvalidRequest

HOUR = 3_600_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("0", 0), ("-5", -5), ("1970-01-01", 0), ("1970-01-02", 24 * HOUR), ("1970-01-01 01:00", HOUR),
        ("1970-01-01T01:00:00", HOUR), ("1970-01-01 00:00:01.5", 1500), ("1970-01-01 00:00:00.123456Z", 123),
        ("1970-01-01 01:00+0100", 0), ("1970-01-01T01:00:00.000+01:00", 0),
        ("1970-01-01 00:00:00-02", 2 * HOUR),
        ("1970-01-01+0000", 0), ("1970-01-01 00:00:00 UTC", 0), ("1969-12-31T23:59:59.999Z", -1),
        ("2011-02-03 04:05+0000", 1296705900000), # Ten thousand years are 3,652,425 days.
        ("12024-02-29", (19_782 + 3_652_425) * 24 * HOUR),
    ],
)  # fmt: skip
def test_timestamps_parse_without_any_local_zone(text, ms):
    assert parse_timestamp(text) == ms


@given(st.datetimes())
def test_timestamps_agree_with_the_calendar(when):
    expected = (when - datetime.datetime(1970, 1, 1)) // datetime.timedelta(milliseconds=1)  # noqa: DTZ001
    assert parse_timestamp(when.isoformat(timespec="milliseconds")) == expected
    assert parse_timestamp(parse_type("timestamp").format(expected).strip("'")) == expected


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_dates_invert_each_other(days):
    year, month, day = date_of(days)
    assert 1 <= month <= 12
    assert 1 <= day <= days_in_month(year, month)
    assert days_of(year, month, day) == days
    assert parse_date(parse_type("date").format(days).strip("'")) == days


@given(st.dates())
def test_dates_agree_with_the_calendar(day):
    assert parse_date(day.isoformat()) == (day - datetime.date(1970, 1, 1)).days


def test_raw_dates_are_unsigned_with_the_epoch_in_the_middle():
    assert parse_date("2147483648") == 0
    assert parse_date("0") == -(1 << 31)


@pytest.mark.parametrize(
    ("text", "ns"),
    [("00:00:00", 0), ("01:02:03", 3_723_000_000_000), ("23:59:59.999999999", 86_399_999_999_999),
     ("00:00:00.5", 500_000_000), ("7", 7)],
)  # fmt: skip
def test_times_parse(text, ns):
    assert parse_time(text) == ns


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("1y2mo3w4d5h6m7s8ms9us10ns",
         (14, 25, ((5 * 60 + 6) * 60 + 7) * 10**9 + 8 * 10**6 + 9 * 1000 + 10)),
        ("-1mo2d", (-1, -2, 0)), ("2µs", (0, 0, 2000)), ("P1Y2M3DT4H5M6S", (14, 3, 14_706 * 10**9)),
        ("P2W", (0, 14, 0)), ("-PT1S", (0, 0, -(10**9))), ("P0001-02-03T04:05:06", (14, 3, 14_706 * 10**9)),
        ("1H", (0, 0, 3600 * 10**9)), ("-9223372036854775808ns", (0, 0, -(1 << 63))),
    ],
)  # fmt: skip
def test_durations_parse_in_all_three_notations(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2147483648d", "The total number of days must be less or equal to 2147483647"),
        ("200000000y", "The total number of months must be less or equal to 2147483647"),
        ("9223372036854775807s", "The total number of nanoseconds must be less or equal to 2147483647"),
        ("1d2d", "The days are specified multiple times"),
        ("1h2mo", "The hours should be after months"),
    ],
)
def test_durations_that_are_none_say_which_unit(text, message):
    with pytest.raises(InvalidRequest, match=f"Invalid duration. {message}"):
        parse_duration(text)


@given(st.integers(0, 1 << 31), st.integers(0, 1 << 31), st.integers(0, 1 << 63), st.booleans())
def test_formatted_durations_parse_back(months, days, ns, negative):
    limit = 0 if negative else 1
    value = (min(months, (1 << 31) - limit), min(days, (1 << 31) - limit), min(ns, (1 << 63) - limit))
    value = tuple(-part for part in value) if negative else value
    assert parse_duration(parse_type("duration").format(value)) == value


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_timestamp, "yesterday", "Unable to parse a date/time from 'yesterday'"),
        (parse_timestamp, "2023-02-29", "Unable to parse a date/time from '2023-02-29'"),
        (parse_timestamp, "2023-01-01 24:00", "Unable to parse a date/time from '2023-01-01 24:00'"),
        (
            parse_timestamp,
            "9999999999999999999",
            "Unable to make long (for date) from: '9999999999999999999'",
        ),
        (parse_date, "2023-13-01", "Unable to coerce '2023-13-01' to a formatted date (long)"),
        (parse_time, "24:00:00", "Unable to coerce '24:00:00' to a formatted time (long)"),
        (parse_time, "-1", "Input long out of bounds: -1"),
        (parse_duration, "1d1y", "Invalid duration. The days should be after years"),
        (parse_duration, "P", "Unable to convert 'P' to a duration"),
        (parse_duration, "", "Unable to convert '' to a duration"),
        (parse_inet, "1.2.3", "Unable to make inet address from '1.2.3'"),
        (parse_uuid, "xyz", "Unable to make UUID from 'xyz'"),
    ],
)
def test_texts_that_mean_nothing_are_refused(parse, text, message):
    with pytest.raises(InvalidRequest) as caught:
        parse(text)
    assert caught.value.message == message


@given(st.sampled_from([parse_timestamp, parse_date, parse_time, parse_duration, parse_inet, parse_uuid]),
       st.text("0123456789-+:.TZPYMDHSWymodhsun ", max_size=24) | st.text(max_size=8))  # fmt: skip
def test_any_text_parses_or_is_an_invalid_request(parse, text):
    try:
        value = parse(text)
    except InvalidRequest:
        return
    assert value is not None


def test_addresses_and_uuids_have_one_text():
    assert parse_inet("::0001") == "::1"
    assert parse_inet("::ffff:1.2.3.4") == "1.2.3.4"
    text = "123e4567-e89b-12d3-a456-426614174000"
    assert uuid_text(parse_uuid(text.upper())) == text
