"""What clients are promised while real nodes die, stop and are cut off: eight count on one row by conditional
writes, others write and read registers at QUORUM. `make proof` tries the same with a million requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cassandra import ConsistencyLevel, InvalidRequest, Unavailable
from cassandra.cluster import Session
from cassandra.policies import FallthroughRetryPolicy
from cassandra.query import PreparedStatement

from bench.proof_checks import Access, check_atomic
from lockstep.local.clusters import LocalCluster
from lockstep.sim.checkers.registers import Decided, check_decisions
from lockstep.sim.load.history import Outcome
from tests.acceptance.parts import PORTS, connect

pytestmark = pytest.mark.slow

FIRST = "127.0.103.1"
POINTS = ["127.0.103.1", "127.0.103.2", "127.0.103.3"]
CLIENTS = 8
#: Clients of registers, and how many of those there are.
ACCESSORS, REGISTERS = 3, 2
#: Increments that must come to pass in all; there are many more requests.
INCREMENTS = 80


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create("conditional", 3, first_address=FIRST, ports=PORTS, home=tmp_path)
    with made:
        made.start()
        yield made


def prepared(session: Session, text: str) -> PreparedStatement:
    """A statement that the driver never sends twice."""
    made = session.prepare(text)
    made.consistency_level = ConsistencyLevel.QUORUM
    made.retry_policy = FallthroughRetryPolicy()
    made.is_idempotent = False
    return made


class Registers:
    """Clients write values of their own and read in turns."""

    def __init__(self, session: Session, ended: threading.Event) -> None:
        self.session = session
        self.ended = ended
        self.accesses: list[Access] = []
        self._read = prepared(session, "SELECT v FROM c.r WHERE k = ?")
        self._write = prepared(session, "INSERT INTO c.r (k, v) VALUES (?, ?)")

    def run(self, client: str) -> None:
        number = 0
        while not self.ended.wait(0.02):
            number += 1
            self.ask(client, number // 2 % REGISTERS, f"{client}/{number}" if number % 2 else None)

    def ask(self, client: str, key: int, value: str | None) -> None:
        start_ns = time.monotonic_ns()
        outcome, writes = Outcome.OK, value is not None
        try:
            if writes:
                self.session.execute(self._write, (key, value), timeout=5)
            else:
                row = self.session.execute(self._read, (key,), timeout=5).one()
                value = row and row.v
        except (Unavailable, InvalidRequest):
            outcome = Outcome.FAILED
        except Exception:
            outcome = Outcome.UNKNOWN
        self.accesses.append(Access(client, str(key), writes, value, start_ns, time.monotonic_ns(), outcome))


class Counting:
    """A register holds `number/client/request`; a client sets one that is higher by one."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.events: list[Decided] = []
        self.ended = threading.Event()
        self._read = prepared(session, "SELECT v FROM c.t WHERE k = 1")
        self._read.consistency_level = ConsistencyLevel.SERIAL
        self._first = prepared(session, "INSERT INTO c.t (k, v) VALUES (1, ?) IF NOT EXISTS")
        self._next = prepared(session, "UPDATE c.t SET v = ? WHERE k = 1 IF v = ?")
        for statement in (self._first, self._next):
            statement.serial_consistency_level = ConsistencyLevel.SERIAL

    def run(self, client: str) -> None:
        known: bytes | None = None
        number = 0
        while not self.ended.is_set():
            number += 1
            if number % 4 == 0:
                known = self.look(client)
                continue
            count = int(known.split(b"/")[0]) if known is not None else 0
            wrote = f"{count + 1}/{client}/{number}".encode()
            known = self.write(client, known, wrote)

    def look(self, client: str) -> bytes | None:
        start_ns = time.monotonic_ns()
        try:
            rows = list(self.session.execute(self._read, timeout=5))
        except Exception:
            return None
        seen = rows[0].v.encode() if rows else None
        self.note(Decided(client, b"row", start_ns, time.monotonic_ns(), Outcome.OK, seen=seen))
        return seen

    def write(self, client: str, known: bytes | None, wrote: bytes) -> bytes | None:
        start_ns = time.monotonic_ns()
        applied, seen, outcome = False, None, Outcome.OK
        try:
            if known is None:
                found = self.session.execute(self._first, (wrote.decode(),), timeout=5).one()
            else:
                found = self.session.execute(self._next, (wrote.decode(), known.decode()), timeout=5).one()
            applied = bool(found[0])
            seen = found.v.encode() if hasattr(found, "v") and found.v is not None else None
        except (Unavailable, InvalidRequest):
            outcome = Outcome.FAILED
        except Exception:
            outcome = Outcome.UNKNOWN
        end_ns = time.monotonic_ns()
        self.note(Decided(client, b"row", start_ns, end_ns, outcome, known, wrote, applied, seen))
        return (wrote if applied else seen) if outcome is Outcome.OK else known

    def note(self, event: Decided) -> None:
        self.events.append(event)

    def applied(self) -> int:
        return sum(event.applied for event in list(self.events))


def test_increments_and_registers_are_linearizable_under_faults(cluster: LocalCluster) -> None:
    driver = connect(POINTS)
    session = driver.connect()
    # The nodes give the timestamps; they share one clock.
    session.use_client_timestamp = False
    session.execute(
        "CREATE KEYSPACE c WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}"
    )
    for table in "tr":
        session.execute(f"CREATE TABLE c.{table} (k int PRIMARY KEY, v text)")
    counting = Counting(session)
    registers = Registers(session, counting.ended)
    clients = [threading.Thread(target=counting.run, args=(f"c{n}",)) for n in range(CLIENTS)]
    clients += [threading.Thread(target=registers.run, args=(f"r{n}",)) for n in range(ACCESSORS)]
    for client in clients:
        client.start()
    try:
        _disturb(cluster, counting)
    finally:
        counting.ended.set()
        for client in clients:
            client.join(30)
    last = counting.look("last")
    for key in range(REGISTERS):
        registers.ask("last", key, None)
    driver.shutdown()
    assert [access.outcome for access in registers.accesses[-REGISTERS:]] == [Outcome.OK] * REGISTERS
    assert check_atomic(registers.accesses) > INCREMENTS // 4
    assert last is not None
    check_decisions(counting.events)
    # The number is how many increments there were: none was lost, and none counted twice.
    unknown = sum(event.outcome is Outcome.UNKNOWN for event in counting.events)
    assert counting.applied() <= int(last.split(b"/")[0]) <= counting.applied() + unknown


def _disturb(cluster: LocalCluster, counting: Counting) -> None:
    _progress(counting, INCREMENTS // 4)
    cluster.kill("n2")
    _progress(counting, INCREMENTS // 4)
    cluster.start(["n2"])
    cluster.pause("n1")
    time.sleep(2)
    cluster.resume("n1")
    _progress(counting, INCREMENTS // 4)
    cluster.partition(["n3"], ["n1", "n2"])
    time.sleep(1)
    cluster.heal()
    _progress(counting, INCREMENTS // 4)


def _progress(counting: Counting, more: int, timeout_s: float = 30) -> None:
    wanted, deadline_s = counting.applied() + more, time.monotonic() + timeout_s
    while counting.applied() < wanted:
        assert time.monotonic() < deadline_s, f"{counting.applied()} of {wanted} increments"
        time.sleep(0.05)
