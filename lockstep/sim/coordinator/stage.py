"""The set of one case: a world with the real node n1, the scripted peers n2 to n5 and one CQL client.

Invariant: n1 starts from a data directory in which it is a normal member, with the log up to the epoch of the
case; time does not pass between two steps unless a step waits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import closing
from typing import Any

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.messages import QueryParameters
from lockstep.metadata.log.snapshot_file import entry_batches
from lockstep.node.configuration import (
    ClusterSection,
    Configuration,
    NetworkSection,
    NodeSection,
    TimeoutsSection,
)
from lockstep.node.log.journal import Journal
from lockstep.node.log.metadata_store import DEFAULT_RETENTION, MetadataStore
from lockstep.node.membership.identity import Identity
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.server.cql.cql_server import serve
from lockstep.sim.coordinator.history import CLUSTER_ID, JOINING, CaseHistory, host_id_of, host_of
from lockstep.sim.coordinator.peers import PORT, ScriptedPeer
from lockstep.sim.load.cql_client import CqlClient, CqlError
from lockstep.sim.runtime.disk import DiskSettings
from lockstep.sim.runtime.links import LinkSettings
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.storage.model import open_model_store
from lockstep.storage.store import STORE_DIRECTORY, Family
from lockstep.values.codec import encode
from lockstep.values.errors import LockstepError
from lockstep.values.ids import Consistency

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
            peer.knows = self._epoch
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
        store = MetadataStore(runtime, DEFAULT_RETENTION, lambda *_, **__: None)
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
