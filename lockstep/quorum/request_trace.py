"""Notes on one client request: which replicas it was planned for, who answered, what they had to look at.

Owns `REQUEST_TRACE`, the notes of the request that the running task works on; most requests take none.
Invariant: what is noted of a plan is the plan that held when the request ended, with the answers that count
for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from lockstep.quorum.plans import Plan
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import PLANS_NOTED_MAX
from lockstep.values.rows import Mutation, ReadCommand


class RequestTrace:
    """`wants_plans`: whether plans and responders are kept, of which a client asked to be told."""

    __slots__ = ("dead_by_node", "overwhelmed", "plans", "plans_left_out", "wants_plans")

    def __init__(self, *, wants_plans: bool = False) -> None:
        self.wants_plans = wants_plans
        self.plans: list[dict[str, Any]] = []
        self.plans_left_out = 0
        #: The most tombstones that one read scanned, of each replica that is to be warned of.
        self.dead_by_node: dict[NodeId, int] = {}
        #: The same of replicas that scanned too many for an answer.
        self.overwhelmed: dict[NodeId, int] = {}

    def wrote(
        self,
        kind: str,
        plan: Plan,
        mutation: Mutation,
        accepted: Mapping[NodeId, int],
        error: LockstepError | None,
    ) -> None:
        """A write ended. `accepted`: node -> epoch at which it accepted."""
        if self._has_room():
            outcome = "ok" if error is None else error.code
            tokens = [mutation.token - 1, mutation.token]
            noted = _plan(kind, plan, accepted.items())
            self.plans.append({**noted, "table": mutation.table_id, "tokens": tokens, "outcome": outcome})

    def read(
        self, plan: Plan, command: ReadCommand, answers: Iterable[tuple[NodeId, int]], *, repaired: bool
    ) -> None:
        """A question was answered by these (node, epoch at which it answered)."""
        if self._has_room():
            noted = _plan("read", plan, answers)
            asked = {"table": command.table_id, "tokens": [command.left, command.right]}
            self.plans.append({**noted, **asked, "repaired": repaired, "outcome": "ok"})

    def did(self, activity: str, nodes: Iterable[NodeId] = ()) -> None:
        """Something happened on the way, here or at each of these nodes; only traces keep it."""

    def told(self) -> dict[str, Any]:
        """What a client is told that asked for the plans."""
        return {"plans": self.plans, "left_out": self.plans_left_out}

    def _has_room(self) -> bool:
        if not self.wants_plans:
            return False
        if len(self.plans) >= PLANS_NOTED_MAX:
            self.plans_left_out += 1
            return False
        return True


def _plan(kind: str, plan: Plan, responders: Iterable[tuple[NodeId, int]]) -> dict[str, Any]:
    return {
        "kind": kind,
        "level": plan.consistency.name,
        "epoch": plan.epoch,
        "needs_epoch": plan.needs_epoch,
        "range": [plan.range.left, plan.range.right],
        "reads": list(plan.group.reads),
        "writes": list(plan.group.writes),
        "asked": [target.node for target in plan.targets],
        "needs": [{"dc": need.dc, "count": need.count} for need in plan.needs],
        "required": plan.required,
        "responders": [{"node": node, "epoch": epoch} for node, epoch in sorted(responders)],
    }


#: The notes of the request that this task works on, if any are taken.
REQUEST_TRACE: ContextVar[RequestTrace | None] = ContextVar("REQUEST_TRACE", default=None)
