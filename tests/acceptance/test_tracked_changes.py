"""Captured changes of a tracked table while a node is killed and started: who follows what is reconciled gets
each acknowledged write exactly once, with reads at ONE, and every node's log is the same."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark")

from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.query import SimpleStatement
from pyspark.sql.streaming.datasource import ReadAllAvailable

from lockstep.local.clusters import LocalCluster
from lockstep.spark.changes.reader import ChangeReader
from lockstep.spark.source import LockstepSource
from tests.acceptance.parts import CQL_PORT, PORTS, connect, settled_errors, until

pytestmark = pytest.mark.slow

FIRST = "127.0.121.1"
POINTS = [f"127.0.121.{n}" for n in range(1, 4)]
KEYSPACE = "WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': '%s'}"
TRACKED = "AND replication_type = 'tracked'"
#: Longer than a write may take here.
SAFETY_MS = 4000
AWAY_S = 8.0
US_PER_S = 1_000_000


class Follower:
    """A stream as Spark drives it, batch by batch."""

    def __init__(self) -> None:
        given = {
            "hosts": ",".join(POINTS[:2]), "port": str(CQL_PORT), "keyspace": "h", "table": "t",
            "changes": "rows", "startingOffsets": "earliest", "safetyIntervalMs": str(SAFETY_MS),
            "follow": "reconciled", "consistencyLevel": "ONE",
        }  # fmt: skip
        source = LockstepSource(given)
        found = source.streamReader(source.schema())
        assert isinstance(found, ChangeReader)
        self.reader = found
        self.at: dict[str, Any] = found.initialOffset()
        self.told: list[int] = []

    def turn(self) -> bool:
        """Read what may be read next; whether there was anything."""
        end = self.reader.latestOffset(self.at, ReadAllAvailable())
        if end == self.at:
            return False
        for part in self.reader.partitions(self.at, end):
            for batch in self.reader.read(part):
                self.told += [row["v"] for row in batch.to_pylist()]
        self.at = end
        return True

    def until_s(self) -> float:
        return float(self.at["until_us"]) / US_PER_S


class Writer(threading.Thread):
    """Writes one number after the other at a quorum."""

    def __init__(self, session: Session) -> None:
        super().__init__(name="writer")
        self._session = session
        self._insert = session.prepare("INSERT INTO h.t (k, v) VALUES (?, ?)")
        self._insert.consistency_level = ConsistencyLevel.QUORUM
        self.acknowledged: set[int] = set()
        self.sent = 0
        self.ends = threading.Event()

    def run(self) -> None:
        while not self.ends.wait(0.02):
            value, self.sent = self.sent, self.sent + 1
            try:
                self._session.execute(self._insert, (value % 50, value), timeout=2)
            except Exception:
                time.sleep(0.1)
            else:
                self.acknowledged.add(value)


@contextmanager
def written(session: Session) -> Iterator[Writer]:
    writer = Writer(session)
    writer.start()
    try:
        yield writer
    finally:
        writer.ends.set()
        writer.join()


def read_log(session: Session, node: str) -> Counter[int]:
    """The log as one node has it, read by CQL as a client library does."""
    text = 'SELECT v, "cdc$operation" FROM h.t_scylla_cdc_log'
    asked = SimpleStatement(text, consistency_level=ConsistencyLevel.ONE, fetch_size=None)
    host = next(one for one in session.cluster.metadata.all_hosts() if one.address == node)
    return Counter(row.v for row in session.execute(asked, host=host, timeout=20))


@pytest.mark.parametrize(
    ("factor", "spread"), [("3", ""), ("3", "AND tablets = {'initial': 4}"), ("3/1", "")]
)
def test_a_stream_of_what_is_reconciled_has_each_acknowledged_write_once(
    factor: str, spread: str, tmp_path: Path
) -> None:
    made = LocalCluster.create("changes", 3, first_address=FIRST, ports=PORTS, home=tmp_path)
    with made as cluster:
        cluster.start()
        driver = connect(POINTS[:2])
        session = driver.connect()
        session.execute(f"CREATE KEYSPACE h {KEYSPACE % factor} {spread} {TRACKED}")
        session.execute("CREATE TABLE h.t (k int PRIMARY KEY, v int) WITH cdc = {'enabled': true}")
        with written(session) as writer:
            follower = Follower()
            until(lambda: follower.turn() and follower.told, 60, 0.5)
            cluster.kill("n3")
            killed_s = time.time()
            while time.time() < killed_s + AWAY_S:
                follower.turn()
                time.sleep(0.5)
            assert follower.until_s() < killed_s, "it waits for who is away, and says so by its position"
            assert follower.reader.reportLatestOffset()["until_us"] / US_PER_S > killed_s - SAFETY_MS / 1000
            before = len(follower.told)
            cluster.start(["n3"])
            until(lambda: follower.turn() and follower.until_s() > killed_s, 90, 0.5)
            assert len(follower.told) > before, "what was written meanwhile"
        until(lambda: (follower.turn(), writer.acknowledged <= set(follower.told))[1], 120, 0.5)
        counted = Counter(follower.told)
        assert writer.acknowledged and writer.acknowledged <= counted.keys()
        assert counted.keys() <= set(range(writer.sent)) and set(counted.values()) == {1}
        assert [read_log(session, node) for node in POINTS] == [counted] * 3
        driver.shutdown()
        assert settled_errors(cluster) == ""
