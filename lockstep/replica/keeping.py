"""Mutations of tracked tables as a replica stores them: under ids of its own, or those that others gave.

Invariant: what is stored has an id in the same batch, also what it adds to a log of changes, where that is
there.
"""

from __future__ import annotations

from lockstep.quorum.plans import Plan, PlanBook, TablePlacement
from lockstep.runtime.ports import Runtime
from lockstep.storage.journal import Journal
from lockstep.storage.shard_logs import Shard
from lockstep.storage.witnessing import require_room
from lockstep.tracking.held import MutationId, part_beside
from lockstep.values.rows import Mutation, without_log


class Keeping:
    """`journal` None: there are no tracked tables here."""

    def __init__(self, runtime: Runtime, journal: Journal | None, plans: PlanBook) -> None:
        self.journal = journal
        self._clock = runtime.clock
        self._probes = runtime.probes
        self._plans = plans

    def keep(
        self,
        placement: TablePlacement,
        right: int,
        mutation: Mutation,
        given: MutationId | None,
        first_epoch: int = 0,
    ) -> tuple[MutationId, int]:
        """Store a mutation of a tracked table unless it is here, for what has an id was stored as that was
        given. What has none, as what was decided by ballots, or what was owed to the table before it was
        tracked, gets one of this node's: so it comes to the others too. The id, and the sequence to await.
        `first_epoch`: see WriteRequest."""
        assert self.journal is not None and placement.is_tracked, "the table is tracked"
        shard, follows = (placement.ring.id, right), first_epoch if placement.has_views else None
        if mutation.captured is not None:
            mutation = self._with_log(mutation)
        if self.journal.is_full or mutation.captured is not None:
            self._require_room(shard, mutation, given)
        if given is None:
            given = self.journal.give(shard, mutation, self._clock.wall_us(), first_epoch=follows)
            self._probes.reach("replica.write.named")
        else:
            self.journal.take(shard, given, mutation, first_epoch=follows)
        return given, self.journal.sequence

    def keep_captured(self, mutation: Mutation, given: MutationId | None) -> int:
        """As `keep` of what a mutation of a tracked table adds to the log of changes, as a replica of the log
        alone; the sequence to await."""
        captured, journal = mutation.captured, self.journal
        assert journal is not None and captured is not None, "the table is tracked, and captured"
        placement = self._plans.placement(captured.table_id)
        assert placement is not None, "the log is there, and tracked as its table"
        if given is None:
            right = placement.ring.range_at(captured.token).range.right
            return self.keep(placement, right, captured, None)[1]
        right = placement.ring.range_at(captured.token).range.right
        require_room(journal, (placement.ring.id, right), part_beside(given))
        journal.take_captured(placement.ring.id, part_beside(given), mutation)
        self._probes.reach("capture.write.log_alone")
        return journal.sequence

    def give(self, plan: Plan, mutation: Mutation, first_epoch: int = 0) -> MutationId:
        """Store a mutation of a tracked table under an id of this node's. The plan, which has this node among
        its targets, is of this very step; `write` with the id follows in it, and answers once durable.
        `first_epoch`: see WriteRequest."""
        assert self.journal is not None and plan.shard is not None, "the table is tracked"
        assert plan.local is not None and plan.epoch == self._plans.epoch, "the plan is new"
        follows, now_us = first_epoch if plan.has_views else None, self._clock.wall_us()
        if self.journal.is_full or mutation.captured is not None:
            self._require_room(plan.shard, mutation)
            mutation = self._with_log(mutation)
        return self.journal.give(plan.shard, mutation, now_us, first_epoch=follows)

    def _require_room(self, shard: Shard, mutation: Mutation, given: MutationId | None = None) -> None:
        """Overloaded as `require_room` says, of the range and of what is added to a log in another."""
        assert self.journal is not None, "the table is tracked"
        require_room(self.journal, shard, given)
        captured = mutation.captured
        placement = self._plans.placement(captured.table_id) if captured is not None else None
        if captured is None or placement is None:
            return
        placed = placement.ring.range_at(captured.token)
        if placed.range.right != shard[1] and self._plans.own in placed.group.writes:
            part = part_beside(given) if given is not None else None
            require_room(self.journal, (shard[0], placed.range.right), part)

    def _with_log(self, mutation: Mutation) -> Mutation:
        """A mutation with what it adds to a log of changes, unless that is gone."""
        captured = mutation.captured
        if captured is None or self._plans.placement(captured.table_id) is not None:
            return mutation
        return without_log(mutation)
