"""Joining on real processes: dead seeds, refused nodes, features, nodes without tokens and real drivers."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local.clusters import LocalCluster
from tests.acceptance import parts
from tests.acceptance.parts import (
    ADMIN_PORT,
    INTERNODE_PORT,
    connect,
    lockstep,
    make_table,
    node_process,
    node_settings,
    run_node,
    until,
    write_settings,
)

pytestmark = pytest.mark.slow

FIRST, ZERO, LATE, REFUSED = "127.0.23.1", "127.0.23.4", "127.0.23.9", "127.0.23.10"
HOST = f"{FIRST}:{ADMIN_PORT}"
SETTINGS = {
    "testing": {"faults": True, "hidden_features": ["file-streaming"]},
    "placement": {"num_tokens": 4},
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create(
        "joins", 3, first_address=FIRST, ports=parts.PORTS, home=home, settings=SETTINGS
    )
    with made:
        made.start()
        yield made


def nodes() -> list[dict[str, Any]]:
    answered = lockstep("ring", "--host", HOST, "-o", "json")
    assert answered.code == 0, answered.err
    listed: list[dict[str, Any]] = json.loads(answered.out)["nodes"]
    return listed


def joining(directory: Path, address: str, seeds: list[str], **sections: Any) -> Path:
    found = [f"{seed}:{INTERNODE_PORT}" for seed in seeds]
    settings = node_settings(address, directory / "data", {"name": "joins", "seeds": found}, **sections)
    return write_settings(directory, settings)


def test_a_node_without_tokens_coordinates_requests_and_drivers_keep_their_token_maps(
    cluster: LocalCluster,
) -> None:
    node = cluster.add(tokens=0)
    assert node.address == ZERO
    (listed,) = (one for one in nodes() if one["address"] == ZERO)
    assert (listed["state"], listed["tokens"], listed["owns"]) == ("normal", 0, 0)
    for point in (FIRST, ZERO):
        driver = connect([point])
        session = driver.connect()
        make_table(session)
        session.execute(f"INSERT INTO {parts.KEYSPACE}.load (k, v) VALUES (1, 2)")
        [row] = session.execute(f"SELECT v FROM {parts.KEYSPACE}.load WHERE k = 1")
        assert row.v == 2
        token_map = driver.metadata.token_map
        assert token_map is not None and len(token_map.ring) == 12
        replicas = driver.metadata.get_replicas(parts.KEYSPACE, b"\x00\x00\x00\x01")
        assert len(replicas) == 3 and all(replica.address != ZERO for replica in replicas)
        known = {host.address for host in driver.metadata.all_hosts()}
        assert {FIRST, "127.0.23.2", "127.0.23.3"} <= known and (ZERO in known) == (point == ZERO)
        driver.shutdown()
    left = lockstep("topology", "decommission", str(listed["id"]), "--host", HOST)
    assert left.code == 0, left.err
    assert all(one["address"] != ZERO for one in nodes())


def test_all_seeds_but_one_may_be_dead_and_a_join_goes_on_after_a_kill(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    file = joining(tmp_path, LATE, ["127.0.23.91", "127.0.23.92", FIRST], placement={"num_tokens": 4},
                   testing=SETTINGS["testing"])  # fmt: skip
    with node_process(file) as process:
        until(lambda: any(one["address"] == LATE for one in nodes()), 30.0)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with node_process(file) as process:
        until(lambda: [one["state"] for one in nodes() if one["address"] == LATE] == ["normal"], 30.0)
        (listed,) = (one for one in nodes() if one["address"] == LATE)
        left = lockstep("topology", "decommission", str(listed["id"]), "--host", HOST)
        assert left.code == 0, left.err
        process.wait(timeout=20)


def test_a_refused_node_says_why_and_ends_and_its_directory_serves_once_that_is_mended(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    lacking = ["file-streaming", "cluster-features"]
    refused = joining(
        tmp_path, REFUSED, [FIRST], testing={"faults": True, "hidden_features": lacking},
        placement={"num_tokens": 4},
    )  # fmt: skip
    run_node(refused).refused("PRECONDITION", 3, "refuses this node", "cluster-features")
    assert all(one["address"] != REFUSED for one in nodes())
    mended = joining(tmp_path, REFUSED, [FIRST], placement={"num_tokens": 4}, testing=SETTINGS["testing"])
    with node_process(mended) as process:
        until(lambda: [one["state"] for one in nodes() if one["address"] == REFUSED] == ["normal"], 30.0)
        (listed,) = (one for one in nodes() if one["address"] == REFUSED)
        assert lockstep("topology", "decommission", str(listed["id"]), "--host", HOST).code == 0
        process.wait(timeout=20)
    run_node(mended).refused("PRECONDITION", 3, "has left the cluster")


def test_a_feature_is_enabled_after_the_last_upgrade_and_an_old_node_does_not_start(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    def enabled() -> list[str]:
        answered = lockstep("features", "--host", HOST, "-o", "json")
        assert answered.code == 0, answered.err
        return [one["name"] for one in json.loads(answered.out)["features"] if one["enabled"]]

    assert "file-streaming" not in enabled()
    hidden = 'hidden_features = ["file-streaming"]'
    for node in cluster.file.nodes:
        if cluster.state(node.name).value != "running":
            continue
        file = cluster.paths.configuration(node.name)
        old = file.read_text()
        assert hidden in old
        cluster.stop([node.name])
        file.write_text(old.replace(hidden, "hidden_features = []"))
        cluster.start([node.name])
    until(lambda: "file-streaming" in enabled(), 30.0)
    shown = lockstep("features", "--host", HOST)
    assert "enabled" in shown.out and "sorted files" in shown.out
    cluster.stop(["n3"])
    cluster.paths.configuration("n3").write_text(old)
    run_node(cluster.paths.configuration("n3")).refused("PRECONDITION", 3, "uses file-streaming")
