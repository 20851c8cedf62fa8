"""A process is away for long: the others keep no single mutations for it, and it catches up."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import pytest

from lockstep.testing import Cluster
from lockstep.testing.nodes import Node, Session

pytestmark = pytest.mark.slow

#: A silent replica is away after this.
AFTER_S = 2.0
SETTINGS = {"tracking": {"cohort_after_ms": int(AFTER_S * 1000)}}
ROWS_BEFORE, KEYS, WAIT_S = 200, 400, 60.0
INSERT = "INSERT INTO k.t (k, v) VALUES (?, ?)"
#: Between two looks; as often as rounds are it says nothing new.
LOOK_S = 0.2


def journal(session: Session) -> tuple[int, int, int]:
    """Entries, mutations without entries, and ranges that the node is getting."""
    rows = session.execute("SELECT * FROM system_views.mutation_journal", consistency="ONE")
    getting = sum(bool(row.getting_from) for row in rows)
    return sum(row.entries for row in rows), sum(row.in_cohorts for row in rows), getting


def held(session: Session) -> dict[tuple[int, int], int]:
    """How many ids the node claims, by range."""
    rows = session.execute("SELECT * FROM system_views.tracking_shards", consistency="ONE")
    return {(row.placement_group, row.last_token): row.held for row in rows}


def until(what: Callable[[], bool], seconds: float = WAIT_S) -> None:
    deadline_s = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline_s, "it takes too long"
        time.sleep(LOOK_S)


class Load:
    """Writes, overwrites and deletes rows at QUORUM at some nodes by turns, and reads some of them."""

    def __init__(self, sessions: list[Session]) -> None:
        self.sessions = sessions
        self.rows: dict[int, str] = {}
        self.written = 0

    def step(self) -> None:
        number = self.written = self.written + 1
        session, key = self.sessions[number % len(self.sessions)], number * 7 % KEYS
        if number % 5 == 0:
            session.execute("DELETE FROM k.t WHERE k = ?", (key,))
            self.rows.pop(key, None)
        else:
            self.rows[key] = f"value {number}"
            session.execute(INSERT, (key, self.rows[key]))
        if number % 10 == 0:
            looked = (number * 3) % KEYS
            found = session.execute("SELECT v FROM k.t WHERE k = ?", (looked,))
            assert [row.v for row in found] == [self.rows[key] for key in (looked,) if key in self.rows]

    def run(self, seconds: float) -> None:
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.step()


def session_of(node: Node) -> Session:
    """The node answers as soon as it serves."""
    return node.session(timeout_s=WAIT_S)


def test_a_journal_is_bounded_by_the_silence_and_who_is_back_has_all_rows() -> None:
    with Cluster(3, settings=SETTINGS) as cluster, ExitStack() as closing:
        cluster.execute(
            f"CREATE KEYSPACE k WITH replication = {cluster.replication} AND replication_type = 'tracked'"
        )
        cluster.execute("CREATE TABLE k.t (k int PRIMARY KEY, v text)")
        first, second, third = cluster.nodes
        sessions = [closing.enter_context(session_of(node)) for node in (first, second)]
        load = Load(sessions)
        for _ in range(ROWS_BEFORE):
            load.step()
        until(lambda: all(journal(session)[0] == 0 for session in sessions))
        third.kill()
        third.wait_until_seen_down()
        before, kept = load.written, []
        for _ in range(4):
            load.run(AFTER_S)
            kept.append(journal(sessions[0])[0])
        missed = load.written - before
        # What was kept until the replica was away, and no more than some rounds' writes since.
        assert max(kept[2:]) < missed / 2, f"{kept} of {missed} mutations are kept"
        until(lambda: all(journal(session)[0] == 0 for session in sessions))
        assert [journal(session)[1] for session in sessions] == [missed, missed]
        third.start()
        load.sessions = [*sessions, closing.enter_context(session_of(third))]
        load.run(AFTER_S)
        until(lambda: all(journal(session) == (0, 0, 0) for session in load.sessions))
        claimed = [held(session) for session in load.sessions]
        assert claimed[0] == claimed[1] == claimed[2] and sum(claimed[0].values()) >= load.written
        first.kill()
        second.kill()
        alone = load.sessions[2].execute("SELECT k, v FROM k.t", consistency="ONE")
        assert {row.k: row.v for row in alone} == load.rows
        print(f"{missed} mutations missed; kept after each {AFTER_S:g} s: {kept}")
