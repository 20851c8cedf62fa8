"""Conditional requests through coordinators whose clocks differ: they are ordered as they were decided."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from lockstep.testing.simulated import SimulatedCluster

SKEW_S = 30.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[SimulatedCluster]:
    """n2 is half a minute ahead, n3 as much behind."""
    with SimulatedCluster(3) as made:
        made.skew_clock("n2", SKEW_S)
        made.skew_clock("n3", -SKEW_S)
        made.execute(
            "CREATE KEYSPACE ks WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
        )
        made.execute("CREATE TABLE ks.t (k int PRIMARY KEY, l list<int>, v int, at timeuuid)")
        made.execute(
            "CREATE TABLE ks.r (k int, c int, l list<int> static, m list<int>, v int, PRIMARY KEY (k, c))"
        )
        made.execute(
            "CREATE KEYSPACE one WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
        )
        made.execute("CREATE TABLE one.u (k uuid, c timeuuid, v int, PRIMARY KEY (k, c))")
        yield made


def in_turn(cluster: SimulatedCluster, count: int) -> Iterator[tuple[int, str]]:
    return zip(range(count), itertools.cycle(cluster.nodes), strict=False)


def applied(cluster: SimulatedCluster, text: str, node: str) -> bool:
    return bool(cluster.execute(text, node=node)[0][0])


def test_appends_stand_in_the_order_of_their_decisions(cluster: SimulatedCluster) -> None:
    assert applied(cluster, "INSERT INTO ks.t (k, v) VALUES (1, 0) IF NOT EXISTS", "n1")
    for number, node in in_turn(cluster, 9):
        assert applied(
            cluster, f"UPDATE ks.t SET l = l + [{number}], v = {number + 1} WHERE k = 1 IF v = {number}", node
        )
        found = cluster.execute("SELECT l FROM ks.t WHERE k = 1", consistency="SERIAL")[0].l
        assert found == list(range(number + 1))


def test_what_is_prepended_stands_before_all_that_was_decided_before(cluster: SimulatedCluster) -> None:
    for number, node in in_turn(cluster, 9):
        assert applied(cluster, f"UPDATE ks.t SET l = [{number}, -1] + l, v = 1 WHERE k = 2 IF v != 7", node)
    found = cluster.execute("SELECT l FROM ks.t WHERE k = 2", consistency="SERIAL")[0].l
    assert found == [part for number in reversed(range(9)) for part in (number, -1)]


def test_static_lists_and_lists_in_batches_follow_decisions_too(cluster: SimulatedCluster) -> None:
    for number, node in in_turn(cluster, 6):
        batch = (
            f"BEGIN BATCH UPDATE ks.r SET l = l + [{number}] WHERE k = 1 IF EXISTS; "
            f"UPDATE ks.r SET m = m + [{number}] WHERE k = 1 AND c = 1; "
            f"UPDATE ks.r SET m = m + [{-number}] WHERE k = 1 AND c = 1; APPLY BATCH"
        )
        if not number:
            batch = batch.replace(" IF EXISTS", " IF v = null")
            batch = batch.replace("WHERE k = 1 IF", "WHERE k = 1 AND c = 1 IF")
        assert applied(cluster, batch, node)
    found = cluster.execute("SELECT l, m FROM ks.r WHERE k = 1", consistency="SERIAL")[0]
    assert found.l == list(range(6))
    assert found.m == [part for number in range(6) for part in (number, -number)]


def test_now_rises_with_decisions(cluster: SimulatedCluster) -> None:
    seen: list[int] = []
    for number, node in in_turn(cluster, 6):
        assert applied(cluster, f"UPDATE ks.t SET at = now(), v = {number} WHERE k = 3 IF v != -1", node)
        seen.append(cluster.execute("SELECT at FROM ks.t WHERE k = 3", consistency="SERIAL")[0].at.time)
    assert seen == sorted(set(seen))


def test_a_later_decision_compares_with_a_later_now(cluster: SimulatedCluster) -> None:
    assert applied(cluster, "INSERT INTO ks.t (k, at) VALUES (4, now()) IF NOT EXISTS", "n2")
    assert applied(cluster, "UPDATE ks.t SET v = 1 WHERE k = 4 IF at < now()", "n3")


def test_what_expires_does_by_the_clock(cluster: SimulatedCluster) -> None:
    """Also when ballots are ahead of it, because one coordinator is."""
    assert applied(cluster, "INSERT INTO ks.t (k, v) VALUES (5, 0) IF NOT EXISTS", "n2")
    assert applied(cluster, "UPDATE ks.t USING TTL 10 SET v = 1 WHERE k = 5 IF v = 0", "n1")
    assert not applied(cluster, "UPDATE ks.t SET v = 2 WHERE k = 5 IF v = null", "n1")
    cluster.advance(12)
    assert applied(cluster, "UPDATE ks.t SET v = 2 WHERE k = 5 IF v = null", "n1")


def test_a_key_is_worked_out_once(cluster: SimulatedCluster) -> None:
    """What is decided for a key is written to that key, on its replica, and not to another one."""
    for count in range(1, 9):
        assert applied(cluster, "INSERT INTO one.u (k, c, v) VALUES (uuid(), now(), 1) IF NOT EXISTS", "n1")
        found = cluster.execute("SELECT k, c FROM one.u")
        assert len(found) == count
        for row in found:
            assert cluster.execute("SELECT v FROM one.u WHERE k = ? AND c = ?", (row.k, row.c)) == [(1,)]
