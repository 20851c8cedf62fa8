"""Clients that keep a fixed number of requests in flight each, for the overload benchmark.

Every connection repeats a write and a read of one row at QUORUM. A client that is told OVERLOADED asks
again after a pause that doubles from PAUSE_S to PAUSE_S_MAX, as an application does that backs off; one
that hears nothing for CLIENT_TIMEOUT_S counts a lost request and asks anew. Reads JSON commands a line from
standard input and writes one answer a line: `{"connections": N, "in_flight": I, "seconds": S}` drives all
nodes for that long and answers with what came in each window of WINDOW_S.
Usage: overload_client.py HOST,HOST,... PORT
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import struct
import sys
import time
from typing import Any

import uvloop

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import EnvelopeReader, encode_request
from lockstep.cql.wire.messages import QueryParameters
from lockstep.values.ids import Consistency

SCHEMA = (
    "CREATE KEYSPACE IF NOT EXISTS overload WITH replication = "
    "{'class': 'NetworkTopologyStrategy', 'dc1': 3}",
    "CREATE TABLE IF NOT EXISTS overload.rows (key blob PRIMARY KEY, value blob)",
)
WRITE = "INSERT INTO overload.rows (key, value) VALUES (?, ?)"
READ = "SELECT value FROM overload.rows WHERE key = ?"
KEY_BYTES, VALUE = 16, b"x" * 100
WINDOW_S = 0.5
PAUSE_S, PAUSE_S_MAX = 0.1, 1.6
CLIENT_TIMEOUT_S = 10.0
TICK_S = 0.02
OVERLOADED = 0x1001
_HEADER = struct.Struct(">BBhBI")


class Tally:
    """What came back, by windows; latencies of successes in seconds."""

    def __init__(self) -> None:
        self.began_s = time.perf_counter()
        self.windows: list[dict[str, Any]] = []
        self.running = True

    def count(self, what: str, latency_s: float | None = None) -> None:
        if not self.running:
            return
        at = int((time.perf_counter() - self.began_s) / WINDOW_S)
        while len(self.windows) <= at:
            self.windows.append({"latencies_s": []})
        window = self.windows[at]
        window[what] = window.get(what, 0) + 1
        if latency_s is not None:
            window["latencies_s"].append(round(latency_s, 5))


class Connection(asyncio.Protocol):
    """One connection of an application, whose streams each ask one thing after the other."""

    def __init__(self, statements: tuple[bytes, bytes]) -> None:
        self._statements = statements
        self._rest = b""
        self._tally: Tally | None = None
        self._asked_s: dict[int, float] = {}
        self._keys: dict[int, bytes] = {}
        self._turns: dict[int, int] = {}
        #: Stream -> the pause after its last refusal.
        self._pauses_s: dict[int, float] = {}
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport = None  # type: ignore[assignment]

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._transport.write(encode_request(4, Opcode.STARTUP, 0, wire.startup({"CQL_VERSION": "3.0.0"})))

    def begin(self, tally: Tally, in_flight: int) -> None:
        self._tally = tally
        for stream in range(in_flight):
            if stream not in self._asked_s:
                self._ask(stream)

    def _ask(self, stream: int) -> None:
        if self._tally is None or not self._tally.running or self._transport.is_closing():
            return
        turn = self._turns[stream] = self._turns.get(stream, 0) + 1
        if turn % 2:
            self._keys[stream] = os.urandom(KEY_BYTES)
            values = (self._keys[stream], VALUE)
        else:
            values = (self._keys[stream],)
        parameters = QueryParameters(Consistency.QUORUM, values)
        body = wire.execute(4, self._statements[1 - turn % 2], None, parameters)
        self._asked_s[stream] = time.perf_counter()
        self._transport.write(encode_request(4, Opcode.EXECUTE, stream, body))

    def data_received(self, data: bytes) -> None:
        data, at = self._rest + data, 0
        while len(data) - at >= 9:
            _, _, stream, opcode, size = _HEADER.unpack_from(data, at)
            if len(data) - at < 9 + size:
                break
            self._heard(stream, opcode, data[at + 9 : at + 9 + size])
            at += 9 + size
        self._rest = data[at:]

    def _heard(self, stream: int, opcode: int, body: bytes) -> None:
        if not self.ready.done():
            self.ready.set_result(None)
            return
        asked_s = self._asked_s.pop(stream, None)
        tally = self._tally
        if asked_s is None or tally is None:
            return
        latency_s = time.perf_counter() - asked_s
        if opcode == Opcode.RESULT:
            tally.count("ok", latency_s)
            self._pauses_s.pop(stream, None)
            self._ask(stream)
            return
        code = int.from_bytes(body[:4])
        tally.count("refused" if code == OVERLOADED else f"error {code:#06x}")
        pause_s = self._pauses_s[stream] = min(2 * self._pauses_s.get(stream, PAUSE_S / 2), PAUSE_S_MAX)
        asyncio.get_running_loop().call_later(pause_s * random.uniform(0.5, 1.5), self._ask, stream)

    def give_up(self, now_s: float) -> None:
        """Count what was not answered in time; its stream is free again."""
        for stream, asked_s in list(self._asked_s.items()):
            if now_s - asked_s >= CLIENT_TIMEOUT_S:
                del self._asked_s[stream]
                if self._tally is not None:
                    self._tally.count("lost")
                self._ask(stream)

    def connection_lost(self, error: Exception | None) -> None:
        if self._tally is not None:
            self._tally.count("closed")


class Prepared(asyncio.Protocol):
    """Makes the table and prepares the statements."""

    def __init__(self) -> None:
        self._reader = EnvelopeReader(responses=True)
        self._waits: list[asyncio.Future[Any]] = []
        self._transport: Any = None

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for found in self._reader.feed(data):
            answer = wire.decode_response(found.version, found.opcode, found.flags, found.body)
            self._waits.pop(0).set_result(answer.body)

    async def ask(self, opcode: int, body: bytes) -> Any:
        future = asyncio.get_running_loop().create_future()
        self._waits.append(future)
        self._transport.write(encode_request(4, opcode, 0, body))
        return await future

    async def statements(self) -> tuple[bytes, bytes]:
        await self.ask(Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.0.0"}))
        for text in SCHEMA:
            await self.ask(Opcode.QUERY, wire.query(4, text, QueryParameters(Consistency.ONE)))
        found = [await self.ask(Opcode.PREPARE, wire.prepare(4, text)) for text in (WRITE, READ)]
        return found[0].statement_id, found[1].statement_id


async def drive(
    connections: list[Connection], in_flight: int, seconds: float
) -> tuple[list[dict[str, Any]], float]:
    """What came in each window, and how late these clients' own loop is (the median): what they do not see
    in time is no fault of the nodes."""
    tally = Tally()
    for connection in connections:
        connection.begin(tally, in_flight)
    end_s = tally.began_s + seconds
    looked_s, late_s = tally.began_s, list[float]()
    while (now_s := time.perf_counter()) < end_s:
        if now_s - looked_s >= WINDOW_S:
            looked_s = now_s
            for connection in connections:
                connection.give_up(now_s)
        await asyncio.sleep(TICK_S)
        late_s.append(time.perf_counter() - now_s - TICK_S)
    tally.running = False
    return tally.windows, sorted(late_s)[len(late_s) // 2]


async def main(hosts: list[str], port: int) -> None:
    loop = asyncio.get_running_loop()
    statements: tuple[bytes, bytes] | None = None
    for host in hosts:
        _, first = await loop.create_connection(Prepared, host, port)
        statements = await first.statements()
    assert statements is not None, "there is a host"
    known, connections = statements, list[Connection]()
    print(json.dumps({"connected": True}), flush=True)
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        command = json.loads(line)
        while len(connections) < command["connections"]:
            host = hosts[len(connections) % len(hosts)]
            _, made = await loop.create_connection(lambda: Connection(known), host, port)
            await made.ready
            connections.append(made)
        windows, late_s = await drive(
            connections[: command["connections"]], command["in_flight"], command["seconds"]
        )
        print(json.dumps({"windows": windows, "late_s": late_s}), flush=True)


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1].split(","), int(sys.argv[2])))
