"""A table splits as it grows and merges when fewer tablets are asked for, under a writer and a reader of
pages at QUORUM, and while a node is killed: nothing is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.concurrent import execute_concurrent_with_args

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import PORTS, connect

pytestmark = pytest.mark.slow

FIRST = "127.0.124.1"
FEW, MANY = 4, 16
VALUE_BYTES = 1000
TARGET_BYTES = 100 * VALUE_BYTES
SETTINGS = {"tablets": {"target_size_bytes": TARGET_BYTES, "load_refresh_ms": 2000}}


def table(cluster: LocalCluster) -> dict[str, Any]:
    (found,) = cluster.any_admin().get("/v1/tablets", keyspace="h")["tables"]
    assert isinstance(found, dict)
    return found


def until(reached: Callable[[dict[str, Any]], bool], cluster: LocalCluster) -> None:
    deadline_s = time.monotonic() + 180
    while not reached(table(cluster)):
        assert time.monotonic() < deadline_s, table(cluster)
        time.sleep(0.2)


def done(count: Callable[[int], bool]) -> Callable[[dict[str, Any]], bool]:
    """The balancer may go on to move what grows."""
    return lambda told: count(told["tablets"]) and told["resize_phase"] == "none"


class Clients:
    """One writes new keys; one reads all, page by page, and finds every key that was there when it began."""

    def __init__(self, session: Session) -> None:
        self.acknowledged: dict[int, bytes] = {}
        self.lost: list[int] = []
        self.scans = 0
        self._session = session
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=work) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _write(self) -> None:
        insert = self._session.prepare("INSERT INTO h.t (k, v) VALUES (?, ?)")
        insert.consistency_level = ConsistencyLevel.QUORUM
        key = 0
        while not self._ended.is_set():
            value = os.urandom(VALUE_BYTES)
            try:
                self._session.execute(insert, (key, value), timeout=5)
            except Exception:
                time.sleep(0.05)
            else:
                self.acknowledged[key] = value
            key += 1
            time.sleep(0.002)

    def _read(self) -> None:
        select = self._session.prepare("SELECT k FROM h.t")
        select.consistency_level, select.fetch_size = ConsistencyLevel.QUORUM, 100
        while not self._ended.is_set():
            known = list(self.acknowledged)
            try:
                found = {row.k for row in self._session.execute(select, timeout=5)}
            except Exception:
                time.sleep(0.05)
                continue
            self.scans += 1
            self.lost += [key for key in known if key not in found]


def test_a_table_splits_and_merges_and_nothing_is_lost(tmp_path: Path) -> None:
    made = LocalCluster.create(
        "resizing", 4, first_address=FIRST, ports=PORTS, home=tmp_path, settings=SETTINGS
    )
    with made as cluster:
        cluster.start()
        driver = connect([f"127.0.124.{n}" for n in range(1, 4)])
        session = driver.connect()
        session.execute(
            "CREATE KEYSPACE h WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3} "
            f"AND tablets = {{'initial': {FEW}}}"
        )
        session.execute("CREATE TABLE h.t (k int PRIMARY KEY, v blob)")
        clients = Clients(session)
        try:
            until(done(lambda count: count >= MANY), cluster)
            split = table(cluster)["resize_number"]
            assert split >= 4, "twice, each with the decision and its end"
            session.execute(f"ALTER TABLE h.t WITH tablets = {{'max_tablet_count': {FEW}}}")
            until(lambda told: told["resize"] == "merge", cluster)
            cluster.kill("n4")
            time.sleep(1)
            cluster.start(["n4"])
            # Of fewer than this, half would be fewer than may be: a hot one may have been split alone.
            until(done(lambda count: count < 2 * FEW - 1), cluster)
        finally:
            clients.end()
        select = session.prepare("SELECT v FROM h.t WHERE k = ?")
        select.consistency_level = ConsistencyLevel.QUORUM
        keys = [(key,) for key in clients.acknowledged]
        answers = execute_concurrent_with_args(session, select, keys)
        found = {key: rows.one() for (key,), (_, rows) in zip(keys, answers, strict=True)}
        lost = [key for key, value in clients.acknowledged.items() if not found[key] or found[key].v != value]
        assert lost == [] and clients.lost == []
        assert len(clients.acknowledged) > 500 and clients.scans > 2
        driver.shutdown()
