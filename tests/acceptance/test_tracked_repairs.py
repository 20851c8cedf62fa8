"""Repairs of tracked tables of real processes: a wait for a node that was away, rows lost under their
ids, and a backup that is restored."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from lockstep.local.admin_client import AdminClient, of_node
from lockstep.storage.rocks.rocks import RocksSettings, _open
from lockstep.testing import Cluster
from lockstep.testing.nodes import Node

pytestmark = pytest.mark.slow

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
KEYS, WAIT_S, LOOK_S, ADMIN_PORT = 200, 60.0, 0.1, 7080
LOST = "value 7 "


def until(what: Callable[[], bool], seconds: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline_s, "it takes too long"
        time.sleep(LOOK_S)


def admin(node: Node) -> AdminClient:
    return AdminClient(node.address, ADMIN_PORT, credential=of_node(node.log_path.parent / "data"))


def ended(node: Node, run: dict[str, Any], kind: str = "repairs") -> dict[str, Any]:
    """A run's document once it has ended well."""
    found = run
    deadline_s = time.monotonic() + WAIT_S
    while found["state"] == "running":
        assert time.monotonic() < deadline_s, found
        time.sleep(LOOK_S)
        found = admin(node).get(f"/v1/{kind}/{run['id']}")
    assert found["state"] == "done", found
    return found


def repaired(node: Node, **more: Any) -> dict[str, Any]:
    return ended(node, admin(node).post("/v1/repairs", {"keyspace": "k", **more}))


def reconciled(cluster: Cluster) -> None:
    until(
        lambda: all(
            not row.entries
            for node in cluster.nodes
            for row in session_rows(node, "SELECT * FROM system_views.mutation_journal")
        )
    )


def session_rows(node: Node, statement: str) -> list[Any]:
    with node.session() as session:
        return list(session.execute(statement, consistency="ONE"))


def lose_rows(node: Node, payload: bytes) -> int:
    """Take what has these bytes out of a stopped node's tables; how many records went."""
    database = _open(str(node.log_path.parent / "data" / "store"), RocksSettings())
    try:
        found = [key for key, value in database.items() if payload in value]
        for key in found:
            del database[key]
    finally:
        database.close()
    return len(found)


def test_a_repair_waits_for_a_node_that_was_away_and_names_rows_that_are_lost_under_their_ids() -> None:
    with Cluster(3) as cluster:
        one, two, three = cluster.nodes
        cluster.execute(
            f"CREATE KEYSPACE k WITH replication = {REPLICATION} AND replication_type = 'tracked'"
        )
        cluster.execute("CREATE TABLE k.t (k int PRIMARY KEY, v text)")
        three.kill()
        three.wait_until_seen_down()
        with one.session() as session:
            for key in range(KEYS):
                session.execute("INSERT INTO k.t (k, v) VALUES (?, ?)", (key, f"value {key} " + "x" * 40))
        three.start()
        three.wait_until_seen_up()

        waited = repaired(one)
        assert waited["progress"]["leaves"] == waited["progress"]["changes_sent"] == 0, waited
        assert waited["progress"]["ids_lacking"] == 0
        (row,) = session_rows(
            one, f"SELECT ids_lacking, state FROM system_views.repairs WHERE id = {waited['id']}"
        )
        assert (row.ids_lacking, row.state) == (0, "done")
        shown = [row.v for row in session_rows(three, "SELECT v FROM k.t")]
        assert len(shown) == KEYS, "it has everything by itself"

        reconciled(cluster)
        three.stop()
        assert lose_rows(three, LOST.encode()) >= 1
        three.start()
        three.wait_until_seen_up()
        assert repaired(two)["progress"]["disagreements"] == 0, "a wait looks at no data"
        found = repaired(two, full=True)["progress"]
        assert found["disagreements"] == 1, found
        (disagreement,) = found["disagree"]
        node_id = admin(three).get("/v1/status")["node"]["id"]
        assert [lack["node"] for lack in disagreement["lacks"]] == [node_id] and disagreement[
            "wrong"
        ] == "data"
        assert disagreement["key"] == (7).to_bytes(4, "big").hex()
        conditions = admin(two).get("/v1/status")["conditions"]
        assert [one["subject"] for one in conditions if one["code"] == "IDS_AND_DATA_DISAGREE"] == ["k.t"]
        assert repaired(two, full=True)["progress"]["disagreements"] == 0
        conditions = admin(two).get("/v1/status")["conditions"]
        assert not [one for one in conditions if one["code"] == "IDS_AND_DATA_DISAGREE"]


def test_a_backup_is_restored_into_a_tracked_table_and_read_by_ids_again() -> None:
    with Cluster(3) as cluster:
        one, two, _ = cluster.nodes
        cluster.execute(
            f"CREATE KEYSPACE k WITH replication = {REPLICATION} AND replication_type = 'tracked'"
        )
        cluster.execute("CREATE TABLE k.t (k int PRIMARY KEY, v text)")
        with one.session() as session:
            for key in range(KEYS):
                session.execute("INSERT INTO k.t (k, v) VALUES (?, ?)", (key, f"value {key}"))
            reconciled(cluster)
            ended(one, admin(one).post("/v1/backups", {"name": "b"}))
            session.execute("DELETE FROM k.t WHERE k = 0")
            session.execute("INSERT INTO k.t (k, v) VALUES (?, ?)", (1, "newer"))
            merged = admin(two).post("/v1/backups/b/restore", {"existing": "merge"})
            ended(two, merged)
            rows = {row.k: row.v for row in session.execute("SELECT k, v FROM k.t", consistency="QUORUM")}
            assert rows == {**{key: f"value {key}" for key in range(1, KEYS)}, 1: "newer"}
            ended(two, admin(two).post("/v1/backups/b/restore", {"existing": "truncate"}))
            wanted = {key: f"value {key}" for key in range(KEYS)}
            for node in cluster.nodes:
                assert {row.k: row.v for row in session_rows(node, "SELECT k, v FROM k.t")} == wanted
                assert not session_rows(node, "SELECT * FROM system_views.tracking_migrations")
            session.execute("INSERT INTO k.t (k, v) VALUES (?, ?)", (2, "later"))
        assert repaired(one, full=True)["progress"]["disagreements"] == 0
