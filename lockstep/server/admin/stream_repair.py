"""Streams of changes over HTTP: which generations there are, and making them fit the ring again.

Invariant: a wish becomes an entry of the log and nothing else; of the clock it takes this node's.
"""

from __future__ import annotations

from typing import Any, Final

from lockstep.documents.requests import StreamGeneration, Streams
from lockstep.metadata.cdc import Generation, current
from lockstep.node.services import NodeServices
from lockstep.server.admin.operations import Operation, get, later
from lockstep.topology.generations import RepairStreams

STREAMS_PATH: Final = "/v1/topology/streams"


class StreamRequests:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def _now_us(self) -> int:
        return self._node.context.runtime.clock.wall_us()

    async def repair(self) -> Streams:
        """Rejected where the streams fit, or a join makes some."""
        await self._node.log.submit(RepairStreams(self._now_us() // 1000))
        return self.shown()

    def shown(self) -> Streams:
        cluster = self._node.log.cluster
        present = current(cluster.generations, self._now_us())

        def told(one: Generation) -> StreamGeneration:
            return StreamGeneration(one.id, one.timestamp_ms, one.count, one.is_published, one is present)

        return Streams(epoch=cluster.epoch, generations=tuple(map(told, cluster.generations)))

    def operations(self) -> list[Operation]:
        """For the admin API."""

        async def shown(_request: Any, _: dict[str, str]) -> Streams:
            return self.shown()

        return [
            get(STREAMS_PATH, "Generations of streams of changes", later(shown)),
            Operation(
                "POST",
                STREAMS_PATH,
                "Make streams of changes fit the ring again",
                later(lambda *_: self.repair()),
                "The generations of streams",
            ),
        ]
