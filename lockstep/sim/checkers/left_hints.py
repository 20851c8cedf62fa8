"""What a node left with: each hint that it kept as it left is with somebody, or recorded as lacking.

Invariant: judged as its process is stopped for good, by what disks certainly hold then. Of a node that was
ended before it said that it was done, only what it kept as the last stage began; of one that was away in the
last stage, nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.operations import OperationKind, Stage
from lockstep.node.node import Node
from lockstep.replication.hint_records import Hint, all_hints, decode_hint, target_of
from lockstep.sim.checkers.owed import lacking_of
from lockstep.sim.checkers.replicas import DurableContent
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.values.ids import NodeId


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
            if operation.kind is not OperationKind.DECOMMISSION or operation.node in self._leaving:
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
        has_ended = process.broken is not None and process.broken.done() and process.has_left
        if not has_ended and self._work_done(node) == leaving.done:
            return
        disks = {other: one for other, one in self._disks().items() if other != node}
        for content in disks.values():
            content.refresh()
        for key, value in self._kept(name).items():
            # What it forgot was judged as it did.
            known = process.hints.store.page(target_of(key)[0])
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
                raise Violation(
                    "HINT-2",
                    f"{name} has left with a hint of node {target}; node {node} lacks its write, "
                    "and nothing says so",
                )
