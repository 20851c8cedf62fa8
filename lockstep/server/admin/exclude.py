"""The exclude list for the admin API: who is shut out, and the wishes to shut nodes out or take them back.

Invariant: a node is taken back only after it has said itself that it applied the entry that shut it out.
"""

from __future__ import annotations

from typing import Any

import msgspec

from lockstep.internode import verbs
from lockstep.metadata.excluded import ExcludeNodes, IncludeNodes
from lockstep.node.log.messages import EpochQuery, EpochReply
from lockstep.node.services import NodeServices
from lockstep.server.reports.documents import exclusions
from lockstep.server.statements.plan_bases import Base, base_of, refuse_moved
from lockstep.values.errors import ConfigurationError, PeerError, Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import ADMIN_FORWARD_TIMEOUT_MS

Document = dict[str, Any]

PATH = "/v1/excluded"
BODY = {
    "type": "object",
    "properties": {
        "nodes": {"type": "array", "items": {"type": "integer"}},
        "undo": {"type": "boolean"},
        "reason": {"type": "string"},
        "dry_run": {"type": "boolean"},
        "base": {"type": "object", "description": "Refuse unless this of a plan still holds"},
    },
    "required": ["nodes"],
}


class _Wanted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: tuple[int, ...]
    undo: bool = False
    reason: str = ""
    dry_run: bool = False
    base: Base | None = None


class ExcludeList:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def all(self) -> Document:
        cluster = self._node.log.cluster
        return {
            "schema": "excluded/1",
            "epoch": cluster.epoch,
            "excluded": exclusions(cluster),
        }

    async def change(self, body: Any) -> Document:
        """Shut nodes out, or take them back. Rejected or ConfigurationError."""
        try:
            wanted = msgspec.convert(body, _Wanted)
        except msgspec.ValidationError as error:
            raise ConfigurationError(f"not a request: {error}") from error
        if wanted.base is not None:
            await refuse_moved(self._node, wanted.base)
        nodes = tuple(NodeId(node) for node in wanted.nodes)
        entry: ExcludeNodes | IncludeNodes
        if wanted.undo:
            entry = IncludeNodes(nodes, tuple([await self._reached(node) for node in nodes]))
        else:
            entry = ExcludeNodes(nodes, wanted.reason)
        if wanted.dry_run:
            cluster = self._node.log.cluster
            after = entry.apply(cluster, cluster.epoch + 1)
            listed = exclusions(after)
            base = msgspec.to_builtins(base_of(cluster))
            return {
                "schema": "excluded/1",
                "epoch": cluster.epoch,
                "dry_run": True,
                "excluded": listed,
                "base": base,
            }
        await self._node.log.submit(entry)
        return self.all()

    async def _reached(self, node: NodeId) -> int:
        """The epoch that the node says it has applied, once it has the one that shut it out."""
        cluster = self._node.log.cluster
        exclusion, info = cluster.excluded_by_node.get(node), cluster.node(node)
        if exclusion is None or info is None:
            raise Rejected(f"node {node} is not excluded")
        if node == self._node.context.own_id():
            return cluster.epoch
        try:
            reply: EpochReply = await self._node.context.internode.request(
                (info.address, info.internode_port),
                verbs.EPOCH_QUERY,
                EpochQuery(exclusion.epoch),
                ADMIN_FORWARD_TIMEOUT_MS,
            )
        except PeerError as error:
            heard = self._node.work.topology.acknowledged(node)
            if heard >= exclusion.epoch:
                # It stands elsewhere now, and may not have that written down before it is taken back.
                return heard
            raise Rejected(
                f"node {node} does not say what it has applied: {error.message}",
                hint="start it and let it catch up first",
            ) from error
        if reply.node != node:
            who = f"node {reply.node}" if reply.node else "a node without an id"
            raise Rejected(f"{who} answers at the address of node {node}")
        return reply.epoch
