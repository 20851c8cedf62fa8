"""Sudden deaths, partitions and moves while metadata changes: nothing acknowledged is lost, no epoch falls.

Real node processes; most tests are the chapters of one story and run in their order.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cassandra.cluster import NoHostAvailable, Session

from lockstep.local import layout
from lockstep.local.clusters import LocalCluster
from lockstep.values.errors import LockstepError
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, lockstep, until

pytestmark = pytest.mark.slow

FIRST, MOVED, DCS_FIRST = "127.0.1.191", "127.0.1.201", "127.0.1.211"
#: Rounds in which all nodes are killed at once, and in which one is while the voters change.
ALL_ROUNDS, ONE_ROUNDS = 2, 8
SEED = 20
SETTLED_S = 20.0


class Epochs:
    """Asks every node for its epoch all the time; remembers each that went back."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.answers = 0
        self.shown: dict[str, int] = {}
        self.went_back: list[tuple[str, int, int]] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="epochs")
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(0.02):
            for node in self._cluster.file.nodes:
                try:
                    epoch = int(self._cluster.admin(node.name, 1).get("/v1/status")["epoch"])
                except LockstepError:
                    continue
                self.answers += 1
                if epoch < self.shown.get(node.name, 0):
                    self.went_back.append((node.name, self.shown[node.name], epoch))
                self.shown[node.name] = max(epoch, self.shown.get(node.name, 0))

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Tables:
    """Clients that create one table after the other, and know which ones they were told of."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.created: list[str] = []
        self._round = 0
        self._end = threading.Event()
        self._threads: list[threading.Thread] = []

    def begin(self, clients: int) -> None:
        self._round += 1
        self._end.clear()
        self._threads = [threading.Thread(target=self._run, args=(number,)) for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()

    def _run(self, client: int) -> None:
        count = 0
        while not self._end.is_set():
            name = f"t{self._round}_{client}_{count}"
            count += 1
            try:
                self.session.execute(f"CREATE TABLE many.{name} (k int PRIMARY KEY)", timeout=15)
            except Exception:
                # Whatever it was, this one was not acknowledged.
                self._end.wait(0.05)
            else:
                self.created.append(name)

    def lost(self) -> list[str]:
        found: set[str] = set()

        def asked() -> bool:
            query = "SELECT table_name FROM system_schema.tables WHERE keyspace_name = 'many'"
            try:
                found.update(row.table_name for row in self.session.execute(query))
            except NoHostAvailable:
                # The driver has not yet found the nodes again.
                return False
            return True

        until(asked)
        return [name for name in self.created if name not in found]


class Story:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.epochs = Epochs(cluster)
        self.names = [node.name for node in cluster.file.nodes]
        # These clients only make entries; what their driver knows of the schema is not the matter here.
        self.driver = parts.connect(
            cluster.contact_points,
            schema_metadata_enabled=False,
            token_metadata_enabled=False,
            max_schema_agreement_wait=0,
        )
        session = self.driver.connect()
        session.execute(
            "CREATE KEYSPACE many WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        self.tables = Tables(session)

    def close(self) -> None:
        self.tables.end()
        self.epochs.close()
        self.driver.shutdown()

    def settles(self, size: int, asked: str = "n1", timeout_s: float = SETTLED_S) -> list[int]:
        return settles(self.cluster, size, asked, timeout_s)


def settles(cluster: LocalCluster, size: int, asked: str, timeout_s: float = SETTLED_S) -> list[int]:
    seen: dict[str, Any] = {}

    def settled() -> bool:
        try:
            seen.update(cluster.admin(asked).get("/v1/cms/reconfiguration"))
            # The management group follows a moment later; cut in between, it may have no majority.
            following = cluster.admin(asked).get("/v1/cms")["management"].get("voters")
        except LockstepError:
            return False
        return bool(seen["settled"]) and len(seen["voters"]) == size and following == seen["voters"]

    until(settled, timeout_s)
    return list(seen["voters"])


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("home")
    with LocalCluster.create("faults", 3, first_address=FIRST, ports=parts.PORTS, home=home) as cluster:
        cluster.start()
        cluster.add()
        cluster.add()
        told = Story(cluster)
        try:
            yield told
        finally:
            told.close()


def test_all_nodes_die_in_the_middle_of_commits_and_nothing_acknowledged_is_lost(story: Story) -> None:
    for _ in range(ALL_ROUNDS):
        story.tables.begin(clients=4)
        until(lambda: len(story.tables.created) > 20)
        time.sleep(0.5)
        story.cluster.kill(*story.names)
        story.tables.end()
        story.cluster.start()
        assert story.tables.lost() == []
    until(lambda: story.epochs.answers > 50)
    assert story.epochs.went_back == []


def test_one_node_after_another_dies_while_the_voters_change(story: Story) -> None:
    chance = random.Random(SEED)
    story.tables.begin(clients=2)
    for round_ in range(ONE_ROUNDS):
        size = (1, 3, 5)[round_ % 3]
        until(lambda size=size: wished(story, chance.choice(story.names), size))
        time.sleep(chance.random() * 0.15)
        victim = chance.choice(story.names)
        story.cluster.kill(victim)
        story.cluster.start([victim])
        story.settles(size)
    story.tables.end()
    assert story.tables.lost() == []
    assert story.epochs.went_back == []
    until(lambda: len({epoch_of(story, name) for name in story.names}) == 1)
    verified = lockstep("metadata", "verify", "--host", f"{FIRST}:{ADMIN_PORT}")
    assert verified.code == 0, verified.out + verified.err


def wished(story: Story, asked: str, size: int) -> bool:
    """The wish is in the log; also when it was there before."""
    try:
        story.cluster.admin(asked).post("/v1/cms/reconfigure", {"size": size, "dry_run": False})
    except LockstepError as error:
        assert "no metadata leader" in error.message or "unknown" in error.message, error
        return False
    return True


def epoch_of(story: Story, name: str) -> int:
    return int(story.cluster.admin(name).get("/v1/status")["epoch"])


def test_the_voters_change_while_some_are_cut_off_or_paused(story: Story) -> None:
    cluster, names = story.cluster, story.names
    assert lockstep("cms", "reconfigure", "3", "--host", f"{FIRST}:{ADMIN_PORT}").code == 0
    voters = [names[voter - 1] for voter in story.settles(3)]
    others = [name for name in names if name not in voters]
    # One voter and one other node on the small side: it changes nothing, the large side goes on.
    small = [voters[-1], others[-1]]
    large = [name for name in names if name not in small]
    cluster.partition(small, large)
    until(lambda: cluster.admin(large[0]).get("/v1/status")["leader"] not in (None, int(small[0][1:])))
    keep = ",".join(name[1:] for name in large)
    done = lockstep(
        "cms", "reconfigure", "--nodes", keep, "--timeout", "60", "--host", address(cluster, large[0])
    )
    assert done.code == 0, done.err
    assert sorted(story.settles(3, large[0])) == sorted(int(name[1:]) for name in large)
    assert epoch_of(story, small[0]) < epoch_of(story, large[0])
    cluster.heal()
    until(lambda: len({epoch_of(story, name) for name in names}) == 1)
    assert cluster.admin(small[0]).get("/v1/status")["broken"] is None
    # A voter that answers nothing is outvoted.
    cluster.pause(large[-1])
    try:
        done = lockstep("cms", "reconfigure", "5", "--no-wait", "--host", address(cluster, large[0]))
        assert done.code == 0, done.err
        for change in (("freeze", "one voter answers nothing"), ("thaw",)):
            done = lockstep("cms", *change, "--no-wait", "--host", address(cluster, large[0]))
            assert done.code == 0, done.err
    finally:
        cluster.resume(large[-1])
    story.settles(5, large[0])
    assert story.tables.lost() == []
    assert story.epochs.went_back == []


def address(cluster: LocalCluster, name: str) -> str:
    return f"{cluster.file.node(name).address}:{ADMIN_PORT}"


def test_all_nodes_move_to_other_addresses_together_and_find_each_other(story: Story) -> None:
    cluster = story.cluster
    epochs = [epoch_of(story, name) for name in story.names]
    cluster.stop()
    moved = msgspec.structs.replace(
        cluster.file,
        first_address=MOVED,
        nodes=tuple(
            msgspec.structs.replace(node, address=layout.address_at(MOVED, at))
            for at, node in enumerate(cluster.file.nodes)
        ),
    )
    for node in moved.nodes:
        layout.write_configuration(cluster.paths, moved, node)
    layout.write(cluster.paths, moved)
    cluster.start()
    driver = parts.connect([MOVED])
    try:
        session = driver.connect()
        session.execute("CREATE TABLE many.after_the_move (k int PRIMARY KEY)")
        session.execute("INSERT INTO many.after_the_move (k) VALUES (1)")
    finally:
        driver.shutdown()
    until(lambda: all(node["alive"] for node in cluster.admin("n1").get("/v1/nodes")["nodes"]))
    nodes = cluster.admin("n1").get("/v1/nodes")["nodes"]
    assert sorted(node["address"] for node in nodes) == sorted(cluster.contact_points)
    story.settles(5)
    assert min(epoch_of(story, name) for name in story.names) > max(epochs)
    assert story.epochs.went_back == []
    assert parts.settled_errors(cluster) == ""


def test_no_data_centre_of_three_holds_half_of_the_voters(tmp_path: Path) -> None:
    places = [("east", 4), ("west", 1), ("north", 1)]
    with LocalCluster.create(
        "places", dcs=places, first_address=DCS_FIRST, ports=parts.PORTS, home=tmp_path
    ) as cluster:
        cluster.start()
        voters = settles(cluster, 3, "n1")
        nodes = {node["id"]: node["dc"] for node in cluster.admin("n1").get("/v1/nodes")["nodes"]}
        where = [nodes[voter] for voter in voters]
        assert len(nodes) == 6
        assert all(where.count(dc) * 2 < len(where) for dc in set(where)), where
