"""Real processes grow, lose nodes for good and shrink while clients write and read at QUORUM.

Two drivers run all the time, each a process of its own, and no error may reach them. The tests are the
chapters of one story and run in their order.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, lockstep, until
from tests.acceptance.test_cluster_growth import ClientProcess

pytestmark = pytest.mark.slow

FIRST = "127.0.28.1"
HOST = f"{FIRST}:{ADMIN_PORT}"


class Story:
    def __init__(self, cluster: LocalCluster, home: Path) -> None:
        self.cluster, self.home = cluster, home
        self.clients = [
            ClientProcess("cassandra-driver v4", sys.executable, 4, 0, FIRST),
            ClientProcess("cassandra-driver v5", sys.executable, 5, 10_000, FIRST),
        ]

    def no_errors(self) -> None:
        for client in self.clients:
            load = client.ask("load")
            assert load["errors"] == [], f"{client.name}: {load['errors']}"
            assert load["went_on"], f"{client.name} does not get on after {load['count']} requests"

    def run(self, *arguments: str) -> str:
        done = lockstep(*arguments, "--host", HOST)
        assert done.code == 0, done.out + done.err
        return done.out

    def status(self) -> dict[str, Any]:
        return self.cluster.admin("n1").get("/v1/status")

    def members(self) -> dict[str, str]:
        return {node["address"]: node["state"] for node in self.status()["nodes"]}

    def wait_until_dead(self, name: str) -> None:
        address = self.cluster.file.node(name).address
        until(lambda: any(n["address"] == address and not n["alive"] for n in self.status()["nodes"]))


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("home")
    clusters = home / "clusters"
    with LocalCluster.create("tour", 3, first_address=FIRST, ports=parts.PORTS, home=clusters) as cluster:
        cluster.start()
        driver = parts.connect([FIRST])
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE growth WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        session.execute("CREATE TABLE growth.load (k int PRIMARY KEY, v int)")
        driver.shutdown()
        told = Story(cluster, home)
        try:
            yield told
        finally:
            for client in told.clients:
                client.close()


def test_a_dry_run_of_a_join_names_bytes_and_changes_nothing(story: Story) -> None:
    story.no_errors()
    before = story.status()["epoch"]
    told = lockstep("cluster", "add", "tour", "--dry-run", "-o", "json", home=story.home)
    assert told.code == 0, told.err
    plan = json.loads(told.out)
    assert (plan["kind"], plan["node"]) == ("bootstrap", 4)
    assert plan["moves"] and all(move["bytes"] is not None for move in plan["moves"])
    assert plan["estimate"]["bytes"] > 0 and plan["estimate"]["seconds"] > 0
    assert plan["point_of_no_return"] == "write_both_read_new"
    assert story.status()["epoch"] == before


def test_it_grows_from_three_to_five(story: Story) -> None:
    for _ in range(2):
        story.cluster.add()
        story.no_errors()
    assert len(story.members()) == 5 and set(story.members().values()) == {"normal"}


def test_a_killed_node_is_replaced_by_a_new_one(story: Story) -> None:
    story.cluster.kill("n2")
    story.no_errors()
    story.wait_until_dead("n2")
    dead = story.cluster.file.node("n2").address
    refusal = lockstep("topology", "replace", "n9", "--host", HOST)
    assert refusal.code == 2 and "no node is called n9" in refusal.err
    assert "replaces = 2" in story.run("topology", "replace", dead)
    assert f"replace of node 2 by node {6}" in story.run("topology", "replace", dead, "--dry-run")
    added = story.cluster.add(replaces="n2")
    assert dead not in story.members() and story.members()[added.address] == "normal"
    story.no_errors()


def test_a_dead_node_is_removed(story: Story) -> None:
    story.cluster.kill("n4")
    story.wait_until_dead("n4")
    gone = story.cluster.file.node("n4").address
    shown = story.run("topology", "remove", gone)
    assert "done: remove of node 4" in shown
    assert gone not in story.members()
    story.no_errors()


def test_a_plan_is_applied_while_it_holds_and_refused_afterwards(story: Story, tmp_path: Path) -> None:
    leaving = story.cluster.file.node("n3").address
    plan = str(tmp_path / "leave.json")
    before = story.status()["epoch"]
    assert "decommission of node 3" in story.run("topology", "decommission", leaving, "--plan", plan)
    assert story.status()["epoch"] == before
    document = json.loads(Path(plan).read_text())
    assert document["schema"] == "plan/1" and document["base"]["epoch"] == before
    assert "done: decommission of node 3" in story.run("topology", "apply", plan)
    story.no_errors()
    again = lockstep("topology", "apply", plan, "--host", HOST)
    assert again.code == 3 and "reality moved since the plan" in again.err and "nodes" in again.err


def test_the_log_tells_what_happened(story: Story) -> None:
    assert len(story.members()) == 3
    replaced = story.run("why", "node:2")
    assert "is registered as node 2" in replaced and "has left the cluster" in replaced
    newcomer = story.run("why", "node:6")
    assert "to take the place of node 2" in newcomer and "has joined the ring" in newcomer
    assert "it has left the cluster" in story.run("why", story.cluster.file.node("n4").address)
    requests = json.loads(story.run("topology", "requests", "-o", "json"))["requests"]
    assert {one["state"] for one in requests} == {"done"}
    for one in requests:
        told = story.run("why", f"request:{one['id']}")
        assert "is asked for by" in told and "begins as operation" in told and "is done" in told
    owners = story.run("why", "growth.load:0")
    assert "owned by nodes" in owners and " at write_both_read_new" in owners


def test_no_acknowledged_write_is_lost(story: Story) -> None:
    for client in story.clients:
        found = client.ask("check")
        assert found["wrong"] == [], client.name
        assert found["checked"] > 50, client.name
