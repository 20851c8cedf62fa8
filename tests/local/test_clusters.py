"""Local clusters with a stand-in program, so that real processes start, stop and break in milliseconds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.local import processes
from lockstep.local.clusters import NODE_MEMORY_BYTES, LocalCluster, list_clusters
from lockstep.local.processes import ProcessIdentity, State
from lockstep.node.configuration import parse
from lockstep.values.errors import (
    CannotApply,
    ConfigurationError,
    HandshakeRefused,
    PeerTimeout,
    PreconditionError,
)

STUB = str(Path(__file__).with_name("stub_node.py"))
#: Ports and addresses of these tests, away from those of real clusters.
PORTS = (29042, 27000, 27080)
FIRST = "127.0.40.1"


def stub(mode: str = "--serve") -> list[str]:
    return [sys.executable, "-S", STUB, mode]


def make(home: Path, nodes: int = 3, mode: str = "--serve") -> LocalCluster:
    return LocalCluster.create("try", nodes, home=home, first_address=FIRST, ports=PORTS, command=stub(mode))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = make(tmp_path)
    yield made
    if made.paths.root.exists():
        made.destroy()


def lines(cluster: LocalCluster, name: str, file: str) -> list[str]:
    path = cluster.paths.data(name) / file
    return path.read_text().splitlines() if path.exists() else []


def test_create_writes_a_configuration_for_each_node_and_starts_nothing(tmp_path: Path) -> None:
    cluster = make(tmp_path, nodes=5)
    assert cluster.states() == dict.fromkeys(["n1", "n2", "n3", "n4", "n5"], State.STOPPED)
    assert cluster.contact_points == [f"127.0.40.{i}" for i in range(1, 6)]
    parsed = [parse(cluster.paths.configuration(f"n{i}").read_text()) for i in range(1, 6)]
    assert [one.is_founder for one in parsed] == [True, True, True, False, False]
    assert {one.cluster.founders for one in parsed if one.is_founder} == {
        tuple(f"127.0.40.{i}:27000" for i in (1, 2, 3))
    }
    # Founders first; any of the others may outlive them.
    assert parsed[4].cluster.seeds == (*parsed[0].cluster.founders, "127.0.40.4:27000")
    assert parsed[0].testing.faults


def test_data_centres_get_their_numbers_of_nodes_and_share_the_founders(tmp_path: Path) -> None:
    cluster = LocalCluster.create("try", dcs=[("east", 3), ("west", 2)], home=tmp_path)
    nodes = cluster.file.nodes
    assert [node.dc for node in nodes] == ["east", "east", "east", "west", "west"]
    assert [node.name for node in nodes if node.founder] == ["n1", "n2", "n4"]


def test_settings_reach_every_node_and_wrong_ones_leave_nothing_behind(tmp_path: Path) -> None:
    cluster = LocalCluster.create("a", settings={"log": {"format": "json"}}, home=tmp_path)
    assert parse(cluster.paths.configuration("n3").read_text()).log.format == "json"
    assert cluster.file.settings["log"] == {"format": "json"}
    with pytest.raises(ConfigurationError, match=r"log\.fromat"):
        LocalCluster.create("b", settings={"log": {"fromat": "x"}}, home=tmp_path)
    assert [one.name for one in list_clusters(tmp_path)] == ["a"]


def test_a_name_is_taken_once_and_must_be_plain(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(PreconditionError, match="exists already"):
        make(tmp_path)
    with pytest.raises(ConfigurationError, match="cannot name a cluster"):
        LocalCluster.create("../up", home=tmp_path)


def test_start_brings_every_node_up_and_stop_takes_it_down(cluster: LocalCluster) -> None:
    assert cluster.start() == ["n1", "n2", "n3"]
    assert set(cluster.states().values()) == {State.RUNNING}
    assert cluster.start() == []
    assert cluster.stop() == []
    assert set(cluster.states().values()) == {State.STOPPED}


def test_another_object_takes_over_from_the_directory(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.start(["n1"])
    other = LocalCluster.open("try", home=tmp_path, command=stub())
    assert other.states() == {"n1": State.RUNNING, "n2": State.STOPPED, "n3": State.STOPPED}
    other.kill("n1")
    assert cluster.state("n1") is State.STOPPED
    cluster.start(["n1"])
    assert lines(cluster, "n1", "starts") == ["start", "start"]


def test_a_paused_node_is_seen_as_paused_resumes_and_can_be_stopped(cluster: LocalCluster) -> None:
    cluster.start(["n1"])
    cluster.pause("n1")
    assert cluster.state("n1") is State.PAUSED
    cluster.resume("n1")
    assert cluster.state("n1") is State.RUNNING
    cluster.pause("n1")
    assert cluster.stop() == []
    assert cluster.state("n1") is State.STOPPED


def test_a_node_that_ignores_the_request_to_stop_is_killed(tmp_path: Path) -> None:
    with make(tmp_path, nodes=1, mode="--stubborn") as cluster:
        cluster.start()
        assert cluster.stop(timeout_s=0.05) == ["n1"]
        assert cluster.state("n1") is State.STOPPED


def test_add_joins_one_more_node_at_the_next_address(cluster: LocalCluster) -> None:
    cluster.start(["n1"])
    node = cluster.add(dc="west")
    assert (node.name, node.address, node.dc, node.founder) == ("n4", "127.0.40.4", "west", False)
    assert cluster.state("n4") is State.RUNNING
    assert cluster.file.node("n4") == node


def test_several_add_at_once_and_get_a_node_each(cluster: LocalCluster) -> None:
    cluster.start(["n1"])
    with ThreadPoolExecutor(4) as pool:
        added = list(pool.map(lambda _: cluster.add(), range(4)))
    assert sorted(node.name for node in added) == ["n4", "n5", "n6", "n7"]
    assert len({node.address for node in added}) == 4
    assert [cluster.state(node.name) for node in added] == [State.RUNNING] * 4


def test_a_cluster_that_does_not_start_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    with socket.socket() as taken:
        taken.bind(("127.0.40.2", 9042))
        taken.listen()
        found = CliRunner().invoke(root, ["cluster", "create", "try", "--first-address", FIRST])
    assert found.exit_code == 3 and "n2 cannot listen on 127.0.40.2:9042" in found.output
    assert not (tmp_path / "clusters" / "try").exists()


def test_partition_tells_both_sides_and_heal_tells_everyone(cluster: LocalCluster) -> None:
    cluster.start()
    cluster.partition(["n1"], ["n2", "n3"])
    cut = '/v1/testing/partition {"peers": ["127.0.40.2:27000", "127.0.40.3:27000"]}'
    assert lines(cluster, "n1", "calls") == [cut]
    assert lines(cluster, "n3", "calls") == ['/v1/testing/partition {"peers": ["127.0.40.1:27000"]}']
    cluster.heal()
    assert lines(cluster, "n1", "calls")[1:] == ['/v1/testing/partition {"peers": []}']


def test_a_node_that_runs_on_without_serving_says_why_at_once(tmp_path: Path) -> None:
    with make(tmp_path, nodes=1, mode="--silent-as-broken") as cluster:
        with pytest.raises(CannotApply, match="n1 did not start: entry kind 99") as caught:
            cluster.start(timeout_s=20)
        assert caught.value.hint == "upgrade this node"
        assert cluster.state("n1") is State.RUNNING


def test_a_node_that_refuses_to_start_shows_its_own_error(tmp_path: Path) -> None:
    with make(tmp_path, nodes=1, mode="--refuse") as cluster:
        with pytest.raises(HandshakeRefused, match="n1 did not start: the data directory") as caught:
            cluster.start()
        assert caught.value.hint == "choose another directory"


def test_a_node_that_crashes_shows_the_end_of_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-c", "raise SystemExit('broken on purpose')"]
    with LocalCluster.create(
        "try", 1, home=tmp_path, first_address=FIRST, ports=PORTS, command=command
    ) as one:
        with pytest.raises(Exception, match="broken on purpose") as caught:
            one.start()
        assert "node.log" in str(vars(caught.value)["hint"])


def test_one_node_that_ends_is_reported_while_the_others_still_wait_for_it(tmp_path: Path) -> None:
    with make(tmp_path, nodes=3, mode="--silent-but-n2-refuses") as cluster:
        with pytest.raises(HandshakeRefused, match="n2 did not start"):
            cluster.start(timeout_s=30)
        assert cluster.state("n1") is State.RUNNING


def test_a_node_that_never_serves_times_out_and_keeps_running(tmp_path: Path) -> None:
    with make(tmp_path, nodes=1, mode="--silent") as cluster:
        with pytest.raises(PeerTimeout, match="started but does not serve"):
            cluster.start(timeout_s=0.3)
        assert cluster.state("n1") is State.RUNNING


def test_a_port_in_use_is_found_before_anything_starts(cluster: LocalCluster) -> None:
    with socket.create_server(("127.0.40.2", PORTS[0])):
        with pytest.raises(PreconditionError, match=r"n2 cannot listen on 127\.0\.40\.2:29042"):
            cluster.start()
        assert set(cluster.states().values()) == {State.STOPPED}


def test_faults_to_a_stopped_or_unknown_node_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(PreconditionError, match="n1 does not run"):
        cluster.kill("n1")
    with pytest.raises(ConfigurationError, match="no node n9"):
        cluster.pause("n9")


def test_destroy_ends_the_processes_and_removes_the_directory(cluster: LocalCluster, tmp_path: Path) -> None:
    cluster.start(["n1", "n2"])
    identity = processes.recorded(cluster.paths.pid("n1"))
    cluster.pause("n2")
    cluster.destroy()
    assert processes.look(identity) is State.STOPPED
    assert list_clusters(tmp_path) == []
    with pytest.raises(PreconditionError, match="no local cluster try"):
        LocalCluster.open("try", home=tmp_path)


def test_a_process_of_another_start_time_is_never_signalled() -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE) as bystander:
        reused = ProcessIdentity(bystander.pid, "1")
        assert processes.look(reused) is State.STOPPED
        assert not processes.send(reused, signal.SIGKILL)
        assert bystander.poll() is None
        bystander.kill()


def test_settings_of_the_shell_do_not_leak_into_nodes(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_NETWORK_ADDRESS", "10.0.0.1")
    cluster.start(["n1"])
    environment = environment_of(cluster, "n1")
    assert "LOCKSTEP_NETWORK_ADDRESS" not in environment
    assert "PYTHONPATH" in environment


def environment_of(cluster: LocalCluster, name: str) -> dict[str, str]:
    identity = processes.recorded(cluster.paths.pid(name))
    assert identity is not None
    lines = Path(f"/proc/{identity.pid}/environ").read_bytes().decode().split("\0")
    return dict(line.split("=", 1) for line in lines if line)


def test_nodes_keep_compiled_code_elsewhere_when_the_shell_wants_none_beside_the_sources(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cluster.start(["n1"])
    environment = environment_of(cluster, "n1")
    assert environment["PYTHONPYCACHEPREFIX"] == str(tmp_path / "lockstep" / "bytecode")
    assert "PYTHONDONTWRITEBYTECODE" not in environment


def test_waiting_gives_up_after_its_time() -> None:
    begin = time.monotonic()
    assert not processes.wait_until(lambda: False, 0.05)
    assert time.monotonic() - begin < 2
    assert processes.wait_until(lambda: os.getpid() > 0, 0)


def test_a_node_that_left_is_forgotten_once_it_is_stopped(cluster: LocalCluster) -> None:
    cluster.start()
    with pytest.raises(PreconditionError, match="n3 runs"):
        cluster.forget("n3")
    cluster.stop(["n3"])
    cluster.forget("n3")
    assert list(cluster.states()) == ["n1", "n2"]
    assert not cluster.paths.node("n3").exists()
    assert cluster.start() == []


def test_more_nodes_than_memory_holds_are_refused_before_anything_starts(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "available_memory_bytes", lambda: 2 * NODE_MEMORY_BYTES)
    with pytest.raises(PreconditionError, match="3 nodes take about 240 MiB of memory and 160 MiB") as caught:
        cluster.start()
    assert caught.value.hint == "2 nodes fit"
    assert set(cluster.states().values()) == {State.STOPPED}
    assert cluster.start(["n1", "n2"]) == ["n1", "n2"]


def test_memory_is_what_the_kernel_says_is_available(tmp_path: Path) -> None:
    told = tmp_path / "meminfo"
    told.write_text("MemTotal:       24000 kB\nMemAvailable:    1024 kB\n")
    assert processes.available_memory_bytes(told) == 1 << 20
    assert processes.available_memory_bytes() > 0


def test_each_node_that_joins_is_told(tmp_path: Path) -> None:
    with make(tmp_path, nodes=5) as cluster:
        told: list[str] = []
        cluster.start(told=told.append)
        assert told == ["n4 joined, 4 of 5", "n5 joined, 5 of 5"]
