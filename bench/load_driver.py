"""Load on a CQL cluster from a compiled driver; runs in an environment of its own that has `acsylla`.

Prepared statements, token-aware routing, a fixed number of requests in flight. Reads one JSON command a
line from standard input and writes one JSON answer a line: `{"run": KIND, ...}` starts a phase and answers
"began" when the warm-up is over and the figures when it has ended, so that the caller can read the servers'
CPU between the two. Kinds: write and read of one row; overwrite of the same rows, `keys` of them from the
`first` on, and read of those; slice of 100 rows of one partition; scan, page by page, of the table that
slices are of (a request is a page); partition, page by page, of 10,000 rows (a request is the whole of it),
by_index, of 10 rows, and conditional, a batch of five inserts and a conditional update. `"run": "prepare"`
makes the tables of the last three. `"run": "space"` makes a keyspace of a `name` with `options`; writes,
reads and fills of a row that say it as `space` are about that. Usage: load_driver.py HOST,HOST,... PORT
[DATA CENTRE]
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator
from typing import Any

import acsylla

KEYSPACE, TABLE = "bench", "rows"
SPACE = (
    f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = "
    "{{'class': 'NetworkTopologyStrategy', '{}': 3}}"
)
SCHEMA = (
    f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.{TABLE} (key blob PRIMARY KEY, value blob)",
    f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.wide (key int, at int, value blob, PRIMARY KEY (key, at))",
)
EMPTY = f"CREATE TABLE {KEYSPACE}.empty_{{}} (key int PRIMARY KEY, value text)"
#: Tables that are made at once.
TABLES_AT_ONCE = 8
WRITE = f"INSERT INTO {KEYSPACE}.{TABLE} (key, value) VALUES (?, ?)"
READ = f"SELECT value FROM {KEYSPACE}.{TABLE} WHERE key = ?"
FILL = f"INSERT INTO {KEYSPACE}.wide (key, at, value) VALUES (?, ?, ?)"
SLICE = f"SELECT at, value FROM {KEYSPACE}.wide WHERE key = ? AND at >= ? LIMIT 100"
SCAN = f"SELECT key, at, value FROM {KEYSPACE}.wide"
KEY_BYTES = 16
#: Partitions of the table that slices are of, and rows in each.
PARTITIONS, ROWS = 200, 200
PAGE_ROWS = 1000
#: Rows that are overwritten where the command does not say.
OVERWRITTEN = 500
#: Tables of partitions read whole, of rows found by an index, and of conditional batches.
COMPARED_SCHEMA = (
    f"CREATE TABLE {KEYSPACE}.long (key int, at int, value blob, PRIMARY KEY (key, at))",
    f"CREATE TABLE {KEYSPACE}.indexed (key int PRIMARY KEY, owner int, value blob)",
    f"CREATE INDEX by_owner ON {KEYSPACE}.indexed (owner)",
    f"CREATE TABLE {KEYSPACE}.decided"
    " (key int, at int, version int static, value blob, PRIMARY KEY (key, at))",
)
COMPARED = {
    "fill_long": f"INSERT INTO {KEYSPACE}.long (key, at, value) VALUES (?, ?, ?)",
    "fill_indexed": f"INSERT INTO {KEYSPACE}.indexed (key, owner, value) VALUES (?, ?, ?)",
    "fill_decided": f"INSERT INTO {KEYSPACE}.decided (key, version) VALUES (?, 0)",
    "partition": f"SELECT key, at, value FROM {KEYSPACE}.long WHERE key = ?",
    "by_index": f"SELECT key, owner, value FROM {KEYSPACE}.indexed WHERE owner = ?",
    "insert": f"INSERT INTO {KEYSPACE}.decided (key, at, value) VALUES (?, ?, ?)",
    "decide": f"UPDATE {KEYSPACE}.decided SET version = ? WHERE key = ? IF version = ?",
}
LONG_PARTITIONS, LONG_ROWS, LONG_PAGE_ROWS = 4, 10_000, 5_000
OWNERS, OWNED = 500, 10
DECIDED, INSERTS = 64, 5
#: Writes at once of a fill.
FILL_AT_ONCE = 200
#: Attempts of each of them, and the pause before another one.
FILL_ATTEMPTS, FILL_PAUSE_S = 20, 0.5


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Phase:
    """`in_flight` workers repeat one kind of request until told to stop."""

    def __init__(
        self, session: Any, prepared: dict[str, Any], keys: list[bytes], command: dict[str, Any]
    ) -> None:
        self._session = session
        self._prepared = prepared
        self._keys = keys
        self._ask = {
            "write": self._write,
            "read": self._read,
            "overwrite": self._overwrite,
            "read_overwritten": self._read_overwritten,
            "slice": self._slice,
            "scan": self._scan,
            "partition": self._partition,
            "by_index": self._by_index,
            "conditional": self._conditional,
        }[command["run"]]
        self._value_bytes = command["value_bytes"]
        self._value = b"x" * self._value_bytes
        #: What no store makes smaller.
        self._is_noise = command.get("noise", False)
        self._of = command.get("space", "")
        self._overwritten = command.get("keys") or OVERWRITTEN
        #: The first of those keys.
        self._first = command.get("first", 0)
        self._level = acsylla.Consistency[command.get("consistency", "QUORUM")]
        #: (partition, its version) that no request is about.
        self._versions = command.get("versions") or []
        self._stopped = False
        self.latencies_s: list[float] = []
        self.failures: dict[str, int] = {}

    async def worker(self) -> None:
        while not self._stopped:
            try:
                await self._ask()
            except acsylla.errors.CassException as error:
                self._failed(type(error).__name__)

    def _failed(self, name: str) -> None:
        self.failures[name] = self.failures.get(name, 0) + 1

    async def _timed(self, statement: Any) -> Any:
        began_s = time.perf_counter()
        result = await self._session.execute(statement)
        self.latencies_s.append(time.perf_counter() - began_s)
        return result

    def _bound(self, kind: str, values: list[Any], **options: Any) -> Any:
        return self._prepared[kind].bind(values, consistency=self._level, **options)

    async def _write(self) -> None:
        key = os.urandom(KEY_BYTES)
        await self._timed(self._bound(f"write{self._of}", [key, self._value]))
        if len(self._keys) < 100_000:
            self._keys.append(key)

    async def _overwrite(self) -> None:
        await self._timed(self._bound(f"write{self._of}", [self._overwritten_key(), self._value]))

    def _overwritten_key(self) -> bytes:
        return b"overwritten-%04d" % (self._first + random.randrange(self._overwritten))

    async def _read(self) -> None:
        await self._read_row(random.choice(self._keys))

    async def _read_overwritten(self) -> None:
        await self._read_row(self._overwritten_key())

    async def _read_row(self, key: bytes) -> None:
        result = await self._timed(self._bound(f"read{self._of}", [key]))
        if result.count() != 1:
            self._failed("row missing")

    async def _slice(self) -> None:
        start = random.randrange(ROWS - 100 + 1)
        result = await self._timed(self._bound("slice", [random.randrange(PARTITIONS), start]))
        if result.count() != 100:
            self._failed("rows missing")

    async def _scan(self) -> None:
        statement, seen = self._bound("scan", [], page_size=PAGE_ROWS), 0
        while not self._stopped:
            result = await self._timed(statement)
            seen += result.count()
            if not result.has_more_pages():
                if seen != PARTITIONS * ROWS:
                    self._failed("rows missing")
                return
            statement.set_page_state(result.page_state())

    async def _partition(self) -> None:
        bound = self._bound("partition", [random.randrange(LONG_PARTITIONS)], page_size=LONG_PAGE_ROWS)
        seen, began_s = 0, time.perf_counter()
        while True:
            result = await self._session.execute(bound)
            seen += result.count()
            if not result.has_more_pages():
                break
            bound.set_page_state(result.page_state())
        self.latencies_s.append(time.perf_counter() - began_s)
        if seen != LONG_ROWS:
            self._failed("rows missing")

    async def _by_index(self) -> None:
        result = await self._timed(self._bound("by_index", [random.randrange(OWNERS)]))
        if result.count() != OWNED:
            self._failed("rows missing")

    async def _conditional(self) -> None:
        """Of a partition that no other worker decides about meanwhile."""
        key, version = self._versions.pop()
        batch = acsylla.create_batch_logged()
        batch.set_consistency(self._level)
        batch.set_serial_consistency(acsylla.Consistency.SERIAL)
        for at in range(INSERTS):
            batch.add_statement(self._bound("insert", [key, at, self._value]))
        batch.add_statement(self._bound("decide", [version + 1, key, version]))
        began_s = time.perf_counter()
        result = await self._session.execute_batch(batch)
        self.latencies_s.append(time.perf_counter() - began_s)
        if not result.first().column_value("[applied]"):
            self._failed("not applied")
        self._versions.insert(0, (key, version + 1))

    async def fill_compared(self) -> None:
        """Write the tables of partitions, indexed rows and conditional batches."""
        await self._all(
            self._bound("fill_long", [key, at, self._value])
            for key in range(LONG_PARTITIONS)
            for at in range(LONG_ROWS)
        )
        rows = range(OWNERS * OWNED)
        await self._all(self._bound("fill_indexed", [key, key % OWNERS, self._value]) for key in rows)
        await self._all(self._bound("fill_decided", [key]) for key in range(DECIDED))

    async def _all(self, statements: Iterator[Any]) -> None:
        while some := list(itertools.islice(statements, FILL_AT_ONCE)):
            await asyncio.gather(*(self._session.execute(one) for one in some))

    async def fill(self) -> None:
        """Write the table that slices are of."""
        for key in range(PARTITIONS):
            rows = (self._bound("fill", [key, at, self._value]) for at in range(ROWS))
            await asyncio.gather(*(self._session.execute(row) for row in rows))

    async def fill_overwritten(self) -> None:
        for first in range(0, self._overwritten, FILL_AT_ONCE):
            numbers = range(first, min(first + FILL_AT_ONCE, self._overwritten))
            rows = ((b"overwritten-%04d" % number, self._filled()) for number in numbers)
            bound = (self._bound(f"write{self._of}", list(row)) for row in rows)
            await asyncio.gather(*(self._written(row) for row in bound))

    async def _written(self, row: Any) -> None:
        """Write a row of a fill; nodes refuse some where others keep the processors busy."""
        for left in reversed(range(FILL_ATTEMPTS)):
            try:
                await self._session.execute(row)
                return
            except acsylla.errors.CassException:
                if not left:
                    raise
            await asyncio.sleep(FILL_PAUSE_S)

    def _filled(self) -> bytes:
        return os.urandom(self._value_bytes) if self._is_noise else self._value

    async def run(self, command: dict[str, Any]) -> None:
        workers = [asyncio.ensure_future(self.worker()) for _ in range(command["in_flight"])]
        await asyncio.sleep(command["warm_up_s"])
        self.latencies_s = []
        say({"began": True})
        began_s = time.perf_counter()
        await asyncio.sleep(command["seconds"])
        latencies_s, seconds = sorted(self.latencies_s), time.perf_counter() - began_s
        self._stopped = True
        count = len(latencies_s)
        say(
            {
                "requests": count,
                "seconds": seconds,
                "p50_ms": latencies_s[count // 2] * 1e3 if count else 0.0,
                "p99_ms": latencies_s[count * 99 // 100] * 1e3 if count else 0.0,
                "failures": self.failures,
            }
        )
        await asyncio.gather(*workers)


async def compared(session: Any, prepared: dict[str, Any], value_bytes: int) -> None:
    """Make and fill the tables of what is compared with others."""
    for text in COMPARED_SCHEMA:
        await session.execute(acsylla.create_statement(text, timeout=60.0))
    for kind, text in COMPARED.items():
        prepared[kind] = await session.create_prepared(text)
    await Phase(session, prepared, [], {"run": "partition", "value_bytes": value_bytes}).fill_compared()


async def make_space(session: Any, prepared: dict[str, Any], name: str, options: str, dc: str) -> None:
    """Make a keyspace with a table of its own."""
    space = f"CREATE KEYSPACE {name} WITH replication = {{'class': 'NetworkTopologyStrategy', '{dc}': 3}}"
    table = f"CREATE TABLE {name}.{TABLE} (key blob PRIMARY KEY, value blob)"
    for text in (space + options, table):
        await session.execute(acsylla.create_statement(text, timeout=60.0))
    for kind, text in (("write", WRITE), ("read", READ)):
        prepared[f"{kind}{name}"] = await session.create_prepared(text.replace(KEYSPACE, name, 1))


async def main(hosts: list[str], port: int, dc: str) -> None:
    cluster = acsylla.create_cluster(
        hosts, port=port, protocol_version=4, retry_policy="fallthrough", log_level="error"
    )
    session = await cluster.create_session()
    for text in (SPACE.format(dc), *SCHEMA):
        await session.execute(acsylla.create_statement(text, timeout=60.0))
    texts = {"write": WRITE, "read": READ, "fill": FILL, "slice": SLICE, "scan": SCAN}
    prepared = {kind: await session.create_prepared(text) for kind, text in texts.items()}
    keys: dict[str, list[bytes]] = {}
    versions = [(key, 0) for key in range(DECIDED)]
    say({"connected": True})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        command["versions"] = versions
        known = keys.setdefault(command.get("space", ""), [])
        if command["run"] == "space":
            await make_space(session, prepared, command["name"], command["options"], dc)
            say({"made": 1})
        elif command["run"] == "prepare":
            await compared(session, prepared, command["value_bytes"])
            say({"prepared": True})
        elif command["run"] == "tables":
            for first in range(0, command["count"], TABLES_AT_ONCE):
                texts_of = range(first, min(first + TABLES_AT_ONCE, command["count"]))
                made = [acsylla.create_statement(EMPTY.format(number)) for number in texts_of]
                await asyncio.gather(*(session.execute(statement) for statement in made))
            say({"made": command["count"]})
        elif command["run"] == "fill":
            phase = Phase(session, prepared, known, {**command, "run": "slice"})
            await (phase.fill_overwritten() if command["keys"] else phase.fill())
            say({"filled": command["keys"] or PARTITIONS * ROWS})
        else:
            await Phase(session, prepared, known, command).run(command)
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "dc1"))
