"""Unmodified drivers and cqlsh while a cluster grows, loses a node and shrinks.

Three clients run all the time, each a process of its own: the Cassandra driver with protocol v4 and v5, and
the ScyllaDB driver. The tests are the chapters of one story and run in their order.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from lockstep.values.tokens import token_of
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, CQL_PORT, lockstep, until

pytestmark = pytest.mark.slow

FIRST, LAST = "127.0.0.51", "127.0.0.54"
FOUNDERS = ["127.0.0.51", "127.0.0.52", "127.0.0.53"]
HOST = f"{FIRST}:{ADMIN_PORT}"
SCYLLA_DRIVER = "scylla-driver==3.29.12"
SCYLLA_VENV = parts.ROOT / "build" / "scylla-venv"


class ClientProcess:
    def __init__(self, name: str, interpreter: str, version: int, key_base: int, point: str = FIRST) -> None:
        self.name, self.key_base = name, key_base
        program = Path(__file__).with_name("growth_client.py")
        self.process = subprocess.Popen(
            [interpreter, str(program), point, str(CQL_PORT), str(version), str(key_base)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=parts.environment(),
        )

    def ask(self, command: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"{self.name} ended: {self.process.communicate()[1]}"
        return json.loads(line)

    def up(self) -> list[str]:
        return [address for address, is_up in self.ask("hosts")["hosts"] if is_up]

    def close(self) -> None:
        """End of input ends the client."""
        try:
            self.process.communicate(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()


def scylla_interpreter() -> str | None:
    """The interpreter of an environment with the ScyllaDB driver, made on first use; None when it cannot be.

    Both drivers are called `cassandra`, so they cannot share an environment.
    """
    interpreter = SCYLLA_VENV / "bin" / "python"
    probe = [str(interpreter), "-c", "import cassandra.cluster"]
    if interpreter.exists() and subprocess.run(probe, check=False, capture_output=True).returncode == 0:
        return str(interpreter)
    pip = [str(interpreter), "-m", "pip", "--quiet", "--disable-pip-version-check", "install", SCYLLA_DRIVER]
    try:
        subprocess.run([sys.executable, "-m", "venv", str(SCYLLA_VENV)], check=True, timeout=60)
        subprocess.run(pip, check=True, timeout=120, capture_output=True)
        subprocess.run(probe, check=True, timeout=30)
    except (subprocess.SubprocessError, OSError):
        return None
    return str(interpreter)


class Story:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.clients: list[ClientProcess] = []
        self.scylla = False

    def no_errors(self) -> None:
        for client in self.clients:
            load = client.ask("load")
            assert load["errors"] == [], f"{client.name}: {load['errors']}"
            assert load["went_on"], f"{client.name} does not get on after {load['count']} requests"

    def tokens(self) -> dict[str, int]:
        nodes = self.cluster.admin("n1").get("/v1/nodes")["nodes"]
        return {node["address"]: node["tokens"] for node in nodes}

    def routes_agree(self) -> None:
        """Every client sends a key first to the node that the server's placement names first."""
        first = self.first_replicas()
        for client in self.clients:
            plans = client.ask("plans")
            expected = {key: first(token_of(int(key).to_bytes(4, "big", signed=True))) for key in plans}
            assert plans == expected, client.name

    def first_replicas(self) -> Any:
        admin = self.cluster.admin("n1")
        addresses = {node["id"]: node["address"] for node in admin.get("/v1/nodes")["nodes"]}
        ranges = admin.get("/v1/placements", keyspace="growth")["ranges"]

        def first(token: int) -> str:
            for placed in ranges:
                start, end = placed["start"], placed["end"]
                inside = start < token <= end if start < end else token > start or token <= end
                if inside:
                    return str(addresses[placed["reads"][0]])
            raise AssertionError(f"no range holds token {token}")

        return first


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("home")
    with LocalCluster.create("growth", 3, first_address=FIRST, ports=parts.PORTS, home=home) as cluster:
        cluster.start()
        driver = parts.connect([FIRST])
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE growth WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        session.execute("CREATE TABLE growth.load (k int PRIMARY KEY, v int)")
        driver.shutdown()
        told = Story(cluster)
        told.clients.append(ClientProcess("cassandra-driver v4", sys.executable, 4, 0))
        told.clients.append(ClientProcess("cassandra-driver v5", sys.executable, 5, 10_000))
        interpreter = scylla_interpreter()
        if interpreter is not None:
            told.clients.append(ClientProcess("scylla-driver v4", interpreter, 4, 20_000))
            told.scylla = True
        try:
            yield told
        finally:
            for client in told.clients:
                client.close()


def test_the_scylla_driver_takes_part(story: Story) -> None:
    if not story.scylla:
        pytest.skip(f"{SCYLLA_DRIVER} cannot be installed into {SCYLLA_VENV}")
    assert story.clients[-1].ask("about")["protocol"] == 4


def test_clients_speak_the_version_they_were_told(story: Story) -> None:
    assert [client.ask("about")["protocol"] for client in story.clients[:2]] == [4, 5]


def test_clients_know_all_nodes_and_tokens_and_route_as_the_server_places(story: Story) -> None:
    for client in story.clients:
        until(lambda client=client: client.up() == FOUNDERS)
        assert client.ask("hosts")["tokens"] == story.tokens() == dict.fromkeys(FOUNDERS, 16)
    story.routes_agree()
    story.no_errors()


def test_cqlsh_connects_and_sees_the_ring(story: Story) -> None:
    cqlsh = Path(sys.executable).with_name("cqlsh")
    done = subprocess.run(
        [str(cqlsh), FIRST, str(CQL_PORT), "-e",
         "DESCRIBE CLUSTER; SELECT peer FROM system.peers; SELECT count(*) FROM growth.load;"],
        capture_output=True, text=True, timeout=30, check=False, env=parts.environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Cluster: growth" in done.stdout
    assert all(address in done.stdout for address in FOUNDERS[1:]), done.stdout
    assert "Murmur3Partitioner" in done.stdout


def test_a_joining_node_is_seen_and_used_without_a_restart(story: Story) -> None:
    story.no_errors()
    story.cluster.add()
    for client in story.clients:
        until(lambda client=client: client.up() == [*FOUNDERS, LAST])
        until(lambda client=client: ["add", LAST] in client.ask("events"), timeout_s=30)
        until(lambda client=client: client.ask("hosts")["tokens"] == story.tokens())
        assert client.ask("hosts")["tokens"][LAST] == 16
    story.routes_agree()
    story.no_errors()


def test_a_killed_node_is_seen_down_and_up_again(story: Story) -> None:
    dead = FOUNDERS[1]
    story.cluster.kill("n2")
    for client in story.clients:
        until(lambda client=client: dead not in client.up())
    time.sleep(0.5)
    story.no_errors()
    story.cluster.start(["n2"])
    for client in story.clients:
        until(lambda client=client: dead in client.up())
        events = client.ask("events")
        # What counts is that it was seen down before it was seen up for the last time.
        assert events.index(["down", dead]) < len(events) - 1 - events[::-1].index(["up", dead]), client.name
    story.no_errors()


def test_a_leaving_node_is_removed_without_a_restart(story: Story) -> None:
    done = lockstep("topology", "decommission", LAST, "--host", HOST)
    assert done.code == 0, done.err
    for client in story.clients:
        until(lambda client=client: client.up() == FOUNDERS)
        # It is down as soon as its process ended; drivers spread their look at the ring over ten seconds.
        until(lambda client=client: ["remove", LAST] in client.ask("events"), timeout_s=30)
        until(lambda client=client: client.ask("hosts")["tokens"] == dict.fromkeys(FOUNDERS, 16))
    story.routes_agree()
    story.no_errors()


def test_no_acknowledged_write_is_lost(story: Story) -> None:
    for client in story.clients:
        found = client.ask("check")
        assert found["wrong"] == [], client.name
        assert found["checked"] > 50, client.name
    assert parts.settled_errors(story.cluster) == ""
