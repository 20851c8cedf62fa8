"""Clusters of Lockstep nodes made, broken and removed by the unmodified ccm."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.local import processes
from lockstep.node.settings import emit
from lockstep.testing import ccm, ccm_log, ccm_node, ccm_nodetool, clusters
from lockstep.testing.ccm_node import data_centre, translated, yaml_settings
from lockstep.testing.nodes import Session
from lockstep.values.errors import ConfigurationError

pytest.importorskip("ccmlib")
ROOT = Path(__file__).parents[2]
PORTS = (9042, 7000, 7080)


class Ccm:
    """`self("start")` runs `ccm start`."""

    def __init__(self, home: Path, prefix: str) -> None:
        self.home, self.prefix = home, prefix
        self.install = ccm.install(home / "install")
        self.path = home / ".ccm" / "try"
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "PATH": f"{self.install / 'java'}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")),
        }

    def __call__(self, *arguments: str) -> str:
        program = str(Path(sys.executable).with_name("ccm"))
        done = subprocess.run(
            [sys.executable, "-W", "ignore", program, *arguments],
            env=self.environment, capture_output=True, text=True, check=False, timeout=90,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def log(self, node: str) -> str:
        return (self.path / node / "logs" / "system.log").read_text()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ccm]:
    block = clusters.claim(PORTS)
    made = Ccm(tmp_path_factory.mktemp("ccm"), block.prefix)
    made("create", "try", f"--install-dir={made.install}", "-n", "3", "-i", f"{block.prefix}.")
    yield made
    made("remove")
    block.release()


@pytest.mark.slow
def test_the_life_of_a_cluster_under_ccm(run: Ccm) -> None:
    run("start")
    assert run("status").count(": UP") == 3
    with Session(f"{run.prefix}.1", 9042) as session:
        replication = "{'class': 'SimpleStrategy', 'replication_factor': 3}"
        session.execute(f"CREATE KEYSPACE k WITH replication = {replication}")
        session.execute("CREATE TABLE k.t (a int PRIMARY KEY)")
        run("node2", "stop", "--not-gently")
        session.execute("INSERT INTO k.t (a) VALUES (1)")
        down = f"InetAddress /{run.prefix}.2 is now DOWN"
        assert processes.wait_until(lambda: down in run.log("node1"), 20)
        run("node2", "start", "--wait-for-binary-proto")
        assert session.execute("SELECT a FROM k.t", consistency="ALL") == [(1,)]
    assert "Starting listening for CQL clients" in run.log("node2")
    assert run("node1", "nodetool", "status").count("\nUN") == 3
    assert "completed" in run("node1", "nodetool", "repair", "k", "t")
    assert "Native-Transport-Requests" in run("node1", "nodetool", "tpstats")
    assert "1" in run("node1", "cqlsh", "-e", "SELECT * FROM k.t").split()
    run("add", "node4", "-i", f"{run.prefix}.4", "-b", "-j", "7400")
    run("node4", "start", "--wait-for-binary-proto")
    run("node4", "nodetool", "decommission")
    assert run("node1", "nodetool", "status").count("\nUN") == 3
    run("stop")
    assert run("status").count("UP") == 0


def test_settings_are_translated(tmp_path: Path) -> None:
    install = ccm.install(tmp_path)
    settings = yaml_settings((install / "conf" / "cassandra.yaml").read_text())
    assert settings["seeds"] == "127.0.0.1"
    settings |= {"write_request_timeout": "700ms", "num_tokens": "1", "seeds": "127.0.0.1,127.0.0.2"}
    first = translated(tmp_path, settings, "", ("dc1", "rack1"))
    assert first["cluster"] == {"name": "test", "founders": ["127.0.0.1:7000"]}
    assert first["timeouts"] == {"write_ms": 700}
    second = translated(tmp_path, {**settings, "listen_address": "127.0.0.2"}, "", ("dc1", "rack1"))
    assert second["cluster"] == {"name": "test", "seeds": ["127.0.0.1:7000"]}


def test_snitches_name_the_data_centre(tmp_path: Path) -> None:
    install = ccm.install(tmp_path)
    (install / "conf" / "cassandra-topology.properties").write_text("default=dc1:r1\n127.0.0.2=dc2:r1\n")
    settings = {"endpoint_snitch": "x.PropertyFileSnitch", "listen_address": "127.0.0.2"}
    assert data_centre(install, settings) == ("dc2", "r1")
    assert data_centre(install, {**settings, "listen_address": "127.0.0.9"}) == ("dc1", "r1")
    assert data_centre(install, {"endpoint_snitch": "x.GossipingPropertyFileSnitch"}) == ("dc1", "rack1")
    assert data_centre(install, {"endpoint_snitch": "SimpleSnitch"}) == ("datacenter1", "rack1")


def test_nodes_that_ask_for_passwords_share_a_secret_and_tokens_are_found(tmp_path: Path) -> None:
    yaml = {
        "listen_address": "127.0.0.2",
        "rpc_address": "127.0.0.2",
        "storage_port": "7000",
        "native_transport_port": "9042",
        "seeds": "127.0.0.1",
        "authenticator": "org.apache.cassandra.auth.PasswordAuthenticator",
    }
    found = []
    for name in ("node1", "node2"):
        home = tmp_path / name
        (home / "data0").mkdir(parents=True)
        tables = ccm_node.translated(home, yaml, "", ("dc1", "r1"))
        (home / "lockstep.toml").write_text(emit(tables))
        found.append(tables["cluster"]["join_secret_file"])
    assert found[0] == found[1] == str(tmp_path / "join.secret")
    assert len((tmp_path / "join.secret").read_text().strip()) == 64
    assert stat.S_IMODE((tmp_path / "join.secret").stat().st_mode) == 0o600
    (tmp_path / "node1" / "data0" / "admin.token").write_text("t" * 64)
    assert ccm_node.beside(tmp_path / "node2", "127.0.0.2").authorization == f"Bearer {'t' * 64}"
    assert ccm_node.beside(tmp_path / "node2", "127.0.0.9").authorization == ""


def test_a_line_is_written_when_an_opinion_changes() -> None:
    seen: dict[str, bool] = {}
    assert ccm_log.changes(seen, {"127.0.0.2": False}) == []
    assert ccm_log.changes(seen, {"127.0.0.2": True}) == ["InetAddress /127.0.0.2 is now UP"]
    assert ccm_log.changes(seen, {"127.0.0.2": True}) == []
    assert ccm_log.changes(seen, {"127.0.0.2": False}) == ["InetAddress /127.0.0.2 is now DOWN"]


def test_unknown_commands_of_nodetool_are_refused() -> None:
    assert ccm_nodetool.command(["-h", "localhost", "-p", "7100", "flush", "ks"]) == ["flush", "ks"]
    nobody = ccm_nodetool.AdminClient("127.0.0.1", 1)
    assert ccm_nodetool.answer(["flush"], nobody) == ""
    with pytest.raises(ConfigurationError, match="nodetool netstats is not known"):
        ccm_nodetool.answer(["netstats"], nobody)


def test_nodetool_repairs_what_changed_unless_it_is_to_be_full() -> None:
    asked: list[dict[str, Any]] = []

    class Admin(ccm_nodetool.AdminClient):
        def post(self, path: str, body: Any) -> dict[str, Any]:
            asked.append(body)
            return {"id": 1, "state": "done"}

    admin = Admin("127.0.0.1", 1)
    for words in (["repair", "k"], ["repair", "-full", "k", "t"]):
        assert ccm_nodetool.answer(words, admin) == "Repair completed successfully"
    assert [(one["table"], one["incremental"], one["full"]) for one in asked] == [
        ("", True, False),
        ("t", False, True),
    ]
