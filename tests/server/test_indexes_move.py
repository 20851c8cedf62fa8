"""What an index holds where ranges have moved to a new node."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from cassandra import ConsistencyLevel
from cassandra.cluster import Cluster
from cassandra.query import SimpleStatement

from lockstep.storage.index.index_entries import entry_bounds
from lockstep.storage.rows import keys
from lockstep.values.tokens import FULL_RING
from tests.server.parts import CQL_PORT, Member, nodes


def _until(condition: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.05)


def _counts(member: Member) -> tuple[int, int]:
    """(entries of the index, rows stored) at a node."""
    table = member.node.log.cluster.schema.table("m", "t")
    assert table is not None
    engine = member.node.data.engine
    stored = engine.records(*keys.token_bounds(table.id, FULL_RING), 10_000)
    return len(engine.records(*entry_bounds(table.id), 10_000)), len(stored)


def test_a_node_that_joins_indexes_what_it_is_sent(tmp_path: Path) -> None:
    with nodes(tmp_path, 1) as cluster:
        driver = Cluster([cluster.members[0].address], port=CQL_PORT)
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE m WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        session.execute("CREATE TABLE m.t (k int PRIMARY KEY, v int)")
        session.execute("CREATE INDEX ON m.t (v)")
        for k in range(200):
            session.execute(f"INSERT INTO m.t (k, v) VALUES ({k}, {k % 4})")
        added = cluster.add()
        _until(lambda: added.node.ready and not cluster.members[0].node.log.cluster.operations)
        entries, stored = _counts(added)
        assert entries == stored > 0
        query = SimpleStatement("SELECT k FROM m.t WHERE v = 3", consistency_level=ConsistencyLevel.ALL)
        assert sorted(k for (k,) in session.execute(query)) == list(range(3, 200, 4))
        driver.shutdown()
