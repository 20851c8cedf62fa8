"""A replica whose table files are damaged: others answer every kind of request, and all nodes say why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.node import recover_stopped
from lockstep.local.admin_client import AdminClient
from lockstep.testing.clusters import Cluster
from lockstep.testing.conversation import CqlError
from lockstep.testing.nodes import Node, Session

pytestmark = pytest.mark.slow

ROWS = 200
COUNTED = 60


def fill(session: Session) -> None:
    for text in (
        "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
        "CREATE TABLE k.t (p int, c int, v text, w int, PRIMARY KEY (p, c))",
        "CREATE INDEX ON k.t (w)",
        "CREATE TABLE k.cas (p int PRIMARY KEY, v int)",
        "CREATE TABLE k.counts (p int PRIMARY KEY, v counter)",
    ):
        session.execute(text)
    for i in range(ROWS):
        values = (i // 4, i, "x" * 80, i % 5)
        session.execute("INSERT INTO k.t (p, c, v, w) VALUES (?, ?, ?, ?)", values, consistency="ALL")
    for i in range(COUNTED):
        session.execute("INSERT INTO k.cas (p, v) VALUES (?, ?) IF NOT EXISTS", (i, i))
        session.execute("UPDATE k.counts SET v = v + 1 WHERE p = ?", (i,), consistency="ALL")


def damage(node: Node) -> Path:
    """One bit in each 2 KiB of the tables' part of the node's only file, while it is stopped.

    A node that stops writes what was in memory to a file, and it has stopped once: with a second file the
    library merges the two, at this end or at the next start, and which file is read then is not certain."""
    node.stop()
    [file] = (node.log_path.parent / "data" / "store").glob("*.sst")
    content = bytearray(file.read_bytes())
    for at in range(100, len(content) * 6 // 10, 2048):
        content[at] ^= 1
    file.write_bytes(content)
    return file


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(3) as made:
        with made.session() as session:
            fill(session)
        yield made


def test_requests_go_to_other_replicas_and_everybody_is_told(cluster: Cluster) -> None:
    damaged = cluster.nodes[2]
    file = damage(damaged)
    damaged.start()
    for turn, asked in enumerate((damaged, cluster.nodes[0])):
        with asked.session() as session:
            all_kinds_of_requests(session, turn)
    with damaged.session() as session, pytest.raises(CqlError):
        for i in range(ROWS // 4):
            session.execute("SELECT * FROM k.t WHERE p = ?", (i,), consistency="ALL")
    lines = [line for line in damaged.log_tail(2000) if "storage.table_file_damaged" in line]
    assert len(lines) == 1 and file.name in lines[0]
    told = conditions(cluster, damaged)
    assert [one["subject"] for one in told] == [file.name]
    assert "k.t (" in told[0]["detail"]
    deadline_s = time.monotonic() + 20
    while told != conditions(cluster, cluster.nodes[0]):
        assert time.monotonic() < deadline_s, "every node tells of it"
        time.sleep(0.2)


def test_a_scrub_names_the_files_and_a_recovery_fills_what_cannot_be_read(cluster: Cluster) -> None:
    damaged = cluster.nodes[2]
    admin = cluster.local.admin(damaged.name)
    admin.post("/v1/scrub", {})
    while (scrub := admin.get("/v1/scrub"))["state"] == "running":
        time.sleep(0.1)
    known = {one["subject"] for one in conditions(cluster, damaged)}
    assert {one["file"] for one in scrub["damaged"]} == known
    assert scrub["checked"] == scrub["files"] >= len(known)
    damaged.stop()
    file = damaged.log_path.parent / "lockstep.toml"
    found, lacks = recover_stopped(file, accept_data_loss=False, keep_readable=True, dry_run=False)
    assert lacks and not any(lack.is_everything for lack in lacks)
    assert found.alone == ()
    damaged.start()
    with damaged.session() as session:
        # While it lacks them and afterwards, all rows are there.
        all_kinds_of_requests(session, 2)
        deadline_s = time.monotonic() + 60
        while conditions(cluster, damaged, "RANGE_LACKING"):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)
        assert conditions(cluster, damaged) == []
        for other in cluster.nodes[:2]:
            other.kill()
        assert len(session.execute("SELECT * FROM k.t", consistency="ONE")) == ROWS
        assert len(session.execute("SELECT * FROM k.cas", consistency="ONE")) == COUNTED
        for i in range(COUNTED):
            assert session.execute("SELECT v FROM k.counts WHERE p = ?", (i,), consistency="ONE")[0].v == 4


def all_kinds_of_requests(session: Session, turn: int) -> None:
    for level in ("ONE", "QUORUM"):
        for i in range(ROWS // 4):
            assert len(session.execute("SELECT * FROM k.t WHERE p = ?", (i,), consistency=level)) == 4
        assert len(session.execute("SELECT * FROM k.t", consistency=level)) == ROWS
        found = session.execute("SELECT * FROM k.t WHERE w = 3", consistency=level)
        assert len(found) == ROWS // 5
    for i in range(COUNTED):
        was, is_ = i + 1000 * turn, i + 1000 * (turn + 1)
        assert session.execute("SELECT v FROM k.cas WHERE p = ?", (i,), consistency="SERIAL")[0].v == was
        assert session.execute("UPDATE k.cas SET v = ? WHERE p = ? IF v = ?", (is_, i, was))[0][0]
        session.execute("UPDATE k.counts SET v = v + 1 WHERE p = ?", (i,))
        assert session.execute("SELECT v FROM k.counts WHERE p = ?", (i,))[0].v == turn + 2


def conditions(cluster: Cluster, asked: Node, code: str = "TABLE_FILE_DAMAGED") -> list[dict[str, Any]]:
    status = AdminClient(asked.address, 7080).get("/v1/status")
    return [
        {key: one[key] for key in ("code", "subject", "detail")}
        for one in status["conditions"]
        if one["code"] == code
    ]
