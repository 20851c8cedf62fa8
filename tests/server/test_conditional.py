"""Conditional writes as the unmodified Python driver sees them: result sets, refusals, batches, reads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cassandra import (
    ConsistencyLevel,
    InvalidRequest,
    OperationTimedOut,
    ReadTimeout,
    Unavailable,
    WriteTimeout,
)
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.protocol import ErrorMessage
from cassandra.query import BatchStatement, SimpleStatement, dict_factory

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.server.metrics.exposition import conditional_samples
from lockstep.server.metrics.metric_table import text_of
from lockstep.values.ids import Consistency
from tests.server.parts import CQL_PORT, Nodes
from tests.server.wire_client import WireClient

_REPLICATION = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
_TABLES = (
    "CREATE TYPE u (a int, b text)",
    "CREATE TABLE plain (k int PRIMARY KEY, v int, w text)",
    "CREATE TABLE rows (k int, c int, s int static, v int, w text, PRIMARY KEY (k, c))",
    "CREATE TABLE other (k int PRIMARY KEY, v int)",
    "CREATE TABLE x (k int PRIMARY KEY, l list<int>, m map<text, int>, s set<int>, f frozen<list<int>>, "
    "o u, d duration, v int)",
    "CREATE TABLE counts (k int PRIMARY KEY, n counter)",
)


def _connected(three: Nodes, version: int, keyspace: str) -> tuple[Cluster, Session]:
    profile = ExecutionProfile(
        request_timeout=10,
        row_factory=dict_factory,
        consistency_level=ConsistencyLevel.QUORUM,
        serial_consistency_level=ConsistencyLevel.SERIAL,
    )
    driver = Cluster(
        [three.members[0].address],
        port=CQL_PORT,
        protocol_version=version,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
    )
    made = driver.connect()
    made.execute(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} {_REPLICATION}")
    made.set_keyspace(keyspace)
    return driver, made


@pytest.fixture(scope="module", params=[5, 4], ids=["v5", "v4"])
def session(three: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    driver, made = _connected(three, request.param, f"conditional_{request.param}")
    for text in _TABLES:
        made.execute(text)
    yield made
    driver.shutdown()


def told(session: Session, text: Any, *values: Any) -> list[dict[str, Any]]:
    return list(session.execute(text, values or None))


#: The driver has no class for it.
CAS_WRITE_UNKNOWN = 0x1700
YES = [{"[applied]": True}]
NO = [{"[applied]": False}]


def test_insert_once(session: Session) -> None:
    text = "INSERT INTO plain (k, v, w) VALUES (1, %s, 'a') IF NOT EXISTS"
    assert told(session, text, 1) == YES
    assert told(session, text, 2) == [{"[applied]": False, "k": 1, "v": 1, "w": "a"}]
    assert list(told(session, text, 2)[0]) == ["[applied]", "k", "v", "w"]
    assert told(session, "UPDATE plain SET v = 5 WHERE k = 1 IF v = 2") == [{"[applied]": False, "v": 1}]
    assert told(session, "UPDATE plain SET v = 5 WHERE k = 1 IF v = 1 AND w = 'a'") == YES
    assert told(session, "UPDATE plain SET v = 6 WHERE k = 1 IF w != 'a' AND v > 9") == [
        {"[applied]": False, "w": "a", "v": 5}
    ]
    assert told(session, "UPDATE plain SET v = 7 WHERE k = 2 IF EXISTS") == NO
    assert told(session, "UPDATE plain SET v = 7 WHERE k = 2 IF v = 3") == NO
    assert told(session, "UPDATE plain SET v = 7 WHERE k = 2 IF v = null") == YES
    assert told(session, "SELECT * FROM plain WHERE k = 2") == [{"k": 2, "v": 7, "w": None}]
    assert told(session, "DELETE FROM plain WHERE k = 2 IF v = 8") == [{"[applied]": False, "v": 7}]
    assert told(session, "DELETE FROM plain WHERE k = 2 IF EXISTS") == YES
    assert told(session, "DELETE FROM plain WHERE k = 2 IF EXISTS") == NO
    assert told(session, "INSERT INTO plain (k, v) VALUES (2, 1) IF NOT EXISTS USING TTL 1000") == YES
    ttl = told(session, "SELECT ttl(v) AS t FROM plain WHERE k = 2")[0]["t"]
    assert 990 < ttl <= 1000


def test_ends_are_counted(three: Nodes, session: Session) -> None:
    ended = [member.node.data.conditionals for member in three.members]

    def count(outcome: str) -> int:
        return sum(one.writes_ended.outcomes[outcome] for one in ended)

    done, not_met = count("done"), count("condition_not_met")
    assert told(session, "INSERT INTO plain (k, v) VALUES (900, 1) IF NOT EXISTS") == YES
    assert told(session, "UPDATE plain SET v = 2 WHERE k = 900 IF v = 9")[0]["[applied]"] is False
    assert (count("done"), count("condition_not_met")) == (done + 1, not_met + 1)
    reads = sum(one.reads_ended.outcomes["done"] for one in ended)
    serial = SimpleStatement("SELECT v FROM plain WHERE k = 900", consistency_level=ConsistencyLevel.SERIAL)
    assert told(session, serial) == [{"v": 1}]
    assert sum(one.reads_ended.outcomes["done"] for one in ended) == reads + 1
    text = text_of(conditional_samples(three.members[0].node.services)).decode()
    assert 'lockstep_conditional_requests_total{kind="write",outcome="condition_not_met"}' in text
    assert 'lockstep_conditional_contentions_bucket{kind="read",le="+Inf"}' in text


def test_rows_and_static_columns(session: Session) -> None:
    assert told(session, "INSERT INTO rows (k, s) VALUES (1, 1) IF NOT EXISTS") == YES
    assert told(session, "INSERT INTO rows (k, s) VALUES (1, 2) IF NOT EXISTS") == [
        {"[applied]": False, "k": 1, "c": None, "s": 1, "v": None, "w": None}
    ]
    assert told(session, "INSERT INTO rows (k, c, v) VALUES (1, 1, 1) IF NOT EXISTS") == YES
    assert told(session, "UPDATE rows SET s = 3 WHERE k = 1 IF s = 2") == [{"[applied]": False, "s": 1}]
    assert told(session, "UPDATE rows SET v = 2 WHERE k = 1 AND c = 1 IF s = 1 AND v = 1") == YES
    assert told(session, "UPDATE rows SET v = 2 WHERE k = 1 AND c = 1 IF s = 1 AND v = 1") == [
        {"[applied]": False, "v": 2, "s": 1}
    ]
    # Static columns that are neither written nor compared are not told, and make no row.
    assert told(session, "INSERT INTO rows (k, c, v) VALUES (1, 1, 1) IF NOT EXISTS") == [
        {"[applied]": False, "k": 1, "c": 1, "s": None, "v": 2, "w": None}
    ]
    assert told(session, "INSERT INTO rows (k, c, s) VALUES (1, 1, 1) IF NOT EXISTS")[0]["s"] == 1
    assert told(session, "UPDATE rows SET v = 1 WHERE k = 1 AND c = 7 IF EXISTS") == NO
    assert told(session, "UPDATE rows SET v = 1 WHERE k = 1 AND c = 7 IF v = 5") == NO
    assert told(session, "UPDATE rows SET v = 1 WHERE k = 1 AND c = 7 IF s = 5") == [
        {"[applied]": False, "s": 1}
    ]
    assert told(session, "UPDATE rows SET s = 9 WHERE k = 1 AND c = 1 IF v = 2") == YES
    assert told(session, "DELETE s FROM rows WHERE k = 1 IF s = 9") == YES
    assert told(session, "SELECT s, v FROM rows WHERE k = 1") == [{"s": None, "v": 2}]


def test_collections_and_fields(session: Session) -> None:
    session.execute(
        "INSERT INTO x (k, l, m, s, f, o, v) VALUES (1, [1, 2, 3], {'a': 1}, {4, 5}, [7], {a: 1, b: 'x'}, 1)"
    )
    cases = {
        "l = [1, 2, 3]": True,
        "l != [1, 2, 3]": False,
        "l > [1, 2]": True,
        "l[1] = 2": True,
        "l[1] IN (7, 2)": True,
        "l[9] = null": True,
        "l CONTAINS 3": True,
        "l CONTAINS 4": False,
        "m = {'a': 1}": True,
        "m['a'] = 1": True,
        "m['b'] = null": True,
        "m['a'] != null": True,
        "m CONTAINS 1": True,
        "m CONTAINS KEY 'b'": False,
        "s = {5, 4}": True,
        "s CONTAINS 6": False,
        "f = [7]": True,
        "f[0] = 7": True,
        "o = {a: 1, b: 'x'}": True,
        "o.a = 1": True,
        "o.b IN ('y', 'x')": True,
        "o.b = 'y'": False,
        "v IN (1, 2)": True,
        "v IN ()": False,
        "v < 1": False,
        "v <= 1 AND l[0] >= 1": True,
        "d = null": True,
    }
    for text, expected in cases.items():
        found = told(session, f"UPDATE x SET v = 1 WHERE k = 1 IF {text}")
        assert found[0]["[applied]"] is expected, text
    assert told(session, "UPDATE x SET v = 2 WHERE k = 1 IF l[0] = 5") == [
        {"[applied]": False, "l": [1, 2, 3]}
    ]
    session.execute("UPDATE x SET l = [] WHERE k = 1")
    assert told(session, "UPDATE x SET v = 1 WHERE k = 1 IF l = []") == YES
    assert told(session, "UPDATE x SET v = 1 WHERE k = 1 IF l = null") == YES
    for operator in ("<", "<=", ">", ">="):
        assert told(session, f"UPDATE x SET v = 1 WHERE k = 1 IF l {operator} [1]")[0]["[applied]"] is False
    assert told(session, "UPDATE x SET v = 1 WHERE k = 1 IF l != [1]") == YES


def test_lists_change_by_index_inside_the_decision(session: Session) -> None:
    session.execute("INSERT INTO x (k, l, v) VALUES (2, [1, 2], 0)")
    assert told(session, "UPDATE x SET l[1] = 9, v = 1 WHERE k = 2 IF v = 0") == YES
    assert told(session, "UPDATE x SET l[0] = 9, v = 1 WHERE k = 2 IF v = 0")[0]["[applied]"] is False
    assert told(session, "DELETE l[0] FROM x WHERE k = 2 IF v = 1") == YES
    assert told(session, "SELECT l FROM x WHERE k = 2") == [{"l": [9]}]


def test_bound_values(session: Session) -> None:
    insert = session.prepare("INSERT INTO plain (k, v, w) VALUES (?, ?, ?) IF NOT EXISTS")
    assert insert.routing_key_indexes == [0]
    assert told(session, insert.bind((10, 1, "a"))) == YES
    assert told(session, insert.bind((10, 1, "a"))) == [{"[applied]": False, "k": 10, "v": 1, "w": "a"}]
    update = session.prepare("UPDATE plain SET v = ? WHERE k = ? IF v IN ? AND w = ?")
    assert told(session, update.bind((2, 10, [5, 1], "a"))) == YES
    assert told(session, update.bind((2, 10, [5, 1], "a"))) == [{"[applied]": False, "v": 2, "w": "a"}]
    element = session.prepare("UPDATE x SET v = ? WHERE k = ? IF m[?] = ? AND o.a = ?")
    session.execute("INSERT INTO x (k, m, o) VALUES (3, {'a': 1}, {a: 4})")
    assert told(session, element.bind((2, 3, "a", 1, 4))) == YES
    assert told(session, element.bind((2, 3, "a", None, 4)))[0]["[applied]"] is False


def test_batches_of_one_partition(session: Session) -> None:
    batch = BatchStatement()
    batch.add("INSERT INTO rows (k, c, v) VALUES (5, 1, 1) IF NOT EXISTS")
    batch.add("INSERT INTO rows (k, c, v) VALUES (5, 2, 2)")
    assert told(session, batch) == YES
    assert told(session, batch) == [{"[applied]": False, "k": 5, "c": 1, "s": None, "v": 1, "w": None}]
    text = (
        "BEGIN BATCH UPDATE rows SET v = 8 WHERE k = 5 AND c = 1 IF v = 1; "
        "UPDATE rows SET v = 9 WHERE k = 5 AND c = 2 IF v = {}; APPLY BATCH"
    )
    assert told(session, text.format(7)) == [
        {"[applied]": False, "k": 5, "c": 1, "v": 1},
        {"[applied]": False, "k": 5, "c": 2, "v": 2},
    ]
    assert told(session, text.format(2)) == YES
    found = told(session, "SELECT c, v FROM rows WHERE k = 5")
    assert [(row["c"], row["v"]) for row in found] == [(1, 8), (2, 9)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("UPDATE plain SET v = 1 WHERE k = 1 IF k = 1", "PRIMARY KEY column 'k' cannot have IF conditions"),
        (
            "UPDATE plain USING TIMESTAMP 5 SET v = 1 WHERE k = 1 IF v = 1",
            "Cannot provide custom timestamp for conditional updates",
        ),
        (
            "UPDATE plain SET v = 1 WHERE k IN (1, 2) IF v = 1",
            "IN on the partition key is not supported with conditional updates",
        ),
        (
            "UPDATE rows SET v = 1 WHERE k = 1 AND c IN (1, 2) IF v = 1",
            "IN on the clustering key columns is not supported with conditional updates",
        ),
        (
            "DELETE FROM rows WHERE k = 1 IF EXISTS",
            "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to "
            "delete non static columns",
        ),
        (
            "DELETE s FROM rows WHERE k = 1 IF v = 1",
            "DELETE statements must restrict all PRIMARY KEY columns with equality relations in order to "
            "use IF condition on non static columns",
        ),
        ("UPDATE rows SET s = 1 WHERE k = 1 IF v = 1", "Some clustering keys are missing: c"),
        ("UPDATE plain SET v = 1 WHERE k = 1 IF v > null", 'Invalid comparison with null for operator ">"'),
        (
            "UPDATE x SET v = 1 WHERE k = 1 IF l >= []",
            'Invalid comparison with an empty list for operator ">="',
        ),
        ("UPDATE x SET v = 1 WHERE k = 1 IF v[0] = 1", "Invalid element access syntax for non-collection"),
        ("UPDATE x SET v = 1 WHERE k = 1 IF s[0] = 1", "Invalid element access syntax for set column s"),
        ("UPDATE x SET v = 1 WHERE k = 1 IF o.z = 1", "Unknown field z for column o"),
        ("UPDATE x SET v = 1 WHERE k = 1 IF m[null] = 1", "Invalid null value for map element access"),
        ("UPDATE x SET v = 1 WHERE k = 1 IF d > 1s", "Slice conditions ( > ) are not supported on durations"),
        ("UPDATE x SET v = 1 WHERE k = 1 IF zz = 1", "Undefined column name zz in table"),
        (
            "BEGIN BATCH USING TIMESTAMP 4 UPDATE plain SET v = 1 WHERE k = 1 IF v = 1; APPLY BATCH",
            "Cannot provide custom timestamp for conditional BATCH",
        ),
        (
            "BEGIN BATCH UPDATE plain SET v = 1 WHERE k = 1 IF v = 1; "
            "UPDATE plain SET v = 1 WHERE k = 2; APPLY BATCH",
            "Batch with conditions cannot span multiple partitions",
        ),
        (
            "BEGIN BATCH UPDATE plain SET v = 1 WHERE k = 1 IF v = 1; "
            "UPDATE other SET v = 1 WHERE k = 1; APPLY BATCH",
            "Batch with conditions cannot span multiple tables",
        ),
        (
            "BEGIN BATCH INSERT INTO plain (k) VALUES (1) IF NOT EXISTS; "
            "UPDATE plain SET v = 1 WHERE k = 1 IF EXISTS; APPLY BATCH",
            "Cannot mix IF EXISTS and IF NOT EXISTS conditions for the same row",
        ),
        (
            "UPDATE counts SET n = n + 1 WHERE k = 1 IF n = 1",
            "Conditional updates are not supported on counter tables",
        ),
    ],
)
def test_refusals(session: Session, text: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        session.execute(text)
    assert message in str(caught.value)


def test_serial_reads(session: Session) -> None:
    session.execute("INSERT INTO plain (k, v) VALUES (20, 1) IF NOT EXISTS")
    for level in (ConsistencyLevel.SERIAL, ConsistencyLevel.LOCAL_SERIAL):
        read = SimpleStatement("SELECT v FROM plain WHERE k = 20", consistency_level=level)
        assert told(session, read) == [{"v": 1}]
        scan = SimpleStatement("SELECT v FROM plain", consistency_level=level)
        assert {"v": 1} in told(session, scan)
        several = SimpleStatement("SELECT v FROM plain WHERE k IN (20, 21)", consistency_level=level)
        with pytest.raises(InvalidRequest, match="one partition at a time"):
            session.execute(several)
        write = SimpleStatement("UPDATE plain SET v = 2 WHERE k = 20", consistency_level=level)
        with pytest.raises(InvalidRequest):
            session.execute(write)
    local = SimpleStatement(
        "UPDATE plain SET v = 2 WHERE k = 20 IF v = 1",
        consistency_level=ConsistencyLevel.ONE,
        serial_consistency_level=ConsistencyLevel.LOCAL_SERIAL,
    )
    assert told(session, local) == YES
    for c in range(30):
        session.execute(f"INSERT INTO rows (k, c, v) VALUES (20, {c}, {c}) IF NOT EXISTS")
    pages = SimpleStatement(
        "SELECT v FROM rows WHERE k = 20", consistency_level=ConsistencyLevel.SERIAL, fetch_size=7
    )
    assert [row["v"] for row in session.execute(pages)] == list(range(30))


@pytest.mark.parametrize("version", [4, 5])
def test_a_serial_level_that_is_none_is_refused_where_it_counts(
    three: Nodes, session: Session, version: int
) -> None:
    with WireClient(three.members[0].address, CQL_PORT, version) as client:
        client.startup()

        def asked(text: str) -> wire.Body:
            parameters = QueryParameters(Consistency.ONE, (), serial_consistency=Consistency.ONE)
            return client.ask(Opcode.QUERY, wire.query(version, text, parameters))

        assert isinstance(asked("SELECT key FROM system.local"), wire.RowsResult)
        refused = asked(f"INSERT INTO {session.keyspace}.plain (k, v) VALUES (1, 1) IF NOT EXISTS")
        assert isinstance(refused, wire.ErrorResponse)
        assert (refused.code, refused.message[:43]) == (0x2200, "Invalid consistency for conditional update.")


def test_increments_of_many_clients(three: Nodes, session: Session) -> None:
    """Every one is counted once, whichever node it came through."""
    table = f"{session.keyspace}.plain"
    session.execute("INSERT INTO plain (k, v) VALUES (30, 0)")
    done: list[int] = []
    unknown: list[int] = []

    select = SimpleStatement(f"SELECT v FROM {table} WHERE k = 30", consistency_level=ConsistencyLevel.SERIAL)

    def work() -> None:
        counted = 0
        while counted < 15:
            try:
                seen = told(session, select)[0]["v"]
            except (ReadTimeout, OperationTimedOut, Unavailable):
                continue  # Nothing was written.
            try:
                found = told(session, f"UPDATE {table} SET v = {seen + 1} WHERE k = 30 IF v = {seen}")
            except Unavailable:
                continue
            except (WriteTimeout, OperationTimedOut):
                unknown.append(seen)
                continue
            except ErrorMessage as error:
                if error.code != CAS_WRITE_UNKNOWN:
                    raise
                unknown.append(seen)
                continue
            if found[0]["[applied]"]:
                done.append(seen)
                counted += 1

    with ThreadPoolExecutor(4) as pool:
        # A client that fails otherwise ends the test with its error.
        for worker in [pool.submit(work) for _ in range(4)]:
            worker.result()
    assert len(done) == len(set(done)) == 60
    last = told(session, "SELECT v FROM plain WHERE k = 30")[0]["v"]
    assert 60 <= last <= 60 + len(unknown)
