"""What nodes say of a log of changes, and pages of many of its streams at once.

Invariant: a page counts when it has arrived whole, any host continues behind it, and pages come in the order
of their streams, each stream's in the order of its rows, however many are asked for at a time. Streams are
those of every node that was asked: one that has not heard of a generation yet does not hide it.
"""

from __future__ import annotations

import os
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from lockstep.cql.wire.messages import QueryParameters, Value
from lockstep.schema.log_tables import STREAM_ID, SUFFIX, TIME
from lockstep.schema.types import parse_type
from lockstep.spark.changes.columns import ChangeShape, change_shape, time_bound, times_us
from lockstep.spark.changes.windows import Found, Log, Reconciled, Stretch, reconciled_us
from lockstep.spark.cql_client import CqlConnection, Endpoint, may_retry, pool_of
from lockstep.spark.options import Options
from lockstep.spark.retrying import Retry
from lockstep.spark.ring import TableShape, ask_any, quoted, read_table
from lockstep.spark.scan import Hosts, PageDecoder, RawPage, raw_page
from lockstep.values.errors import ConfigurationError, LockstepError, PeerUnreachable, Unprepared
from lockstep.values.tokens import stream_token

#: Nodes asked for generations: what one of them has not heard of the others have.
_ASKED_MAX: Final = 3
#: Streams asked for at once on one connection, each with a page of its own on the way.
_STREAMS_AT_ONCE_MAX: Final = 16
_US_PER_MS: Final = 1000
_TIMEUUID: Final = parse_type("timeuuid")
_WINDOW: Final = f"{quoted(STREAM_ID)} = ? AND {quoted(TIME)} >= ? AND {quoted(TIME)} < ?"


def log_options(options: Options) -> Options:
    """As they are for the log of the table that they name."""
    return msgspec.structs.replace(options, table=options.table + SUFFIX)


def read_shape(options: Options) -> ChangeShape:
    """What a stream of the table's changes has. ConfigurationError when there is no table, or no log."""

    def question(connection: CqlConnection) -> tuple[TableShape, TableShape]:
        base = read_table(connection, options.keyspace, options.table)
        try:
            return base, read_table(connection, options.keyspace, options.table + SUFFIX)
        except ConfigurationError:
            raise ConfigurationError(
                f"changes of {options.keyspace}.{options.table} are not captured",
                hint=f"ALTER TABLE {options.keyspace}.{options.table} WITH cdc = {{'enabled': true}}",
            ) from None

    base, log = ask_any(pool_of(os.getpid()), options.endpoints, options.timeout_s, question)
    return change_shape(base, log, options.columns, options.decimal_scale)


class LogQuestions:
    """What is asked about one log. `options` are those of the table, `shape` what is read of its changes."""

    def __init__(self, options: Options, shape: ChangeShape) -> None:
        self._options = options
        self._shape = shape
        self._pool = pool_of(os.getpid())
        self.hosts = Hosts(options, self._pool)

    def now_us(self) -> int:
        """The time by a node's clock."""
        return ask_any(self._pool, self._endpoints(), self._options.timeout_s, _now_us)

    def log(self) -> Log:
        """What is known of the log now. ConfigurationError when there is none, PeerUnreachable."""
        found: list[Log] = []
        failures: list[str] = []
        for endpoint in self._endpoints():
            try:
                found.append(ask_any(self._pool, [endpoint], self._options.timeout_s, self._told))
            except LockstepError as error:
                if not may_retry(error):
                    raise
                self.hosts.failed(endpoint.host)
                failures.append(error.message)
            if len(found) == _ASKED_MAX:
                break
        if not found:
            raise PeerUnreachable(
                f"none of the hosts answers: {'; '.join(failures)}", hint="check the options hosts and port"
            )
        begins = sorted({one.begins_us for log in found for one in log.stretches})
        now_us = min(log.now_us for log in found)
        ahead_us = max(log.now_us for log in found) - now_us
        return Log(found[0].id, tuple(map(Stretch, begins)), found[0].ttl_s, now_us, ahead_us)

    def streams(self, stretch: Stretch) -> list[bytes]:
        """The streams of a generation, in the order of the ring."""

        begins = (stretch.begins_us // _US_PER_MS).to_bytes(8, "big")

        def question(connection: CqlConnection) -> list[bytes]:
            found: list[bytes] = []
            if _has_tablets(connection, self._options):
                found = _tablet_streams(connection, self._options, begins)
            else:
                for row in connection.query(_RING_STREAMS, (begins,)):
                    listed: Any = row["streams"]
                    found += listed
            if not found:
                raise PeerUnreachable(
                    f"a node does not know the streams that begin at {stretch.begins_us} us"
                )
            return found

        return ask_any(self._pool, self._endpoints(), self._options.timeout_s, question)

    def times(
        self, streams: Sequence[bytes], start_us: int, end_us: int, rows_each: int
    ) -> dict[bytes, Found]:
        """Of each stream the first write times of a window, at most so many."""
        text = f"SELECT {quoted(TIME)} FROM {log_name(self._options)} WHERE {_WINDOW} LIMIT ?"
        decoder = PageDecoder([(TIME, _TIMEUUID)], 0)
        found: dict[bytes, list[int]] = {stream: [] for stream in streams}
        pages = StreamPages(text, 1, self._options, self.hosts)
        for stream, page in pages.of(streams, start_us, end_us, rows_each.to_bytes(4, "big")):
            found[stream] += times_us(decoder.decode(page).column(0)).tolist()
        return {stream: Found(tuple(some), len(some) >= rows_each) for stream, some in found.items()}

    def row_bytes(self, streams: Sequence[bytes], start_us: int, end_us: int) -> float:
        """About how large a row of the window is, by the first ones of these streams."""
        names = self._shape.selected()
        text = f"{select(self._options, names)} LIMIT ?"
        rows = size = 0
        pages = StreamPages(text, len(names), self._options, self.hosts)
        for _, page in pages.of(streams, start_us, end_us, _SAMPLE.to_bytes(4, "big")):
            rows += page.count
            size += len(page.body) - page.at
        return size / rows if rows else 1.0

    def reconciled_us(self) -> int | None:
        """The moment up to which each range of the log is reconciled, by what one of its replicas says; None
        where none says so. ConfigurationError of a table that is untracked."""
        found: list[list[Reconciled]] = []
        for endpoint in self._endpoints():
            try:
                found.append(ask_any(self._pool, [endpoint], self._options.timeout_s, self._reconciled))
            except LockstepError as error:
                if not may_retry(error):
                    raise
                self.hosts.failed(endpoint.host)
        if found and not any(found):
            options = self._options
            raise ConfigurationError(
                f"nothing says what all replicas of {options.keyspace}.{options.table} hold: it is untracked",
                hint="replication_type = 'tracked' makes it so; follow = written needs no more than a quorum",
            )
        return reconciled_us(one for told in found for one in told)

    def _reconciled(self, connection: CqlConnection) -> list[Reconciled]:
        options = self._options
        name = (options.keyspace.encode(), (options.table + SUFFIX).encode())
        return [
            Reconciled(_number(row["first_token"]), _number(row["last_token"]), _us_of(row["until_ms"]))
            for row in connection.query(_RECONCILED, name)
        ]

    def _endpoints(self) -> list[Endpoint]:
        return self.hosts.order(0, 0)

    def _told(self, connection: CqlConnection) -> Log:
        options = self._options
        name = (options.keyspace.encode(), (options.table + SUFFIX).encode())
        known = connection.query(
            "SELECT id FROM system_schema.tables WHERE keyspace_name = ? AND table_name = ?", name
        )
        if not known:
            raise ConfigurationError(f"{options.keyspace}.{options.table} has no log of changes any more")
        settings = _settings(connection, options)
        # Streams of tablets are the table's own, those of a ring are all tables'.
        if _has_tablets(connection, options):
            times = connection.query(_TABLET_TIMES, _named(options))
        else:
            times = connection.query(_RING_TIMES)
        begins = [int(str(row["time"])) * _US_PER_MS for row in times]
        return Log(
            _uuid(known[0]["id"]),
            tuple(Stretch(one) for one in sorted(begins)),
            int(settings.get("ttl", "0")),
            _now_us(connection),
        )


_RECONCILED: Final = (
    "SELECT first_token, last_token, toUnixTimestamp(reconciled_until) AS until_ms "
    "FROM system_views.tracking_reconciled WHERE keyspace_name = ? AND table_name = ?"
)
_RING_TIMES: Final = "SELECT time FROM system_distributed.cdc_generation_timestamps WHERE key = 'timestamps'"
_RING_STREAMS: Final = (
    "SELECT range_end, streams FROM system_distributed.cdc_streams_descriptions_v2 WHERE time = ?"
)
_TABLET_TIMES: Final = (
    "SELECT timestamp AS time FROM system.cdc_timestamps WHERE keyspace_name = ? AND table_name = ?"
)
#: Those that take changes from then on, of those that are listed by what becomes of them then.
_TABLET_STREAMS: Final = (
    "SELECT stream_id FROM system.cdc_streams "
    "WHERE keyspace_name = ? AND table_name = ? AND timestamp = ? AND stream_state = 0"
)


def _named(options: Options) -> tuple[bytes, bytes]:
    return options.keyspace.encode(), options.table.encode()


def _has_tablets(connection: CqlConnection, options: Options) -> bool:
    return bool(
        connection.query(
            "SELECT initial_tablets FROM system_schema.scylla_keyspaces WHERE keyspace_name = ?",
            (options.keyspace.encode(),),
        )
    )


def _tablet_streams(connection: CqlConnection, options: Options, begins: bytes) -> list[bytes]:
    """In the order of the ring."""
    found: list[bytes] = []
    for row in connection.query(_TABLET_STREAMS, (*_named(options), begins)):
        stream = row["stream_id"]
        assert isinstance(stream, bytes), "a stream is a blob"
        found.append(stream)
    return sorted(found, key=stream_token)


def captured_settings(options: Options) -> dict[str, str]:
    """The option cdc of the table; nothing where its changes are not captured."""
    return ask_any(
        pool_of(os.getpid()),
        options.endpoints,
        options.timeout_s,
        lambda connection: _settings(connection, options),
    )


def _settings(connection: CqlConnection, options: Options) -> dict[str, str]:
    captured = connection.query(
        "SELECT cdc FROM system_schema.scylla_tables WHERE keyspace_name = ? AND table_name = ?",
        (options.keyspace.encode(), options.table.encode()),
    )
    pairs: Any = captured[0]["cdc"] if captured else None
    return {str(key): str(value) for key, value in pairs or ()}


#: Rows of each stream that are looked at for their size.
_SAMPLE: Final = 64


def _now_us(connection: CqlConnection) -> int:
    (row,) = connection.query("SELECT toUnixTimestamp(now()) AS ms FROM system.local")
    return int(str(row["ms"])) * _US_PER_MS


def _number(value: object) -> int:
    return int(str(value))


def _us_of(told_ms: object) -> int | None:
    return None if told_ms is None else _number(told_ms) * _US_PER_MS


def _uuid(value: object) -> str:
    assert isinstance(value, bytes), "a table's id is a UUID"
    return str(uuid.UUID(bytes=value))


def log_name(options: Options) -> str:
    """The log of the table that the options name, in CQL."""
    return f"{quoted(options.keyspace)}.{quoted(options.table + SUFFIX)}"


def select(options: Options, names: Sequence[str]) -> str:
    """The statement that reads a window of a stream."""
    return f"SELECT {', '.join(map(quoted, names))} FROM {log_name(options)} WHERE {_WINDOW}"


class StreamPages:
    """Pages of a statement for many streams. `turn` spreads first requests over replicas."""

    def __init__(self, text: str, columns: int, options: Options, hosts: Hosts, turn: int = 0) -> None:
        self._text = text
        self._columns = columns
        self._options = options
        self._hosts = hosts
        self._turn = turn
        self._connection: CqlConnection | None = None

    def of(
        self, streams: Sequence[bytes], start_us: int, end_us: int, *more: Value
    ) -> Iterator[tuple[bytes, RawPage]]:
        """(stream, page), stream by stream. Raises the last RequestError or PeerError when attempts run
        out."""
        asked = [_Asked(one, (one, time_bound(start_us), time_bound(end_us), *more)) for one in streams]
        first, retry = 0, Retry()
        try:
            while first < len(asked):
                current = asked[first]
                if current.pages:
                    yield current.stream, current.pages.popleft()
                elif current.ended:
                    first += 1
                else:
                    self._advance(asked[first : first + _STREAMS_AT_ONCE_MAX], retry)
        finally:
            if self._connection is not None:
                self._hosts.pool.give_back(self._connection)
                self._connection = None

    def _advance(self, asked: Sequence[_Asked], retry: Retry) -> None:
        """Ask for what is not asked for yet, and take one page in."""
        host = ""
        try:
            if self._connection is None:
                endpoint = self._hosts.order(stream_token(asked[0].stream), self._turn)[0]
                host = endpoint.host
                self._connection = self._hosts.pool.take(endpoint, self._options.timeout_s)
            connection = self._connection
            host = connection.endpoint.host
            if not connection.in_flight:
                # At once on a new connection, when nothing is in flight; known to it later.
                connection.prepare(self._text)
            for one in asked:
                if one.number < 0 and not one.ended and not one.pages:
                    one.number = self._ask(connection, one)
            envelope = connection.receive()
            (answered,) = (one for one in asked if one.number == envelope.stream)
            page = raw_page(envelope, self._columns)
            answered.took(page)
            retry.succeeded()
        except LockstepError as error:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            for one in asked:
                one.number = -1
            retry.failed(error)
            if not isinstance(error, Unprepared):
                self._hosts.failed(host)

    def _ask(self, connection: CqlConnection, one: _Asked) -> int:
        parameters = QueryParameters(
            consistency=self._options.consistency,
            values=one.values,
            skip_metadata=True,
            page_size=self._options.page_rows,
            paging_state=one.state,
        )
        return connection.execute(connection.prepare(self._text), parameters)


class _Asked:
    """How far one stream is: the number of the request for its next page (-1: not asked for), and pages that
    came and were not handed on, at most one."""

    def __init__(self, stream: bytes, values: tuple[Value, ...]) -> None:
        self.stream = stream
        self.values = values
        self.state: bytes | None = None
        self.number = -1
        self.ended = False
        self.pages: deque[RawPage] = deque()

    def took(self, page: RawPage) -> None:
        self.number = -1
        self.state = page.paging_state
        self.ended = page.paging_state is None
        if page.count:
            self.pages.append(page)
