"""Reads pages of one statement to their end, whatever happens to single hosts meanwhile.

Owns: the choice of hosts, retries, and continuing where a page ended. Invariant: each page is given out
once: a page counts when it has arrived whole, and any host continues behind it, because a paging state
means the same everywhere. While a page is decoded the next one is already asked for.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeVar

from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.spark.cql_client import ConnectionPool, CqlConnection, Endpoint, Statement, may_retry
from lockstep.spark.options import Options
from lockstep.spark.pages import RawPage, raw_page
from lockstep.spark.ring import Ring, ask_any, read_ring
from lockstep.values.errors import LockstepError, PeerError, Unprepared
from lockstep.values.limits import SPARK_ATTEMPTS_MAX, SPARK_RETRY_MS_MAX, SPARK_RETRY_MS_MIN

Answer = TypeVar("Answer")
_MILLISECONDS: Final = 1000


class Hosts:
    """The hosts of a cluster as one task sees them: who to ask for a token, and who failed just now."""

    def __init__(self, options: Options, pool: ConnectionPool) -> None:
        self.pool = pool
        self._options = options
        self._failed: dict[str, None] = {}
        self._ring: Ring = self._read(options.endpoints)

    @property
    def ring(self) -> Ring:
        return self._ring

    def order(self, token: int, turn: int) -> list[Endpoint]:
        """All hosts: replicas of the token first (rotated by `turn`), those that failed last."""
        replicas = self._ring.replicas(token)
        first = replicas[turn % len(replicas) :] + replicas[: turn % len(replicas)] if replicas else ()
        others = (host.address for host in self._ring.hosts)
        known = dict.fromkeys((*first, *others, *self._options.hosts))
        calm = [host for host in known if host not in self._failed]
        return [self._options.endpoint(host) for host in (*calm, *self._failed)]

    def failed(self, host: str) -> None:
        """Ask that host last from now on, and look at the ring again: it may have changed."""
        self._failed.pop(host, None)
        self._failed[host] = None
        if len(self._failed) >= len(self._ring.hosts):
            self._failed = {host: None}
        with contextlib.suppress(PeerError):
            self._ring = self._read([endpoint for endpoint in self.order(0, 0) if endpoint.host != host])

    def _read(self, endpoints: Sequence[Endpoint]) -> Ring:
        return ask_any(
            self.pool,
            endpoints,
            self._options.timeout_s,
            lambda connection: read_ring(connection, self._options.keyspace),
        )


class Retry:
    """Counts failures in a row and pauses between them; the last one is raised."""

    def __init__(self, pause: Callable[[float], None] = time.sleep) -> None:
        self._failures = 0
        self._pause = pause

    def succeeded(self) -> None:
        self._failures = 0

    def failed(self, error: LockstepError) -> None:
        """Raises `error` when no retry can help or there were enough; else returns after a pause."""
        self._failures += 1
        if not may_retry(error) or self._failures >= SPARK_ATTEMPTS_MAX:
            raise error
        if self._failures == 1:
            return
        pause_ms = min(SPARK_RETRY_MS_MIN << (self._failures - 2), SPARK_RETRY_MS_MAX)
        self._pause(pause_ms * random.uniform(0.5, 1.0) / _MILLISECONDS)


class StatementReader:
    """Reads one SELECT for many sets of bound values (token ranges, or keys)."""

    def __init__(self, text: str, columns: int, options: Options, hosts: Hosts, turn: int) -> None:
        self._text = text
        self._columns = columns
        self._options = options
        self._hosts = hosts
        self._turn = turn
        self._connection: CqlConnection | None = None

    def pages(self, values: tuple[Value, ...], token: int) -> Iterator[RawPage]:
        """Pages of the rows that `values` select; `token` says whose replicas to prefer.

        Raises the last RequestError or PeerError when attempts run out.
        """
        state: bytes | None = None
        more = True
        retry = Retry()
        try:
            while more:
                host = ""
                try:
                    endpoint = self._hosts.order(token, self._turn)[0]
                    host = endpoint.host
                    connection = self._connected(endpoint)
                    statement = connection.prepare(self._text)
                    self._ask(connection, statement, values, state)
                    while more:
                        page = raw_page(connection.receive(), self._columns)
                        state, more = page.paging_state, page.paging_state is not None
                        if more:
                            self._ask(connection, statement, values, state)
                        retry.succeeded()
                        yield page
                except LockstepError as error:
                    # A new connection also prepares the statement anew.
                    self._drop()
                    retry.failed(error)
                    if not isinstance(error, Unprepared):
                        self._hosts.failed(host)
        finally:
            self._release()

    def _connected(self, endpoint: Endpoint) -> CqlConnection:
        if self._connection is None or self._connection.endpoint != endpoint:
            self._release()
            self._connection = self._hosts.pool.take(endpoint, self._options.timeout_s)
        return self._connection

    def _ask(
        self, connection: CqlConnection, statement: Statement, values: tuple[Value, ...], state: bytes | None
    ) -> None:
        parameters = QueryParameters(
            consistency=self._options.consistency,
            values=values,
            skip_metadata=True,
            page_size=self._options.page_rows,
            paging_state=state,
        )
        connection.execute(statement, parameters)

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _release(self) -> None:
        if self._connection is not None:
            self._hosts.pool.give_back(self._connection)
            self._connection = None
