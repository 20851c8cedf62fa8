"""Real clusters of the kit: what tests do to nodes, and what is left when a test's process ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.local import processes
from lockstep.local.processes import State
from lockstep.testing import CausalSession, Cluster, CqlError, clusters
from lockstep.testing.nodes import Session
from lockstep.values.errors import (
    ConfigurationError,
    LockstepError,
    NodeRestarting,
    PeerTimeout,
    PeerUnreachable,
    PreconditionError,
)
from tests.acceptance.parts import lockstep, until

ROOT = Path(__file__).parents[2]
UNAVAILABLE = 0x1000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(settings={"timeouts": {"read_ms": 1000, "write_ms": 1000}}) as made:
        made.execute(f"CREATE KEYSPACE k WITH replication = {made.replication}")
        made.execute("CREATE TABLE k.t (a int PRIMARY KEY, b text)")
        yield made


@pytest.fixture(autouse=True)
def mended(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "cluster" in request.fixturenames:
        request.getfixturevalue("cluster").mend()


def test_nodes_and_their_addresses(cluster: Cluster) -> None:
    assert [node.name for node in cluster.nodes] == ["n1", "n2", "n3"]
    assert cluster.contact_points == [node.address for node in cluster.nodes]
    assert {node.state for node in cluster.nodes} == {State.RUNNING}
    assert cluster.replication == "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
    with pytest.raises(ConfigurationError, match="no node n9"):
        cluster.node("n9")


def test_requests_survive_one_lost_node_and_are_refused_with_two(cluster: Cluster) -> None:
    cluster.node("n1").kill()
    cluster.execute("INSERT INTO k.t (a, b) VALUES (?, ?)", (1, "x"))
    cluster.node("n2").kill()
    cluster.node("n2").wait_until_seen_down()
    with pytest.raises(CqlError) as refused:
        cluster.execute("SELECT * FROM k.t WHERE a = 1")
    assert refused.value.code == UNAVAILABLE
    assert cluster.ended_by_themselves() == []
    cluster.mend()
    assert cluster.execute("SELECT b FROM k.t WHERE a = 1", consistency="ALL") == [("x",)]


def test_a_paused_node_answers_again(cluster: Cluster) -> None:
    node = cluster.node("n3")
    node.pause()
    assert node.state is State.PAUSED
    cluster.execute("INSERT INTO k.t (a, b) VALUES (2, 'y')")
    node.resume()
    with node.session() as session:
        assert session.execute("SELECT b FROM k.t WHERE a = 2") == [("y",)]


def test_an_isolated_node_reaches_no_quorum(cluster: Cluster) -> None:
    node = cluster.node("n3")
    node.isolate()
    node.wait_until_seen_down()
    with node.session() as session, pytest.raises(CqlError):
        session.execute("SELECT * FROM k.t WHERE a = 1")
    cluster.execute("INSERT INTO k.t (a, b) VALUES (3, 'z')")
    cluster.mend()
    with node.session() as session:
        assert session.execute("SELECT b FROM k.t WHERE a = 3") == [("z",)]


def test_a_node_joins_and_leaves(cluster: Cluster) -> None:
    node = cluster.add()
    with node.session() as session:
        session.execute("INSERT INTO k.t (a, b) VALUES (4, 'on the new one')")
    node.decommission()
    assert [one.name for one in cluster.nodes] == ["n1", "n2", "n3"]
    assert cluster.execute("SELECT b FROM k.t WHERE a = 4") == [("on the new one",)]


def test_every_page_of_a_long_answer_comes(cluster: Cluster) -> None:
    cluster.execute("CREATE TABLE IF NOT EXISTS k.long (a int, b int, PRIMARY KEY (a, b))")
    batch = "; ".join(["INSERT INTO k.long (a, b) VALUES (1, ?)"] * 500)
    for begin in range(0, 5500, 500):
        cluster.execute(f"BEGIN UNLOGGED BATCH {batch}; APPLY BATCH", list(range(begin, begin + 500)))
    rows = cluster.execute("SELECT b FROM k.long WHERE a = 1")
    assert [row.b for row in rows] == list(range(5500))


def test_the_installed_driver_connects(cluster: Cluster) -> None:
    session = cluster.connect("k")
    try:
        session.execute("INSERT INTO t (a, b) VALUES (%s, %s)", (5, "by a driver"))
        assert session.execute("SELECT b FROM t WHERE a = 5").one().b == "by a driver"
    finally:
        session.cluster.shutdown()


def test_a_causal_session_reads_at_one_what_it_wrote_through_another_node(cluster: Cluster) -> None:
    from cassandra import ConsistencyLevel
    from cassandra.query import SimpleStatement

    n1, _, n3 = cluster.nodes
    cluster.execute(
        f"CREATE KEYSPACE IF NOT EXISTS seen WITH replication = {cluster.replication} "
        "AND replication_type = 'tracked'"
    )
    cluster.execute("CREATE TABLE IF NOT EXISTS seen.t (k int PRIMARY KEY, v int)")
    cluster.execute("TRUNCATE seen.t")
    session = cluster.connect("seen")
    try:
        hosts = {host.address: host for host in session.cluster.metadata.all_hosts()}
        # What n1 writes reaches n3 when n2 brings it, within a second or so.
        cluster.partition([n1], [n3])
        read = SimpleStatement("SELECT v FROM t WHERE k = %s", consistency_level=ConsistencyLevel.ONE)
        following = CausalSession(session)
        missed = 0
        for key in range(10):
            following.execute("INSERT INTO t (k, v) VALUES (%s, 1)", (key,), host=hosts[n1.address])
            missed += session.execute(read, (key,), host=hosts[n3.address]).one() is None
            assert following.execute(read, (key,), host=hosts[n3.address]).one() is not None, key
        assert missed, "n3 has what n2 does as soon"
        assert not following.forgotten
        another = CausalSession(session)
        another.follow(following.token)
        assert another.execute(read, (9,), host=hosts[n3.address]).one() is not None
    finally:
        cluster.heal()
        session.cluster.shutdown()


def test_a_causal_session_follows_what_later_pages_and_callbacks_brought(cluster: Cluster) -> None:
    from cassandra import ConsistencyLevel
    from cassandra.query import SimpleStatement

    n1, n2, n3 = cluster.nodes
    cluster.execute(
        f"CREATE KEYSPACE IF NOT EXISTS seen WITH replication = {cluster.replication} "
        "AND replication_type = 'tracked'"
    )
    cluster.execute("CREATE TABLE IF NOT EXISTS seen.paged (k int, c int, v int, PRIMARY KEY (k, c))")
    session = cluster.connect("seen")
    hosts = {host.address: host for host in session.cluster.metadata.all_hosts()}
    at_one = {"consistency_level": ConsistencyLevel.ONE}
    try:
        for key in range(5):
            for row in range(4):
                cluster.execute(
                    "INSERT INTO seen.paged (k, c, v) VALUES (?, ?, 1)", (key, row), consistency="ALL"
                )
            cluster.partition([n1, n2], [n3])
            reading, writing = CausalSession(session), CausalSession(session)
            pages = SimpleStatement(f"SELECT c, v FROM paged WHERE k = {key}", fetch_size=2, **at_one)
            found = reading.execute(pages, host=hosts[n1.address])
            session.execute(f"UPDATE paged SET v = 2 WHERE k = {key} AND c = 3", host=hosts[n1.address])
            assert [row.v for row in found] == [1, 1, 1, 2]
            done = threading.Event()
            written = writing.execute_async(
                f"UPDATE paged SET v = 2 WHERE k = {key} AND c = 0", host=hosts[n1.address]
            )
            written.add_callbacks(lambda _rows, event: event.set(), lambda _error: None, (done,))
            assert done.wait(10)
            cluster.heal()
            whole = SimpleStatement(f"SELECT c, v FROM paged WHERE k = {key}", **at_one)
            assert list(reading.execute(whole, host=hosts[n3.address]))[3].v == 2
            assert next(iter(writing.execute(whole, host=hosts[n3.address]))).v == 2
    finally:
        cluster.heal()
        session.cluster.shutdown()


def test_an_async_test_uses_it_from_threads() -> None:
    async def story() -> list[object]:
        async with Cluster(nodes=1) as one:
            return await asyncio.to_thread(one.execute, "SELECT key FROM system.local")

    assert asyncio.run(story()) == [("local",)]


def test_data_centres_and_settings_are_as_asked(tmp_path: Path) -> None:
    settings = {"timeouts": {"write_ms": 700}}
    cluster = Cluster(dcs={"east": 2, "west": 1}, settings=settings, directory=tmp_path)
    try:
        assert [node.dc for node in cluster.nodes] == ["east", "east", "west"]
        assert cluster.replication == "{'class': 'NetworkTopologyStrategy', 'east': 2, 'west': 1}"
        assert "write_ms = 700" in (tmp_path / "test" / "n1" / "lockstep.toml").read_text()
        with pytest.raises(PreconditionError, match="no node of the cluster runs"):
            cluster.execute("SELECT * FROM system.local")
    finally:
        cluster.close()
    assert (tmp_path / "test" / "cluster.toml").exists()
    with pytest.raises(ConfigurationError, match=r"timeouts\.wrote_ms"):
        Cluster(settings={"timeouts": {"wrote_ms": 1}})


def test_a_cluster_that_asks_for_passwords() -> None:
    with Cluster(nodes=1, auth=True) as cluster:
        cluster.execute("CREATE ROLE ada WITH PASSWORD = 'p' AND LOGIN = true")
        with cluster.session(user="ada", password="p") as session, pytest.raises(CqlError, match="2100"):
            session.execute("CREATE ROLE eve")
        with pytest.raises(CqlError, match="0100"):
            cluster.session(user="ada", password="wrong")
        with pytest.raises(ConfigurationError, match="asks for a password"):
            Session(cluster.nodes[0].address, cluster.port)


def test_two_clusters_never_share_an_address() -> None:
    one, other = clusters.claim((9042,)), clusters.claim((9042,))
    assert one.first_address != other.first_address
    other.release()
    again = clusters.claim((9042,))
    assert again.first_address == other.first_address
    one.release()
    again.release()


def test_a_session_says_who_does_not_answer() -> None:
    block = clusters.claim((9042,))
    with pytest.raises(PeerUnreachable, match=block.first_address):
        Session(block.first_address, 9042)
    block.release()


def test_scenario_23_of_disasters_calls_wait_through_a_repair_of_lost_groups() -> None:
    """The survivor restarts in its process: a call meanwhile has an answer, or does not know its outcome. One
    that waits longer than it may is told that the node restarts."""
    asked = "SELECT cluster_name FROM system.local"
    with Cluster(nodes=3) as cluster, ThreadPoolExecutor(1) as beside:
        survivor = cluster.nodes[2]
        for node in cluster.nodes[:2]:
            node.kill()
        told: list[str] = []
        ended = threading.Event()

        def ask() -> None:
            while not ended.is_set():
                try:
                    cluster.execute(asked, consistency="ONE")
                    told.append("answered")
                except PeerTimeout:
                    told.append("not known")

        asking = beside.submit(ask)
        try:
            admin = cluster.local.admin(survivor.name)
            until(lambda: admin.get("/v1/status")["leader"] is None)
            before = admin.get("/management/v1/cluster/state")["cluster_id"]
            token = cluster.local.paths.data(survivor.name) / "admin.token"
            at = ("--host", f"{survivor.address}:{clusters.PORTS[2]}", "--token-file", str(token))
            reset = lockstep("recovery", "cluster", "reset", "--yes", *at)
            assert reset.code == 0, reset.err
            until(lambda: admin.get("/management/v1/cluster/state")["cluster_id"] != before)
            count = len(told)
            until(lambda: len(told) > count + 5)
        finally:
            ended.set()
        asking.result()
        assert told[-1] == "answered" and told.count("not known") <= 3


def test_a_call_that_waits_for_a_restart_too_long_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> Session:
        raise PeerUnreachable("nobody listens there")

    with Cluster(nodes=1) as cluster:
        monkeypatch.setattr(clusters, "Session", refused)
        with pytest.raises(NodeRestarting, match=r"n1 runs, and has taken no clients for 0\.2 s"):
            cluster.session(restart_wait_s=0.2)
        cluster.nodes[0].kill()
        with pytest.raises(PeerUnreachable):
            cluster.session(cluster.nodes[0])


MAKER = """
import os, sys
from lockstep.testing import CausalSession, Cluster
cluster = Cluster(nodes=1).start()
print(cluster.directory, cluster.nodes[0].address, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["sys.stdin.read()", "os._exit(3)"], ids=["killed", "exits"])
def test_nothing_is_left_of_a_process_that_ends_without_cleaning_up(end: str) -> None:
    program = [sys.executable, "-c", MAKER.format(end=end)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    with subprocess.Popen(
        program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as made:
        assert made.stdout is not None
        directory = Path(made.stdout.readline().split()[0])
        identity = processes.recorded(directory / "test" / "n1" / "pid")
        assert identity is not None
        made.send_signal(signal.SIGKILL)
        made.wait()
    assert processes.wait_until(lambda: processes.look(identity) is State.STOPPED, 15)
    assert processes.wait_until(lambda: not directory.exists(), 15)


def test_a_node_that_cannot_start_says_why_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(nodes=1, settings={"cluster": {"join": False}})
    program = (sys.executable, "-c", "print('error[CONFIG]: no'); exit(2)")
    monkeypatch.setattr(cluster.local, "_command", program)
    with pytest.raises(LockstepError, match="n1 did not start: no"), cluster:
        pass
    assert not cluster.directory.exists()
