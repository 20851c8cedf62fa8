"""ALTER KEYSPACE that moves data: as a request for a topology operation, followed for a while.

Invariant: an answer without a warning means that the keyspace has the replication; one with a warning, that
the request is in the log and goes on without the client.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from lockstep.metadata.operations import OperationKind
from lockstep.metadata.requests import Request, RequestState
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.changes import AlterKeyspace
from lockstep.schema.model import Replication
from lockstep.topology.replication_change import target_of, under_way
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import LockstepError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPLICATION_WAIT_MS

if TYPE_CHECKING:
    from lockstep.node.node import Node


class ReplicationChanges:
    def __init__(self, node: Node) -> None:
        self._node = node

    def target_of(self, change: AlterKeyspace) -> Replication | None:
        """The replication that needs an operation; None when the statement is an ordinary schema change."""
        return target_of(self._node.cluster, change)

    async def run(self, change: AlterKeyspace, target: Replication) -> tuple[int, str]:
        """(the newest epoch of the change, a warning or ""). Rejected when it was refused, failed or was
        cancelled."""
        node = self._node
        if change.durable_writes is not None:
            await node.submit(ChangeSchema(AlterKeyspace(change.keyspace, None, change.durable_writes)))
        known = under_way(node.cluster, change.keyspace, target)
        request_id = known.id if known is not None else await self._asked(change.keyspace, target)
        ended = await self._ended(request_id)
        if ended is None:
            return node.cluster.epoch, (
                f"The replication of keyspace {change.keyspace} is being changed by request {request_id}, "
                f"which goes on: `lockstep topology watch {request_id}` follows it"
            )
        if ended.state is not RequestState.DONE:
            why = f": {ended.outcome}" if ended.outcome else ""
            raise Rejected(
                f"{ended.title()} has {ended.state}{why}", cql_code=0x2300, keyspace=change.keyspace
            )
        return ended.ended_epoch, ""

    async def _asked(self, keyspace: str, target: Replication) -> int:
        node = self._node
        wanted = EnqueueRequest(
            OperationKind.REPLICATION,
            NodeId(0),
            actor=f"ALTER KEYSPACE, through node {node.node_id}",
            keyspace=keyspace,
            target=target,
        )
        try:
            epoch = await node.submit(wanted)
        except Rejected:
            # Another client may have asked for the same at the same time.
            other = under_way(node.cluster, keyspace, target)
            if other is None:
                raise
            return other.id
        for request in (*node.cluster.requests.live, *reversed(node.cluster.requests.ended)):
            if request.requested_epoch == epoch and request.keyspace == keyspace:
                return request.id
        raise LockstepError(f"the request of epoch {epoch} is not in the metadata of this node")

    async def _ended(self, request_id: int) -> Request | None:
        """The request once it has ended; None when it has not after REPLICATION_WAIT_MS."""
        try:
            async with asyncio.timeout(REPLICATION_WAIT_MS / 1000):
                while True:
                    cluster = self._node.cluster
                    request = cluster.requests.by_id[request_id]
                    if not request.is_live:
                        return request
                    await self._node.state.wait_for(cluster.epoch + 1)
        except TimeoutError:
            return None
