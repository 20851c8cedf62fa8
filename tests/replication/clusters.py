"""Metadata values, tiny engines and an in-process wire, to script replicas under a real coordinator."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.coordinator import Coordinator
from lockstep.coordination.writes import Writes
from lockstep.internode.handshake import Address, PeerInfo
from lockstep.internode.repeated_log import RepeatedLog
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import DIRECTORY, Directory, NodeInfo, NodeState
from lockstep.metadata.operations import OPERATIONS, Session, Stage
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.placement.placements import PlacedRange, Placements, ReplicaGroup, ring_of_ranges
from lockstep.quorum.plans import PlanBook
from lockstep.replica.replica import ReplicaService
from lockstep.schema.model import Column, ColumnKind, KeyspaceHead, Replication, Table, keyspace_of, schema_of
from lockstep.storage.rows.reconcile import is_empty, merge_partitions
from lockstep.storage.rows.visible import counts_static, row_is_live
from lockstep.values.codec import decoder
from lockstep.values.errors import LockstepError, PeerTimeout, PeerUnreachable
from lockstep.values.ids import NodeId, mutation_id
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    Deletion,
    Liveness,
    Mutation,
    Partition,
    Position,
    ReadCommand,
    ReadResult,
    Row,
)
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

from .support import real_runtime

TABLE_ID = 1
COLUMN = 7

#: (right bound, reads, writes, epoch of the group)
Placed = tuple[int, Sequence[int], Sequence[int], int]


def replication(factors: dict[str, int]) -> Replication:
    if "" in factors:
        return Replication("SimpleStrategy", (("", factors[""]),))
    return Replication("NetworkTopologyStrategy", tuple(sorted(factors.items())))


def make_cluster(
    epoch: int,
    placed: Sequence[Placed],
    *,
    factors: dict[str, int] | None = None,
    dcs: dict[int, str] | None = None,
    sessions: Sequence[str] = (),
    table_epoch: int = 1,
    tables: bool = True,
) -> ClusterMetadata:
    """Node n lives at ("n<n>", 1); data centres default to one."""
    dcs = dcs or {}
    known = sorted({node for _, _, writes, _ in placed for node in writes} | dcs.keys())
    nodes = tuple(
        NodeInfo(
            NodeId(n), f"host{n}", f"n{n}", 1, 2, 3, dcs.get(n, "dc1"), "r", NodeState.NORMAL, (n * 1000,)
        )
        for n in known
    )
    setting = replication(factors or {"": 3})
    ranges, left = [], TOKEN_MIN
    for right, reads, writes, group_epoch in placed:
        group = ReplicaGroup(tuple(map(NodeId, reads)), tuple(map(NodeId, writes)), group_epoch)
        ranges.append(PlacedRange(Range(left, right), group))
        left = right
    columns = (
        Column(1, "k", "blob", ColumnKind.PARTITION_KEY, 0),
        Column(2, "c", "blob", ColumnKind.CLUSTERING, 0),
        Column(COLUMN, "v", "blob", ColumnKind.REGULAR),
    )
    table = Table(TABLE_ID, "u", "ks", "t", columns, epoch=table_epoch)
    schema = schema_of(
        [keyspace_of(KeyspaceHead("ks", setting, epoch=1, group=1), (table,) if tables else ())], 2
    )
    return msgspec.structs.replace(
        empty_cluster().changed(
            DIRECTORY.set(Directory(nodes, max(known, default=0) + 1)),
            SCHEMA.set(schema),
            PLACEMENTS.set(Placements().with_rings((ring_of_ranges(1, setting, tuple(ranges)),))),
            OPERATIONS.set(
                msgspec.structs.replace(
                    empty_cluster().running,
                    sessions=tuple(Session(s, 1, Stage.WRITE_BOTH_READ_OLD, epoch) for s in sessions),
                )
            ),
        ),
        epoch=epoch,
    )


def whole_ring(
    epoch: int,
    reads: Sequence[int],
    writes: Sequence[int] | None = None,
    *,
    group_epoch: int = 1,
    **more: Any,
) -> ClusterMetadata:
    return make_cluster(epoch, [(TOKEN_MAX, reads, writes or reads, group_epoch)], **more)


class TinyEngine:
    """All mutations of one replica in lists: the obvious engine. Synced when `sync_gate` is open."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[int, bytes], list[Partition]] = {}
        self.applied: list[Mutation] = []
        self.reads = 0
        #: Whether one partition is read in the step that asks, as by an engine that has it all in memory.
        self.reads_now = True
        self.sync_gate = asyncio.Event()
        self.sync_gate.set()
        self.sync_error: LockstepError | None = None
        self.on_read: Callable[[], None] = lambda: None

    def apply(self, mutation: Mutation, *, first_epoch: int | None = 0) -> int:
        self.applied.append(mutation)
        m = mutation
        part = Partition(m.token, m.key, m.deletion, m.range_deletions, m.static, m.rows)
        self.partitions.setdefault((m.token, m.key), []).append(part)
        return len(self.applied)

    async def synced(self, sequence: int) -> None:
        await self.sync_gate.wait()
        if self.sync_error is not None:
            raise self.sync_error

    def read_now(self, command: ReadCommand) -> ReadResult | None:
        return self.answer(command) if self.reads_now and command.key is not None else None

    async def read(self, command: ReadCommand) -> ReadResult:
        return self.answer(command)

    def answer(self, command: ReadCommand) -> ReadResult:
        self.reads += 1
        self.on_read()
        found: list[Partition] = []
        live = 0
        room = command.row_limit or 1 << 60
        for place in sorted(self.partitions):
            token, key = place
            if not command.left < token <= command.right or (command.key not in (None, key)):
                continue
            if self._is_read(place, command.after):
                continue
            merged = merge_partitions(self.partitions[place], reverse=command.reverse)
            rows = [row for row in merged.rows if self._behind(row, place, command)]
            kept: list[Row] = []
            count = 0
            for row in rows:
                if count >= (command.partition_row_limit or 1 << 60):
                    break
                kept.append(row)
                count += row_is_live(row, command.now_s)
                if live + count >= room:
                    found.append(msgspec.structs.replace(merged, rows=tuple(kept)))
                    return ReadResult(tuple(found), True, Position(token, key, row.clustering))
            part = msgspec.structs.replace(merged, rows=tuple(kept))
            if not command.reads_static:
                part = msgspec.structs.replace(part, static=None)
            if not is_empty(part):
                found.append(part)
            if not count and part.static is not None and counts_static(command, key):
                count = int(row_is_live(part.static, command.now_s))
            live += count
            if live >= room:
                return ReadResult(tuple(found), True, Position(token, key))
        return ReadResult(tuple(found))

    @staticmethod
    def _is_read(place: tuple[int, bytes], after: Position | None) -> bool:
        if after is None or place > (after.token, after.key):
            return False
        return place < (after.token, after.key) or after.clustering is None

    @staticmethod
    def _behind(row: Row, place: tuple[int, bytes], command: ReadCommand) -> bool:
        after = command.after
        if after is None or after.clustering is None or place != (after.token, after.key):
            return True
        return row.clustering < after.clustering if command.reverse else row.clustering > after.clustering


class Wire:
    """Delivers submissions between scripted nodes in later loop steps."""

    def __init__(self) -> None:
        self.nodes: dict[Address, ScriptedInternode] = {}
        #: Nothing reaches these; the sender hears PeerUnreachable.
        self.down: set[Address] = set()
        #: Messages that match are lost; the sender hears PeerTimeout at its deadline.
        self.lose: Callable[[Address, int], bool] = lambda address, verb: False
        #: Called before a message is handed over.
        self.before: Callable[[Address, int], None] = lambda address, verb: None
        self.log: list[tuple[Address, int]] = []


class ScriptedInternode:
    def __init__(self, wire: Wire, node: int, epoch: Callable[[], int]) -> None:
        self.wire = wire
        self.address: Address = (f"n{node}", 1)
        self.peer = PeerInfo(node, f"host{node}", *self.address, "node")
        self.epoch = epoch
        self.repeated_log = RepeatedLog(lambda event, **facts: None)
        self.fast: dict[int, tuple[Any, Any]] = {}
        self.slow: dict[int, tuple[Any, Any]] = {}
        #: Verbs whose requests go to several in one frame.
        self.shared: list[int] = []
        wire.nodes[self.address] = self

    def register_fast(
        self, verb: int, request: Any, reply: Any, handler: Any, *, shares: bool = False
    ) -> None:
        self.fast[verb] = (decoder(request), handler)
        if shares:
            self.shared.append(verb)

    def register(self, verb: int, request: Any, reply: Any, handler: Any) -> None:
        self.slow[verb] = (decoder(request), handler)

    def submit(
        self, address: Address, verb: int, body: bytes, deadline_s: float, waiter: Any, context: Any
    ) -> None:
        loop = asyncio.get_running_loop()
        self.wire.log.append((address, verb))
        if address in self.wire.down:
            loop.call_soon(waiter.failed, context, PeerUnreachable("down"))
        elif self.wire.lose(address, verb):
            left_s = deadline_s - loop.time()
            loop.call_later(max(left_s, 0), waiter.failed, context, PeerTimeout("lost"))
        else:
            loop.call_soon(self._deliver, self.wire.nodes[address], verb, body, waiter, context)

    def submit_each(self, targets: Any, verb: int, body: bytes, deadline_s: float, waiter: Any) -> None:
        for target in targets:
            self.submit(target.address, verb, body, deadline_s, waiter, target)

    def _deliver(self, target: ScriptedInternode, verb: int, body: bytes, waiter: Any, context: Any) -> None:
        self.wire.before(target.address, verb)

        def answer(reply: Any) -> None:
            loop = asyncio.get_running_loop()
            if isinstance(reply, LockstepError):
                loop.call_soon(waiter.failed, context, reply)
            else:
                loop.call_soon(waiter.replied, context, reply, target.epoch())

        if verb in target.fast:
            request_decoder, handler = target.fast[verb]
            try:
                handler(self.peer, request_decoder.decode(body), answer)
            except LockstepError as error:
                answer(error)
            return
        request_decoder, handler = target.slow[verb]

        async def serve() -> None:
            try:
                answer(await handler(self.peer, request_decoder.decode(body)))
            except LockstepError as error:
                answer(error)

        self.tasks.append(asyncio.get_running_loop().create_task(serve()))

    @property
    def tasks(self) -> list[Any]:
        return self.__dict__.setdefault("_tasks", [])


class Seeming:
    """Opinions that follow one function."""

    def __init__(self, alive: Callable[[int], bool]) -> None:
        self.alive = self.prefers = alive

    def alive_until_s(self, node: int) -> float:
        return -math.inf


class ScriptedNode:
    """A coordinator and a replica on one node, with metadata the test sets."""

    def __init__(self, wire: Wire, node: int, cluster: ClusterMetadata) -> None:
        self.node = node
        self.wire = wire
        self.cluster = cluster
        self.runtime = real_runtime(node)
        self.engine = TinyEngine()
        self.dead: set[int] = set()
        #: What catching up brings, by default whatever the source has.
        self.catch_ups: list[int] = []
        self.peers: dict[Address, ScriptedNode] = {}
        self._ids = 0
        self.internode = ScriptedInternode(wire, node, lambda: self.cluster.epoch)
        self.replica = ReplicaService(
            self.runtime,
            self.internode,  # type: ignore[arg-type]
            self.engine,
            lambda: self.cluster,
            self.catch_up,
            lambda: node,
        )
        context = CoordinationContext(
            self.runtime,
            self.internode,  # type: ignore[arg-type]
            self.replica,
            PlanBook(lambda: self.cluster, lambda: node),
            self.catch_up,
            lambda: node,
            self.new_id,
            Seeming(self.seems_alive),
        )
        self.coordinator = Coordinator(context, Writes(context))

    def seems_alive(self, other: int) -> bool:
        return other not in self.dead

    async def catch_up(self, epoch: int, source: Address) -> None:
        self.catch_ups.append(epoch)
        await asyncio.sleep(0)
        theirs = self.peers[source].cluster
        if theirs.epoch > self.cluster.epoch:
            self.cluster = theirs
        if self.cluster.epoch < epoch:
            raise PeerTimeout(f"epoch {epoch} did not arrive")

    def new_id(self) -> bytes:
        self._ids += 1
        return mutation_id(self.node, 1, self._ids)


def make_nodes(count: int, cluster: ClusterMetadata) -> tuple[Wire, list[ScriptedNode]]:
    wire = Wire()
    nodes = [ScriptedNode(wire, number, cluster) for number in range(1, count + 1)]
    for node in nodes:
        node.peers = {other.internode.address: other for other in nodes}
    return wire, nodes


def key_of(token: int) -> bytes:
    return b"key%d" % token


def upsert(
    token: int, clustering: bytes = b"c", value: bytes = b"v", timestamp_us: int = 1, number: int = 1
) -> Mutation:
    row = Row(clustering, Liveness(timestamp_us), None, (Cell(COLUMN, value, timestamp_us),))
    return Mutation(TABLE_ID, token, key_of(token), mutation_id(99, 1, number), timestamp_us, rows=(row,))


def deletion(token: int, clustering: bytes, timestamp_us: int, number: int = 1) -> Mutation:
    row = Row(clustering, None, Deletion(timestamp_us, 1))
    return Mutation(TABLE_ID, token, key_of(token), mutation_id(98, 1, number), timestamp_us, rows=(row,))


def read_one(token: int, **changes: Any) -> ReadCommand:
    command = ReadCommand(TABLE_ID, token - 1, token, key_of(token), ALL_ROWS, (), False, False, 100, 0, 10)
    return msgspec.structs.replace(command, **changes)


def read_range(left: int = TOKEN_MIN, right: int = TOKEN_MAX, **changes: Any) -> ReadCommand:
    command = ReadCommand(TABLE_ID, left, right, None, ALL_ROWS, (), False, False, 100, 0, 10)
    return msgspec.structs.replace(command, **changes)


def shown(result: ReadResult) -> list[tuple[int, bytes, bytes]]:
    """(token, clustering, value) of every row of an answer."""
    return [
        (partition.token, row.clustering, cell.value or b"")
        for partition in result.partitions
        for row in partition.rows
        for cell in row.cells
    ]
