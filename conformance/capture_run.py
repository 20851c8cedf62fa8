"""`make conformance-capture`: follows the changes of two tables, on the ring and with tablets, with the
unmodified library scylla-cdc-go (Go) as tablets split, a node joins a local cluster and another is killed,
and compares what it was told with what was acknowledged.

Invariant: each acknowledged write is told exactly once, those of one key in the order of their write times;
nothing is told that was never sent; streams that came later have taken writes when the run ends: of the new
node's ranges, and of the tablets that a split made, some of which the new node holds.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.environment import BUILD, wall_in, walled
from lockstep.local.clusters import LocalCluster

SOURCES: Final = Path(__file__).resolve().parent / "clients" / "go_capture"
MADE: Final = BUILD / "capture"
RESULTS: Final = BUILD / "results-capture.json"
_MAKE_TIMEOUT_S: Final = 600
_KEYS: Final = 20
#: A generation begins 65 s after the entry that commits it, or after the one that publishes it late.
_AFTER_JOIN_S: Final = 80
_TABLETS_AFTER: Final = 8
#: The reader stays six seconds behind the present, and asks each second.
_BEHIND_S: Final = 20

Write = tuple[int, int, int]


def make() -> Path:
    """The follower, built."""
    if shutil.which("go") is None:
        raise SystemExit("go is not installed")
    shutil.rmtree(MADE, ignore_errors=True)
    shutil.copytree(SOURCES, MADE)
    subprocess.run(["go", "build", "-o", "follow", "."], cwd=MADE, check=True, timeout=_MAKE_TIMEOUT_S)
    return MADE / "follow"


class Writer(threading.Thread):
    """Writes one key after the other, each to the next value, until it is told to stop."""

    def __init__(self, session: Any, table: str) -> None:
        super().__init__(name="writer")
        self._statement = session.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?) USING TIMESTAMP ?")
        self._session = session
        self.sent: set[Write] = set()
        self.acknowledged: list[Write] = []
        self.failures: Counter[str] = Counter()
        self.ends = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.ends.is_set():
            at_us = time.time_ns() // 1000
            write = (at_us, number % _KEYS, number)
            self.sent.add(write)
            try:
                self._session.execute(self._statement, (write[1], write[2], at_us))
                self.acknowledged.append(write)
            except Exception as error:  # whatever the driver says: the outcome is not known
                self.failures[type(error).__name__] += 1
            number += 1
            time.sleep(0.02)


def judge(writer: Writer, lines: list[dict[str, Any]]) -> list[str]:
    """What is wrong with what was told."""
    told = [(line["at_us"], line["k"], line["v"]) for line in lines]
    counts = Counter(told)
    problems = [f"{one} was acknowledged and is not told" for one in writer.acknowledged if not counts[one]]
    problems += [f"{one} was told {count} times" for one, count in sorted(counts.items()) if count > 1]
    problems += [f"{one} was told and never sent" for one in sorted(counts) if one not in writer.sent]
    for key in range(_KEYS):
        of_key = [one for one in told if one[1] == key]
        if of_key != sorted(of_key):
            problems.append(f"changes of key {key} are not told in order")
    return problems


class Followed:
    """One table: who writes it, who follows it, and what was told. `times_text` asks from when on which
    streams count."""

    def __init__(self, name: str, session: Any, times_text: str) -> None:
        self.name = name
        self.lines: list[dict[str, Any]] = []
        self.writer = Writer(session, name)
        self._session = session
        self._times_text = times_text
        self._first = self.times()

    def times(self) -> list[Any]:
        return sorted(row[0] for row in self._session.execute(self._times_text))

    def begin(self, follower: Path, hosts: str) -> None:
        self._errors = (MADE / f"{self.name}.log").open("w")
        self._process = subprocess.Popen(
            [str(follower), "-hosts", hosts, "-table", self.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        assert self._process.stdout is not None
        self._reading = threading.Thread(
            target=_read, args=(self._process.stdout, self.lines), name=f"reader of {self.name}", daemon=True
        )
        self._reading.start()
        self.writer.start()

    def end(self) -> None:
        self.writer.ends.set()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reading.join(10)
        self._errors.close()

    def found(self) -> dict[str, Any]:
        problems = judge(self.writer, self.lines)
        later = [one for one in self.times() if one not in self._first]
        if not later:
            problems.append("no streams came later")
        for one in later:
            began_us = int(one.timestamp() * 1_000_000)
            if not any(line["at_us"] >= began_us for line in self.lines):
                problems.append(f"no write was told of the streams that count from {one} on")
        return {
            "acknowledged": len(self.writer.acknowledged),
            "failures": dict(self.writer.failures),
            "told": len(self.lines),
            "streams": len({line["stream"] for line in self.lines}),
            "generations": len(self._first) + len(later),
            "problems": problems[:20],
        }


def _followed(session: Any) -> list[Followed]:
    """The tables, made."""
    per_dc = "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
    session.execute(
        f"CREATE KEYSPACE followed WITH replication = {per_dc} AND tablets = {{'enabled': false}}"
    )
    session.execute(f"CREATE KEYSPACE tablets WITH replication = {per_dc} AND tablets = {{'initial': 4}}")
    found = []
    for keyspace, times in (
        ("followed", "system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"),
        ("tablets", "system.cdc_timestamps WHERE keyspace_name = 'tablets' AND table_name = 't'"),
    ):
        session.execute(
            f"CREATE TABLE {keyspace}.t (k int PRIMARY KEY, v int) WITH cdc = {{'enabled': true}}"
        )
        column = "time" if keyspace == "followed" else "timestamp"
        found.append(Followed(f"{keyspace}.t", session, f"SELECT {column} FROM {times}"))
    return found


def _tablets(session: Any) -> list[set[Any]]:
    """The nodes of each tablet of the table that has some."""
    (table,) = session.execute(
        "SELECT id FROM system_schema.tables WHERE keyspace_name = 'tablets' AND table_name = 't'"
    )
    rows = session.execute("SELECT replicas FROM system.tablets WHERE table_id = %s", (table[0],))
    return [{replica[0] for replica in row[0]} for row in rows]


def follow(follower: Path, cluster: LocalCluster) -> dict[str, Any]:
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile
    from cassandra.policies import FallthroughRetryPolicy, RoundRobinPolicy

    # A write that the driver sends again is another one, which is told as well.
    profile = ExecutionProfile(
        load_balancing_policy=RoundRobinPolicy(), retry_policy=FallthroughRetryPolicy(), request_timeout=10
    )
    driver = Cluster(
        [node.address for node in cluster.file.nodes], execution_profiles={EXEC_PROFILE_DEFAULT: profile}
    )
    session = driver.connect()
    followed = _followed(session)
    former = set().union(*_tablets(session))
    hosts = ",".join(node.address for node in cluster.file.nodes)
    began_s = time.monotonic()
    try:
        for one in followed:
            one.begin(follower, hosts)
        time.sleep(10)
        hints = f"tablets = {{'min_tablet_count': '{_TABLETS_AFTER}'}}"
        session.execute(f"ALTER TABLE tablets.t WITH {hints}")
        joined = cluster.add()
        print(f"{joined.name} joined after {time.monotonic() - began_s:.0f} s", flush=True)
        time.sleep(_AFTER_JOIN_S)
        killed = cluster.file.nodes[1].name
        cluster.kill(killed)
        print(f"{killed} was killed after {time.monotonic() - began_s:.0f} s", flush=True)
        time.sleep(10)
        for one in followed:
            one.writer.ends.set()
            one.writer.join()
        cluster.start([killed])
        time.sleep(_BEHIND_S)
    finally:
        for one in followed:
            one.end()
    found: dict[str, Any] = {one.name: one.found() for one in followed}
    tablets = _tablets(session)
    found["tablets"] = len(tablets)
    found["of the new node"] = sum(bool(nodes - former) for nodes in tablets)
    problems = found["tablets.t"]["problems"]
    if len(tablets) < _TABLETS_AFTER:
        problems.append(f"the table has {len(tablets)} tablets, not {_TABLETS_AFTER}")
    if not found["of the new node"]:
        problems.append("the new node holds no tablet")
    driver.shutdown()
    found["problems"] = [f"{one.name}: {text}" for one in followed for text in found[one.name]["problems"]]
    return found


def _read(stream: IO[str], lines: list[dict[str, Any]]) -> None:
    lines.extend(json.loads(text) for text in stream)


def main() -> int:
    follower = MADE / "follow" if walled() else make()
    if not wall_in():
        print("no namespaces here: the cluster's addresses must be free", flush=True)
    home = MADE / "home"
    shutil.rmtree(home, ignore_errors=True)
    with LocalCluster.create("capture", 3, home=home) as cluster:
        cluster.start()
        found = follow(follower, cluster)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
