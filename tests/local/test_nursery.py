"""Nodes that are started together are as nodes that were started one by one."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from lockstep.local import nursery, processes
from lockstep.local.clusters import NODE_COMMAND, LocalCluster
from lockstep.local.processes import ProcessIdentity, State, node_environment

FIRST = "127.0.41.1"
PORTS = (29142, 27100, 27180)

pytestmark = pytest.mark.skipif(not nursery.IS_USABLE, reason="nodes are started one by one here")


def _ended(pid: int) -> bool:
    return processes.look(ProcessIdentity(pid, _started(pid))) is State.STOPPED


def _started(pid: int) -> str:
    found = Path(f"/proc/{pid}/stat")
    return found.read_text().rpartition(")")[2].split()[19] if found.exists() else ""


def test_each_one_says_in_its_own_log_why_it_does_not_start(tmp_path: Path) -> None:
    children = [
        nursery.Child([*NODE_COMMAND, "--config", str(tmp_path / f"{name}.toml")], str(tmp_path / name))
        for name in ("a", "b")
    ]
    pids = nursery.start(children, node_environment(os.environ))
    assert len(set(pids)) == 2 and processes.wait_until(lambda: all(_ended(pid) for pid in pids), 20)
    for name in ("a", "b"):
        assert f"{name}.toml cannot be read" in (tmp_path / name).read_text()
        assert (tmp_path / name).stat().st_mode & 0o077 == 0


def test_what_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nursery, "COMMAND", (sys.executable, "-c", "raise SystemExit('no memory')"))
    child = nursery.Child([*NODE_COMMAND, "--config", "a"], str(tmp_path / "a"))
    with pytest.raises(OSError, match="no memory"):
        nursery.start([child], {})


def test_nodes_of_a_cluster_are_processes_of_their_own_under_their_own_names(tmp_path: Path) -> None:
    with LocalCluster.create("born", 3, home=tmp_path, first_address=FIRST, ports=PORTS) as cluster:
        cluster.start()
        pids = []
        for name in ("n1", "n2", "n3"):
            identity = processes.recorded(cluster.paths.pid(name))
            assert identity is not None
            pids.append(identity.pid)
            told = Path(f"/proc/{identity.pid}/cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            command = [*NODE_COMMAND, "--config", str(cluster.paths.configuration(name))]
            assert told == [os.fsencode(argument) for argument in command]
            assert os.getsid(identity.pid) == identity.pid
        cluster.kill("n2")
        assert [cluster.state(name) for name in ("n1", "n2", "n3")] == [
            State.RUNNING,
            State.STOPPED,
            State.RUNNING,
        ]
        assert cluster.start(["n2"]) == ["n2"], "one alone, as ever"
        assert cluster.stop() == []
