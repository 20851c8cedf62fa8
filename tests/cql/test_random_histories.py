"""Random histories of changes agree with a dictionary, read whole, by slice, by page and by aggregate."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cql.twin import Session

_TABLE = (
    "CREATE TABLE t (k int, c int, v int, e set<int>, PRIMARY KEY (k, c)) WITH CLUSTERING ORDER BY (c DESC)"
)
_KEYS = st.integers(0, 2)
_CLUSTERINGS = st.integers(-2, 3)
_VALUES = st.one_of(st.none(), st.integers(-5, 5))
_CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), _KEYS, _CLUSTERINGS, _VALUES),
        st.tuples(st.just("add"), _KEYS, _CLUSTERINGS, st.integers(0, 3)),
        st.tuples(st.just("remove"), _KEYS, _CLUSTERINGS, st.integers(0, 3)),
        st.tuples(st.just("delete_row"), _KEYS, _CLUSTERINGS, st.none()),
        st.tuples(st.just("delete_above"), _KEYS, _CLUSTERINGS, st.none()),
        st.tuples(st.just("delete_partition"), _KEYS, st.just(0), st.none()),
    ),
    max_size=14,
)


class Model:
    """(k, c) -> [has a marker, v, set]; a row without marker and content does not exist."""

    def __init__(self) -> None:
        self.rows: dict[tuple[int, int], list] = {}

    def apply(self, session: Session, kind: str, k: int, c: int, value: int | None) -> None:
        row = self.rows.setdefault((k, c), [False, None, frozenset()])
        if kind == "insert":
            session.run("INSERT INTO t (k, c, v) VALUES (?, ?, ?)", k, c, value)
            row[:2] = [True, value]
        elif kind in ("add", "remove"):
            sign = "+" if kind == "add" else "-"
            session.run(f"UPDATE t SET e = e {sign} ? WHERE k = ? AND c = ?", [value], k, c)
            row[2] = row[2] | {value} if kind == "add" else row[2] - {value}
        else:
            where = {"delete_row": " AND c = ?", "delete_above": " AND c > ?", "delete_partition": ""}[kind]
            session.run(f"DELETE FROM t WHERE k = ?{where}", k, *([c] if where else []))
            for place in list(self.rows):
                inside = {
                    "delete_row": place[1] == c,
                    "delete_above": place[1] > c,
                    "delete_partition": True,
                }[kind]
                if place[0] == k and inside:
                    del self.rows[place]

    def live(self, k: int) -> list[tuple]:
        found = [
            (k, place[1], row[1], sorted(row[2]) or None)
            for place, row in self.rows.items()
            if place[0] == k and (row[0] or row[1] is not None or row[2])
        ]
        return sorted(found, key=lambda row: -row[1])


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(_CHANGES, _CLUSTERINGS, _CLUSTERINGS, st.integers(1, 4))
def test_reads_agree_with_a_dictionary(changes: list[tuple], low: int, high: int, size: int) -> None:
    session, model = Session(_TABLE), Model()
    for change in changes:
        model.apply(session, *change)
    everything = []
    for k in range(3):
        rows = model.live(k)
        everything += rows
        assert session.run("SELECT k, c, v, e FROM t WHERE k = ?", k, page_size=size) == rows
        ascending = session.run("SELECT k, c, v, e FROM t WHERE k = ? ORDER BY c ASC", k, page_size=size)
        assert ascending == rows[::-1]
        sliced = session.run("SELECT k, c, v, e FROM t WHERE k = ? AND c >= ? AND c < ?", k, low, high)
        assert sliced == [row for row in rows if low <= row[1] < high]
        chosen = session.run("SELECT k, c, v, e FROM t WHERE k = ? AND c IN ?", k, [low, high, low])
        assert chosen == [row for row in rows if row[1] in (low, high)]
    assert sorted(session.run("SELECT * FROM t", page_size=size), key=repr) == sorted(
        [(k, c, e, v) for k, c, v, e in everything], key=repr
    )
    values = [row[2] for row in everything if row[2] is not None]
    assert session.run("SELECT count(*), count(v), max(v) FROM t") == [
        (len(everything), len(values), max(values, default=None))
    ]
    filtered = session.run("SELECT k, c, v, e FROM t WHERE v > ? ALLOW FILTERING", low, page_size=size)
    assert sorted(filtered, key=repr) == sorted(
        [row for row in everything if row[2] is not None and row[2] > low], key=repr
    )
