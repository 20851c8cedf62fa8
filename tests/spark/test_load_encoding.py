"""What a load stores of rows is what INSERT of them stores, however they are encoded."""

from __future__ import annotations

import datetime
import decimal
import itertools
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.scans.arrow_columns import arrow_type
from lockstep.schema.model import Column, ColumnKind, Table, UserType
from lockstep.spark.loads.encoding import Encoded, EncodePlan, encoded, encoded_by_rows, write_id_of
from lockstep.spark.loads.files import SLICES_MAX, Slices, SortedFiles, pairs_of, slices_of
from lockstep.spark.loads.tokens import tokens_of
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_row
from lockstep.values.errors import InvalidRequest
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of

KEY, CLUSTERING, STATIC, REGULAR = (
    ColumnKind.PARTITION_KEY,
    ColumnKind.CLUSTERING,
    ColumnKind.STATIC,
    ColumnKind.REGULAR,
)
WRITE_ID = write_id_of("job", 3)
NOW_S = 1_700_000_000

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "tinyint": st.integers(-128, 127),
    "smallint": st.integers(-(1 << 15), (1 << 15) - 1),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "bigint": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "boolean": st.booleans(),
    "text": st.text(max_size=300),
    "ascii": st.text(st.characters(max_codepoint=127), max_size=20),
    "blob": st.binary(max_size=300),
    "date": st.dates(),
    "time": st.integers(0, 86_399_999_999_999),
    "timestamp": st.datetimes(timezones=st.just(datetime.UTC)),
    "uuid": st.uuids().map(str),
    "timeuuid": st.integers(0, (1 << 32) - 1).map(
        lambda low: str(uuid.UUID(fields=(low, 0, 0x1001, 128, 1, 5)))
    ),
    "inet": st.binary(min_size=4, max_size=4),
    "varint": st.integers(-(10**30), 10**30).map(decimal.Decimal),
    "frozen<list<int>>": st.lists(st.integers(-9, 9), max_size=3),
    "frozen<set<text>>": st.lists(st.text(max_size=3), max_size=3, unique=True),
}  # fmt: skip
KEYS = [kind for kind in VALUES if kind not in ("float", "double")]


def table(*columns: tuple[str, str, ColumnKind, bool]) -> Table:
    places = {KEY: 0, CLUSTERING: 0, STATIC: -1, REGULAR: -1}
    made = []
    for at, (name, kind, of, descending) in enumerate(columns):
        position = places[of]
        places[of] += 1 if position >= 0 else 0
        # Ids in another order than names: cells are sorted by them.
        made.append(Column(200 - at, name, kind, of, position, descending))
    return Table(7, str(uuid.UUID(int=7)), "ks", "t", tuple(made))


def plan_of(made: Table, **more: Any) -> EncodePlan:
    named = {"timestamp_us": 1_700_000_000_123_456, "now_s": NOW_S, **more}
    return EncodePlan(made, (), 9, tuple(column.name for column in made.columns), **named)


def batch_of(plan: EncodePlan, rows: list[tuple[Any, ...]], **extra: list[int]) -> pa.RecordBatch:
    arrays = [
        pa.array([row[at] for row in rows], arrow_type(plan.type_of(column)))
        for at, column in enumerate(plan.written)
    ]
    more = [pa.array(values, pa.int64()) for values in extra.values()]
    return pa.record_batch([*arrays, *more], [*plan.columns, *extra])


def content(found: Encoded) -> list[tuple[int, bytes, bytes]]:
    return list(zip(found.tokens.tolist(), found.keys.to_pylist(), found.values.to_pylist(), strict=True))


@st.composite
def cases(draw: st.DrawFn) -> tuple[EncodePlan, pa.RecordBatch]:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    clusterings = draw(st.lists(st.sampled_from(list(VALUES)), max_size=2))
    regulars = draw(st.lists(st.sampled_from(list(VALUES)), max_size=4))
    columns = [(f"k{at}", kind, KEY, False) for at, kind in enumerate(keys)]
    columns += [(f"c{at}", kind, CLUSTERING, draw(st.booleans())) for at, kind in enumerate(clusterings)]
    columns += [(f"v{at}", kind, REGULAR, False) for at, kind in enumerate(regulars)]
    more: dict[str, Any] = {
        "ignore_nulls": draw(st.booleans()),
        "ttl_s": draw(st.sampled_from((0, 5, 90_000))),
    }
    count = draw(st.integers(1, 5))
    extra: dict[str, list[int]] = {}
    if draw(st.booleans()):
        more["ttl_column"] = "life"
        extra["life"] = draw(st.lists(st.integers(0, 600_000_000), min_size=count, max_size=count))
    if draw(st.booleans()):
        more["time_column"] = "at"
        times = st.integers(-(1 << 62), 1 << 62) if draw(st.booleans()) else st.integers(1 << 40, 1 << 60)
        extra["at"] = draw(st.lists(times, min_size=count, max_size=count))
    row = [VALUES[kind] for _, kind, of, _ in columns if of is not REGULAR]
    row += [st.none() | VALUES[kind] for kind in regulars]
    rows = draw(st.lists(st.tuples(*row), min_size=count, max_size=count))
    plan = plan_of(table(*columns), **more)
    return plan, batch_of(plan, rows, **extra)


@settings(max_examples=150, deadline=None)
@given(cases())
def test_by_columns_and_by_rows_are_the_same(case: tuple[EncodePlan, pa.RecordBatch]) -> None:
    plan, batch = case
    assert plan.by_columns
    try:
        expected = content(encoded_by_rows(plan, batch, WRITE_ID))
    except InvalidRequest:
        # An empty key, for one.
        with pytest.raises(InvalidRequest):
            encoded(plan, batch, WRITE_ID)
        return
    assert content(encoded(plan, batch, WRITE_ID)) == expected


@given(st.lists(st.binary(max_size=70), max_size=20))
def test_tokens_of_many_keys_are_those_of_each(keys: list[bytes]) -> None:
    assert tokens_of(pa.array(keys, pa.binary())).tolist() == [token_of(key) for key in keys]


def test_collections_and_static_columns_go_row_by_row() -> None:
    made = table(
        ("k", "int", KEY, False),
        ("c", "int", CLUSTERING, False),
        ("s", "text", STATIC, False),
        ("l", "list<int>", REGULAR, False),
    )
    plan = plan_of(made)
    assert not plan.by_columns
    found = encoded(plan, batch_of(plan, [(1, 2, "s", [7, 8])]), WRITE_ID)
    assert len(found.keys) == 2
    again = encoded(plan, batch_of(plan, [(1, 2, "s", [7, 8])]), WRITE_ID)
    assert content(found) == content(again)


def test_elements_of_lists_have_the_places_of_their_write_time() -> None:
    """Of whichever task and load they are, and whatever the other lists of the row hold."""
    made = table(
        ("k", "int", KEY, False),
        ("c", "int", CLUSTERING, False),
        ("l", "list<int>", REGULAR, False),
        ("s", "list<int>", STATIC, False),
    )
    plan = plan_of(made)
    rows = [(1, 2, [7, 8, 9], [4, 5]), (1, 3, [7], [4, 5]), (1, 4, None, [4, 5])]
    other_id = bytes(reversed(WRITE_ID))
    of_one, of_other = (content(encoded(plan, batch_of(plan, rows), id_)) for id_ in (WRITE_ID, other_id))
    assert {value for _, _, value in of_one} == {value for _, _, value in of_other}
    assert len({value for _, _, value in of_one}) == 4, "three rows, and one static row of all"


@pytest.mark.parametrize(
    ("rows", "extra", "message"),
    [
        ([(None, 1)], {}, "key column k is null"),
        ([(1, 1)], {"life": [-1]}, "column life has a number"),
        ([(1, 1)], {"life": [1 << 40]}, "column life has a number"),
    ],
)
def test_what_does_not_fit_is_named(rows: list[Any], extra: dict[str, list[int]], message: str) -> None:
    made = table(("k", "int", KEY, False), ("v", "int", REGULAR, False))
    plan = plan_of(made, ttl_column="life" if extra else "")
    with pytest.raises(InvalidRequest, match=message):
        encoded(plan, batch_of(plan, rows, **extra), WRITE_ID)


def test_user_types_are_values() -> None:
    made = table(("k", "int", KEY, False), ("v", "frozen<point>", REGULAR, False))
    kind = UserType("point", ("x", "y"), ("int", "text"))
    plan = EncodePlan(made, (kind,), 9, ("k", "v"), 5_000_000, NOW_S)
    batch = batch_of(plan, [(1, {"x": 3, "y": "a"}), (2, None)])
    assert content(encoded(plan, batch, WRITE_ID)) == content(encoded_by_rows(plan, batch, WRITE_ID))


def test_files_are_sorted_cut_by_ranges_and_without_repeated_keys(tmp_path: Path) -> None:
    made = table(("k", "int", KEY, False), ("c", "int", CLUSTERING, False), ("v", "int", REGULAR, False))
    plan = plan_of(made)
    rows = [(k, c, k + c) for k in range(20) for c in (3, 1, 2)] + [(4, 1, 999), (4, 1, 5)]
    parts = [encoded(plan, batch_of(plan, some), WRITE_ID) for some in (rows[:30], rows[30:])]
    ranges = [(TOKEN_MIN, -5), (-5, 1 << 61), (1 << 61, TOKEN_MAX)]
    written = list(SortedFiles(str(tmp_path), 0, 7, ranges).write(parts))
    assert [file.number for file, _ in written] == list(range(len(written)))
    found: list[tuple[bytes, bytes]] = []
    for file, path in written:
        pairs = pairs_of(path, f"{path}-scratch")
        assert (file.entries, file.first_key, file.last_key) == (len(pairs), pairs[0][0], pairs[-1][0])
        assert all(file.left < keys.token_of(key) <= file.right for key, _ in pairs)
        found += pairs
    assert found == sorted(found) and len(found) == 60
    # Of equal rows the greatest value stays, as of INSERTs with one time.
    prefix = keys.partition_prefix(9, token_of(b"\0\0\0\4"), b"\0\0\0\4")
    of_four = [decode_row(key, value, b"") for key, value in found if key.startswith(prefix)]
    assert [row.cells[0].value for row in of_four] == [number.to_bytes(4, "big") for number in (999, 6, 7)]


@pytest.mark.parametrize("count", [1, 3, 32, 33, 64, 65, 200])
def test_slices_cover_the_ring_and_cut_no_range_where_ranges_are_many(count: int) -> None:
    width = (TOKEN_MAX - TOKEN_MIN) // count
    rights = [*(TOKEN_MIN + width * number for number in range(1, count)), TOKEN_MAX]
    ranges = list(zip([TOKEN_MIN, *rights[:-1]], rights, strict=True))
    found = slices_of(ranges)
    assert found == sorted(set(found)) and found[-1] == TOKEN_MAX and len(found) + 1 > SLICES_MAX // 2
    assert len(found) <= SLICES_MAX
    assert set(found) <= set(rights) if count > SLICES_MAX // 2 else set(rights) <= set(found)


@pytest.mark.parametrize("room", [1 << 30, 1])
def test_rows_put_aside_come_back_by_slices_in_the_order_of_the_ring(tmp_path: Path, room: int) -> None:
    made = table(("k", "int", KEY, False), ("v", "int", REGULAR, False))
    plan = plan_of(made)
    ranges = [(TOKEN_MIN, -5), (-5, 1 << 61), (1 << 61, TOKEN_MAX)]
    slices = Slices(str(tmp_path), ranges)
    assert not slices
    parts = [
        encoded(plan, batch_of(plan, [(k, k) for k in range(at, at + 700)]), WRITE_ID)
        for at in (0, 700, 1400)
    ]
    for part in parts:
        slices.add([part])
    assert slices
    taken = list(slices.taken(room))
    found = [row for some in taken for one in some for row in content(one)]
    assert sorted(found) == sorted(row for part in parts for row in content(part))
    spans = [(min(one.tokens.min() for one in some), max(one.tokens.max() for one in some)) for some in taken]
    if room > 1:
        assert all(left[1] < right[0] for left, right in itertools.pairwise(spans)), "they overlap nothing"
    assert len(taken) > len(ranges) and not list(tmp_path.iterdir()) and not slices
