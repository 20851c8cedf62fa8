"""The pytest plugin, in runs of pytest of their own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
STORY = """
import pytest

ADDRESSES = []

def test_a_keyspace_of_its_own(lockstep_cluster, lockstep_keyspace):
    lockstep_cluster.execute(f"CREATE TABLE {lockstep_keyspace}.t (a int PRIMARY KEY)")
    lockstep_cluster.node("n2").kill()
    lockstep_cluster.execute(f"INSERT INTO {lockstep_keyspace}.t (a) VALUES (1)")
    ADDRESSES.append(lockstep_cluster.contact_points)

def test_it_is_mended_and_the_keyspace_is_gone(lockstep_cluster, lockstep_keyspace):
    assert all(node.running for node in lockstep_cluster.nodes)
    rows = lockstep_cluster.execute("SELECT keyspace_name FROM system_schema.keyspaces", consistency="ONE")
    assert [row.keyspace_name for row in rows if row.keyspace_name.startswith("test")] == [lockstep_keyspace]
    assert ADDRESSES == [lockstep_cluster.contact_points]

MADE = []

def test_a_cluster_of_its_own(lockstep_cluster_factory):
    MADE.append(lockstep_cluster_factory(nodes=1))

def test_it_ended_with_the_test():
    assert not MADE[0].directory.exists()

def test_simulated(lockstep_simulation):
    cluster = lockstep_simulation(nodes=1, seed=5)
    assert cluster.execute("SELECT key FROM system.local") == [("local",)]

def test_with_the_driver(lockstep_session):
    assert lockstep_session.execute("SELECT key FROM system.local").one().key == "local"

def test_a_dead_node_is_in_the_report(lockstep_cluster):
    import os, signal
    from lockstep.local import processes
    node = lockstep_cluster.node("n3")
    processes.send(processes.recorded(node.log_path.with_name("pid")), signal.SIGKILL)
    lockstep_cluster.local._wait_state("n3", node.state.STOPPED)
    assert False, "the application failed"

def test_it_is_mended_as_well(lockstep_cluster):
    assert lockstep_cluster.node("n3").running
"""


def run(directory: Path, *arguments: str, text: str = STORY) -> str:
    (directory / "test_story.py").write_text(text)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    # Other plugins take seconds to load.
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "pytest_lockstep", "-q", *arguments],
        cwd=directory, env={**environment, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_life_of_clusters_in_a_run(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert "1 failed, 7 passed" in said, said
    assert re.search(r"n1 running, n2 running, n3 ENDED BY ITSELF", said), said
    assert "lockstep n3: end of its log" in said
    assert re.search(r"PytestWarning: lockstep node n3 at [0-9.]+ ended by itself", said), said
    assert "ready {" in said, "the end of the log of n3"


def test_workers_of_xdist_have_clusters_of_their_own_and_logs_are_kept(tmp_path: Path) -> None:
    text = "def test_one(lockstep_cluster): assert lockstep_cluster.execute('SELECT key FROM system.local')\n"
    text += text.replace("one", "two")
    said = run(
        tmp_path, "-p", "xdist", "-n", "2", "--lockstep-nodes", "1", "--lockstep-keep", "kept", text=text
    )
    assert "2 passed" in said, said
    assert len(list((tmp_path / "kept").glob("*/test/n1/node.log"))) == 2


def test_a_switch_has_keyspaces_spread_by_tablets(tmp_path: Path) -> None:
    text = (
        "def kept(cluster):\n"
        "    return [row.tablet_count for row in cluster.execute(\n"
        "        'SELECT keyspace_name, table_name, tablet_count FROM system.tablets')]\n"
        "def test_own(lockstep_cluster, lockstep_keyspace):\n"
        "    lockstep_cluster.execute(f'CREATE TABLE {lockstep_keyspace}.t (k int PRIMARY KEY)')\n"
        "    assert kept(lockstep_cluster)\n"
        "def test_made(lockstep_cluster_factory):\n"
        "    ring = {'tablets': {'mode_for_new_keyspaces': 'disabled'}}\n"
        "    cluster = lockstep_cluster_factory(nodes=1, settings=ring)\n"
        "    cluster.execute(f'CREATE TABLE {cluster.create_keyspace()}.t (k int PRIMARY KEY)')\n"
        "    assert not kept(cluster)\n"
    )
    said = run(tmp_path, "--lockstep-nodes", "1", "--lockstep-tablets", text=text)
    assert "2 passed" in said, said


def test_the_plugin_is_found_by_its_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"lockstep": "pytest_lockstep"}


def test_assertions_of_the_database_are_not_rewritten(tmp_path: Path) -> None:
    text = (
        "from lockstep.testing import plugin\n"
        "from lockstep.values import limits\n"
        "def test_one(): assert 'Rewriting' in type(plugin.__loader__).__name__\n"
        "def test_other(): assert 'Rewriting' not in type(limits.__loader__).__name__\n"
    )
    assert "2 passed" in run(tmp_path, text=text)


def test_a_run_without_clusters_loads_next_to_nothing(tmp_path: Path) -> None:
    text = (
        "import sys\n"
        "def test_one(): assert sorted(n for n in sys.modules if n.startswith('lockstep'))"
        " == ['lockstep', 'lockstep.testing', 'lockstep.testing.plugin']\n"
    )
    assert "1 passed" in run(tmp_path, text=text)
