"""What is looked at in each node: who takes rows, which hints it forgets, and what it left with.

Invariant: a node is looked at from the moment on in which it has read its disk.

What a node left with: each hint that it kept as it left is with somebody, or recorded as lacking.

Invariant: judged as its process is stopped for good, by what disks certainly hold then. Of a node that was
ended before it said that it was done, only what it kept as the last stage began; of one that was away in the
last stage, nothing.

Who takes rows: only replicas, by what they themselves know in the very step in which they take them.

Invariant: a hint or a repair that was planned before its replica group changed leaves nothing on a node that
is no replica any more; else it lay there, out of everybody's sight, until the node gets the range again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from lockstep.handoff.hint_records import Hint, all_hints, bounds_of, decode_hint, target_of
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.operations import Stage
from lockstep.node.node import Node
from lockstep.placement.placements import ReplicaGroup
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.sim.checkers.owed import OwedHints, lacking_of
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults.leavers import attach_heir
from lockstep.topology.kinds.decommission import Decommission
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
        engine: Any = node.data.engine
        apply: Callable[..., int] = engine.apply

        def judged(mutation: Mutation, *others: Any, **named: Any) -> int:
            try:
                self.taken(name, NodeId(node.context.own_id()), node.log.cluster, mutation)
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
            self._came(_NAMES[verb], node.log.cluster, request)
            try:
                node.data.replica._receive_write(peer, request, respond)
            except LockstepError as error:
                respond(error)

        node.context.internode.register_fast(verb, WriteRequest, WriteReply, told)

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


class _Leaving:
    """`kept`: keys of its hints when the last stage began; `done`: pieces of work it had done by then."""

    def __init__(self, kept: frozenset[bytes], done: int, epoch: int) -> None:
        self.kept = kept
        self.done = done
        self.epoch = epoch


class LeftHints:
    """`disks`: what is durable by node, of those that have all that they should. `content(name)`: of one."""

    def __init__(
        self,
        cluster: SimCluster,
        disks: Callable[[], dict[NodeId, DurableContent]],
        content: Callable[[str], DurableContent],
        work_done: Callable[[NodeId], int],
    ) -> None:
        self._cluster = cluster
        self._disks = disks
        self._content = content
        self._work_done = work_done
        self._loaded: dict[str, Node] = {}
        self._leaving: dict[NodeId, _Leaving] = {}
        #: Every line that was ever there.
        self._recorded: dict[Degraded, None] = {}

    def loaded(self, name: str, node: Node) -> None:
        """Told each node that has read its disk."""
        self._loaded[name] = node

    def applied(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """Told each new epoch."""
        if before.degraded is not after.degraded:
            self._recorded.update(dict.fromkeys(after.degraded))
        for operation in after.operations:
            if not isinstance(operation.body, Decommission) or operation.node in self._leaving:
                continue
            name = self._cluster.name_of(operation.node)
            if operation.stage is Stage.CLEANUP and name:
                done = self._work_done(operation.node)
                epoch = operation.history[0][1]
                self._leaving[operation.node] = _Leaving(frozenset(self._kept(name)), done, epoch)

    def is_recorded(self, token: int) -> bool:
        """Whether a range with this token was ever recorded as lacking writes."""
        return any(line.range.contains(token) for line in self._recorded)

    def _kept(self, name: str) -> dict[bytes, bytes]:
        content = self._content(name)
        content.refresh()
        return content.records(*all_hints())

    def left(self, name: str, node: NodeId) -> None:
        """HINT-2: judge what a node that has left still keeps, as it is stopped."""
        leaving, process = self._leaving.pop(node, None), self._loaded.get(name)
        if leaving is None or process is not self._cluster.nodes.get(name) or self._cluster.purges:
            return
        assert process is not None, "a node is loaded before it leaves"
        has_ended = process.broken is not None and process.broken.done() and process.context.has_left
        if not has_ended and self._work_done(node) == leaving.done:
            return
        disks = {other: one for other, one in self._disks().items() if other != node}
        for content in disks.values():
            content.refresh()
        for key, value in self._kept(name).items():
            # What it forgot was judged as it did.
            known = process.data.hints.store.page(target_of(key)[0])
            if (has_ended or key in leaving.kept) and any(one.key == key for one in known):
                self._judge(name, leaving, key, decode_hint(key, value), disks)

    def _judge(
        self,
        name: str,
        leaving: _Leaving,
        key: bytes,
        hint: Hint,
        disks: dict[NodeId, DurableContent],
    ) -> None:
        newest, (target, _), mutation = self._cluster.newest, target_of(key), hint.mutation
        table = newest.table(mutation.table_id)
        if table is None or any(content.get(key) is not None for content in disks.values()):
            return
        replication = newest.schema.by_name[table.keyspace].replication
        group = newest.group_for(replication, mutation.token)
        is_same = target in group.writes and group.epoch <= hint.epoch
        for node in (target,) if is_same else group.writes:
            self._cluster.fact("a leaver's hint was judged")
            if any(
                line.range.contains(mutation.token)
                and line.is_about(table.keyspace)
                and node in line.missing
                and line.since_epoch >= leaving.epoch
                for line in self._recorded
            ):
                self._cluster.fact("a leaver's hint was recorded")
            elif node in disks and list(lacking_of(disks[node], mutation)):
                if _is_kept_for(node, mutation, disks):
                    self._cluster.fact("a leaver's hint was left anew")
                    continue
                raise Violation(
                    "HINT-2",
                    f"{name} has left with a hint of node {target}; node {node} lacks its write, "
                    "and nothing says so",
                )


def _is_kept_for(node: NodeId, mutation: Mutation, disks: dict[NodeId, DurableContent]) -> bool:
    """Whether somebody keeps a hint of the mutation for a node: who takes a hint over plans it anew."""
    lower, upper = bounds_of(node)
    return any(
        decode_hint(key, value).mutation == mutation
        for content in disks.values()
        for key, value in content.records(lower, upper).items()
    )


class Keeping:
    """Arguments as of LeftHints."""

    def __init__(
        self,
        cluster: SimCluster,
        disks: Callable[[], dict[NodeId, DurableContent]],
        content: Callable[[str], DurableContent],
        work_done: Callable[[NodeId], int],
    ) -> None:
        self._cluster = cluster
        self._owed = OwedHints(cluster, disks)
        self._receiving = Receiving(cluster)
        self.left = LeftHints(cluster, disks, content, work_done)
        cluster.on_load = self._loaded
        cluster.on_leave = self.left.left

    def _loaded(self, name: str, node: Node) -> None:
        attach_heir(self._cluster, node)
        self._owed.attach(name, node)
        self._receiving.attach(name, node)
        self.left.loaded(name, node)
