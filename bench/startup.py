"""How long a stopped cluster takes to its first answer, what an idle node holds, what imports cost.

Five figures: `cluster start` of a stopped three-node cluster until a QUORUM query is answered by a driver
that is already imported (median of several); CPU of each node until it serves, which holds on a busy machine
too; memory of an idle node of the three, resident, and with what the nodes have in common divided among them;
and the time that a node process spends importing until its CQL port answers.
Usage: python bench/startup.py [rounds]
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
from cassandra.query import ConsistencyLevel
from measuring import SCRATCH, cpu_s, resident_mb, save, shared_out_mb, table
from quorum_path import FIRST_ADDRESS, PORTS, pids_of, running_cluster

from lockstep.local.clusters import NODE_COMMAND, LocalCluster
from lockstep.local.processes import node_environment

TARGET_FIRST_ANSWER_S = 0.5
TARGET_RESIDENT_MB = 45.0
TARGET_IMPORTS_MS = 250.0
IDLE_S = 2.0
_ANSWER_TIMEOUT_S = 30.0
_POLL_S = 0.002
SCHEMA = (
    "CREATE KEYSPACE startup WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}",
    "CREATE TABLE startup.rows (key int PRIMARY KEY, value text)",
    "INSERT INTO startup.rows (key, value) VALUES (1, 'kept')",
)


def first_answer(cluster: LocalCluster, statements: tuple[str, ...]) -> float:
    """Seconds to connect and have all statements answered at QUORUM."""
    began_s = time.perf_counter()
    profile = ExecutionProfile(consistency_level=ConsistencyLevel.QUORUM)
    driver = Cluster(
        cluster.contact_points, port=cluster.file.cql_port, execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )
    try:
        session = driver.connect()
        for statement in statements:
            session.execute(statement)
        return time.perf_counter() - began_s
    finally:
        driver.shutdown()


def restarts(cluster: LocalCluster, rounds: int) -> list[dict[str, float]]:
    """For each restart of the stopped cluster: seconds until it serves and until the first answer, and of CPU
    of each node until it serves, without what they loaded together before."""
    found = []
    for _ in range(rounds):
        cluster.stop()
        began_s = time.perf_counter()
        cluster.start()
        serves_s = time.perf_counter() - began_s
        node_cpu_s = statistics.mean(cpu_s(pid) for pid in pids_of(cluster))
        answer_s = first_answer(cluster, ("SELECT value FROM startup.rows WHERE key = 1",))
        found.append({"serves_s": serves_s, "first_answer_s": serves_s + answer_s, "node_cpu_s": node_cpu_s})
    return found


def port_answers_s(command: list[str], address: str, port: int) -> float:
    """Seconds from the start of a process until its port accepts; the process is ended."""
    began_s = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=_environment()
    )
    try:
        while time.perf_counter() - began_s < _ANSWER_TIMEOUT_S:
            try:
                socket.create_connection((address, port), timeout=_POLL_S).close()
                return time.perf_counter() - began_s
            except OSError:
                time.sleep(_POLL_S)
        raise TimeoutError(f"port {port} of {address} does not answer")
    finally:
        process.terminate()
        process.wait()


def imports_until_ready(command: list[str]) -> list[tuple[int, str]]:
    """(microseconds of its own, module) of all imports of a process until it says that it is ready."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_environment()
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        if not process.stdout.readline().startswith("ready"):
            raise RuntimeError(f"the node did not start: {process.stderr.read()[-500:]}")
    finally:
        process.terminate()
    lines = process.communicate()[1].splitlines()
    found = []
    for line in lines:
        own, _, rest = line.removeprefix("import time:").partition("|")
        if line.startswith("import time:") and own.strip().isdigit():
            found.append((int(own), rest.partition("|")[2].strip()))
    return found


def _environment() -> dict[str, str]:
    """As nodes of a local cluster are started: with their bytecode kept, whatever this shell says of that."""
    return node_environment(os.environ)


def single_node(rounds: int) -> dict[str, Any]:
    """Figures of one node that starts again with its data, alone in its cluster."""
    home = SCRATCH / "clusters"
    shutil.rmtree(home / "single", ignore_errors=True)
    with LocalCluster.create("single", 1, first_address=FIRST_ADDRESS, ports=PORTS, home=home) as cluster:
        cluster.start()
        cluster.stop()
        arguments = ["--config", str(cluster.paths.configuration("n1"))]
        command = [*NODE_COMMAND, *arguments]
        answers_s = [port_answers_s(command, FIRST_ADDRESS, PORTS[0]) for _ in range(rounds)]
        traced = [sys.executable, "-X", "importtime", *NODE_COMMAND[1:], *arguments]
        totals_ms, heaviest = [], []
        for _ in range(rounds):
            imports = imports_until_ready(traced)
            totals_ms.append(sum(own for own, _ in imports) / 1e3)
            heaviest = sorted(imports, reverse=True)[:10]
        bare_ms = []
        for _ in range(rounds):
            began_s = time.perf_counter()
            subprocess.run([sys.executable, "-c", "pass"], check=True)
            bare_ms.append((time.perf_counter() - began_s) * 1e3)
    return {
        "port_answers_ms": statistics.median(answers_s) * 1e3,
        "imports_ms": statistics.median(totals_ms),
        "bare_interpreter_ms": statistics.median(bare_ms),
        "heaviest_imports_ms": {name: own / 1e3 for own, name in heaviest},
    }


def measure(rounds: int = 5) -> dict[str, Any]:
    """All figures of this benchmark."""
    logging.getLogger("cassandra").setLevel(logging.CRITICAL)
    with running_cluster("startup") as cluster:
        first_answer(cluster, SCHEMA)
        found = restarts(cluster, rounds)
        time.sleep(IDLE_S)
        idle_mb = [resident_mb(pid) for pid in pids_of(cluster)]
        share_mb = [shared_out_mb(pid) for pid in pids_of(cluster)]
    return {
        "rounds": rounds,
        "serves_s": statistics.median(one["serves_s"] for one in found),
        "first_answer_s": statistics.median(one["first_answer_s"] for one in found),
        "node_cpu_s": statistics.mean(one["node_cpu_s"] for one in found),
        "all": found,
        "idle_mb": max(idle_mb),
        "idle_share_mb": max(share_mb),
        **single_node(rounds),
    }


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    return [
        ["start-up", "measured", "target"],
        ["stopped cluster to first answer, s", figures["first_answer_s"], TARGET_FIRST_ANSWER_S],
        ["CPU of a node of three until it serves, ms", figures["node_cpu_s"] * 1e3, "-"],
        ["memory of an idle node, what is shared divided, MB", figures["idle_share_mb"], "-"],
        ["resident memory of an idle node, MB", figures["idle_mb"], TARGET_RESIDENT_MB],
        ["imports until the CQL port answers, ms", figures["imports_ms"], TARGET_IMPORTS_MS],
    ]


def main() -> None:
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    save("startup", figures)
    print(table("Start-up", rows_of(figures)))
    print(
        f"a single node's port answers after {figures['port_answers_ms']:.0f} ms, "
        f"a bare interpreter ends after {figures['bare_interpreter_ms']:.0f} ms; heaviest imports:"
    )
    for name, own_ms in figures["heaviest_imports_ms"].items():
        print(f"  {own_ms:6.1f} ms  {name}")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
