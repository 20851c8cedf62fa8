"""User functions and aggregates as the unmodified Python driver sees them, evaluated in real workers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import FunctionFailure, InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.query import BatchStatement, SimpleStatement, tuple_factory

from tests.server.parts import CQL_PORT, Nodes, addresses, nodes
from tests.server.test_process import configured, running

_REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
_SETTINGS = {
    "functions_user_defined_functions_enabled": "true",
    "functions_user_defined_functions_fail_timeout_ms": "700",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    with nodes(tmp_path_factory.mktemp("functions"), 1, **_SETTINGS) as made:
        yield made
        assert not made.escaped


@pytest.fixture(scope="module", params=[5], ids=["v5"])
def session(cluster: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    driver = Cluster(
        [cluster.members[0].address],
        port=CQL_PORT,
        protocol_version=request.param,
        execution_profiles={
            EXEC_PROFILE_DEFAULT: ExecutionProfile(request_timeout=10, row_factory=tuple_factory)
        },
    )
    made = driver.connect()
    keyspace = f"functions_{request.param}"
    made.execute(f"CREATE KEYSPACE {keyspace} {_REPLICATION}")
    made.set_keyspace(keyspace)
    made.execute("CREATE TABLE t (k int, c int, v int, s text, PRIMARY KEY (k, c))")
    for c in range(12):
        made.execute(f"INSERT INTO t (k, c, v, s) VALUES ({c % 2}, {c}, {c * c}, 'row {c}')")
    create(made, "plus", "a int, b int", "int", "return a + b")
    create(made, "twice", "a int", "int", "a * 2")
    create(made, "twice", "a text", "text", "a + a")
    yield made
    driver.shutdown()


def create(
    session: Session, name: str, arguments: str, returns: str, body: str, nulls: str = "RETURNS NULL"
) -> None:
    session.execute(
        f"CREATE OR REPLACE FUNCTION {name}({arguments}) {nulls} ON NULL INPUT RETURNS {returns} "
        f"LANGUAGE python AS $${body}$$"
    )


def rows(session: Session, query: str, values: tuple[Any, ...] | None = None) -> list[tuple[Any, ...]]:
    return list(session.execute(query, values))


def test_functions_of_columns_literals_and_each_other(session: Session) -> None:
    assert rows(session, "SELECT plus(c, v), twice(s) FROM t WHERE k = 1 LIMIT 2") == [
        (2, "row 1row 1"),
        (12, "row 3row 3"),
    ]
    assert rows(session, "SELECT twice(plus(twice(c), 1)), plus(c, v) + 1 FROM t WHERE k = 0 AND c = 4") == [
        (18, 21)
    ]
    result = session.execute("SELECT twice(c) FROM t WHERE k = 0 AND c = 4")
    assert result.column_names == [f"{session.keyspace}.twice(c)"]


def test_pages_of_many_rows_are_those_of_one(session: Session) -> None:
    whole = rows(session, "SELECT plus(c, v) FROM t")
    paged = list(session.execute(SimpleStatement("SELECT plus(c, v) FROM t", fetch_size=5)))
    assert paged == whole and len(whole) == 12


def test_nulls_go_in_only_where_that_was_asked_for(session: Session) -> None:
    create(session, "shown", "a int", "text", "return 'none' if a is None else str(a)", "CALLED")
    session.execute("INSERT INTO t (k, c, s) VALUES (7, 0, 'x')")
    assert rows(session, "SELECT shown(v), twice(v) FROM t WHERE k = 7") == [("none", None)]
    session.execute("DELETE FROM t WHERE k = 7")


def test_terms_of_writes_and_conditions(session: Session) -> None:
    session.execute("INSERT INTO t (k, c, v) VALUES (plus(4, 5), twice(1), plus(1, twice(3)))")
    assert rows(session, "SELECT v FROM t WHERE k = 9 AND c = plus(1, 1)") == [(7,)]
    prepared = session.prepare("UPDATE t SET v = plus(?, 1) WHERE k = 9 AND c = ?")
    session.execute(prepared, (41, 2))
    assert rows(session, "SELECT v FROM t WHERE k = twice(?) + 1 AND c = 2".replace("?", "4")) == [(42,)]
    applied = rows(session, "UPDATE t SET v = twice(21) WHERE k = 9 AND c = 2 IF v = plus(41, 1)")
    assert applied == [(True,)]
    batch = BatchStatement()
    batch.add(prepared, (1, 2))
    batch.add("INSERT INTO t (k, c, v) VALUES (9, 3, twice(8))")
    session.execute(batch)
    assert rows(session, "SELECT v FROM t WHERE k = 9") == [(2,), (16,)]
    session.execute("DELETE FROM t WHERE k = 9")


def test_randomness_inside_a_call_is_drawn_once(session: Session) -> None:
    create(session, "version", "a timeuuid", "int", "return int(a[14])")
    assert rows(session, "SELECT version(now()) FROM t WHERE k = 1 AND c = 1") == [(1,)]
    session.execute("INSERT INTO t (k, c, v) VALUES (8, 1, version(now()))")
    assert rows(session, "SELECT v FROM t WHERE k = 8") == [(1,)]
    session.execute("DELETE FROM t WHERE k = 8")


def test_aggregates_fold_groups_and_end_with_the_final_function(session: Session) -> None:
    create(session, "counted", "s tuple<int, int>, a int", "tuple<int, int>", "return (s[0] + a, s[1] + 1)")
    create(session, "mean", "s tuple<int, int>", "double", "return s[0] / s[1] if s[1] else None")
    session.execute(
        "CREATE AGGREGATE average(int) SFUNC counted STYPE tuple<int, int> FINALFUNC mean INITCOND (0, 0)"
    )
    assert rows(session, "SELECT average(c), count(*), twice(max(c)) FROM t") == [(5.5, 12, 22)]
    assert rows(session, "SELECT k, average(twice(c)) FROM t GROUP BY k") == [(1, 12.0), (0, 10.0)]
    assert rows(session, "SELECT average(c) FROM t WHERE k = 99") == [(None,)]
    with pytest.raises(InvalidRequest, match="is still referenced by aggregates"):
        session.execute("DROP FUNCTION counted")
    session.execute("DROP AGGREGATE average(int)")
    session.execute("DROP FUNCTION counted")


def test_values_of_every_kind_come_back_as_they_went(session: Session) -> None:
    session.execute("CREATE TYPE IF NOT EXISTS pair (a int, b text)")
    kinds = {
        "boolean": "true",
        "bigint": "-5",
        "varint": "123456789012345678901234567890",
        "decimal": "1.50",
        "double": "1.25",
        "blob": "0x00ff",
        "uuid": "11111111-2222-3333-4444-555555555555",
        "timestamp": "'2020-02-29T12:00:00.123Z'",
        "date": "'1969-12-31'",
        "time": "'01:02:03.000000004'",
        "duration": "1mo2d3ns",
        "inet": "'10.0.0.1'",
        "list<text>": "['b', 'a']",
        "set<int>": "{3, 1}",
        "map<text, frozen<list<int>>>": "{'x': [1, 2]}",
        "tuple<int, text>": "(1, 'x')",
        "vector<float, 2>": "[1.5, 2.5]",
        "pair": "{a: 1, b: 'x'}",
    }
    for at, (kind, literal) in enumerate(kinds.items()):
        session.execute(f"CREATE TABLE of_{at} (k int PRIMARY KEY, v {kind.replace('pair', 'frozen<pair>')})")
        create(session, "same", f"v {kind}", kind, "return v")
        session.execute(f"INSERT INTO of_{at} (k, v) VALUES (1, {literal})")
        session.execute(f"INSERT INTO of_{at} (k, v) VALUES (2, same(({kind}){literal}))")
        found = rows(session, f"SELECT v, same(v) FROM of_{at}")
        assert found[0][0] == found[0][1] == found[1][0] == found[1][1], kind


def test_failures_are_told_with_the_function_and_the_node_goes_on(session: Session) -> None:
    create(session, "broken", "a int", "int", "return 1 // (a - a)")
    with pytest.raises(FunctionFailure, match=r"broken.int.' failed: ZeroDivisionError") as failed:
        session.execute("SELECT broken(c) FROM t")
    assert failed.value.keyspace == session.keyspace
    assert (failed.value.function, list(failed.value.arg_types)) == ("broken", ["int"])
    create(session, "unsayable", "a int", "int", "raise Exception('half: \\ud800')")
    with pytest.raises(FunctionFailure, match=r"failed: Exception: half: .ud800"):
        session.execute("SELECT unsayable(c) FROM t")
    create(session, "halves", "a int", "text", "return '\\ud800'")
    with pytest.raises(FunctionFailure, match="String didn't validate"):
        session.execute("SELECT halves(c) FROM t")
    create(session, "endless", "a int", "int", "while True:\n  pass")
    with pytest.raises(FunctionFailure, match="ran longer than 700ms"):
        session.execute("SELECT endless(c) FROM t WHERE k = 1")
    create(session, "hungry", "a int", "int", "x = [a]\nwhile True:\n  x = x + x")
    with pytest.raises(FunctionFailure):
        session.execute("SELECT hungry(c) FROM t WHERE k = 1")
    with pytest.raises(FunctionFailure, match="failed"):
        create(session, "words", "a int", "int", "return 'no number'")
        session.execute("SELECT words(c) FROM t")
    assert rows(session, "SELECT plus(c, 1) FROM t WHERE k = 1 AND c = 1") == [(2,)]


def test_prepared_statements_follow_their_functions(session: Session) -> None:
    create(session, "changing", "a int", "int", "return a + 1")
    prepared = session.prepare("SELECT changing(c) FROM t WHERE k = 1 AND c = 1")
    assert list(session.execute(prepared)) == [(2,)]
    create(session, "changing", "a int", "int", "return a + 2")
    assert list(session.execute(prepared)) == [(3,)]
    session.execute("DROP FUNCTION changing")
    with pytest.raises(InvalidRequest, match="Unknown function"):
        session.execute(prepared)
    create(session, "changing", "a int", "text", "return 'now ' + str(a)")
    assert list(session.execute(prepared)) == [("now 1",)]


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE FUNCTION f(a int) CALLED ON NULL INPUT RETURNS int LANGUAGE java AS 'return a;'", "Python"),
        ("CREATE FUNCTION f(a int) CALLED ON NULL INPUT RETURNS int LANGUAGE python AS 'import os'", "'os'"),
        ("CREATE FUNCTION f(a int) CALLED ON NULL INPUT RETURNS int LANGUAGE python AS '('", "compile"),
        ("CREATE FUNCTION system.f() CALLED ON NULL INPUT RETURNS int LANGUAGE python AS '1'", "system"),
        (
            "CREATE OR REPLACE FUNCTION IF NOT EXISTS f() CALLED ON NULL INPUT RETURNS int LANGUAGE python "
            "AS '1'",
            "Cannot use both",
        ),
        ("DROP FUNCTION twice", "matches multiple function definitions"),
        ("DROP FUNCTION nothing", "doesn't exist"),
        ("CREATE AGGREGATE a(int) SFUNC plus STYPE int INITCOND 'x'", "Invalid STRING constant"),
        ("CREATE AGGREGATE a(int) SFUNC plus STYPE int", "does not accept 'null' arguments"),
        ("SELECT twice(1.5) FROM t", "none of its type signatures match"),
        ("SELECT plus(c) FROM t", "Invalid number of arguments"),
        ("SELECT plus(c, s) FROM t", "signatures match"),
        ("SELECT nothing(c) FROM t", "Unknown function"),
    ],
)
def test_refusals(session: Session, statement: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        session.execute(statement)


def test_drivers_and_descriptions_know_functions(session: Session) -> None:
    create(session, "folding", "state int, a int", "int", "return state + a")
    session.execute("CREATE OR REPLACE AGGREGATE summed(int) SFUNC folding STYPE int INITCOND 0")
    driver = session.cluster
    driver.refresh_schema_metadata()
    space = driver.metadata.keyspaces[session.keyspace]
    function, aggregate = space.functions["folding(int,int)"], space.aggregates["summed(int)"]
    assert (function.body, function.language, function.argument_names) == (
        "return state + a",
        "python",
        ["state", "a"],
    )
    assert (aggregate.state_func, aggregate.initial_condition) == ("folding", "0")
    described = [row[-1] for row in rows(session, "DESCRIBE FUNCTION folding")]
    described += [row[-1] for row in rows(session, "DESCRIBE AGGREGATE summed")]
    listed = [row[2] for row in rows(session, "DESCRIBE FUNCTIONS")]
    assert "folding(int, int)" in listed and "twice(text)" in listed
    session.execute("DROP AGGREGATE summed")
    session.execute("DROP FUNCTION folding")
    for statement in described:
        session.execute(statement)
    assert rows(session, "SELECT summed(c) FROM t") == [(66,)]
    assert driver.metadata.keyspaces[session.keyspace].functions["folding(int,int)"] is not None


def test_functions_are_off_unless_a_node_is_told_otherwise(single: Nodes) -> None:
    driver = Cluster([single.members[0].address], port=CQL_PORT)
    made = driver.connect()
    made.execute(f"CREATE KEYSPACE without_functions {_REPLICATION}")
    made.set_keyspace("without_functions")
    with pytest.raises(InvalidRequest, match="User-defined functions are disabled"):
        create(made, "plus", "a int, b int", "int", "return a + b")
    driver.shutdown()


def test_the_workers_of_a_node_that_is_killed_end_with_it(tmp_path: Path) -> None:
    address = next(addresses())
    settings = "[functions]\nuser_defined_functions_enabled = true"
    with running(configured(tmp_path, address, settings)) as (process, _):
        driver = Cluster([address], port=CQL_PORT)
        made = driver.connect()
        made.execute(f"CREATE KEYSPACE ks {_REPLICATION}")
        made.set_keyspace("ks")
        made.execute("CREATE TABLE t (k int PRIMARY KEY)")
        create(made, "twice", "a int", "int", "a * 2")
        made.execute("INSERT INTO t (k) VALUES (twice(2))")
        assert [row[0] for row in made.execute("SELECT twice(k) FROM t")] == [8]
        workers = children(process.pid)
        assert len(workers) == 1
        process.kill()
        process.wait()
        driver.shutdown()
    deadline_s = time.monotonic() + 10
    while any(is_alive(worker) for worker in workers):
        assert time.monotonic() < deadline_s, "a worker has outlived its node"


def children(of: int) -> list[int]:
    text = Path(f"/proc/{of}/task/{of}/children").read_text()
    return [int(word) for word in text.split()]


def is_alive(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return status.exists() and "State:\tZ" not in status.read_text()
