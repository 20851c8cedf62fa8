"""GROUP BY agrees with grouping the plain answer by hand, for every page size and limit."""

from __future__ import annotations

import itertools
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.functions.aggregates import aggregate
from lockstep.schema.types import parse_type
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

_TABLE = "CREATE TABLE t (p int, q int, c int, d int, s int static, v int, PRIMARY KEY ((p, q), c, d))"
_ROWS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 1),
        st.integers(0, 2),
        st.integers(0, 2),
        st.one_of(st.none(), st.integers(-5, 5)),
    ),
    max_size=16,
)


def filled(rows: list[tuple]) -> Session:
    session = Session(_TABLE)
    for row in rows:
        session.run("INSERT INTO t (p, q, c, d, v) VALUES (?, ?, ?, ?, ?)", *row)
    session.run("UPDATE t SET s = 7 WHERE p = 9 AND q = 9")
    return session


def by_hand(rows: list[tuple], width: int, *, most: int | None, each: int | None) -> list[tuple]:
    """(keys..., d of the first row, count, sum, max) of each group of neighbours."""
    found: list[tuple] = []
    for _, part in itertools.groupby(rows, key=lambda row: row[:2]):
        groups = []
        for key, members in itertools.groupby(part, key=lambda row: row[:width]):
            group = list(members)
            values = [row[4] for row in group if row[4] is not None]
            groups.append((*key, group[0][3], len(group), sum(values), max(values, default=None)))
        found += groups[:each]
    return found[:most]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(_ROWS, st.integers(1, 4), st.sampled_from((2, 3, 4)), st.sampled_from((None, 1, 3)))
def test_groups_agree_with_neighbours_grouped_by_hand(
    rows: list[tuple], size: int, width: int, limit: int | None
) -> None:
    session = filled(rows)
    names = ", ".join(("p", "q", "c", "d")[:width])
    plain = session.run("SELECT p, q, c, d, v FROM t")
    for most, each in itertools.product((None, limit), repeat=2):
        query = f"SELECT {names}, d, count(*), sum(v), max(v) FROM t GROUP BY {names}"
        query += f" PER PARTITION LIMIT {each}" if each else ""
        query += f" LIMIT {most}" if most else ""
        wanted = by_hand(plain, width, most=most, each=each)
        pages = session.pages(query, page_size=size)
        assert [row for page in pages for row in page] == session.run(query) == wanted
        assert all(len(page) <= size for page in pages)
        assert all(len(page) == size for page in pages[:-2])


def test_columns_fixed_by_equality_may_be_left_out() -> None:
    session = filled([(1, 1, 0, 0, 1), (1, 1, 0, 1, 2), (1, 1, 1, 0, 4)])
    where = "WHERE p = 1 AND q = 1"
    assert session.run(f"SELECT c, sum(v) FROM t {where} GROUP BY c") == [(0, 3), (1, 4)]
    assert session.run(f"SELECT d, v FROM t {where} AND c = 0 GROUP BY d") == [(0, 1), (1, 2)]
    assert session.run(f"SELECT c, count(*) FROM t {where} GROUP BY p, q, c ORDER BY c DESC") == [
        (1, 1),
        (0, 2),
    ]
    assert session.run("SELECT sum(v) FROM t WHERE p IN (1, 2) AND q = 1 GROUP BY p, q") == [(7,)]
    assert session.run("SELECT DISTINCT p, q, s, count(p) FROM t GROUP BY p, q") == [
        (1, 1, None, 1),
        (9, 9, 7, 1),
    ] or session.run("SELECT DISTINCT p, q, s, count(p) FROM t GROUP BY p, q") == [
        (9, 9, 7, 1),
        (1, 1, None, 1),
    ]


def test_rows_are_filtered_before_they_are_grouped() -> None:
    session = filled([(1, 1, c, d, c * d) for c in range(3) for d in range(3)])
    query = "SELECT c, count(*) FROM t WHERE p = 1 AND q = 1 AND v > 1 GROUP BY c ALLOW FILTERING"
    assert session.run(query, page_size=1) == [(1, 1), (2, 2)]


def test_time_is_grouped_by_its_floor() -> None:
    session = Session("CREATE TABLE e (p int, at timestamp, v int, PRIMARY KEY (p, at))")
    for minute in range(0, 150, 25):
        text = f"2024-01-31T{minute // 60:02d}:{minute % 60:02d}:00Z"
        session.run(f"INSERT INTO e (p, at, v) VALUES (1, '{text}', {minute})")
    query = "SELECT count(*), max(v) FROM e GROUP BY p, floor(at, 1h)"
    assert session.run(query) == [(3, 50), (2, 100), (1, 125)]
    assert session.run(query, page_size=1) == session.run(query)
    refused = "SELECT count(*) FROM e GROUP BY floor(at, 1h), p"
    with pytest.raises(InvalidRequest, match="following their declared order"):
        session.run(refused)


def test_aggregates_stand_inside_other_functions() -> None:
    session = filled([(1, 1, 0, 0, 3), (1, 1, 0, 1, 8)])
    query = (
        "SELECT max(v) - min(v), cast(avg(v) AS text), abs(sum(-v)), count(1) FROM t WHERE p = 1 AND q = 1"
    )
    assert session.run(query) == [(5, "5", 11, 2)]
    names = [column.name for column in session.prepare(query).result_columns]
    assert names == [
        "system.max(v) - system.min(v)",
        "cast(system.avg(v) as text)",
        "system.abs(system.sum(-v))",
        "count",
    ]
    assert session.run("SELECT JSON c, count(*) FROM t WHERE p = 1 AND q = 1 GROUP BY c") == [
        ('{"c": 0, "count": 2}',)
    ]


@pytest.mark.parametrize(
    ("kind", "values", "total", "average"),
    [
        ("double", (4.2, 5.5, 5.6), 15.3, 15.3 / 3),
        ("double", (0.1,) * 10, 1.0, 0.1),
        ("double", (sys.float_info.max, sys.float_info.max), math.inf, sys.float_info.max),
        (
            "double",
            (sys.float_info.max, sys.float_info.max, -sys.float_info.max),
            math.inf,
            sys.float_info.max / 3,
        ),
        ("double", (math.inf, math.inf, 1.0), math.inf, math.inf),
        ("double", (), 0.0, 0.0),
        ("float", (3e38, 3e38), math.inf, 3e38),
    ],
)
def test_sums_of_floating_numbers_keep_what_additions_in_turn_lose(
    kind: str, values: tuple[float, ...], total: float, average: float
) -> None:
    number = parse_type(kind)
    for name, expected in (("sum", total), ("avg", average)):
        folded = aggregate(name, number)
        state = folded.start
        for value in values:
            state = folded.step(state, number.serialize(value))
        assert folded.finish(state) == number.serialize(expected)
