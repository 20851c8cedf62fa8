"""Replication changes on real processes in two data centres, while a client writes and reads at QUORUM.

No error may reach the client, and whatever was acknowledged is there after each change. The tests are the
chapters of one story and run in their order.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, Load, lockstep, until

pytestmark = pytest.mark.slow

FIRST = "127.0.31.1"
HOST = f"{FIRST}:{ADMIN_PORT}"
KEYSPACE = "walk"
#: Enough to see sizes, and to be copied in a moment.
ROWS, ROW_BYTES = 200, 1000


def ballast(key: int) -> str:
    """ROW_BYTES characters that compress to half of that at best."""
    return random.Random(key).randbytes(ROW_BYTES // 2).hex()


class Story:
    def __init__(self, cluster: LocalCluster, load: Load) -> None:
        self.cluster, self.load = cluster, load

    def run(self, *arguments: str) -> str:
        done = lockstep(*arguments, "--host", HOST)
        assert done.code == 0, done.out + done.err
        return done.out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.run(*arguments, "-o", "json"))

    def replicas(self) -> list[set[int]]:
        """The read replicas of every range; nobody else is written."""
        ranges = self.json("ring", KEYSPACE)["ranges"]
        assert all(sorted(one["reads"]) == sorted(one["writes"]) for one in ranges)
        return [set(one["reads"]) for one in ranges]

    def settled(self, **factors: int) -> None:
        """The keyspace has these replicas, and all that the client was told is written is there."""
        wanted = ", ".join(f"'{dc}': '{factor}'" for dc, factor in sorted(factors.items()))
        assert wanted in self.run("describe", KEYSPACE).replace('"', "'")
        dcs = {node["id"]: node["dc"] for node in self.json("ring")["nodes"]}
        for replicas in self.replicas():
            assert {dc: sum(dcs[node] == dc for node in replicas) for dc in factors} == factors
            assert len(replicas) == sum(factors.values())
        self.load.goes_on()
        found = self.load.session.execute(f"SELECT count(*) FROM {KEYSPACE}.ballast").one()
        assert found[0] == ROWS


@pytest.fixture(scope="module")
def story(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Story]:
    home = tmp_path_factory.mktemp("home") / "clusters"
    with LocalCluster.create(
        "walk", dcs=(("dc1", 3), ("dc2", 2)), first_address=FIRST, ports=parts.PORTS, home=home
    ) as cluster:
        cluster.start()
        driver = parts.connect([FIRST])
        session = driver.connect()
        parts.make_table(session, KEYSPACE, 1)
        session.execute(f"CREATE TABLE {KEYSPACE}.ballast (k int PRIMARY KEY, v text)")
        insert = session.prepare(f"INSERT INTO {KEYSPACE}.ballast (k, v) VALUES (?, ?)")
        for key in range(ROWS):
            session.execute(insert, (key, ballast(key)))
        driver.shutdown()
        load = Load([FIRST], keyspace=KEYSPACE)
        try:
            yield Story(cluster, load)
            load.stop()
            assert load.errors == []
            load.check_all()
            assert parts.settled_errors(cluster) == ""
        finally:
            load.close()


def test_a_dry_run_names_steps_and_bytes_and_its_plan_is_carried_out(story: Story, tmp_path: Path) -> None:
    before = story.json("ring", KEYSPACE)
    file = tmp_path / "plan.json"
    plan = story.json("topology", "rf", KEYSPACE, "dc1=3", "--dry-run", "--plan", str(file))
    assert (plan["kind"], plan["keyspace"], plan["point_of_no_return"]) == (
        "replication_change",
        KEYSPACE,
        None,
    )
    replications = [step["replication"] for step in plan["steps"] if "replication" in step]
    assert list(dict.fromkeys(replications)) == [
        "NetworkTopologyStrategy dc1 2",
        "NetworkTopologyStrategy dc1 3",
    ]
    assert plan["moves"] and all(move["bytes"] for move in plan["moves"] if move["ranges"] > 4)
    assert "dc1 3: write_both_read_old" in story.run("topology", "rf", KEYSPACE, "dc1=3", "--dry-run")
    assert story.json("ring", KEYSPACE)["ranges"] == before["ranges"]
    story.load.goes_on()
    ended = story.json("topology", "apply", str(file))
    assert (ended["state"], ended["keyspace"]) == ("done", KEYSPACE)
    estimated, moved = plan["estimate"]["bytes"], ended["progress"]["bytes"]
    # The first step copies everything once, the second from both replicas.
    assert moved > 2 * ROWS * ROW_BYTES and moved / 1.5 < estimated < moved * 1.5, (estimated, moved)
    story.settled(dc1=3)
    stale = lockstep("topology", "apply", str(file), "--host", HOST)
    assert stale.code == 3, stale.out + stale.err


def test_alter_keyspace_waits_until_a_replica_less_is_there(story: Story) -> None:
    statement = (
        f"ALTER KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 2}}"
    )
    answer = story.load.session.execute(statement)
    assert not answer.response_future.warnings
    story.settled(dc1=2)


def test_a_data_centre_is_added_and_its_rows_are_read_there(story: Story) -> None:
    story.run("topology", "rf", KEYSPACE, "dc1=2", "dc2=2")
    story.settled(dc1=2, dc2=2)


def test_midway_a_cancel_leads_back_and_everyone_sees_the_keyspace_as_it_was(story: Story) -> None:
    asked = story.json("topology", "rf", KEYSPACE, "dc1=3", "dc2=1", "--no-wait")
    until(lambda: any(request["state"] == "running" for request in live(story)))
    # What clients see meanwhile has no name that only operations know.
    assert "apart" not in story.run("describe", KEYSPACE) and story.json("ring", KEYSPACE)["ranges"]
    story.run("topology", "cancel", str(asked["id"]))
    until(lambda: not live(story))
    story.settled(dc1=2, dc2=2)


def test_the_first_data_centre_is_dropped(story: Story) -> None:
    story.run("topology", "rf", KEYSPACE, "dc1=1", "dc2=2")
    story.settled(dc1=1, dc2=2)
    story.run("topology", "rf", KEYSPACE, "dc2=2")
    story.settled(dc2=2)


def live(story: Story) -> list[Any]:
    listed = story.json("topology", "requests")["requests"]
    return [request for request in listed if request["state"] in ("queued", "running")]
