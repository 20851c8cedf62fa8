"""What transitions that move by themselves wait for: the coordinator's memory of them.

A board compares the tree of transitions with the one it looked at before, plans what differs and keeps the
rest. What a node reports wakes the transitions that wait for that node, and who seems dead those that it is a
replica of.

Invariant: what a board finds follows from the metadata and the reports alone, whatever it looked at before;
so a new coordinator, which begins with an empty one, comes to the same. To look costs what changed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Generic, TypeVar

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.transitions import Lone, Transition
from lockstep.topology.barriers import GuardReport
from lockstep.topology.lone_steps import AdvanceTransitions, TransitionStep
from lockstep.topology.step import (
    Looked,
    Propose,
    Reports,
    RunWorkOrders,
    Silence,
    Wait,
    WorkKey,
    WorkOrder,
    WorkReport,
    decide,
    report_of,
    silences,
    unheard,
    work_key,
    work_orders,
)
from lockstep.values.hash_tree import EMPTY_TREE, HashTree, changed
from lockstep.values.ids import NodeId
from lockstep.values.node_limits import LONE_ORDERS_PER_NODE_MAX, TRANSITIONS_ADVANCED_MAX

#: What a node reported: the newest epoch it applied, that below which it has no request left, its guards.
_Said = tuple[int, int, GuardReport | None]


W = TypeVar("W")


class _ByNode(Generic[W]):
    """What is kept of transitions, by key, for each node that has to do with them."""

    def __init__(self) -> None:
        self.of: dict[NodeId, dict[int, W]] = {}

    def put(self, node: NodeId, key: int, what: W) -> None:
        self.of.setdefault(node, {})[key] = what

    def drop(self, nodes: Iterable[NodeId], key: int) -> None:
        for node in nodes:
            held = self.of.get(node, {})
            held.pop(key, None)
            if not held:
                self.of.pop(node, None)

    def keys(self, node: NodeId) -> Iterable[int]:
        return self.of.get(node, ())


class _Planned(msgspec.Struct):
    """A transition, the nodes under which something is kept of it, and the work of it that runs."""

    lone: Lone
    touches: tuple[NodeId, ...]
    noted: tuple[NodeId, ...] = ()
    running: tuple[WorkKey, ...] = ()


class Board:
    """Belongs to one coordinator; its answers do not depend on how often it is asked."""

    def __init__(self) -> None:
        self._tree: HashTree[Transition] = EMPTY_TREE
        self._degraded: tuple[Degraded, ...] = ()
        #: Who seems dead, is shut out or has left, and whether nobody waits for it; and who is to be filled.
        self._silent: frozenset[tuple[NodeId, Silence]] = frozenset()
        self._said: dict[NodeId, _Said] = {}
        self._planned: dict[int, _Planned] = {}
        self._touching: _ByNode[None] = _ByNode()
        #: Why a transition waits for a node, and which work of it a node is to begin.
        self._waiting: _ByNode[str] = _ByNode()
        self._orders: _ByNode[WorkOrder] = _ByNode()
        self._steps: dict[int, TransitionStep] = {}
        #: Of work that was asked for, or runs: the transition, and what was reported when that was judged.
        self._asked: dict[WorkKey, tuple[int, WorkReport | None]] = {}
        self._running: dict[WorkKey, tuple[int, WorkReport | None]] = {}
        #: The newest epoch at which one of them entered a stage.
        self._newest = 0

    def look(self, cluster: ClusterMetadata, reports: Reports) -> Looked:
        """What is next for all of them, for `step` with the same arguments."""
        if not self._planned and not cluster.transitions.lone_count:
            self._tree = cluster.transitions.tree
            return Looked()
        for key in self._woken(cluster, reports):
            self._judge(key, cluster, reports)
        assert self._steps.keys() <= self._planned.keys(), "what goes on is planned"
        steps = tuple(itertools.islice(self._steps.values(), TRANSITIONS_ADVANCED_MAX))
        return Looked(steps, self._next_orders(reports), self._wait())

    def _woken(self, cluster: ClusterMetadata, reports: Reports) -> list[int]:
        """Those of which something is other than when they were judged last, each once."""
        woken: dict[int, None] = {}
        for key, _, now in changed(self._tree, cluster.transitions.tree):
            self._forget(key)
            if now is not None and now.position is not None:
                self._plan(key, Lone(now))
                woken[key] = None
        self._tree = cluster.transitions.tree
        silent = frozenset(silences(cluster, unheard(cluster, reports)))
        for node in sorted({node for node, _ in silent ^ self._silent}):
            woken.update(dict.fromkeys(self._touching.keys(node)))
        self._silent = silent
        for node in self._newly_said(reports):
            woken.update(dict.fromkeys(self._waiting.keys(node)))
        for known, (key, before) in (*self._asked.items(), *self._running.items()):
            if reports.work.get(known) is not before:
                woken[key] = None
        if cluster.degraded is not self._degraded:
            woken.update(dict.fromkeys(self._planned))
        self._degraded = cluster.degraded
        return [key for key in woken if key in self._planned]

    def _newly_said(self, reports: Reports) -> list[NodeId]:
        drained = reports.drained if reports.drained is not None else reports.acknowledged
        guards = reports.guards or {}
        found = []
        for node in {**reports.acknowledged, **guards}:
            said = (reports.acknowledged.get(node, 0), drained.get(node, 0), guards.get(node))
            if self._said.get(node) != said:
                self._said[node] = said
                found.append(node)
        return found

    def _plan(self, key: int, lone: Lone) -> None:
        assert key == lone.transition.key and key not in self._planned, "a transition is planned once"
        planned = self._planned[key] = _Planned(lone, lone.transition.union)
        self._newest = max(self._newest, lone.stage_epoch)
        for node in planned.touches:
            self._touching.put(node, key, None)

    def _forget(self, key: int) -> None:
        planned = self._planned.pop(key, None)
        if planned is not None:
            self._touching.drop(planned.touches, key)
            self._clear(key, planned)

    def _clear(self, key: int, planned: _Planned) -> None:
        self._steps.pop(key, None)
        self._waiting.drop(planned.noted, key)
        self._orders.drop(planned.noted, key)
        for known in planned.running:
            self._running.pop(known, None)
        planned.noted, planned.running = (), ()

    def _judge(self, key: int, cluster: ClusterMetadata, reports: Reports) -> None:
        planned = self._planned[key]
        self._clear(key, planned)
        decision = decide(planned.lone, cluster, reports)
        if isinstance(decision, Propose):
            assert isinstance(decision.transformation, AdvanceTransitions), "what moves by itself goes on so"
            (self._steps[key],) = decision.transformation.steps
            return
        if isinstance(decision, RunWorkOrders):
            for order in decision.orders:
                self._orders.put(order.node, key, order)
            planned.noted = tuple(order.node for order in decision.orders)
        else:
            assert isinstance(decision, Wait), "what runs is never idle"
            for node, reason in decision.blockers:
                self._waiting.put(node, key, reason)
            planned.noted = tuple(node for node, _ in decision.blockers)
        orders = work_orders(planned.lone, cluster, unheard(cluster, reports))
        running = [work_key(o) for o in orders if report_of(reports, o) is WorkReport.RUNNING]
        self._running.update((known, (key, WorkReport.RUNNING)) for known in running)
        planned.running = tuple(running)
        assert len(set(planned.running)) == len(planned.running), "a node has one part of a stage's work"

    def _next_orders(self, reports: Reports) -> tuple[WorkOrder, ...]:
        """The first ones of each node; those of a node that does none hold up no other."""
        found: list[WorkOrder] = []
        self._asked = {}
        for node in sorted(self._orders.of):
            for key, order in itertools.islice(self._orders.of[node].items(), LONE_ORDERS_PER_NODE_MAX):
                found.append(order)
                self._asked[work_key(order)] = key, report_of(reports, order)
        assert len(self._asked) == len(found), "a part of the work is asked for once"
        return tuple(found)

    def _wait(self) -> Wait | None:
        """One for all of them, so that a round of questions is for all; each node once, with one reason."""
        blockers = []
        for node in sorted(self._waiting.of):
            reasons = self._waiting.of[node]
            more = f", and {len(reasons) - 1} more ranges" if len(reasons) > 1 else ""
            blockers.append((node, next(iter(reasons.values())) + more))
        return Wait(0, self._newest, tuple(blockers), (0,) * len(blockers)) if blockers else None
