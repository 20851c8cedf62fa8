"""The language as the unmodified Python driver sees it: groups, arithmetic, JSON, lists, functions."""

from __future__ import annotations

import datetime
import decimal
import json
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import ConsistencyLevel, FunctionFailure, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import BatchStatement, SimpleStatement, tuple_factory

from tests.server.parts import CQL_PORT, INTERNODE_PORT, Nodes

#: The driver gives timestamps without a zone.
_LEAP_DAY = datetime.datetime(2024, 2, 29, tzinfo=datetime.UTC).replace(tzinfo=None)
_REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"


@pytest.fixture(scope="module", params=[5, 4], ids=["v5", "v4"])
def session(three: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    profile = ExecutionProfile(
        request_timeout=10, row_factory=tuple_factory, consistency_level=ConsistencyLevel.QUORUM
    )
    driver = Cluster(
        [three.members[0].address],
        port=CQL_PORT,
        protocol_version=request.param,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    made = driver.connect()
    keyspace = f"language_{request.param}"
    made.execute(f"CREATE KEYSPACE {keyspace} {_REPLICATION}")
    made.set_keyspace(keyspace)
    made.execute("CREATE TYPE u (a int, b text)")
    made.execute("CREATE TABLE g (p int, c int, d int, v int, PRIMARY KEY (p, c, d))")
    made.execute(
        "CREATE TABLE x (k int PRIMARY KEY, l list<int>, m map<text, int>, s set<int>, o u, n decimal, "
        "t timestamp, v vector<float, 2>)"
    )
    yield made
    driver.shutdown()


def rows(session: Session, text: Any, *values: Any) -> list[tuple]:
    return list(session.execute(text, values or None))


def test_groups_come_page_by_page(session: Session) -> None:
    insert = session.prepare("INSERT INTO g (p, c, d, v) VALUES (?, ?, ?, ?)")
    for p in range(4):
        for c in range(3):
            for d in range(c + 1):
                session.execute(insert, (p, c, d, p + c + d))
    query = "SELECT p, c, count(*), sum(v), avg(v) FROM g GROUP BY p, c"
    whole = rows(session, query)
    assert sorted(whole) == [
        (p, c, c + 1, sum(p + c + d for d in range(c + 1)), sum(p + c + d for d in range(c + 1)) // (c + 1))
        for p in range(4)
        for c in range(3)
    ]
    for size in (1, 2, 5):
        assert rows(session, SimpleStatement(query, fetch_size=size)) == whole
    limited = rows(session, f"{query} PER PARTITION LIMIT 2 LIMIT 5")
    assert limited == [row for row in whole if row[1] < 2][:5]


def test_arithmetic_is_typed_and_bound(session: Session) -> None:
    session.execute("INSERT INTO x (k, n, t) VALUES (1, 10.5, '2024-01-31T00:00:00Z')")
    select = session.prepare("SELECT k + (int)?, -n * 2, n / 4, t + 1mo, k / 2 FROM x WHERE k = 2 - (int)?")
    [row] = rows(session, select, 5, 1)
    assert row == (
        6,
        decimal.Decimal("-21.0"),
        decimal.Decimal("2.625"),
        _LEAP_DAY,
        0,
    )
    with pytest.raises(FunctionFailure, match="failed: / by zero") as caught:
        rows(session, "SELECT k / 0 FROM x WHERE k = 1")
    assert caught.value.function == "_divide" and list(caught.value.arg_types) == ["int", "int"]
    with pytest.raises(InvalidRequest, match="operation is not supported between k and l"):
        rows(session, "SELECT k + l FROM x")


def test_rows_go_in_and_out_as_json(session: Session) -> None:
    row = {"k": 2, "l": [1, 2], "m": {"a": 1}, "s": [3], "o": {"a": 1, "b": "x"}, "n": 1.25, "v": [1.0, 2.0]}
    session.execute(session.prepare("INSERT INTO x JSON ?"), (json.dumps(row),))
    [(text,)] = rows(session, "SELECT JSON * FROM x WHERE k = 2")
    assert json.loads(text) == {**row, "t": None}
    session.execute('INSERT INTO x JSON \'{"k": 2, "l": [9]}\' DEFAULT UNSET')
    assert rows(session, "SELECT l, toJson(o), toJson(m) FROM x WHERE k = 2") == [
        ([9], '{"a": 1, "b": "x"}', '{"a": 1}')
    ]
    with pytest.raises(InvalidRequest, match="unrecognized column: zz"):
        session.execute('INSERT INTO x JSON \'{"k": 2, "zz": 1}\'')


def test_lists_change_by_index_and_value(session: Session) -> None:
    session.execute("INSERT INTO x (k, l) VALUES (3, [1, 2, 3, 2])")
    session.execute(session.prepare("UPDATE x SET l[?] = ? WHERE k = 3"), (0, 7))
    session.execute("UPDATE x SET l = l - [2] WHERE k = 3")
    batch = BatchStatement()
    batch.add(session.prepare("DELETE l[?] FROM x WHERE k = 3"), (1,))
    batch.add("UPDATE x SET l = l + [8] WHERE k = 3")
    session.execute(batch)
    assert rows(session, "SELECT l FROM x WHERE k = 3") == [([7, 8],)]
    with pytest.raises(InvalidRequest, match="List index 5 out of bound, list has size 2"):
        session.execute("UPDATE x SET l[5] = 1 WHERE k = 3")
    any_level = SimpleStatement("UPDATE x SET l[0] = 1 WHERE k = 3", consistency_level=ConsistencyLevel.ANY)
    with pytest.raises(InvalidRequest, match="consistency ANY is not supported on reads"):
        session.execute(any_level)


def test_parts_of_collections_and_functions_are_selected(session: Session) -> None:
    session.execute(
        "INSERT INTO x (k, m, s, o, v) VALUES (4, {'a': 1, 'b': 2, 'c': 3}, {1, 5}, {a: 6, b: 'b'}, [1, 0])"
    )
    chosen = (
        "SELECT m['b'], m['b'..], s[2..9], map_keys(m), collection_sum(s), o.a + 1, "
        "similarity_cosine(v, [1, 0]), mask_inner(o.b, 0, 0), [k, 2], (k, 'z'), cast(k AS text) "
        "FROM x WHERE k = 4"
    )
    [row] = rows(session, chosen)
    assert row[0] == 2 and dict(row[1]) == {"b": 2, "c": 3} and set(row[2]) == {5}
    assert set(row[3]) == {"a", "b", "c"} and row[4:8] == (6, 7, 1.0, "*")
    assert row[8:] == ([4, 2], (4, "z"), "4")
    session.execute("UPDATE x USING TIMESTAMP 9999999999999999 SET m['z'] = 26 WHERE k = 4")
    [(times, newest)] = rows(session, "SELECT writetime(m), maxwritetime(m) FROM x WHERE k = 4")
    assert len(times) == 4 and max(times) == newest == 9999999999999999


def test_descriptions_run_again(session: Session) -> None:
    keyspace = session.keyspace
    session.execute(
        "ALTER TABLE g WITH compaction = {'class': 'LeveledCompactionStrategy', 'sstable_size_in_mb': '100'} "
        "AND compression = {'enabled': 'false'} AND comment = 'it''s'"
    )
    described = [row.create_statement for row in _described(session, f"DESCRIBE KEYSPACE {keyspace}")]
    again = f"{keyspace}_again"
    for text in described:
        session.execute(text.replace(keyspace, again))
    repeated = [row.create_statement for row in _described(session, f"DESCRIBE KEYSPACE {again}")]
    assert [text.replace(again, keyspace) for text in repeated] == described
    for what, message in (
        ("FUNCTION now", "User defined function 'now' not found"),
        ("MATERIALIZED VIEW v", "Materialized view 'v' not found"),
        ("INDEX i", "Index 'i' not found"),
        ("TABLE nope", "Table 'nope' not found"),
    ):
        with pytest.raises(InvalidRequest, match=message):
            session.execute(f"DESCRIBE {what}")


def _described(session: Session, text: str) -> list[Any]:
    from cassandra.query import named_tuple_factory

    profile = session.execution_profile_clone_update(EXEC_PROFILE_DEFAULT, row_factory=named_tuple_factory)
    return list(session.execute(text, execution_profile=profile))


def test_the_cluster_tells_who_owns_the_ranges_of_the_keyspace(session: Session) -> None:
    [cluster] = _described(session, "DESCRIBE CLUSTER")
    hosts = {f"/{host.address}:{INTERNODE_PORT}" for host in session.cluster.metadata.all_hosts()}
    assert cluster.range_ownership and all(
        set(owners) == hosts for owners in cluster.range_ownership.values()
    )


def test_system_tables_are_described_for_reference_and_columns_of_one_cell_come_first(
    session: Session,
) -> None:
    [keyspace, *tables] = _described(session, "DESCRIBE KEYSPACE system_views")
    assert "VIRTUAL KEYSPACE system_views;" in keyspace.create_statement
    assert all("\nVIRTUAL TABLE system_views." in table.create_statement for table in tables)
    full = [row.create_statement for row in _described(session, "DESCRIBE FULL SCHEMA")]
    assert any("VIRTUAL KEYSPACE system_virtual_schema" in text for text in full)
    session.execute(
        "CREATE TABLE cells (k int PRIMARY KEY, b list<int>, c frozen<list<int>>, a int, d tuple<int, int>)"
    )
    [table] = _described(session, "DESCRIBE TABLE cells")
    names = [line.split()[0] for line in table.create_statement.splitlines() if line.startswith("    ")]
    assert names[:5] == ["k", "a", "c", "d", "b"]
    assert _described(session, "DESCRIBE COLUMNFAMILIES") == _described(session, "DESCRIBE TABLES")
    with pytest.raises(InvalidRequest, match="Keyspace 'nowhere' does not exist"):
        session.execute("USE nowhere")
    assert _described(session, "SELECT * FROM system_distributed.view_build_status") == []
