"""The monitors of one run, joined: what happens at each new epoch, and who leads; and LOG-3: the whole log of
a run once more, on nodes that contradict each other in all that is their own.

Invariant: everything is judged at the very instant a node says it; an objection ends the run there. The nodes
are the product's, on empty disks, alone in their world: other settings, other clocks, and failure detectors
that convict everybody. At every epoch they have the digest that the run had, and at some, the last one among
them, the very bytes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from lockstep.consensus.raft import Raft
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import apply_entry, state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.snapshot import pieces
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Transition
from lockstep.node.configuration import (
    ClusterSection,
    Configuration,
    MetadataSection,
    NetworkSection,
    NodeSection,
    PlacementSection,
    RaftSection,
    TimeoutsSection,
)
from lockstep.node.log.journal import METADATA_GROUP
from lockstep.node.node import Node
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.consensus import CommittedMonitor, ManagementMonitor
from lockstep.sim.checkers.contents import RepairBegun, check_equal, check_unchanged
from lockstep.sim.checkers.keeping import Emptied, Keeping
from lockstep.sim.checkers.log import (
    LogMonitor,
    check_entry,
    check_metadata_files,
    check_schema,
    check_voters,
)
from lockstep.sim.checkers.lone import LoneWatch
from lockstep.sim.checkers.ownership import (
    Apart,
    Exclusions,
    check_epoch,
    check_marked,
    check_released,
    check_stale,
)
from lockstep.sim.checkers.replicas import AcknowledgedWrites, DurableContent, check_held, check_wiped
from lockstep.sim.checkers.stamps import GivenStamps
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import SimCluster
from lockstep.sim.door import KEYSPACE
from lockstep.sim.load.history import Event
from lockstep.sim.runtime.streams import WALL_START_US
from lockstep.sim.runtime.world import World
from lockstep.storage.store import Store
from lockstep.topology.kind import Mover, kind_of
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.kinds.replication import Walk
from lockstep.topology.roles import promoted
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range

#: Told (operation, stage entered) or (operation, None) when it ended.
StageListener = Callable[[Operation, Stage | None], None]


class Watch:
    """`rows`: clusterings of a partition, for the inspection of disks."""

    def __init__(self, cluster: SimCluster, rows: int) -> None:
        self.cluster = cluster
        self.log = LogMonitor(self._first_applied, self._replayed)
        self.management = ManagementMonitor()
        self.consensus = CommittedMonitor(self._member)
        #: Entries of the log by epoch, as they were first applied.
        self.entries: dict[int, LogEntry] = {}
        self.listeners: list[StageListener] = []
        #: Told (value before, value after) of each new epoch, before the listeners.
        self.appliers: list[Callable[[ClusterMetadata, ClusterMetadata], None]] = []
        self.inspected = 0
        self._repairs: dict[int, RepairBegun] = {}
        self._emptied = Emptied(self._content_of, self._work_done, cluster.fact)
        self.exclusions = Exclusions()
        self.isolated = Apart()
        self.stamps = GivenStamps()
        self._rows = rows
        cluster.history.listeners.append(self._answered)
        self._contents: dict[str, DurableContent] = {}
        cluster.world.monitors.append(self)
        cluster.on_park = self.log.forget
        self.keeping = Keeping(cluster, self._filled_disks, self._content, self._work_done)
        self._lone = LoneWatch(self._released, self._inspect_pending, partial(self.inspect, "PLC-3"))

    def __call__(self, now_ns: int, label: str, kind: str, facts: dict[str, Any]) -> None:
        if kind == "raft.committed":
            driver = self.cluster.nodes[label.rpartition(".")[0]].log.driver
            self.consensus.committed(label, facts["entries"], driver.raft if driver else None)
            return
        if kind == "stamp.given":
            name = label.rpartition(".")[0]
            self.stamps.given(name, self.cluster.nodes[name].context.host_id(), facts["stamp_us"])
            return
        if kind == "metadata.applied" and facts["installed"] and label in self.log.incarnations:
            self.cluster.fact("gap crossed by a snapshot")
        if kind == "metadata.applied":
            name = label.rpartition(".")[0]
            if label not in self.log.incarnations or facts["installed"]:
                # What it shows first was read from its snapshot and the entries behind that.
                self._from_snapshot(name, facts["cluster"])
            if name in self.cluster.processes:  # Replays of the log run beside the cluster.
                check_metadata_files(name, self.cluster.processes[name].disk)
        self.log(now_ns, label, kind, facts)
        if kind == "metadata.applied" and (
            self.cluster.newest.excluded
            or self.cluster.newest.degraded
            or self.exclusions.known_ns
            or self.isolated
        ):
            self._shut_out(now_ns)
        self.management(now_ns, label, kind, facts)
        if kind == "raft.role" and facts["role"] == "leader" and facts["group"] == METADATA_GROUP:
            self._elected(label, facts["term"])

    def _from_snapshot(self, name: str, value: ClusterMetadata) -> None:
        node = self.cluster.nodes.get(name)
        taken = max(node.log.state.store.infos, default=0) if node is not None and value.degraded else 0
        if 0 < taken < len(self.log.values) and self.log.values[taken].degraded:
            self.cluster.fact("a snapshot with degraded ranges")

    def _shut_out(self, now_ns: int) -> None:
        newest, seen = self.cluster.newest, self.log.seen
        excluded = {self.cluster.name_of(one.node): one.epoch for one in newest.excluded}
        self.exclusions.seen(
            now_ns, excluded, {name: seen.get(name, 0) for name in self.cluster.in_service()}
        )
        self.isolated.seen(now_ns, newest.epoch, excluded, seen)
        self.isolated.degraded(now_ns, bool(newest.degraded))
        if self.exclusions.known_ns:
            self.cluster.fact("all shut a node out")

    def _answered(self, event: Event) -> None:
        keyspace = self.cluster.newest.schema.by_name[KEYSPACE]
        try:
            self.exclusions.ended(event, keyspace.replication.total)
        except Violation as found:
            self.cluster.world.fail("monitor", event.client, str(found), found)

    def _elected(self, label: str, term: int) -> None:
        name = label.rpartition(".")[0]
        if term > self.cluster.leader[0]:
            if self.cluster.leader[1] not in ("", name):
                self.cluster.fact("leader changed")
                if self.cluster.newest.service.change is not None:
                    self.cluster.fact("leader changed in a change of voters")
            self.cluster.leader = (term, name)
        self.cluster.tell(name, f"leads term {term}")

    def _first_applied(self, before: ClusterMetadata, after: ClusterMetadata, label: str) -> None:
        cluster = self.cluster
        cluster.newest = after
        cluster.tell(label.rpartition(".")[0], f"is first at epoch {after.epoch}{_change(before, after)}")
        check_epoch(before, after)
        check_schema(before, after)
        check_voters(before, after)
        check_entry(before, self._entry(after.epoch, label))
        self._service(before, after)
        self.management.first_applied(before, after)
        check_stale(self.log.values, self.seen_by_id(after))
        for told in self.appliers:
            told(before, after)
        self.keeping.left.applied(before, after)
        self._stages(before, after)
        self._lone.applied(before, after)
        if before.repairs is not after.repairs:
            self._repaired(after)
            check_marked(before, after, cluster.fact)

    def _repaired(self, after: ClusterMetadata) -> None:
        """What a repair recorded as equal is equal."""
        running = {repair.id: repair for repair in after.repairs.running if not repair.purpose}
        for repair in running.values():
            if repair.id not in self._repairs:
                self._repairs[repair.id] = RepairBegun(after, repair, self.disks(after))
        for begun in [one for id_, one in self._repairs.items() if id_ not in running]:
            ended = after.repairs.find(begun.repair.id)
            del self._repairs[begun.repair.id]
            if ended is not None:
                purges = self.cluster.purges
                judged = begun.check_ended(after, ended, self.disks(after), purges=purges)
                self.inspected += judged
                if judged:
                    self.cluster.fact("a repair was judged")
                self.check_unchanged(after)

    def check_unchanged(self, metadata: ClusterMetadata) -> None:
        """What disks have marked as equal since a repair is equal."""
        tables = [table.id for table in metadata.schema.by_name[KEYSPACE].tables]
        judged = check_unchanged(metadata, tables, self.disks(metadata), self._purged_s())
        self.inspected += judged
        if judged:
            self.cluster.fact("marks of repairs were judged")

    def _purged_s(self) -> int:
        """The wall second before which what is dead may be gone; 0 when nothing is purged."""
        now_s = (WALL_START_US + self.cluster.world.now_ns // 1000) // 1_000_000
        return now_s if self.cluster.purges else 0

    def check_equal(self, table: str) -> None:
        """After every replica was read and repaired: none lacks anything that another one holds."""
        newest = self.cluster.newest
        found = newest.schema.table(KEYSPACE, table)
        assert found is not None, "the table is there"
        self.inspected += check_equal(newest, found.id, self.disks(newest), self._purged_s())

    def _replayed(self, name: str, value: ClusterMetadata, epoch: int) -> Iterator[ClusterMetadata]:
        node = self.cluster.nodes[name]
        for entry in node.log.state.retained(value.epoch + 1, epoch):
            self.entries[entry.epoch] = entry
            value = apply_entry(value, entry, node.log.registry)
            yield value

    def _entry(self, epoch: int, label: str) -> LogEntry:
        """The entry of an epoch that this process has just applied as the first."""
        if epoch not in self.entries:
            node = self.cluster.nodes[label.rpartition(".")[0]]
            self.entries[epoch] = node.log.state.retained(epoch, epoch)[0]
        return self.entries[epoch]

    def _member(self, member: int) -> Raft | None:
        """A member's consensus, as it was when its process ended if that is down; None when it has none."""
        name = self.cluster.name_of(member)
        node = self.cluster.nodes.get(name)
        if node is None or node.log.driver is None:
            return None
        return node.log.driver.raft

    def seen_by_id(self, after: ClusterMetadata) -> dict[NodeId, int]:
        """What each node has durably applied."""
        seen = {}
        for node in after.directory.nodes:
            name = self.cluster.name_of(node.id)
            # A node that was stopped for good answers nobody, whoever has its address now.
            gone = node.id in self.cluster.retired
            # A node that learns of several epochs at once is told of after the last one.
            seen[node.id] = after.epoch if gone else min(after.epoch, self.log.seen.get(name, 0))
        return seen

    def _service(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        """Count what became of the voters."""
        one, other = before.service, after.service
        if one is other or not before.epoch:
            return
        if one.truncated_epoch != other.truncated_epoch:
            self.cluster.fact("log truncated")
        if one.frozen and not other.frozen:
            self.cluster.fact("service: thawed")
        if one.change is not None and other.change is None:
            self.cluster.fact("voters cancelled" if one.change.cancelled else "voters changed")
            if not one.change.cancelled and one.change.removals:
                self.cluster.fact("voter substituted")

    def _stages(self, before: ClusterMetadata, after: ClusterMetadata) -> None:
        for operation in after.operations:
            former = before.operations_by_id.get(operation.id)
            if former is None or former.stage is not operation.stage:
                if former is not None:
                    self._released(before, former)
                    self._emptied.left(before, former)
                self._emptied.entered(after, operation)
                if operation.stage is Stage.WRITE_BOTH_READ_OLD:
                    self._inspect_pending(after, after.transitions.of(operation.id))
                elif operation.stage is Stage.WRITE_BOTH_READ_NEW:
                    self.inspect("PLC-3", after, after.transitions.of(operation.id))
                self._tell_stage(operation, operation.stage)
        for operation in before.operations:
            if operation.id not in after.operations_by_id:
                self._released(before, operation)
                self._emptied.left(before, operation)
                self._ended(operation)
                self._tell_stage(operation, None)

    def _released(self, before: ClusterMetadata, mover: Mover) -> None:
        """Who runs has ended all effects of closed sessions when a stage is left."""
        coordinator = self.cluster.nodes.get(self.cluster.leader[1])
        if coordinator is None or not self.cluster.ready(self.cluster.leader[1]):
            return
        running = {
            NodeId(self.cluster.node_id(name)): self.cluster.nodes[name]
            for name in self.cluster.live()
            if name in self.cluster.nodes and self.cluster.ready(name)
        }
        check_released(before, mover, running, coordinator)

    def _ended(self, operation: Operation) -> None:
        if kind_of(operation).is_taken_back(operation):
            self.cluster.fact("operation cancelled")
        elif isinstance(operation.body, Bootstrap):
            self.cluster.fact("join completed")
        else:
            self.cluster.fact(f"{operation.kind} completed")
            if isinstance(operation.body, Walk) and self.cluster.shape.tablets:
                path = operation.body.path
                self.cluster.fact(f"tablets.{'raised' if path[-1].total > path[0].total else 'lowered'}")

    def _tell_stage(self, operation: Operation, stage: Stage | None) -> None:
        for listener in self.listeners:
            listener(operation, stage)

    def inspect(
        self, invariant: str, metadata: ClusterMetadata, moving: Sequence[Transition] | None = None
    ) -> None:
        """Whether the disks hold every acknowledged write, in all ranges or in those of transitions."""
        cluster = self.cluster
        only: dict[int, list[Range]] | None = None
        if moving is not None:
            only = {}
            for transition in moving:
                only.setdefault(transition.group, []).append(transition.range)
        contents = self.disks(metadata)
        writes = AcknowledgedWrites(cluster.history.events, self._rows)
        self.inspected += check_held(
            invariant,
            metadata,
            writes.newest,
            contents,
            only,
            # Who lost its store answers nobody before it is filled.
            (*(NodeId(node) for node in cluster.retired), *cluster.stores.unfilled_ids()),
            purges=writes.deletions if cluster.purges else None,
        )

    def disks(self, metadata: ClusterMetadata) -> dict[NodeId, DurableContent]:
        """By node, where its disk is still there."""
        cluster, contents = self.cluster, {}
        for node in metadata.directory.nodes:
            name = cluster.name_of(node.id)
            if cluster.node_id(name) == node.id:
                contents[node.id] = self._content(name)
        return contents

    def _filled_disks(self) -> dict[NodeId, DurableContent]:
        """Of nodes that have all that they should."""
        unfilled = self.cluster.stores.unfilled_ids()
        return {node: one for node, one in self.disks(self.cluster.newest).items() if node not in unfilled}

    def unowned(self, metadata: ClusterMetadata) -> list[str]:
        """What nodes in service store of ranges that are not theirs, as sentences; TAB-1, where a group is of
        tablets: both sides of one that moves by itself may store it."""
        found = []
        for name in self.cluster.in_service():
            node, content = NodeId(self.cluster.node_id(name)), self._content(name)
            content.refresh()
            groups = (pair for keyspace in metadata.schema.keyspaces for pair in keyspace.groups.items())
            for group, listed in groups:
                tables = [table.id for table in listed]
                for placed in metadata.placements.ring(group).ranges:
                    moving = metadata.transitions.at(group, placed.range.right)
                    if moving is not None and moving.position is not None and node in moving.union:
                        continue
                    if node not in placed.group.writes and (held := content.held(tables, placed.range)):
                        found.append(f"node {node} stores {held} partitions of {placed.range}")
        return found

    def _inspect_pending(self, metadata: ClusterMetadata, moving: Sequence[Transition]) -> None:
        dc_of = metadata.directory.dc_by_id.__getitem__
        pending = {node: None for one in moving for node in (*one.gained, *promoted(one, dc_of))}
        for node in pending:
            content = self._content(self.cluster.name_of(node))
            check_wiped(metadata, moving, content, node)

    def _content_of(self, node: NodeId) -> DurableContent | None:
        """None when the node's disk is gone."""
        name = self.cluster.name_of(node)
        return self._content(name) if name and self.cluster.node_id(name) == node else None

    def _work_done(self, node: NodeId) -> int:
        return self.cluster.world.probes.process_counts.get((self.cluster.name_of(node), "work.done"), 0)

    def _content(self, name: str) -> DurableContent:
        content = self._contents.get(name)
        disk = self.cluster.processes[name].disk
        if content is None or content.disk is not disk:
            content = self._contents[name] = DurableContent(disk)
        return content


def _change(before: ClusterMetadata, after: ClusterMetadata) -> str:
    """What the entry did, for people."""
    for operation in after.operations:
        former = before.operations_by_id.get(operation.id)
        if former is None or former.stage is not operation.stage:
            return f": {operation.title()} enters {operation.stage}"
    for operation in before.operations:
        if operation.id not in after.operations_by_id:
            return f": {operation.title()} ends after {operation.stage}"
    if before.schema is not after.schema:
        return ": the schema changes"
    if before.directory is not after.directory:
        return ": the directory changes"
    return ""


#: Every so many epochs the bytes are compared, not only their digest.
_BYTES_EVERY = 16
_LIMIT_S = 120.0
#: What replays differ in: seconds that the wall clock is off, the speed of clocks, tokens, and how many
#: entries and snapshots are kept.
_CONTRADICTIONS = ((-86_400.0 * 365, 0.95, 1, 1), (86_400.0 * 365, 1.05, 64, 100_000))


class _Seen(msgspec.Struct):
    """What one replay had at each epoch."""

    digests: list[bytes] = []
    images: dict[int, bytes] = {}


def check_replays(
    world: World,
    open_store: Callable[[Runtime], Awaitable[Store]],
    entries: Sequence[LogEntry],
    values: Sequence[ClusterMetadata],
    digests: Sequence[bytes],
) -> None:
    """`entries` are those of epochs 1 on; `values` and `digests` begin with epoch 0."""
    assert [entry.epoch for entry in entries] == list(range(1, len(values))), "the whole log is known"
    for number, (wall_s, rate, tokens, kept) in enumerate(_CONTRADICTIONS):
        name = f"replay{number}"
        process = world.process(name, f"10.9.0.{number + 1}")
        process.jump_wall(wall_s)
        process.drift_clock(rate)
        configuration = _configuration(name, process.host, tokens, kept)
        seen = _Seen()
        world.call(_replaying(configuration, open_store, entries, seen), name=name, limit_s=_LIMIT_S)
        _compare(name, seen, values, digests)


def _replaying(
    configuration: Configuration,
    open_store: Callable[[Runtime], Awaitable[Store]],
    entries: Sequence[LogEntry],
    seen: _Seen,
) -> Callable[[Runtime], Coroutine[Any, Any, None]]:
    def applied(_before: ClusterMetadata, after: ClusterMetadata, _entry: LogEntry) -> None:
        seen.digests.append(state_digest(after))
        if _is_compared(after.epoch, len(entries)):
            seen.images[after.epoch] = image(after)

    async def main(runtime: Runtime) -> None:
        node = Node(runtime, configuration, open_store, lambda *_, **__: None)
        # Only its metadata lives: nobody else is heard of, so its failure detector convicts everybody.
        await node.log.state.store.settle()
        node.log.state.load()
        node.log.state.start()
        node.log.state.listen(applied)
        node.log.state.offer(entries)
        await node.log.state.wait_for(len(entries))

    return main


def _is_compared(epoch: int, last: int) -> bool:
    return epoch % _BYTES_EVERY == 0 or epoch == last


def image(value: ClusterMetadata) -> bytes:
    """All of a value, in its canonical bytes."""
    return b"".join(pieces(value))


def _compare(name: str, seen: _Seen, values: Sequence[ClusterMetadata], digests: Sequence[bytes]) -> None:
    last = len(values) - 1
    if len(seen.digests) != last:
        raise Violation("LOG-3", f"{name} ended at epoch {len(seen.digests)}, not {last}")
    for epoch in range(1, last + 1):
        if seen.digests[epoch - 1] != digests[epoch]:
            raise Violation("LOG-3", f"{name} has another state at epoch {epoch}")
        if _is_compared(epoch, last) and seen.images[epoch] != image(values[epoch]):
            raise Violation("LOG-3", f"{name} has other bytes at epoch {epoch}")


def _configuration(name: str, host: str, tokens: int, kept: int) -> Configuration:
    return Configuration(
        node=NodeSection(name=name, data_directory="."),
        cluster=ClusterSection(name=f"cluster of {name}", founders=(f"{host}:7000",)),
        network=NetworkSection(address=host),
        placement=PlacementSection(num_tokens=tokens),
        timeouts=TimeoutsSection(write_ms=tokens * 10, read_ms=tokens * 10),
        raft=RaftSection(tick_ms=10 * tokens),
        metadata=MetadataSection(snapshot_every_epochs=0, retain_entries=kept),
    )
