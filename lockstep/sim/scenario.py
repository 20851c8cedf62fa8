"""One run of one seed: build, disturb, heal, settle, judge.

Invariant: everything a run does follows from (scenario, seed). After healing, bounded virtual time must
bring every node back, end every operation, and let a fresh write and read succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from lockstep.metadata.log import recent_ids
from lockstep.metadata.operations import Operation, Stage
from lockstep.node.kinds import every_kind
from lockstep.node.membership import decommission_handoff
from lockstep.node.work import purging, view_builds
from lockstep.placement.quorums import dc_factors
from lockstep.runtime.ports import Runtime
from lockstep.sim.checkers.log import check_refusals, check_submissions, unsettled_voters
from lockstep.sim.checkers.machines import self_checking
from lockstep.sim.checkers.registers import check_registers
from lockstep.sim.checkers.resizes import ResizeWatch
from lockstep.sim.checkers.telling import Telling, watch_progress
from lockstep.sim.checkers.tracked import check_none_torn, check_reconciled, check_whole, has_open_ids
from lockstep.sim.checkers.violation import Violation
from lockstep.sim.cluster import Shape, SimCluster, draw_shape
from lockstep.sim.door import KEYSPACE, DoorClient
from lockstep.sim.faults.data_centres import DataCentreWatch
from lockstep.sim.faults.halfway import LoneHolders
from lockstep.sim.faults.leavers import FAREWELL_MS
from lockstep.sim.faults.nemesis import Nemesis, draw_swarm
from lockstep.sim.load.access_operators import AccessOperators
from lockstep.sim.load.captured_load import CaptureWorkload
from lockstep.sim.load.column_workload import TABLE as COLUMNED
from lockstep.sim.load.column_workload import ColumnWorkload
from lockstep.sim.load.conditional_workload import ConditionalWorkload
from lockstep.sim.load.derived_load import IndexWorkload, ViewWorkload
from lockstep.sim.load.history import Change, Event, Look, Outcome
from lockstep.sim.load.kind_operators import (
    CancellingOperators,
    KindOperators,
    RepairOperators,
    ReplicationOperators,
)
from lockstep.sim.load.load_workload import LoadWorkload
from lockstep.sim.load.metadata_operators import MetadataOperators, SchemaOperators
from lockstep.sim.load.migration_operators import MigrationOperators, TrackingOperators
from lockstep.sim.load.operators import BusyOperators, Operators
from lockstep.sim.load.overload_workload import OverloadWorkload
from lockstep.sim.load.side_load import Side
from lockstep.sim.load.side_workloads import BatchWorkload, CounterWorkload, TimestampWorkload
from lockstep.sim.load.tablet_operators import TabletOperators
from lockstep.sim.load.upgrade_operators import UpgradeOperators
from lockstep.sim.load.workload import Client, Load, Workload, draw_load, of_whole_partitions
from lockstep.sim.plant import replaced
from lockstep.sim.runtime.streams import Stream
from lockstep.sim.runtime.world import World, WorldSettings
from lockstep.sim.seed_result import SeedResult, classified
from lockstep.sim.watch import StageListener, Watch, check_replays
from lockstep.sim.working_nodes import slow_limits, tight_limits
from lockstep.topology.kinds.decommission import Decommission
from lockstep.values import limits
from lockstep.values.ids import Consistency

#: Virtual seconds for founding, with the schema.
_FOUND_S = 30.0
#: Virtual seconds for everything to settle after the last fault: elections, joins, streams.
_SETTLE_S = 120.0
#: Virtual seconds for a request to succeed on a healed cluster: silent connections are noticed after five.
_INSIST_S = 20.0
#: Virtual seconds until all nodes have heard of all others that they are back: some rounds of gossip.
_HEARD_S = 10.0


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """`faults`: kinds that a seed may draw; empty is a calm run. Times in virtual seconds."""

    name: str
    chaos_s: float = 12.0
    faults: tuple[str, ...] = ()
    #: Kinds that every seed has.
    always: tuple[str, ...] = ()
    founders: tuple[int, ...] = (1, 3, 3, 3)
    spares: int = 2
    #: The replication factor where there are three founders or more, one of these.
    factors: tuple[int, ...] = (3, 3, 3, 2)
    busy_s: float = 1.5
    cancel: float = 0.5
    #: The slowest sync of a healthy disk, one of these.
    sync_ms: tuple[float, ...] = (4.0,)
    #: Mean pause between two changes of a table's comment; 0 is none.
    churn_ms: float = 0.0
    #: Mean pause between two schema changes of each operator that does nothing else; 0 is none.
    schema_ms: float = 0.0
    #: Mean pause of each submitter of values to the metadata service; 0 is none. Other submitters then
    #: snapshot and truncate its log, change its members, freeze it, and ask for old ids again.
    metadata_ms: float = 0.0
    #: Mean pause of each operator of roles and permissions, who also asks for what is wrong; 0 is none.
    access_ms: float = 0.0
    #: Whether limits are so small that a run meets them.
    tight: bool = False
    #: How many entry ids the metadata keeps; 0 is as many as in production.
    recent_ids: int = 0
    #: Probability that a frame between nodes is delivered twice, one of these; empty leaves it to the shape.
    duplicate: tuple[float, ...] = ()
    #: Whether writes are kept for replicas that miss them, one of these.
    hints: tuple[bool, ...] = (True,)
    #: Whether the whole log is replayed at the end, on nodes that contradict each other.
    replays: bool = False
    #: Most bytes of log entries that a metadata leader sends at once, one of these.
    append_bytes: tuple[int, ...] = (1 << 20,)
    #: Mean pause between two operations that move, rebuild or remove nodes; 0 is none.
    kinds_s: float = 0.0
    #: Of the nodes without a vote that such an operation finds dead, how many are given up by force.
    forced: float = 0.0
    #: Of each join, the probability that it is cancelled while its newcomer gets data.
    cancel_joins: float = 0.0
    #: Mean pause between two changes of the keyspace's replication; 0 is none.
    replication_s: float = 0.0
    #: Mean pause between two repairs; 0 is none. With them, deletions that they cover are purged.
    repair_s: float = 0.0
    #: Whether some repairs are of a part of the ring, of one table, or between some replicas only.
    partial_repairs: bool = False
    #: How many tablets each table begins with; 0: the keyspace lies on the ring.
    tablets: int = 0
    #: Whether replicas know by ids what they hold.
    tracked: bool = False
    witnesses: int = 0
    #: Of the reads, how many are of whole partitions, where writes are too: none is torn or goes back.
    whole: float = 0.0
    #: After how long a silent replica is away, whatever the product says, one of these.
    cohort_after_s: tuple[float, ...] = (0.0,)
    #: Mean pause between two changes of the keyspace to tracked, or back; 0 is none.
    retracks_s: float = 0.0
    #: How nodes agree on the ring without a log, one of these; empty: there is a log.
    ring_mode: tuple[str, ...] = ("",)
    #: Mean pause before a cluster on the ring is to get a log; 0 is never.
    upgrades_s: float = 0.0
    #: Mean pause between two steps of the keyspace from the ring to tablets, or back; 0 is none.
    migrates_s: float = 0.0
    #: Mean pause between two changes of how many tablets are asked for; 0 is none.
    resize_s: float = 0.0
    #: Whether clocks of nodes step by hours in some seeds that have faults.
    steps_clocks: bool = True
    #: How many clients; 0 leaves it to the seed.
    clients: int = 0
    #: How many requests a client sends at once, one of these.
    volley: tuple[int, ...] = (1,)
    #: How many partitions are written and not read before the end.
    unread: int = 0
    #: How many clients that leave timestamps to the servers, whose clocks differ.
    stamped: int = 0
    #: How many clients that change counters.
    counting: int = 0
    #: Clients that write batches over several partitions and tables.
    batching: int = 0
    #: How many clients that compare and set by conditional writes.
    deciding: int = 0
    #: How many clients that write rows which materialized views are made from.
    viewing: int = 0
    #: How many clients that write a table whose changes are captured.
    capturing: int = 0
    #: How many clients that write rows which secondary indexes find.
    indexing: int = 0
    #: How many clients that write single columns of rows which have several.
    columns: int = 0
    #: How many clients that ask together for far more than nodes can do, whose requests then take time.
    overload: int = 0
    #: How many clients that load rows in bulk.
    loading: int = 0
    #: How many data centres, one of these; there are this many times as many founders and spares.
    dcs: tuple[int, ...] = (1,)
    #: At which levels clients mostly ask, and at which they sometimes do; empty leaves it to the load.
    levels: tuple[Consistency, ...] = ()
    rare_levels: tuple[Consistency, ...] = ()
    #: Facts that a batch of seeds must show at least once.
    sometimes: tuple[str, ...] = ()
    #: Whether a batch that names no scenario runs it.
    by_default: bool = True


def _limits(scenario: Scenario, world: World) -> contextlib.AbstractContextManager[None]:
    """So few ids are kept that some are forgotten in a run, and deletions are purged within it; machines look
    at themselves; where nodes are slow, they begin as much less at once."""
    changes: list[tuple[Any, str, Any]] = self_checking()
    if scenario.recent_ids:
        changes.append((recent_ids, "RECENT_ENTRY_IDS_MAX", scenario.recent_ids))
    if "no_heir" in scenario.always:
        changes.append((decommission_handoff, "LEAVING_FAREWELL_MS", FAREWELL_MS))
    if "crash_building" in scenario.always:
        # Every partition is larger than a page, and each page is noted.
        changes.append((view_builds, "VIEW_BUILD_ROWS", 2))
        changes += [(limits, "INDEX_BUILD_FRAGMENTS", 2), (limits, "INDEX_NOTED_EVERY", 1)]
    if scenario.tight:
        changes += tight_limits(world.stream("limits"))
    if scenario.repair_s:
        changes.append((purging, "PURGE_AGE_S_MIN", 0))
    if scenario.overload:
        changes += slow_limits()
    return replaced(*changes)


def _metadata_submitters(scenario: Scenario, operators: Operators) -> AccessOperators | None:
    """Start with the schema those who load the metadata itself; those of roles, who are judged at the end."""
    if scenario.metadata_ms:
        service = MetadataOperators(operators, scenario.metadata_ms)
        operators.when_ready.append(service.start)
        operators.at_end.append(service.end)
    if not scenario.access_ms:
        return None
    access = AccessOperators(operators, scenario.access_ms)
    operators.when_ready.append(access.start)
    return access


def _sides(scenario: Scenario, operators: Operators, watch: Watch) -> list[Side]:
    """Clients beside the workload."""
    loads: tuple[tuple[Callable[[Operators, int], Side], int], ...] = (
        (TimestampWorkload, scenario.stamped),
        (CounterWorkload, scenario.counting),
        (BatchWorkload, scenario.batching),
        (ConditionalWorkload, scenario.deciding),
        (ViewWorkload, scenario.viewing),
        (IndexWorkload, scenario.indexing),
        (ColumnWorkload, scenario.columns),
        (OverloadWorkload, scenario.overload),
        (LoadWorkload, scenario.loading),
        (CaptureWorkload, scenario.capturing),
    )
    sides = [load(operators, clients) for load, clients in loads if clients]
    for side in sides:
        if isinstance(side, ColumnWorkload):
            side.when_read = partial(watch.check_equal, COLUMNED)
        if isinstance(side, CaptureWorkload):
            side.watch(watch, bool(scenario.tablets), scenario.steps_clocks)
        if isinstance(side, BatchWorkload):
            side.is_recorded = watch.keeping.left.is_recorded
    return sides


def _listeners(scenario: Scenario, cluster: SimCluster, watch: Watch, rows: int) -> list[StageListener]:
    """Who counts as facts what operations meet on their way."""
    found: list[StageListener] = []
    if cluster.shape.dcs > 1:
        found.append(DataCentreWatch(cluster).stage)
    if scenario.unread:
        found.append(LoneHolders(cluster, watch.disks, rows).stage)
    return found


def _drawn_load(scenario: Scenario, world: World, draw: Stream) -> Load:
    """What clients ask, drawn."""
    load: Load = draw_load(draw)
    if scenario.clients:
        load = msgspec.structs.replace(load, clients=scenario.clients)
    if scenario.levels:
        load = msgspec.structs.replace(load, levels=scenario.levels)
    if scenario.rare_levels:
        load = msgspec.structs.replace(load, rare_levels=scenario.rare_levels)
    load = of_whole_partitions(load, scenario.whole) if scenario.whole else load
    volley = world.stream("volley").choice(scenario.volley)
    return msgspec.structs.replace(load, volley=volley, unread=scenario.unread)


def _renewed(change: Change, timestamp: int) -> Change:
    """The same puts as a new write: every write has a timestamp of its own."""
    puts = tuple((at, f"{timestamp}/again".encode()) for at, _ in change.puts)
    return msgspec.structs.replace(change, timestamp_us=timestamp, puts=puts)


def _drawn_shape(scenario: Scenario, world: World, draw: Stream) -> Shape:
    dcs = world.stream("dcs").choice(scenario.dcs)
    shape = draw_shape(
        draw,
        founders=tuple(dcs * founders for founders in scenario.founders),
        spares=dcs * scenario.spares,
        sync_ms=scenario.sync_ms,
        factors=scenario.factors,
        dcs=dcs,
    )
    if scenario.duplicate:
        duplicate = world.stream("duplicate").choice(scenario.duplicate)
        shape = msgspec.structs.replace(shape, duplicate=duplicate)
    hints = world.stream("hints").choice(scenario.hints)
    ring_mode = world.stream("ring mode").choice(scenario.ring_mode)
    after_s = world.stream("cohorts").choice(scenario.cohort_after_s)
    shape = msgspec.structs.replace(shape, hints=hints, ring_mode=ring_mode, cohort_after_s=after_s)
    shape = msgspec.structs.replace(shape, tracked=scenario.tracked, witnesses=scenario.witnesses)
    if scenario.tablets or scenario.migrates_s or scenario.witnesses:
        shape = msgspec.structs.replace(shape, tablets=scenario.tablets, strategy="NetworkTopologyStrategy")
    return shape


class Run:
    """`result()` runs it all; afterwards `cluster.story` tells what happened when a trace was asked for."""

    def __init__(self, scenario: Scenario, seed: int, *, trace: bool = False) -> None:
        self.scenario = scenario
        self.seed = seed
        self.world = World(seed, WorldSettings(keep_trace=trace))
        draw = self.world.stream("scenario")
        shape = _drawn_shape(scenario, self.world, draw)
        load = self._load(draw)
        self.cluster = SimCluster(self.world, shape)
        self.cluster.append_bytes_max = self.world.stream("appends").choice(scenario.append_bytes)
        self.watch = Watch(self.cluster, load.rows)
        watch_progress(self.cluster, self.watch.appliers)
        self.telling = Telling(self.cluster)
        self.watch.appliers.append(self.telling.applied)
        tables = ["t1", "t2"]
        self.workload = Workload(self.cluster, load, tables)
        self.operators = self._operators(tables)
        self.schema_operators: SchemaOperators | None = None
        if scenario.schema_ms:
            self.schema_operators = SchemaOperators(self.operators, scenario.schema_ms, tables)
            self.operators.when_ready.append(self.schema_operators.start)
        self.access_operators = _metadata_submitters(scenario, self.operators)
        if scenario.kinds_s:
            kinds = KindOperators(self.operators, scenario.kinds_s, scenario.forced)
            self.operators.when_ready.append(kinds.start)
            self.operators.at_end.append(kinds.end)
        if scenario.cancel_joins:
            cancelling = CancellingOperators(self.operators, self.watch, scenario.cancel_joins)
            self.operators.when_ready.append(cancelling.start)
        if scenario.replication_s:
            changes = ReplicationOperators(self.operators, scenario.replication_s)
            self.operators.when_ready.append(changes.start)
            self.operators.at_end.append(changes.end)
        if scenario.migrates_s:
            self.operators.when_ready.append(MigrationOperators(self.operators, scenario.migrates_s).start)
        if scenario.retracks_s:
            self.operators.when_ready.append(TrackingOperators(self.operators, scenario.retracks_s).start)
        if scenario.resize_s:
            resizes = TabletOperators(self.operators, scenario.resize_s)
            self.operators.when_ready.append(resizes.start)
            self.operators.at_end.append(resizes.end)
            self.watch.appliers.append(ResizeWatch(self.watch.seen_by_id, self.cluster.fact).applied)
        if scenario.repair_s:
            repairs = RepairOperators(self.operators, scenario.repair_s, partial=scenario.partial_repairs)
            self.operators.when_ready.append(repairs.start)
            self.operators.at_end.append(repairs.end)
        if scenario.upgrades_s:
            assert isinstance(self.operators, BusyOperators), "operators who upgrade are busy"
            upgrades = UpgradeOperators(self.operators, scenario.upgrades_s)
            self.operators.when_ready.append(upgrades.start)
            self.operators.at_end.append(upgrades.end)
        self.sides = _sides(scenario, self.operators, self.watch)
        swarm = draw_swarm(draw, scenario.faults, scenario.always)
        self.nemesis = Nemesis(self.cluster, self.watch, swarm, scenario.steps_clocks)
        for side in self.sides:
            if isinstance(side, ColumnWorkload):
                side.expires = not self.nemesis.clocks_step
        self.watch.listeners.append(self._operation_ended)
        self.watch.listeners += _listeners(scenario, self.cluster, self.watch, load.rows)
        self.judged = 0

    @property
    def story(self) -> list[tuple[int, str, str]] | None:
        """What happened, when a trace was asked for."""
        return self.cluster.story

    def _load(self, draw: Stream) -> Load:
        return _drawn_load(self.scenario, self.world, draw)

    def _operators(self, tables: list[str]) -> Operators:
        busy_s, cancel, churn_ms = self.scenario.busy_s, self.scenario.cancel, self.scenario.churn_ms
        return BusyOperators(self.cluster, busy_s=busy_s, cancel=cancel, churn_ms=churn_ms, tables=tables)

    def result(self) -> SeedResult:
        invariant = violation = ""
        with _limits(self.scenario, self.world), self.world:
            try:
                self._phases()
            except Violation as found:
                invariant, violation = found.invariant, str(found)
            except AssertionError as found:
                invariant, violation = classified(self.world.errors, found)
            digest = self.world.digest()
        history = self.cluster.history
        return SeedResult(
            scenario=self.scenario.name,
            seed=self.seed,
            violation=violation,
            invariant=invariant,
            digest=digest,
            events=self.world.trace.count,
            virtual_s=self.world.now_s(),
            requests=len(history.events),
            acknowledged=history.count(Outcome.OK),
            judged=self.judged,
            inspected=self.watch.inspected,
            epochs=self.cluster.newest.epoch,
            effects=dict(self.world.effects),
            facts=dict(self.cluster.facts),
            probes=dict(self.world.probes.counts),
            faults=self.nemesis.swarm.kinds,
        )

    # ---- phases

    def _phases(self) -> None:
        self.cluster.start()
        self.operators.start()
        self._wait(_FOUND_S, "founding", lambda: self.operators.ready)
        self.workload.start()
        self.nemesis.start()
        self.world.run_for(self.scenario.chaos_s)
        self.world.check()
        self._heal()
        self._settle()
        self._final_requests()
        self._judge()

    def _wait(self, seconds: float, what: str, done: Callable[[], bool]) -> None:
        self.world.run_for(seconds, done=done)
        self.world.check()
        if not done():
            raise Violation(
                "LIVENESS", f"{what} took more than {seconds} virtual seconds: {self._blockers()}"
            )

    def _heal(self) -> None:
        self.cluster.tell("world", "heals")
        self.nemesis.stop()
        self.operators.stopped = True
        self.workload.stop()
        for side in self.sides:
            side.stopped = True
        for name in self.cluster.in_service():
            if not self.cluster.processes[name].alive:
                self.cluster.start_node(name)

    def _settle(self) -> None:
        self._wait(_SETTLE_S, "settling", self._settled)
        if self.scenario.tracked or self.scenario.retracks_s:
            self._wait(_SETTLE_S, "reconciling", lambda: not has_open_ids(self.cluster))
        if self.scenario.tracked:
            self.judged += check_reconciled(self.watch)

    def _settled(self) -> bool:
        cluster = self.cluster
        newest = cluster.newest
        if (
            newest.operations
            or (self.scenario.forced and newest.degraded)
            or not self.workload.idle
            or not self.operators.idle
            or cluster.stores.unfilled
        ):
            return False
        if self._voters() or not all(side.idle for side in self.sides):
            return False
        for name in cluster.in_service():
            node = cluster.nodes.get(name)
            if not cluster.ready(name) or node is None or node.log.state.epoch != newest.epoch:
                return False
        return not self._management_blockers()

    def _management_blockers(self) -> list[str]:
        """Members of the management group that do not yet hold what it must hold in the end."""
        monitor, newest, found = self.watch.management, self.cluster.newest, []
        for name in self.cluster.in_service():
            node = self.cluster.nodes.get(name)
            group = node.membership.management.group if node is not None else None
            if group is not None and group.driver.raft.configuration.has_vote(group.driver.raft.identity):
                lacking = monitor.lacking(group.state, newest)
                if lacking:
                    found.append(f"{name} lacks in the management group: {lacking}")
        return found

    def _voters(self) -> str:
        """Why the voters of the metadata group are not settled."""
        leading = (node for node in self.cluster.nodes.values() if node.ready and node.log.is_leader)
        return unsettled_voters(self.cluster.newest, next(leading, None))

    def _blockers(self) -> str:
        cluster = self.cluster
        parts = [self._voters()] if self._voters() else []
        parts += [operation.title() + f" in {operation.stage}" for operation in cluster.newest.operations]
        parts += [f"{len(cluster.newest.degraded)} ranges are degraded"] * bool(cluster.newest.degraded)
        for name in cluster.in_service():
            if not cluster.ready(name):
                parts.append(f"{name} is not ready (running: {cluster.processes[name].alive})")
            elif cluster.nodes[name].log.state.epoch != cluster.newest.epoch:
                parts.append(f"{name} is at epoch {cluster.nodes[name].log.state.epoch}")
        for node in [node for node in cluster.nodes.values() if node.is_loaded]:
            parts.extend(f"waits for node {b.node}: {b.reason}" for b in node.work.topology.blocking)
        parts.extend(self._management_blockers())
        parts += [f"{name} has lost its store and is not filled" for name in cluster.stores.unfilled]
        if not self.workload.idle:
            parts.append("a client does not end")
        return "; ".join(parts)

    # ---- the end

    def _final_requests(self) -> None:
        names = [name for name in self.cluster.in_service() if self.cluster.ready(name)]
        for number, name in enumerate(names):
            requests = self._fresh_requests(number) + self.workload.final_reads()
            if self._has_replicas(self.cluster.scope_of(name)):
                requests += self.workload.final_reads(Consistency.LOCAL_QUORUM)
            self._perform(name, requests)
        for side in self.sides:
            side.read_all(names)

    def _has_replicas(self, dc: str) -> bool:
        """Whether quorums of the data centre have replicas; "" is none, for its quorums are those of all."""
        replication = self.cluster.newest.schema.by_name[KEYSPACE].replication
        return dict(dc_factors(replication)).get(dc, 0) > 0

    def _fresh_requests(self, number: int) -> list[Change | Look]:
        table, key = self.workload.tables[0], self.workload.keys()[0]
        timestamp = self.workload.next_timestamp()
        rows = range(self.workload.load.rows if self.scenario.whole else 1)
        puts = tuple((row, f"{timestamp}/final{number}".encode()) for row in rows)
        return [
            Change(table, key, timestamp, Consistency.QUORUM, 5000, puts),
            Look(table, key, 0, Consistency.QUORUM, 5000),
            Look(table, key, None, Consistency.ALL, 5000),
        ]

    def _perform(self, name: str, requests: list[Change | Look]) -> None:
        dc = self.cluster.dc_of(name)
        client = Client(self.workload, f"final-{name}", self.world.stream(f"final/{name}"), dc)

        async def main(runtime: Runtime) -> Event | None:
            for request in requests:
                event = await self._insist(runtime, client, name, request)
                if event.outcome is not Outcome.OK and not self._is_moot(request, name):
                    return event
            return None

        event = self.world.call(main, name=f"final-{name}", limit_s=1000.0)
        if event is not None:
            why = f"{event.request.text()} through {name} is {event.error}"
            raise Violation("LIVENESS", f"{_INSIST_S:.0f} s after healing, {why}")

    async def _insist(self, runtime: Runtime, client: Client, name: str, request: Change | Look) -> Event:
        """Ask until it succeeds: nodes may need a moment to notice who is back."""
        host = self.cluster.processes[name].host
        deadline_s = self.world.now_s() + _INSIST_S
        while True:
            try:
                door = await DoorClient.connect(runtime, host, 2000)
            except (OSError, TimeoutError) as error:
                if self.world.now_s() > deadline_s:
                    raise Violation("LIVENESS", f"{host} does not accept connections: {error}") from error
                await asyncio.sleep(0.5)
                continue
            event = await client.perform(door, request)
            door.close()
            is_late = self.world.now_s() > deadline_s
            if event.outcome is Outcome.OK or self._is_moot(request, name) or is_late:
                return event
            await asyncio.sleep(0.5)
            if isinstance(request, Change):
                request = _renewed(request, self.workload.next_timestamp())

    def _is_moot(self, request: Change | Look, name: str) -> bool:
        """Whether an operator's change that came in late took the replicas of the asked data centre away."""
        dc = self.cluster.scope_of(name)
        return request.consistency is Consistency.LOCAL_QUORUM and not self._has_replicas(dc)

    def _judge(self) -> None:
        events, rows = self.cluster.history.events, self.workload.load.rows
        self.judged = check_registers(events, rows, apart=self.watch.isolated)
        self.judged += check_whole(events) if self.scenario.tracked else 0
        if self.scenario.whole:
            self.cluster.facts["partitions read whole"] = check_none_torn(events, rows)
        self.judged += sum(side.judge() for side in self.sides)
        self.watch.inspect("REP-1", self.cluster.newest)
        if self.scenario.tablets and (stored := self.watch.unowned(self.cluster.newest)):
            raise Violation("TAB-1", f"at the end, {stored[0]}")
        if self.telling.unhealed():
            self.world.run_for(_HEARD_S, done=lambda: not self.telling.unhealed())
            self.world.check()
        self.telling.ended()
        if self.scenario.repair_s:
            self.watch.check_unchanged(self.cluster.newest)
        if self.schema_operators is not None:
            self.schema_operators.judge(self.watch.log.values)
        if self.access_operators is not None:
            self.judged += self.access_operators.judge(self.watch.log.values)
        log, record = self.watch.log, self.operators.submitting.submissions
        ids = ((value.epoch, value.recent_ids.listed()[-1]) for value in log.values[1:])
        check_submissions(ids, record)
        self.judged += check_refusals(log.values, record, every_kind())
        if self.scenario.replays:
            entries = [self.watch.entries[epoch] for epoch in range(1, len(log.values))]
            check_replays(self.world, self.cluster.open_store, entries, log.values, log.digests)

    def _operation_ended(self, operation: Operation, stage: Stage | None) -> None:
        completed = stage is None and operation.stage is not Stage.ROLLBACK_TO_NORMAL
        if completed and isinstance(operation.body, Decommission):
            self.operators.left(operation.node)
