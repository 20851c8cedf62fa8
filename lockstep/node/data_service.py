"""What clients stored at one node: the store, this node as a replica of it, and as a coordinator of requests.

Invariant: nothing is served before the store is open and what it lacks is known.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec

from lockstep.coordination.ballot_rounds import ConditionalsShared
from lockstep.coordination.conditional import Conditionals
from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.coordinator import Coordinator
from lockstep.coordination.counters import CounterLeader, Counters
from lockstep.coordination.forwarding import Forwarding, dc_of_own
from lockstep.coordination.tracked_writes import TrackedWrites
from lockstep.coordination.writes import Writes
from lockstep.handoff.batch_store import BatchStore
from lockstep.handoff.batches import Batches
from lockstep.handoff.hint_delivery import HintDelivery
from lockstep.handoff.hint_store import HintStore
from lockstep.handoff.hints import HintPolicy, Hints
from lockstep.handoff.view_log import BaseWrites, ViewLog
from lockstep.handoff.view_updates import ViewPairs
from lockstep.internode.throttle import Throttle
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.context import NodeContext
from lockstep.node.log.metadata_state import MetadataState
from lockstep.node.log_service import NodeLog
from lockstep.node.membership.decommission_handoff import DecommissionHandoff
from lockstep.node.membership.identity import keep_generation
from lockstep.node.stamps import MutationIds
from lockstep.node.work.backup_service import BackupRestoring
from lockstep.node.work.backup_taking import BackupTaking
from lockstep.node.work.cohorts import CohortTaking
from lockstep.node.work.condition_watches import watch_disk, watch_tracked
from lockstep.node.work.lacking import InheritedRanges
from lockstep.node.work.read_sessions import ReadSessions
from lockstep.node.work.reconciling import Reconciler
from lockstep.node.work.table_damage import Scrub, TableDamage
from lockstep.node.work.tracked_ranges import TrackedRanges
from lockstep.node.work.unowned_tablets import UnownedTablets
from lockstep.node.work.view_builds import IndexUpkeep, ViewBuilds
from lockstep.quorum.plans import PlanBook
from lockstep.replica.ballots import BallotService
from lockstep.replica.id_participant import IdParticipant
from lockstep.replica.journal_audit import JournalAudit
from lockstep.replica.repair_participant import RepairParticipant, ReplicaTimes
from lockstep.replica.replica import ReplicaService
from lockstep.replica.scanned import Thresholds
from lockstep.replica.session_guards import SessionGuards
from lockstep.replica.shard_roles import KeptShards
from lockstep.replica.tracked import TrackedReplica, range_for
from lockstep.runtime.ports import Runtime
from lockstep.scans.outlined_engine import OutlinedEngine
from lockstep.storage.engine import Derived, StorageEngine
from lockstep.storage.journal import Journal
from lockstep.storage.store import Store
from lockstep.storage.store_position import Lacking
from lockstep.streaming.load_target import LoadTarget
from lockstep.streaming.stream_source import StreamLimits, StreamService
from lockstep.streaming.stream_target import StreamClient
from lockstep.values.errors import LockstepError
from lockstep.values.limits import TABLES_DROPPED_AT_ONCE_MAX
from lockstep.values.rows import Mutation

StoreOpener = Callable[[Runtime], Awaitable[Store]]


class NodeData(msgspec.Struct, frozen=True, eq=False):
    """`new_mutation_id()` names a write of this node."""

    context: NodeContext
    store: Store
    engine: StorageEngine
    outlined: OutlinedEngine
    lacking: Lacking
    guards: SessionGuards
    replica: ReplicaService
    new_mutation_id: Callable[[], bytes]
    coordinator: Coordinator
    conditionals: Conditionals
    counters: Counters
    hints: Hints
    hint_delivery: HintDelivery
    batch_store: BatchStore
    batches: Batches
    view_log: ViewLog
    view_builds: ViewBuilds
    streams: StreamService
    stream_client: StreamClient
    backup_taking: BackupTaking
    backup_restoring: BackupRestoring
    repair_participant: RepairParticipant
    id_participant: IdParticipant
    index_upkeep: IndexUpkeep
    inherited: InheritedRanges
    unowned: UnownedTablets
    table_damage: TableDamage
    scrub: Scrub
    decommission_handoff: DecommissionHandoff
    loads: LoadTarget
    read_sessions: ReadSessions
    tracked_ranges: TrackedRanges
    journal_audit: JournalAudit

    @property
    def reconciler(self) -> Reconciler:
        return self.tracked_ranges.reconciler

    def start(self) -> None:
        self.hint_delivery.start()
        self.context.conditions.watch(watch_tracked(self.context.conditions, self.reconciler))
        self.reconciler.start()
        self.batch_store.start()
        self.view_builds.start()

    def refuse_requests(self) -> None:
        """Begin nothing more for clients; what is being asked for ends."""
        self.conditionals.stop()
        self.coordinator.stop()

    def oldest_hint_us(self) -> int | None:
        """When the oldest write was made that this node may still bring to a replica; None without any.

        Tombstones of then and later are still needed, for what they deleted may arrive after them.
        """
        return oldest_hint_us(self.context, self.hints, self.batch_store)

    def applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        """Let go of what the metadata says is gone."""
        if before.sessions is not after.sessions or before.transitions is not after.transitions:
            self.streams.forget_closed()
            self.stream_client.forget_closed(after.session_open)
        if before.repairs is not after.repairs:
            self.repair_participant.forget_closed(after.session_open)
        if before.repairs is not after.repairs or before.schema is not after.schema:
            self.hints.forget_marks(after)
        gone = before.schema.table_ids_gone_in(after.schema) if before.schema is not after.schema else ()
        if gone:
            self.context.runtime.tasks.spawn(self._forget_tables(gone), f"storage.drop.{after.epoch}")

    async def _forget_tables(self, table_ids: Sequence[int]) -> None:
        """Their ids are never given again, so what a failure leaves behind is only space."""
        try:
            for at in range(0, len(table_ids), TABLES_DROPPED_AT_ONCE_MAX):
                await self.engine.drop_tables(table_ids[at : at + TABLES_DROPPED_AT_ONCE_MAX])
        except LockstepError as error:
            first, log = table_ids[0], self.context.log
            log("storage.drop_failed", first=first, tables=len(table_ids), error=str(error))


def oldest_hint_us(context: NodeContext, hints: Hints, batches: BatchStore) -> int | None:
    # Rows of a load that runs become part of a table when it is committed, with the time that it has.
    loads = min((load.timestamp_us for load in context.cluster().loads.running), default=None)
    kept = [at for at in (hints.oldest_us(), batches.oldest_us(), loads) if at is not None]
    # A write is left for a replica at its deadline at the latest.
    return min(kept) - context.configuration.timeouts.write_ms * 1000 if kept else None


async def open_engine(
    context: NodeContext,
    open_store: StoreOpener,
    fail: Callable[[LockstepError], None],
    derive: Callable[[Mutation, int], Derived | None],
) -> tuple[Store, StorageEngine]:
    """`fail(error)` is called when the store can keep nothing more, `derive` as the engine has it."""
    store, settings = await open_store(context.runtime), context.configuration.storage
    engine = StorageEngine(
        store,
        context.runtime,
        on_failure=fail,
        sync_period_ms=settings.period_ms,
        reserve_bytes=settings.reserve_bytes,
        derive=derive,
    )
    return store, engine


def wire_data(log: NodeLog, store: Store, engine: StorageEngine) -> NodeData:
    """CorruptFile when the store and what else this node keeps contradict each other."""
    context, state = log.context, log.state
    runtime, internode, configuration = context.runtime, context.internode, context.configuration
    cluster, own_id, reach = context.cluster, context.own_id, context.catch_up.reach
    timeouts, generation = configuration.timeouts, context.identity.value.generation
    keep_generation(engine, generation)
    context.conditions.watch(watch_disk(context.conditions, engine.space))
    new_mutation_id = MutationIds(own_id, generation).new
    lacking, guards = Lacking(engine), SessionGuards(cluster)
    outlined = OutlinedEngine(engine, store, runtime.tasks)
    replica, tracked = _replica(context, engine, outlined, lacking)
    table_damage = TableDamage(context, store.damaged, lacking)
    asking = _asking(log, replica, new_mutation_id, tracked)
    hints = Hints(runtime, HintStore(engine), asking.plans, log.liveness.silent_s, _hint_policy(context))
    delivery = HintDelivery(asking, hints)
    base_writes = BaseWrites(runtime, internode, hints, context.address)
    writes = _writes(context, asking, hints, base_writes)
    coordinator = Coordinator(asking, writes, _thresholds(context))
    ballots = BallotService(runtime, internode, engine, cluster, reach, own_id, new_mutation_id, replica)
    batch_store = BatchStore(runtime, internode, engine, writes, hints, own_id, 2 * timeouts.write_ms)
    view_pairs = ViewPairs(asking.plans, own_id)
    view_log = ViewLog(runtime, engine, writes, batch_store, hints, cluster, view_pairs, timeouts.write_ms)
    base_writes.listen(view_log.settled)
    read_at = partial(coordinator.read, timeout_ms=timeouts.range_read_ms)
    limits = _stream_limits(context)
    stream_client = StreamClient(runtime, internode, engine, guards)
    taking = BackupTaking(context, engine, guards, limits.throttle, lacking)
    restoring = BackupRestoring(context, taking, stream_client, guards)
    streams = StreamService(runtime, internode, engine, replica, cluster, reach, limits, restoring.source_of)
    # What is left of closed sessions goes now, and whenever one closes.
    streams.clean()
    streams.forget_closed()
    stream_client.forget_closed(cluster().session_open)
    cohorts = CohortTaking(context, tracked, replica, engine, limits.throttle, new_mutation_id)
    return NodeData(
        context=context,
        store=store,
        engine=engine,
        outlined=outlined,
        lacking=lacking,
        guards=guards,
        replica=replica,
        new_mutation_id=new_mutation_id,
        coordinator=coordinator,
        conditionals=Conditionals(ConditionalsShared(asking, ballots, writes, log.stamps.next_us)),
        counters=Counters(asking, CounterLeader(asking, engine, writes)),
        hints=hints,
        hint_delivery=delivery,
        batch_store=batch_store,
        batches=Batches(asking, writes, batch_store),
        view_log=view_log,
        view_builds=ViewBuilds(context, state, engine, view_log, read_at, lacking),
        streams=streams,
        stream_client=stream_client,
        backup_taking=taking,
        backup_restoring=restoring,
        repair_participant=_participant(log, engine, guards, hints, batch_store),
        id_participant=IdParticipant(internode, tracked, guards, cluster, reach, own_id),
        index_upkeep=IndexUpkeep(state, engine),
        inherited=InheritedRanges(context, state, engine),
        unowned=UnownedTablets(context, state, engine),
        table_damage=table_damage,
        scrub=Scrub(context, store),
        decommission_handoff=DecommissionHandoff(context, batch_store, hints, delivery, log.submitter),
        loads=_loads(context, state, engine),
        read_sessions=_read_sessions(context, engine, lacking),
        tracked_ranges=TrackedRanges(context, state, tracked, cohorts, guards, engine),
        journal_audit=JournalAudit(internode, tracked, cluster, own_id),
    )


def _loads(context: NodeContext, state: MetadataState, engine: StorageEngine) -> LoadTarget:
    reach = context.catch_up.reach
    loads = LoadTarget(
        context.runtime, context.internode, engine, context.cluster, reach, context.own_id, context.log
    )
    state.listen(loads.applied, parts_only=True)
    return loads


def _replica(
    context: NodeContext, engine: StorageEngine, outlined: OutlinedEngine, lacking: Lacking
) -> tuple[ReplicaService, TrackedReplica]:
    runtime, internode, cluster, own_id = context.runtime, context.internode, context.cluster, context.own_id
    reach, require = context.catch_up.reach, lacking.require
    journal = Journal(
        engine,
        own_id,
        context.identity.value.generation,
        lambda group, token: range_for(cluster(), own_id(), group, token),
        KeptShards(cluster, own_id),
    )
    replica = ReplicaService(runtime, internode, outlined, cluster, reach, own_id, require, journal)
    return replica, TrackedReplica(
        runtime, internode, journal, cluster, reach, own_id, lambda: not lacking.fillable
    )


def _writes(
    context: NodeContext, asking: CoordinationContext, hints: Hints, base_writes: BaseWrites
) -> Writes:
    own_dc = dc_of_own(lambda: context.cluster().directory.dc_by_id, context.own_id)
    writes = Writes(asking, hints, Forwarding(asking, own_dc, context.address), base_writes)
    writes.tracked = TrackedWrites(asking, writes, context.identity.value.generation)
    return writes


def _read_sessions(context: NodeContext, engine: StorageEngine, lacking: Lacking) -> ReadSessions:
    made = ReadSessions(context, engine, lacking)
    made.clean()
    context.conditions.watch(lambda: made.watch_room(engine.space))
    return made


def _participant(
    log: NodeLog, engine: StorageEngine, guards: SessionGuards, hints: Hints, batches: BatchStore
) -> RepairParticipant:
    context, runtime = log.context, log.context.runtime

    def oldest_write_us() -> int:
        """As `oldest_hint_us`, or when a write was begun at the earliest that may yet leave a hint."""
        begun_us = runtime.clock.wall_us() - context.configuration.timeouts.write_ms * 1000
        kept_us = oldest_hint_us(context, hints, batches)
        return begun_us if kept_us is None else min(begun_us, kept_us)

    return RepairParticipant(
        runtime,
        context.internode,
        engine,
        guards,
        context.cluster,
        context.catch_up.reach,
        context.own_id,
        ReplicaTimes(oldest_write_us, log.stamps.caught_up_us),
    )


def _asking(
    log: NodeLog, replica: ReplicaService, new_mutation_id: Callable[[], bytes], tracked: TrackedReplica
) -> CoordinationContext:
    context = log.context
    return CoordinationContext(
        context.runtime,
        context.internode,
        replica,
        PlanBook(context.cluster, context.own_id),
        context.catch_up.reach,
        context.own_id,
        new_mutation_id,
        log.liveness.opinions,
        tracked,
    )


def _stream_limits(context: NodeContext) -> StreamLimits:
    settings = context.configuration.streaming
    return StreamLimits(Throttle(context.runtime.clock, settings.throughput_bytes_s), settings.file_bytes)


def _hint_policy(context: NodeContext) -> HintPolicy:
    settings = context.configuration.hints
    return HintPolicy(
        settings.hinted_handoff_enabled,
        settings.max_hint_window_ms,
        settings.max_bytes_per_node,
        settings.max_bytes,
        settings.throttle_bytes_s,
    )


def _thresholds(context: NodeContext) -> Thresholds:
    reads = context.configuration.reads
    return Thresholds(reads.tombstone_warn_threshold, reads.tombstone_failure_threshold)
