"""The unmodified Python driver: handshake, types, paging, errors, tokens, versions of the protocol."""

from __future__ import annotations

import datetime
import decimal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import AlreadyExists, ConsistencyLevel, InvalidRequest, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.metadata import Murmur3Token
from cassandra.policies import FallthroughRetryPolicy
from cassandra.protocol import ConfigurationException, SyntaxException
from cassandra.query import BatchStatement, BatchType, SimpleStatement, tuple_factory
from cassandra.util import Date, Duration, Time

from lockstep.values.ids import CASSANDRA_RELEASE
from tests.server.parts import CQL_PORT, Nodes, nodes

SIMPLE = "WITH replication = {'class': 'SimpleStrategy', 'replication_factor': %d}"


def connect(cluster: Nodes, **settings: Any) -> Cluster:
    profile = ExecutionProfile(request_timeout=10, row_factory=tuple_factory)
    return Cluster(
        [cluster.members[0].address],
        port=CQL_PORT,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        **settings,
    )


@pytest.fixture(
    scope="module",
    params=[(5, True), (5, False), (4, True), (4, False)],
    ids=["v5-lz4", "v5", "v4-lz4", "v4"],
)
def session(three: Nodes, request: pytest.FixtureRequest) -> Iterator[Session]:
    version, compression = request.param
    driver = connect(three, protocol_version=version, compression=compression)
    made = driver.connect()
    keyspace = f"drivers_{version}_{int(compression)}"
    made.execute(f"CREATE KEYSPACE {keyspace} {SIMPLE % 3}")
    made.set_keyspace(keyspace)
    yield made
    driver.shutdown()


def test_all_hosts_are_known_and_up(three: Nodes, session: Session) -> None:
    hosts = session.cluster.metadata.all_hosts()
    assert sorted(host.address for host in hosts) == sorted(member.address for member in three.members)
    assert all(host.is_up for host in hosts)
    assert {host.release_version for host in hosts} == {CASSANDRA_RELEASE}
    assert session.cluster.metadata.partitioner == "org.apache.cassandra.dht.Murmur3Partitioner"


def test_the_topology_is_read_with_its_static_columns(three: Nodes, session: Session) -> None:
    rows = list(
        session.execute(
            "SELECT host_id, node_state, num_tokens, version, fence_version, upgrade_state, tokens "
            "FROM system.topology WHERE key = 'topology'"
        )
    )
    assert sorted(row[0] for row in rows) == sorted(h.host_id for h in session.cluster.metadata.all_hosts())
    for _host, state, count, version, fence, upgrade, tokens in rows:
        assert (state, upgrade) == ("normal", "done") and count == len(tokens) and 0 < fence <= version
    assert not list(session.execute("SELECT * FROM system.topology_requests"))


def test_generations_of_change_data_capture_are_read_by_a_driver(three: Nodes, session: Session) -> None:
    columns = "committed_cdc_generations, unpublished_cdc_generations"
    committed, unpublished = session.execute(f"SELECT {columns} FROM system.topology").one()
    ((time, id_),) = committed
    assert not unpublished
    ((shown, shown_id, expired, current, streams),) = session.execute(
        "SELECT time, id, expired, is_current, streams FROM system_views.cdc_timestamps"
    )
    assert (shown, shown_id, expired, current, streams) == (time, id_, None, True, 48) and id_.version == 1
    rows = list(session.execute("SELECT range_end, streams FROM system.cdc_generations_v3"))
    ring = session.cluster.metadata.token_map.ring
    assert [end for end, _ in rows] == sorted(token.value for token in ring)
    for end, (stream,) in rows:
        assert len(stream) == 16 and int.from_bytes(stream[:8], "big", signed=True) == end
    some = session.execute(
        "SELECT range_end FROM system_views.cdc_streams WHERE time = %s AND range_end > %s",
        (time, rows[40][0]),
    )
    assert [end for (end,) in some] == [end for end, _ in rows[41:]]


def test_writes_that_no_stream_can_take_are_refused_where_changes_are_captured(
    three: Nodes, session: Session
) -> None:
    session.execute("CREATE TABLE captured (k int PRIMARY KEY, v int) WITH cdc = true")
    session.execute("CREATE TABLE plain (k int PRIMARY KEY, v int)")
    now_us = three.members[0].node.runtime.clock.wall_us()
    texts = "INSERT INTO {} (k, v) VALUES (?, ?)", "INSERT INTO {} (k, v) VALUES (?, ?) USING TIMESTAMP ?"
    plain = session.prepare(texts[1].format("plain"))
    short, long = (session.prepare(text.format("captured")) for text in texts)
    session.execute(short, (1, 1))
    session.execute(long, (2, 2, now_us - 1))
    day_us = 86_400_000_000
    for offset_us, problem in ((day_us, "ahead of this server"), (-day_us, "no stream generation is known")):
        with pytest.raises(InvalidRequest, match=problem):
            session.execute(long, (3, 3, now_us + offset_us))
        for kind in (BatchType.LOGGED, BatchType.UNLOGGED):
            batch = BatchStatement(kind)
            batch.add(short, (4, 4))
            batch.add(long, (5, 5, now_us + offset_us))
            with pytest.raises(InvalidRequest, match=problem):
                session.execute(batch)
        session.execute(plain, (3, 3, now_us + offset_us))
    assert sorted(session.execute("SELECT k FROM captured")) == [(1,), (2,)]
    # Once the option is off, so is the check, also for what was prepared before.
    session.execute("ALTER TABLE captured WITH cdc = false")
    session.execute(long, (3, 3, now_us - day_us))
    session.execute("DROP TABLE captured")
    session.execute("DROP TABLE plain")


def test_driver_and_server_agree_on_every_replica(three: Nodes, session: Session) -> None:
    metadata = session.cluster.metadata
    keyspace = session.keyspace
    owners = three.members[0].node.log.cluster
    ring = owners.placements.ring(owners.schema.by_name[keyspace].group)
    assert len(metadata.token_map.ring) == 48
    for placed in ring.ranges:
        listed = metadata.token_map.get_replicas(keyspace, Murmur3Token(placed.range.right))
        expected = [owners.directory.by_id[node].address for node in placed.group.reads]
        assert [host.address for host in listed] == expected


VALUES: list[tuple[str, Any]] = [
    ("ascii", "plain"),
    ("bigint", -(2**62)),
    ("blob", b"\x00\xff"),
    ("boolean", True),
    ("date", Date(datetime.date(1969, 7, 20))),
    ("decimal", decimal.Decimal("-12.3400")),
    ("double", 1.5e300),
    ("duration", Duration(1, 2, 3)),
    ("float", 0.25),
    ("inet", "2001:db8::1"),
    ("int", -7),
    ("smallint", 300),
    ("text", "žluťoučký 🐴"),
    ("time", Time(86_399_999_999_999)),
    # The driver gives times without a zone, which are UTC.
    ("timestamp", datetime.datetime(2024, 2, 29, 12, 30, 1, 5000)),  # noqa: DTZ001
    ("timeuuid", uuid.UUID("5f3b5d6c-0c5e-11ef-9262-0242ac120002")),
    ("tinyint", -128),
    ("uuid", uuid.UUID(int=5)),
    ("varint", 2**100),
    ("list<int>", [3, 1, 2]),
    ("set<text>", {"a", "b"}),
    ("map<text, frozen<list<int>>>", {"a": [1], "b": []}),
    ("frozen<list<text>>", ["x"]),
    ("tuple<int, text>", (1, "one")),
    ("vector<float, 3>", [1.0, 2.0, 3.0]),
]


def test_values_of_every_type_come_back_as_they_were_sent(session: Session) -> None:
    columns = ", ".join(f"c{at} {kind}" for at, (kind, _) in enumerate(VALUES))
    session.execute(f"CREATE TABLE every_type (k int PRIMARY KEY, {columns})")
    names = ", ".join(f"c{at}" for at in range(len(VALUES)))
    marks = ", ".join("?" for _ in VALUES)
    insert = session.prepare(f"INSERT INTO every_type (k, {names}) VALUES (0, {marks})")
    session.execute(insert, [value for _, value in VALUES])
    session.execute(insert.bind([value for _, value in VALUES]))
    [row] = session.execute(f"SELECT {names} FROM every_type WHERE k = 0")
    for (kind, sent), received in zip(VALUES, row, strict=True):
        if kind == "set<text>":
            assert set(received) == sent, kind
        elif kind.startswith("map"):
            assert dict(received) == sent, kind
        else:
            assert received == sent, kind


@pytest.mark.parametrize("size", [1, 2, 7, 100, 5000])
def test_pages_together_are_the_whole_answer(session: Session, size: int) -> None:
    session.execute("CREATE TABLE IF NOT EXISTS paged (a int, b int, PRIMARY KEY (a, b))")
    insert = session.prepare("INSERT INTO paged (a, b) VALUES (?, ?)")
    for a in range(6):
        for b in range(10):
            session.execute(insert, (a, b))
    every = SimpleStatement("SELECT a, b FROM paged", fetch_size=size)
    rows = list(session.execute(every))
    assert sorted(rows) == [(a, b) for a in range(6) for b in range(10)]
    one = SimpleStatement("SELECT b FROM paged WHERE a = 3 ORDER BY b DESC LIMIT 8", fetch_size=size)
    assert list(session.execute(one)) == [(b,) for b in range(9, 1, -1)]
    several = SimpleStatement("SELECT a, b FROM paged WHERE a IN (5, 1, 4)", fetch_size=size)
    assert list(session.execute(several)) == [(a, b) for a in (1, 4, 5) for b in range(10)]
    tables = SimpleStatement("SELECT table_name FROM system_schema.tables", fetch_size=size)
    assert len(list(session.execute(tables))) == len(list(session.execute(tables.query_string)))


def test_a_paging_state_continues_on_another_node(three: Nodes, session: Session) -> None:
    session.execute("CREATE TABLE IF NOT EXISTS moved (a int PRIMARY KEY)")
    for a in range(20):
        session.execute("INSERT INTO moved (a) VALUES (%s)", (a,))
    rows: list[Any] = []
    state = None
    for turn in range(20):
        host = three.members[turn % 3].address
        chosen = session.cluster.metadata.get_host(host, CQL_PORT)
        statement = SimpleStatement(f"SELECT a FROM {session.keyspace}.moved", fetch_size=3)
        result = session.execute(statement, paging_state=state, host=chosen)
        rows += result.current_rows
        state = result.paging_state
        if state is None:
            break
    assert sorted(rows) == [(a,) for a in range(20)]


def test_batches_write_all_their_rows_within_the_limits_and_warn_as_clients_expect(session: Session) -> None:
    session.execute("CREATE TABLE batched (a int, b int, c text, PRIMARY KEY (a, b))")
    insert = session.prepare("INSERT INTO batched (a, b, c) VALUES (?, ?, ?)")

    def batch(kind: BatchType, partitions: int, text: str = "p") -> BatchStatement:
        made = BatchStatement(kind)
        for a in range(partitions):
            made.add(insert, (a, 0, text))
            made.add(f"INSERT INTO batched (a, b, c) VALUES ({a}, 99, 'q')")
        return made

    def warnings(made: BatchStatement) -> list[str]:
        return session.execute(made).response_future.warnings or []

    assert warnings(batch(BatchType.UNLOGGED, 10)) == warnings(batch(BatchType.LOGGED, 30)) == []
    assert len(list(session.execute("SELECT * FROM batched"))) == 60
    (told,) = warnings(batch(BatchType.UNLOGGED, 11))
    assert told.startswith("Unlogged batch covering 11 partitions detected against table [")
    (told,) = warnings(batch(BatchType.LOGGED, 3, "x" * 2000))
    assert "exceeding specified threshold of 5120 by" in told
    with pytest.raises(InvalidRequest, match="Batch too large"):
        session.execute(batch(BatchType.LOGGED, 3, "x" * 20_000))
    same = BatchStatement(BatchType.LOGGED)
    same.add(insert, (50, 1, "x" * 60_000))
    same.add("DELETE FROM batched WHERE a = 50 AND b = 2")
    assert not warnings(same)


def test_aggregates_and_functions(session: Session) -> None:
    session.execute("CREATE TABLE numbers (a int PRIMARY KEY, b int)")
    for a in range(1, 11):
        session.execute("INSERT INTO numbers (a, b) VALUES (%s, %s)", (a, a * a))
    assert session.execute("SELECT count(*), sum(b), min(b), max(b) FROM numbers").one() == (10, 385, 1, 100)
    assert session.execute("SELECT writetime(b) FROM numbers WHERE a = 1").one()[0] > 10**15


def test_the_clients_timestamp_wins_over_the_order_of_writes(session: Session) -> None:
    session.execute("CREATE TABLE stamped (a int PRIMARY KEY, b text)")
    insert = session.prepare("INSERT INTO stamped (a, b) VALUES (1, ?) USING TIMESTAMP ?")
    session.execute(insert, ("newer", 2_000))
    session.execute(insert, ("older", 1_000))
    assert session.execute("SELECT b FROM stamped WHERE a = 1").one() == ("newer",)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("SELEC * FROM system.local", SyntaxException),
        ("SELECT * FROM nowhere.t", InvalidRequest),
        ("SELECT nothing FROM system.local", InvalidRequest),
        ("CREATE KEYSPACE bad WITH replication = {'class': 'Nonsense'}", ConfigurationException),
        ("DROP TABLE nowhere.t", InvalidRequest),
        ("INSERT INTO system.local (key) VALUES ('x')", InvalidRequest),
        ("CREATE TABLE system.t (a int PRIMARY KEY)", InvalidRequest),
    ],
)
def test_errors_have_their_kind(session: Session, text: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        session.execute(text)


def test_a_taken_name_is_reported_with_it(session: Session) -> None:
    with pytest.raises(AlreadyExists) as found:
        session.execute(f"CREATE KEYSPACE {session.keyspace} {SIMPLE % 1}")
    assert found.value.keyspace == session.keyspace
    session.execute("CREATE TABLE taken (a int PRIMARY KEY)")
    with pytest.raises(AlreadyExists) as found:
        session.execute("CREATE TABLE taken (a int PRIMARY KEY)")
    assert (found.value.keyspace, found.value.table) == (session.keyspace, "taken")
    session.execute("CREATE TABLE IF NOT EXISTS taken (a int PRIMARY KEY)")


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("SELECT * FROM levels", ConsistencyLevel.ANY),
        ("SELECT * FROM levels WHERE a IN (1, 2)", ConsistencyLevel.SERIAL),
        ("INSERT INTO levels (a) VALUES (1)", ConsistencyLevel.SERIAL),
    ],
)
def test_levels_that_do_not_fit_are_invalid(session: Session, text: str, level: int) -> None:
    session.execute("CREATE TABLE IF NOT EXISTS levels (a int PRIMARY KEY)")
    with pytest.raises(InvalidRequest):
        session.execute(SimpleStatement(text, consistency_level=level))


@pytest.mark.parametrize("level", list(ConsistencyLevel.value_to_name))
def test_system_tables_answer_at_every_level(session: Session, level: int) -> None:
    statement = SimpleStatement("select * from SYSTEM.Local WHERE key='local'", consistency_level=level)
    assert len(list(session.execute(statement))) == 1


def test_schema_of_the_driver_follows_and_describes_what_was_made(session: Session) -> None:
    session.execute(
        "CREATE TABLE shaped (a int, b text, c set<int> static, d text, PRIMARY KEY ((a), b)) "
        "WITH CLUSTERING ORDER BY (b DESC) AND comment = 'a comment'"
    )
    table = session.cluster.metadata.keyspaces[session.keyspace].tables["shaped"]
    assert [column.name for column in table.primary_key] == ["a", "b"]
    assert table.clustering_key[0].is_reversed
    assert table.columns["c"].is_static
    assert table.options["comment"] == "a comment"
    text = table.export_as_string()
    session.execute("DROP TABLE shaped")
    assert "shaped" not in session.cluster.metadata.keyspaces[session.keyspace].tables
    session.execute("ALTER TABLE taken ADD more map<text, int>")
    assert "more" in session.cluster.metadata.keyspaces[session.keyspace].tables["taken"].columns
    assert "CLUSTERING ORDER BY (b DESC)" in text


def test_no_quorum_is_unavailable_and_tells_how_many(tmp_path_factory: pytest.TempPathFactory) -> None:
    with nodes(tmp_path_factory.mktemp("lonely"), 1) as cluster:
        driver = connect(cluster)
        try:
            session = driver.connect()
            session.execute(f"CREATE KEYSPACE wide {SIMPLE % 3}")
            session.execute("CREATE TABLE wide.t (a int PRIMARY KEY)")
            insert = SimpleStatement(
                "INSERT INTO wide.t (a) VALUES (1)", consistency_level=ConsistencyLevel.QUORUM
            )
            insert.retry_policy = FallthroughRetryPolicy()
            with pytest.raises(Unavailable) as found:
                session.execute(insert)
            assert (found.value.required_replicas, found.value.alive_replicas) == (2, 1)
        finally:
            driver.shutdown()
