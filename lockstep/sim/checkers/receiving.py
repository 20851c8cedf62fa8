"""Who takes rows: only replicas, by what they themselves know in the very step in which they take them.

Invariant: a hint or a repair that was planned before its replica group changed leaves nothing on a node that
is no replica any more; else it lay there, out of everybody's sight, until the node gets the range again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.node import Node
from lockstep.placement.placements import ReplicaGroup
from lockstep.replication import verbs
from lockstep.replication.messages import WriteReply, WriteRequest
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation

#: What is told of those that come as their group changes.
_NAMES: Final[dict[int, str]] = {verbs.HINT: "a hint", verbs.READ_REPAIR: "a read repair"}

#: How late they come at most, where that is a fault: several stages.
_LATE_S: Final = 0.3


class Receiving:
    def __init__(self, cluster: SimCluster) -> None:
        self._cluster = cluster
        self._draw = cluster.world.stream("late mending")
        self.judged = 0

    def attach(self, name: str, node: Node) -> None:
        """Look at all that a node takes from now on."""
        engine: Any = node.engine
        apply: Callable[..., int] = engine.apply

        def judged(mutation: Mutation, *others: Any, **named: Any) -> int:
            try:
                self.taken(name, NodeId(node.node_id), node.cluster, mutation)
            except Violation as found:
                self._cluster.world.fail("monitor", name, str(found), found)
            return apply(mutation, *others, **named)

        engine.apply = judged
        for verb in _NAMES:
            self._tell_of(node, verb)

    def _tell_of(self, node: Node, verb: int) -> None:
        def told(peer: Any, request: WriteRequest, respond: Any) -> None:
            world = self._cluster.world
            if world.now_ns < self._cluster.late_until_ns:
                world.count("fault.late_mending")
                asyncio.get_running_loop().call_later(
                    self._draw.random() * _LATE_S, came, peer, request, respond
                )
            else:
                came(peer, request, respond)

        def came(peer: Any, request: WriteRequest, respond: Any) -> None:
            self._came(_NAMES[verb], node.cluster, request)
            try:
                node.replica._receive_write(peer, request, respond)
            except LockstepError as error:
                respond(error)

        node.internode.register_fast(verb, WriteRequest, WriteReply, told)

    def _came(self, what: str, known: ClusterMetadata, request: WriteRequest) -> None:
        token, group = request.mutation.token, _group(known, request.mutation)
        transitions = (one for operation in known.operations for one in operation.transitions)
        if any(one.range.contains(token) and (one.gained or one.lost) for one in transitions):
            self._cluster.fact(f"{what} came while its group changed")
        if group is not None and group.epoch > request.epoch:
            self._cluster.fact(f"{what} was planned for a former group")

    def taken(self, name: str, own: NodeId, known: ClusterMetadata, mutation: Mutation) -> None:
        """OWN-1: judge what `name`, whose metadata is `known`, stores."""
        group = _group(known, mutation)
        if group is not None and own not in group.writes:
            raise Violation(
                "OWN-1",
                f"{name} takes a write of token {mutation.token} at epoch {known.epoch}, since epoch "
                f"{group.epoch} of nodes {list(group.writes)}",
            )
        self.judged += group is not None


def _group(known: ClusterMetadata, mutation: Mutation) -> ReplicaGroup | None:
    """None for what is beside tables, as ballots are."""
    table = known.table(mutation.table_id)
    if table is None:
        return None
    return known.group_for(known.schema.by_name[table.keyspace].replication, mutation.token)
