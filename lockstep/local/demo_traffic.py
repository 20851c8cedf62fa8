"""Owns the load process: it loads rows through an unmodified Cassandra driver, keeps writers and readers
going, counts what they are answered, and reads everything again.

Invariant: a write counts as acknowledged only when the driver said so; every acknowledged write is read back
by its key at QUORUM and compared; the value of a traffic row follows from its number, so nothing about it has
to be remembered but that it was acknowledged. Nothing here retries or hides an error; the retry policy only
counts what the driver's own policy is asked about, and passes on what that decides. Every request that was
started is counted once when it ends. The driver ends requests on its own thread, so each method does a few
plain operations under one lock.
"""

from __future__ import annotations

import csv
import logging
import random
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import msgspec

from lockstep.local.demo_input import Row
from lockstep.local.demo_messages import (
    ERROR,
    HOT_KEYSPACE,
    HOT_TABLE,
    HOT_TABLETS,
    HOT_TABLETS_MAX,
    KEYSPACE,
    OK,
    READ,
    REPORT_INTERVAL_S,
    REPORT_WINDOW_S,
    TRAFFIC_TABLE,
    WRITE,
    WRONG,
    Command,
    Connect,
    Counts,
    Failed,
    Finished,
    Load,
    ReadBack,
    Report,
    StartTraffic,
    StopTraffic,
    is_hot,
    key_of,
    value_of,
)
from lockstep.values.errors import ConfigurationError, LockstepError

#: Requests that the recent percentiles look at, at most.
RECENT_MAX: Final = 20_000
#: Samples kept for the report; beyond it only totals are counted. An hour at the default rate.
SAMPLES_MAX: Final = 2_000_000
EXAMPLE_CHARS_MAX: Final = 300

SAMPLE_COLUMNS: Final = ("ended_s", "latency_ms", "operation", "outcome")


class Tally:
    def __init__(self) -> None:
        self.counts = Counts()
        self._lock = threading.Lock()
        self._recent: deque[tuple[float, float]] = deque(maxlen=RECENT_MAX)
        self._samples: list[tuple[float, float, str, str]] = []
        self._keep_samples = False

    def keep_samples(self, keep: bool) -> None:
        """Whether requests that end from now on go into the report."""
        with self._lock:
            self._keep_samples = keep

    def ended(self, operation: str, started_s: float, outcome: str) -> None:
        now = time.monotonic()
        latency_ms = (now - started_s) * 1000
        with self._lock:
            self._recent.append((now, latency_ms))
            if self._keep_samples and len(self._samples) < SAMPLES_MAX:
                self._samples.append((now, latency_ms, operation, outcome))
            if outcome == WRONG:
                self.counts.wrong_reads += 1
            elif outcome == ERROR:
                self.counts.client_errors += 1

    def raw_error(self, kind: str, what: object) -> None:
        """An error that the driver's retry policy saw."""
        with self._lock:
            self.counts.raw_errors += 1
        self.remember(f"raw: {kind}", what)

    def remember(self, kind: str, what: object) -> None:
        with self._lock:
            self.counts.errors[kind] = self.counts.errors.get(kind, 0) + 1
            self.counts.examples.setdefault(kind, str(what)[:EXAMPLE_CHARS_MAX])

    def add(self, **numbers: int) -> None:
        """Add to the named totals."""
        with self._lock:
            for name, number in numbers.items():
                setattr(self.counts, name, getattr(self.counts, name) + number)

    def copy(self) -> Counts:
        with self._lock:
            return msgspec.structs.replace(
                self.counts, errors=dict(self.counts.errors), examples=dict(self.counts.examples)
            )

    def report(self, done: int = 0, total: int = 0) -> Report:
        now = time.monotonic()
        with self._lock:
            while self._recent and self._recent[0][0] < now - REPORT_WINDOW_S:
                self._recent.popleft()
            latencies = sorted(latency for _, latency in self._recent)
            span_s = max(0.1, now - self._recent[0][0]) if self._recent else 1.0
        return Report(
            at_s=now,
            counts=self.copy(),
            ops_per_s=len(latencies) / span_s,
            p50_ms=percentile(latencies, 0.50),
            p99_ms=percentile(latencies, 0.99),
            done=done,
            total=total,
        )

    def write_samples(self, path: Path) -> int:
        """Write the kept samples as CSV; returns their number."""
        with self._lock:
            samples = list(self._samples)
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(SAMPLE_COLUMNS)
            writer.writerows(
                (f"{at:.4f}", f"{latency:.3f}", operation, outcome)
                for at, latency, operation, outcome in samples
            )
        return len(samples)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest of the ordered values that a `share` of them does not exceed; 0 without values."""
    if not ordered:
        return 0.0
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


try:
    from cassandra import ConsistencyLevel
    from cassandra.cluster import EXEC_PROFILE_DEFAULT, Cluster, ExecutionProfile, Session
    from cassandra.policies import (
        ConstantReconnectionPolicy,
        DCAwareRoundRobinPolicy,
        RetryPolicy,
        TokenAwarePolicy,
    )
    from cassandra.query import PreparedStatement
except ImportError as error:
    raise ConfigurationError(
        "the demo needs the Cassandra driver", hint="pip install cassandra-driver, or run make demo"
    ) from error

#: One request with the driver's retries.
REQUEST_TIMEOUT_S: Final = 12.0
#: How often the driver tries a node again that was down.
RECONNECT_S: Final = 0.5


class ObservedRetryPolicy(RetryPolicy):  # type: ignore[misc]
    """The driver's default policy; each question it is asked is a raw error."""

    def __init__(self, tally: Tally) -> None:
        super().__init__()
        self._tally = tally

    def on_read_timeout(self, query: Any, *facts: Any, **named: Any) -> Any:
        self._tally.raw_error("ReadTimeout", facts or named)
        return super().on_read_timeout(query, *facts, **named)

    def on_write_timeout(self, query: Any, *facts: Any, **named: Any) -> Any:
        self._tally.raw_error("WriteTimeout", facts or named)
        return super().on_write_timeout(query, *facts, **named)

    def on_unavailable(self, query: Any, *facts: Any, **named: Any) -> Any:
        self._tally.raw_error("Unavailable", facts or named)
        return super().on_unavailable(query, *facts, **named)

    def on_request_error(self, query: Any, *facts: Any, **named: Any) -> Any:
        what = named.get("error", facts[1] if len(facts) > 1 else facts)
        self._tally.raw_error(type(what).__name__, what)
        return super().on_request_error(query, *facts, **named)


class Statements:
    """A connected session with the demo's schema made and its statements prepared."""

    def __init__(self, asked: Connect, tally: Tally) -> None:
        # The driver logs what it does about lost connections; the tally counts the same.
        logging.getLogger("cassandra").setLevel(logging.CRITICAL)
        profile = ExecutionProfile(
            load_balancing_policy=TokenAwarePolicy(DCAwareRoundRobinPolicy()),
            retry_policy=ObservedRetryPolicy(tally),
            consistency_level=ConsistencyLevel.QUORUM,
            request_timeout=REQUEST_TIMEOUT_S,
        )
        self._cluster = Cluster(
            list(asked.contact_points),
            port=asked.port,
            execution_profiles={EXEC_PROFILE_DEFAULT: profile},
            reconnection_policy=ConstantReconnectionPolicy(RECONNECT_S, max_attempts=None),
        )
        self.session: Session = self._cluster.connect()
        self._make_schema(asked)
        self.insert_row = self._prepared(asked.table.insert_cql(KEYSPACE))
        self.select_row = self._prepared(asked.table.select_cql(KEYSPACE))
        self.insert_traffic = self._prepared(
            f"INSERT INTO {KEYSPACE}.{TRAFFIC_TABLE} (slot, seq, value) VALUES (?, ?, ?)"
        )
        self.select_traffic = self._prepared(
            f"SELECT value FROM {KEYSPACE}.{TRAFFIC_TABLE} WHERE slot = ? AND seq = ?"
        )
        self.insert_hot = self._prepared(f"INSERT INTO {HOT_KEYSPACE}.{HOT_TABLE} (seq, value) VALUES (?, ?)")
        self.select_hot = self._prepared(f"SELECT value FROM {HOT_KEYSPACE}.{HOT_TABLE} WHERE seq = ?")

    @property
    def described(self) -> str:
        """Name, version and protocol version of the driver in use."""
        import cassandra

        return f"cassandra-driver {cassandra.__version__}, native protocol v{self._cluster.protocol_version}"

    def close(self) -> None:
        self._cluster.shutdown()

    def _make_schema(self, asked: Connect) -> None:
        factor = asked.replication_factor
        self.session.execute(
            f"CREATE KEYSPACE {KEYSPACE} WITH replication = "
            f"{{'class': 'NetworkTopologyStrategy', 'replication_factor': {factor}}}"
        )
        self.session.execute(asked.table.create_cql(KEYSPACE))
        self.session.execute(
            f"CREATE TABLE {KEYSPACE}.{TRAFFIC_TABLE} (slot int, seq bigint, value text, "
            f"PRIMARY KEY ((slot), seq))"
        )
        self.session.execute(
            f"CREATE KEYSPACE {HOT_KEYSPACE} WITH replication = {{'class': 'NetworkTopologyStrategy', "
            f"'replication_factor': {factor}}} AND tablets = {{'enabled': true, 'initial': {HOT_TABLETS}}}"
        )
        self.session.execute(
            f"CREATE TABLE {HOT_KEYSPACE}.{HOT_TABLE} (seq bigint PRIMARY KEY, value text) "
            f"WITH tablets = {{'max_tablet_count': {HOT_TABLETS_MAX}}}"
        )

    def _prepared(self, cql: str) -> PreparedStatement:
        statement = self.session.prepare(cql)
        # Each writes a value that its key determines, or only reads: repeating it changes nothing.
        statement.is_idempotent = True
        return statement


class Lane:
    """Requests in flight, at most `width` of them; each ends by one call of its `done`."""

    def __init__(self, session: Session, width: int) -> None:
        self._session = session
        self._free = threading.Semaphore(width)
        self._width = width

    def submit(
        self,
        statement: PreparedStatement,
        values: Sequence[Any],
        done: Callable[[float, Any, BaseException | None], None],
        *,
        wait: bool = True,
    ) -> bool:
        """Start one request. `done(started_s, rows, error)` runs on the driver's thread.

        False when `width` are in flight and `wait` is not wanted.
        """
        if not self._free.acquire(blocking=wait):
            return False
        started_s = time.monotonic()

        def succeeded(rows: Any) -> None:
            try:
                done(started_s, rows, None)
            finally:
                self._free.release()

        def failed(error: BaseException) -> None:
            try:
                done(started_s, None, error)
            finally:
                self._free.release()

        try:
            future = self._session.execute_async(statement, values)
        except Exception as error:
            failed(error)
            return True
        future.add_callbacks(succeeded, failed)
        return True

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing is in flight; False when something still is."""
        deadline = time.monotonic() + timeout_s
        taken = 0
        while taken < self._width and self._free.acquire(timeout=max(0.0, deadline - time.monotonic())):
            taken += 1
        for _ in range(taken):
            self._free.release()
        return taken == self._width


#: Requests in flight while loading or reading back: enough to keep three nodes busy, far below their limits.
BULK_WIDTH: Final = 96
#: Requests in flight of the traffic; at a rate that two cores bear, some tens are.
TRAFFIC_WIDTH: Final = 128
#: How often a row that was not loaded or not read back is tried again.
ROUNDS_MAX: Final = 4
ROUND_PAUSE_S: Final = 0.5
#: Pause of the pacing loop: at the default rate it starts a few requests a turn.
PACE_S: Final = 0.005
#: Requests that a late pacing loop may catch up at once; the rest of the backlog is dropped, not sent.
BURST_MAX: Final = 32
#: Half of the reads look at one of the last so many acknowledged writes, where a loss would show first.
FRESH_MAX: Final = 500
#: The same choices of rows in every run.
READER_SEED: Final = 20


class Traffic:
    """Writers and readers at a bounded rate, on a thread that only starts requests."""

    def __init__(self, statements: Statements, rows: Sequence[tuple[Row, Row]], tally: Tally) -> None:
        self._statements = statements
        self._rows = rows
        self._tally = tally
        self._lane = Lane(statements.session, TRAFFIC_WIDTH)
        self._random = random.Random(READER_SEED)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._next_seq = 0
        self.acknowledged: list[int] = []

    @property
    def running(self) -> bool:
        return self._thread is not None

    def start(self, ops_per_s: int) -> None:
        self._tally.keep_samples(True)
        self._thread = threading.Thread(target=self._pace, args=(ops_per_s,), name="pace", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Start nothing more, and wait for what is in flight."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if not self._lane.drain(2 * REQUEST_TIMEOUT_S):
            self._tally.remember("unfinished", "requests in flight did not end in time")
        self._tally.keep_samples(False)

    def _pace(self, ops_per_s: int) -> None:
        begin, started = time.monotonic(), 0
        while not self._stop.wait(PACE_S):
            due = int((time.monotonic() - begin) * ops_per_s) - started
            started += max(0, due - BURST_MAX)
            for _ in range(min(due, BURST_MAX)):
                started += 1
                if not (self._write() if started % 2 else self._read()):
                    break

    def _write(self) -> bool:
        seq = self._next_seq
        hot = int(is_hot(seq))
        statement = self._statements.insert_hot if hot else self._statements.insert_traffic

        def done(started_s: float, _rows: Any, error: BaseException | None) -> None:
            if error is None:
                self.acknowledged.append(seq)
                self._tally.add(writes_acknowledged=1, hot_acknowledged=hot)
                self._tally.ended(WRITE, started_s, OK)
            else:
                self._tally.remember(f"write: {type(error).__name__}", error)
                self._tally.ended(WRITE, started_s, ERROR)

        if not self._lane.submit(statement, (*key_of(seq), value_of(seq)), done, wait=False):
            return False
        self._next_seq += 1
        self._tally.add(writes_attempted=1, hot_attempted=hot)
        return True

    def _read(self) -> bool:
        known = len(self.acknowledged)
        if known and (not self._rows or self._random.random() < 0.75):
            oldest = 0 if self._random.random() < 0.33 else max(0, known - FRESH_MAX)
            seq = self.acknowledged[self._random.randrange(oldest, known)]
            select = self._statements.select_hot if is_hot(seq) else self._statements.select_traffic
            return self._look(select, key_of(seq), (value_of(seq),))
        if not self._rows:
            return True
        key, row = self._rows[self._random.randrange(len(self._rows))]
        return self._look(self._statements.select_row, key, row)

    def _look(self, statement: Any, key: Row, expected: Row) -> bool:
        def done(started_s: float, rows: Any, error: BaseException | None) -> None:
            self._tally.add(reads=1)
            if error is not None:
                self._tally.remember(f"read: {type(error).__name__}", error)
                self._tally.ended(READ, started_s, ERROR)
            elif [tuple(row) for row in rows] != [expected]:
                self._tally.remember("wrong read", f"key {key}: {_shown(rows)}")
                self._tally.ended(READ, started_s, WRONG)
            else:
                self._tally.ended(READ, started_s, OK)

        return self._lane.submit(statement, key, done, wait=False)


class LoadProcess:
    """The body of the load process: one command after another, with reports in between."""

    def __init__(
        self, connection: Connection, connect: Callable[[Connect, Tally], Statements] = Statements
    ) -> None:
        self._connection = connection
        self._connect = connect
        self._tally = Tally()
        self._reported_s = 0.0
        self._rows: list[tuple[Row, Row]] = []
        self._statements: Statements
        self._traffic: Traffic
        self._asked: Connect

    def run(self) -> None:
        """Until the other side closes the connection."""
        while True:
            if self._connection.poll(REPORT_INTERVAL_S):
                begin = time.monotonic()
                note = self._do(self._connection.recv())
                self._connection.send(Finished(self._tally.copy(), time.monotonic() - begin, note))
            else:
                self._report()

    def _do(self, command: Command) -> str:
        if isinstance(command, Connect):
            self._asked = command
            self._statements = self._connect(command, self._tally)
            self._traffic = Traffic(self._statements, self._rows, self._tally)
            return self._statements.described
        if isinstance(command, Load):
            return self._load(command.rows)
        if isinstance(command, StartTraffic):
            self._traffic.start(command.ops_per_s)
            return ""
        if isinstance(command, StopTraffic):
            self._traffic.stop()
            return f"{self._tally.write_samples(Path(self._asked.samples_path))} samples"
        assert isinstance(command, ReadBack)
        return self._read_back()

    def _load(self, rows: Sequence[Row]) -> str:
        statement = self._statements.insert_row

        def outcome(row: Row, _rows: Any, error: BaseException | None) -> bool:
            if error is not None:
                self._tally.remember(f"load: {type(error).__name__}", error)
                return False
            self._tally.add(loaded=1)
            return True

        left = self._bulk([(row, row) for row in rows], statement, outcome, WRITE)
        table, missing = self._asked.table, {row for _, row in left}
        self._rows.extend((table.key_of(row), row) for row in rows if row not in missing)
        return f"{len(left)} rows could not be loaded" if left else ""

    def _read_back(self) -> str:
        def outcome(expected: Row, rows: Any, error: BaseException | None) -> bool:
            if error is not None:
                self._tally.remember(f"read back: {type(error).__name__}", error)
                return False
            self._tally.add(read_back=1)
            if [tuple(row) for row in rows] != [expected]:
                self._tally.add(lost=1)
                self._tally.remember("lost", f"{expected}: {_shown(rows)}")
            return True

        total = len(self._rows) + len(self._traffic.acknowledged)
        left = self._bulk(self._rows, self._statements.select_row, outcome, READ, total)
        before = len(self._rows)
        for hot in (False, True):
            some = [seq for seq in self._traffic.acknowledged if is_hot(seq) == hot]
            written = [(key_of(seq), (value_of(seq),)) for seq in some]
            statement = self._statements.select_hot if hot else self._statements.select_traffic
            left += self._bulk(written, statement, outcome, READ, total, before=before)
            before += len(some)
        self._tally.add(unreadable=len(left))
        return ""

    def _bulk(
        self,
        work: Iterable[tuple[Row, Row]],
        statement: Any,
        outcome: Callable[[Row, Any, BaseException | None], bool],
        operation: str,
        total: int = 0,
        before: int = 0,
    ) -> list[tuple[Row, Row]]:
        """Run `statement` for each (values, row), failures again some times; returns those that never worked.

        A failure also counts as a client error, as it does in the traffic.
        """
        pending = list(work)
        total = total or len(pending)
        for attempt in range(ROUNDS_MAX):
            if attempt:
                time.sleep(ROUND_PAUSE_S * attempt)
            pending = self._round(pending, statement, outcome, operation, before, total)
            if not pending:
                break
        return pending

    def _round(
        self,
        pending: Sequence[tuple[Row, Row]],
        statement: Any,
        outcome: Callable[[Row, Any, BaseException | None], bool],
        operation: str,
        before: int,
        total: int,
    ) -> list[tuple[Row, Row]]:
        failed: list[tuple[Row, Row]] = []
        lane = Lane(self._statements.session, BULK_WIDTH)

        def done(item: tuple[Row, Row], started_s: float, rows: Any, error: BaseException | None) -> None:
            good = outcome(item[1], rows, error)
            self._tally.ended(operation, started_s, OK if good else ERROR)
            if not good:
                failed.append(item)

        for number, item in enumerate(pending):
            lane.submit(statement, item[0], partial(done, item))
            if not number % 64:
                self._report(before + number, total)
        if not lane.drain(2 * REQUEST_TIMEOUT_S):
            raise LockstepError(f"requests did not end within {2 * REQUEST_TIMEOUT_S:g} s")
        return failed

    def _report(self, done: int = 0, total: int = 0) -> None:
        now = time.monotonic()
        if now - self._reported_s >= REPORT_INTERVAL_S:
            self._reported_s = now
            self._connection.send(self._tally.report(done, total))


def main(connection: Connection) -> None:
    """Entry of the load process; ends when the other side goes away, however that happens."""
    # An interrupt from the terminal reaches all processes; the demo itself decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        LoadProcess(connection).run()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return
    except Exception as error:
        connection.send(Failed(f"{type(error).__name__}: {error}"))


def _shown(rows: Any) -> str:
    return f"found {[tuple(row) for row in rows]}"[:200]
