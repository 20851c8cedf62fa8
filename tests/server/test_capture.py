"""Change capture through the unmodified Python driver: what the log of a table says of what was written."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import Session
from cassandra.query import SimpleStatement

from tests.server.parts import Nodes
from tests.server.test_drivers import SIMPLE, connect

LOG = '"cdc$time", "cdc$batch_seq_no", "cdc$operation", "cdc$ttl", "cdc$end_of_batch"'
TABLETS = (
    "WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3} "
    "AND tablets = {'initial': 4}"
)
PRE, UPDATE, INSERT, ROW, PARTITION, POST = 0, 1, 2, 3, 4, 9


class Change(NamedTuple):
    time: uuid.UUID
    number: int
    operation: int
    ttl_s: int | None
    ends: bool | None
    values: tuple[Any, ...]


@pytest.fixture(scope="module", params=["captures", "tablets_captures", "tracked_captures"])
def session(three: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    """With a keyspace on the ring, then with one of tablets, then with a tracked one."""
    driver = connect(three)
    made = driver.connect()
    spread = TABLETS if request.param.startswith("tablets") else SIMPLE % 3
    tracked = " AND replication_type = 'tracked'" if request.param.startswith("tracked") else ""
    made.execute(f"CREATE KEYSPACE {request.param} {spread}{tracked}")
    made.set_keyspace(request.param)
    yield made
    driver.shutdown()


def changes(session: Session, table: str, *columns: str) -> list[Change]:
    """All of a table's log in the order of time."""
    named = ", ".join(f'"{column}"' for column in columns)
    text = f"SELECT {LOG}{', ' if columns else ''}{named} FROM {table}_scylla_cdc_log"
    found = [Change(*row[:5], tuple(row[5:])) for row in session.execute(text)]
    return sorted(found, key=lambda one: (one.time.time, one.time.bytes, one.number))


def told(session: Session, table: str, *columns: str) -> list[tuple[Any, ...]]:
    return [(one.operation, *one.values) for one in changes(session, table, *columns)]


def test_rows_partitions_and_ranges_are_told(session: Session) -> None:
    session.execute(
        "CREATE TABLE kinds (p int, c int, d text, v int, s int static, PRIMARY KEY (p, c, d)) "
        "WITH CLUSTERING ORDER BY (c DESC, d ASC) AND cdc = {'enabled': true}"
    )
    for text in (
        "INSERT INTO kinds (p, c, d, v) VALUES (1, 2, 'x', 3)",
        "UPDATE kinds USING TTL 60 SET v = 4 WHERE p = 1 AND c = 2 AND d = 'x'",
        "UPDATE kinds SET v = null WHERE p = 1 AND c = 2 AND d = 'x'",
        "UPDATE kinds SET s = 5 WHERE p = 1",
        "DELETE FROM kinds WHERE p = 1 AND c = 2 AND d = 'x'",
        "DELETE FROM kinds WHERE p = 1 AND c = 2",
        "DELETE FROM kinds WHERE p = 1 AND c > 2 AND c <= 7",
        "DELETE FROM kinds WHERE p = 1 AND c = 3 AND d >= 'a' AND d < 'b'",
        "DELETE FROM kinds WHERE p = 1 AND c < 7",
        "DELETE FROM kinds WHERE p = 1",
    ):
        session.execute(text)
    assert told(session, "kinds", "p", "c", "d", "v", "cdc$deleted_v", "s") == [
        (INSERT, 1, 2, "x", 3, None, None),
        (UPDATE, 1, 2, "x", 4, None, None),
        (UPDATE, 1, 2, "x", None, True, None),
        (UPDATE, 1, None, None, None, None, 5),
        (ROW, 1, 2, "x", None, None, None),
        (5, 1, 2, None, None, None, None),
        (7, 1, 2, None, None, None, None),
        (5, 1, 7, None, None, None, None),
        (7, 1, 3, None, None, None, None),
        (5, 1, 3, "a", None, None, None),
        (8, 1, 3, "b", None, None, None),
        (5, 1, 6, None, None, None, None),
        (7, 1, None, None, None, None, None),
        (PARTITION, 1, None, None, None, None, None),
    ]
    rows = changes(session, "kinds")
    assert [one.ttl_s for one in rows[:3]] == [None, 60, None]
    assert [one.number for one in rows] == [0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 1, 0, 1, 0]
    assert all(one.ends for one in rows if one.number or one.operation < 5)


def test_collections_are_told_by_what_changed(session: Session) -> None:
    session.execute("CREATE TYPE pair (a int, b text)")
    session.execute(
        "CREATE TABLE parts (k int PRIMARY KEY, m map<text, int>, s set<int>, l list<text>, u pair, "
        "f frozen<list<int>>) WITH cdc = {'enabled': true}"
    )
    session.execute(
        "INSERT INTO parts (k, m, s, l, u, f) VALUES (1, {'a': 1}, {1, 2}, ['x', 'y'], {a: 1, b: 'z'}, [3])"
    )
    session.execute("UPDATE parts SET m['b'] = 2, s = s + {3}, l = l + ['w'], u.b = null WHERE k = 1")
    session.execute("UPDATE parts SET m = m - {'a'}, s = s - {1}, l = l - ['x'] WHERE k = 1")
    session.execute("DELETE m, s, l, u, f FROM parts WHERE k = 1")
    wanted = [f"{prefix}{name}" for name in "msluf" for prefix in ("", "cdc$deleted_")]
    elements = [f"cdc$deleted_elements_{name}" for name in "mslu"]
    first, second, third, last = (one.values for one in changes(session, "parts", *wanted, *elements))
    assert dict(first[0]) == {"a": 1} and set(first[2]) == {1, 2} and list(first[4].values()) == ["x", "y"]
    assert tuple(first[6]) == (1, "z") and list(first[8]) == [3]
    assert first[1::2][:4] == (True, True, True, True) and first[9] is None
    assert dict(second[0]) == {"b": 2} and set(second[2]) == {3} and list(second[4].values()) == ["w"]
    assert second[1::2][:5] == (None,) * 5 and list(second[13]) == [1]
    assert set(third[10]) == {"a"} and set(third[11]) == {1}
    assert set(third[12]) == {key for key, value in first[4].items() if value == "x"}
    assert last[:10] == (None, True) * 5 and last[10:] == (None,) * 4


def test_states_before_and_after_are_told(session: Session) -> None:
    session.execute(
        "CREATE TABLE images (p int, c int, v int, w int, PRIMARY KEY (p, c)) "
        "WITH cdc = {'enabled': true, 'preimage': 'full', 'postimage': true}"
    )
    session.execute("INSERT INTO images (p, c, v, w) VALUES (1, 1, 2, 3)")
    session.execute("UPDATE images SET v = 4 WHERE p = 1 AND c = 1")
    session.execute("UPDATE images SET w = 5 WHERE p = 1 AND c = 1 IF v = 4")
    session.execute("DELETE FROM images WHERE p = 1 AND c = 1")
    assert told(session, "images", "c", "v", "w") == [
        (INSERT, 1, 2, 3),
        (POST, 1, 2, 3),
        (PRE, 1, 2, 3),
        (UPDATE, 1, 4, None),
        (POST, 1, 4, 3),
        (PRE, 1, 4, 3),
        (UPDATE, 1, None, 5),
        (POST, 1, 4, 5),
        (PRE, 1, 4, 5),
        (ROW, 1, None, None),
    ]
    session.execute("ALTER TABLE images WITH cdc = {'enabled': true, 'preimage': true, 'delta': 'keys'}")
    session.execute("INSERT INTO images (p, c, v, w) VALUES (2, 1, 2, 3)")
    session.execute("UPDATE images SET v = 4 WHERE p = 2 AND c = 1")
    assert told(session, "images", "p", "c", "v", "w")[-3:] == [
        (INSERT, 2, 1, None, None),
        (PRE, 2, 1, 2, None),
        (UPDATE, 2, 1, None, None),
    ]


def test_batches_and_conditional_writes_are_told_once(session: Session) -> None:
    session.execute(
        "CREATE TABLE many (k int, c int, v int, PRIMARY KEY (k, c)) WITH cdc = {'enabled': true}"
    )
    session.execute(
        "BEGIN BATCH INSERT INTO many (k, c, v) VALUES (1, 1, 1); "
        "INSERT INTO many (k, c, v) VALUES (1, 2, 2); "
        "UPDATE many SET v = 3 WHERE k = 2 AND c = 1; APPLY BATCH"
    )
    first = changes(session, "many", "k", "c", "v")
    assert sorted(one.values for one in first) == [(1, 1, 1), (1, 2, 2), (2, 1, 3)]
    assert len({one.time for one in first}) == 2, "one time a partition"
    assert session.execute("INSERT INTO many (k, c, v) VALUES (3, 1, 1) IF NOT EXISTS").one()[0]
    assert not session.execute("INSERT INTO many (k, c, v) VALUES (3, 1, 2) IF NOT EXISTS").one()[0]
    assert [one.values for one in changes(session, "many", "k", "c", "v")][3:] == [(3, 1, 1)]
    prepared = session.prepare("INSERT INTO many (k, c, v) VALUES (?, ?, ?) USING TIMESTAMP ?")
    at_us = max(one.time.time for one in first) // 10 - 0x01B21DD213814000 // 10 + 1000
    session.execute(prepared, (4, 1, 1, at_us))
    (found,) = [one for one in changes(session, "many", "k") if one.values == (4,)]
    assert found.time.time == at_us * 10 + 0x01B21DD213814000


def streams_of(session: Session, table: str) -> list[tuple[int, bytes]]:
    """The present streams with the ends of their ranges, as clients of ScyllaDB ask for them."""
    named = (session.keyspace, table)
    spread = session.execute(
        "SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = %s", named[:1]
    ).one()
    if spread is not None:
        of_table = "WHERE keyspace_name = %s AND table_name = %s"
        times = [
            row[0]
            for row in session.execute(f"SELECT timestamp FROM system.cdc_timestamps {of_table}", named)
        ]
        (last,) = session.execute(
            f"SELECT timestamp FROM system.cdc_timestamps {of_table} AND timestamp <= %s "
            "ORDER BY timestamp DESC LIMIT 1",
            (*named, datetime.datetime.now(datetime.UTC)),
        ).one()
        (least,) = session.execute(
            f"SELECT min(timestamp) FROM system.cdc_timestamps {of_table} AND timestamp > %s "
            "ORDER BY timestamp ASC LIMIT 1",
            (*named, datetime.datetime(1970, 1, 2, tzinfo=datetime.UTC)),
        ).one()
        assert times == [last] == [least]
        texts = {
            state: session.execute(
                f"SELECT stream_id FROM system.cdc_streams {of_table} AND timestamp = %s "
                "AND stream_state = %s",
                (*named, last, state),
            )
            for state in (0, 1, 2)
        }
        listed = {state: [row[0] for row in rows] for state, rows in texts.items()}
        assert listed[1] == [] and listed[0] == listed[2]
        found = [(int.from_bytes(stream[:8], "big", signed=True), stream) for stream in listed[0]]
        return sorted(found)
    (time,) = session.execute(
        "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"
    ).one()
    rows = session.execute(
        "SELECT range_end, streams FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = %s",
        (time,),
    )
    return [(end, stream) for end, held in rows for stream in held]


def test_streams_lie_where_clients_of_scylla_look(session: Session) -> None:
    session.execute("CREATE TABLE found (k int PRIMARY KEY, v int) WITH cdc = {'enabled': true, 'ttl': 100}")
    for k in range(50):
        session.execute("INSERT INTO found (k, v) VALUES (%s, %s)", (k, k))
    streams = streams_of(session, "found")
    ends = [end for end, _ in streams]
    keys = []
    for at, (end, stream) in enumerate(streams):
        text = (
            'SELECT k, ttl(v), token("cdc$stream_id") FROM found_scylla_cdc_log '
            'WHERE "cdc$stream_id" = %s BYPASS CACHE'
        )
        for k, ttl_s, token in session.execute(text, (stream,)):
            assert token == end and 0 < ttl_s <= 100
            (own,) = session.execute("SELECT token(k) FROM found WHERE k = %s", (k,)).one()
            assert (ends[at - 1] < own <= end) if at else (own <= end or own > ends[-1])
            keys.append(k)
    assert sorted(keys) == list(range(50))
    named = session.execute(
        "SELECT partitioner FROM system_schema.scylla_tables WHERE keyspace_name = %s "
        "AND table_name = 'found_scylla_cdc_log'",
        (session.keyspace,),
    ).one()
    assert named == ("com.scylladb.dht.CDCPartitioner",)


def test_what_cannot_be_captured_is_refused_with_the_reason(session: Session) -> None:
    on = "WITH cdc = {'enabled': true}"
    for text, reason in (
        (f"CREATE TABLE no (k int PRIMARY KEY, v counter) {on}", "it counts"),
        (f'CREATE TABLE no (k int PRIMARY KEY, "cdc$x" int) {on}', "a name of the log"),
        ("CREATE TABLE no_scylla_cdc_log (k int PRIMARY KEY)", "those of logs"),
        ("CREATE TABLE no (k int PRIMARY KEY) WITH cdc = {'enabled': true, 'delta': 'off'}", "full and keys"),
        ("CREATE TABLE no (k int PRIMARY KEY) WITH cdc = {'on': true}", "Invalid CDC option"),
    ):
        with pytest.raises(Exception, match=reason):
            session.execute(text)
    session.execute(f"CREATE TABLE yes (k int PRIMARY KEY, v int) {on}")
    for text, reason in (
        ("DROP TABLE yes_scylla_cdc_log", "cannot be dropped alone"),
        ("ALTER TABLE yes_scylla_cdc_log ADD x int", "cannot be altered alone"),
        ("TRUNCATE yes_scylla_cdc_log", "cannot be emptied alone"),
        ('INSERT INTO yes_scylla_cdc_log ("cdc$stream_id") VALUES (0x00)', "directly modify"),
        ("CREATE INDEX ON yes_scylla_cdc_log (v)", "is a log of changes"),
        ('ALTER TABLE yes ADD "cdc$y" int', "a name of the log"),
    ):
        with pytest.raises(Exception, match=reason):
            session.execute(text)
    session.execute("ALTER TABLE yes ADD w text")
    session.execute("INSERT INTO yes (k, v, w) VALUES (1, 2, 'x')")
    session.execute("ALTER TABLE yes DROP v")
    session.execute("INSERT INTO yes (k, w) VALUES (2, 'y')")
    assert told(session, "yes", "k", "w") == [(INSERT, 1, "x"), (INSERT, 2, "y")]
    with pytest.raises(InvalidRequest):
        session.execute("SELECT v FROM yes_scylla_cdc_log")
    described = session.execute("DESCRIBE TABLE yes").one()
    assert "cdc = {'delta': 'full', 'enabled': 'true'" in described[3]
    session.execute("ALTER TABLE yes WITH cdc = {'enabled': false}")
    session.execute(SimpleStatement("INSERT INTO yes (k, w) VALUES (3, 'z')"))
    assert len(told(session, "yes", "k")) == 2
    session.execute("DROP TABLE yes")
    with pytest.raises(InvalidRequest):
        session.execute("SELECT * FROM yes_scylla_cdc_log")


def test_a_range_is_told_by_bounds_that_mean_its_rows(session: Session) -> None:
    session.execute(
        "CREATE TABLE ends (p int, c boolean, d int, PRIMARY KEY (p, c, d)) WITH cdc = {'enabled': true}"
    )
    session.execute("DELETE FROM ends WHERE p = 1 AND c > false")
    session.execute("DELETE FROM ends WHERE p = 1 AND c = true AND d > 255 AND d < 4096")
    assert told(session, "ends", "c", "d") == [
        (5, True, None),
        (7, None, None),
        (6, True, 255),
        (8, True, 4096),
    ]
