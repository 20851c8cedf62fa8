"""Statements run end to end over the slow store."""

from __future__ import annotations

import pytest

from lockstep.cql.wire.messages import UNSET
from lockstep.values.errors import InvalidRequest, ProtocolViolation
from lockstep.values.tokens import token_of
from tests.cql.twin import Session

TABLE = (
    "CREATE TABLE t (k int, c int, d text, s int static, a int, b text, m map<text, int>, e set<int>, "
    "l list<int>, f frozen<list<int>>, PRIMARY KEY (k, c, d))"
)


@pytest.fixture
def session() -> Session:
    return Session(TABLE, "CREATE TABLE one (k int PRIMARY KEY, v int)")


def filled(session: Session) -> Session:
    for c in range(3):
        for d in "xyz":
            session.run("INSERT INTO t (k, c, d, a) VALUES (1, ?, ?, ?)", c, d, c * 10)
    return session


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("k = 1 AND c = 1", [(1, "x"), (1, "y"), (1, "z")]),
        ("k = 1 AND c = 1 AND d = 'y'", [(1, "y")]),
        ("k = 1 AND c IN (2, 0, 2) AND d IN ('x')", [(0, "x"), (2, "x")]),
        ("k = 1 AND c > 1", [(2, "x"), (2, "y"), (2, "z")]),
        ("k = 1 AND c >= 1 AND c < 2", [(1, "x"), (1, "y"), (1, "z")]),
        ("k = 1 AND c > 5 AND c < 2", []),
        ("k = 1 AND c = 0 AND d > 'x' AND d <= 'z'", [(0, "y"), (0, "z")]),
        ("k = 1 AND (c, d) > (1, 'y')", [(1, "z"), (2, "x"), (2, "y"), (2, "z")]),
        ("k = 1 AND (c, d) >= (1, 'y') AND (c, d) < (2, 'x')", [(1, "y"), (1, "z")]),
        ("k = 1 AND (c) >= (1) AND (c, d) < (2, 'y')", [(1, "x"), (1, "y"), (1, "z"), (2, "x")]),
        ("k = 1 AND (c, d) IN ((1, 'y'), (0, 'z'), (1, 'y'))", [(0, "z"), (1, "y")]),
        ("k = 1 AND (c, d) = (1, 'y')", [(1, "y")]),
        ("k = 1 AND (c) IN ((2), (1), (2)) AND d = 'y'", [(1, "y"), (2, "y")]),
        ("k = 1 AND (c, d) > (0, 'y') AND c < 1", [(0, "z")]),
        ("k = 1 AND c >= 1 AND (c) < (2)", [(1, "x"), (1, "y"), (1, "z")]),
        ("k = 1 AND c >= 1 AND (c, d) <= (2, 'x')", [(1, "x"), (1, "y"), (1, "z"), (2, "x")]),
        ("k = 1 AND (d) < ('z') AND (c) IN ((0), (2)) AND (d) > ('x')", [(0, "y"), (2, "y")]),
        ("(d) IN (('y'), ('q')) ALLOW FILTERING", [(0, "y"), (1, "y"), (2, "y")]),
        ("k = 1 AND a = 10 ALLOW FILTERING", [(1, "x"), (1, "y"), (1, "z")]),
        ("k = 1 AND a IN (10, 30) ALLOW FILTERING", [(1, "x"), (1, "y"), (1, "z")]),
        ("k = 1 AND a > 5 + 5 AND d = 'x' ALLOW FILTERING", [(2, "x")]),
        ("k = 1 AND d = 'y' ALLOW FILTERING", [(0, "y"), (1, "y"), (2, "y")]),
        ("c = 2 AND d > 'x' ALLOW FILTERING", [(2, "y"), (2, "z")]),
        ("k = 1 ORDER BY c DESC, d DESC LIMIT 2", [(2, "z"), (2, "y")]),
        ("k = 1 AND c = 1 ORDER BY d, d DESC", [(1, "z"), (1, "y"), (1, "x")]),
        ("k = 1 AND c = 1 ORDER BY d DESC", [(1, "z"), (1, "y"), (1, "x")]),
        ("k = 1 AND c IN (1) ORDER BY d DESC", [(1, "z"), (1, "y"), (1, "x")]),
        ("k = 1 AND (c, d) IN ((1, 'x')) ORDER BY d", [(1, "x")]),
        ("k = 1 PER PARTITION LIMIT 1", [(0, "x")]),
        ("token(k) > token(1)", []),
        ("token(k) = token(1) LIMIT 1", [(0, "x")]),
        (
            "token(k) >= token(1) AND token(k) <= token(1) AND c = 1 ALLOW FILTERING",
            [(1, "x"), (1, "y"), (1, "z")],
        ),
    ],
)
def test_where_selects_exactly_the_rows_it_describes(session: Session, where: str, expected: list) -> None:
    filled(session)
    assert session.run(f"SELECT c, d FROM t WHERE {where}") == expected


def test_a_tuple_of_one_column_is_that_columns_value(session: Session) -> None:
    filled(session)
    assert session.run("SELECT c FROM t WHERE k = 1 AND (c) IN ((?), (?)) AND d = 'y'", 0, 2) == [(0,), (2,)]
    assert session.run("SELECT d FROM t WHERE k = 1 AND (c) = ?", (1,)) == [("x",), ("y",), ("z",)]
    session.run("UPDATE t SET b = 'new' WHERE k = 1 AND (c) IN ((1)) AND d = 'y'")
    session.run("UPDATE t SET b = 'also' WHERE k = 1 AND (c) = ? AND d = 'z'", (1,))
    session.run("DELETE FROM t WHERE k = 1 AND (c) IN ((0), (2))")
    assert session.run("SELECT c, d, b FROM t") == [(1, "x", None), (1, "y", "new"), (1, "z", "also")]


def test_multi_column_bounds_hold_over_mixed_directions() -> None:
    session = Session(
        "CREATE TABLE m (k int, a int, b int, PRIMARY KEY (k, a, b)) WITH CLUSTERING ORDER BY (a DESC, b ASC)"
    )
    points = [(a, b) for a in range(4) for b in range(4)]
    for a, b in points:
        session.run("INSERT INTO m (k, a, b) VALUES (0, ?, ?)", a, b)
    order = sorted(points, key=lambda point: (-point[0], point[1]))
    found = session.run("SELECT a, b FROM m WHERE k = 0 AND (a, b) > (1, 2) AND (a, b) <= (3, 1)")
    assert found == [point for point in order if (1, 2) < point <= (3, 1)]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM p",
        "SELECT k, c FROM p LIMIT 11",
        "SELECT k, c FROM p PER PARTITION LIMIT 2",
        "SELECT k, c FROM p WHERE k IN (1, 2, 3, 9)",
        "SELECT k, c FROM p WHERE k IN (4, 5) PER PARTITION LIMIT 2 LIMIT 3",
        "SELECT k, c FROM p WHERE k = 2 ORDER BY c DESC",
        "SELECT DISTINCT k, s FROM p",
        "SELECT k, c, v FROM p WHERE v = 3 ALLOW FILTERING",
        "SELECT k, c FROM p WHERE v > 1 PER PARTITION LIMIT 2 ALLOW FILTERING",
        "SELECT k, s FROM p",
    ],
)
def test_pages_join_to_the_unpaged_answer(query: str, size: int) -> None:
    session = Session("CREATE TABLE p (k int, c int, s int static, v int, PRIMARY KEY (k, c))")
    for k in range(6):
        session.run("UPDATE p SET s = ? WHERE k = ?", k, k)
        for c in range(k):
            session.run("INSERT INTO p (k, c, v) VALUES (?, ?, ?)", k, c, c)
    pages = session.pages(query, page_size=size)
    assert [row for page in pages for row in page] == session.run(query) != []
    assert all(len(page) <= size for page in pages)


def test_static_only_partition_is_one_row_with_nulls(session: Session) -> None:
    session.run("INSERT INTO t (k, s) VALUES (7, 70)")
    assert session.run("SELECT k, c, s FROM t") == [(7, None, 70)]
    assert session.run("SELECT k, c, s FROM t WHERE k = 7 AND c = 1") == []
    session.run("INSERT INTO t (k, c, d) VALUES (7, 1, 'x')")
    assert session.run("SELECT k, c, s FROM t") == [(7, 1, 70)]
    assert session.run("SELECT DISTINCT k, s FROM t") == [(7, 70)]


def test_collections_are_replaced_appended_and_removed(session: Session) -> None:
    where = "WHERE k = 1 AND c = 1 AND d = 'x'"
    session.run(
        "INSERT INTO t (k, c, d, m, e, l, f) VALUES (1, 1, 'x', {'a': 1, 'b': 2}, {3, 1}, [1, 2], [9])"
    )
    assert session.run(f"SELECT m, e, l, f FROM t {where}") == [([("a", 1), ("b", 2)], [1, 3], [1, 2], [9])]
    session.run(f"UPDATE t SET m['c'] = 3, m['a'] = null, e = e + {{2}}, l = l + [3] {where}")
    session.run(f"UPDATE t SET l = [0] + l, e = e - {{3}} {where}")
    assert session.run(f"SELECT m, e, l FROM t {where}") == [([("b", 2), ("c", 3)], [1, 2], [0, 1, 2, 3])]
    session.run(f"UPDATE t SET m = {{'z': 26}}, l = ? {where}", [5])
    session.run(f"DELETE m['q'], e FROM t {where}")
    assert session.run(f"SELECT m, e, l FROM t {where}") == [([("z", 26)], None, [5])]
    session.run(f"UPDATE t SET m = m - {{'z'}}, m = m + ? {where}", [("y", 25)])
    assert session.run(f"SELECT m FROM t {where}") == [([("y", 25)],)]
    assert session.run("SELECT k FROM t WHERE m CONTAINS 25 AND m CONTAINS KEY 'y' ALLOW FILTERING") == [(1,)]
    assert session.run("SELECT k FROM t WHERE m['y'] = 24 ALLOW FILTERING") == []


def test_elements_of_maps_and_sets_are_selected(session: Session) -> None:
    session.run("INSERT INTO t (k, c, d, m, e, f) VALUES (1, 1, 'x', {'a': 1, 'b': 2}, {3, 1}, [9])")
    session.run("INSERT INTO t (k, c, d) VALUES (1, 2, 'x')")
    chosen = "SELECT m['b'], m['q'], e[3], e[4], m[?] AS asked FROM t WHERE k = 1"
    assert session.run(chosen, "a") == [(2, None, 3, None, 1), (None, None, None, None, None)]
    assert session.run("SELECT sum(m['b']), count(e[1]) FROM t WHERE k = 1") == [(2, 1)]
    for refused in ("l[0]", "f[0]", "k[0]", "m[1]"):
        with pytest.raises(InvalidRequest):
            session.run(f"SELECT {refused} FROM t WHERE k = 1")


def test_two_prepends_put_the_later_one_first(session: Session) -> None:
    where = "WHERE k = 1 AND c = 1 AND d = 'x'"
    session.run(f"UPDATE t SET l = [3, 4] + l {where}")
    session.run(f"UPDATE t SET l = [1, 2] + l {where}")
    assert session.run(f"SELECT l FROM t {where}") == [([1, 2, 3, 4],)]
    first, second = (f"UPDATE t SET l = {part} {where};" for part in ("[-1, 0] + l", "[-3, -2] + l"))
    last = f"UPDATE t SET l = l + [5] {where};"
    session.run(f"BEGIN BATCH {first} {last} {second} APPLY BATCH")
    assert session.run(f"SELECT l FROM t {where}") == [(list(range(-3, 6)),)]


def test_update_leaves_no_row_behind_when_its_cells_go(session: Session) -> None:
    session.run("UPDATE one SET v = 1 WHERE k = 1")
    session.run("INSERT INTO one (k, v) VALUES (2, 1)")
    session.run("UPDATE one SET v = null WHERE k IN (1, 2)")
    assert session.run("SELECT k, v FROM one") == [(2, None)]


def test_deletes_cover_rows_ranges_partitions_and_columns(session: Session) -> None:
    filled(session)
    session.run("DELETE FROM t WHERE k = 1 AND c = 0 AND d IN ('x', 'y')")
    session.run("DELETE a FROM t WHERE k = 1 AND c = 0 AND d = 'z'")
    session.run("DELETE FROM t WHERE k = 1 AND c = 1 AND d > 'x'")
    assert session.run("SELECT c, d, a FROM t WHERE k = 1 AND c < 2") == [(0, "z", None), (1, "x", 10)]
    session.run("DELETE FROM t WHERE k = 1 AND (c, d) > (1, 'x')")
    assert session.run("SELECT c, d FROM t") == [(0, "z"), (1, "x")]
    session.run("DELETE FROM t WHERE k = 1")
    assert session.run("SELECT * FROM t") == []


def test_unset_values_are_not_written_and_null_deletes(session: Session) -> None:
    session.run("INSERT INTO one (k, v) VALUES (?, ?)", 1, 5)
    session.run("INSERT INTO one (k, v) VALUES (?, ?)", 1, UNSET)
    assert session.run("SELECT v FROM one") == [(5,)]
    session.run("INSERT INTO one (k, v) VALUES (?, ?)", 1, None)
    assert session.run("SELECT v FROM one") == [(None,)]
    before = len(session.store.mutations)
    session.run("UPDATE one SET v = ? WHERE k = ?", UNSET, 2)
    assert len(session.store.mutations) == before


def test_timestamps_and_ttls_are_those_written(session: Session) -> None:
    session.run("INSERT INTO one (k, v) VALUES (1, 1) USING TIMESTAMP 50 AND TTL 100")
    session.run("INSERT INTO one (k, v) VALUES (1, 2) USING TIMESTAMP 40")
    assert session.run("SELECT v, writetime(v), ttl(v) FROM one") == [(1, 50, 100)]
    session.now_us += 100_000_000
    assert session.run("SELECT v FROM one") == []


def test_default_ttl_applies_unless_overridden() -> None:
    session = Session("CREATE TABLE x (k int PRIMARY KEY, v int) WITH default_time_to_live = 10")
    session.run("INSERT INTO x (k, v) VALUES (?, ?)", 1, 1)
    session.run("INSERT INTO x (k, v) VALUES (2, 2) USING TTL 0")
    assert session.run("SELECT k, ttl(v) FROM x") == [(1, 10), (2, None)]


def test_aggregates_count_rows_and_fold_values(session: Session) -> None:
    assert session.run("SELECT count(*), sum(v), max(v) FROM one") == [(0, 0, None)]
    for k, v in enumerate((5, -8, None, 2)):
        session.run("INSERT INTO one (k, v) VALUES (?, ?)", k, v)
    query = "SELECT count(*), count(v), min(v), max(v), sum(v), avg(v) FROM one"
    assert session.run(query, page_size=1) == [(4, 3, -8, 5, -1, 0)]
    assert [c.name for c in session.prepare(query).result_columns][:3] == [
        "count",
        "system.count(v)",
        "system.min(v)",
    ]


def test_functions_and_casts_in_selections(session: Session) -> None:
    session.run("INSERT INTO one (k, v) VALUES (3, 300)")
    key = (3).to_bytes(4, "big")
    query = (
        "SELECT token(k), cast(v AS text) AS txt, intAsBlob(v), (bigint)blobAsInt(0x00000007), "
        "cast(v as tinyint) FROM one"
    )
    with pytest.raises(InvalidRequest, match="Cannot assign"):
        session.run(query)
    query = query.replace("(bigint)", "")
    assert session.run(query) == [(token_of(key), "300", b"\x00\x00\x01\x2c", 7, 44)]


def test_clock_functions_read_the_context(session: Session) -> None:
    session = Session("CREATE TABLE u (k timeuuid PRIMARY KEY, t timestamp)")
    session.run("INSERT INTO u (k, t) VALUES (now(), currentTimestamp())")
    ((k, t, back),) = session.run("SELECT k, t, toTimestamp(k) FROM u")
    assert t == back == session.now_us // 1000 and k[6] >> 4 == 1
    found = session.run("SELECT t FROM u WHERE k > minTimeuuid(0) AND k < maxTimeuuid(?) ALLOW FILTERING", t)
    assert found == [(t,)]


def test_batches_join_the_changes_of_a_partition(session: Session) -> None:
    before = len(session.store.mutations)
    session.run(
        "BEGIN BATCH USING TIMESTAMP 77 INSERT INTO one (k, v) VALUES (1, 1); "
        "UPDATE one SET v = ? WHERE k = 1 INSERT INTO one (k, v) VALUES (2, 2); APPLY BATCH",
        9,
    )
    assert len(session.store.mutations) == before + 2
    assert session.run("SELECT k, v, writetime(v) FROM one") == [(1, 9, 77), (2, 2, 77)]
    session.batch("DELETE FROM one WHERE k = 2", "INSERT INTO one (k, v) VALUES (3, 3)")
    assert sorted(session.run("SELECT k FROM one")) == [(1,), (3,)]


def test_composite_partition_keys_are_hashed_as_drivers_do() -> None:
    session = Session("CREATE TABLE x (a int, b text, v int, PRIMARY KEY ((a, b)))")
    session.run("INSERT INTO x (b, v, a) VALUES (?, ?, ?)", "q", 5, 1)
    key = b"\x00\x04\x00\x00\x00\x01\x00\x00\x01q\x00"
    assert session.store.mutations[0].key == key and session.store.mutations[0].token == token_of(key)
    prepared = session.prepare("INSERT INTO x (b, v, a) VALUES (?, ?, ?)")
    assert prepared.partition_key_indexes == (2, 0)
    assert session.run("SELECT a, b FROM x WHERE a IN (1, 2) AND b = 'q'") == [(1, "q")]


def test_order_by_over_several_partitions_merges_them(session: Session) -> None:
    session = Session("CREATE TABLE x (k int, c int, PRIMARY KEY (k, c))")
    for k, c in ((1, 1), (1, 4), (2, 2), (2, 3)):
        session.run("INSERT INTO x (k, c) VALUES (?, ?)", k, c)
    assert session.run("SELECT c FROM x WHERE k IN (1, 2) ORDER BY c DESC LIMIT 3") == [(4,), (3,), (2,)]
    with pytest.raises(InvalidRequest, match="Cannot page queries with both ORDER BY and a IN"):
        session.run("SELECT c FROM x WHERE k IN (1, 2) ORDER BY c", page_size=2)


def test_rows_of_several_partitions_that_order_by_leaves_equal_stay_in_the_order_of_partitions() -> None:
    session = Session("CREATE TABLE y (k int, c int, d int, s int STATIC, PRIMARY KEY (k, c, d))")
    for k, c, d in ((1, 1, 2), (1, 1, 3), (1, 2, 0), (2, 1, 1), (2, 2, 9)):
        session.run(f"INSERT INTO y (k, c, d) VALUES ({k}, {c}, {d})")
    session.run("INSERT INTO y (k, s) VALUES (0, 5)")
    query = "SELECT k, d FROM y WHERE k IN (2, 1, 0) ORDER BY c"
    rising = [(0, None), (1, 2), (1, 3), (2, 1), (1, 0), (2, 9)]
    assert session.run(query) == rising
    assert session.run(f"{query} LIMIT 3") == rising[:3]
    assert session.run(f"{query} DESC") == [(1, 0), (2, 9), (1, 3), (1, 2), (2, 1), (0, None)]
    assert session.run(f"{query} DESC, d DESC")[:2] == [(2, 9), (1, 0)]


def test_garbage_paging_states_are_refused(session: Session) -> None:
    from lockstep.cql.bind.page_positions import decode

    for data in (b"", b"abc", bytes(40)):
        with pytest.raises(ProtocolViolation, match="Invalid value for the paging state"):
            decode(data, "a-table")


def test_a_scan_whose_rows_fill_its_last_page_ends_with_an_empty_one(session: Session) -> None:
    for key in range(4):
        session.run("INSERT INTO one (k, v) VALUES (?, ?)", key, key)
    sizes = [len(page) for page in session.pages("SELECT k FROM one", page_size=2)]
    assert sizes == [2, 2, 0]
    assert [len(page) for page in session.pages("SELECT k FROM one LIMIT 4", page_size=2)] == [2, 2]


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("INSERT INTO w (k, p, a, b) VALUES ('k', 'p', ?, ?)", 65_536),
        ("INSERT INTO w (k, p, a, b) VALUES (?, ?, 'a', 'b')", 65_536),
        ("DELETE FROM w WHERE k = 'k' AND p = 'p' AND a = ? AND b IN (?, 'b')", 65_536),
        ("UPDATE w SET v = 1 WHERE k = 'k' AND p = 'p' AND (a, b) IN ((?, ?))", 65_536),
    ],
)
def test_keys_longer_than_their_length_can_say_are_refused(text: str, size: int) -> None:
    session = Session("CREATE TABLE w (k text, p text, a text, b text, v int, PRIMARY KEY ((k, p), a, b))")
    half = "x" * (size // 2)
    with pytest.raises(InvalidRequest, match=f"^Key length of {size} is longer than maximum of 65535$"):
        session.run(text, half, half)
    session.run("INSERT INTO w (k, p, a, b) VALUES ('k', 'p', ?, ?)", half, half[1:])
    assert session.run("SELECT k FROM w") == [("k",)]


def test_variables_within_a_list_of_alternatives_have_the_name_of_their_column(session: Session) -> None:
    prepared = session.prepare("SELECT * FROM t WHERE k IN (?, ?) AND c IN ? AND d IN (?)")
    assert [column.name for column in prepared.bind_columns] == ["k", "k", "in(c)", "d"]
