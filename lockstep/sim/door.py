"""A door that only simulated nodes have: clients' requests go straight to the request coordinator.

It stands beside the CQL door: no text is planned, so a workload spends its time in replication, and
metadata submissions can name their entry id. Invariant: an answer is matched to its request by number;
when the connection ends, the outcome of every open request is unknown.
"""

from __future__ import annotations

import asyncio
import struct

import msgspec

from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.schema.clustering import after_prefix, decode, encode_prefix
from lockstep.schema.model import Table
from lockstep.schema.types import parse_type
from lockstep.sim.load.history import Change, Look, SeenRow
from lockstep.values.codec import decoder, encode
from lockstep.values.errors import InvalidRequest, LockstepError, Rejected
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    Deletion,
    Liveness,
    Mutation,
    Position,
    RangeDeletion,
    ReadCommand,
    Row,
    Slice,
)
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, token_of

DOOR_PORT = 9041
KEYSPACE = "sim"
_LENGTH = struct.Struct(">I")
_INT = parse_type("int")


class Submission(msgspec.Struct, frozen=True, array_like=True, tag="submission"):
    """A transformation for the metadata log, by kind and encoded body.

    `base_epoch`: an epoch that was there before the id was first sent; -1: this is the first time.
    """

    entry_id: bytes
    kind: int
    body: bytes
    base_epoch: int = -1


class _Request(msgspec.Struct, frozen=True, array_like=True):
    number: int
    body: Change | Look | Submission


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """`code` "" is success; `known` says that a failed request had no effect and never will. `epoch` is that
    of the entry, or the one at which it was refused."""

    number: int
    code: str = ""
    text: str = ""
    known: bool = True
    rows: tuple[SeenRow, ...] = ()
    epoch: int = 0


_REQUESTS = decoder(_Request)
_ANSWERS = decoder(Answer)


class _Framed(asyncio.Protocol):
    """Messages behind their length, both ways."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data
        at = 0
        while len(buffer) - at >= _LENGTH.size:
            start = at + _LENGTH.size
            end = start + _LENGTH.unpack_from(buffer, at)[0]
            if end > len(buffer):
                break
            self.received(buffer[start:end])
            at = end
        self._buffer = buffer[at:]

    def received(self, body: bytes) -> None:
        raise AssertionError("abstract")

    def send(self, message: _Request | Answer) -> None:
        if self.transport is not None:
            body = encode(message)
            self.transport.write(_LENGTH.pack(len(body)) + body)


class DoorServer(_Framed):
    """One client's connection to one node."""

    def __init__(self, node: Node, runtime: Runtime) -> None:
        super().__init__()
        self._node = node
        self._runtime = runtime

    def received(self, body: bytes) -> None:
        self._runtime.tasks.spawn(self._serve(_REQUESTS.decode(body)), "door")

    async def _serve(self, request: _Request) -> None:
        number = request.number
        try:
            self.send(await self._answer(number, request.body))
        except Rejected as refusal:
            self.send(Answer(number, refusal.code, str(refusal), epoch=refusal.epoch))
        except LockstepError as error:
            self.send(Answer(number, error.code, str(error), error.outcome_known))

    async def _answer(self, number: int, body: Change | Look | Submission) -> Answer:
        node = self._node
        if isinstance(body, Submission):
            transformation = node.log.registry.decode(body.kind, body.body)
            base_epoch = body.base_epoch if body.base_epoch >= 0 else None
            epoch = await node.log.submit(transformation, entry_id=body.entry_id, base_epoch=base_epoch)
            return Answer(number, epoch=epoch)
        table = node.log.cluster.schema.table(KEYSPACE, body.table)
        if table is None:
            raise InvalidRequest(f"table {body.table} is not known here")
        if isinstance(body, Change):
            mutation = mutation_for(body, table, node.data.new_mutation_id(), self._deleted_at_s())
            await node.data.coordinator.write(mutation, body.consistency, body.timeout_ms)
            return Answer(number)
        return Answer(number, rows=await self._rows(body, table))

    async def _rows(self, look: Look, table: Table) -> tuple[SeenRow, ...]:
        """All live rows asked for, page by page."""
        rows: list[SeenRow] = []
        after: Position | None = None
        value = table.by_name["v"].id
        while True:
            command = command_for(look, table, self._now_s(), after)
            result = await self._node.data.coordinator.read(command, look.consistency, look.timeout_ms)
            for partition in result.partitions:
                for row in partition.rows:
                    rows.extend(
                        (partition.key, clustering_number(row.clustering), cell.value)
                        for cell in row.cells
                        if cell.column == value and cell.value is not None
                    )
            if not result.more:
                return tuple(rows)
            after = result.end

    def _deleted_at_s(self) -> int:
        return max(self._now_s(), self._node.log.stamps.next_us() // 1_000_000)

    def _now_s(self) -> int:
        return self._runtime.clock.wall_us() // 1_000_000


def clustering_bytes(number: int) -> bytes:
    return encode_prefix((_INT,), (False,), (number.to_bytes(4, "big", signed=True),))


def clustering_number(encoded: bytes) -> int:
    return int.from_bytes(decode((_INT,), (False,), encoded)[0], "big", signed=True)


def mutation_for(change: Change, table: Table, mutation_id: bytes, now_s: int) -> Mutation:
    """What the CQL statements of a change would plan."""
    at, column = change.timestamp_us, table.by_name["v"].id
    gone = Deletion(at, now_s)
    rows = [
        Row(clustering_bytes(number), Liveness(at), None, (Cell(column, value, at),))
        for number, value in change.puts
    ]
    if change.delete_row is not None:
        rows.append(Row(clustering_bytes(change.delete_row), deletion=gone))
    ranges: tuple[RangeDeletion, ...] = ()
    if change.delete_rows is not None:
        first, last = change.delete_rows
        ranges = (RangeDeletion(clustering_bytes(first), clustering_bytes(last), gone),)
    return Mutation(
        table.id,
        token_of(change.key),
        change.key,
        mutation_id,
        at,
        gone if change.delete_partition else None,
        ranges,
        None,
        tuple(rows),
    )


def command_for(look: Look, table: Table, now_s: int, after: Position | None) -> ReadCommand:
    left, right, slices = TOKEN_MIN, TOKEN_MAX, ALL_ROWS
    if look.key is not None:
        right = token_of(look.key)
        left = right - 1
    if look.clustering is not None:
        start = clustering_bytes(look.clustering)
        slices = (Slice(start, after_prefix(start)),)
    return ReadCommand(
        table.id, left, right, look.key, slices, (), False, False, look.page_rows, 0, now_s, after
    )


class DoorClient(_Framed):
    """`await DoorClient.connect(...)`, then `ask`."""

    def __init__(self) -> None:
        super().__init__()
        self._open: dict[int, asyncio.Future[Answer]] = {}
        self._number = 0
        self.closed = False

    @classmethod
    async def connect(cls, runtime: Runtime, host: str, timeout_ms: int) -> DoorClient:
        """OSError or TimeoutError when the node does not answer."""
        async with asyncio.timeout(timeout_ms / 1000):
            _, protocol = await runtime.network.connect(host, DOOR_PORT, cls)
        assert isinstance(protocol, cls)
        return protocol

    async def ask(self, body: Change | Look | Submission) -> Answer:
        """ConnectionError when the connection ended: the outcome is unknown."""
        if self.closed:
            raise ConnectionError("the connection is closed")
        self._number += 1
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._open[self._number] = future
        self.send(_Request(self._number, body))
        return await future

    def received(self, body: bytes) -> None:
        answer = _ANSWERS.decode(body)
        future = self._open.pop(answer.number, None)
        if future is not None and not future.done():
            future.set_result(answer)

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        self._end()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def _end(self) -> None:
        self.closed = True
        waiting, self._open = self._open, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the connection ended"))


async def open_door(node: Node, runtime: Runtime) -> None:
    """Listen on the node's host until the process ends."""
    host = node.configuration.network.address
    await runtime.network.listen(host, DOOR_PORT, lambda: DoorServer(node, runtime))
