"""What operations tell of themselves on real processes: dry runs estimate what is moved then, and what was
moved is told without going back, also by the next leader.

The tests are the chapters of one story and run in their order; each changes the nodes of one cluster.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from lockstep.local.processes import State
from lockstep.values.errors import LockstepError
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, lockstep, until

pytestmark = pytest.mark.slow

NAME, FIRST = "moved", "127.0.33.1"
HOST = f"{FIRST}:{ADMIN_PORT}"
#: Enough for a decommission that takes seconds at the rate below.
ROWS, ROW_BYTES = 500, 1000
SETTINGS = {
    "streaming": {"throughput_bytes_s": 100_000, "file_bytes": 16 * 1024},
    "placement": {"num_tokens": 4},
}
#: An estimate is this near.
FACTOR = 1.5


class Story:
    def __init__(self, cluster: LocalCluster, home: Path) -> None:
        self.cluster, self.home = cluster, home
        self.all_told: list[int] = []

    def json(self, *arguments: str) -> Any:
        host = () if arguments[0] == "cluster" else ("--host", HOST)
        done = lockstep(*arguments, *host, "-o", "json", home=self.home if not host else None)
        assert done.code == 0, done.out + done.err
        return json.loads(done.out)

    def id_of(self, name: str) -> str:
        return str(self.cluster.node_id(name))

    def last_request(self, name: str = "n1") -> dict[str, Any]:
        """The latest request, as a node tells of it."""
        requests = self.cluster.admin(name).get("/v1/requests")["requests"]
        found: dict[str, Any] = max(requests, key=lambda one: int(one["id"]))
        return found

    def dead(self, name: str) -> None:
        node = int(self.id_of(name))
        self.cluster.kill(name)
        until(lambda: not {n["id"]: n for n in self.json("status")["nodes"]}[node]["alive"])

    # -- operations: what a dry run says, and then the operation itself

    def join(self) -> Any:
        plan = self.json("cluster", "add", NAME, "--dry-run")
        self.cluster.add()
        return plan

    def move(self) -> Any:
        draw = random.Random(3)
        tokens = [f"--token={draw.randrange(-(2**63) + 1, 2**63)}" for _ in range(4)]
        return self.planned("move", self.id_of("n2"), *tokens)

    def rebuild(self) -> Any:
        return self.planned("rebuild", self.id_of("n4"))

    def decommission(self) -> Any:
        return self.planned("decommission", self.id_of("n5"))

    def lose_the_coordinator(self) -> None:
        """While data moves: the node that leaves rests until another one coordinates."""
        self.json("topology", "decommission", self.id_of("n3"), "--no-wait")
        until(lambda: self.told() and self.told()[-1] > 0)
        assert self.last_request()["state"] == "running", "it moves slowly"
        self.cluster.pause("n3")
        leader = self.leader()
        self.cluster.kill(leader)
        until(lambda: self.leader() not in ("", leader))
        self.cluster.start([leader])
        survivor = self.leader()
        before = len(self.all_told)
        assert self.last_request(survivor)["state"] == "running", "another one coordinates"
        until(lambda: len(self.told(survivor)) > before)
        self.cluster.resume("n3")
        until(lambda: self.told(survivor) and self.last_request(survivor)["state"] == "done", 40)

    def remove(self) -> Any:
        self.dead("n4")
        return self.planned("remove", self.id_of("n4"))

    def replace(self) -> Any:
        dead = self.id_of("n2")
        self.dead("n2")
        plan = self.json("topology", "replace", dead, "--dry-run")
        self.cluster.add(replaces="n2")
        return plan

    def planned(self, *wanted: str) -> Any:
        plan = self.json("topology", *wanted, "--dry-run")
        self.json("topology", *wanted)
        return plan

    # -- progress

    def running(self) -> list[str]:
        return [name for name, state in self.cluster.states().items() if state is State.RUNNING]

    def members(self) -> list[str]:
        """Nodes of the ring; one that has left it may run for a moment."""
        alive = {node["address"] for node in self.json("status")["nodes"] if node["alive"]}
        return [node.name for node in self.cluster.file.nodes if node.address in alive]

    def leader(self) -> str:
        """The node that leads the metadata group by its own word; empty while none says so."""
        for name in self.running():
            try:
                if self.cluster.admin(name).get("/v1/requests/live")["leads"]:
                    return name
            except LockstepError:
                continue
        return ""

    def told(self, name: str = "") -> list[int]:
        """What was told of the last request so far, with what a node, any by default, tells now."""
        for one in [name] if name else self.running():
            try:
                request = self.last_request(one)
            except LockstepError:
                continue
            if "bytes" in request["progress"]:
                self.all_told.append(int(request["progress"]["bytes"]))
                assert self.all_told == sorted(self.all_told), f"{one} tells less than was told before"
        return self.all_told


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("home")
    with LocalCluster.create(
        NAME, 4, settings=SETTINGS, first_address=FIRST, ports=parts.PORTS, home=home / "clusters"
    ) as cluster:
        cluster.start()
        driver = parts.connect([FIRST])
        session = driver.connect()
        session.execute("CREATE KEYSPACE k WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 2}")
        session.execute("CREATE TABLE k.ballast (k int PRIMARY KEY, v text)")
        insert = session.prepare("INSERT INTO k.ballast (k, v) VALUES (?, ?)")
        for key in range(ROWS):
            session.execute(insert, (key, random.Random(key).randbytes(ROW_BYTES // 2).hex()))
        driver.shutdown()
        yield Story(cluster, home)
        assert parts.settled_errors(cluster) == ""


@pytest.mark.parametrize(
    "carry_out",
    [Story.join, Story.move, Story.rebuild, Story.replace, Story.remove],
    ids=lambda operation: operation.__name__,
)
def test_a_dry_run_estimates_what_is_moved_then(story: Story, carry_out: Callable[[Story], Any]) -> None:
    estimated(story, carry_out)


def estimated(story: Story, carry_out: Callable[[Story], Any]) -> None:
    plan = carry_out(story)
    until(lambda: story.last_request()["state"] == "done")
    ended = story.last_request()
    assert (ended["kind"], plan["estimate"]["unknown_ranges"]) == (plan["kind"], 0)
    moved, said = ended["progress"]["bytes"], plan["estimate"]["bytes"]
    print(f"{plan['kind']}: estimated {said}, moved {moved}: {said / moved:.2f}")
    assert moved > ROWS * ROW_BYTES / 10, "too little to say anything"
    assert moved / FACTOR < said < moved * FACTOR
    for name in story.members():
        assert story.last_request(name)["progress"]["bytes"] == moved, "every node tells the same"


def test_no_coordinator_tells_less_than_the_one_before_it(story: Story) -> None:
    """One of four leaves, so that three keep the metadata when the leader dies."""
    story.lose_the_coordinator()
    assert story.last_request()["progress"]["bytes"] == story.all_told[-1] > 0


def test_a_dry_run_estimates_what_a_decommission_moves_then(story: Story) -> None:
    estimated(story, Story.decommission)
