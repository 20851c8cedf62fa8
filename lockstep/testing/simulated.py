"""A cluster in this process, under virtual time: the product's nodes on the simulated runtime, and its
client: connections inside the simulation, one a node.

Owns: the world of one simulated cluster and what a test does to it.

Invariant: one seed and the same calls give the same run, event by event; time moves only inside calls, and
only there do nodes run. Drivers cannot connect: there is no socket, and `execute` is the way in. It runs on
the simulated runtime only, in the client's process; a broken connection is never used again.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Final

from lockstep.cql.wire import client as wire
from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import Shape, SimCluster
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.cql_client import CqlError as SimulatorsError
from lockstep.sim.runtime.process import POWER
from lockstep.sim.runtime.streams import WALL_START_US
from lockstep.sim.runtime.world import World
from lockstep.testing.conversation import Values, conversation
from lockstep.values.errors import (
    ConfigurationError,
    LockstepError,
    PeerTimeout,
    PeerUnreachable,
    PreconditionError,
)
from lockstep.values.ids import Consistency

_CQL_PORT = 9042
_CONNECT_MS = 5000
#: Longer than the nodes' own timeouts, so that their answers come first.
_SIMULATED_REQUEST_S = 20.0


class SimulatedSession:
    """`execute` at a node, or at the first that serves."""

    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._clients: dict[str, CqlClient] = {}
        self._prepared: dict[str, dict[str, wire.PreparedResult]] = {}

    async def execute(
        self,
        runtime: Runtime,
        text: str,
        values: Values = (),
        consistency: str | Consistency = "QUORUM",
        node: str = "",
    ) -> list[Any]:
        chosen = node or self._first()
        client = await self._client(runtime, chosen)
        talk = conversation(self._prepared.setdefault(chosen, {}), text, values, consistency)
        said = next(talk)
        while True:
            answer = await self._ask(client, chosen, *said)
            try:
                said = talk.send(answer)
            except StopIteration as done:
                rows: list[Any] = done.value
                return rows

    def _first(self) -> str:
        for name, process in self._cluster.processes.items():
            if self._cluster.ready(name) and not process.paused:
                return name
        raise PeerUnreachable("no node serves", hint="cluster.mend() starts them")

    async def _client(self, runtime: Runtime, node: str) -> CqlClient:
        client = self._clients.get(node)
        if client is None or client.closed:
            host = self._cluster.processes[node].host
            try:
                client = await CqlClient.connect(runtime, host, _CQL_PORT, _CONNECT_MS)
            except (OSError, TimeoutError) as error:
                raise PeerUnreachable(f"{node} does not answer: {error}") from error
            except SimulatorsError as error:
                raise PeerUnreachable(f"{node} does not serve: {error}") from error
            self._clients[node] = client
            self._prepared[node] = {}
        return client

    async def _ask(self, client: CqlClient, node: str, opcode: int, body: bytes) -> wire.Body:
        try:
            async with asyncio.timeout(_SIMULATED_REQUEST_S):
                return await client.request(opcode, body)
        except SimulatorsError as error:
            return error.body
        except (ConnectionError, TimeoutError) as error:
            client.close()
            raise PeerTimeout(f"{node} did not answer: {error or 'in time'}") from error


#: Most nodes: one process computes for all of them.
NODES_MAX: Final = 16
#: Nodes that start together; others join, as in a real cluster.
_FOUNDERS_MAX: Final = 3
#: Virtual seconds in which a healthy cluster starts or settles many times over.
_START_S: Final = 60.0
#: Of a long `advance` this much is run at its end; before it all clocks are moved, and nothing happens.
_RUN_S: Final = 3.0
#: What a request may take, in virtual seconds: longer than any timeout of a node.
_REQUEST_S: Final = 30.0


class SimulatedCluster:
    """Use as a context manager, or call `start` and `close`. Nodes are called n1, n2, ... and n1 coordinates
    unless it is down or a statement names another one."""

    def __init__(self, nodes: int = 3, *, dcs: int = 1, seed: int = 1) -> None:
        if not 1 <= nodes <= NODES_MAX:
            raise ConfigurationError(f"a simulated cluster has 1 to {NODES_MAX} nodes, not {nodes}")
        founders = min(nodes, _FOUNDERS_MAX)
        self.world = World(seed)
        self._sim = SimCluster(
            self.world, Shape(founders=founders, spares=nodes - founders, tokens=16, dcs=dcs)
        )
        self._names = list(self._sim.processes)
        self._client = self.world.process("client")
        self._session = SimulatedSession(self._sim)

    # ---- life

    def start(self) -> SimulatedCluster:
        """Found the cluster, let the other nodes join one by one, and wait until all serve."""
        self._client.start(_wait_for_ever)
        self._sim.start()
        self._until(self._all_ready, _START_S, "the nodes did not start")
        for name in list(self._sim.parked):
            self._sim.start_node(name)
            self._until(self._all_ready, _START_S, f"{name} did not join")
        self._until(self._all_seen, _START_S, "the nodes did not find each other")
        return self

    def close(self) -> None:
        self.world.close()

    def __enter__(self) -> SimulatedCluster:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- what there is

    @property
    def nodes(self) -> list[str]:
        """Names of the nodes, whether they run or not."""
        return list(self._names)

    @property
    def now(self) -> datetime.datetime:
        """What an undisturbed clock of this cluster shows, in UTC; 2026-01-01 at first."""
        moved_us = self._client.clock.wall_us() - WALL_START_US
        return datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(microseconds=moved_us)

    def ready(self, node: str) -> bool:
        """Whether the node serves clients."""
        return self._sim.ready(self._known(node))

    # ---- statements

    def execute(
        self,
        text: str,
        values: Values = (),
        *,
        consistency: str | Consistency = "QUORUM",
        node: str = "",
    ) -> list[Any]:
        """Run a statement with `node` as its coordinator; rows are named tuples, of all pages.

        CqlError is the node's answer; PeerTimeout and ConnectionError mean that the outcome is not known.
        """
        if node:
            self._known(node)

        def work(runtime: Runtime) -> Coroutine[Any, Any, list[Any]]:
            return self._session.execute(runtime, text, values, consistency, node)

        return self._call(work)

    def execute_all(self, statements: Sequence[tuple[str, Values]], **settings: Any) -> list[Any]:
        """Run statements at the same time; for each its rows, or the exception it ended with."""

        async def work(runtime: Runtime) -> list[Any]:
            asked = [self._session.execute(runtime, text, values, **settings) for text, values in statements]
            return list(await asyncio.gather(*asked, return_exceptions=True))

        return self._call(work)

    # ---- time

    def advance(self, seconds: float) -> None:
        """Let that much time pass everywhere. Of a long time only the last few seconds are run: before them,
        all clocks of the cluster are moved forward together, so that what expires does, and nobody is
        missed."""
        skipped_s = max(seconds - _RUN_S, 0.0)
        if skipped_s:
            for process in self.world.processes.values():
                process.jump_wall(skipped_s)
        self._run(seconds - skipped_s)

    def skew_clock(self, node: str, seconds: float) -> None:
        """Move one node's wall clock forward, or back."""
        self._process(node).jump_wall(seconds)

    def drift_clock(self, node: str, rate: float) -> None:
        """Let one node's clock run at `rate` seconds a second."""
        self._process(node).drift_clock(rate)

    # ---- faults

    def kill(self, node: str) -> None:
        """The process ends at once; what it gave to the system is still written."""
        self._process(node).crash()

    def cut_power(self, node: str) -> None:
        """The host goes dark: what was not synced is lost, and peers get no answer at all."""
        self._process(node).crash(POWER)

    def start_node(self, node: str) -> None:
        """Start it on its disk; returns when it serves."""
        self._known(node)
        self._sim.start_node(node)
        self._until(lambda: self._sim.ready(node), _START_S, f"{node} did not start")

    def pause(self, node: str) -> None:
        """It keeps its connections and answers nothing."""
        self._process(node).pause()

    def resume(self, node: str) -> None:
        self._process(node).resume()

    def partition(self, one: Sequence[str], other: Sequence[str], *, symmetric: bool = True) -> None:
        """Cut every path from nodes of `one` to nodes of `other`, and back; the client reaches all of
        them."""
        sides = [[self._process(name).host for name in side] for side in (one, other)]
        self.world.network.partition(sides[0], sides[1], symmetric=symmetric)

    def isolate(self, node: str) -> None:
        """Cut a node off from all other nodes."""
        self.partition([node], [name for name in self._names if name != node])

    def heal(self) -> None:
        """End every partition."""
        self.world.network.heal()

    def mend(self) -> None:
        """Undo every fault, and wait until all nodes serve. Clocks stay as they are."""
        self.heal()
        for name in self._names:
            self.resume(name)
            if not self._sim.processes[name].alive:
                self._sim.start_node(name)
        self._until(self._all_ready, _START_S, "the nodes did not come back")
        self._until(self._all_seen, _START_S, "the nodes did not find each other")

    def wait_until_seen_down(self, node: str) -> None:
        """Until all other serving nodes have noticed that it does not answer: from then on requests that
        need it are refused (Unavailable) instead of timing out."""
        self._known(node)
        others = [name for name in self._names if name != node and self._sim.ready(name)]
        self._until(
            lambda: not any(self._sees(name, node) for name in others), _START_S, f"nobody misses {node}"
        )

    def digest(self) -> str:
        """A hash of everything that happened so far: equal for equal seeds and calls."""
        self.world.trace.flush()
        return self.world.digest()

    # ---- parts

    def _known(self, node: str) -> str:
        if node not in self._names:
            raise ConfigurationError(f"there is no node {node}", hint=f"one of {', '.join(self._names)}")
        return node

    def _process(self, node: str) -> Any:
        return self._sim.processes[self._known(node)]

    def _all_ready(self) -> bool:
        return all(self._sim.ready(name) for name in self._sim.in_service())

    def _all_seen(self) -> bool:
        return all(self._sees(one, other) for one in self._names for other in self._names if one != other)

    def _sees(self, observer: str, node: str) -> bool:
        return self._sim.nodes[observer].membership.liveness.alive(self._sim.nodes[node].context.own_id())

    def _until(self, condition: Callable[[], bool], limit_s: float, complaint: str) -> None:
        self._run(limit_s, condition)
        if not condition():
            raise PeerTimeout(f"{complaint} within {limit_s:g} simulated seconds")

    def _call(self, work: Callable[[Runtime], Coroutine[Any, Any, list[Any]]]) -> list[Any]:
        if not self._client.alive:
            raise PreconditionError("the cluster has not been started", hint="use it in a with statement")
        task = self._client.submit(work)
        self._run(_REQUEST_S, task.done)
        if not task.done():
            task.cancel()
            self._run(1.0, task.done)
            raise PeerTimeout(f"no answer within {_REQUEST_S:g} simulated seconds")
        return task.result()

    def _run(self, seconds: float, done: Callable[[], bool] | None = None) -> None:
        if asyncio._get_running_loop() is not None:
            raise PreconditionError("a simulated cluster cannot be used inside an event loop of asyncio")
        self.world.run_for(seconds, done)
        if self.world.errors:
            first = self.world.errors[0]
            raise LockstepError(f"the simulated cluster failed: {first}") from first.error


async def _wait_for_ever(runtime: Runtime) -> None:
    await asyncio.Event().wait()
