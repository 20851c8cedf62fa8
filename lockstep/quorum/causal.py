"""What the request that the running task works on has to follow, and what it shows: see `tracking.tokens`.

Owns `CAUSAL`; most requests follow nothing. Invariant: what is told in the answer names everything that the
request wrote or was shown of tracked partitions, and everything that it was to follow in the same ranges, but
for what every replica holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from lockstep.quorum.plans import Plan
from lockstep.tracking.held import Held, MutationId, all_of, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.tokens import Place, Span


class Causal:
    """`follows`: what the client has seen. `given`: the id of what was written last."""

    __slots__ = ("_shown", "follows", "given")

    def __init__(self, follows: Sequence[Span] = ()) -> None:
        assert len({span.place for span in follows}) == len(follows), "a range is named once"
        self.follows = follows
        self.given: MutationId | None = None
        self._shown: dict[Place, Held] = {}

    def wanted(self, plan: Plan) -> Held:
        """What a replica must hold of the plan's range: nothing of what was seen of other cuts of it, for
        that may be of tokens beside it."""
        place = _place(plan)
        return all_of(span.held for span in self.follows if span.place == place)

    def is_cut_otherwise(self, plan: Plan) -> bool:
        """Whether something was seen of the plan's tokens while ranges were cut otherwise."""
        assert plan.reads_ids, "only what is read by ids follows any"
        group, left, right = _place(plan)
        return any(
            span.group == group
            and span.left < right
            and span.right > left
            and span.place != (group, left, right)
            for span in self.follows
        )

    def wrote(self, plan: Plan, given: MutationId, everywhere: Held) -> None:
        self.given = given
        self.saw(plan, held_of({given.log: of((given.offset,))}), everywhere)

    def saw(self, plan: Plan, recent: Held, everywhere: Held) -> None:
        """`everywhere`: what all replicas are known to hold."""
        place = _place(plan)
        assert place[1] < place[2], "a range has tokens"
        known = self._shown.get(place, self.wanted(plan))
        self._shown[place] = known.union(recent).difference(everywhere)

    def told(self) -> list[Span]:
        return [Span(*place, held) for place, held in self._shown.items()]


def _place(plan: Plan) -> Place:
    assert plan.shard is not None, "the table is tracked"
    return plan.shard[0], plan.range.left, plan.range.right


#: The notes of the running task.
CAUSAL: ContextVar[Causal | None] = ContextVar("causal", default=None)
