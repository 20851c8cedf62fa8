"""Five nodes run on the ring without a log, under load: they join, leave, die, are removed and replaced.

Real processes, the Python driver and the command line. Numbers are those of scenarios of ring membership.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import CqlConnection, Endpoint
from lockstep.values.errors import ConfigurationError, LockstepError
from lockstep.values.ids import Consistency
from tests.acceptance.parts import ADMIN_PORT, PORTS, Load, connect, lockstep, until

pytestmark = pytest.mark.slow


def begun(home: Path, name: str, first: str, nodes: int, mode: str = "quorum") -> LocalCluster:
    made = LocalCluster.create(
        name,
        nodes,
        home=home / "clusters",
        first_address=first,
        ports=PORTS,
        settings={"cluster": {"membership": "ring", "ring_mode": mode}},
    )
    made.start()
    return made


def run(home: Path, *arguments: str, code: int | None = 0) -> str:
    """What the command says."""
    ended = lockstep(*arguments, home=home)
    assert code is None or ended.code == code, (ended.out, ended.err)
    return f"{ended.out}{ended.err}"


def connected(cluster: LocalCluster, name: str) -> CqlConnection:
    """A connection to this node and no other."""
    return CqlConnection.open(Endpoint(cluster.file.node(name).address, PORTS[0]), 10.0)


def host(cluster: LocalCluster, name: str) -> str:
    return f"{cluster.file.node(name).address}:{ADMIN_PORT}"


def ring(cluster: LocalCluster, name: str) -> dict[str, Any]:
    return cluster.admin(name).get("/v1/ring")


def agree(cluster: LocalCluster, *names: str) -> None:
    """These nodes have one ring, nobody holds a proposal, and nobody saw two changes of one ring."""

    def same() -> bool:
        found = [ring(cluster, name) for name in names]
        prints = {one["fingerprint"] for one in found}
        return len(prints) == 1 and not any(one["pending"] or one["proposing"] for one in found)

    until(same, 30.0)
    assert not any(ring(cluster, name)["alarms"] for name in names)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path


def test_30_five_nodes_change_under_load_and_no_acknowledged_write_is_lost(home: Path) -> None:
    with begun(home, "ring", "127.0.2.11", 5) as cluster:
        status = run(home, "status", "--host", host(cluster, "n1"))
        assert "on the ring without a log: a majority of the members must accept" in status
        assert "changes go through: node 1" in status and "groups" not in status
        load = Load(cluster.contact_points)
        try:
            load.goes_on(20)
            # A node joins, and another one leaves.
            cluster.add()
            agree(cluster, "n1", "n2", "n3", "n4", "n5", "n6")
            run(home, "ring", "propose", "leave", "2", "--host", host(cluster, "n1"))
            load.goes_on(20)
            agree(cluster, "n1", "n3", "n4", "n5", "n6")
            assert ring(cluster, "n3")["members"]["2"] == "left"
            # The designated one dies, is removed, and the next one takes its place.
            cluster.kill("n1")
            assert cluster.await_noticed(["n1"])
            load.errors.clear()
            run(home, "ring", "propose", "remove", "1", "--host", host(cluster, "n3"))
            agree(cluster, "n3", "n4", "n5", "n6")
            assert ring(cluster, "n4")["designated"] == 3
            assert ring(cluster, "n4")["members"]["1"] == "left"
            # Another one dies and is replaced.
            cluster.kill("n5")
            assert cluster.await_noticed(["n5"])
            cluster.add(replaces="n5")
            load.errors.clear()
            load.goes_on(20)
            agree(cluster, "n3", "n4", "n6", "n7")
            members = ring(cluster, "n7")["members"]
            assert {name for name, state in members.items() if state == "normal"} == {"3", "4", "6", "7"}
            load.stop()
            load.check_all()
        finally:
            load.close()
        # A whole cluster starts again with its ring, and can change it.
        before = ring(cluster, "n3")["fingerprint"]
        stay = ["n3", "n4", "n6", "n7"]
        cluster.stop(stay)
        cluster.start(stay)
        assert ring(cluster, "n3")["fingerprint"] == before
        session = connect([cluster.file.node("n6").address])
        session.connect().execute("CREATE TABLE acceptance.after (k int PRIMARY KEY)")
        session.shutdown()
        agree(cluster, *stay)
        assert ring(cluster, "n3")["fingerprint"] != before


def test_a_coordinator_with_an_old_ring_is_refused_and_its_client_is_not(home: Path) -> None:
    """A node that applies no new ring coordinates a write: replicas that know a later one refuse, and it
    succeeds once the node may follow."""
    with begun(home, "old", "127.0.2.31", 3) as cluster:
        first, third = (connected(cluster, name) for name in ("n1", "n3"))
        first.query(
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        first.query("CREATE TABLE k.t (a int PRIMARY KEY, b int)")
        agree(cluster, "n1", "n2", "n3")
        old = ring(cluster, "n3")["epoch"]
        cluster.admin("n3").post("/v1/testing/metadata", {"hold_visibility_at": old})
        first.query("ALTER TABLE k.t ADD c int")
        assert ring(cluster, "n1")["epoch"] == old + 1 and ring(cluster, "n3")["epoch"] == old
        with pytest.raises(LockstepError) as refused:
            third.query("INSERT INTO k.t (a, b) VALUES (1, 1)", (), Consistency.QUORUM)
        assert refused.value.retriable or not refused.value.outcome_known
        cluster.admin("n3").post("/v1/testing/metadata", {"release": True})
        agree(cluster, "n1", "n2", "n3")
        third.query("INSERT INTO k.t (a, b) VALUES (1, 2)", (), Consistency.QUORUM)
        (row,) = first.query("SELECT b FROM k.t WHERE a = 1", (), Consistency.QUORUM)
        assert row["b"] == 2
        first.close()
        third.close()


def test_all_must_accept_where_the_mode_says_so(home: Path) -> None:
    with begun(home, "all", "127.0.2.41", 3, "unanimous") as cluster:
        driver = connect([cluster.file.node("n1").address])
        session = driver.connect()
        statement = (
            "CREATE KEYSPACE {} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 3}}"
        )
        session.execute(statement.format("k"))
        agree(cluster, "n1", "n2", "n3")
        cluster.kill("n3")
        assert cluster.await_noticed(["n3"])
        why = run(home, "ring", "why", "--host", host(cluster, "n1"))
        assert "all members must accept, and 3 of 3 seem dead" in why
        with pytest.raises(Exception, match="all members must accept"):
            session.execute(statement.format("other"), timeout=30)
        told = json.loads(run(home, "ring", "promises", "--host", host(cluster, "n1"), "--output", "json"))
        assert [bool(one["silent"]) for one in told["nodes"]] == [False, False, True]
        cluster.start(["n3"])
        session.execute(statement.format("other"), timeout=30)
        agree(cluster, "n1", "n2", "n3")
        driver.shutdown()


def test_what_needs_a_log_is_refused_with_a_sentence(home: Path) -> None:
    with begun(home, "doors", "127.0.2.51", 1) as cluster:
        driver = connect(cluster.contact_points)
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        for statement in (
            "CREATE TABLE k.t (a int PRIMARY KEY) WITH cdc = {'enabled': true}",
            "CREATE KEYSPACE t WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 1} "
            "AND tablets = {'enabled': true}; ",
        ):
            with pytest.raises(Exception, match="runs on the ring without one"):
                session.execute(statement.rstrip("; "))
        driver.shutdown()
        at = host(cluster, "n1")
        for command in (
            ("cms", "snapshot"),
            ("cms", "freeze", "a test"),
            ("cms", "reconfigure", "1"),
            ("cms", "describe"),
            ("recovery",),
            ("recovery", "cluster", "reset", "--dry-run"),
        ):
            said = run(home, *command, "--host", at, code=None)
            assert "on the ring without" in said, (command, said)
        said = run(home, "ring", "abort", "7-none", "--host", at, code=None)
        assert "no proposal 7-none is pending here" in said
        assert "nothing is in the way" in run(home, "ring", "why", "--host", at)


def test_a_node_that_would_agree_otherwise_is_not_let_in(home: Path) -> None:
    with begun(home, "other", "127.0.2.61", 1) as cluster:
        file = cluster.paths.configuration("n1")
        cluster.stop()
        named = file.read_text()
        # Who is told nothing learns it from the cluster.
        file.write_text(named.replace('membership = "ring"', 'membership = "log"'))
        cluster.start()
        cluster.stop()
        file.write_text(named.replace('ring_mode = "quorum"', 'ring_mode = "unanimous"'))
        with pytest.raises((ConfigurationError, LockstepError), match="runs on the ring without a log"):
            cluster.start()
