"""The clients of `torn_reads.py`; runs in an environment of its own that has `acsylla`.

Each request is about a partition of one of the named keyspaces: a write of all its rows in one mutation, a
read of all of them, or of one, so that the same faults strike all keyspaces; the first one gets most of the
requests. Answers are judged as they come, against all that this process was told before it asked. Reads one
command a line, `counts` or `stop`, and writes what was judged so far as JSON.
Usage: torn_client.py HOST,HOST,... PORT SEED IN-FLIGHT KEYSPACE [KEYSPACE ...]
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import acsylla
from acsylla import errors
from client_process import connected

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lockstep.sim.checkers.whole import WholeReads

PARTITIONS, ROWS = 24, 6
#: Of the requests, how many write; of the reads, how many are of one row; of the writes, how many at ONE.
WRITE_SHARE, ONE_ROW_SHARE, WEAK_SHARE = 0.1, 0.4, 0.3
#: Of the requests, how many are of the keyspace that is named first.
FIRST_SHARE = 0.85
INSERT = "INSERT INTO {0}.wide (key, at, value) VALUES (?, ?, ?)"
BATCH = "BEGIN UNLOGGED BATCH USING TIMESTAMP ? " + (INSERT + "; ") * ROWS + "APPLY BATCH"
READ_ALL = "SELECT at, value FROM {0}.wide WHERE key = ?"
READ_ONE = "SELECT at, value FROM {0}.wide WHERE key = ? AND at = ?"
TEXTS = (BATCH, READ_ALL, READ_ONE)
TIMEOUT_S = 2.0
#: After a request that failed.
PAUSE_S = 0.05
QUORUM, ONE = acsylla.Consistency.QUORUM, acsylla.Consistency.ONE


class Clients:
    def __init__(self, session: Any, prepared: dict[tuple[str, str], Any], seed: int) -> None:
        self._session = session
        self._prepared = prepared
        self._first, *self._others = dict.fromkeys(space for space, _ in prepared)
        self._draw = random.Random(seed)
        #: The newest version of each partition that was sent.
        self._versions: dict[tuple[str, int], int] = {}
        self.judges = {space: WholeReads(ROWS) for space in (self._first, *self._others)}
        self.failures: dict[str, int] = {}
        self.writes = 0
        self.stopped = False

    async def worker(self) -> None:
        while not self.stopped:
            is_first = not self._others or self._draw.random() < FIRST_SHARE
            space = self._first if is_first else self._draw.choice(self._others)
            key = self._draw.randrange(PARTITIONS)
            try:
                if self._draw.random() < WRITE_SHARE:
                    await self._write(space, key)
                else:
                    await self._read(space, key)
            except errors.CassException as error:
                name = type(error).__name__
                self.failures[name] = self.failures.get(name, 0) + 1
                await asyncio.sleep(PAUSE_S)

    async def _write(self, space: str, key: int) -> None:
        version = self._versions[space, key] = self._versions.get((space, key), 0) + 1
        level = ONE if self._draw.random() < WEAK_SHARE else QUORUM
        values = [version, *(value for at in range(ROWS) for value in (key, at, version))]
        await self._session.execute(self._prepared[space, BATCH].bind(values, consistency=level))
        self.writes += 1
        if level is QUORUM:
            self.judges[space].reached(key, version)

    async def _read(self, space: str, key: int) -> None:
        judge, row = self.judges[space], None
        text, values = READ_ALL, [key]
        if self._draw.random() < ONE_ROW_SHARE:
            row = self._draw.randrange(ROWS)
            text, values = READ_ONE, [key, row]
        floor = judge.begun(key)
        found = await self._session.execute(self._prepared[space, text].bind(values, consistency=QUORUM))
        judge.saw(key, floor, dict(one.as_tuple() for one in found.all()), row)

    def told(self) -> dict[str, Any]:
        spaces = {
            space: {
                "whole": judge.whole,
                "single": judge.single,
                "torn": judge.torn,
                "back": judge.back,
                "examples": judge.examples,
            }
            for space, judge in self.judges.items()
        }
        return {"spaces": spaces, "writes": self.writes, "failures": self.failures}


async def main(hosts: str, port: str, seed: str, in_flight: str, *spaces: str) -> None:
    session = await connected(hosts, port, TIMEOUT_S, 200)
    prepared = {
        (space, text): await session.create_prepared(text.format(space)) for space in spaces for text in TEXTS
    }
    clients = Clients(session, prepared, int(seed))
    running = asyncio.gather(*(clients.worker() for _ in range(int(in_flight))))
    loop = asyncio.get_running_loop()
    print(json.dumps(clients.told()), flush=True)
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line == "stop":
            clients.stopped = True
            await running
        if running.done():
            running.result()
        print(json.dumps(clients.told()), flush=True)
    clients.stopped = True
    await running
    await session.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
