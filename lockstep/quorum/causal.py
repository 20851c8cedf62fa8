"""What the request that the running task works on has to follow, and what it shows: see `tracking.tokens`.

Owns `CAUSAL`; most requests follow nothing. Invariant: what is told in the answer names everything that the
request wrote or was shown of tracked partitions, and everything that it was to follow in the same ranges, but
for what every replica holds. Ids of before a table was tracked anew are followed no more, for the repair that
came after them has made all replicas equal, and nobody may know them any longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar

from lockstep.quorum.plans import Plan
from lockstep.tracking.held import NOTHING, Held, MutationId, all_of, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.tokens import Place, Span


class Causal:
    """`follows`: what the client has seen. `given`: the id of what was written last."""

    __slots__ = ("_elsewhere", "_found", "_shown", "follows", "given")

    def __init__(self, follows: Sequence[Span] = ()) -> None:
        assert len({span.place for span in follows}) == len(follows), "a range is named once"
        self.follows = follows
        self.given: MutationId | None = None
        self._shown: dict[Place, Held] = {}
        #: Of ranges of now: what was seen under other cuts of them.
        self._found: dict[Place, Held] = {}
        #: What the client has seen and need not remember in that way any more.
        self._elsewhere: dict[Place, Span] = {}

    def wanted(self, plan: Plan) -> Held:
        """What a replica must hold of the plan's range: nothing of what was seen of other cuts of it, for
        that may be of tokens beside it."""
        place = _place(plan)
        seen = all_of(span.held for span in self._of_table(plan) if _is_at(span, place))
        return seen.union(self._found.get(place, NOTHING))

    def is_cut_otherwise(self, plan: Plan) -> bool:
        """Whether something was seen of the plan's tokens while ranges were cut otherwise, and all replicas
        were not asked for it yet."""
        assert plan.reads_ids, "only what is read by ids follows any"
        return bool(self._of_other_cuts(plan))

    def seen_elsewhere(self, plan: Plan) -> Held:
        """What was seen while ranges were cut otherwise, and may be of the plan's range."""
        return all_of(span.held for span in self._of_other_cuts(plan))

    def found(self, plan: Plan, held: Held, everywhere: Held) -> None:
        """All replicas of the plan's range hold this between them, and whatever the client has seen of it."""
        place = _place(plan)
        for span in self._of_other_cuts(plan):
            known = self._found.get(place, NOTHING)
            self._found[place] = known.union(span.held.intersection(held)).difference(everywhere)
            self._elsewhere[span.place] = span.without(held, *place[2:])
        assert not self.is_cut_otherwise(plan), "a range is asked for once"

    def wrote(self, plan: Plan, given: MutationId, everywhere: Held) -> None:
        self.given = given
        self.saw(plan, held_of({given.log: of((given.offset,))}), everywhere)

    def saw(self, plan: Plan, recent: Held, everywhere: Held) -> None:
        """`everywhere`: what all replicas are known to hold."""
        place = _place(plan)
        assert place[2] < place[3], "a range has tokens"
        known = self._shown.get(place, NOTHING).union(self.wanted(plan))
        self._shown[place] = known.union(recent).difference(everywhere)
        for span in self.follows:
            is_elsewhere = span.since < place[1] or (span.since > place[1] and _is_at(span, place))
            if span.table == place[0] and is_elsewhere:
                self._elsewhere[span.place] = Span(*span.place, NOTHING)

    def told(self) -> list[Span]:
        shown = [Span(*place, held) for place, held in self._shown.items()]
        elsewhere = [span for place, span in self._elsewhere.items() if place not in self._shown]
        assert {span.place for span in elsewhere} <= {span.place for span in self.follows}, (
            "of other cuts only what a client has seen is told"
        )
        return [*shown, *elsewhere]

    def _of_table(self, plan: Plan) -> list[Span]:
        table, since = plan.tracked_as
        assert table, "a plan of a tracked table says which one that is"
        return [
            self._elsewhere.get(span.place, span)
            for span in self.follows
            if span.table == table and span.since >= since
        ]

    def _of_other_cuts(self, plan: Plan) -> list[Span]:
        place = _place(plan)
        return [
            span
            for span in self._of_table(plan)
            if span.held and not _is_at(span, place) and span.is_open_in(*place[2:])
        ]


def _place(plan: Plan) -> Place:
    assert plan.shard is not None and plan.tracked_as[0], "the table is tracked"
    return *plan.tracked_as, plan.range.left, plan.range.right


def _is_at(span: Span, place: Place) -> bool:
    return (span.left, span.right) == place[2:]


#: The notes of the running task.
CAUSAL: ContextVar[Causal | None] = ContextVar("causal", default=None)
