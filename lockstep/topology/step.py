"""The coordinator's decision: given the metadata and what is known of the nodes, what to do now.

Invariant: a pure function. In each stage the order is barrier (with its drain), then the stage's work,
then the entry that leaves the stage; a decision never depends on how often it is asked, so any node can
take over at any point.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property, partial

import msgspec

from lockstep.metadata import features
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.directory import NodeState
from lockstep.metadata.features import EnableFeatures
from lockstep.metadata.operations import Operation, Stage
from lockstep.metadata.transitions import Lone, Transition
from lockstep.placement.quorums import DcOf
from lockstep.topology import requests
from lockstep.topology.barriers import BarrierState, GuardReport, Missing, barrier_need, evaluate
from lockstep.topology.generations import PublishGenerations, publication
from lockstep.topology.kind import Mover, course_of, kind_of, moving, row_can_go_back, stage_row
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.requests import FailRequest
from lockstep.topology.roles import demoted, promoted
from lockstep.topology.stages import DELETING, STREAMING, Side, StreamTask, Work
from lockstep.topology.streams import stream_plan
from lockstep.topology.tablets.drains import wants_filling
from lockstep.topology.transformations import (
    AdvanceOperation,
    CancelOperation,
    PrepareOperation,
    can_go_back,
    preparation,
)
from lockstep.values.ids import NodeId
from lockstep.values.memo import memo_from
from lockstep.values.tokens import Range


class WorkReport(enum.StrEnum):
    """What a node says of its part of a stage's work; it says FAILED only when retries cannot help."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


#: Names one node's part of one stage's work: operation, session, node.
WorkKey = tuple[int, str, NodeId]


class Reports(msgspec.Struct, frozen=True):
    """What the coordinator knows beside the metadata; all of it can be asked for again.

    acknowledged: newest epoch each node has durably applied. work: one report for each part, and in
    texts what the node said. dead: nodes the failure detector convicts; they only change who streams.
    drained: newest epoch such that every request the node accepted under an older one is finished;
    None when each source drains by itself before it answers a stream request that carries the stage's
    epoch. follows: why the group that follows the voters still needs nodes that vote no more. guards: what
    nodes said of sessions that closed; None as for drains. relaxed: (operation, stage epoch) of barriers
    whose quorums within data centres operators let go. at_ms: the coordinator's wall clock.
    """

    acknowledged: Mapping[NodeId, int] = {}
    work: Mapping[WorkKey, WorkReport] = {}
    dead: tuple[NodeId, ...] = ()
    drained: Mapping[NodeId, int] | None = None
    texts: Mapping[WorkKey, str] = {}
    follows: str = ""
    guards: Mapping[NodeId, GuardReport] | None = None
    relaxed: tuple[tuple[int, int], ...] = ()
    at_ms: int = 0


class WorkOrder(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Work of one node in one stage, valid while its session is open.

    kind WIPE, CLEANUP, DISCARD: delete what is stored of `ranges`; CLEANUP of the node that leaves: give away
    what it keeps for others. kind STREAM, REBUILD: copy `tasks`, all
    with this node as target.
    """

    node: NodeId
    operation_id: int
    stage: Stage
    session_id: str
    kind: Work
    ranges: tuple[tuple[int, Range], ...] = ()
    tasks: tuple[StreamTask, ...] = ()

    @cached_property
    def sources(self) -> frozenset[NodeId]:
        """From whom its tasks copy."""
        return frozenset(source for task in self.tasks for source in task.sources)

    @cached_property
    def starved(self) -> tuple[StreamTask, ...]:
        """Tasks that too few old replicas are alive for."""
        return tuple(task for task in self.tasks if not task.sources)


class Propose(msgspec.Struct, frozen=True):
    """Submit this entry. A second copy of it is refused, because it names the stage or the request it takes
    on. `operation_id` is 0 for one that is about a request, or about transitions that move by themselves."""

    transformation: (
        AdvanceOperation
        | CancelOperation
        | PrepareOperation
        | FailRequest
        | EnableFeatures
        | PublishGenerations
        | AdvanceTransitions
    )
    operation_id: int


class RunWorkOrders(msgspec.Struct, frozen=True):
    """Have each node do its part; asking again while it runs, or after it is done, is harmless.

    `wait`: what other operations wait for meanwhile.
    """

    orders: tuple[WorkOrder, ...]
    wait: Wait | None = None


class Wait(msgspec.Struct, frozen=True):
    """Nothing to do until a report changes.

    blockers: (node, reason). epoch: ask the blockers whether they have applied it. operation_id: the
    first operation that waits; operations: for each blocker, the one that waits for it.
    """

    operation_id: int
    epoch: int
    blockers: tuple[tuple[NodeId, str], ...]
    operations: tuple[int, ...] = ()


class Idle(msgspec.Struct, frozen=True):
    """No operation is running, and no request may begin."""


Decision = Propose | RunWorkOrders | Wait | Idle


class Looked(msgspec.Struct, frozen=True):
    """What is next for transitions that move by themselves: see `topology.board`."""

    steps: tuple[TransitionStep, ...] = ()
    orders: tuple[WorkOrder, ...] = ()
    wait: Wait | None = None


def step(cluster: ClusterMetadata, reports: Reports, looked: Looked | None = None) -> Decision:
    """The next thing to do for any operation, transition or request: an entry before work, work before
    waiting. `looked`: where transitions move by themselves, what a board found for these arguments."""
    assert looked is not None or not cluster.transitions.lone_count, "somebody has looked at what moves alone"
    looked = looked or Looked()
    orders: list[WorkOrder] = []
    waits: list[Wait] = []
    # Writes at the times of streams wait for that, and it holds nothing up.
    publishes = _generations_step(cluster, reports)
    if isinstance(publishes, Propose):
        return publishes
    for operation in cluster.operations:
        decision = decide(operation, cluster, reports)
        if isinstance(decision, Propose) and cluster.service.frozen:
            decision = _wait(operation, [(operation.node, _frozen_text(cluster))])
        if isinstance(decision, Propose):
            return decision
        if isinstance(decision, RunWorkOrders):
            orders.extend(decision.orders)
        else:
            assert isinstance(decision, Wait), "what runs is never idle"
            waits.append(decision)
    if looked.steps and not cluster.service.frozen:
        return Propose(AdvanceTransitions(looked.steps), 0)
    orders.extend(looked.orders)
    if looked.steps:
        waits.append(Wait(0, cluster.epoch, ((NodeId(0), _frozen_text(cluster)),), (0,)))
    elif looked.wait is not None:
        waits.append(looked.wait)
    if publishes is not None:
        waits.append(publishes)
    entry = _queue_step(cluster, reports)
    if entry is not None:
        return entry
    if orders:
        return RunWorkOrders(tuple(orders), _together(waits))
    return _together(waits) or _features_step(cluster, reports) or Idle()


def _together(waits: Sequence[Wait]) -> Wait | None:
    if not waits:
        return None
    blockers = tuple(blocker for wait in waits for blocker in wait.blockers)
    operations = tuple(wait.operation_id for wait in waits for _ in wait.blockers)
    assert len(operations) == len(blockers), "each blocker holds up an operation"
    return Wait(waits[0].operation_id, max(wait.epoch for wait in waits), blockers, operations)


def _features_step(cluster: ClusterMetadata, reports: Reports) -> Propose | Wait | None:
    """Enable what all nodes support, once all have seen the last announcement of support."""
    names = features.due(cluster)
    if not names:
        return None
    needed = cluster.features.announced_epoch
    assert needed <= cluster.epoch, "what is awaited was announced"
    missing = features.unaware(cluster, reports.acknowledged)
    if not missing:
        return Propose(EnableFeatures(names), 0)
    return _unaware(needed, missing, f"to enable {', '.join(names)}")


def _generations_step(cluster: ClusterMetadata, reports: Reports) -> Propose | Wait | None:
    """Publish generations of streams that all nodes know, or have them count later. Not even frozen metadata
    holds that back: writes at their times wait for it."""
    seen = _heard(cluster, reports.acknowledged)
    found = publication(cluster, seen, unheard(cluster, reports), reports.at_ms)
    if isinstance(found, PublishGenerations):
        return Propose(found, 0)
    if found is None:
        return None
    return _unaware(found.needed_epoch, found.nodes, "to publish streams of changes")


def _unaware(needed: int, nodes: Sequence[tuple[NodeId, int]], what: str) -> Wait:
    """The wait for nodes, each with the epoch it was last seen at, that is of no operation."""
    blockers = tuple((node, f"last seen epoch {seen}, needs {needed} ({what})") for node, seen in nodes)
    return Wait(0, needed, blockers, (0,) * len(blockers))


def _queue_step(cluster: ClusterMetadata, reports: Reports) -> Propose | None:
    """The entry that begins the request that goes first, or ends one that never can."""
    choice = requests.choose(cluster, reports.follows)
    assert choice.run is None or choice.fails is None, "a request begins or fails"
    if choice.run is not None:
        return Propose(preparation(choice.run, choice.run.id), 0)
    if choice.fails is not None:
        return Propose(FailRequest(choice.fails[0].id), 0)
    return None


def decide(mover: Mover, cluster: ClusterMetadata, reports: Reports) -> Decision:
    """The next thing to do for one operation, or one transition that moves by itself; never Idle."""
    assert isinstance(mover, Lone) or mover.id in cluster.operations_by_id, "what runs is decided"
    assert mover.stage_epoch <= cluster.epoch, "a stage of an epoch that is to come"
    row = stage_row(mover)
    dead = unheard(cluster, reports)
    orders = work_orders(mover, cluster, dead)
    if isinstance(mover, Lone) and goes_back(mover, cluster, dead):
        return _stepping(mover, failed=True)
    failed = [order for order in orders if report_of(reports, order) is WorkReport.FAILED]
    if failed and row.on_failure is not None:
        if isinstance(mover, Lone):
            return _stepping(mover, failed=True)
        if not kind_of(mover).is_taken_back(mover):
            text = _failure_text(reports, failed)
            return Propose(CancelOperation(mover.id, text, failed=True), mover.id)
    open_orders = [order for order in orders if report_of(reports, order) is not WorkReport.DONE]
    state = barrier_state(mover, cluster, reports, open_orders)
    advice = "" if isinstance(mover, Lone) else _advice(mover, cluster)
    if not state.passed:
        silent = unheard(cluster, reports) if advice else ()
        return _wait(
            mover,
            [
                (m.node, _missing_text(cluster, m) + (advice if m.node in silent else ""))
                for m in state.missing
            ],
        )
    # Where there is no way back, what failed is asked for until somebody has mended what it failed by.
    starting = [order for order in open_orders if report_of(reports, order) is not WorkReport.RUNNING]
    starved = [task for order in starting for task in order.starved]
    if starved:
        return _wait(mover, [(task.target, _starved_text(task) + advice) for task in starved])
    if starting:
        assert len({work_key(order) for order in starting}) == len(starting), "a node has one part of a stage"
        return RunWorkOrders(tuple(starting))
    if open_orders:
        return _wait(mover, [(order.node, _running_text(reports, order)) for order in open_orders])
    if isinstance(mover, Lone):
        return _stepping(mover)
    at_ms = reports.at_ms if row.next is Stage.COMMIT_CDC_GENERATION else 0
    return Propose(AdvanceOperation(mover.id, mover.stage, mover.step, at_ms), mover.id)


def is_out(cluster: ClusterMetadata, node: NodeId) -> bool:
    """Whether a node is shut out, or has left: nobody waits for its part in what moves by itself."""
    info = cluster.node(node)
    return node in cluster.excluded_by_node or info is None or info.state is NodeState.LEFT


def _is_gone(
    cluster: ClusterMetadata, node: NodeId, dead: Sequence[NodeId], given_up: Sequence[NodeId]
) -> bool:
    """As `is_out`; or it seems dead, and a request that waits says that it is."""
    return is_out(cluster, node) or (node in dead and node in given_up)


class Silence(enum.StrEnum):
    """Why a transition that moves by itself may do without a node, or is not to be given by it."""

    DEAD = "dead"
    GIVEN_UP = "given_up"
    OUT = "out"
    WANTS_FILLING = "wants_filling"


def silences(cluster: ClusterMetadata, dead: Sequence[NodeId]) -> Iterator[tuple[NodeId, Silence]]:
    """All that `decide` goes by for what moves by itself, beside what nodes report."""
    given_up = _given_up(cluster)
    for node in dead:
        yield node, Silence.OUT if is_out(cluster, node) else Silence.DEAD
        if node in given_up:
            yield node, Silence.GIVEN_UP
    for node in wants_filling(cluster):
        yield node, Silence.WANTS_FILLING


def goes_back(lone: Lone, cluster: ClusterMetadata, dead: Sequence[NodeId]) -> bool:
    """Whether nodes that are gone send it where failure leads: while the old replicas are read, one that
    was to get the range, or the last from which it could be filled; later, when of the new replicas more are
    lost than of the old ones. Their removal waits for that. So does what is to fill a node anew: it may have
    lost what it is to give."""
    one, row, given_up = lone.transition, stage_row(lone), _given_up(cluster)
    out = [node for node in one.union if _is_gone(cluster, node, dead, given_up)]
    lacking = [node for node in wants_filling(cluster) if node in one.old]
    if row.on_failure is None or not (out or lacking):
        return False
    if lacking and row.work in STREAMING:
        tasks = stream_plan(lone, cluster, out)
        if any(node in task.sources for task in tasks for node in lacking):
            return True
    if not out:
        return False
    if row.reads is Side.NEW:
        lost_new, lost_old = (sum(node in out for node in side) for side in (one.new, one.old))
        return course_of(lone).has_way_back and lost_new > lost_old
    if any(node in out for node in one.gained):
        return True
    return row.work in STREAMING and any(not task.sources for task in stream_plan(lone, cluster, out))


def _stepping(lone: Lone, failed: bool = False) -> Propose:
    one = lone.transition
    assert lone.stage_epoch > 0, "who goes on has entered a stage"
    return Propose(
        AdvanceTransitions((TransitionStep(one.group, one.range.right, lone.stage_epoch, failed),)), 0
    )


def _wait(mover: Mover, blockers: list[tuple[NodeId, str]]) -> Wait:
    assert blockers, "somebody is waited for"
    return Wait(mover.id, mover.stage_epoch, tuple(blockers), (mover.id,) * len(blockers))


def barrier_state(
    mover: Mover, cluster: ClusterMetadata, reports: Reports, open_orders: Sequence[WorkOrder]
) -> BarrierState:
    """The barrier of the present stage; only sources of streams still to run must be drained.

    One that operators let go is asked without the quorums within data centres.
    """
    sources = frozenset[NodeId]().union(*(order.sources for order in open_orders))
    workers = [order.node for order in open_orders]
    drained = reports.drained if reports.drained is not None else reports.acknowledged
    need = barrier_need(mover, cluster, sources, workers, unheard(cluster, reports))
    acknowledged, drained = _heard(cluster, reports.acknowledged), _heard(cluster, drained)
    relaxed = (mover.id, mover.stage_epoch) in reports.relaxed
    return evaluate(need, acknowledged, drained, reports.guards, relaxed)


def relaxable(cluster: ClusterMetadata, reports: Reports) -> tuple[tuple[Operation, BarrierState], ...]:
    """The operations whose barriers lack nothing but quorums within data centres, and what those lack."""
    found = []
    dead = unheard(cluster, reports)
    for operation in cluster.operations:
        orders = work_orders(operation, cluster, dead)
        open_orders = [order for order in orders if report_of(reports, order) is not WorkReport.DONE]
        state = barrier_state(operation, cluster, reports, open_orders)
        assert not (state.passed and state.relaxable), "only what waits can be let go"
        if state.relaxable:
            found.append((operation, state))
    return tuple(found)


def unheard(cluster: ClusterMetadata, reports: Reports) -> tuple[NodeId, ...]:
    """Nodes that seem dead, and those that are shut out."""
    return tuple({**dict.fromkeys(reports.dead), **dict.fromkeys(cluster.excluded_by_node)})


def _heard(cluster: ClusterMetadata, seen: Mapping[NodeId, int]) -> Mapping[NodeId, int]:
    """What counts as seen: nothing of what a node says that is shut out."""
    if not cluster.excluded:
        return seen
    return {node: epoch for node, epoch in seen.items() if node not in cluster.excluded_by_node}


def work_orders(mover: Mover, cluster: ClusterMetadata, dead: Sequence[NodeId]) -> tuple[WorkOrder, ...]:
    """The stage's work, one order for each node that has a part, ascending; empty when the stage has none.

    A tablet waits for a node that only seems dead, unless it is to be removed or replaced: it may be wanted
    there again before that one is back. On a ring, a node that is dead or departing cleans nothing up, and
    drops nothing that it was to gain: whatever it keeps is wiped before it may own it again. One that leaves
    alive gives away what it keeps for others.
    They are kept with what moves: who asks again at every report walks its ranges once.
    """
    given_up = _given_up(cluster) if isinstance(mover, Lone) or mover.about.keyspace else ()
    found = partial(_work_orders, mover, cluster, dead, given_up)
    # A transition that moves by itself is the same as long as its `Lone` is.
    ranges = moving(cluster, mover) if isinstance(mover, Operation) else None
    made_from = (cluster.directory, cluster.degraded, ranges, cluster.excluded)
    return memo_from(mover, "_orders", made_from, (tuple(dead), given_up), found)


def _given_up(cluster: ClusterMetadata) -> tuple[NodeId, ...]:
    """Whom requests that wait say to be dead: they are to be removed or replaced."""
    return tuple(r.about.presumed_dead for r in cluster.requests.queue if r.about.presumed_dead)


def _deleting(transition: Transition, work: Work, dc_of: DcOf) -> tuple[NodeId, ...]:
    """Who is left with data that it does not keep."""
    if work is Work.CLEANUP:
        return (*transition.lost, *demoted(transition, dc_of))
    return (*transition.gained, *promoted(transition, dc_of))


def _has_no_part(
    mover: Mover,
    transition: Transition,
    node: NodeId,
    cluster: ClusterMetadata,
    dead: Sequence[NodeId],
    given_up: Sequence[NodeId],
) -> bool:
    """Whether a node is not waited for to delete what it does not own."""
    if isinstance(mover, Lone) or transition.group in cluster.tablets.by_group:
        return _is_gone(cluster, node, dead, given_up)
    return node in dead


def _work_orders(
    mover: Mover, cluster: ClusterMetadata, dead: Sequence[NodeId], given_up: Sequence[NodeId] = ()
) -> tuple[WorkOrder, ...]:
    row, about, dc_of = stage_row(mover), mover.about, cluster.directory.dc_by_id.__getitem__
    ranges: dict[NodeId, list[tuple[int, Range]]] = {}
    tasks: dict[NodeId, list[StreamTask]] = {}
    if row.work is Work.WIPE:
        for transition in moving(cluster, mover):
            for node in (*transition.gained, *promoted(transition, dc_of)):
                ranges.setdefault(node, []).append((transition.group, transition.range))
    elif row.work in DELETING:
        for transition in moving(cluster, mover):
            for node in _deleting(transition, row.work, dc_of):
                missed = _has_no_part(mover, transition, node, cluster, dead, given_up)
                if node != about.departing and not missed:
                    ranges.setdefault(node, []).append((transition.group, transition.range))
        leaver = NodeId(0) if about.presumed_dead else about.departing
        if row.work is Work.CLEANUP and leaver and leaver not in dead:
            ranges.setdefault(leaver, [])
    elif row.work in STREAMING:
        for task in stream_plan(mover, cluster, dead):
            assert task.target not in task.sources, "nobody streams from itself"
            tasks.setdefault(task.target, []).append(task)
    assert bool(mover.session_id) or not (ranges or tasks), "work has a session"
    assert not (ranges and tasks), "a stage deletes or copies"
    assert row.work is not Work.NONE or not (ranges or tasks), "a stage without work asks nobody"
    return tuple(
        WorkOrder(
            node=node,
            operation_id=mover.id,
            stage=mover.stage,
            session_id=mover.session_id,
            kind=row.work,
            ranges=tuple(ranges.get(node, ())),
            tasks=tuple(tasks.get(node, ())),
        )
        for node in sorted([*ranges, *tasks])
    )


def work_key(order: WorkOrder) -> WorkKey:
    return (order.operation_id, order.session_id, order.node)


def report_of(reports: Reports, order: WorkOrder) -> WorkReport | None:
    return reports.work.get(work_key(order))


def _failure_text(reports: Reports, failed: Sequence[WorkOrder]) -> str:
    parts = (
        f"{o.kind} failed on node {o.node}: {reports.texts.get(work_key(o), 'no reason given')}"
        for o in failed
    )
    return "; ".join(parts)


def _missing_text(cluster: ClusterMetadata, missing: Missing) -> str:
    exclusion = cluster.excluded_by_node.get(missing.node)
    if exclusion is not None:
        return f"is excluded since epoch {exclusion.epoch}: {exclusion.reason} ({missing.reason})"
    return f"last seen epoch {missing.seen}, needs {missing.needed} ({missing.reason})"


def _starved_text(task: StreamTask) -> str:
    return f"too few live replicas of ({task.range.left}, {task.range.right}] to stream from"


def _advice(operation: Operation, cluster: ClusterMetadata) -> str:
    """The way out of a change of replication that a dead node holds up; empty where a cancel does not help.

    It and the removal or replacement of that node would else wait for each other.
    """
    does = kind_of(operation).way_out(operation)
    if not does or not row_can_go_back(operation) or not can_go_back(operation):
        return ""
    request = cluster.requests.by_operation[operation.id]
    return f"; if nodes stay away, `lockstep topology cancel {request.id}` {does}"


def _running_text(reports: Reports, order: WorkOrder) -> str:
    text = reports.texts.get(work_key(order), "")
    return f"{order.kind} is running{f': {text}' if text else ''}"


def _frozen_text(cluster: ClusterMetadata) -> str:
    return f"the metadata is frozen: {cluster.service.frozen}"
