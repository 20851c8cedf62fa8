"""What becomes of a write for the replicas that did not acknowledge it when its end was told.

Invariants. A write whose end was told waits for replicas that may still answer, at most until its deadline;
those that then have not accepted it under its plan have a hint, or a mark where hints are refused; where the
store takes neither, the write has not reached them. A write at ANY ends well with its first durable hint.
A replica gets at most one hint of a write.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from lockstep.coordination.context import CoordinationContext, Terms
from lockstep.internode.waiters import Deadlines
from lockstep.quorum.plans import Plan
from lockstep.quorum.round import Round, Target
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import LockstepError
from lockstep.values.ids import NodeId
from lockstep.values.limits import WRITES_LINGERING_MAX
from lockstep.values.rows import Mutation

#: Told once that nothing more is heard of a write: whether every replica accepted it or has a hint, and the
#: sequence to await for those hints.
Settled = Callable[[bool, int], None]


class Left(msgspec.Struct, frozen=True):
    """What became of hints: `sequence` is to be awaited for those that are kept, and for marks; `whole`: all
    are kept. Nodes that are `unmarked` have neither a hint nor a mark."""

    sequence: int
    kept: int
    whole: bool
    unmarked: tuple[NodeId, ...] = ()


#: Nobody was left anything.
_NOTHING: Final = Left(0, 0, True)
_NOBODY: Final[Mapping[NodeId, bool]] = {}


class HintRecords(Protocol):
    """What becomes durable of hints."""

    async def synced(self, sequence: int) -> None: ...


class HintPolicy(Protocol):
    @property
    def enabled(self) -> bool: ...


class HintKeeper(Protocol):
    """Keeps what replicas did not acknowledge."""

    @property
    def store(self) -> HintRecords: ...

    @property
    def policy(self) -> HintPolicy: ...

    def leave(
        self,
        mutation: Mutation,
        epoch: int,
        targets: Sequence[Target],
        *,
        forced: bool = False,
        made_us: int = 0,
    ) -> Left: ...


class Owner(Protocol):
    """What all writes of a node share, as far as it is needed here."""

    runtime: Runtime
    hints: HintKeeper | None
    lingering: Deadlines
    context: CoordinationContext


class Written(Protocol):
    """The write, as far as it is needed here. `end` tells its end unless that was told before; `let_go` hears
    once that nothing more is heard of it, as `Settled`."""

    @property
    def owner(self) -> Owner: ...

    round: Round[Plan]
    mutation: Mutation
    terms: Terms
    deadline_s: float
    settled: Settled | None

    def end(self, error: LockstepError | None) -> None: ...

    def let_go(self, whole: bool = True, sequence: int = 0) -> None: ...


class HintingWrite:
    """The part of one write that is about its hints, and outlives its end."""

    __slots__ = ("_hinted", "_left", "_number", "_write", "deadline_s")

    def __init__(self, write: Written) -> None:
        self._write = write
        self.deadline_s = write.deadline_s
        #: Node -> whether a hint was left for it, or a mark.
        self._hinted = _NOBODY
        #: What became of all of them.
        self._left = _NOTHING
        #: By which its owner knows it while it waits for replicas; 0: it does not.
        self._number = 0

    def reached(self, target: Target) -> bool:
        """Whether a replica that did not accept the write was left a hint or a mark."""
        return self._hinted.get(target.node, False)

    def expired(self) -> None:
        """Nobody is waited for any longer."""
        self._write.round.outstanding.clear()
        self.linger()

    def heard_late(self) -> None:
        """A replica answered after the end."""
        if self._number:
            self.linger()

    def linger(self) -> None:
        """Leave hints for replicas that will not answer any more, and wait for the others."""
        if self._leave_to_silent():
            if not self._number:
                self._number = self._write.owner.lingering.add(self)
            return
        if self._number:
            self._write.owner.lingering.remove(self._number)
            self._number = 0
        self._write.let_go(self._left.whole, self._left.sequence)

    def _leave_to_silent(self) -> bool:
        """Leave hints for replicas that will not answer any more; whether others may."""
        write = self._write
        owner, round_ = write.owner, write.round
        lacking = round_.lacking()
        if not lacking or ((owner.hints is None or not write.terms.leaves_hints) and write.settled is None):
            return False
        waits, outstanding = len(owner.lingering) < WRITES_LINGERING_MAX, round_.outstanding
        silent: list[Target] = []
        is_waiting = False
        for target in lacking:
            node = target.node
            if node in self._hinted:
                continue
            if waits and node in outstanding:
                is_waiting = True
            else:
                silent.append(target)
        if silent:
            self._leave(silent)
        return is_waiting

    def _leave(self, targets: Sequence[Target]) -> None:
        write = self._write
        hints, terms = write.owner.hints, write.terms
        if hints is None or not terms.leaves_hints:
            left = Left(0, 0, False, tuple(target.node for target in targets))
        else:
            epoch = write.round.plan.epoch
            left = hints.leave(write.mutation, epoch, targets, forced=terms.is_owed, made_us=terms.made_us)
        marked = {target.node: target.node not in left.unmarked for target in targets}
        self._hinted = {**self._hinted, **marked}
        before = self._left
        sequence = max(before.sequence, left.sequence)
        self._left = Left(sequence, before.kept + left.kept, before.whole and left.whole)

    def hint_dead(self) -> None:
        """A write at ANY is content with a hint: leave those for replicas that seem dead at once."""
        alive = self._write.owner.context.alive
        dead = [target for target in self._write.round.plan.targets if not alive(target.node)]
        if dead:
            self.hint(dead, None)

    def hint(self, targets: Sequence[Target], otherwise: LockstepError | None) -> bool:
        """Leave hints, and end well when one is durable; False when none was kept.

        `otherwise`: how the write ends when no hint becomes durable; None: it goes on."""
        owner, accepted = self._write.owner, self._write.round.accepted
        hints = owner.hints
        if hints is None:
            return False
        lacking = [t for t in targets if t.node not in accepted and t.node not in self._hinted]
        if lacking:
            self._leave(lacking)
        if not self._left.kept:
            return False
        owner.runtime.tasks.spawn(self._end_when_kept(hints.store, otherwise), "write-hinted")
        return True

    async def _end_when_kept(self, store: HintRecords, otherwise: LockstepError | None) -> None:
        try:
            await store.synced(self._left.sequence)
        except LockstepError:
            if otherwise is not None:
                self._write.end(otherwise)
        else:
            self._write.owner.runtime.probes.reach("hints.counted")
            self._write.end(None)
