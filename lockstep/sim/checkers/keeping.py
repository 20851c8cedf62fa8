"""What is looked at in each node: who takes rows, which hints it forgets, what it wiped, and what it left
with.

Invariant: a node is looked at from the moment on in which it has read its disk, in the very step that it
takes, by what disks certainly hold then.

Hints are gone only when their replica has the write, when another node keeps them, or with a mark. Not
judged: what was owed to a replica that is none any more, or whose group has changed since, for it may be
emptied by now; and nothing where deletions are purged. What a node leaves with is with somebody, or recorded
as lacking. Of a node that was ended before it said that it was done, only what it kept as the last stage
began; of one that was away in the last stage, nothing. Only replicas take rows, by what they themselves know
in the very step: a hint or a repair that was planned before its replica group changed leaves nothing on a
node that is no replica any more. REP-3 and TAB-1 on disks: who said that it wiped what is not its own holds
none of it as the stage ends; else a cancelled newcomer brings rows back that are deleted and purged
elsewhere. Only nodes that ended such work since the stage began are judged; one that was dead is excused, and
wipes before it becomes pending again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from lockstep.handoff.hint_store import (
    DroppedHints,
    Hint,
    Stored,
    all_hints,
    bounds_of,
    decode_hint,
    target_of,
)
from lockstep.internode import verbs
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.operations import Operation, Stage
from lockstep.node.node import Node
from lockstep.node.work.worker import gained_ranges, lost_ranges, table_ids
from lockstep.placement.placements import ReplicaGroup
from lockstep.replica.messages import WriteReply, WriteRequest
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.faults.leavers import attach_heir
from lockstep.topology.kind import stage_row
from lockstep.topology.kinds.decommission import Decommission
from lockstep.topology.stages import DELETING, Work
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation

#: Of the hints that one step forgets, so many are judged: to read disks takes long.
_JUDGED_MAX = 4


class OwedHints:
    """`disks`: what is durable by node, of those that have all that they should."""

    def __init__(self, cluster: SimCluster, disks: Callable[[], dict[NodeId, DurableContent]]) -> None:
        self._cluster = cluster
        self._disks = disks

    def attach(self, name: str, node: Node) -> None:
        """Look at all that a node's store forgets from now on."""
        store = node.data.hints.store
        delete: Callable[..., int] = store.delete

        def judged(hints: Sequence[Stored], marks: Sequence[DroppedHints] = ()) -> int:
            try:
                self.forgotten(name, node.log.cluster, hints, marks)
            except Violation as found:
                self._cluster.world.fail("monitor", name, str(found), found)
            return delete(hints, marks)

        patched: Any = store
        patched.delete = judged

    def forgotten(
        self,
        name: str,
        known: ClusterMetadata,
        hints: Sequence[Stored],
        marks: Sequence[DroppedHints],
    ) -> None:
        """HINT-1: judge what `name`, whose metadata is `known`, forgets."""
        left = [one for one in hints if known.table(one.hint.mutation.table_id) is not None]
        left = [one for one in left if not _is_marked(one, marks)]
        if not left or self._cluster.purges:
            return
        newest = self._cluster.newest
        disks = self._disks()
        for content in disks.values():
            content.refresh()
        own = self._cluster.node_id(name)
        for one in left[:_JUDGED_MAX]:
            target, _ = target_of(one.key)
            others = [content for node, content in disks.items() if node != own]
            if any(content.get(one.key) is not None for content in others):
                self._cluster.fact("a hint was handed on")
            elif _may_have_lost_it(newest, target, one.hint) or target not in disks:
                continue
            elif lacking := list(lacking_of(disks[target], one.hint.mutation)):
                raise Violation(
                    "HINT-1", f"{name} forgets a hint of node {target}, which lacks timestamps {lacking}"
                )
            else:
                self._cluster.fact("a hint was delivered")


def _is_marked(stored: Stored, marks: Sequence[DroppedHints]) -> bool:
    target, _ = target_of(stored.key)
    mutation = stored.hint.mutation
    return any(
        mark.node == target
        and mark.table_id == mutation.table_id
        and (mark.left < mutation.token <= mark.right or mark.left >= mark.right)
        for mark in marks
    )


def _may_have_lost_it(cluster: ClusterMetadata, target: NodeId, hint: Hint) -> bool:
    table = cluster.table(hint.mutation.table_id)
    if table is None:
        return True
    group = cluster.group_for(cluster.schema.group_of(table), hint.mutation.token)
    return target not in group.writes or group.epoch > hint.epoch


def lacking_of(content: DurableContent, mutation: Mutation) -> Iterator[int]:
    """Timestamps of the mutation above all that its place holds."""
    table, key = mutation.table_id, mutation.key
    places: list[tuple[bytes, int]] = []
    if mutation.deletion is not None:
        places.append((b"", mutation.deletion.timestamp_us))
    places += [(gone.start, gone.deletion.timestamp_us) for gone in mutation.range_deletions]
    for row in mutation.rows:
        stamps = [cell.timestamp_us for cell in row.cells]
        stamps += [part.timestamp_us for part in (row.liveness, row.deletion) if part is not None]
        places += [(row.clustering, max(stamps))] if stamps else []
    for clustering, timestamp_us in places:
        if content.state(table, key, clustering)[0] < timestamp_us:
            yield timestamp_us


#: What is told of those that come as their group changes.
_NAMES: Final[dict[int, str]] = {verbs.HINT: "a hint", verbs.READ_REPAIR: "a read repair"}

#: How late they come at most, where that is a fault: several stages.
_LATE_S: Final = 1.0


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

        # Requests write through what stands before the engine, which has its function.
        engine.apply = node.data.outlined.apply = judged
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
        moving = (known.transitions.holder_at(ring, token) for ring in known.placements.rings)
        if any(one.gained or one.lost for one in moving if one is not None):
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
    return known.group_for(known.schema.group_of(table), mutation.token)


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
        group = newest.group_for(newest.schema.group_of(table), mutation.token)
        is_same = target in group.writes and group.epoch <= hint.epoch
        for node in (target,) if is_same else group.writes:
            if node not in group.reads and not is_same:
                # Who came since is being filled, of those who have it or are recorded to lack it.
                self._cluster.fact("a leaver's hint is of one who comes")
                continue
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


_DONE = "work.done"


class Emptied:
    """`entered` and `left` are told of each stage. `done`: how often the process of a node ended work."""

    def __init__(
        self,
        content: Callable[[NodeId], DurableContent | None],
        done: Callable[[NodeId], int],
        fact: Callable[[str], None],
    ) -> None:
        self._content = content
        self._done = done
        self._fact = fact
        self._before: dict[tuple[int, Stage], Mapping[NodeId, int]] = {}

    def entered(self, cluster: ClusterMetadata, operation: Operation) -> None:
        if self._deletes(operation) is not None:
            moving = cluster.transitions.of(operation.id)
            nodes = {node: None for transition in moving for node in transition.union}
            self._before[operation.id, operation.stage] = {node: self._done(node) for node in nodes}

    def left(self, cluster: ClusterMetadata, operation: Operation) -> None:
        """Raises Violation. `cluster` is the value before the entry that left the stage."""
        work = self._deletes(operation)
        counts = self._before.pop((operation.id, operation.stage), {})
        if work is None:
            return
        ranges_of = gained_ranges if work is Work.DISCARD else lost_ranges
        dc_of = cluster.directory.dc_by_id.__getitem__
        for node, count in counts.items():
            content = self._content(node)
            if self._done(node) <= count or content is None:
                continue
            content.refresh()
            for group, ranges in ranges_of(cluster.transitions.of(operation.id), node, dc_of):
                tables = table_ids(cluster, group)
                for range_ in ranges:
                    if held := content.held(tables, range_):
                        raise Violation(
                            "REP-3",
                            f"node {node} ended the work of {operation.title()} in {operation.stage} and "
                            f"still holds {held} partitions of {range_}",
                        )
                self._fact(
                    "a newcomer was emptied" if work is Work.DISCARD else "a former replica was emptied"
                )

    @staticmethod
    def _deletes(operation: Operation) -> Work | None:
        work = stage_row(operation).work
        return work if work in DELETING else None
