"""Five nodes under writers and readers at QUORUM, while all happens to tablets that can: nothing is lost.

`STORY_MB` says how much three tables hold at first: where nobody says it, a twentieth of what `make story`
takes. It prints the latencies under each change beside those before, which are no check: the machine is
shared.
"""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from lockstep.local.clusters import LocalCluster
from tests.acceptance import parts

pytestmark = pytest.mark.slow

FIRST = "127.0.126.1"
FOUNDERS = [f"127.0.126.{n}" for n in range(1, 6)]
MEGABYTES = int(os.environ.get("STORY_MB", "10"))
VALUE_BYTES = 2000
#: The table on the ring, the one that is split and merged, and one that is only moved.
TABLES = ("ringed.t", "spread.hot", "spread.cold")
ROWS_OF_EACH = MEGABYTES * 1_000_000 // VALUE_BYTES // len(TABLES)
FEW, MANY = 8, 32
FILL_ROUNDS = 3
#: Each thread rests so long between requests; and before the first change, so that there is a figure of then.
PAUSE_S = 0.05
QUIET_S = 3.0
#: A change of a cluster with 200 MB on a busy machine.
CHANGE_S = 300.0


def value_of(table: str, key: int) -> bytes:
    """Follows from table and key, and does not compress."""
    return hashlib.shake_128(f"{table} {key}".encode()).digest(VALUE_BYTES)


class Clients:
    """Writers of new rows, readers of any that were acknowledged; each latency with the change under way."""

    def __init__(self, session: Session) -> None:
        self.change = "before"
        self.errors: list[str] = []
        self.latencies_s: dict[str, list[float]] = {}
        self.acknowledged = {table: list(range(ROWS_OF_EACH)) for table in TABLES}
        self._session = session
        self._write = {
            table: session.prepare(f"INSERT INTO {table} (k, v) VALUES (?, ?)") for table in TABLES
        }
        self._read = {table: session.prepare(f"SELECT v FROM {table} WHERE k = ?") for table in TABLES}
        for statement in (*self._write.values(), *self._read.values()):
            # Each writes a value that its key determines: the driver may try another node.
            statement.is_idempotent = True
        self._end = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(work, table)) for work in (self._writes, self._reads)
            for table in TABLES
        ]  # fmt: skip

    def fill(self) -> None:
        """Rows that a busy machine did not take in time are written again."""
        for table, keys in self.acknowledged.items():
            left = keys
            for _ in range(FILL_ROUNDS):
                rows = [(key, value_of(table, key)) for key in left]
                done = execute_concurrent_with_args(
                    self._session, self._write[table], rows, concurrency=32, raise_on_first_error=False
                )
                left = [key for key, one in zip(left, done, strict=True) if not one.success]
            assert not left, f"{len(left)} rows of {table} could not be written"

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._end.set()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _run(self, work: Callable[[str, random.Random], None], table: str) -> None:
        drawn = random.Random(table)
        while not self._end.wait(PAUSE_S):
            change, began_s = self.change, time.monotonic()
            try:
                work(table, drawn)
            except Exception as error:
                self.errors.append(f"{change}: {table}: {type(error).__name__}: {error}")
            self.latencies_s.setdefault(change, []).append(time.monotonic() - began_s)

    def _writes(self, table: str, _drawn: random.Random) -> None:
        known = self.acknowledged[table]
        key = len(known)
        self._session.execute(self._write[table], (key, value_of(table, key)))
        known.append(key)

    def _reads(self, table: str, drawn: random.Random) -> None:
        key = drawn.choice(self.acknowledged[table])
        row = self._session.execute(self._read[table], (key,)).one()
        if row is None or row.v != value_of(table, key):
            self.errors.append(f"{self.change}: {table}: key {key} was acknowledged and is not there")

    def lost(self) -> list[str]:
        """Every acknowledged row that is not there in the end."""
        found = []
        for table, keys in self.acknowledged.items():
            asked = ((key,) for key in keys)
            answers = execute_concurrent_with_args(
                self._session, self._read[table], asked, concurrency=64, results_generator=True
            )
            for key, answer in zip(keys, answers, strict=True):
                assert answer.success, f"{table}, key {key}: {answer.result_or_exc}"
                row = answer.result_or_exc.one()
                if row is None or row.v != value_of(table, key):
                    found.append(f"{table} {key}")
        return found


class Story:
    def __init__(self, cluster: LocalCluster, session: Session, clients: Clients) -> None:
        self.cluster = cluster
        self.session = session
        self.clients = clients

    def during(self, change: str, do: Callable[[], Any]) -> None:
        self.clients.change = change
        began_s = time.monotonic()
        do()
        self.rest()
        print(f"{change}: {time.monotonic() - began_s:.1f} s", flush=True)
        assert not self.clients.errors, self.clients.errors[:5]

    def told(self, table: str = "") -> dict[str, Any]:
        query = dict(zip(("keyspace", "table"), table.split("."), strict=False)) if table else {}
        return self.cluster.any_admin().get("/v1/tablets", **query)

    def rest(self) -> None:
        """Until nothing moves, is split or merged, and no request is under way."""
        parts.until(
            lambda: all(
                not one["moving"] and one["resize_phase"] == "none" for one in self.told()["tables"]
            ) and not self._asked(), CHANGE_S, 0.2,
        )  # fmt: skip

    def _asked(self) -> list[Any]:
        requests = self.cluster.any_admin().get("/v1/requests")["requests"]
        ended = ("done", "failed", "cancelled")
        return [request for request in requests if request["state"] not in ended]

    def leaves(self, kind: str, node: int) -> None:
        wanted = self.cluster.any_admin().post("/v1/requests", {"kind": kind, "node": node})
        path = f"/v1/requests/{wanted['id']}"
        parts.until(lambda: self.cluster.any_admin().get(path)["state"] == "done", CHANGE_S, 0.2)
        assert all(one["node"] != node or not one["tablets"] for one in self.told()["nodes"])

    def killed(self, name: str, node: int) -> None:
        self.cluster.kill(name)

        def is_dead() -> bool:
            nodes = self.cluster.any_admin().get("/v1/nodes")["nodes"]
            return any(one["id"] == node and not one["alive"] for one in nodes)

        parts.until(is_dead, CHANGE_S, 0.1)

    def removed(self) -> None:
        self.killed("n5", 5)
        self.leaves("remove", 5)

    def replaced(self) -> None:
        self.killed("n4", 4)
        self.cluster.add(replaces="n4")

    def resized(self, option: str, count: int, reached: Callable[[int], bool]) -> None:
        self.session.execute(f"ALTER TABLE spread.hot WITH tablets = {{'{option}': {count}}}", timeout=60)
        parts.until(lambda: reached(len(self.told("spread.hot")["tablets"])), CHANGE_S, 0.2)

    def migrated(self) -> None:
        for step in ("start", "finalize"):
            self.cluster.any_admin().post("/v1/tablets/migrate", {"keyspace": "ringed", "step": step})


def test_nothing_is_lost_whatever_happens_to_tablets(tmp_path: Path) -> None:
    made = LocalCluster.create(
        "story", 5, first_address=FIRST, ports=parts.PORTS, home=tmp_path,
        settings={"tablets": {"load_refresh_ms": 1000}},
    )  # fmt: skip
    with made as cluster:
        cluster.start()
        driver = parts.connect(FOUNDERS)
        session = driver.connect()
        replication = "{'class': 'NetworkTopologyStrategy', 'dc1': 3}"
        session.execute(f"CREATE KEYSPACE ringed WITH replication = {replication}")
        session.execute(
            f"CREATE KEYSPACE spread WITH replication = {replication} AND tablets = {{'initial': {FEW}}}"
        )
        for table in TABLES:
            session.execute(f"CREATE TABLE {table} (k int PRIMARY KEY, v blob)")
        clients = Clients(session)
        story = Story(cluster, session, clients)
        clients.fill()
        clients.start()
        try:
            time.sleep(QUIET_S)
            story.during("a node joins", cluster.add)
            story.during("one is killed and removed", story.removed)
            story.during("one is killed and replaced", story.replaced)
            story.during("split", lambda: story.resized("min_tablet_count", MANY, lambda n: n >= MANY))
            story.during("merge", lambda: story.resized("max_tablet_count", FEW, lambda n: n < 2 * FEW - 1))
            story.during("from the ring to tablets", story.migrated)
            story.during("one leaves", lambda: story.leaves("decommission", 2))
            story.during("another leaves", lambda: story.leaves("decommission", 3))
        finally:
            clients.stop()
        lost = clients.lost()
        print(_latencies(clients))
        driver.shutdown()
        assert clients.errors == [] and lost == []
        assert sum(map(len, clients.acknowledged.values())) > len(TABLES) * (ROWS_OF_EACH + 50)
        assert parts.settled_errors(cluster) == ""


def _latencies(clients: Clients) -> str:
    lines = [f"{MEGABYTES} MB; requests, p50 and p99 in ms by what happened meanwhile:"]
    for change, taken_s in clients.latencies_s.items():
        ordered = sorted(taken_s)
        p50, p99 = (ordered[int(len(ordered) * share)] * 1000 for share in (0.5, 0.99))
        lines.append(f"{change:28} {len(ordered):7,} {p50:8.1f} {p99:8.1f}")
    return "\n".join(lines)
