"""Owns the load process's session: an unmodified Cassandra driver with its normal retries, observed.

Invariant: nothing here retries or hides an error; the retry policy only counts what the driver's own policy
is asked about, and passes on what that decides.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from lockstep.local.demo_messages import KEYSPACE, TRAFFIC_TABLE, Connect
from lockstep.local.demo_tally import Tally
from lockstep.values.errors import ConfigurationError

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
