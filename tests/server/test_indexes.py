"""Secondary indexes as the unmodified Python driver sees them, on three nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, ReadFailure
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import SimpleStatement, tuple_factory

from lockstep.storage.index.indexes import Job
from lockstep.values import limits
from lockstep.values.tokens import FULL_RING
from tests.server.parts import CQL_PORT, Member, Nodes

_REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
_FILTERING = "ALLOW FILTERING"


@pytest.fixture(scope="module")
def session(three: Nodes) -> Iterator[Session]:
    profile = ExecutionProfile(
        request_timeout=10, row_factory=tuple_factory, consistency_level=ConsistencyLevel.QUORUM
    )
    driver = Cluster(
        [member.address for member in three.members],
        port=CQL_PORT,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    made = driver.connect()
    made.execute(f"CREATE KEYSPACE indexed {_REPLICATION}")
    made.set_keyspace("indexed")
    made.execute(
        "CREATE TABLE t (k int, k2 int, c int, d int, s int static, v int, w text, m map<text, int>, "
        "l list<int>, e set<text>, f frozen<list<int>>, PRIMARY KEY ((k, k2), c, d))"
    )
    # One index is built from rows, the others are kept up with writes.
    insert = made.prepare(
        "INSERT INTO t (k, k2, c, d, s, v, w, m, l, e, f) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    )
    for at in range(10):
        made.execute(insert, _row(at))
    for target in ("v", "c", "d", "k2", "s", "keys(m)", "m", "entries(m)", "l", "e", "full(f)"):
        made.execute(f"CREATE INDEX ON t ({target})")
    for at in range(10, 30):
        made.execute(insert, _row(at))
    yield made
    driver.shutdown()


def _row(at: int) -> tuple[Any, ...]:
    k, k2, c, d = at % 5, at % 2, at % 3, at
    return (
        k,
        k2,
        c,
        d,
        k + k2,
        at % 4,
        f"w{at % 2}",
        {f"a{at % 3}": at % 5},
        [at % 6],
        {f"e{at % 4}"},
        [at % 3],
    )


def found(session: Session, where: str, *values: Any, size: int = 5000) -> list[int]:
    """The column `d` of what is found, which tells rows apart."""
    query = SimpleStatement(f"SELECT d FROM t WHERE {where}", fetch_size=size)
    return sorted(d for (d,) in session.execute(query, values or None))


@pytest.mark.parametrize(
    ("where", "check"),
    [
        ("v = 1", lambda at: at % 4 == 1),
        ("c = 2", lambda at: at % 3 == 2),
        ("d = 7", lambda at: at == 7),
        ("k2 = 1", lambda at: at % 2 == 1),
        ("s = 3", lambda at: at % 5 + at % 2 == 3),
        ("m CONTAINS KEY 'a1'", lambda at: at % 3 == 1),
        ("m CONTAINS 4", lambda at: at % 5 == 4),
        ("m['a2'] = 3", lambda at: at % 3 == 2 and at % 5 == 3),
        ("l CONTAINS 5", lambda at: at % 6 == 5),
        ("e CONTAINS 'e2'", lambda at: at % 4 == 2),
        ("f = [1]", lambda at: at % 3 == 1),
        ("k = 1 AND k2 = 1 AND v = 3", lambda at: at % 5 == 1 and at % 2 == 1 and at % 4 == 3),
        ("k = 1 AND k2 = 1 AND c = 2 AND v = 3", lambda at: at % 30 == 11),
        ("k = 1 AND k2 = 1 AND d = 11", lambda at: at == 11),
        ("v = 1 AND w = 'w1' ALLOW FILTERING", lambda at: at % 4 == 1),
        ("v = 1 AND l CONTAINS 5 ALLOW FILTERING", lambda at: at % 4 == 1 and at % 6 == 5),
        ("v = 1 AND c = 1 ALLOW FILTERING", lambda at: at % 4 == 1 and at % 3 == 1),
        ("token(k, k2) > 0 AND v = 1", None),
        ("token(k, k2) > 0 AND c = 1", None),
        ("c = 1 AND d > 10 AND d < 20 ALLOW FILTERING", lambda at: at % 3 == 1 and 10 < at < 20),
        ("k = 1 AND v = 3 ALLOW FILTERING", lambda at: at % 5 == 1 and at % 4 == 3),
        ("s = 3 AND v = 3 ALLOW FILTERING", lambda at: at % 5 + at % 2 == 3 and at % 4 == 3),
        ("s = 3 AND k2 = 1 AND c = 0 ALLOW FILTERING", lambda at: at % 10 == 7 and at % 3 == 0),
        ("k = 2 AND k2 = 1 AND s = 3", lambda at: at % 10 == 7),
    ],
)
def test_rows_are_found(session: Session, where: str, check: Any) -> None:
    if check is None:
        wanted = found(session, f"{where} {_FILTERING}")
        assert wanted
    else:
        wanted = [at for at in range(30) if check(at)]
    assert found(session, where) == wanted
    for size in (1, 2, 7):
        assert found(session, where, size=size) == wanted


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("SELECT * FROM t WHERE v > 1", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE v IN (1, 2)", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE v = 1 AND w = 'w1'", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE v = 1 AND c = 1", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE v = 1 AND d = 1", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE k = 1 AND c = 1", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE v = 1 AND (c, d) > (1, 2)", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE c = 1 AND d > 2", "use ALLOW FILTERING"),
        ("SELECT * FROM t WHERE l CONTAINS 1 AND l CONTAINS 2", "use ALLOW FILTERING"),
        (
            "SELECT * FROM t WHERE k = 1 AND k2 = 1 AND v = 1 ORDER BY c",
            "ORDER BY with 2ndary indexes is not",
        ),
        (
            "SELECT * FROM t WHERE k IN (1, 2) AND k2 = 1 AND v = 1",
            "Select on indexed columns and with IN clause for the PRIMARY KEY are not supported",
        ),
        ("ALTER TABLE t DROP v", "because it has dependent secondary indexes (t_v_idx)"),
    ],
)
def test_what_is_refused(session: Session, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        session.execute(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("shown", ["token(k, k2), s, v", "s, writetime(v)", "s, count(d)"])
def test_static_columns_may_stand_beside_others(session: Session, shown: str) -> None:
    assert list(session.execute(f"SELECT {shown} FROM t WHERE v = 1"))


def test_changes_and_deletions_are_followed(session: Session) -> None:
    session.execute("CREATE TABLE u (k int PRIMARY KEY, v int)")
    session.execute("CREATE INDEX by_v ON u (v)")
    for k in range(6):
        session.execute(f"INSERT INTO u (k, v) VALUES ({k}, 1)")
    session.execute("UPDATE u SET v = 2 WHERE k = 1")
    session.execute("DELETE FROM u WHERE k = 2")
    session.execute("DELETE v FROM u WHERE k = 3")
    session.execute("UPDATE u USING TTL 1 SET v = 3 WHERE k = 4")
    session.execute("UPDATE u USING TIMESTAMP 1 SET v = 9 WHERE k = 5")

    def keys(v: int) -> list[int]:
        return sorted(k for (k,) in session.execute(f"SELECT k FROM u WHERE v = {v}"))

    assert [keys(v) for v in (1, 2, 9)] == [[0, 5], [1], []]
    session.execute("UPDATE u SET v = 1 WHERE k = 1")
    assert [keys(v) for v in (1, 2)] == [[0, 1, 5], []]
    session.execute("TRUNCATE u")
    assert keys(1) == []
    session.execute("INSERT INTO u (k, v) VALUES (7, 1)")
    assert keys(1) == [7]
    session.execute("DROP INDEX by_v")
    with pytest.raises(InvalidRequest, match="ALLOW FILTERING"):
        keys(1)
    assert list(session.execute("SELECT count(*) FROM u WHERE v = 1 ALLOW FILTERING")) == [(1,)]


def test_an_index_of_the_range_kind_finds_bounds_and_several_conditions(session: Session) -> None:
    session.execute("CREATE TABLE r (k int PRIMARY KEY, v int, w int, x text)")
    for column in ("v", "w", "x"):
        session.execute(f"CREATE INDEX ON r ({column}) USING 'sai'")
    insert = session.prepare("INSERT INTO r (k, v, w, x) VALUES (?, ?, ?, ?)")
    for k in range(40):
        session.execute(insert, (k, k - 20, k % 7, f"x{k % 3}"))

    def keys(where: str, size: int = 5000) -> list[int]:
        query = SimpleStatement(f"SELECT k FROM r WHERE {where}", fetch_size=size)
        return sorted(k for (k,) in session.execute(query))

    for size in (3, 5000):
        assert keys("v > 10", size) == list(range(31, 40))
        assert keys("v >= -20 AND v < -15", size) == list(range(5))
        assert keys("v <= -18 AND w = 1", size) == [1]
        assert keys("w = 2 AND x = 'x0' AND v > -20", size) == [
            k for k in range(1, 40) if k % 7 == 2 and k % 3 == 0
        ]
    with pytest.raises(InvalidRequest, match="ALLOW FILTERING"):
        keys("x > 'a'")


def test_drivers_read_indexes_from_the_schema(session: Session) -> None:
    driver = session.cluster
    driver.refresh_table_metadata("indexed", "t")
    table = driver.metadata.keyspaces["indexed"].tables["t"]
    assert table.indexes["t_v_idx"].kind == "COMPOSITES"
    assert dict(table.indexes["t_m_idx"].index_options) == {"target": "keys(m)"}
    text = table.export_as_string()
    assert "CREATE INDEX t_m_idx ON indexed.t (keys(m));" in text
    query = "SELECT index_name FROM system.\"IndexInfo\" WHERE table_name = 'indexed'"
    built = [name for (name,) in session.execute(query)]
    assert {"t_v_idx", "t_m_idx", "t_f_idx"} <= set(built)


def test_aggregates_and_limits(session: Session) -> None:
    assert list(session.execute("SELECT count(*), max(d) FROM t WHERE v = 1")) == [(8, 29)]
    assert len(list(session.execute("SELECT d FROM t WHERE v = 1 LIMIT 3"))) == 3
    groups = list(session.execute("SELECT k, k2, count(*) FROM t WHERE v = 1 GROUP BY k, k2"))
    assert sorted(groups) == sorted(
        (k, 1, sum(1 for at in range(30) if at % 4 == 1 and at % 5 == k))
        for k in range(5)
        if any(at % 4 == 1 and at % 5 == k for at in range(30))
    )
    prepared = session.prepare("SELECT d FROM t WHERE v = ?")
    assert len(list(session.execute(prepared, (1,)))) == 8
    with pytest.raises(InvalidRequest):
        session.execute(prepared, (None,))


def test_replicas_that_still_build_an_index_say_so(
    session: Session, three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "INDEX_WAIT_MS", 50)
    session.execute("CREATE TABLE late (k int PRIMARY KEY, v int)")
    session.execute("INSERT INTO late (k, v) VALUES (1, 1)")
    session.execute("CREATE INDEX ON late (v)")
    table = three.members[0].node.log.cluster.schema.table("indexed", "late")
    assert table is not None
    query = SimpleStatement("SELECT k FROM late WHERE v = 1", consistency_level=ConsistencyLevel.QUORUM)
    for member in three.members[:2]:
        assert list(session.execute(query)) == [(1,)]
        # As if the rows of a file were gone through.
        member.node.data.engine.indexes._jobs[Job(table.id, None, FULL_RING)] = 1
    with pytest.raises(ReadFailure) as failed:
        session.execute(query)
    assert set(failed.value.error_code_map.values()) == {6}
    query.consistency_level = ConsistencyLevel.ONE
    assert list(session.execute(query)) == [(1,)]
    for member in three.members[:2]:
        three.call(_build(member))
    query.consistency_level = ConsistencyLevel.ALL
    assert list(session.execute(query)) == [(1,)]


async def _build(member: Member) -> None:
    member.node.data.engine.indexes._wake()


def test_a_value_that_is_too_large_for_an_index_is_refused(session: Session) -> None:
    session.execute("CREATE TABLE large (k int PRIMARY KEY, x text, m map<int, text>)")
    session.execute("CREATE INDEX ON large (x)")
    session.execute("CREATE INDEX ON large (m)")
    insert = session.prepare("INSERT INTO large (k, x, m) VALUES (?, ?, ?)")
    session.execute(insert, (1, "x" * 65_535, {1: "a"}))
    for values in ((2, "x" * 65_536, None), (2, None, {1: "y" * 65_536})):
        with pytest.raises(InvalidRequest, match="Cannot index value of size 65536 for index large_"):
            session.execute(insert, values)
    (row,) = session.execute(session.prepare("SELECT k FROM large WHERE x = ?"), ("x" * 65_535,))
    assert row == (1,)
