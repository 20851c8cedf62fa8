"""Bulk loads while nodes join, die and come back: scenarios 9 to 12 of the data pipeline, on real nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from lockstep.local.admin_client import AdminClient, of_token_file
from lockstep.local.clusters import LocalCluster
from lockstep.spark.cql_client import pool_of
from lockstep.spark.loads.client import LoadClient
from lockstep.spark.loads.files import digest_of
from lockstep.spark.loads.writer import BulkWriter, Staged, commit, planned, stage
from lockstep.spark.options import parse_options
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

from .support import _PROCESS, NOBODYS_ADDRESS, PORTS, connect, options
from .test_loads import gone, rows_of, staged_names

pytestmark = pytest.mark.slow

ROWS = 600
RESIZED_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    home, first = tmp_path_factory.mktemp("clusters"), f"127.0.{72 + _PROCESS}.1"
    with LocalCluster.create("loads", 3, home=home, first_address=first, ports=PORTS) as made:
        made.start()
        connection = connect(made)
        connection.query(
            "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        )
        for name in ("a", "b", "c"):
            connection.query(f"CREATE TABLE shop.{name} (id int PRIMARY KEY, n bigint, v text)")
        connection.close()
        yield made
        pool_of(os.getpid()).close()


def staged_in(cluster: LocalCluster, table: str, **more: str) -> tuple[BulkWriter, Staged]:
    every = ",".join(cluster.contact_points)
    parsed = parse_options({**options(cluster, table), "hosts": every, **more})
    data = rows_of(0, ROWS)
    plan = planned(parsed, data.schema.names, False)
    return BulkWriter(plan), stage(plan, data.to_batches(), 0, 0)


def count(cluster: LocalCluster, table: str, level: Consistency) -> int:
    connection = connect(cluster)
    (found,) = connection.query(f"SELECT count(*) FROM shop.{table}", consistency=level)
    connection.close()
    return int(str(next(iter(found.values()))))


def test_files_outlive_a_restart_and_a_load_its_dead_replica(
    own: LocalCluster, capsys: pytest.CaptureFixture[str]
) -> None:
    writer, staged = staged_in(own, "a")
    own.kill("n2", "n3")
    # Too few replicas are there: nothing is committed, and the load still runs.
    with pytest.raises(LockstepError, match=r"cannot be committed at LOCAL_QUORUM|is not known"):
        commit(writer._plan, [staged])
    own.start(["n2"])
    writer.commit([staged])
    assert "shop.a: nodes 3 lack it: `lockstep repair shop`" in capsys.readouterr().err
    assert count(own, "a", Consistency.QUORUM) == ROWS
    own.start(["n3"])
    # It has no list of what was committed: it lacks the load, and quorums have it.
    assert count(own, "a", Consistency.QUORUM) == ROWS
    assert gone(own)


def test_12_a_join_in_the_middle_has_files_cut_and_staged_again(own: LocalCluster) -> None:
    writer, staged = staged_in(own, "b")
    before = staged_names(own)
    own.add()
    result = commit(writer._plan, [staged])
    # A newcomer's tokens lie inside of ranges.
    assert before and result.files == len(staged.files)
    assert count(own, "b", Consistency.ALL) == ROWS
    assert gone(own)


def test_who_joins_after_the_commit_lacks_nothing(own: LocalCluster) -> None:
    """Asked again, at all: what newcomers hold was streamed to them, and they took no files in."""
    connection = connect(own)
    connection.query("CREATE TABLE shop.d (id int PRIMARY KEY, n bigint, v text)")
    connection.close()
    writer, staged = staged_in(own, "d", consistencyLevel="ALL")
    assert commit(writer._plan, [staged]).lacking == ()
    own.add()
    assert commit(writer._plan, [staged]).lacking == ()
    assert count(own, "d", Consistency.ALL) == ROWS


def test_a_file_to_be_cut_comes_from_a_node_that_answers(own: LocalCluster, tmp_path: Path) -> None:
    """The first host that the job knows is gone, and the job knows one node of all that hold files."""
    writer, staged = staged_in(own, "a")
    for first in (f"{NOBODYS_ADDRESS},{own.contact_points[0]}", own.contact_points[0]):
        client = LoadClient(parse_options({**options(own, "a"), "hosts": first}), writer._plan.job)
        for file in staged.files:
            client._fetch(file, str(tmp_path / file.name))
            assert digest_of(str(tmp_path / file.name)) == file.digest
        client.close()
    writer.abort([])


def test_12_tablets_that_split_have_files_cut_and_staged_again(own: LocalCluster) -> None:
    connection = connect(own)
    connection.query(
        "CREATE KEYSPACE spread WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
        "AND tablets = {'enabled': true, 'initial': 4}"
    )
    connection.query("CREATE TABLE spread.t (id int PRIMARY KEY, n bigint, v text)")
    writer, staged = staged_in(own, "t", keyspace="spread")
    assert len(staged.files) == 4
    split(own, "spread", "t", 8)
    # The node that dies now has files of the tablets that were.
    own.kill("n3")
    result = commit(writer._plan, [staged])
    # Halves are on the same replicas, so the files are whole.
    assert result.files == 4 and result.lacking in ((), (3,))
    found = connection.query("SELECT id, n, v FROM spread.t", consistency=Consistency.QUORUM)
    connection.close()
    assert sorted(tuple(row.values()) for row in found) == [(one, 10 * one, f"v{one}") for one in range(ROWS)]
    own.start(["n3"])
    assert gone(own)


def split(cluster: LocalCluster, keyspace: str, table: str, wanted: int) -> None:
    """Split all tablets of a table, and wait until that has ended."""
    node = cluster.file.nodes[0]
    shown = of_token_file(cluster.paths.data(node.name) / "admin.token", "")
    admin = AdminClient(node.address, PORTS[2], 30.0, shown)
    admin.post("/v1/tablets/resize", {"keyspace": keyspace, "table": table, "kind": "split"})
    until_s = time.monotonic() + RESIZED_WITHIN_S
    while True:
        (shown_table,) = admin.get("/v1/tablets", keyspace=keyspace)["tables"]
        if (shown_table["resize_phase"], shown_table["tablets"]) == ("none", wanted):
            return
        assert time.monotonic() < until_s, shown_table
        time.sleep(0.2)


def test_12_a_load_that_nobody_commits_pins_nothing(own: LocalCluster) -> None:
    writer, _ = staged_in(own, "c")
    connection = connect(own)
    connection.query("DROP TABLE shop.c")
    connection.close()
    writer.abort([])
    assert gone(own)
