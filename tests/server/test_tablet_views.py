"""What virtual tables and the admin API show of tables with tablets, compared with the metadata."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from cassandra.cluster import Cluster, Session
from cassandra.protocol import ConfigurationException

from lockstep.server.admin.tablet_migrations import MigrationRequests
from lockstep.server.reports import documents
from lockstep.values.errors import ConfigurationError
from tests.server.parts import CQL_PORT, Nodes


@pytest.fixture(scope="module")
def session(three: Nodes) -> Iterator[Session]:
    cluster = Cluster([three.members[0].address], port=CQL_PORT)
    session = cluster.connect()
    session.execute(
        "CREATE KEYSPACE shown "
        "WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 2} "
        "AND tablets = {'enabled': true, 'initial': 4}"
    )
    session.execute("CREATE TABLE shown.t (a int, b int, v int, PRIMARY KEY (a, b))")
    session.execute(
        "CREATE MATERIALIZED VIEW shown.w AS SELECT * FROM shown.t "
        "WHERE a IS NOT NULL AND b IS NOT NULL AND v IS NOT NULL PRIMARY KEY (a, v, b)"
    )
    insert = session.prepare("INSERT INTO shown.t (a, b, v) VALUES (?, 1, 2)")
    for key in range(50):
        session.execute(insert, (key,))
    yield session
    cluster.shutdown()


def hosts(three: Nodes) -> dict[int, uuid.UUID]:
    nodes = three.members[0].node.log.cluster.directory.nodes
    return {info.id: uuid.UUID(info.host_id) for info in nodes}


def test_system_tablets_has_each_tablet_of_each_table(three: Nodes, session: Session) -> None:
    cluster = three.members[0].node.log.cluster
    base = cluster.schema.table("shown", "t")
    assert base is not None
    known = hosts(three)
    expected = [
        (tablet.right, [(known[node], shard) for node, shard in tablet.replicas])
        for tablet in cluster.tablets.by_group[base.group].map(cluster.placements).tablets()
    ]
    for name, lies_with in (("t", None), ("w", uuid.UUID(base.uuid))):
        table = cluster.schema.table("shown", name)
        assert table is not None
        rows = list(
            session.execute("SELECT * FROM system.tablets WHERE table_id = %s", (uuid.UUID(table.uuid),))
        )
        assert [(row.last_token, row.replicas) for row in rows] == expected
        assert {(row.keyspace_name, row.table_name, row.tablet_count) for row in rows} == {("shown", name, 4)}
        assert {row.base_table for row in rows} == {lies_with}
        assert {(row.new_replicas, row.stage, row.transition, row.session) for row in rows} == {(None,) * 4}
    two = session.execute(
        "SELECT last_token FROM system.tablets WHERE table_id = %s AND last_token > %s",
        (uuid.UUID(base.uuid), expected[1][0]),
    )
    assert [row.last_token for row in two] == [right for right, _ in expected[2:]]
    missing = session.execute("SELECT * FROM system.tablets WHERE table_id = %s", (uuid.uuid4(),))
    assert not list(missing)
    all_of_them = session.execute("SELECT table_name FROM system.tablets")
    assert {"t", "w"} <= {row.table_name for row in all_of_them}


def test_lists_of_racks_are_described_as_they_are_written(three: Nodes, session: Session) -> None:
    (rack,) = {info.rack for info in three.members[0].node.log.cluster.directory.nodes}
    made = f"{{'class': 'NetworkTopologyStrategy', 'dc1': ['{rack}']}}"
    session.execute(f"CREATE KEYSPACE listed WITH replication = {made} AND tablets = {{'initial': 2}}")
    session.execute("CREATE TABLE listed.t (a int PRIMARY KEY)")
    first = [row.create_statement for row in session.execute("DESCRIBE KEYSPACE listed")]
    assert f"replication = {made} " in first[0]
    session.execute("DROP KEYSPACE listed")
    for statement in first:
        session.execute(statement)
    again = [row.create_statement for row in session.execute("DESCRIBE KEYSPACE listed")]
    assert [text.partition(" WITH ID")[0] for text in again] == [
        text.partition(" WITH ID")[0] for text in first
    ]
    shown = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = 'listed'"
    assert dict(session.execute(shown).one().replication)["dc1"] == "1", "drivers know numbers"
    number = "ALTER KEYSPACE listed WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1}"
    session.execute(number)
    assert "'dc1': '1'" in session.execute("DESCRIBE KEYSPACE listed").one().create_statement
    session.execute(f"ALTER KEYSPACE listed WITH replication = {made}")
    assert f"['{rack}']" in session.execute("DESCRIBE KEYSPACE listed").one().create_statement
    for wrong, reason in (("['nowhere']", "no node of rack nowhere"), (f"['{rack}', '{rack}']", "twice")):
        with pytest.raises(ConfigurationException, match=reason):
            session.execute(number.replace(": 1}", f": {wrong}}}"))
    session.execute("DROP KEYSPACE listed")


def test_sizes_and_loads_are_what_nodes_say(three: Nodes, session: Session) -> None:
    cluster = three.members[0].node.log.cluster
    base = cluster.schema.table("shown", "t")
    assert base is not None
    sizes = session.execute("SELECT * FROM system.tablet_sizes WHERE table_id = %s", (uuid.UUID(base.uuid),))
    rows = list(sizes)
    assert len(rows) == 4
    assert all(len(row.replicas) == 2 and not row.missing_replicas for row in rows)
    assert sum(size for row in rows for size in row.replicas.values()) > 0
    loads = list(session.execute("SELECT * FROM system.load_per_node"))
    assert {load.node for load in loads} == set(hosts(three).values())
    assert all(load.up and load.storage_load is not None for load in loads)
    assert all(load.storage_capacity > 0 and load.cpu >= 0 for load in loads)
    assert all(load.storage_utilization == load.storage_load / load.storage_capacity for load in loads)
    assert {load.ip for load in loads} == {info.address for info in cluster.directory.nodes}
    held = [
        node
        for group in cluster.tablets.groups
        for placed in cluster.placements.ring(group.id).ranges
        for node in placed.group.reads
    ]
    assert {load.node_id: load.tablets_allocated for load in loads} == {
        n: held.count(n) for n in hosts(three)
    }


def test_placements_are_those_of_tables(three: Nodes, session: Session) -> None:
    rows = list(session.execute("SELECT * FROM system_views.placements WHERE keyspace_name = 'shown'"))
    assert sorted(row.table_name for row in rows) == ["t"] * 4 + ["w"] * 4
    assert all(len(row.read_replicas) == 2 for row in rows)
    everything = list(session.execute("SELECT * FROM system_views.placements"))
    assert len(everything) >= len(rows)
    node = three.members[0].node
    told = documents.placements(node, "shown", "t")
    assert (told.table, len(told.ranges)) == ("t", 4)
    assert [one.reads for one in told.ranges] == [
        tuple(row.read_replicas) for row in rows if row.table_name == "t"
    ]
    with pytest.raises(ConfigurationError, match="each of its tables has ranges of its own"):
        documents.placements(node, "shown")
    with pytest.raises(ConfigurationError, match=r"there is no table shown\.x"):
        documents.placements(node, "shown", "x")


def test_the_topology_says_whether_tablets_are_balanced(three: Nodes, session: Session) -> None:
    rows = session.execute("SELECT tablet_balancing_enabled, shard_count FROM system.topology")
    balanced = three.members[0].node.log.cluster.tablets.is_balanced
    assert {tuple(row) for row in rows} == {(balanced, 1)}


def test_a_cluster_is_described_from_a_keyspace_with_tablets(session: Session) -> None:
    session.set_keyspace("shown")
    assert session.execute("DESCRIBE CLUSTER").one().cluster


def test_the_replication_of_tables_with_tablets_is_altered(three: Nodes, session: Session) -> None:
    alter = "ALTER KEYSPACE shown WITH replication = {{'class': '{}', '{}': {}}}"
    network, dc = "NetworkTopologyStrategy", three.members[0].node.log.cluster.directory.nodes[0].dc
    with pytest.raises(ConfigurationException, match="tablets need NetworkTopologyStrategy"):
        session.execute(alter.format("SimpleStrategy", "replication_factor", 2))
    with pytest.raises(ConfigurationException, match="each tablet of keyspace shown would have 4 replicas"):
        session.execute(alter.format(network, dc, 4))
    session.execute(alter.format(network, dc, 2))
    assert not three.members[0].node.log.cluster.requests.live
    for factor in (3, 1, 2):
        session.execute(alter.format(network, dc, factor) + " AND tablets = {'enabled': true}")
        rows = session.execute(
            "SELECT read_replicas FROM system_views.placements WHERE keyspace_name = 'shown'"
        )
        assert {len(row.read_replicas) for row in rows} == {factor}
        described = session.execute("DESCRIBE KEYSPACE shown").one().create_statement
        assert f"'{dc}': '{factor}'" in described


def test_a_keyspace_goes_from_the_ring_to_tablets_and_back(three: Nodes, session: Session) -> None:
    network = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 2}"
    session.execute(f"CREATE KEYSPACE ringed WITH replication = {network}")
    session.execute("CREATE TABLE ringed.t (a int PRIMARY KEY, v int)")
    session.execute("CREATE INDEX ON ringed.t (v)")
    insert = session.prepare("INSERT INTO ringed.t (a, v) VALUES (?, ?)")
    read = session.prepare("SELECT v FROM ringed.t WHERE a = ?")
    migrations = MigrationRequests(three.members[0].node.services)
    for at, (step, state) in enumerate(
        (("start", "on its way"), ("rollback", "ring"), ("start", "on its way"), ("finalize", "tablets"))
    ):
        for key in range(40):
            session.execute(insert, (key, at))
        told = three.call(migrations.migrate({"keyspace": "ringed", "step": step}))
        assert (told.state, told.apart, told.tables) == (state, 0, 1)
        assert migrations.shown("ringed").state == state
        assert [session.execute(read, (key,)).one().v for key in range(40)] == [at] * 40
        assert len(list(session.execute("SELECT a FROM ringed.t WHERE v = %s", (at,)))) == 40
    with pytest.raises(ConfigurationError, match="no such wish"):
        three.call(migrations.migrate({"keyspace": "ringed", "step": "jump"}))
    session.execute("DROP KEYSPACE ringed")
