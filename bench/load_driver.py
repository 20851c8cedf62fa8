"""Load on a CQL cluster from a compiled driver; runs in an environment of its own that has `acsylla`.

Prepared statements, token-aware routing, a fixed number of requests in flight. Reads one JSON command a
line from standard input and writes one JSON answer a line: `{"run": "write" | "read", ...}` starts a phase
and answers "began" when the warm-up is over and the figures when it has ended, so that the caller can read
the servers' CPU between the two. Usage: load_driver.py HOST,HOST,... PORT
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
import time
from typing import Any

import acsylla

KEYSPACE, TABLE = "bench", "rows"
SCHEMA = (
    f"CREATE KEYSPACE IF NOT EXISTS {KEYSPACE} WITH replication = "
    "{'class': 'NetworkTopologyStrategy', 'dc1': 3}",
    f"CREATE TABLE IF NOT EXISTS {KEYSPACE}.{TABLE} (key blob PRIMARY KEY, value blob)",
)
WRITE = f"INSERT INTO {KEYSPACE}.{TABLE} (key, value) VALUES (?, ?)"
READ = f"SELECT value FROM {KEYSPACE}.{TABLE} WHERE key = ?"
KEY_BYTES = 16


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


class Phase:
    """`in_flight` workers repeat one kind of request until told to stop."""

    def __init__(self, session: Any, prepared: Any, keys: list[bytes], command: dict[str, Any]) -> None:
        self._session = session
        self._prepared = prepared
        self._keys = keys
        self._is_write = command["run"] == "write"
        self._value = b"x" * command["value_bytes"]
        self._level = acsylla.Consistency[command.get("consistency", "QUORUM")]
        self._stopped = False
        self.latencies_s: list[float] = []
        self.failures: dict[str, int] = {}

    async def worker(self) -> None:
        clock, execute = time.perf_counter, self._session.execute
        while not self._stopped:
            if self._is_write:
                key = os.urandom(KEY_BYTES)
                statement = self._prepared.bind([key, self._value], consistency=self._level)
            else:
                key = random.choice(self._keys)
                statement = self._prepared.bind([key], consistency=self._level)
            began_s = clock()
            try:
                result = await execute(statement)
            except acsylla.errors.CassException as error:
                name = type(error).__name__
                self.failures[name] = self.failures.get(name, 0) + 1
                continue
            self.latencies_s.append(clock() - began_s)
            if self._is_write:
                if len(self._keys) < 100_000:
                    self._keys.append(key)
            elif result.count() != 1:
                self.failures["row missing"] = self.failures.get("row missing", 0) + 1

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


async def main(hosts: list[str], port: int) -> None:
    cluster = acsylla.create_cluster(
        hosts, port=port, protocol_version=4, retry_policy="fallthrough", log_level="error"
    )
    session = await cluster.create_session()
    for statement in SCHEMA:
        await session.execute(acsylla.create_statement(statement))
    prepared = {"write": await session.create_prepared(WRITE), "read": await session.create_prepared(READ)}
    keys: list[bytes] = []
    say({"connected": True})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        await Phase(session, prepared[command["run"]], keys, command).run(command)
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1].split(","), int(sys.argv[2])))
