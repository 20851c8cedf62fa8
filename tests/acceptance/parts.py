"""Real node processes for acceptance tests: single nodes with any configuration, and a client under load."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cassandra import ConsistencyLevel
from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
from cassandra.concurrent import execute_concurrent_with_args
from cassandra.policies import ConstantReconnectionPolicy, DCAwareRoundRobinPolicy, TokenAwarePolicy
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.local import layout
from lockstep.local.clusters import LocalCluster
from lockstep.node.settings import emit

PORTS = (19342, 17300, 17380)
CQL_PORT, INTERNODE_PORT, ADMIN_PORT = PORTS
ROOT = Path(__file__).parents[2]
#: A refused start ends well within this, also on a busy machine.
END_S = 20.0
KEYSPACE = "acceptance"
#: Where the clusters of this test run lie, in the order in which they were made.
MADE: list[layout.Paths] = []

# The driver tells of every attempt to reach a node that tests have stopped.
logging.getLogger("cassandra").setLevel(logging.CRITICAL)


class Ended:
    """How a process ended."""

    def __init__(self, code: int | None, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    def refused(self, code: str, exit_code: int, *sentences: str, hint: bool = True) -> None:
        """It ended with this error: one code, one sentence, a hint, no traceback."""
        assert self.code == exit_code, f"exit code {self.code}, not {exit_code}: {self.out}{self.err}"
        assert "Traceback" not in self.out + self.err, self.err
        lines = [line for line in self.err.splitlines() if line.startswith("error[")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith(f"error[{code}]: "), lines[0]
        for sentence in sentences:
            assert sentence in self.err, f"{sentence!r} is not in {self.err!r}"
        if hint:
            assert "\nhint: " in f"\n{self.err}", self.err


def environment(**more: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("LOCKSTEP_")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **more}


def node_settings(
    address: str, data: Path, cluster: Mapping[str, Any], **sections: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Sections of a `lockstep.toml` for a node on the ports of these tests."""
    made: dict[str, dict[str, Any]] = {
        "node": {"data_directory": str(data)},
        "cluster": dict(cluster),
        "network": {
            "address": address,
            "cql_port": CQL_PORT,
            "internode_port": INTERNODE_PORT,
            "admin_port": ADMIN_PORT,
        },
    }
    for section, keys in sections.items():
        made[section] = {**made.get(section, {}), **keys}
    return made


def write_settings(directory: Path, settings: Mapping[str, Mapping[str, Any]]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / "lockstep.toml"
    file.write_text(emit({name: dict(keys) for name, keys in settings.items()}))
    return file


@contextmanager
def node_process(file: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "lockstep.server.main", "--config", str(file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def run_node(file: Path, timeout_s: float = END_S) -> Ended:
    """Start a node that is expected to end by itself; `code` None: it still ran after the time."""
    with node_process(file) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            out, err = process.communicate()
            return Ended(None, out, err)
        return Ended(process.returncode, out, err)


def stop_node(process: subprocess.Popen[str]) -> Ended:
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=END_S)
    return Ended(process.returncode, out, err)


def lockstep(*arguments: str, home: Path | None = None) -> Ended:
    """The `lockstep` command with these arguments, in this process: its exit code and both outputs."""
    env: dict[str, str | None] = {key: None for key in os.environ if key.startswith("LOCKSTEP_")}
    if home is not None:
        env["LOCKSTEP_HOME"] = str(home)
    elif (token := token_file(arguments)) is not None:
        env["LOCKSTEP_TOKEN_FILE"] = str(token)
    done = CliRunner().invoke(root, arguments, env=env)
    return Ended(done.exit_code, done.stdout, done.stderr)


def token_file(arguments: Sequence[str]) -> Path | None:
    """Of the node that a command names with --host: tests keep their clusters where commands do not look."""
    if "--host" not in arguments:
        return None
    address = arguments[arguments.index("--host") + 1].partition(":")[0]
    for paths in reversed(MADE):
        nodes = layout.read(paths).nodes if paths.cluster_file.exists() else ()
        for node in nodes:
            if node.address == address:
                return paths.data(node.name) / "admin.token"
    return None


def connect(points: list[str], **settings: Any) -> Cluster:
    """A driver's cluster object that routes by token and reconnects at once."""
    profile = ExecutionProfile(
        load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy("dc1"), shuffle_replicas=False),
        consistency_level=ConsistencyLevel.QUORUM,
        request_timeout=12,
    )
    return Cluster(
        points,
        port=CQL_PORT,
        execution_profiles={EXEC_PROFILE_DEFAULT: profile},
        reconnection_policy=ConstantReconnectionPolicy(0.2, max_attempts=None),
        **settings,
    )


def make_table(session: Session, keyspace: str = KEYSPACE, replicas: int = 3) -> None:
    session.execute(
        f"CREATE KEYSPACE IF NOT EXISTS {keyspace} "
        f"WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': {replicas}}}"
    )
    session.execute(f"CREATE TABLE IF NOT EXISTS {keyspace}.load (k int PRIMARY KEY, v int)")


class Load:
    """One client that writes and reads back at QUORUM until it is told to stop; it counts what went wrong."""

    def __init__(self, points: list[str], pause_s: float = 0.02, *, keyspace: str = "") -> None:
        """It makes its table, unless a `keyspace` is named that has it."""
        self._cluster = connect(points)
        self.session = self._cluster.connect()
        if not keyspace:
            keyspace = KEYSPACE
            make_table(self.session, keyspace)
        self._pause_s = pause_s
        self._write = self.session.prepare(f"INSERT INTO {keyspace}.load (k, v) VALUES (?, ?)")
        self._read = self.session.prepare(f"SELECT v FROM {keyspace}.load WHERE k = ?")
        # Writing the same value again changes nothing, so the driver may try another node.
        self._write.is_idempotent = self._read.is_idempotent = True
        self.acknowledged: dict[int, int] = {}
        self.count = 0
        self.errors: list[str] = []
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._thread.start()

    def _run(self) -> None:
        while not self._end.wait(self._pause_s):
            key, value = self.count % 200, self.count
            try:
                self.session.execute(self._write, (key, value))
                self.acknowledged[key] = value
                [row] = self.session.execute(self._read, (key,))
                if row.v != value:
                    self.errors.append(f"key {key}: read {row.v} after {value} was acknowledged")
            except Exception as error:
                self.errors.append(f"{type(error).__name__}: {error}")
            self.count += 1

    def goes_on(self, requests: int = 5, timeout_s: float = 10.0) -> None:
        """Some more requests succeed, and none failed so far."""
        begin, deadline = self.count, time.monotonic() + timeout_s
        while self.count < begin + requests and time.monotonic() < deadline:
            time.sleep(0.01)
        assert self.count >= begin + requests, "the client does not get on"
        assert not self.errors, self.errors[:5]

    def check_all(self) -> None:
        """Every acknowledged write can be read."""
        for key, value in sorted(self.acknowledged.items()):
            [row] = self.session.execute(self._read, (key,))
            assert row.v == value, f"key {key} holds {row.v}, not {value}"

    def stop(self) -> None:
        self._end.set()
        self._thread.join()

    def close(self) -> None:
        self.stop()
        self._cluster.shutdown()


def make_tablets(session: Session, count: int, *, kind: str = "untracked") -> None:
    """The table h.t, of so many tablets with three replicas each."""
    session.execute(
        "CREATE KEYSPACE h WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
        f"AND tablets = {{'initial': {count}}} AND replication_type = '{kind}'"
    )
    session.execute("CREATE TABLE h.t (k int PRIMARY KEY, v int)")


@contextmanager
def writing(session: Session) -> Iterator[None]:
    """Write new keys of h.t at QUORUM meanwhile; in the end every write that was acknowledged is there."""
    insert = session.prepare("INSERT INTO h.t (k, v) VALUES (?, ?)")
    select = session.prepare("SELECT v FROM h.t WHERE k = ?")
    insert.consistency_level = select.consistency_level = ConsistencyLevel.QUORUM
    acknowledged: dict[int, int] = {}
    ended = threading.Event()

    def write() -> None:
        key = 0
        while not ended.is_set():
            try:
                session.execute(insert, (key, key * 3), timeout=5)
            except Exception:
                time.sleep(0.05)
            else:
                acknowledged[key] = key * 3
            key += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
        # A slow machine has written few by now, which would show little.
        until(lambda: len(acknowledged) > 200, 60.0)
    finally:
        ended.set()
        writer.join()
    answers = execute_concurrent_with_args(session, select, [(key,) for key in acknowledged])
    found = {key: rows.one() for key, (_, rows) in zip(acknowledged, answers, strict=True)}
    lost = [key for key, value in acknowledged.items() if found[key] is None or found[key].v != value]
    assert lost == []


def until(condition: Any, timeout_s: float = 15.0, interval_s: float = 0.05) -> None:
    """Wait for a condition that other processes bring about."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s"
        time.sleep(interval_s)


def settled_errors(cluster: LocalCluster) -> str:
    """Tracebacks and faults in the logs of all nodes; empty when there are none."""
    found = []
    for node in cluster.file.nodes:
        for line in cluster.paths.log(node.name).read_text(errors="replace").splitlines():
            if "Traceback" in line or "cql.fault" in line or "task.fault" in line:
                found.append(f"{node.name}: {line}")
    return "\n".join(found)
