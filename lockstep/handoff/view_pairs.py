"""Which replica of a view a replica of its base table brings its updates to.

Invariants. In each data centre pairs are one to one, so that what a quorum of the base has comes to a quorum
of the view. They are of one metadata value: while replicas of either change, or when they changed since the
write was planned, there are none, and an update goes to all replicas of the view.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.quorum.plans import Plan, PlanBook
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import PLANS_CACHED_MAX
from lockstep.values.rows import Mutation


def paired_with(
    base: Sequence[NodeId], view: Sequence[NodeId], dc_of: Callable[[NodeId], str], own: NodeId
) -> NodeId | None:
    """The replica of the view that one of the base is paired with: itself where it can be. None where there
    are not as many of both in its data centre."""
    if own not in base:
        return None
    here = [node for node in base if dc_of(node) == dc_of(own)]
    there = [node for node in view if dc_of(node) == dc_of(own)]
    if len(here) != len(there):
        return None
    if own in there:
        return own
    only_base = [node for node in here if node not in there]
    only_view = [node for node in there if node not in here]
    return only_view[only_base.index(own)]


class ViewPairs:
    def __init__(self, plans: PlanBook, own_id: Callable[[], int]) -> None:
        self._plans = plans
        self._own_id = own_id
        #: Of one metadata value.
        self._epoch = -1
        self._made: dict[tuple[Plan, Plan], Plan | None] = {}

    def plan(self, base: Mutation, view: Mutation, first_epoch: int) -> Plan | None:
        """How to write one of a view to the paired replica alone; None: it goes to all. `first_epoch`: of the
        plan that the write to the base was made with. InvalidRequest when either table is gone."""
        based = self._plans.write_plan(base.table_id, base.token, Consistency.ANY)
        viewed = self._plans.write_plan(view.table_id, view.token, Consistency.ANY)
        if max(based.needs_epoch, viewed.needs_epoch) > first_epoch:
            return None
        if self._epoch != self._plans.epoch or len(self._made) >= PLANS_CACHED_MAX:
            self._epoch = self._plans.epoch
            self._made = {}
        known = (based, viewed)
        if known not in self._made:
            self._made[known] = self._pair(base.table_id, based, viewed)
        return self._made[known]

    def _pair(self, table_id: int, base: Plan, view: Plan) -> Plan | None:
        placement = self._plans.placement(table_id)
        if placement is None or placement.recounts:
            return None
        for plan in (base, view):
            if plan.group.write_only or len(plan.targets) != len(plan.group.reads):
                return None
        dcs = {target.node: target.dc for target in (*base.targets, *view.targets)}
        node = paired_with(base.group.reads, view.group.reads, dcs.__getitem__, NodeId(self._own_id()))
        for target in view.targets:
            if target.node == node:
                return view.only(target)
        return None

    def validate(self) -> None:
        assert len(self._made) <= PLANS_CACHED_MAX, "pairs make room for others"
        assert all(base.epoch == view.epoch == self._epoch for base, view in self._made), "pairs of one value"
