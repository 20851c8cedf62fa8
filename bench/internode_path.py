"""Cost of the path between nodes: request and reply pairs, and quorum writes without storage.

All nodes run in one process on loopback sockets, so CPU is the sum over all nodes. Sharing one loop makes
the ends take turns: with many requests in flight every socket write carries a full batch, which is the
best case; one in flight is the worst, nothing shares a tick. Neither includes storage or clients. Prints
one JSON object a line. Usage: python bench/internode_path.py [pairs] [writes]
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import sys
import tempfile
from typing import Any

import msgspec

from lockstep.coordination.context import CoordinationContext, Opinions
from lockstep.coordination.coordinator import Coordinator
from lockstep.coordination.writes import Writes
from lockstep.internode import verbs
from lockstep.internode.handshake import Hello, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.serving import Respond
from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.directory import DIRECTORY, Directory, NodeInfo, NodeState
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.placement.placements import PlacedRange, Placements, ReplicaGroup, ring_of_ranges
from lockstep.quorum.plans import PlanBook
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.replica.replica import ReplicaService
from lockstep.runtime.real import real_runtime, run
from lockstep.schema.model import Column, ColumnKind, KeyspaceHead, Replication, Table, keyspace_of, schema_of
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency, NodeId, mutation_id
from lockstep.values.rows import Cell, Liveness, Mutation, ReadCommand, ReadResult, Row
from lockstep.values.tokens import FULL_RING

IN_FLIGHT = (1, 64)
NODES = 3


class NullEngine:
    """Storage that costs nothing: what is measured is the path alone."""

    def __init__(self) -> None:
        self.applied = 0

    def apply(self, mutation: Mutation, *, first_epoch: int = 0) -> int:
        self.applied += 1
        return self.applied

    async def synced(self, sequence: int) -> None:
        return

    async def read(self, command: ReadCommand) -> ReadResult:
        return ReadResult(())


def free_port(host: str) -> int:
    with socket.socket() as listener:
        listener.bind((host, 0))
        return int(listener.getsockname()[1])


def metadata(addresses: list[tuple[str, int]]) -> ClusterMetadata:
    ids = tuple(NodeId(index + 1) for index in range(len(addresses)))
    nodes = tuple(
        NodeInfo(node, f"h{node}", host, port, 1, 2, "dc1", "r1", NodeState.NORMAL, (int(node),))
        for node, (host, port) in zip(ids, addresses, strict=True)
    )
    setting = Replication("SimpleStrategy", (("", len(ids)),))
    columns = (
        Column(1, "k", "blob", ColumnKind.PARTITION_KEY, 0),
        Column(2, "v", "blob", ColumnKind.REGULAR),
    )
    keyspace = keyspace_of(KeyspaceHead("ks", setting, epoch=1), [Table(1, "u", "ks", "t", columns, epoch=1)])
    ring = ring_of_ranges(setting, (PlacedRange(FULL_RING, ReplicaGroup(ids, ids, 1)),))
    return msgspec.structs.replace(
        empty_cluster().changed(
            DIRECTORY.set(Directory(nodes, len(ids) + 1)),
            SCHEMA.set(schema_of([keyspace], 2)),
            PLACEMENTS.set(Placements((ring,))),
        ),
        epoch=3,
    )


class BenchNode:
    def __init__(self, index: int, addresses: list[tuple[str, int]], root: str) -> None:
        cluster = metadata(addresses)
        host, port = addresses[index]
        node = index + 1
        self.address = (host, port)
        self.runtime = real_runtime(f"{root}/{node}")
        hello = Hello(1, "bench", "bench", (b"l",), f"h{node}", node, host, port)
        self.internode = Internode(
            self.runtime, lambda: hello, lambda: 3, self._epoch, lambda _: None, self._log
        )
        self.engine = NullEngine()
        self.replica = ReplicaService(
            self.runtime, self.internode, self.engine, lambda: cluster, self._catch_up, lambda: node
        )
        context = CoordinationContext(
            self.runtime,
            self.internode,
            self.replica,
            PlanBook(lambda: cluster, lambda: node),
            self._catch_up,
            lambda: node,
            lambda: mutation_id(node, 1, 1),
            Opinions(lambda _: True, lambda _: True),
        )
        self.coordinator = Coordinator(context, Writes(context))

    def _epoch(self, peer: PeerInfo, epoch: int) -> None:
        return

    def _log(self, event: str, **facts: Any) -> None:
        return

    async def _catch_up(self, epoch: int, source: tuple[str, int]) -> None:
        raise AssertionError("the metadata does not change here")


def upsert(number: int) -> Mutation:
    row = Row(b"", Liveness(number), None, (Cell(2, b"x" * 100, number),))
    return Mutation(1, number, b"%016d" % number, mutation_id(1, 1, number), number, rows=(row,))


class Pairs:
    """Keeps `in_flight` requests going until `total` were answered."""

    def __init__(self, source: BenchNode, target: BenchNode, total: int, in_flight: int) -> None:
        self._source = source
        self._target = target
        self._left = total
        self._sent = 0
        self._in_flight = in_flight
        self._total = total
        self._body = encode(WriteRequest(3, 1, upsert(1)))
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self) -> None:
        for _ in range(self._in_flight):
            self._one()

    def _one(self) -> None:
        if self._sent < self._total:
            self._sent += 1
            deadline_s = self._source.runtime.clock.monotonic_s() + 5
            self._source.internode.submit(
                self._target.address, verbs.RUN_WORK, self._body, deadline_s, self, None
            )

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        self._left -= 1
        if not self._left:
            self.done.set_result(None)
        self._one()

    def failed(self, context: Any, error: LockstepError) -> None:
        self.done.set_exception(error)


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


async def measure(name: str, in_flight: int, count: int, work: Any) -> None:
    clock = asyncio.get_running_loop().time
    began_s, began_cpu_s = clock(), cpu_s()
    await work
    wall_s, used_s = clock() - began_s, cpu_s() - began_cpu_s
    print(
        json.dumps(
            {
                "benchmark": name,
                "in_flight": in_flight,
                "count": count,
                "per_second": round(count / wall_s),
                "cpu_us_each": round(used_s / count * 1e6, 1),
            }
        )
    )


async def write_many(node: BenchNode, first: int, count: int) -> None:
    for number in range(first, first + count):
        await node.coordinator.write(upsert(number), Consistency.QUORUM, 2000)


async def bench_pairs(nodes: list[BenchNode], count: int, in_flight: int, served: list[int]) -> None:
    before = len(served)
    pairs = Pairs(nodes[0], nodes[1], count, in_flight)
    pairs.start()
    await measure("internode.pairs", in_flight, count, pairs.done)
    assert len(served) - before == count, "every pair was served once"


async def bench_writes(nodes: list[BenchNode], count: int, in_flight: int) -> None:
    each = count // in_flight
    before = sum(node.engine.applied for node in nodes)
    work = asyncio.gather(*(write_many(nodes[0], i * each, each) for i in range(in_flight)))
    await measure("internode.quorum_writes_without_storage", in_flight, each * in_flight, work)
    await nodes[0].coordinator.write(upsert(0), Consistency.ALL, 2000)
    applied = sum(node.engine.applied for node in nodes) - before
    assert applied == NODES * (each * in_flight + 1), "every replica applied every write"


async def main(pairs: int, writes: int) -> None:
    addresses = [(host, free_port(host)) for host in ("127.0.1.31", "127.0.1.32", "127.0.1.33")[:NODES]]
    with tempfile.TemporaryDirectory() as root:
        nodes = [BenchNode(index, addresses, root) for index in range(NODES)]

        served: list[int] = []

        def reply(peer: PeerInfo, request: WriteRequest, respond: Respond) -> None:
            served.append(0)
            respond(WriteReply(3))

        for node in nodes:
            node.internode.register_fast(verbs.RUN_WORK, WriteRequest, WriteReply, reply)
            await node.internode.start(*node.address)
        await write_many(nodes[0], 0, 100)
        for in_flight in IN_FLIGHT:
            await bench_pairs(nodes, pairs * in_flight // max(IN_FLIGHT), in_flight, served)
            await bench_writes(nodes, writes * in_flight // max(IN_FLIGHT), in_flight)
        for node in nodes:
            node.coordinator.stop()
            await node.internode.stop()
            await node.runtime.tasks.cancel_all()


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:3]]
    run(lambda: main(*(numbers + [200_000, 60_000][len(numbers) :])))
