"""User-defined types as the unmodified Python driver and cqlsh see them."""

from __future__ import annotations

import subprocess
import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, ResponseFuture, Session
from cassandra.query import tuple_factory

from lockstep.cql.wire import client as wire
from tests.server.parts import CQL_PORT, Nodes
from tests.server.wire_client import WireClient

_REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
Point = namedtuple("Point", "x y")
Place = namedtuple("Place", "label at others")


def connect(cluster: Nodes, member: int = 0, **settings: Any) -> Cluster:
    profile = ExecutionProfile(request_timeout=10, row_factory=tuple_factory)
    return Cluster(
        [cluster.members[member].address],
        port=CQL_PORT,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        **settings,
    )


@pytest.fixture(scope="module", params=[5, 4, 3], ids=["v5", "v4", "v3"])
def session(three: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    driver = connect(three, protocol_version=request.param)
    made = driver.connect()
    keyspace = f"user_types_{request.param}"
    made.execute(f"CREATE KEYSPACE {keyspace} {_REPLICATION}")
    made.set_keyspace(keyspace)
    made.execute("CREATE TYPE point (x int, y int)")
    made.execute("CREATE TYPE place (label text, at frozen<point>, others list<frozen<point>>)")
    made.execute(
        "CREATE TABLE t (k frozen<point>, c frozen<place>, p point, "
        "m map<text, frozen<place>>, s set<frozen<point>>, u frozen<tuple<int, point>>, PRIMARY KEY (k, c))"
    )
    driver.register_user_type(keyspace, "point", Point)
    driver.register_user_type(keyspace, "place", Place)
    yield made
    driver.shutdown()


def test_prepared_and_plain_values_come_back_as_the_registered_class(session: Session) -> None:
    place = Place("here", Point(1, None), [Point(2, 3)])
    row = (
        Point(0, 0),
        place,
        Point(None, 4),
        {"a": place, "b": Place(None, None, None)},
        {Point(1, 1), Point(0, 5)},
        (1, Point(7, 8)),
    )
    names = "k, c, p, m, s, u"
    insert = session.prepare(f"INSERT INTO t ({names}) VALUES (?, ?, ?, ?, ?, ?)")
    session.execute(insert, row)
    plain = (Point(1, 0), *row[1:5], (1, Point(7, 8)))
    marks = "%s, %s, %s, %s, %s, (1, {x: 7, y: 8})"
    session.execute(f"INSERT INTO t ({names}) VALUES ({marks})", plain[:5])
    for wanted in (row, plain):
        select = session.prepare(f"SELECT {names} FROM t WHERE k = ? AND c = ?")
        [found] = session.execute(select, wanted[:2])
        assert type(found[0]) is Point and type(found[1].at) is Point
        assert found[:3] == wanted[:3]
        # A list without elements is sent for a null one inside a collection.
        assert found[3]["a"] == place and found[3]["b"].label is None
        assert set(found[4]) == wanted[4]
        assert found[5] == wanted[5]


def test_fields_are_written_and_read_one_by_one(session: Session) -> None:
    session.execute("CREATE TABLE f (k int PRIMARY KEY, p point)")
    set_field = session.prepare("UPDATE f SET p.y = ? WHERE k = ?")
    assert [(column.name, column.type.typename) for column in set_field.column_metadata] == [
        ("p.y", "int"),
        ("k", "int"),
    ]
    session.execute("INSERT INTO f (k, p) VALUES (1, {x: 1, y: 2})")
    session.execute(set_field, (3, 1))
    assert list(session.execute("SELECT p, p.x, p.y FROM f")) == [(Point(1, 3), 1, 3)]
    session.execute("DELETE p.x FROM f WHERE k = 1")
    assert list(session.execute("SELECT p FROM f")) == [(Point(None, 3),)]
    session.execute(set_field, (None, 1))
    assert list(session.execute("SELECT k, p FROM f")) == [(1, None)]


def test_the_driver_knows_the_types_and_what_it_exports_makes_them_again(session: Session) -> None:
    metadata = session.cluster.metadata
    known = metadata.keyspaces[session.keyspace].user_types
    assert (known["point"].field_names, known["point"].field_types) == (["x", "y"], ["int", "int"])
    assert known["place"].field_types == ["text", "frozen<point>", "list<frozen<point>>"]
    copy = f"{session.keyspace}_copy"
    exported = metadata.keyspaces[session.keyspace].export_as_string().replace(session.keyspace, copy)
    for statement in exported.split(";"):
        if statement.strip():
            session.execute(statement)
    again = metadata.keyspaces[copy]
    assert sorted(again.user_types) == ["place", "point"]
    assert again.tables["t"].columns["m"].cql_type == "map<text, frozen<place>>"
    described = list(session.execute(f"DESCRIBE KEYSPACE {copy}"))
    assert [(row[1], row[2]) for row in described][:3] == [
        ("keyspace", copy),
        ("type", "point"),
        ("type", "place"),
    ]
    session.execute(f"DROP KEYSPACE {copy}")
    for row in described:
        session.execute(row[3])
    assert list(session.execute(f"DESCRIBE KEYSPACE {copy}")) == described
    assert next(iter(session.execute(f"DESCRIBE TYPE {copy}.point")))[3] == (
        f"CREATE TYPE {copy}.point (\n    x int,\n    y int\n);"
    )
    session.execute(f"USE {copy}")
    assert [row[2] for row in session.execute("DESCRIBE TYPES")] == ["place", "point"]
    session.execute(f"USE {session.keyspace.removesuffix('_copy')}")
    session.execute(f"DROP KEYSPACE {copy}")


def test_a_prepared_statement_follows_a_type_that_grew(three: Nodes, session: Session) -> None:
    session.execute("CREATE TYPE grown (a int)")
    session.execute("CREATE TABLE g (k int PRIMARY KEY, v frozen<grown>, w grown)")
    insert = session.prepare("INSERT INTO g (k, v, w) VALUES (?, ?, ?)")
    select = session.prepare("SELECT v, w FROM g WHERE k = ?")
    session.execute(insert, (1, (1,), (1,)))
    other = connect(three, 1, protocol_version=session.cluster.protocol_version)
    elsewhere = other.connect(session.keyspace)
    elsewhere.execute("ALTER TYPE grown ADD b text")
    elsewhere.execute("UPDATE g SET w.b = 'x' WHERE k = 1")
    other.shutdown()
    # Rows of the new shape reach a client that has prepared for the old one.
    [row] = session.execute(select, (1,))
    assert tuple(row[1])[-1:] == ("x",) or session.cluster.protocol_version < 5
    again = session.prepare("SELECT v, w FROM g WHERE k = ?")
    assert [tuple(map(tuple, row)) for row in session.execute(again, (1,))] == [((1, None), (1, "x"))]
    session.prepare("INSERT INTO g (k, v, w) VALUES (?, ?, ?)")
    session.execute(insert, (2, (2,), (2,)))
    session.execute("ALTER TYPE grown RENAME a TO first")
    assert list(session.execute("SELECT w.first, v.first FROM g WHERE k = 2")) == [(2, 2)]
    assert session.cluster.metadata.keyspaces[session.keyspace].user_types["grown"].field_names == [
        "first",
        "b",
    ]


def test_events_and_refusals_name_the_type(session: Session) -> None:
    session.execute("CREATE TYPE IF NOT EXISTS gone (a int)")
    session.execute("CREATE TYPE IF NOT EXISTS gone (a int)")
    with pytest.raises(InvalidRequest, match="A user type with name 'gone' already exists"):
        session.execute("CREATE TYPE gone (a int)")
    session.execute("CREATE TABLE uses_gone (k int PRIMARY KEY, v frozen<gone>)")
    with pytest.raises(
        InvalidRequest, match=r"Cannot drop user type '\w+\.gone' as it is still used by tables"
    ):
        session.execute("DROP TYPE gone")
    session.execute("DROP TABLE uses_gone")
    session.execute("DROP TYPE gone")
    assert "gone" not in session.cluster.metadata.keyspaces[session.keyspace].user_types
    session.execute("DROP TYPE IF EXISTS gone")
    with pytest.raises(InvalidRequest, match=r"Type '\w+\.gone' doesn't exist"):
        session.execute("ALTER TYPE gone ADD b int")


def test_of_a_table_and_the_end_of_its_type_one_wins_on_whatever_nodes(three: Nodes) -> None:
    drivers = [connect(three, member) for member in (0, 1)]
    one, other = (driver.connect() for driver in drivers)
    one.execute(f"CREATE KEYSPACE racing {_REPLICATION}")
    losses = []
    for turn in range(12):
        one.execute(f"CREATE TYPE racing.u{turn} (a int)")
        made = one.execute_async(f"CREATE TABLE racing.t{turn} (k int PRIMARY KEY, v frozen<u{turn}>)")
        gone = other.execute_async(f"DROP TYPE racing.u{turn}")
        lost = [_refusal(future) for future in (made, gone)]
        assert lost.count(None) == 1, lost
        losses += [words for words in lost if words is not None]
        space = three.members[2].node.log.cluster.schema.by_name["racing"]
        assert (f"t{turn}" in space.by_name) == (f"u{turn}" in space.types_by_name)
    for words in losses:
        assert "Unknown type racing.u" in words or "as it is still used by tables [t" in words
    for driver in drivers:
        driver.shutdown()


def _refusal(future: ResponseFuture) -> str | None:
    try:
        future.result()
    except InvalidRequest as error:
        return str(error)
    return None


def test_answers_have_every_field(three: Nodes) -> None:
    """As those of Cassandra: drivers tell a field that is null from one that a value does not have."""
    whole = bytes.fromhex("0000000400000001ffffffff")
    with connect(three) as driver, driver.connect() as made:
        made.execute(f"CREATE KEYSPACE whole {_REPLICATION}")
        made.execute("CREATE TYPE whole.point (x int, y int)")
        made.execute(
            "CREATE TABLE whole.t (k int, c int, f frozen<point>, p point, l list<frozen<point>>, "
            "PRIMARY KEY (k, c))"
        )
        for at in range(150):
            made.execute(
                f"INSERT INTO whole.t (k, c, f, p, l) VALUES (1, {at}, {{x: 1}}, {{x: 1}}, [{{x: 1}}])"
            )
        with WireClient(three.members[0].address, CQL_PORT) as client:
            client.startup()
            for text, count in (
                ("SELECT f, p, l FROM whole.t WHERE k = 1 AND c = 7", 1),
                ("SELECT f, p, l FROM whole.t WHERE k = 1", 150),
                ("SELECT f FROM whole.t WHERE k = 1", 150),
                ("SELECT f FROM whole.t", 150),
                ("SELECT f, p, l FROM whole.t WHERE k = 1 AND c > 20 AND c < 40 ORDER BY c DESC", 19),
                ("SELECT max(f), max(l) FROM whole.t", 1),
            ):
                answer = client.query(text)
                assert isinstance(answer, wire.RowsResult)
                assert len(answer.rows) == count
                assert {cell for row in answer.rows for cell in row} <= {whole, b"\0\0\0\1\0\0\0\x0c" + whole}
            refused = client.query("UPDATE whole.t SET f = {x: 2} WHERE k = 1 AND c = 1 IF f = null")
            assert isinstance(refused, wire.RowsResult)
            assert [tuple(row) for row in refused.rows] == [(b"\0", whole)]
        made.execute("DROP KEYSPACE whole")


def test_cqlsh_shows_values_and_describes_types(session: Session) -> None:
    session.execute("CREATE TABLE shown (k int PRIMARY KEY, p frozen<place>)")
    session.execute("INSERT INTO shown (k, p) VALUES (1, {label: 'a', at: {x: 1}})")
    address = session.cluster.contact_points[0]
    script = f"SELECT p FROM {session.keyspace}.shown; DESCRIBE TYPE {session.keyspace}.place;"
    done = subprocess.run(
        [str(Path(sys.executable).parent / "cqlsh"), address, str(CQL_PORT), "-e", script],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "{label: 'a', at: {x: 1, y: null}, others: null}" in done.stdout
    assert f"CREATE TYPE {session.keyspace}.place (\n    label text,\n    at frozen<point>,\n" in done.stdout
