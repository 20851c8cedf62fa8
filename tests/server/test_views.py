"""Materialized views through the unmodified Python driver."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from cassandra import AlreadyExists, ConsistencyLevel, InvalidRequest
from cassandra.cluster import Session
from cassandra.query import SimpleStatement

from lockstep.node.work.view_builds import Build
from tests.server.parts import Nodes
from tests.server.test_drivers import SIMPLE, connect

NUMBERS = itertools.count()
BY_V = (
    "CREATE MATERIALIZED VIEW by_v AS SELECT a, b, v, w FROM t "
    "WHERE v IS NOT NULL AND a IS NOT NULL AND b IS NOT NULL PRIMARY KEY (v, a, b)"
)


@pytest.fixture(scope="module")
def driver(three: Nodes) -> Iterator[Session]:
    cluster = connect(three)
    cluster.profile_manager.default.consistency_level = ConsistencyLevel.QUORUM
    yield cluster.connect()
    cluster.shutdown()


@pytest.fixture
def session(driver: Session) -> Session:
    name = f"views_{next(NUMBERS)}"
    driver.execute(f"CREATE KEYSPACE {name} {SIMPLE % 3}")
    driver.set_keyspace(name)
    driver.execute("CREATE TABLE t (a int, b int, v text, w text, x int, PRIMARY KEY (a, b))")
    return driver


def _eventually(look: Callable[[], Any], wanted: Any) -> None:
    deadline = time.monotonic() + 10
    while (seen := look()) != wanted:
        assert time.monotonic() < deadline, f"{seen} is not {wanted}"
        time.sleep(0.02)


def _rows(session: Session, text: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in session.execute(text))


def test_a_view_follows_its_base(session: Session) -> None:
    session.execute(BY_V)
    session.execute("INSERT INTO t (a, b, v, w) VALUES (1, 1, 'one', 'w')")
    assert _rows(session, "SELECT * FROM by_v") == [("one", 1, 1, "w")]
    session.execute("UPDATE t SET v = 'two' WHERE a = 1 AND b = 1")
    assert _rows(session, "SELECT v, w FROM by_v") == [("two", "w")]
    session.execute("UPDATE t SET v = 'one' WHERE a = 1 AND b = 1")
    session.execute("UPDATE t SET w = 'x' WHERE a = 1 AND b = 1")
    assert _rows(session, "SELECT v, w FROM by_v") == [("one", "x")]
    session.execute("UPDATE t SET v = null WHERE a = 1 AND b = 1")
    assert _rows(session, "SELECT * FROM by_v") == []
    assert _rows(session, "SELECT a, b, v, w FROM t") == [(1, 1, None, "x")]
    session.execute("UPDATE t USING TTL 100 SET v = 'long' WHERE a = 1 AND b = 1")
    assert _rows(session, "SELECT v, w FROM by_v") == [("long", "x")]
    session.execute("UPDATE t USING TTL 1 SET v = 'short' WHERE a = 1 AND b = 1")
    _eventually(lambda: _rows(session, "SELECT * FROM by_v"), [])
    for b in range(5):
        session.execute("INSERT INTO t (a, b, v) VALUES (2, %s, 'many')", (b,))
    assert _rows(session, "SELECT count(*) FROM by_v WHERE v = 'many'") == [(5,)]
    session.execute("DELETE FROM t WHERE a = 2 AND b >= 3")
    assert _rows(session, "SELECT b FROM by_v WHERE v = 'many'") == [(0,), (1,), (2,)]
    session.execute("DELETE FROM t WHERE a = 2")
    assert _rows(session, "SELECT * FROM by_v WHERE v = 'many'") == []


def test_who_reads_a_view_that_is_being_built_is_warned(three: Nodes, session: Session) -> None:
    session.execute(BY_V)
    built = f"SELECT view_name FROM system.built_views WHERE keyspace_name = '{session.keyspace}'"
    _eventually(lambda: _rows(session, built), [("by_v",)])
    nodes = [member.node for member in three.members]
    _eventually(
        lambda: all(one.done for node in nodes for one in node.data.view_builds.builds.values()), True
    )
    _eventually(lambda: bool(session.execute("SELECT * FROM by_v").response_future.warnings), False)
    for node in nodes:
        view = node.log.cluster.schema.table(session.keyspace, "by_v")
        assert view is not None
        node.data.view_builds.builds[view.id] = Build()
    (told,) = session.execute("SELECT * FROM by_v").response_future.warnings
    assert told.startswith(f"Materialized view {session.keyspace}.by_v is still being built")
    assert not session.execute("SELECT * FROM t").response_future.warnings
    for node in nodes[1:]:
        node.data.view_builds.builds[view.id] = Build(done=True)

    def status() -> list[str]:
        table = "system_distributed.view_build_status"
        text = f"SELECT status FROM {table} WHERE keyspace_name = %s AND view_name = 'by_v'"
        return sorted(row[0] for row in session.execute(text, (session.keyspace,)))

    _eventually(status, ["STARTED", "SUCCESS", "SUCCESS"])
    _eventually(lambda: bool(session.execute("SELECT * FROM by_v").response_future.warnings), True)
    nodes[0].data.view_builds.builds[view.id] = Build(done=True)
    _eventually(lambda: bool(session.execute("SELECT * FROM by_v").response_future.warnings), False)


def test_rows_live_by_columns_that_a_view_does_not_show(session: Session) -> None:
    session.execute(
        "CREATE MATERIALIZED VIEW turned AS SELECT a, b FROM t "
        "WHERE a IS NOT NULL AND b > 5 PRIMARY KEY (b, a)"
    )
    session.execute("UPDATE t SET x = 1 WHERE a = 1 AND b = 7")
    session.execute("UPDATE t SET x = 1 WHERE a = 1 AND b = 5")
    assert _rows(session, "SELECT * FROM turned") == [(7, 1)]
    session.execute("DELETE x FROM t WHERE a = 1 AND b = 7")
    assert _rows(session, "SELECT * FROM turned") == []


def test_conditions_and_batches_bring_views_along(session: Session) -> None:
    session.execute(BY_V)
    session.execute("INSERT INTO t (a, b, v) VALUES (1, 1, 'x') IF NOT EXISTS")
    session.execute("BEGIN BATCH UPDATE t SET v = 'y' WHERE a = 1 AND b = 1 IF v = 'x' APPLY BATCH")
    session.execute("BEGIN BATCH INSERT INTO t (a, b, v) VALUES (2, 2, 'y') APPLY BATCH")
    _eventually(lambda: _rows(session, "SELECT v, a FROM by_v"), [("y", 1), ("y", 2)])


def test_a_view_is_built_from_what_is_there(session: Session) -> None:
    for number in range(300):
        session.execute("INSERT INTO t (a, b, v) VALUES (%s, %s, 'v')", (number % 7, number))
    session.execute(BY_V)
    _eventually(lambda: _rows(session, "SELECT count(*) FROM by_v WHERE v = 'v'"), [(300,)])
    space = session.keyspace
    built = f"SELECT view_name FROM system.built_views WHERE keyspace_name = '{space}'"
    _eventually(lambda: _rows(session, built), [("by_v",)])
    open_ = f"SELECT view_name FROM system.view_builds_in_progress WHERE keyspace_name = '{space}'"
    _eventually(lambda: _rows(session, open_), [])
    session.execute("DROP MATERIALIZED VIEW by_v")
    assert _rows(session, built) == []
    session.execute("DROP TABLE t")


@pytest.mark.parametrize("fetch_size", [1, 2, 3])
def test_pages_and_token_ranges_go_over_rows_with_an_empty_key(session: Session, fetch_size: int) -> None:
    session.execute(BY_V)
    for b in range(5):
        session.execute("INSERT INTO t (a, b, v) VALUES (1, %s, %s)", (b, "" if b < 3 else "full"))
    scan = SimpleStatement("SELECT v, b FROM by_v", fetch_size=fetch_size)
    wanted = [("", 0), ("", 1), ("", 2), ("full", 3), ("full", 4)]
    assert sorted(tuple(row) for row in session.execute(scan)) == wanted
    token = session.execute("SELECT token(v) FROM by_v").one()[0]
    bounds = f"token(v) >= {token} AND token(v) <= {token}"
    assert _rows(session, f"SELECT v, b FROM by_v WHERE {bounds}")[0][0] in ("", "full")
    above = _rows(session, "SELECT v, b FROM by_v WHERE token(v) > token('')")
    below = _rows(session, "SELECT v, b FROM by_v WHERE token(v) <= token('')")
    assert sorted(above + below) == wanted
    assert ("", 0) in below
    with pytest.raises(InvalidRequest, match="Key may not be empty"):
        session.execute("SELECT * FROM by_v WHERE v = ''")


def test_drivers_know_views_and_descriptions_make_them_again(session: Session) -> None:
    session.execute(f"{BY_V} WITH CLUSTERING ORDER BY (a DESC, b ASC) AND comment = 'x'")
    session.execute(
        "CREATE MATERIALIZED VIEW all_of AS SELECT * FROM t "
        "WHERE a IN (1, 2) AND b IS NOT NULL AND w > 'it''s' PRIMARY KEY ((a, w), b)"
    )
    metadata = session.cluster.metadata.keyspaces[session.keyspace]
    assert sorted(metadata.views) == ["all_of", "by_v"] and sorted(metadata.tables) == ["t"]
    view = metadata.views["by_v"]
    assert view.base_table_name == "t" and not view.include_all_columns
    assert view.where_clause == "v IS NOT NULL AND a IS NOT NULL AND b IS NOT NULL"
    assert [column.name for column in (*view.partition_key, *view.clustering_key)] == ["v", "a", "b"]
    described = [row[3] for row in session.execute(f"DESCRIBE KEYSPACE {session.keyspace}")]
    session.execute(f"DROP KEYSPACE {session.keyspace}")
    for statement in described:
        session.execute(statement)
    assert [row[3] for row in session.execute(f"DESCRIBE KEYSPACE {session.keyspace}")] == described
    one = list(session.execute("DESCRIBE MATERIALIZED VIEW all_of"))
    assert (
        one[0][1] == "materialized view"
        and "WHERE a IN (1, 2) AND b IS NOT NULL AND w > 'it''s'" in one[0][3]
    )


def test_views_follow_changes_of_their_base(session: Session) -> None:
    session.execute(
        "CREATE MATERIALIZED VIEW all_of AS SELECT * FROM t "
        "WHERE a IS NOT NULL AND b IS NOT NULL PRIMARY KEY (b, a)"
    )
    session.execute(BY_V)
    session.execute("ALTER TABLE t ADD y int")
    session.execute("INSERT INTO t (a, b, v, y) VALUES (1, 2, 'v', 3)")
    assert _rows(session, "SELECT a, b, y FROM all_of") == [(1, 2, 3)]
    session.execute("ALTER TABLE t RENAME b TO bb")
    assert _rows(session, "SELECT bb FROM by_v") == [(2,)]
    views = session.cluster.metadata.keyspaces[session.keyspace].views
    _eventually(lambda: "bb IS NOT NULL" in views["by_v"].where_clause, True)
    session.execute("TRUNCATE t")
    assert _rows(session, "SELECT * FROM by_v") == [] == _rows(session, "SELECT * FROM all_of")
    session.execute("INSERT INTO t (a, bb, v) VALUES (4, 5, 'v')")
    assert _rows(session, "SELECT bb, a FROM all_of") == [(5, 4)]
    session.execute("ALTER MATERIALIZED VIEW by_v WITH comment = 'seen'")
    for refused, words in (
        ("ALTER TABLE t DROP w", "Cannot drop column w on base table t with materialized views"),
        ("ALTER TABLE t WITH gc_grace_seconds = 0", "Cannot alter gc_grace_seconds of the base table"),
        ("DROP TABLE t", "materialized views still depend on it ("),
        ("DROP TABLE by_v", "Please use DROP MATERIALIZED VIEW instead"),
        ("ALTER TABLE by_v ADD z int", "use ALTER MATERIALIZED VIEW instead"),
        ("TRUNCATE by_v", "Cannot TRUNCATE materialized view directly; must truncate base table instead"),
        ("INSERT INTO by_v (v, a, bb) VALUES ('', 1, 1)", "Cannot directly modify a materialized view"),
        ("DELETE FROM by_v WHERE v = ''", "Cannot directly modify a materialized view"),
        ("DROP MATERIALIZED VIEW t", "doesn't exist"),
        ("CREATE INDEX ON by_v (w)", "Secondary indexes on materialized views aren't supported"),
    ):
        with pytest.raises(InvalidRequest) as caught:
            session.execute(refused)
        assert words in str(caught.value), refused
    with pytest.raises(AlreadyExists):
        session.execute(BY_V.replace("b IS", "bb IS").replace("a, b", "a, bb"))


_ALL = "a IS NOT NULL AND b IS NOT NULL"


@pytest.mark.parametrize(
    ("select", "key", "words"),
    [
        (f"SELECT * FROM t WHERE {_ALL}", "a", "without primary key columns b from base table 't'"),
        (f"SELECT * FROM t WHERE {_ALL}", "a, b, nope", "Unknown column 'nope' referenced in PRIMARY KEY"),
        (f"SELECT * FROM t WHERE {_ALL}", "a, b, a", "Duplicate column 'a' in PRIMARY KEY clause"),
        (
            f"SELECT * FROM t WHERE {_ALL} AND v IS NOT NULL AND w IS NOT NULL",
            "v, w, a, b",
            "Cannot include more than one non-primary key column in materialized view primary key (got v, w)",
        ),
        ("SELECT * FROM t WHERE a IS NOT NULL", "a, b", "'b' is required to be filtered by 'IS NOT NULL'"),
        ("SELECT * FROM t", "a, b", "'a' is required to be filtered by 'IS NOT NULL'"),
        (f"SELECT * FROM t WHERE {_ALL} AND w = ''", "a, b", "Non-primary key columns cannot be restricted"),
        (f"SELECT a AS z FROM t WHERE {_ALL}", "a, b", "Cannot use alias when defining a materialized view"),
        (f"SELECT ttl(v) FROM t WHERE {_ALL}", "a, b", "Can only select columns by name"),
        (f"SELECT nope FROM t WHERE {_ALL}", "a, b", "Undefined column name nope"),
        (f"SELECT * FROM nope WHERE {_ALL}", "a, b", "Base table 'nope' doesn't exist"),
        (f"SELECT * FROM system.local WHERE {_ALL}", "a, b", "on a table in a different keyspace"),
        ("SELECT * FROM t WHERE a = 'x' AND b IS NOT NULL", "a, b", "Invalid STRING constant (x)"),
    ],
)
def test_a_view_that_cannot_be_is_refused(driver: Session, select: str, key: str, words: str) -> None:
    driver.execute(f"CREATE KEYSPACE IF NOT EXISTS refused_views {SIMPLE % 1}")
    driver.set_keyspace("refused_views")
    driver.execute("CREATE TABLE IF NOT EXISTS t (a int, b int, v text, w text, PRIMARY KEY (a, b))")
    with pytest.raises(InvalidRequest) as caught:
        driver.execute(f"CREATE MATERIALIZED VIEW m AS {select} PRIMARY KEY ({key})")
    assert words in str(caught.value)


def test_not_null_of_a_column_outside_the_key_is_taken_and_leaves_no_row_out(driver: Session) -> None:
    driver.execute(f"CREATE KEYSPACE IF NOT EXISTS refused_views {SIMPLE % 1}")
    driver.set_keyspace("refused_views")
    driver.execute("CREATE TABLE wide (a int, b int, w text, PRIMARY KEY (a, b))")
    driver.execute(
        f"CREATE MATERIALIZED VIEW by_b AS SELECT * FROM wide WHERE {_ALL} AND w IS NOT NULL "
        "PRIMARY KEY (b, a)"
    )
    driver.execute("INSERT INTO wide (a, b) VALUES (1, 2)")
    _eventually(lambda: _rows(driver, "SELECT b, a, w FROM by_b"), [(2, 1, None)])


def test_tables_that_have_no_views(driver: Session) -> None:
    driver.execute(f"CREATE KEYSPACE IF NOT EXISTS refused_views {SIMPLE % 1}")
    driver.set_keyspace("refused_views")
    driver.execute("CREATE TABLE counts (a int PRIMARY KEY, n counter)")
    driver.execute("CREATE TABLE fixed (a int, b int, s int static, l list<int>, PRIMARY KEY (a, b))")
    key = "WHERE a IS NOT NULL AND b IS NOT NULL PRIMARY KEY (b, a)"
    driver.execute(f"CREATE MATERIALIZED VIEW m AS SELECT a, b, l FROM fixed {key}")
    for statement, words in (
        (
            "SELECT * FROM counts WHERE a IS NOT NULL PRIMARY KEY (a)",
            "Materialized views are not supported on counter tables",
        ),
        (f"SELECT * FROM fixed {key}", "Unable to include static column 's'"),
        (f"SELECT s FROM fixed {key}", "Cannot include static column 's' in materialized view"),
        (f"SELECT * FROM m {key}", "Materialized views cannot be created against other materialized views"),
        (
            "SELECT * FROM fixed WHERE a IS NOT NULL PRIMARY KEY (l, a, b)".replace("*", "a, b, l"),
            "Cannot use MultiCell column 'l' in PRIMARY KEY of materialized view",
        ),
    ):
        with pytest.raises(InvalidRequest) as caught:
            driver.execute(f"CREATE MATERIALIZED VIEW other AS {statement}")
        assert words in str(caught.value), statement
