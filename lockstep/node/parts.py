"""The parts of one node: made from the rooms to its left and wired to each other, not yet running.

Invariant: nothing is shared between two nodes of a process but code. What happens to the parts, and when,
is the business of node.node.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from lockstep.gossip.failure_detector import FailureDetector
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.backup_parts import backups_of
from lockstep.node.backups import BackupDriver
from lockstep.node.condition_watches import watch_disk
from lockstep.node.conditional_parts import conditionals_of
from lockstep.node.configuration import Configuration
from lockstep.node.farewell import Farewell
from lockstep.node.founding import Founding
from lockstep.node.gossiping import Gossip
from lockstep.node.identity import keep_generation
from lockstep.node.index_upkeep import IndexUpkeep
from lockstep.node.inherited import InheritedRanges
from lockstep.node.lacking import Lacking
from lockstep.node.liveness import Liveness
from lockstep.node.membership import Membership
from lockstep.node.metadata_parts import MetadataParts
from lockstep.node.processors.kinds import Factory
from lockstep.node.purging import TombstonePurge
from lockstep.node.range_sizes import RangeSizes
from lockstep.node.refill import Refill
from lockstep.node.repair_comparison import Comparison
from lockstep.node.repair_questions import RepairQuestions
from lockstep.node.repairs import RepairDriver
from lockstep.node.scrubbing import Scrub
from lockstep.node.seal import Seal
from lockstep.node.table_damage import TableDamage
from lockstep.node.view_builds import ViewBuilds
from lockstep.node.view_parts import views_of
from lockstep.node.work import WorkService
from lockstep.replication.batch_store import BatchStore
from lockstep.replication.batches import Batches
from lockstep.replication.conditional import Conditionals
from lockstep.replication.coordinator import Coordinator
from lockstep.replication.counter_leader import CounterLeader
from lockstep.replication.counters import Counters
from lockstep.replication.forwarding import Forwarding, dc_of_own
from lockstep.replication.hint_delivery import HintDelivery
from lockstep.replication.hint_store import HintStore
from lockstep.replication.hints import HintPolicy, Hints
from lockstep.replication.repair_participant import RepairParticipant
from lockstep.replication.replica import ReplicaService
from lockstep.replication.scanned import Thresholds
from lockstep.replication.stream_source import StreamService
from lockstep.replication.stream_target import StreamClient
from lockstep.replication.view_log import ViewLog
from lockstep.runtime.ports import Runtime
from lockstep.storage.engine import StorageEngine
from lockstep.storage.store import Store

StoreOpener = Callable[[Runtime], Awaitable[Store]]


class Parts(MetadataParts):
    """Attributes without a value here are made by `_build_request_path`, once the store is open."""

    def __init__(
        self,
        runtime: Runtime,
        configuration: Configuration,
        open_store: StoreOpener,
        log: Callable[..., None],
        processors: Mapping[str, Factory] | None = None,
    ) -> None:
        super().__init__(runtime, configuration, log, processors)
        self._open_store = open_store
        self._engine_open = self._request_path_built = False
        self.seal = Seal(runtime.disk, log)
        #: What the seal covers was read whole.
        self._sealable = False
        #: Calls back when nothing is left that must be told before this node ends because it is broken.
        self.before_breaking: Callable[[Callable[[], None]], None] = lambda end: end()
        self.store: Store
        self.engine: StorageEngine
        self.index_upkeep: IndexUpkeep
        self.replica: ReplicaService
        self.coordinator: Coordinator
        self.conditionals: Conditionals
        self.counters: Counters
        self.hints: Hints
        self.hint_delivery: HintDelivery
        self.batch_store: BatchStore
        self.batches: Batches
        self.view_log: ViewLog
        self.view_builds: ViewBuilds
        self.farewell: Farewell
        self.streams: StreamService
        self.stream_client: StreamClient
        self.sizes: RangeSizes
        self.repair_participant: RepairParticipant
        self.comparison: Comparison
        self.repairs: RepairDriver
        self.backups: BackupDriver
        self.tombstone_purge: TombstonePurge
        self.membership: Membership

    def _build_request_path(self, generation: int) -> None:
        runtime, state, internode = self.runtime, self.state, self.internode
        timeouts = self.configuration.timeouts
        detector = FailureDetector(self.configuration.gossip.phi_threshold)
        self.liveness = Liveness(
            runtime, state, internode, detector, self._own_id, self._leads, generation, self.clocks
        )
        cluster, reads = self._cluster_now, self.configuration.reads
        self.replica = ReplicaService(
            runtime, internode, self.engine, cluster, self.catch_up.reach, self._own_id
        )
        keep_generation(self.engine, generation)
        self.lacking = Lacking(self.engine)
        self.replica.require_held = self.lacking.require
        self.table_damage = TableDamage(self.store.damaged, self.lacking, self.conditions, cluster, self.log)
        self.scrub = Scrub(runtime, self.store, cluster, self.log)
        self.coordinator = Coordinator(
            runtime,
            internode,
            self.replica,
            cluster,
            self.catch_up.reach,
            self.liveness.alive,
            self._own_id,
            self.new_mutation_id,
            self.liveness.prefers,
            Thresholds(reads.tombstone_warn_threshold, reads.tombstone_failure_threshold),
        )
        self.conditions.watch(watch_disk(self.conditions, self.engine.space))
        self.conditionals = conditionals_of(self)
        self.index_upkeep = IndexUpkeep(state, self.engine)
        self._build_counters()
        self._build_hints()
        self._build_streaming()
        self._build_repairs(generation)
        self.backups = backups_of(self, generation)
        self.work = WorkService(
            runtime,
            state,
            internode,
            self.catch_up,
            self.engine,
            self.stream_client,
            self._own_id,
            lambda node: self.liveness.alive(node) and not self.gossip.has_lost_store(node),
            self.replica.drain,
            self.guards,
            self.lacking,
            2 * timeouts.write_ms + timeouts.cas_contention_ms,
        )
        self.before_breaking = self.work.before_breaking
        self.refill = Refill(runtime, state, self.submitter, self.lacking, self._own_id, self.log)
        self.inherited = InheritedRanges(runtime, state, self.engine, self._own_id)
        self.sizes = RangeSizes(internode, self.engine, cluster, self._own_id, lambda: self.work.rate_bytes_s)
        self.gossip = self._gossip(generation)
        self.membership = Membership(
            runtime,
            self.configuration,
            self.identity,
            state,
            internode,
            self.submitter,
            self.management,
            self.members,
            self.catch_up,
            self.histories,
            self.clocks,
            self.log,
        )
        self.membership.founding = self._founding()

    def _gossip(self, generation: int) -> Gossip:
        return Gossip(
            self.runtime,
            self.state,
            self.internode,
            self.liveness,
            self._own_id,
            generation,
            ready=lambda: self.ready,
            load_bytes=self.engine.size_bytes,
            streams=self.streams.open_streams,
            building=self.view_builds.lacking,
            conditions=self.conditions.told,
        )

    def _build_counters(self) -> None:
        runtime, internode, cluster = self.runtime, self.internode, self._cluster_now
        reach, alive, own = self.catch_up.reach, self.liveness.alive, self._own_id
        writes = self.coordinator.writes
        leader = CounterLeader(
            runtime, internode, self.engine, self.replica, writes, cluster, reach, alive, own
        )
        self.counters = Counters(runtime, internode, self.coordinator.plans, leader, reach, alive, own)

    def oldest_hint_us(self) -> int | None:
        """When the oldest write was made that this node may still bring to a replica; None without any.

        Tombstones of then and later are still needed, for what they deleted may arrive after them.
        """
        kept = [at for at in (self.hints.oldest_us(), self.batch_store.oldest_us()) if at is not None]
        # A write is left for a replica at its deadline at the latest.
        return min(kept) - self.configuration.timeouts.write_ms * 1000 if kept else None

    def _oldest_write_us(self) -> int:
        """As `oldest_hint_us`, or when a write was begun at the earliest that may yet leave a hint."""
        begun_us = self.runtime.clock.wall_us() - self.configuration.timeouts.write_ms * 1000
        kept_us = self.oldest_hint_us()
        return begun_us if kept_us is None else min(begun_us, kept_us)

    def _build_hints(self) -> None:
        settings, liveness = self.configuration.hints, self.liveness
        policy = HintPolicy(
            settings.hinted_handoff_enabled,
            settings.max_hint_window_ms,
            settings.max_bytes_per_node,
            settings.max_bytes,
            settings.throttle_bytes_s,
        )
        plans = self.coordinator.plans
        self.hints = Hints(self.runtime, HintStore(self.engine), plans, liveness.silent_s, policy)
        self.hint_delivery = HintDelivery(
            self.runtime,
            self.internode,
            self.hints,
            self.replica,
            self.catch_up.reach,
            liveness.alive,
            self._own_id,
        )
        self.coordinator.keep_hints(self.hints)
        self.coordinator.writes.alive_until_s = liveness.alive_until_s

        def applied(before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
            if before.repairs is not after.repairs or before.schema is not after.schema:
                self.hints.forget_marks(after)

        self.state.listen(applied, parts_only=True)
        writes = self.coordinator.writes
        writes.forwarding = Forwarding(
            self.runtime,
            self.internode,
            self.replica,
            liveness.alive,
            dc_of_own(lambda: self._cluster_now().directory.dc_by_id, self._own_id),
            self.address,
        )
        self.batch_store = BatchStore(
            self.runtime,
            self.internode,
            self.engine,
            writes,
            self.hints,
            self._own_id,
            2 * self.configuration.timeouts.write_ms,
        )
        self.view_log, self.view_builds = views_of(self)
        self.view_builds.is_filled = lambda: not self.lacking.fillable
        self.farewell = Farewell(
            *(self.runtime, self.batch_store, self.hints, self.hint_delivery, self.submitter, self.log)
        )
        self.batches = Batches(
            self.runtime,
            self.internode,
            writes,
            self.batch_store,
            self._cluster_now,
            liveness.alive,
            self._own_id,
        )

    def _build_streaming(self) -> None:
        """Both ends of range streams; what is left of closed sessions goes now, and whenever one closes."""
        settings, state = self.configuration.streaming, self.state
        self.streams = StreamService(
            self.runtime,
            self.internode,
            self.engine,
            self.replica,
            self._cluster_now,
            self.catch_up.reach,
            throughput_bytes_s=settings.throughput_bytes_s,
            file_bytes=settings.file_bytes,
            log=self.log,
        )
        self.stream_client = StreamClient(self.runtime, self.internode, self.engine, self.guards)

        def forget(cluster: ClusterMetadata) -> None:
            self.streams.forget_closed()
            self.stream_client.forget_closed(cluster.session_open)

        def applied(before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
            if before.sessions is not after.sessions:
                forget(after)

        self.streams.clean()
        forget(state.current)
        state.listen(applied, parts_only=True)

    def _build_repairs(self, generation: int) -> None:
        """Both roles in repairs: the participant, and the node that drives."""
        runtime, state, internode, own_id = self.runtime, self.state, self.internode, self._own_id
        participant = RepairParticipant(
            runtime, internode, self.engine, self.guards, self._cluster_now, self.catch_up.reach, own_id
        )
        questions = RepairQuestions(runtime, internode, participant, self.guards, self._cluster_now, own_id)
        self.repair_participant = participant
        self.comparison = Comparison(
            runtime, questions, self.streams.throttle, self._cluster_now, self.new_mutation_id
        )
        self.repairs = RepairDriver(
            runtime,
            state,
            self.submitter,
            questions,
            self.comparison,
            own_id,
            generation,
            self.liveness.alive,
            self.log,
        )

        oldest = self.oldest_hint_us
        participant.asks(self._oldest_write_us, self.stamps.caught_up_us)
        interval_s = self.configuration.purge.interval_ms / 1000
        self.tombstone_purge = TombstonePurge(
            runtime, state, self.engine, self.guards, oldest, interval_s, self.log
        )

        def applied(before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
            if before.repairs is not after.repairs:
                participant.forget_closed(after.session_open)
                self.repairs.end_lost(after)

        state.listen(applied, parts_only=True)

    def _founding(self) -> Founding | None:
        founders = self._founders()
        if self.address not in founders:
            return None
        return Founding(
            self.runtime,
            self.state,
            self.internode,
            self.catch_up,
            self.submitter,
            self.management,
            self.founders_file,
            founders=founders,
            own_address=self.address,
            cluster_name=self.configuration.cluster.name,
            describe=self.membership.describe,
            start_consensus=self._start_consensus,
            is_leader=self._leads,
            campaign=self.member.campaign,
            log=self.log,
        )
