"""Bytes and statements that no client means: mutated, cut off, too large.

Invariant: whatever is sent, the answer is an error of a known sort or a closed connection, no node reports a
defect of its own, and another connection is served meanwhile.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

import msgspec

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import encode_request, encode_segments
from lockstep.cql.wire.messages import BatchStatement, QueryParameters
from lockstep.runtime.ports import Runtime
from lockstep.sim.fuzz.door import Door
from lockstep.sim.fuzz.generators import Changes
from lockstep.sim.fuzz.kinds import Binder
from lockstep.sim.fuzz.query_generators import Looks
from lockstep.sim.fuzz.tables import draw_table
from lockstep.sim.runtime.streams import Stream, stream
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

_PORT: Final = 9042
#: Long enough for every timeout of a node, in virtual seconds.
_PATIENCE_S: Final = 10.0
#: As many as one connection may use at once.
STREAMS: Final = 32768
_WORDS: Final = (
    "SELECT",
    "FROM",
    "WHERE",
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ",",
    ";",
    "'",
    '"',
    "null",
    "?",
    ":",
    "-1",
    "=",
)


class Case(msgspec.Struct, frozen=True):
    """What one connection sends."""

    name: str
    data: bytes


class _Line(asyncio.Protocol):
    """A connection that keeps what it hears."""

    def __init__(self) -> None:
        self.heard = bytearray()
        self.closed = False

    def data_received(self, data: bytes) -> None:
        self.heard += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True


def garble(draw: Stream, data: bytes) -> bytes:
    """A few bytes changed, left out, put in, or the end cut off."""
    found = bytearray(data)
    for _ in range(draw.randint(1, 4)):
        at = draw.randrange(len(found) + 1)
        how = draw.randrange(5)
        if how == 0 and at < len(found):
            found[at] ^= 1 << draw.randrange(8)
        elif how == 1:
            del found[at : at + draw.randint(1, 8)]
        elif how == 2:
            found[at:at] = draw.randbytes(draw.randint(1, 8))
        elif how == 3 and at < len(found):
            found[at] = draw.choice((0, 0x7F, 0x80, 0xFF))
        else:
            del found[at:]
    return bytes(found)


def garble_text(draw: Stream, text: str) -> str:
    """Words of a statement left out, doubled, exchanged or put in; or its characters."""
    if draw.random() < 0.3:
        return garble(draw, text.encode()).decode("utf-8", "replace")
    words = text.split(" ")
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(words))
        how = draw.randrange(4)
        if how == 0 and len(words) > 1:
            del words[at]
        elif how == 1:
            words.insert(at, words[at])
        elif how == 2:
            words.insert(at, draw.choice(_WORDS))
        else:
            other = draw.randrange(len(words))
            words[at], words[other] = words[other], words[at]
    return " ".join(words)


def _requests(draw: Stream, version: int) -> list[tuple[int, bytes]]:
    """Sound requests of every sort."""
    text = "SELECT key FROM system.local"
    parameters = QueryParameters(
        consistency=Consistency.ONE,
        values=(draw.randbytes(3), None),
        page_size=draw.choice((None, 1, 100)),
        timestamp_us=draw.choice((None, 5)),
        names=draw.choice((None, ("a", "b"))),
    )
    bare = QueryParameters(consistency=Consistency.ONE)
    entries = (BatchStatement("INSERT INTO f.t (a) VALUES (1)", ()), BatchStatement(b"12345678" * 2, (b"x",)))
    return [
        (Opcode.QUERY, wire.query(version, text, bare)),
        (Opcode.QUERY, wire.query(version, text, parameters)),
        (Opcode.PREPARE, wire.prepare(version, text)),
        (Opcode.EXECUTE, wire.execute(version, draw.randbytes(16), b"x" * 16, parameters)),
        (Opcode.BATCH, wire.batch(version, draw.randrange(3), entries, bare)),
        (Opcode.REGISTER, wire.register(["STATUS_CHANGE"])),
        (Opcode.OPTIONS, wire.options()),
        (Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.4.7"})),
        (Opcode.AUTH_RESPONSE, wire.auth_response(b"\0a\0b")),
        (draw.randrange(256), draw.randbytes(draw.randrange(40))),
    ]


def draw_case(draw: Stream) -> Case:
    version = draw.choice((4, 5))
    hello = encode_request(version, Opcode.STARTUP, 0, wire.startup({"CQL_VERSION": "3.4.7"}))
    opcode, body = draw.choice(_requests(draw, version))
    sound = encode_request(version, opcode, draw.randrange(4), body)
    chance = draw.random()
    if chance < 0.1:
        return Case("random bytes", draw.randbytes(draw.randint(1, 200)))
    if chance < 0.2:
        return Case("garbled greeting", garble(draw, hello))
    if chance < 0.3:
        head = bytes([version, 0, 0, 1, opcode]) + draw.choice(
            (1 << 31, (1 << 32) - 1, 1 << 28, 999)
        ).to_bytes(4, "big")
        return Case("giant length", hello + (head if version == 4 else encode_segments([head])) + b"x" * 64)
    if chance < 0.4:
        text = draw.choice(
            (
                "(" * 20_000,
                "[" * 20_000 + "]" * 20_000,
                "SELECT " + "-" * 50_000,
                "'" + "x" * 70_000,
                "1+" * 9000,
            )
        )
        sound = encode_request(
            version, Opcode.QUERY, 1, wire.query(version, f"SELECT {text}", QueryParameters(Consistency.ONE))
        )
        return Case("deep statement", hello + (sound if version == 4 else encode_segments([sound])))
    if chance < 0.7:
        bad = sound[:5] + len(body := garble(draw, body)).to_bytes(4, "big") + body
        return Case("garbled body", hello + (bad if version == 4 else encode_segments([bad])))
    bad = garble(draw, sound if version == 4 else encode_segments([sound]))
    return Case("garbled frame", hello + bad + draw.choice((b"", sound)))


def flood(streams: int) -> Case:
    """That many requests at once, none of them waited for."""
    version = 4
    hello = encode_request(version, Opcode.STARTUP, 0, wire.startup({"CQL_VERSION": "3.4.7"}))
    body = wire.query(version, "SELECT key FROM system.local", QueryParameters(Consistency.ONE))
    return Case(
        "flood", hello + b"".join(encode_request(version, Opcode.QUERY, i, body) for i in range(streams))
    )


class Sender:
    """Sends cases to the first node of simulated ones."""

    def __init__(self, door: Door) -> None:
        self.door = door

    def problem(self, case: Case) -> str:
        """What is wrong with how the node took it; empty when nothing is."""
        try:
            line = self._send(case.data)
        except LockstepError as defect:
            return f"{case.name}: {defect}"
        served = self.door.run("SELECT key FROM system.local")
        if served.error or served.rows != (("local",),):
            return f"{case.name}: another connection is not served: {served.message}"
        return _unsound(bytes(line.heard), case.name)

    def _send(self, data: bytes) -> _Line:
        async def work(runtime: Runtime) -> _Line:
            host = self.door.cluster.processes[self.door.names[0]].host
            transport, line = await runtime.network.connect(host, _PORT, _Line)
            assert isinstance(line, _Line) and isinstance(transport, asyncio.Transport)
            transport.write(data)
            for _ in range(int(_PATIENCE_S * 10)):
                before = len(line.heard)
                await asyncio.sleep(0.1)
                if line.closed or len(line.heard) == before:
                    break
            transport.abort()
            return line

        task: asyncio.Task[Any] = self.door.client.submit(work)
        self.door.until(task.done, 10 * _PATIENCE_S)
        found: _Line = task.result()
        return found


def _unsound(heard: bytes, name: str) -> str:
    """A node's defect tells itself as an error of code 0."""
    at = 0
    while len(heard) >= at + 13 and heard[at] & 0x80 and heard[at + 4] == Opcode.ERROR:
        if heard[at + 9 : at + 13] == bytes(4):
            return f"{name}: answered with a server error"
        at += 9 + int.from_bytes(heard[at + 5 : at + 9], "big")
    return ""


def statement_problem(door: Door, text: str) -> str:
    """A statement may do anything but break the node."""
    told = door.run(text)
    if told.error < 0 or (told.message and not told.error):
        return f"{text!r} is answered by {told.error:#x} {told.message}"
    return ""


def run(seed: int, cases: int, streams: int = STREAMS) -> tuple[dict[str, int], list[str]]:
    """(cases by name, what was wrong). A third of the cases are statements; the first is a flood."""
    draw = stream(seed, "garbage")
    counts: dict[str, int] = {}
    wrong: list[str] = []
    with Door(seed) as door:
        sender = Sender(door)
        table = draw_table(draw, 0)
        for text in table.statements():
            assert not door.run(text).error
        changes = Changes(draw, table)
        looks = Looks(draw, table, changes)
        for number in range(cases):
            if number % 3 == 2:
                drawn = draw.choice((changes.next, looks.next))().text(table, Binder(0))
                name, problem = "garbled statement", statement_problem(door, garble_text(draw, drawn))
            else:
                case = flood(streams) if number == 0 else draw_case(draw)
                name, problem = case.name, sender.problem(case)
            counts[name] = counts.get(name, 0) + 1
            if problem:
                wrong.append(f"case {number}: {problem}")
                break
    return counts, wrong


def text_of(seed: int, counts: dict[str, int], wrong: list[str]) -> str:
    kinds = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    return "\n".join([*wrong, f"seed {seed}: {kinds}; {len(wrong)} wrong"])
