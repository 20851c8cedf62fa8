"""The life of the metadata service seen from outside: it grows with its cluster, loses members, and goes on.

Real node processes, the command line and an unmodified driver under load. The tests are the chapters of one
story and run in their order.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest
from cassandra import InvalidRequest, Unavailable
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.policies import WhiteListRoundRobinPolicy

from lockstep.local.clusters import LocalCluster
from lockstep.local.processes import State
from lockstep.values.errors import LockstepError
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, Load, lockstep, until

pytestmark = pytest.mark.slow

FIRST = "127.0.1.101"
FOUNDERS = ["127.0.1.101", "127.0.1.102", "127.0.1.103"]
#: A cluster of three is made and serves within about a second on an idle machine; the rest is for a busy one.
READY_S = 8.0
#: The service follows the size of the cluster by itself; a handful of entries and elections.
GROWTH_S = 15.0
DDL_CLIENTS = 50
#: What a driver waits for an answer unless it is told otherwise.
DDL_DEADLINE_S = 10.0
RACES = 5
REPLICATED = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"


class SchemaEvents:
    """A connection to one node that counts the schema events pushed to it."""

    def __init__(self, address: str) -> None:
        self._cluster = parts.connect([address])
        self._cluster.connect()
        self._events: list[dict[str, str]] = []
        connection = self._cluster.control_connection._connection
        connection.register_watchers({"SCHEMA_CHANGE": self._events.append})

    def seen(self, keyspace: str) -> list[tuple[str, str]]:
        """(what happened, table) of each event about a table of the keyspace."""
        return [
            (event["change_type"], event["table"])
            for event in list(self._events)
            if event["keyspace"] == keyspace and event.get("table")
        ]

    def close(self) -> None:
        self._cluster.shutdown()


class Racers:
    """Two clients, each at a node of its own."""

    def __init__(self, *addresses: str) -> None:
        self._clusters = [
            Cluster([address], port=parts.CQL_PORT, execution_profiles={
                EXEC_PROFILE_DEFAULT: ExecutionProfile(WhiteListRoundRobinPolicy([address]))
            })
            for address in addresses
        ]  # fmt: skip
        self._sessions = [cluster.connect() for cluster in self._clusters]
        self._threads = ThreadPoolExecutor(len(addresses))

    def one(self, statement: str) -> list[Any]:
        return list(self._sessions[0].execute(statement))

    def race(self, *statements: str) -> list[Exception | None]:
        """What each was told; None for success."""

        def run(session: Session, statement: str) -> Exception | None:
            try:
                session.execute(statement)
            except Exception as error:
                return error
            return None

        return list(self._threads.map(run, self._sessions, statements))

    def columns(self, table: str) -> list[str]:
        """Columns of a table as the second node tells them; none when there is no such table."""
        keyspace, _, name = table.partition(".")
        found = self._sessions[1].execute(
            "SELECT column_name FROM system_schema.columns WHERE keyspace_name = %s AND table_name = %s",
            (keyspace, name),
        )
        return sorted(row.column_name for row in found)

    def close(self) -> None:
        self._threads.shutdown()
        for cluster in self._clusters:
            cluster.shutdown()


class Story:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.load = Load(FOUNDERS)
        self.killed: list[str] = []

    def address(self, name: str) -> str:
        return self.cluster.file.node(name).address

    def epoch(self, name: str) -> int:
        return int(self.cluster.admin(name).get("/v1/status")["epoch"])

    def host(self, name: str) -> str:
        return f"{self.address(name)}:{ADMIN_PORT}"

    def voters(self, asked: str) -> dict[str, Any]:
        return self.cluster.admin(asked).get("/v1/cms/reconfiguration")

    def settles(self, size: int, *, without: str = "", asked: str) -> dict[str, Any]:
        """The service has this many voters, `without` this node, and nothing is on its way."""
        seen: dict[str, Any] = {}
        gone = self.node_id(without, asked) if without else 0

        def settled() -> bool:
            try:
                seen.update(self.voters(asked))
            except LockstepError:
                return False
            return bool(seen["settled"]) and len(seen["voters"]) == size and gone not in seen["voters"]

        until(settled, GROWTH_S)
        return seen

    def node_id(self, name: str, asked: str) -> int:
        address = self.address(name)
        nodes = self.cluster.admin(asked).get("/v1/nodes")["nodes"]
        return next((int(node["id"]) for node in nodes if node["address"] == address), 0)

    def name_of(self, node_id: int, asked: str) -> str:
        nodes = self.cluster.admin(asked).get("/v1/nodes")["nodes"]
        address = next(node["address"] for node in nodes if node["id"] == node_id)
        return next(node.name for node in self.cluster.file.nodes if node.address == address)

    def leader(self, asked: str) -> str:
        found: list[int] = []

        def known() -> bool:
            leader = self.cluster.admin(asked).get("/v1/status")["leader"]
            found[:] = [leader] if leader else []
            return bool(found)

        until(known)
        return self.name_of(found[0], asked)


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("home")
    with LocalCluster.create("service", 3, first_address=FIRST, ports=parts.PORTS, home=home) as cluster:
        begin = time.monotonic()
        cluster.start()
        assert time.monotonic() - begin < READY_S
        told = Story(cluster)
        try:
            yield told
        finally:
            told.load.close()


def test_the_service_of_a_new_cluster_begins_with_one_voter_and_grows_to_three(story: Story) -> None:
    story.settles(3, asked="n1")
    entries = story.cluster.admin("n1").get("/v1/metadata/log", **{"from": 1, "to": 4})["entries"]
    assert [entry["kind"] for entry in entries][:2] == ["initialize", "prepare_membership"]
    story.load.goes_on()


def test_a_sixth_and_a_seventh_node_bring_the_service_to_five_voters(story: Story) -> None:
    for _ in range(4):
        story.cluster.add()
    assert story.settles(5, asked="n1")["voters"] == [1, 2, 3, 4, 5]
    story.load.goes_on()


def test_fifty_clients_change_the_schema_at_once_and_each_is_told_once(story: Story) -> None:
    """Every change is accepted inside the driver's deadline, is in the schema of every node, and is announced
    to every connection that asked for events once."""
    names = [f"t{number}" for number in range(DDL_CLIENTS)]
    watcher = SchemaEvents(story.address("n6"))
    session = story.load.session
    session.execute(f"CREATE KEYSPACE many WITH replication = {REPLICATED}")

    def create(name: str) -> float:
        begin = time.monotonic()
        session.execute(f"CREATE TABLE many.{name} (k int PRIMARY KEY, v int)")
        return time.monotonic() - begin

    with ThreadPoolExecutor(DDL_CLIENTS) as clients:
        took_s = list(clients.map(create, names))
    assert max(took_s) < DDL_DEADLINE_S
    versions = {}
    for node in story.cluster.file.nodes:
        one = parts.connect([node.address])
        try:
            own = one.connect()
            found = own.execute("SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'many'")
            assert sorted(row.table_name for row in found) == sorted(names)
            versions[node.name] = own.execute("SELECT schema_version FROM system.local").one().schema_version
        finally:
            one.shutdown()
    assert len(set(versions.values())) == 1, versions
    until(lambda: len(watcher.seen("many")) >= len(names))
    assert sorted(watcher.seen("many")) == sorted(("CREATED", name) for name in names)
    watcher.close()
    story.load.goes_on()


def test_of_two_who_race_one_wins_and_the_other_learns_why(story: Story) -> None:
    with closing(Racers(story.address("n2"), story.address("n5"))) as racers:
        for round_ in range(RACES):
            name, kind = f"many.race{round_}", f"many.kind{round_}"
            one, two = racers.race(
                f"CREATE TABLE {name} (k int PRIMARY KEY, one int)",
                f"CREATE TABLE {name} (k int PRIMARY KEY, two int)",
            )
            assert sorted([type(one).__name__, type(two).__name__]) == ["AlreadyExists", "NoneType"]
            columns = racers.columns(name)
            assert columns == (["k", "one"] if one is None else ["k", "two"])

            one, two = racers.race(f"ALTER TABLE {name} ADD late int", f"DROP TABLE {name}")
            assert two is None
            assert one is None or isinstance(one, InvalidRequest)
            assert racers.columns(name) == []

            racers.one(f"CREATE TYPE {kind} (a int)")
            one, two = racers.race(
                f"DROP TYPE {kind}", f"CREATE TABLE {name}u (k int PRIMARY KEY, v frozen<{kind}>)"
            )
            assert sorted([type(one).__name__, type(two).__name__]) == ["InvalidRequest", "NoneType"]
            assert racers.columns(f"{name}u") == ([] if one is None else ["k", "v"])
    story.load.goes_on()


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader"])
def test_a_voter_that_is_decommissioned_is_substituted_first(story: Story, leads: bool) -> None:
    leader = story.leader("n7")
    voters = [story.name_of(voter, "n7") for voter in story.voters("n7")["voters"]]
    leaving = leader if leads else next(name for name in voters if name not in (leader, "n1"))
    gone = story.node_id(leaving, "n7")
    begin = story.epoch("n7")
    done = lockstep("topology", "decommission", story.address(leaving), "--host", story.host("n7"))
    assert done.code == 0, done.err
    # Six nodes stay, then five: five voters suit the one, three the other.
    state = story.settles(3 if leads else 5, asked="n7")
    assert gone not in state["voters"]
    entries = story.cluster.admin("n7").get("/v1/metadata/log", **{"from": begin, "to": state["epoch"]})
    kinds = [entry["kind"] for entry in entries["entries"]]
    left = kinds.index("prepare_operation")
    assert "kind=decommission" in entries["entries"][left]["summary"]
    assert kinds.index("prepare_membership") < left
    # Another takes its vote in two steps; where fewer are to vote it goes in one, and one more behind it.
    assert kinds[:left].count("advance_membership") >= (1 if leads else 2)
    if leads:
        first = next(entry for entry in entries["entries"] if entry["kind"] == "advance_membership")
        assert str(gone) not in re.findall(r"\d+", first["summary"].partition("voters=")[2])
    until(lambda: story.cluster.state(leaving) is State.STOPPED)
    story.cluster.forget(leaving)
    story.load.goes_on()


def test_changes_go_on_when_a_voter_is_killed(story: Story) -> None:
    voters = [story.name_of(voter, "n7") for voter in story.voters("n7")["voters"]]
    story.killed.append(next(name for name in voters if name not in ("n7", story.leader("n7"))))
    story.cluster.kill(*story.killed)
    begin = time.monotonic()
    story.load.session.execute(f"ALTER TABLE {parts.KEYSPACE}.load ADD while_one_voter_is_down int")
    assert time.monotonic() - begin < 5
    story.load.goes_on()


def test_requests_go_on_when_most_voters_are_killed_and_changes_end_in_bounded_time(story: Story) -> None:
    alive = [node.name for node in story.cluster.file.nodes if node.name not in story.killed]
    story.load.stop()
    leader = story.leader("n7")
    voters = [story.name_of(voter, "n7") for voter in story.voters("n7")["voters"]]
    behind = next(name for name in alive if name not in ("n7", *voters))
    admin, host = story.cluster.admin("n7"), story.host("n7")
    story.cluster.kill(behind)
    parts.make_table(story.load.session, "wide", replicas=5)
    story.killed.append(leader)
    story.cluster.kill(leader)
    alive.remove(leader)
    until(lambda: admin.get("/v1/status")["leader"] is None)
    # Entries come from any peer.
    story.cluster.start([behind])
    until(lambda: story.epoch(behind) == story.epoch("n7"))
    # Three replicas of five are left of this keyspace, not two of three of all ranges of the other one.
    wide = Load([story.address(name) for name in alive], keyspace="wide")
    try:
        wide.goes_on(requests=20)
        with ThreadPoolExecutor(2) as both:
            frozen = both.submit(lockstep, "cms", "freeze", "nobody decides", "--host", host)
            begin = time.monotonic()
            with pytest.raises(Unavailable, match="nothing was changed, as no metadata leader was found"):
                wide.session.execute("CREATE TABLE wide.nobody_decides (k int PRIMARY KEY)", timeout=20)
            # The driver asks a second node.
            assert time.monotonic() - begin < 10
            frozen.result().refused("PEER_UNREACHABLE", 4, "nothing was changed")
        status = admin.get("/v1/status")
        assert status["epoch"] == story.epoch(behind)
        assert "no majority of the metadata group" in status["verdict"]
        assert status["groups"]["metastorage"]["state"] == "Unavailable"
        story.cluster.start(story.killed)
        wide.session.execute("CREATE TABLE wide.decided_again (k int PRIMARY KEY)")
        story.settles(3, asked="n7")
        with pytest.raises(InvalidRequest):
            wide.session.execute("SELECT * FROM wide.nobody_decides")
        wide.goes_on()
        wide.stop()
        wide.check_all()
    finally:
        wide.close()
    story.load.check_all()
    done = lockstep("metadata", "verify", "--host", host)
    assert done.code == 0, done.out + done.err
    assert parts.settled_errors(story.cluster) == ""
