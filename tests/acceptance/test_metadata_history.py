"""What becomes of the metadata log over a long time: snapshots, truncation, nodes that were away, dumps.

Real node processes; the tests are the chapters of one story and run in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent

from lockstep.local import layout
from lockstep.local.clusters import LocalCluster
from lockstep.local.layout import LocalNode
from tests.acceptance import parts
from tests.acceptance.parts import ADMIN_PORT, lockstep, until

pytestmark = pytest.mark.slow

FIRST = "127.0.1.161"
HOST = f"{FIRST}:{ADMIN_PORT}"
#: Entries made while one node is away, several snapshots' worth.
ENTRIES = 3000
SNAPSHOT_EVERY, RETAINED = 600, 300


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home = tmp_path_factory.mktemp("home")
    kept = {"snapshot_every_epochs": SNAPSHOT_EVERY, "retain_entries": RETAINED}
    with LocalCluster.create(
        "history", 3, first_address=FIRST, ports=parts.PORTS, home=home, settings={"metadata": kept}
    ) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def session(cluster: LocalCluster) -> Iterator[Session]:
    # Every change is one entry; that this driver looks at the schema after each is not the matter here.
    driver = parts.connect(
        cluster.contact_points[:2],
        schema_metadata_enabled=False,
        token_metadata_enabled=False,
        max_schema_agreement_wait=0,
    )
    yield driver.connect()
    driver.shutdown()


def log_of(cluster: LocalCluster, name: str) -> dict[str, Any]:
    found: dict[str, Any] = cluster.admin(name).get("/v1/cms")["log"]
    return found


def epoch(cluster: LocalCluster, name: str) -> int:
    return int(cluster.admin(name).get("/v1/status")["epoch"])


def all_agree(cluster: LocalCluster) -> None:
    epochs: dict[str, int] = {}

    def same() -> bool:
        epochs.update({node.name: epoch(cluster, node.name) for node in cluster.file.nodes})
        return len(set(epochs.values())) == 1

    try:
        until(same)
    except AssertionError:
        tails = [cluster.paths.log(node.name).read_text()[-1500:] for node in cluster.file.nodes]
        raise AssertionError("\n".join([str(epochs), *tails])) from None
    done = lockstep("metadata", "verify", "--host", HOST)
    assert done.code == 0, done.out + done.err
    assert done.out.count("agrees") == len(cluster.file.nodes)


def test_a_node_that_was_away_for_several_snapshots_comes_back_by_the_newest(
    cluster: LocalCluster, session: Session
) -> None:
    parts.make_table(session)
    cluster.stop(["n3"])
    left_at = epoch(cluster, "n1")
    changes = [(f"ALTER TABLE {parts.KEYSPACE}.load WITH comment = '{n}'", None) for n in range(ENTRIES)]
    done = execute_concurrent(session, changes, concurrency=64, raise_on_first_error=False)
    assert [result for success, result in done if not success] == []
    assert epoch(cluster, "n1") >= left_at + ENTRIES
    assert lockstep("cms", "truncate", "--host", HOST).code == 0
    until(lambda: log_of(cluster, "n1")["oldest_entry"] > left_at + ENTRIES // 2)
    cluster.start(["n3"])
    all_agree(cluster)
    assert "metadata.snapshot" in cluster.paths.log("n3").read_text()
    assert log_of(cluster, "n3")["oldest_entry"] > left_at + ENTRIES // 2


def test_a_newcomer_joins_although_the_log_no_longer_begins_at_the_first_entry(cluster: LocalCluster) -> None:
    cluster.add()
    all_agree(cluster)


def test_what_changed_is_told_between_epochs_that_are_kept_and_refused_before(cluster: LocalCluster) -> None:
    newest = epoch(cluster, "n1")
    done = lockstep("metadata", "diff", str(newest - 10), str(newest), "--host", HOST)
    assert done.code == 0, done.err
    assert f"{FIRST[:-1]}4" in done.out, "the node that joined"
    refused = lockstep("metadata", "diff", "2", str(newest), "--host", HOST)
    refused.refused("LOG_TRUNCATED", 1, "not that of epoch 2")


def test_a_dump_is_verified_and_seeds_the_directory_of_a_new_node(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    file = str(tmp_path / "metadata.dump")
    dumped = lockstep("cms", "dump", file, "--host", HOST)
    assert dumped.code == 0, dumped.err
    at = epoch(cluster, "n1")
    checked = lockstep("cms", "load", file, "--check")
    assert checked.code == 0, checked.err
    assert str(at) in checked.out

    content = cluster.file
    seeded = LocalNode("n5", layout.address_at(FIRST, 4))
    content = msgspec.structs.replace(content, nodes=(*content.nodes, seeded))
    layout.write_configuration(cluster.paths, content, seeded)
    layout.write(cluster.paths, content)
    loaded = lockstep("cms", "load", file, "--data-directory", str(cluster.paths.data("n5")))
    assert loaded.code == 0, loaded.err
    again = lockstep("cms", "load", file, "--data-directory", str(cluster.paths.data("n5")))
    assert again.code != 0
    cluster.start(["n5"])
    all_agree(cluster)

    damaged = bytearray(Path(file).read_bytes())
    damaged[len(damaged) // 2] ^= 1
    Path(file).write_bytes(damaged)
    assert lockstep("cms", "load", file, "--check").code != 0
    assert parts.settled_errors(cluster) == ""
