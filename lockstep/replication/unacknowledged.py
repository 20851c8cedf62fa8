"""What becomes of a write for the replicas that did not acknowledge it when its end was told.

Invariants. A write whose end was told waits for replicas that may still answer, at most until its deadline;
those that then have not accepted it under its plan have a hint, or a mark where hints are refused; where the
store takes neither, the write has not `reached` them. A write at ANY ends well with its first durable hint.
A replica gets at most one hint of a write.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Sequence
from typing import Protocol

from lockstep.replication.deadlines import Deadlines
from lockstep.replication.hint_store import HintStore
from lockstep.replication.hints import Hints, Left
from lockstep.replication.plans import Plan, Target
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import WRITES_LINGERING_MAX
from lockstep.values.rows import Mutation

#: Told once that nothing more is heard of a write: whether every replica accepted it or has a hint, and the
#: sequence to await for those hints.
Settled = Callable[[bool, int], None]


class Owner(Protocol):
    """What all writes of a node share, as far as it is needed here."""

    runtime: Runtime
    hints: Hints | None
    lingering: Deadlines
    bytes_in_flight: int
    alive: Callable[[int], bool]


class Unacknowledged(abc.ABC):
    """The part of a write that outlives its end."""

    __slots__ = (
        "_accepted",
        "_hinted",
        "_hints_kept",
        "_hints_sequence",
        "_hints_whole",
        "_lingers",
        "_mutation",
        "_number",
        "_outstanding",
        "_plan",
        "_size",
        "done",
        "forced",
        "made_us",
        "settled",
    )

    #: Whether hints are left for replicas that do not acknowledge.
    leaves_hints = True
    deadline_s: float

    def __init__(self, plan: Plan, mutation: Mutation) -> None:
        self._plan = plan
        self._mutation = mutation
        #: Whether the end was told.
        self.done = False
        #: Node -> epoch at which it accepted.
        self._accepted: dict[NodeId, int] = {}
        #: Node -> requests to it that have not ended.
        self._outstanding: dict[NodeId, int] = {}
        #: Node -> whether a hint was left for it, or a mark.
        self._hinted: dict[NodeId, bool] = {}
        self._hints_kept = False
        self._hints_sequence = 0
        self._hints_whole = True
        #: Whether it waits for replicas although its end was told.
        self._lingers = False
        self._number = 0
        #: Bytes that its owner counts as in flight.
        self._size = 0
        self.settled: Settled | None = None
        #: Whether hints are left whatever the settings.
        self.forced = False
        #: When it was made that hints are left for late; 0: it is made now.
        self.made_us = 0

    @abc.abstractmethod
    def expired(self) -> None:
        """The deadline is over."""

    @abc.abstractmethod
    def _end(self, error: LockstepError | None) -> None:
        """Tell the end, if it was not told before."""

    def _counting(self) -> list[NodeId]:
        """Nodes whose acceptance counts for the present plan."""
        since = self._plan.needs_epoch
        return [node for node, epoch in self._accepted.items() if epoch >= since]

    def reached(self) -> bool:
        """Whether each replica of the plan accepted the write, or was left a hint or a mark."""
        since = self._plan.needs_epoch
        return all(
            self._accepted.get(target.node, -1) >= since or self._hinted.get(target.node, False)
            for target in self._plan.targets
        )

    def settled_for(self) -> tuple[bytes, tuple[Target, ...]]:
        """The id of what was written, and its replicas."""
        return self._mutation.mutation_id, self._plan.targets

    def _answered_late(self, owner: Owner) -> None:
        if self._lingers:
            self._linger(owner)

    def _linger(self, owner: Owner) -> None:
        """Leave hints for replicas that will not answer any more, and wait for the others."""
        is_waiting = self._leave_to_silent(owner)
        if is_waiting != self._lingers:
            self._lingers = is_waiting
            if is_waiting:
                self._number = owner.lingering.add(self)
            else:
                owner.lingering.remove(self._number)
        if not is_waiting:
            self._let_go(owner)

    def _let_go(self, owner: Owner) -> None:
        """Nothing more is heard of this write."""
        owner.bytes_in_flight -= self._size
        self._size = 0
        if self.settled is not None:
            settled, self.settled = self.settled, None
            settled(self._hints_whole, self._hints_sequence)

    def _leave_to_silent(self, owner: Owner) -> bool:
        """Leave hints for replicas that will not answer any more; whether others may."""
        if (owner.hints is None or not self.leaves_hints) and self.settled is None:
            return False
        since, waits = self._plan.needs_epoch, len(owner.lingering) < WRITES_LINGERING_MAX
        silent: list[Target] = []
        is_waiting = False
        for target in self._plan.targets:
            node = target.node
            if self._accepted.get(node, -1) >= since or node in self._hinted:
                continue
            if waits and self._outstanding.get(node):
                is_waiting = True
            else:
                silent.append(target)
        if silent:
            self._leave(owner, silent)
        return is_waiting

    def _leave(self, owner: Owner, targets: Sequence[Target]) -> Left:
        if owner.hints is None or not self.leaves_hints:
            left = Left(0, 0, False, tuple(target.node for target in targets))
        else:
            left = owner.hints.leave(
                self._mutation, self._plan.epoch, targets, forced=self.forced, made_us=self.made_us
            )
        for target in targets:
            self._hinted[target.node] = target.node not in left.unmarked
        self._hints_kept = self._hints_kept or left.kept > 0
        self._hints_sequence = max(self._hints_sequence, left.sequence)
        self._hints_whole = self._hints_whole and left.whole
        return left

    def _hint_dead(self, owner: Owner) -> None:
        """A write at ANY is content with a hint: leave those for replicas that seem dead at once."""
        dead = [target for target in self._plan.targets if not owner.alive(target.node)]
        if dead:
            self._hint(owner, dead, None)

    def _hint(self, owner: Owner, targets: Sequence[Target], otherwise: LockstepError | None) -> bool:
        """Leave hints, and end well when one is durable; False when none was kept.

        `otherwise`: how the write ends when no hint becomes durable; None: it goes on."""
        hints = owner.hints
        if hints is None:
            return False
        lacking = [t for t in targets if t.node not in self._accepted and t.node not in self._hinted]
        if lacking:
            self._leave(owner, lacking)
        if not self._hints_kept:
            return False
        work = self._end_when_kept(owner, hints.store, otherwise)
        owner.runtime.tasks.spawn(work, "write-hinted")
        return True

    async def _end_when_kept(self, owner: Owner, store: HintStore, otherwise: LockstepError | None) -> None:
        try:
            await store.synced(self._hints_sequence)
        except LockstepError:
            if otherwise is not None:
                self._end(otherwise)
        else:
            owner.runtime.probes.reach("hints.counted")
            self._end(None)
