"""The port of read sessions with TLS, and the sessions of running readers as operators see and end them."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from click.testing import CliRunner, Result

from lockstep.cli.main import root
from lockstep.local.clusters import LocalCluster
from lockstep.scans.messages import SessionOrder
from lockstep.scans.session_files import Expired
from lockstep.spark import scan_arrow, snapshot_reading
from lockstep.spark.cql_client import CqlConnection, Endpoint, Login, pool_of
from lockstep.spark.options import Options, parse_options
from lockstep.spark.snapshot_reading import SnapshotScan
from lockstep.spark.snapshots import ask, endpoint_of, open_snapshot
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN
from tests.server.certificates import Authority

from .support import _PROCESS, PORTS, TIMEOUT_S, column_files, options

WHOLE = [(TOKEN_MIN, TOKEN_MAX)]
ROWS = 500


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Iterator[LocalCluster]:
    """One node that speaks TLS to clients, with a table of ROWS rows."""
    home, first = tmp_path_factory.mktemp("clusters"), f"127.0.{112 + _PROCESS}.1"
    certificate, key = authority.issue("node")
    tls = {"certificate": str(certificate), "key": str(key)}
    made = LocalCluster.create(
        "sealed", 1, home=home, first_address=first, ports=PORTS, settings={"tls": tls}
    )
    with made:
        made.start()
        login = Login("", "", str(authority.certificate))
        connection = CqlConnection.open(Endpoint(made.contact_points[0], PORTS[0], login), TIMEOUT_S)
        one = "{'class': 'NetworkTopologyStrategy', 'dc1': 1}"
        connection.query(f"CREATE KEYSPACE shop WITH replication = {one}")
        connection.query("CREATE TABLE shop.t (id int PRIMARY KEY, v int)")
        for number in range(ROWS):
            connection.query(f"INSERT INTO shop.t (id, v) VALUES ({number}, {number})")
        connection.close()
        yield made
        pool_of(os.getpid()).close()


def given(cluster: LocalCluster, authority: Authority) -> Options:
    every = ",".join(cluster.contact_points)
    return parse_options({**options(cluster, "t"), "hosts": every, "tlsca": str(authority.certificate)})


def test_the_read_port_speaks_tls_where_clients_do(
    sealed: LocalCluster, authority: Authority, tmp_path: Path
) -> None:
    wanted = given(sealed, authority)
    snapshot = open_snapshot(wanted)
    (node,) = snapshot.nodes
    port = ask(
        wanted, endpoint_of(wanted, node), SessionOrder("find", snapshot.session, snapshot.secret)
    ).port
    rows = sum(batch.num_rows for batch in SnapshotScan(wanted, snapshot, ("v",)).ranges(WHOLE))
    assert rows == ROWS
    # Who speaks without it is not answered in clear, and one that another authority signed is not believed.
    scan = SnapshotScan(wanted, snapshot, ("v",))
    request = snapshot_reading.framed(scan._wanted(((b"\x01", b"\x02"),)))
    with socket.create_connection((node.address, port), TIMEOUT_S) as plain:
        answered = b""
        with contextlib.suppress(ConnectionResetError):
            plain.sendall(request)
            answered = plain.recv(64)
        assert b"batch" not in answered and b"refusal" not in answered
    strange = Authority(tmp_path, "strange")
    with pytest.raises(OSError, match="CERTIFICATE_VERIFY_FAILED"):
        snapshot_reading._connected(
            parse_options({**options(sealed, "t"), "tlsca": str(strange.certificate)}), (node.address, port)
        )
    found = scan_arrow(
        "shop",
        "t",
        ["v"],
        hosts=sealed.contact_points[0],
        port=str(PORTS[0]),
        tlsCa=str(authority.certificate),
    ).read_all()
    assert sorted(found["v"].to_pylist()) == list(range(ROWS))


def run(cluster: LocalCluster, *words: str) -> Result:
    return CliRunner().invoke(root, [*words, "--host", f"{cluster.contact_points[0]}:{PORTS[2]}"])


def test_operators_see_a_session_that_is_read_and_end_it(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lockstep.local.clusters.layout.clusters_home", lambda: cluster.paths.root.parent)
    monkeypatch.setattr(snapshot_reading, "_ANSWER_BYTES", 4000)
    wanted = parse_options(options(cluster, "events", consistencyLevel="ONE"))
    for path in [path for place in column_files(cluster) for path in place.glob("*")]:
        # What was decoded before comes whole.
        path.unlink()
    listed: Any = json.loads(run(cluster, "pipeline", "sessions", "list", "-o", "json").stdout)
    others = {one["id"] for one in listed["sessions"]}
    snapshot = open_snapshot(wanted)
    batches = SnapshotScan(wanted, snapshot, ("day",)).ranges(WHOLE)
    assert next(batches).num_rows
    listed = json.loads(run(cluster, "pipeline", "sessions", "list", "-o", "json").stdout)
    (one,) = (one for one in listed["sessions"] if one["id"] not in others)
    assert (one["id"], one["keyspace"], one["table"]) == (snapshot.session, "shop", "events")
    assert one["nodes"] == [1, 2, 3] and 0 < one["lease_left_ms"] <= 600_000
    assert f"read session {snapshot.session} of shop.events" in run(cluster, "status").stdout
    assert snapshot.session in run(cluster, "why", f"session:{snapshot.session}").stdout
    dry = run(cluster, "pipeline", "sessions", "cancel", snapshot.session, "--dry-run")
    assert dry.stdout.startswith("would end") and next(batches).num_rows
    ended = run(cluster, "pipeline", "sessions", "cancel", snapshot.session)
    assert ended.exit_code == 0 and "at 3 nodes" in ended.stdout, ended.output
    with pytest.raises(Expired, match="snapshot expired"):
        list(batches)
    listed = json.loads(run(cluster, "pipeline", "sessions", "list", "-o", "json").stdout)
    assert {one["id"] for one in listed["sessions"]} <= others
    assert f"session {snapshot.session}" not in run(cluster, "status").stdout
    told = run(cluster, "why", f"session:{snapshot.session}")
    assert told.exit_code != 0 and "there is no read session" in told.output
