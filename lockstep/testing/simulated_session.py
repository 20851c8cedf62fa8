"""The client of a simulated cluster: connections inside the simulation, one a node.

Invariant: it runs on the simulated runtime only, in the client's process; a broken connection is never used
again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from lockstep.cql.wire import client as wire
from lockstep.runtime.ports import Runtime
from lockstep.sim.cluster import SimCluster
from lockstep.sim.load.cql_client import CqlClient
from lockstep.sim.load.cql_client import CqlError as SimulatorsError
from lockstep.testing.conversation import Values, conversation
from lockstep.values.errors import PeerTimeout, PeerUnreachable
from lockstep.values.ids import Consistency

_CQL_PORT = 9042
_CONNECT_MS = 5000
#: Longer than the nodes' own timeouts, so that their answers come first.
_REQUEST_S = 20.0


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
            async with asyncio.timeout(_REQUEST_S):
                return await client.request(opcode, body)
        except SimulatorsError as error:
            return error.body
        except (ConnectionError, TimeoutError) as error:
            client.close()
            raise PeerTimeout(f"{node} did not answer: {error or 'in time'}") from error
