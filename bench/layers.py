"""Where the CPU of one QUORUM write goes: each layer of the product run alone, without sockets.

Every layer is the product's own code on the message that the layer before it would hand over; what lies
behind a layer is replaced by something that does nothing. Figures are the best of many short rounds, so
that other work on the machine does not count. What the sum lacks of a measured request (`quorum_path`) is
the kernel, the event loop, threads and the storage library's own threads.
Usage: python bench/layers.py [rounds]
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from internode_path import metadata
from measuring import SCRATCH, save, table

from lockstep.coordination.context import CoordinationContext, Opinions
from lockstep.coordination.coordinator import Coordinator
from lockstep.coordination.writes import Writes
from lockstep.cql.wire import client, responses
from lockstep.cql.wire.constants import VERSION_4, Opcode
from lockstep.cql.wire.frames import EnvelopeReader, encode_envelope, encode_request
from lockstep.cql.wire.messages import Execute, QueryParameters, decode_request
from lockstep.internode import verbs
from lockstep.internode.frames import REPLY, REQUEST, SHARED, FrameReader, SharedReply, encode_frame
from lockstep.internode.handshake import PeerInfo
from lockstep.node.configuration import Configuration
from lockstep.quorum.plans import PlanBook
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.replica.replica import ReplicaService
from lockstep.runtime.real import real_runtime, run
from lockstep.server.auth.permits import Session
from lockstep.server.statements.execution import Executor
from lockstep.storage.engine import StorageEngine
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.values.codec import decoder, encode
from lockstep.values.ids import Consistency, mutation_id
from lockstep.values.rows import Mutation

OPERATIONS = 200
ROUNDS = 60
WRITE = "INSERT INTO ks.t (k, v) VALUES (?, ?)"
#: Writes that one sync of a busy node covers; measured under load.
WRITES_PER_SYNC = 20


def best_us(work: Callable[[], Any], rounds: int, before: Callable[[], Any] | None = None) -> float:
    """Microseconds of one of the OPERATIONS that `work` does, in the best round."""
    found = []
    for _ in range(rounds):
        if before is not None:
            before()
        began_s = time.perf_counter()
        work()
        found.append(time.perf_counter() - began_s)
    return min(found) / OPERATIONS * 1e6


class Silent:
    """An internode service that sends nothing and remembers who waits."""

    def __init__(self) -> None:
        self.waiting: list[tuple[Any, Any]] = []
        self.handlers: dict[int, Any] = {}

    def register_fast(
        self, verb: int, request: Any, reply: Any, handler: Any, *, shares: bool = False
    ) -> None:
        self.handlers[verb] = handler

    register = register_fast

    def submit_each(self, targets: Any, verb: int, body: bytes, deadline_s: float, waiter: Any) -> None:
        self.waiting.extend((waiter, target) for target in targets)


class Silence:
    """A replica here that takes a write and never answers."""

    def write(self, request: WriteRequest, answer: Any) -> None:
        return


def cql_layers(rounds: int) -> dict[str, float]:
    """Decoding a request, binding it to a mutation, encoding the answer."""
    cluster = metadata([("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)])
    planned: list[Mutation | None] = []

    runtime = real_runtime(str(SCRATCH / "layers"))
    node: Any = SimpleNamespace(
        runtime=runtime,
        cluster=cluster,
        node_id=1,
        configuration=Configuration(),
        new_mutation_id=lambda: mutation_id(1, 1, 1),
    )
    virtual: Any = SimpleNamespace(schema=type(cluster.schema)())
    absent: Any = None
    executor = Executor(node, virtual, absent, absent, None, absent)
    session = Session(VERSION_4)
    statement = executor.statements.prepare(WRITE, None)
    bodies = [
        client.execute(
            VERSION_4,
            statement.id,
            None,
            QueryParameters(Consistency.QUORUM, (b"%016d" % number, b"x" * 100), timestamp_us=number),
        )
        for number in range(OPERATIONS)
    ]
    data = b"".join(encode_request(VERSION_4, int(Opcode.EXECUTE), 1, body) for body in bodies)
    requests: list[Execute] = []

    def decode() -> None:
        for envelope in EnvelopeReader().feed(data):
            request = decode_request(VERSION_4, envelope.opcode, envelope.flags, envelope.body)
            requests.append(request)  # type: ignore[arg-type]

    def bind() -> None:
        for request in requests:
            planned.append(executor.plan_write(session, request))

    def answer() -> None:
        b"".join(
            [encode_envelope(VERSION_4, int(Opcode.RESULT), 1, responses.VOID) for _ in range(OPERATIONS)]
        )

    decoded_us = best_us(decode, rounds, requests.clear)
    return {
        "decode the CQL request": decoded_us,
        "bind values to a mutation": best_us(bind, rounds, planned.clear),
        "encode the CQL answer": best_us(answer, rounds),
    }


def mutations() -> list[Mutation]:
    from internode_path import upsert

    return [upsert(number) for number in range(OPERATIONS)]


def coordinator_layers(rounds: int) -> dict[str, float]:
    """Planning a write and encoding it once; counting two acknowledgements."""
    cluster = metadata([("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)])
    runtime = real_runtime(str(SCRATCH / "layers"))
    silent: Any = Silent()
    silence: Any = Silence()

    async def catch_up(epoch: int, source: Any) -> None:
        raise AssertionError("the metadata does not change here")

    context = CoordinationContext(
        runtime,
        silent,
        silence,
        PlanBook(lambda: cluster, lambda: 1),
        catch_up,
        lambda: 1,
        lambda: mutation_id(1, 1, 1),
        Opinions(lambda _: True, lambda _: True),
    )
    coordinator = Coordinator(context, Writes(context))
    writes = mutations()
    reply = WriteReply(3)

    def begin() -> None:
        for mutation in writes:
            coordinator.begin_write(mutation, Consistency.QUORUM, 60_000.0)

    def settle() -> None:
        for waiter, target in silent.waiting:
            waiter.replied(target, reply, 3)

    def ready() -> None:
        settle()
        silent.waiting.clear()

    def ready_to_settle() -> None:
        silent.waiting.clear()
        begin()

    begin_us = best_us(begin, rounds, ready)
    settle()
    settle_us = best_us(settle, rounds, ready_to_settle)
    coordinator.stop()
    return {"plan the write and encode it": begin_us, "count acknowledgements": settle_us}


def frame_layers(rounds: int) -> dict[str, float]:
    """One frame for both peers; what each of them does with it; the acknowledgement's way back."""
    bodies = [encode(WriteRequest(3, 1, mutation)) for mutation in mutations()]
    data = b"".join(encode_frame(verbs.WRITE, n + 1, 3, REQUEST, body) for n, body in enumerate(bodies))
    decode_body = decoder(WriteRequest).made()
    streams = list(range(1, WRITES_PER_SYNC + 1))
    shared = encode(SharedReply(encode(WriteReply(3)), streams))
    reply_frame = encode_frame(verbs.WRITE, 0, 3, REPLY | SHARED, shared)

    def send() -> None:
        b"".join(
            [encode_frame(verbs.WRITE, number + 1, 3, REQUEST, body) for number, body in enumerate(bodies)]
        )

    def receive() -> None:
        for envelope in FrameReader().feed(data):
            decode_body(envelope.body)

    def acknowledge() -> None:
        for _ in range(OPERATIONS // WRITES_PER_SYNC):
            encode_frame(
                verbs.WRITE, 0, 3, REPLY | SHARED, encode(SharedReply(encode(WriteReply(3)), streams))
            )
            FrameReader().feed(reply_frame)

    return {
        "frame the request": best_us(send, rounds),
        "check and decode the request": best_us(receive, rounds),
        "frame and check the acknowledgement": best_us(acknowledge, rounds),
    }


async def replica_layers(rounds: int) -> dict[str, float]:
    """Judging a write, staging it, giving it to the library; a sync."""
    directory = SCRATCH / "layers"
    runtime = real_runtime(str(directory))
    store = await open_rocks_store(str(directory / "store"), runtime.tasks)
    engine = StorageEngine(store, runtime)
    cluster = metadata([("127.0.0.1", 1), ("127.0.0.1", 2), ("127.0.0.1", 3)])
    silent: Any = Silent()

    async def catch_up(epoch: int, source: Any) -> None:
        raise AssertionError("the metadata does not change here")

    replica = ReplicaService(runtime, silent, engine, lambda: cluster, catch_up, lambda: 1)
    requests = [WriteRequest(3, 1, mutation) for mutation in mutations()]
    peer = PeerInfo(2, "h2", "127.0.0.1", 2, "dc1")
    judge = silent.handlers[verbs.WRITE]
    answers: list[Any] = []
    times: dict[str, list[float]] = {"judge": [], "answer": [], "write": [], "sync": []}
    for _ in range(rounds):
        began_s = time.perf_counter()
        for request in requests:
            judge(peer, request, answers.append)
        times["judge"].append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        store.get(b"\x10")
        times["write"].append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        while replica.unfinished():  # noqa: ASYNC110
            await asyncio.sleep(0)
        times["sync"].append(time.perf_counter() - began_s)
        answers.clear()
    await engine.close()
    return {
        "judge and stage the write": min(times["judge"]) / OPERATIONS * 1e6,
        "write what is staged": min(times["write"]) / OPERATIONS * 1e6,
        "sync": min(times["sync"]) * 1e6,
    }


async def measure(rounds: int = ROUNDS) -> dict[str, Any]:
    """Microseconds a call of each layer, and how often one write at QUORUM of three calls it."""
    shutil.rmtree(SCRATCH / "layers", ignore_errors=True)
    found = {
        **cql_layers(rounds),
        **coordinator_layers(rounds),
        **frame_layers(rounds),
        **await replica_layers(rounds),
    }
    shutil.rmtree(SCRATCH / "layers", ignore_errors=True)
    calls: dict[str, float] = dict.fromkeys(found, 1.0)
    calls |= {"check and decode the request": 2, "frame and check the acknowledgement": 2}
    calls |= {"judge and stage the write": 3, "write what is staged": 3, "sync": 0}
    order = (
        "decode the CQL request",
        "bind values to a mutation",
        "plan the write and encode it",
        "frame the request",
        "check and decode the request",
        "judge and stage the write",
        "write what is staged",
        "frame and check the acknowledgement",
        "count acknowledgements",
        "encode the CQL answer",
        "sync",
    )
    layers = [
        {"layer": name, "us": found[name], "calls": calls[name], "total_us": found[name] * calls[name]}
        for name in order
    ]
    return {"layers": layers, "sum_us": sum(layer["total_us"] for layer in layers)}


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = [["layer", "us", "calls", "us a write"]]
    rows.extend([one["layer"], one["us"], one["calls"], one["total_us"]] for one in figures["layers"])
    rows.append(["all layers", "", "", figures["sum_us"]])
    return rows


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    figures = run(lambda: measure(rounds))
    save("layers", figures)
    print(table("One QUORUM write, without kernel, loop and threads", rows_of(figures)))
    sync_us = figures["layers"][-1]["us"]
    print(
        f"A sync of {OPERATIONS} writes takes {sync_us:,.0f} us of waiting, during which other work goes on."
    )


if __name__ == "__main__":
    main()
