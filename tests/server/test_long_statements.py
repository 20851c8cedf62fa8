"""No statement keeps a node from everybody else: a long one is refused early, or planned beside the loop."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import BATCH_UNLOGGED, Opcode
from lockstep.cql.wire.messages import BatchStatement, QueryParameters, Value
from lockstep.values.ids import Consistency
from lockstep.values.limits import BATCH_STATEMENTS_MAX
from tests.server.wire_client import WireClient

PORTS = (19142, 17100, 17180)
#: The most processor time that one callback of a node's loop may take for a statement, on a processor that
#: does the fixed work of `measured_node` in PACE_MS.
CALLBACK_MS_MAX = 50.0
PACE_MS = 13.0
ATTEMPTS_MAX = 10


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=20)


class Door:
    """A real node that measures itself, and a client of it."""

    def __init__(self, client: WireClient, node: subprocess.Popen[str]) -> None:
        self._client = client
        self._node = node

    def longest(self) -> tuple[float, str]:
        """The most processor time, in milliseconds at the named pace, that one callback took since the last
        call, and which."""
        assert self._node.stdin is not None and self._node.stdout is not None
        self._node.stdin.write("\n")
        self._node.stdin.flush()
        told = json.loads(self._node.stdout.readline())
        return told["longest_ms"] * PACE_MS / told["pace_ms"], told["callback"]

    def ask(self, text: str, *values: Value) -> wire.Body:
        body = wire.query(4, text, QueryParameters(Consistency.ONE, tuple(values)))
        return self._client.ask(Opcode.QUERY, body)

    def batch(self, statements: Sequence[BatchStatement]) -> wire.Body:
        """As an unlogged batch of the protocol."""
        body = wire.batch(4, BATCH_UNLOGGED, statements, QueryParameters(Consistency.ONE))
        return self._client.ask(Opcode.BATCH, body)

    def prepare(self, text: str) -> wire.Body:
        return self._client.ask(Opcode.PREPARE, wire.prepare(4, text))


@pytest.fixture(scope="module")
def door(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    directory = tmp_path_factory.mktemp("long")
    cql, internode, admin = PORTS
    file = directory / "node.toml"
    file.write_text(
        f"""
[node]
data_directory = "{directory / "data"}"
[cluster]
founders = ["127.0.0.1:{internode}"]
[network]
address = "127.0.0.1"
internode_port = {internode}
cql_port = {cql}
admin_port = {admin}
"""
    )
    command = [sys.executable, "-m", "tests.server.measured_node", "--config", str(file)]
    node = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with ended(node):
        assert node.stdout is not None
        json.loads(node.stdout.readline().removeprefix("ready "))
        with WireClient("127.0.0.1", cql) as client:
            client.socket.settimeout(60)
            client.startup()
            made = Door(client, node)
            for text in (
                "CREATE KEYSPACE w WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
                "CREATE TABLE w.t (k int PRIMARY KEY, v text, m map<int, int>, f frozen<map<int, int>>, "
                "l list<int>)",
                "CREATE TABLE w.r (k int, c int, v int, PRIMARY KEY (k, c))",
                "CREATE TABLE w.b (k int, c int, a int, v text, m map<int, int>, PRIMARY KEY (k, c))",
                "CREATE MATERIALIZED VIEW w.bv AS SELECT * FROM w.b WHERE a IS NOT NULL AND k IS NOT NULL "
                "AND c IS NOT NULL PRIMARY KEY (a, k, c)",
            ):
                assert isinstance(made.ask(text), wire.SchemaChange)
            yield made


def map_of(count: int) -> bytes:
    return struct.pack(">i", count) + b"".join(struct.pack(">iiii", 4, n, 4, n) for n in range(count))


ENTRIES = 131_072
MAP = "{" + ",".join(f"{number}:{number}" for number in range(65_535)) + "}"
PACKED = map_of(ENTRIES)
LIST = struct.pack(">i", ENTRIES) + b"".join(struct.pack(">ii", 4, n) for n in range(ENTRIES))
TEXT = "x" * 11_500_000
MANY = ",".join(map(str, range(1900)))
REFUSED: dict[str, str] = {
    "selections": f"SELECT {','.join(['v'] * 149_000)} FROM w.t WHERE k = 1",
    "in": f"SELECT v FROM w.t WHERE k IN ({','.join(map(str, range(140_000)))})",
    "string": "SELECT '" + "x" * 14_000_000,
    "dollars": "SELECT $$" + "x" * 14_000_000,
    "comment": "SELECT /*" + "x" * 14_000_000,
    "blank": " " * 14_000_000 + "SELECT",
    "number": "SELECT v FROM w.t WHERE k = " + "9" * 14_000_000,
    "columns": f"CREATE TABLE w.c (k int PRIMARY KEY, {','.join(f'c{n} int' for n in range(24_000))})",
    "fewer columns": f"CREATE TABLE w.c (k int PRIMARY KEY, {','.join(f'c{n} int' for n in range(5000))})",
    "fields": f"CREATE TYPE w.c ({','.join(f'c{n} int' for n in range(5000))})",
    "changed string": "INSERT INTO w.t (k, v) VALUES (1, '" + "x" * 8_000_000,
    "quotes": "INSERT INTO w.t (k, v) VALUES (1, '" + "''" * 4_000_000,
    "changed number": "INSERT INTO w.t (k) VALUES (" + "9" * 8_000_000,
    "rows of a view": f"UPDATE w.b SET v = 'a' WHERE k = 1 AND c IN ({MANY})",
    "cells of a view": f"INSERT INTO w.b (k, c, a, m) VALUES (1, 1, 1, {MAP})",
    "text of a view": f"INSERT INTO w.b (k, c, a, v) VALUES (1, 1, 1, '{TEXT}')",
}
TAKEN: dict[str, tuple[str, tuple[Value, ...]]] = {
    "selections": (f"SELECT {','.join(['v'] * 8000)} FROM w.t WHERE k = 1", ()),
    "in": (f"SELECT v FROM w.t WHERE k IN ({','.join(map(str, range(9000)))})", ()),
    "changed in": (f"UPDATE w.t SET v = 'a' WHERE k IN ({','.join(map(str, range(100, 9000)))})", ()),
    "text": (f"INSERT INTO w.t (k, v) VALUES (1, '{TEXT}')", ()),
    "text read": ("SELECT v FROM w.t WHERE k = 1", ()),
    "map": (f"INSERT INTO w.t (k, m) VALUES (1, {MAP})", ()),
    "frozen map": (f"INSERT INTO w.t (k, f) VALUES (1, {MAP})", ()),
    "bound map": ("INSERT INTO w.t (k, m) VALUES (2, ?)", (PACKED,)),
    "bound map over another": ("UPDATE w.t SET m = m + ? WHERE k = 2", (PACKED,)),
    "map read": ("SELECT m FROM w.t WHERE k = 2", ()),
    "map read as json": ("SELECT JSON m FROM w.t WHERE k = 2", ()),
    "bound frozen map": ("INSERT INTO w.t (k, f) VALUES (2, ?)", (PACKED,)),
    "bound list": ("INSERT INTO w.t (k, l) VALUES (3, ?)", (LIST,)),
    "element of a list": ("UPDATE w.t SET l[7] = 8 WHERE k = 3", ()),
    "elements of a list": ("UPDATE w.t SET l = l - [3] WHERE k = 3", ()),
    "conditional map": ("INSERT INTO w.t (k, m) VALUES (4, ?) IF NOT EXISTS", (PACKED,)),
    "condition of a map": (f"UPDATE w.t SET v = 'a' WHERE k = 4 IF m = {MAP}", ()),
    "condition not met": ("INSERT INTO w.t (k, v) VALUES (4, 'a') IF NOT EXISTS", ()),
    "map of a view": ("INSERT INTO w.b (k, c, a, m) VALUES (2, 1, 1, ?)", (map_of(16_000),)),
    "map of a view that moves": ("UPDATE w.b SET a = 2 WHERE k = 2 AND c = 1", ()),
    "columns": (f"CREATE TABLE w.d (k int PRIMARY KEY, {','.join(f'c{n} int' for n in range(2000))})", ()),
}


def judge(door: Door, work: str, ask: Callable[[], wire.Body]) -> wire.Body:
    """The answer, where no callback took too long in the best of some attempts: a collection of garbage, and
    what others do to the processor's caches, falls into most on a busy machine."""
    found: list[tuple[float, str]] = []
    for _ in range(ATTEMPTS_MAX):
        door.longest()
        answer = ask()
        found.append(door.longest())
        if found[-1][0] <= CALLBACK_MS_MAX:
            return answer
    raise AssertionError(f"{work}: a callback took {min(found)[0]:.0f} ms: {min(found)[1]}")


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_too_long_is_refused_while_others_are_answered(door: Door, kind: str) -> None:
    answer = judge(door, kind, lambda: door.ask(REFUSED[kind]))
    assert isinstance(answer, wire.ErrorResponse)
    assert answer.code in (0x2000, 0x2200)


@pytest.mark.parametrize("kind", TAKEN)
def test_long_statements_are_planned_while_others_are_answered(door: Door, kind: str) -> None:
    text, values = TAKEN[kind]
    answer = judge(door, kind, lambda: door.ask(text, *values))
    assert not isinstance(answer, wire.ErrorResponse) or "already exists" in answer.message, answer


@pytest.mark.parametrize("count", [1900, BATCH_STATEMENTS_MAX])
def test_long_batches_are_planned_while_others_are_answered(door: Door, count: int) -> None:
    prepared = door.prepare("INSERT INTO w.r (k, c, v) VALUES (?, ?, ?)")
    assert isinstance(prepared, wire.PreparedResult)
    statements = [
        BatchStatement(prepared.statement_id, tuple(struct.pack(">i", v) for v in (1, n % 1900, n)))
        for n in range(count)
    ]
    assert isinstance(judge(door, "batch", lambda: door.batch(statements)), wire.VoidResult)
    found = door.ask("SELECT v FROM w.r WHERE k = 1 AND c = 7")
    assert isinstance(found, wire.RowsResult)
    # All have one timestamp, so the greatest value stands.
    assert found.rows[0][0] == struct.pack(">i", (count - 8) // 1900 * 1900 + 7)


def test_a_long_text_is_prepared_beside_the_loop_and_executed(door: Door) -> None:
    columns = ",".join(["v"] * 5000)
    prepared = door.prepare(f"SELECT {columns} FROM w.t WHERE k = ?")
    assert isinstance(prepared, wire.PreparedResult) and len(prepared.bind) == 1
    refused = door.prepare(REFUSED["selections"])
    assert isinstance(refused, wire.ErrorResponse) and refused.code == 0x2200


def test_what_was_written_by_long_statements_is_read(door: Door) -> None:
    text = "it''s " * 20_000
    assert isinstance(door.ask(f"INSERT INTO w.t (k, v) VALUES (9, '{text}')"), wire.VoidResult)
    found = door.ask("SELECT v FROM w.t WHERE k = 9")
    assert isinstance(found, wire.RowsResult)
    assert found.rows[0][0] == text.replace("''", "'").encode()


def test_batches_of_too_many_statements_or_values_are_refused_before_they_are_decoded(door: Door) -> None:
    many = [BatchStatement(b"id", ())] * (BATCH_STATEMENTS_MAX + 1)
    wide = [BatchStatement(b"id", (None,) * 60_000)] * 60
    for work, statements in (("statements", many), ("values", wide)):
        answer = judge(door, work, lambda statements=statements: door.batch(statements))
        assert isinstance(answer, wire.ErrorResponse) and answer.code == 0x2200
