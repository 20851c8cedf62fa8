"""Four processes with witnesses: one is killed under load and comes back. Every acknowledged write is read,
and a node that is left alone has no rows of ranges of which it is a witness."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from lockstep.testing import Cluster
from lockstep.testing.conversation import CqlError
from lockstep.testing.nodes import Node, Session
from lockstep.values.errors import LockstepError

pytestmark = pytest.mark.slow

REPLICATION = "{'class': 'NetworkTopologyStrategy', 'replication_factor': '3/1'}"
KEYS, WAIT_S, LOOK_S, AWAY_S = 200, 60.0, 0.2, 4.0
COUNTERS = 6


def until(what: Callable[[], bool], seconds: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline_s, "it takes too long"
        time.sleep(LOOK_S)


def kept(session: Session) -> tuple[int, int]:
    """Mutations that the node keeps, and those of them that it keeps as a witness."""
    rows = session.execute("SELECT * FROM system_views.mutation_journal", consistency="ONE")
    return sum(row.entries for row in rows), sum(row.entries for row in rows if row.witness)


class Load:
    """Overwrites and reads rows at QUORUM at some nodes by turns."""

    def __init__(self) -> None:
        self.rows: dict[int, str] = {}
        self.written = 0

    def run(self, sessions: list[Session], seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s or self.written < KEYS:
            number = self.written = self.written + 1
            session, key = sessions[number % len(sessions)], number % KEYS
            self.rows[key] = f"value {number}"
            session.execute("INSERT INTO k.t (k, v) VALUES (?, ?)", (key, self.rows[key]))
            if number % 5 == 0:
                self.check(sessions[number % 3 % len(sessions)], number * 3 % KEYS)

    def check(self, session: Session, key: int, level: str = "QUORUM") -> None:
        found = session.execute("SELECT v FROM k.t WHERE k = ?", (key,), consistency=level)
        assert [row.v for row in found] == [self.rows[key] for key in (key,) if key in self.rows]


def session_of(node: Node) -> Session:
    return node.session(timeout_s=WAIT_S)


@pytest.mark.parametrize("spread", ["", "AND tablets = {'initial': 8}"])
def test_a_full_replica_is_killed_and_no_write_is_lost_though_one_of_three_has_no_rows(spread: str) -> None:
    with Cluster(4) as cluster, ExitStack() as closing:
        cluster.execute(
            f"CREATE KEYSPACE k WITH replication = {REPLICATION} {spread} AND replication_type = 'tracked'"
        )
        cluster.execute("CREATE TABLE k.t (k int PRIMARY KEY, v text)")
        *left, lost = cluster.nodes
        sessions = [closing.enter_context(session_of(node)) for node in left]
        load = Load()
        load.run(sessions, 1)
        until(lambda: all(kept(session) == (0, 0) for session in sessions))
        lost.kill()
        lost.wait_until_seen_down()
        load.run(sessions, AWAY_S)
        away = [kept(session) for session in sessions]
        assert all(entries > 0 for entries, _ in away), away
        # Where the tablets lie is chance: not each node is a witness of what the lost one has.
        assert sum(entries for entries, _ in away) > sum(witnessed for _, witnessed in away) > 0, away
        for key in range(KEYS):
            load.check(sessions[key % len(sessions)], key)
        lost.start()
        sessions.append(closing.enter_context(session_of(lost)))
        load.run(sessions, 1)
        until(lambda: all(kept(session) == (0, 0) for session in sessions))
        for key in range(KEYS):
            load.check(sessions[-1], key)
            load.check(sessions[key % len(sessions)], key, "ONE")
        for node in left:
            node.kill()
        time.sleep(AWAY_S)  # Until it takes the others for dead, and asks nobody in vain.
        rows, _ = shown(sessions[-1], load, range(KEYS))
        # Of two copies of each row on four nodes it has half; with three it would have three quarters.
        assert KEYS * 0.25 < rows < KEYS * 0.7, f"{rows} of {KEYS} rows are on one of four nodes"
        print(f"{load.written} writes; kept while one was away, and as witnesses: {away}; rows here: {rows}")


def shown(session: Session, load: Load, keys: range) -> tuple[int, set[str]]:
    """How many rows the node shows by itself, and with which errors it refuses others."""
    rows, errors = 0, set[str]()
    for key in keys:
        try:
            load.check(session, key, "ONE")
        except (CqlError, LockstepError) as error:
            errors.add(type(error).__name__)
        else:
            rows += 1
    return rows, errors


def test_registers_count_by_conditions_while_a_full_replica_or_the_witness_is_away() -> None:
    """Three nodes: each of the keys has another witness. Clients at both nodes that are left count up."""
    with Cluster(3) as cluster, ExitStack() as closing:
        cluster.execute(
            f"CREATE KEYSPACE k WITH replication = {REPLICATION} AND replication_type = 'tracked'"
        )
        cluster.execute("CREATE TABLE k.c (k int PRIMARY KEY, n int)")
        *left, lost = cluster.nodes
        sessions = [closing.enter_context(session_of(node)) for node in left]
        for key in range(COUNTERS):
            text = "INSERT INTO k.c (k, n) VALUES (?, 0) IF NOT EXISTS"
            assert [sessions[at].execute(text, (key,))[0][0] for at in (0, 1)] == [True, False]
        lost.kill()
        lost.wait_until_seen_down()
        counted = [0] * COUNTERS
        with ThreadPoolExecutor(len(sessions)) as pool:
            for done in pool.map(count_up, sessions):
                counted = [one + other for one, other in zip(counted, done, strict=True)]
        assert min(counted) > 0, counted
        lost.start()
        sessions.append(closing.enter_context(session_of(lost)))
        for session in sessions:
            for level in ("SERIAL", "QUORUM"):
                found = session.execute("SELECT k, n FROM k.c WHERE k = 0", (), consistency=level)
                assert [row.n for row in found] == counted[:1]
            assert {row.k: row.n for row in session.execute("SELECT k, n FROM k.c")} == dict(
                enumerate(counted)
            )


def count_up(session: Session) -> list[int]:
    """How often this client has added one to each register."""
    counted, end_s = [0] * COUNTERS, time.monotonic() + AWAY_S
    while time.monotonic() < end_s:
        for key in range(COUNTERS):
            (row,) = session.execute("SELECT n FROM k.c WHERE k = ?", (key,), consistency="SERIAL")
            text = "UPDATE k.c SET n = ? WHERE k = ? IF n = ?"
            counted[key] += session.execute(text, (row.n + 1, key, row.n))[0][0]
    return counted
