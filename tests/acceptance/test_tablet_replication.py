"""The factor of a keyspace with tablets goes from one to three and to two, under a client at QUORUM.

No error may reach the client, and whatever was acknowledged is there after each change. So it is where a
keyspace goes from the ring to tablets.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.documents import read
from lockstep.documents.requests import Counts, Requests
from lockstep.local.clusters import LocalCluster
from tests.acceptance import parts
from tests.acceptance.parts import Load

pytestmark = pytest.mark.slow

FIRST = "127.0.119.1"
KEYSPACE = "counted"
TABLETS = 8
ROWS = 500
ALTER = f"ALTER KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': %d}}"
STEPS = (("start", "on its way"), ("rollback", "ring"), ("start", "on its way"), ("finalize", "tablets"))


def replicas(cluster: LocalCluster) -> list[set[int]]:
    found = cluster.any_admin().get("/v1/tablets", keyspace=KEYSPACE, table="load")["tablets"]
    assert not any(tablet["stage"] for tablet in found)
    return [{replica["node"] for replica in tablet["replicas"]} for tablet in found]


def at_rest(cluster: LocalCluster, told: list[Counts] | None = None) -> bool:
    """Whether nothing runs; what running requests tell of their progress is added to `told`."""
    requests = read(Requests, cluster.any_admin().get("/v1/requests")).requests
    if told is not None:
        told += [one.progress for one in requests if one.state == "running"]
    return all(one.state == "done" for one in requests)


def judge(told: list[Counts], factors: tuple[int, int]) -> None:
    """What is left of two tables' tablets only becomes less, whoever is asked."""
    counted = [one.tablets_left for one in told if one.tablets_left >= 0]
    assert counted and counted == sorted(counted, reverse=True)
    assert {one.tablets_total for one in told if one.tablets_total} == {
        2 * TABLETS * abs(factors[1] - factors[0])
    }
    left = [one.left_bytes for one in told if one.left_bytes >= 0]
    assert not left or (left[0] > 0) is (factors[1] > factors[0])


def test_factors_rise_and_fall_under_a_client_at_quorum(tmp_path: Path) -> None:
    with LocalCluster.create("counted", 4, first_address=FIRST, ports=parts.PORTS, home=tmp_path) as cluster:
        cluster.start()
        driver = parts.connect([FIRST])
        session = driver.connect()
        session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', 'dc1': 1}} "
            f"AND tablets = {{'initial': {TABLETS}}}"
        )
        session.execute(f"CREATE TABLE {KEYSPACE}.load (k int PRIMARY KEY, v int)")
        session.execute(f"CREATE TABLE {KEYSPACE}.ballast (k int PRIMARY KEY, v text)")
        insert = session.prepare(f"INSERT INTO {KEYSPACE}.ballast (k, v) VALUES (?, ?)")
        for key in range(ROWS):
            session.execute(insert, (key, f"{key}" * 50))
        load = Load([FIRST], keyspace=KEYSPACE)
        try:
            load.goes_on(40, 60)
            for before, factor in ((1, 3), (3, 2)):
                told: list[Counts] = []
                with ThreadPoolExecutor(1) as beside:
                    altered = beside.submit(session.execute, ALTER % factor, timeout=60)
                    parts.until(lambda: at_rest(cluster, told) and altered.done(), timeout_s=120)  # noqa: B023
                altered.result()
                judge(told, (before, factor))
                assert {len(nodes) for nodes in replicas(cluster)} == {factor}
                load.goes_on(40, 60)
                assert session.execute(f"SELECT count(*) FROM {KEYSPACE}.ballast").one()[0] == ROWS
            load.stop()
            assert load.errors == []
            load.check_all()
            assert parts.settled_errors(cluster) == ""
        finally:
            load.close()
            driver.shutdown()


def test_a_keyspace_goes_from_the_ring_to_tablets_and_back_under_load(tmp_path: Path) -> None:
    with LocalCluster.create("ringed", 4, first_address=FIRST, ports=parts.PORTS, home=tmp_path) as cluster:
        cluster.start()
        driver = parts.connect([FIRST])
        parts.make_table(driver.connect(), KEYSPACE)
        driver.shutdown()
        load = Load([FIRST], keyspace=KEYSPACE)
        try:
            load.goes_on(40, 60)
            for step, state in STEPS:
                told = cluster.any_admin().post("/v1/tablets/migrate", {"keyspace": KEYSPACE, "step": step})
                assert (told["state"], told["apart"]) == (state, 0)
                load.goes_on(40, 60)
            load.session.execute(ALTER % 2, timeout=30)
            parts.until(lambda: at_rest(cluster), timeout_s=120)
            load.goes_on(40, 60)
            load.stop()
            assert load.errors == []
            load.check_all()
            assert parts.settled_errors(cluster) == ""
        finally:
            load.close()
