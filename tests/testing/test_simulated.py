"""Simulated clusters, as an application's tests use them."""

from __future__ import annotations

import asyncio

import pytest

from lockstep.testing import CqlError, SimulatedCluster
from lockstep.values.errors import (
    ConfigurationError,
    LockstepError,
    PeerTimeout,
    PeerUnreachable,
    PreconditionError,
)

UNAVAILABLE = 0x1000
WRITE_TIMEOUT = 0x1100


def with_table(cluster: SimulatedCluster) -> SimulatedCluster:
    cluster.execute(
        "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    cluster.execute("CREATE TABLE k.t (a int PRIMARY KEY, b text)")
    return cluster


def story(seed: int) -> str:
    """The digest of a run with a bit of everything."""
    with SimulatedCluster(seed=seed) as cluster:
        with_table(cluster)
        cluster.kill("n2")
        cluster.execute("INSERT INTO k.t (a, b) VALUES (?, ?)", (1, "x"))
        cluster.mend()
        cluster.advance(10)
        assert cluster.execute("SELECT b FROM k.t WHERE a = :a", {"a": 1}, consistency="ALL") == [("x",)]
        return cluster.digest()


def test_one_seed_is_one_run() -> None:
    assert story(3) == story(3)
    assert story(3) != story(4)


def test_what_expires_does_when_time_is_moved() -> None:
    with SimulatedCluster() as cluster:
        with_table(cluster)
        began = cluster.now
        cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'x') USING TTL 86400")
        cluster.advance(86_000)
        assert cluster.execute("SELECT b FROM k.t WHERE a = 1") == [("x",)]
        cluster.advance(500)
        assert cluster.execute("SELECT b FROM k.t WHERE a = 1") == []
        assert 86_500 <= (cluster.now - began).total_seconds() < 86_600


def test_a_quorum_outlives_one_node_and_not_two() -> None:
    with SimulatedCluster() as cluster:
        with_table(cluster)
        cluster.kill("n1")
        cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'x')")
        cluster.cut_power("n2")
        cluster.wait_until_seen_down("n2")
        with pytest.raises(CqlError) as refused:
            cluster.execute("INSERT INTO k.t (a, b) VALUES (2, 'y')")
        assert refused.value.code == UNAVAILABLE
        assert (refused.value.details["required"], refused.value.details["alive"]) == (2, 1)
        cluster.mend()
        assert cluster.execute("SELECT a FROM k.t", consistency="ALL") == [(1,)]


def test_a_paused_node_makes_all_time_out_and_a_paused_coordinator_never_answers() -> None:
    with SimulatedCluster() as cluster:
        with_table(cluster)
        cluster.pause("n2")
        with pytest.raises(CqlError) as late:
            cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'x')", consistency="ALL")
        assert late.value.code == WRITE_TIMEOUT
        with pytest.raises(PeerUnreachable):
            cluster.execute("SELECT * FROM k.t", node="n2")
        cluster.resume("n2")
        cluster.execute("SELECT * FROM k.t", node="n2")
        cluster.pause("n2")
        with pytest.raises(PeerTimeout):
            cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'x')", node="n2")
        cluster.resume("n2")
        cluster.mend()
        assert cluster.execute("SELECT a FROM k.t", node="n2") == [(1,)]


def test_a_partition_leaves_the_majority_working() -> None:
    with SimulatedCluster() as cluster:
        with_table(cluster)
        cluster.isolate("n3")
        cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'x')", node="n1")
        with pytest.raises(CqlError):
            cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'y')", node="n3")
        cluster.heal()
        cluster.mend()
        assert len(cluster.execute("SELECT * FROM k.t", node="n3")) == 1


def test_the_later_clock_wins() -> None:
    with SimulatedCluster() as cluster:
        with_table(cluster)
        cluster.skew_clock("n2", 60)
        cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'from a clock that is ahead')", node="n2")
        cluster.execute("INSERT INTO k.t (a, b) VALUES (1, 'written later')", node="n1")
        assert cluster.execute("SELECT b FROM k.t") == [("from a clock that is ahead",)]


def test_more_nodes_than_founders_join_and_data_centres_have_theirs() -> None:
    with SimulatedCluster(4, dcs=2) as cluster:
        assert all(cluster.ready(node) for node in cluster.nodes)
        rows = cluster.execute("SELECT data_center FROM system.peers", node="n1")
        assert sorted(row.data_center for row in rows) == ["dc1", "dc2", "dc2"]


def test_statements_at_the_same_time() -> None:
    with SimulatedCluster() as cluster:
        with_table(cluster)
        done = cluster.execute_all([("INSERT INTO k.t (a, b) VALUES (?, ?)", (n, "x")) for n in range(20)])
        assert done == [[]] * 20
        failed = cluster.execute_all([("SELECT * FROM k.none", ()), ("SELECT count(*) FROM k.t", ())])
        assert isinstance(failed[0], CqlError)
        assert failed[1] == [(20,)]


def test_mistakes_have_a_sentence() -> None:
    with pytest.raises(ConfigurationError, match="1 to 16"):
        SimulatedCluster(0)
    with SimulatedCluster(1) as cluster:
        with pytest.raises(ConfigurationError, match="no node n9"):
            cluster.kill("n9")
        with pytest.raises(ConfigurationError, match="no consistency level most"):
            cluster.execute("SELECT * FROM system.local", consistency="most")
        with pytest.raises(ConfigurationError, match="1 markers, and 2 values"):
            cluster.execute("SELECT * FROM system.local WHERE key = ?", ("local", 1))
        cluster.kill("n1")
        with pytest.raises(LockstepError, match="no node serves"):
            cluster.execute("SELECT * FROM system.local")

    async def inside() -> None:
        with SimulatedCluster(1) as cluster:
            cluster.advance(1)

    with pytest.raises(PreconditionError, match="event loop"):
        asyncio.run(inside())
