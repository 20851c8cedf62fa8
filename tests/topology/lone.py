"""Transitions that move by themselves, of a kind that only tests know."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.transitions import TRANSITIONS, Lone, Position, Transition
from lockstep.schema.model import Replication
from lockstep.topology.board import Board
from lockstep.topology.planning import holder_of
from lockstep.topology.stages import RANGE_MOVEMENT, Course
from lockstep.topology.step import (
    Decision,
    Idle,
    Propose,
    Reports,
    RunWorkOrders,
    WorkKey,
    WorkOrder,
    WorkReport,
    step,
    work_key,
)
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.tokens import Range
from tests.metadata.histories import History, registry

SHUFFLE = Course("shuffle", RANGE_MOVEMENT)
COURSES: Mapping[str, Course] = {SHUFFLE.name: SHUFFLE}


class BeginShuffle(msgspec.Struct, frozen=True, array_like=True):
    """Ranges of a placement group, by their right bounds, begin to move to other replicas each."""

    group: int
    moves: tuple[tuple[int, tuple[NodeId, ...]], ...]

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        ring = cluster.placements.ring(self.group)
        begun = []
        for right, new in self.moves:
            placed = ring.range_at(right)
            held = cluster.transitions.at(self.group, placed.range.right)
            if held is not None:
                raise Rejected(f"{holder_of(cluster, held)} holds the range")
            sides = placed.group.reads, new
            begun.append(moving(self.group, placed.range, sides, ring.replication, epoch))
        return cluster.changed(TRANSITIONS.set(cluster.transitions.moved(begun)))


def moving(
    group: int,
    range_: Range,
    sides: tuple[tuple[NodeId, ...], tuple[NodeId, ...]],
    replication: Replication,
    epoch: int,
) -> Transition:
    """One in its first stage since `epoch`."""
    first = Position(SHUFFLE.name, RANGE_MOVEMENT[0].stage, epoch)
    one = Transition(group, range_, *sides, replication, position=first)
    session = f"{Lone(one).session_prefix}{epoch}"
    return msgspec.structs.replace(one, position=msgspec.structs.replace(first, session_id=session))


KINDS = registry({1001: BeginShuffle})


class World:
    """A coordinator with a board, and nodes that see epochs late, and do or fail their work."""

    def __init__(self, history: History, rng: random.Random, fails: float = 0.0) -> None:
        self.history = history
        self.rng = rng
        self.fails = fails
        self.dead: tuple[NodeId, ...] = ()
        self.board = Board()
        self.seen: dict[NodeId, int] = {}
        self.work: dict[WorkKey, WorkReport] = {}

    def reports(self) -> Reports:
        return Reports(acknowledged=dict(self.seen), work=dict(self.work), dead=self.dead)

    def decided(self, board: Board | None = None) -> Decision:
        reports = self.reports()
        return step(self.history.now, reports, (board or self.board).look(self.history.now, reports))

    def round(self) -> bool:
        """One decision carried out, or some of it; False when there is nothing to do."""
        decision = self.decided()
        if isinstance(decision, Idle):
            return False
        if isinstance(decision, Propose):
            self.history.submit(decision.transformation)
        elif isinstance(decision, RunWorkOrders):
            order = self.rng.choice(decision.orders)
            assert self.history.now.session_open(order.session_id)
            failed = self.rng.random() < self.fails
            self.work[work_key(order)] = WorkReport.FAILED if failed else self.next_report(order)
        else:
            self.catch_up([node for node, _ in decision.blockers if node not in self.dead])
        return True

    def next_report(self, order: WorkOrder) -> WorkReport:
        known = self.work.get(work_key(order))
        return WorkReport.RUNNING if known is None and self.rng.random() < 0.4 else WorkReport.DONE

    def catch_up(self, nodes: Sequence[NodeId]) -> None:
        for key, report in self.work.items():
            if report is WorkReport.RUNNING:
                self.work[key] = WorkReport.DONE
        if nodes:
            node = self.rng.choice(nodes)
            self.seen[node] = self.rng.randint(self.seen.get(node, 0), self.history.now.epoch)
