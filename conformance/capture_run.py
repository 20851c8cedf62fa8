"""`make conformance-capture`: follows a table's changes with the unmodified library scylla-cdc-go (Go) as a
node joins a local cluster and another is killed, and compares what it was told with what was acknowledged.

Invariant: each acknowledged write is told exactly once, those of one key in the order of their write times;
nothing is told that was never sent; the new node's streams have taken writes when the run ends.
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


def follow(follower: Path, cluster: LocalCluster) -> dict[str, Any]:
    from cassandra.cluster import Cluster, ExecutionProfile
    from cassandra.policies import RoundRobinPolicy

    profile = ExecutionProfile(load_balancing_policy=RoundRobinPolicy(), request_timeout=10)
    driver = Cluster(
        [node.address for node in cluster.file.nodes], execution_profiles={"EXEC_PROFILE_DEFAULT": profile}
    )
    session = driver.connect()
    session.execute(
        "CREATE KEYSPACE followed WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    session.execute("CREATE TABLE followed.t (k int PRIMARY KEY, v int) WITH cdc = {'enabled': true}")
    first = _times(session)
    hosts = ",".join(node.address for node in cluster.file.nodes)
    errors = (MADE / "follower.log").open("w")
    process = subprocess.Popen(
        [str(follower), "-hosts", hosts, "-table", "followed.t"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    lines: list[dict[str, Any]] = []
    reading = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reading.start()
    writer = Writer(session, "followed.t")
    writer.start()
    began_s = time.monotonic()
    try:
        time.sleep(10)
        joined = cluster.add()
        print(f"{joined.name} joined after {time.monotonic() - began_s:.0f} s", flush=True)
        time.sleep(_AFTER_JOIN_S)
        killed = cluster.file.nodes[1].name
        cluster.kill(killed)
        print(f"{killed} was killed after {time.monotonic() - began_s:.0f} s", flush=True)
        time.sleep(10)
        writer.ends.set()
        writer.join()
        cluster.start([killed])
        time.sleep(_BEHIND_S)
    finally:
        writer.ends.set()
        process.stdin.close()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        reading.join(10)
        errors.close()
    problems = judge(writer, lines)
    later = [one for one in _times(session) if one not in first]
    if not later:
        problems.append("the join made no generation")
    else:
        began_us = int(later[0].timestamp() * 1_000_000)
        if not any(line["at_us"] >= began_us for line in lines):
            problems.append("no write was told of the generation that the join made")
    driver.shutdown()
    return {
        "acknowledged": len(writer.acknowledged),
        "failures": dict(writer.failures),
        "told": len(lines),
        "streams": len({line["stream"] for line in lines}),
        "generations": len(first) + len(later),
        "problems": problems[:20],
    }


def _times(session: Any) -> list[Any]:
    text = "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"
    return sorted(row[0] for row in session.execute(text))


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
