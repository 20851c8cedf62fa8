"""A coordinator whose clock is far off warns whoever leaves timestamps to it, through the Python driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cassandra import ConsistencyLevel
from cassandra.cluster import Session
from cassandra.query import BatchStatement, SimpleStatement

from lockstep.node.membership.liveness import Clocks
from tests.server.parts import Nodes
from tests.server.test_drivers import SIMPLE, connect


@pytest.fixture
def session(three: Nodes) -> Iterator[Session]:
    cluster = connect(three)
    cluster.profile_manager.default.consistency_level = ConsistencyLevel.QUORUM
    made = cluster.connect()
    made.execute(f"CREATE KEYSPACE IF NOT EXISTS clock_warnings {SIMPLE % 3}")
    made.set_keyspace("clock_warnings")
    made.execute("CREATE TABLE IF NOT EXISTS t (a int PRIMARY KEY, b int)")
    yield made
    cluster.shutdown()


def warned(three: Nodes, session: Session) -> list[bool]:
    """Whether each kind of write was answered with a warning."""
    insert = session.prepare("INSERT INTO t (a, b) VALUES (?, ?)")
    batch = BatchStatement()
    batch.add(insert, (1, 1))
    batch.add(insert, (2, 2))
    found = []
    for statement in (SimpleStatement("INSERT INTO t (a, b) VALUES (1, 1)"), insert.bind((1, 1)), batch):
        for member in three.members:
            member.node.log.clocks._judge()
        future = session.execute_async(statement)
        future.result()
        found.append(any("The clock of this coordinator" in text for text in future.warnings or ()))
    return found


def test_writes_are_warned_of_that_leave_timestamps_to_the_coordinator(
    three: Nodes, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.use_client_timestamp = False
    assert warned(three, session) == [False, False, False]
    monkeypatch.setattr(Clocks, "too_far", lambda self, offset: True)
    assert warned(three, session) == [True, True, True]
    session.use_client_timestamp = True
    assert warned(three, session) == [False, False, False]
    monkeypatch.undo()
    session.use_client_timestamp = False
    assert warned(three, session) == [False, False, False]
