"""What was acknowledged survives the sudden end of every node at once, RocksDB and all.

The kernel outlives SIGKILL, so this shows that nothing acknowledged was still inside a process; what a
power cut takes is the simulator's part.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect

pytestmark = pytest.mark.slow

FIRST = "127.0.0.71"
POINTS = ["127.0.0.71", "127.0.0.72", "127.0.0.73"]
#: Writes acknowledged before each kill; some hundred more are in flight when it comes.
BEFORE_KILL = 3000
IN_FLIGHT = 200
ROUNDS = 2


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create("durability", 3, first_address=FIRST, ports=PORTS, home=tmp_path)
    with made:
        made.start()
        yield made


def acknowledged_until_killed(cluster: LocalCluster, first_key: int) -> list[int]:
    """Keys whose write was acknowledged, the last ones right before all nodes were killed."""
    driver = connect(POINTS)
    session = driver.connect()
    session.execute(
        "CREATE KEYSPACE IF NOT EXISTS d"
        " WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    session.execute("CREATE TABLE IF NOT EXISTS d.t (k int PRIMARY KEY, v text)")
    insert = session.prepare("INSERT INTO d.t (k, v) VALUES (?, ?)")
    insert.consistency_level = ConsistencyLevel.QUORUM
    insert.is_idempotent = False
    acknowledged: list[int] = []
    enough, ended = threading.Event(), threading.Event()
    window = threading.Semaphore(IN_FLIGHT)

    def done(_rows: object, key: int) -> None:
        acknowledged.append(key)
        window.release()
        if len(acknowledged) >= BEFORE_KILL:
            enough.set()

    def failed(_error: object) -> None:
        window.release()
        ended.set()

    def write() -> None:
        key = first_key
        while not ended.is_set():
            window.acquire()
            future = session.execute_async(insert, (key, f"value {key}"))
            future.add_callbacks(done, failed, callback_args=(key,))
            key += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert enough.wait(60), f"{len(acknowledged)} writes in a minute"
        cluster.kill("n1", "n2", "n3")
    finally:
        ended.set()
        writer.join(60)
        driver.shutdown()
    return acknowledged


def test_writes_acknowledged_before_all_nodes_are_killed_are_read_after_their_restart(
    cluster: LocalCluster,
) -> None:
    acknowledged: list[int] = []
    for round_ in range(ROUNDS):
        acknowledged += acknowledged_until_killed(cluster, round_ * 1_000_000)
        cluster.start()
    assert len(acknowledged) >= ROUNDS * BEFORE_KILL
    driver = connect(POINTS)
    try:
        session = driver.connect()
        session.default_fetch_size = 5000
        found = {row.k: row.v for row in session.execute("SELECT k, v FROM d.t")}
    finally:
        driver.shutdown()
    lost = [key for key in acknowledged if found.get(key) != f"value {key}"]
    assert not lost, f"{len(lost)} of {len(acknowledged)} acknowledged writes are lost, as {lost[:5]}"
