"""One client process of the proof; runs in an environment of its own that has `acsylla`.

Keeps requests in flight until told to stop, and records every one of them, with the times at which it began
and ended and its outcome, in a file of JSON lines: `w` rows that are written once, `s` and `g` registers that
are set and got, `c` and `l` registers that are compared and set, and looked at. Then reads all rows back
(`p`). Reads one JSON command a line and writes one JSON answer a line. Nothing is sent twice.
Usage: proof_client.py HOST,HOST,... PORT NAME SEED LEVEL FILE
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

import acsylla
from acsylla import errors
from client_process import connected

WRITE = "INSERT INTO proof.written (client, block, at, value) VALUES (?, ?, ?, ?)"
READ_BACK = "SELECT at, value FROM proof.written WHERE client = ? AND block = ?"
SET = "INSERT INTO proof.registers (key, value) VALUES (?, ?)"
GET = "SELECT value FROM proof.registers WHERE key = ?"
FIRST = "INSERT INTO proof.decided (key, value) VALUES (?, ?) IF NOT EXISTS"
NEXT = "UPDATE proof.decided SET value = ? WHERE key = ? IF value = ?"
LOOK = "SELECT value FROM proof.decided WHERE key = ?"

#: Requests in flight, by kind: rows, registers, and decisions, which cost several rounds each.
WRITERS, ACCESSORS, DECIDERS = 40, 20, 4
REGISTERS, DECISIONS = 48, 12
#: Rows of a partition, and partitions that are written to at a time.
ROWS, OPEN = 100, 64
#: Above what a node takes to answer or to refuse; what a stopped one holds is then unknown.
TIMEOUT_S = 6.0
PAUSE_S = 0.2
REFUSED = (
    errors.CassErrorServerUnavailable,
    errors.CassErrorServerOverloaded,
    errors.CassErrorServerInvalidQuery,
    errors.CassErrorServerIsBootstrapping,
)
READ_BACK_TRIES = 20
QUORUM, SERIAL = acsylla.Consistency.QUORUM, acsylla.Consistency.SERIAL


def value_of(number: int) -> str:
    return f"{number:x}" * 4


def place_of(number: int) -> tuple[int, int]:
    """(block, at) of a row."""
    group, rest = divmod(number, ROWS * OPEN)
    return group * OPEN + rest % OPEN, rest // OPEN


class Client:
    def __init__(
        self, session: Any, prepared: dict[str, Any], name: str, seed: int, level: str, file: TextIO
    ) -> None:
        self._session = session
        self._prepared = prepared
        self._name = name
        self._draw = random.Random(f"{seed}/{name}")
        self._level = acsylla.Consistency[level]
        self._file = file
        self._next = 0
        self._written = 0
        self._known: dict[int, str | None] = {}
        self.stopped = False
        self.counts: dict[str, int] = {}

    # ---- one request

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    async def _ask(self, statement: str, values: list[Any], **options: Any) -> tuple[str, Any, int, int]:
        """(outcome, result, when it began and ended)."""
        bound = self._prepared[statement].bind(values, **{"consistency": self._level, **options})
        start_ns = time.monotonic_ns()
        try:
            result = await self._session.execute(bound)
            outcome = "ok"
        except REFUSED as error:
            outcome, result = "failed", error
        except errors.CassException as error:
            outcome, result = "unknown", error
        end_ns = time.monotonic_ns()
        self._count(outcome)
        if outcome != "ok":
            self._count(type(result).__name__)
            await asyncio.sleep(PAUSE_S)
        return outcome, result, start_ns, end_ns

    def _note(self, *facts: Any) -> None:
        self._file.write(json.dumps(facts, separators=(",", ":")) + "\n")

    # ---- kinds of load

    async def write(self, _worker: int) -> None:
        number, self._next = self._next, self._next + 1
        block, at = place_of(number)
        outcome, _, start_ns, end_ns = await self._ask(WRITE, [self._name, block, at, value_of(number)])
        self._note("w", number, start_ns, end_ns, outcome)

    async def access(self, worker: int) -> None:
        # Few of them are asked for often.
        key = int(REGISTERS * self._draw.random() ** 2)
        who = f"{self._name}/{worker}"
        if self._draw.random() < 0.5:
            self._written += 1
            value = f"{self._name}-{self._written}"
            outcome, _, start_ns, end_ns = await self._ask(SET, [key, value])
            self._note("s", who, key, value, start_ns, end_ns, outcome)
            return
        outcome, result, start_ns, end_ns = await self._ask(GET, [key])
        if outcome == "ok":
            self._note("g", who, key, _value(result), start_ns, end_ns)

    async def decide(self, worker: int) -> None:
        key, who = self._draw.randrange(DECISIONS), f"{self._name}/{worker}"
        if self._draw.random() < 0.3:
            outcome, result, start_ns, end_ns = await self._ask(LOOK, [key], consistency=SERIAL)
            if outcome == "ok":
                seen = self._known[key] = _value(result)
                self._note("l", who, key, seen, start_ns, end_ns)
            return
        known = self._known.get(key)
        self._written += 1
        value = f"{self._name}-{self._written}"
        values = [key, value] if known is None else [value, key, known]
        outcome, result, start_ns, end_ns = await self._ask(
            FIRST if known is None else NEXT, values, serial_consistency=SERIAL
        )
        applied, seen = False, None
        if outcome == "ok":
            row = result.first().as_dict()
            applied, seen = bool(row["[applied]"]), row.get("value")
            self._known[key] = value if applied else seen
        self._note("c", who, key, known, value, applied, seen, start_ns, end_ns, outcome)

    # ---- the whole

    async def run(self) -> None:
        async def worker(ask: Callable[[int], Awaitable[None]], number: int) -> None:
            while not self.stopped:
                await ask(number)

        kinds = ((self.write, WRITERS), (self.access, ACCESSORS), (self.decide, DECIDERS))
        await asyncio.gather(*(worker(ask, number) for ask, count in kinds for number in range(count)))

    async def read_back(self) -> None:
        """Look at all rows, and once more at all registers."""
        last_block = place_of(self._next)[0] // OPEN * OPEN + OPEN
        blocks = iter(range(last_block))

        async def worker() -> None:
            for block in blocks:
                result = await self._insist(READ_BACK, [self._name, block], consistency=QUORUM)
                rows = [row.as_tuple() for row in result.all()]
                numbers = [self._number(block, at) for at, _ in rows]
                wrong = [n for n, (_, value) in zip(numbers, rows, strict=True) if value != value_of(n)]
                self._note("p", block, numbers, wrong)

        await asyncio.gather(*(worker() for _ in range(WRITERS)))
        for key in range(REGISTERS):
            start_ns = time.monotonic_ns()
            value = _value(await self._insist(GET, [key], consistency=QUORUM))
            self._note("g", f"{self._name}/last", key, value, start_ns, time.monotonic_ns())
        for key in range(DECISIONS):
            start_ns = time.monotonic_ns()
            value = _value(await self._insist(LOOK, [key], consistency=SERIAL))
            self._note("l", f"{self._name}/last", key, value, start_ns, time.monotonic_ns())

    @staticmethod
    def _number(block: int, at: int) -> int:
        group, open_block = divmod(block, OPEN)
        return group * ROWS * OPEN + at * OPEN + open_block

    async def _insist(self, statement: str, values: list[Any], **options: Any) -> Any:
        for _ in range(READ_BACK_TRIES):
            outcome, result, _, _ = await self._ask(statement, values, **options)
            if outcome == "ok":
                return result
            await asyncio.sleep(0.5)
        raise RuntimeError(f"{statement} {values}: {result}")


def _value(result: Any) -> str | None:
    row = result.first()
    return None if row is None else row.column_value("value")


def say(answer: dict[str, Any]) -> None:
    print(json.dumps(answer), flush=True)


async def main(hosts: str, port: str, name: str, seed: str, level: str, file: TextIO) -> None:
    session = await connected(hosts, port, TIMEOUT_S, 300)
    texts = (WRITE, READ_BACK, SET, GET, FIRST, NEXT, LOOK)
    prepared = {text: await session.create_prepared(text) for text in texts}
    loop = asyncio.get_running_loop()
    client = Client(session, prepared, name, int(seed), level, file)
    running = asyncio.ensure_future(client.run())
    say({"connected": True})
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line == "stop":
            client.stopped = True
            await running
        elif line == "read back":
            await client.read_back()
        if running.done():
            running.result()
        say(client.counts)
    client.stopped = True
    await running
    await session.close()


if __name__ == "__main__":
    with open(sys.argv[-1], "w", buffering=1 << 20) as history:
        asyncio.run(main(*sys.argv[1:-1], history))
