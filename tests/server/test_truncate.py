"""TRUNCATE through the driver: rows are gone at every node at once, statements go on, no client is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from cassandra import InvalidRequest
from cassandra.cluster import Cluster, Session
from cassandra.protocol import ProtocolException

from tests.server.parts import CQL_PORT, Nodes


@pytest.fixture
def session(three: Nodes) -> Iterator[Session]:
    addresses = [member.address for member in three.members]
    cluster = Cluster(addresses, port=CQL_PORT, protocol_version=5)
    session = cluster.connect()
    session.execute("DROP KEYSPACE IF EXISTS emptied")
    session.execute(
        "CREATE KEYSPACE emptied WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    session.set_keyspace("emptied")
    session.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    yield session
    cluster.shutdown()


def count_at_every_node(session: Session) -> list[int]:
    hosts = session.cluster.metadata.all_hosts()
    return [len(list(session.execute("SELECT k FROM t", host=host))) for host in hosts]


def test_no_node_shows_a_row_after_truncate(session: Session) -> None:
    insert = session.prepare("INSERT INTO t (k, v) VALUES (?, ?)")
    for key in range(20):
        session.execute(insert, (key, key))
    assert count_at_every_node(session) == [20, 20, 20]
    session.execute("TRUNCATE t")
    assert count_at_every_node(session) == [0, 0, 0]


def test_prepared_statements_go_on_after_truncate(session: Session) -> None:
    insert = session.prepare("INSERT INTO t (k, v) VALUES (?, ?)")
    select = session.prepare("SELECT v FROM t WHERE k = ?")
    session.execute(insert, (1, 1))
    session.execute("TRUNCATE TABLE t")
    assert session.execute(select, (1,)).one() is None
    session.execute(insert, (1, 2))
    assert session.execute(select, (1,)).one().v == 2


def test_the_table_keeps_its_id_for_clients(session: Session) -> None:
    look = "SELECT id FROM system_schema.tables WHERE keyspace_name = 'emptied' AND table_name = 't'"
    before = session.execute(look).one().id
    session.execute("TRUNCATE t")
    assert session.execute(look).one().id == before


def test_a_missing_table_is_refused(session: Session) -> None:
    with pytest.raises(InvalidRequest):
        session.execute("TRUNCATE nowhere")


def test_clients_that_work_meanwhile_see_no_error(session: Session) -> None:
    insert = session.prepare("INSERT INTO t (k, v) VALUES (?, ?)")
    select = session.prepare("SELECT v FROM t WHERE k = ?")
    errors: list[Any] = []
    ended = threading.Event()

    def work(worker: int) -> None:
        key = 0
        while not ended.is_set():
            key += 1
            try:
                session.execute(insert, (worker * 1000 + key % 50, key))
                session.execute(select, (worker * 1000 + key % 50,))
            except Exception as error:
                errors.append(error)
                return

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for worker in workers:
        worker.start()
    for _ in range(10):
        session.execute("TRUNCATE t")
    ended.set()
    for worker in workers:
        worker.join()
    assert errors == []
    session.execute("TRUNCATE t")
    assert count_at_every_node(session) == [0, 0, 0]


def test_the_pages_of_an_emptied_table_end_without_an_error(session: Session) -> None:
    insert = session.prepare("INSERT INTO t (k, v) VALUES (?, ?)")
    for key in range(20):
        session.execute(insert, (key, key))
    select = session.prepare("SELECT k FROM t")
    select.fetch_size = 5
    pages = session.execute(select)
    assert len(pages.current_rows) == 5
    session.execute("TRUNCATE t")
    pages.fetch_next_page()
    assert pages.current_rows == [] and not pages.has_more_pages
    for key in range(20):
        session.execute(insert, (key, key))
    pages = session.execute(select)
    session.execute("DROP TABLE t")
    session.execute("CREATE TABLE t (k int PRIMARY KEY, v int)")
    with pytest.raises(ProtocolException):
        pages.fetch_next_page()
