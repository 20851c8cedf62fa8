"""The set of one case: a world with the real node n1, the scripted peers n2 to n5 and one CQL client.

Peers are real internode endpoints. What keeps the real node content is answered at once: pings, and questions
about hashes, epochs and members. Invariant: a WRITE, READ or REPAIR that arrives waits until a step takes it;
a fetch of the log waits until the peer serves it. A peer's epoch is what the case says that it knows. n1
starts as a normal member, with the log up to the case's epoch; time does not pass between two steps unless
one waits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.internode import verbs
from lockstep.internode.handshake import PROTOCOL_VERSION, Address, Hello, PeerInfo
from lockstep.internode.internode import Internode
from lockstep.internode.serving import Respond
from lockstep.metadata.log.snapshot_file import entry_batches
from lockstep.node.configuration import (
    ClusterSection,
    Configuration,
    NetworkSection,
    NodeSection,
    TimeoutsSection,
)
from lockstep.node.log.journal import Journal
from lockstep.node.log.messages import (
    Announce,
    AskMembers,
    EpochQuery,
    EpochReply,
    FetchLog,
    HashAt,
    HashReply,
    KnownMember,
    LogEntries,
    MemberList,
    Ping,
)
from lockstep.node.log.metadata_store import DEFAULT_RETENTION, MetadataStore
from lockstep.node.membership.identity import Identity
from lockstep.node.node import Node
from lockstep.replica.messages import ReadReply, ReadRequest, WriteReply, WriteRequest
from lockstep.runtime.ports import Runtime
from lockstep.server.cql.cql_server import serve
from lockstep.sim.coordinator.history import CLUSTER_ID, JOINING, CaseHistory, host_id_of, host_of
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.sim.runtime.disk import DiskSettings
from lockstep.sim.runtime.process import Process
from lockstep.sim.runtime.transport import LinkSettings
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.storage.model import open_model_store
from lockstep.storage.store import STORE_DIRECTORY, Family
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

#: Node 2 is the only voter of the metadata.
VOTER = 2
PORT = 7000
#: What a scripted coordinator waits for an answer.
_PATIENCE_S = 20.0


class Heard:
    """Hears the answer to what a scripted coordinator sent."""

    def __init__(self, tell: Callable[[Any], None]) -> None:
        self._tell = tell

    def replied(self, context: Any, reply: Any, sender_epoch: int) -> None:
        self._tell(reply)

    def failed(self, context: Any, error: LockstepError) -> None:
        self._tell(error)


class ScriptedPeer:
    """`came` is told the words of every request of the request path, in the order of arrival."""

    def __init__(
        self, number: int, process: Process, history: CaseHistory, came: Callable[[int, int, Any], None]
    ) -> None:
        self.number = number
        self.process = process
        #: The epoch it says it is at.
        self.epoch = history.base_epoch
        self.serves_log = False
        self.fetches = 0
        #: (verb, request, respond) not yet named by a step.
        self.arrived: deque[tuple[int, Any, Respond]] = deque()
        #: (request, respond) named by a step and not yet answered.
        self.named: deque[tuple[Any, Respond]] = deque()
        #: Answers to what it sent as a coordinator.
        self.answers: deque[Any] = deque()
        self._history = history
        self._came = came
        self._held: list[tuple[FetchLog, Respond]] = []
        self._internode: Internode | None = None

    async def main(self, runtime: Runtime) -> None:
        """Serve until the process ends."""
        internode = self._internode = Internode(runtime, self._hello, self, lambda hello: None, _nothing)
        internode.register_fast(verbs.WRITE, WriteRequest, WriteReply, self._taker(verbs.WRITE))
        internode.register_fast(verbs.READ_REPAIR, WriteRequest, WriteReply, self._taker(verbs.READ_REPAIR))
        internode.register_fast(verbs.READ, ReadRequest, ReadReply, self._taker(verbs.READ))
        internode.register_fast(verbs.PING, Ping, Ping, self._ping)
        internode.register_fast(verbs.ANNOUNCE, Announce, Announce, _nothing)
        internode.register_fast(verbs.FETCH_LOG, FetchLog, LogEntries, self._fetch)
        internode.register_fast(verbs.HASH_AT, HashAt, HashReply, self._hash)
        internode.register_fast(verbs.EPOCH_QUERY, EpochQuery, EpochReply, self._query)
        internode.register_fast(verbs.MEMBERS, AskMembers, MemberList, self._members)
        await internode.start(host_of(self.number), PORT)
        await asyncio.Event().wait()

    # -- what steps do, between two callbacks of the world ---------------------------------------------

    def answer(self, reply: Any) -> None:
        """Answer the oldest named request."""
        assert self.named, f"n{self.number} has nothing to answer"
        _, respond = self.named.popleft()
        self._later(respond, reply)

    def forget(self) -> None:
        """Never answer the oldest named request."""
        assert self.named, f"n{self.number} has nothing to be silent about"
        self.named.popleft()

    def serve_log(self, serves: bool) -> None:
        self.serves_log = serves
        if serves:
            held, self._held = self._held, []
            for request, respond in held:
                self._later(respond, self._entries(request))

    def announce(self, address: Address) -> None:
        self._later(self._announce, address)

    def send(self, address: Address, verb: int, request: Any) -> None:
        """Ask as a coordinator; the answer is in `answers`."""
        self._later(self._submit, address, verb, request)

    def _later(self, act: Callable[..., None], *facts: Any) -> None:
        async def work(_runtime: Runtime) -> None:
            act(*facts)

        self.process.submit(work)

    # -- what it does on its own loop ------------------------------------------------------------------

    def _announce(self, address: Address) -> None:
        assert self._internode is not None, "peers are started first"
        value = self._history.values[self.epoch]
        self._internode.send(address, verbs.ANNOUNCE, Announce(value.epoch, value.hash))

    def _submit(self, address: Address, verb: int, request: Any) -> None:
        assert self._internode is not None, "peers are started first"
        deadline_s = self._internode.runtime.clock.monotonic_s() + _PATIENCE_S
        heard = Heard(self.answers.append)
        self._internode.submit(address, verb, encode(request), deadline_s, heard, None)

    def _taker(self, verb: int) -> Callable[[PeerInfo, Any, Respond], None]:
        def take(_peer: PeerInfo, request: Any, respond: Respond) -> None:
            self.arrived.append((verb, request, respond))
            self._came(self.number, verb, request)

        return take

    def _hello(self) -> Hello:
        return Hello(
            PROTOCOL_VERSION, CLUSTER_ID, "lockstep", (CLUSTER_ID.encode(),), host_id_of(self.number),
            self.number, host_of(self.number), PORT,
        )  # fmt: skip

    def _ping(self, _peer: PeerInfo, _ping: Ping, respond: Respond) -> None:
        respond(Ping(1, self.number == VOTER, self.number))

    def _fetch(self, _peer: PeerInfo, request: FetchLog, respond: Respond) -> None:
        self.fetches += 1
        if self.serves_log:
            respond(self._entries(request))
        else:
            self._held.append((request, respond))

    def _entries(self, request: FetchLog) -> LogEntries:
        return LogEntries(self.epoch, tuple(self._history.entries[request.after : self.epoch]))

    def _hash(self, _peer: PeerInfo, question: HashAt, respond: Respond) -> None:
        known = question.epoch <= self.epoch
        value = self._history.values[self.epoch]
        respond(
            HashReply(self._history.values[question.epoch].hash if known else b"", 1, value.epoch, value.hash)
        )

    def _query(self, _peer: PeerInfo, _query: EpochQuery, respond: Respond) -> None:
        respond(EpochReply(self.epoch, self.number))

    def _members(self, _peer: PeerInfo, _question: AskMembers, respond: Respond) -> None:
        nodes = self._history.values[self.epoch].directory.nodes
        members = tuple(
            KnownMember(node.id, node.host_id, node.address, node.internode_port, node.id == VOTER)
            for node in nodes
        )
        respond(MemberList(CLUSTER_ID, self.epoch, members))


def _nothing(*_facts: Any, **_more: Any) -> None:
    """Peers keep no opinion and write no log."""


_CQL_PORT = 9042
_VERSION = 4
#: Every packet takes as long, so that a case reads the same at every run.
_LATENCY_MS = 0.5
_START_S = 20.0
_PEERS = tuple(range(2, JOINING + 1))
#: Without faults a sync is this fast.
SYNC_MS = 1.0


class Request:
    """One request of the client: `said` is its end in the words of the transcripts, None while it runs."""

    def __init__(self) -> None:
        self.said: str | None = None


class Stage:
    """`messages` lists (virtual ms since the curtain rose, who, words) of everything that was seen."""

    def __init__(self, history: CaseHistory, epoch: int, timeout_ms: int) -> None:
        settings = WorldSettings(
            shuffle=0.0,
            timer_jitter_us=0,
            stop_on_error=True,
            links=LinkSettings(low_ms=_LATENCY_MS, high_ms=_LATENCY_MS, fragment=0.0, coalesce=0.0),
        )
        self.world = World(1, settings)
        self.history = history
        self.timeout_ms = timeout_ms
        self.node: Node | None = None
        self.arrivals: list[tuple[int, int, Any]] = []
        self.process = self.world.process("n1", host_of(1))
        self.process.expected_errors = (LockstepError,)
        self.set_sync_ms(SYNC_MS)
        self.client = self.world.process("client", "127.0.0.100")
        self.peers = {
            number: ScriptedPeer(
                number, self.world.process(f"n{number}", host_of(number)), history, self._came
            )
            for number in _PEERS
        }
        self._epoch = epoch
        self._connection: CqlClient | None = None
        self._prepared: dict[str, bytes] = {}
        self._began_ns = 0

    def close(self) -> None:
        self.world.close()

    # -- before the first step -------------------------------------------------------------------------

    def open(self) -> None:
        """Everything is up, n1 thinks all its peers alive, and the client is connected."""
        self.process.start(self._prepare)
        self._until(lambda: not self.process.alive, "the data directory is prepared")
        for peer in self.peers.values():
            peer.epoch = self._epoch
            peer.process.start(peer.main)
        self.process.start(self._serve)
        self.client.start(self._client)
        self._until(self._is_ready, "n1 is ready")
        self.world.run_for(0.01)
        self._began_ns = self.world.now_ns

    def _is_ready(self) -> bool:
        node = self.node
        if node is None or not node.ready or self._connection is None:
            return False
        present = [info.id for info in node.log.cluster.directory.nodes if info.id in self.peers]
        return all(node.membership.liveness.alive(number) for number in present)

    async def _prepare(self, runtime: Runtime) -> None:
        await Journal(runtime.disk, "identity").append(encode(Identity(host_id_of(1), CLUSTER_ID, 1)))
        store = MetadataStore(runtime, DEFAULT_RETENTION, lambda *_, **__: None, self.history.registry.parts)
        store.load()
        for batch in entry_batches(self.history.entries[: self._epoch]):
            await store.append(batch)
        with closing(await _open_store(runtime)) as kept:
            # The first sync of a log takes longer than others.
            kept.write([("put", Family.LOCAL.key(b"prepared"), b"")])
            await kept.sync()

    async def _serve(self, runtime: Runtime) -> None:
        timeout = self.timeout_ms
        configuration = Configuration(
            node=NodeSection(name="n1", data_directory="."),
            cluster=ClusterSection(seeds=(f"{host_of(2)}:{PORT}",)),
            network=NetworkSection(address=host_of(1)),
            timeouts=TimeoutsSection(write_ms=timeout, read_ms=timeout, range_read_ms=timeout),
        )
        node = Node(runtime, configuration, _open_store, lambda *_, **__: None)
        await node.start()
        await serve(node.services, runtime)
        self.node = node
        assert node.broken is not None, "a node that started can break"
        raise await node.broken

    async def _client(self, runtime: Runtime) -> None:
        while self._connection is None:
            try:
                self._connection = await CqlClient.connect(runtime, host_of(1), _CQL_PORT, 1000)
            except OSError:
                await asyncio.sleep(0.02)
        await asyncio.Event().wait()

    # -- the client ------------------------------------------------------------------------------------

    def ask(self, text: str, level: Consistency, *, execute: bool = False, page_rows: int = 0) -> Request:
        """Begin a request; with `page_rows` all pages are asked for, one after another."""
        request = Request()

        async def work(_runtime: Runtime) -> None:
            try:
                request.said = await self._asked(text, level, execute, page_rows)
            except CqlError as error:
                request.said = f"error {error.code:#06x} {error.args[0].partition(': ')[2]}"
            except ConnectionError as error:
                request.said = f"lost {error}"

        self.client.submit(work)
        return request

    def prepare(self, text: str) -> Request:
        request = Request()

        async def work(_runtime: Runtime) -> None:
            assert self._connection is not None, "the client is connected"
            self._prepared[text] = await self._connection.prepare(text)
            request.said = "ok"

        self.client.submit(work)
        return request

    async def _asked(self, text: str, level: Consistency, execute: bool, page_rows: int) -> str:
        connection = self._connection
        assert connection is not None, "the client is connected"
        rows: list[str] = []
        state: bytes | None = None
        while True:
            parameters = QueryParameters(consistency=level, page_size=page_rows or None, paging_state=state)
            if execute:
                body = wire.execute(_VERSION, self._prepared[text], None, parameters)
                answer = await connection.request(Opcode.EXECUTE, body)
            else:
                answer = await connection.request(Opcode.QUERY, wire.query(_VERSION, text, parameters))
            if not isinstance(answer, wire.RowsResult):
                return "ok"
            rows.extend(_row(answer.metadata, row) for row in answer.rows)
            state = answer.metadata.paging_state
            if state is None:
                return f"rows {', '.join(rows)}" if rows else "no rows"

    # -- what steps do ---------------------------------------------------------------------------------

    def set_sync_ms(self, sync_ms: float) -> None:
        self.process.disk.settings = DiskSettings(sync_low_s=sync_ms / 1000, sync_high_s=sync_ms / 1000)

    def wait(self, done: Callable[[], bool], limit_ms: float) -> bool:
        """Let time pass until `done`, at most so long; whether it is."""
        self.world.run_for(limit_ms / 1000, done)
        self.world.check()
        return done()

    def now_ms(self) -> float:
        return (self.world.now_ns - self._began_ns) / 1e6

    def reached(self) -> dict[str, int]:
        """Labels of the probes that n1 passed, and how often."""
        counts = self.world.probes.process_counts
        return {label: count for (process, label), count in counts.items() if process == "n1"}

    def _until(self, done: Callable[[], bool], what: str) -> None:
        assert self.wait(done, _START_S * 1000), f"{what}: not within {_START_S} s"

    def _came(self, number: int, verb: int, request: Any) -> None:
        self.arrivals.append((number, verb, request))


def _open_store(runtime: Runtime) -> Coroutine[Any, Any, Any]:
    return open_model_store(runtime.disk, STORE_DIRECTORY)


def _row(metadata: wire.Metadata, row: wire.Row) -> str:
    """Its values by the types that the columns of these tables have: k and v text, c int."""
    shown = []
    for spec, value in zip(metadata.columns, row, strict=True):
        if value is None:
            shown.append("null")
        else:
            shown.append(
                str(int.from_bytes(value, "big", signed=True)) if spec.name == "c" else value.decode()
            )
    return " ".join(shown)
