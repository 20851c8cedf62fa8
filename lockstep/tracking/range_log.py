"""One replica's part of one range: ids that it gave and holds, what others told, and the bound of time.

A replica gives an id in the step that stores the mutation, so its own log has no holes. It claims an id when
it has the mutation durably, never earlier, and never claims less. What another one told is known for good,
so what all hold, the reconciled ids, only grows.

A bound of time is raised in this order: every replica *closes* (it gives no id from before, and takes none
from coordinators), each then tells what it holds, the others bring what lacks, and when all hold all of it
the bound is raised. An id from before that a coordinator sends late is refused, whoever gave it has it, and
reconciliation brings it: a delivery is taken at any time.

Invariant: `validate`. The caller writes what `kept` says before any of it leaves the node.
"""

from __future__ import annotations

import enum

import msgspec

from lockstep.tracking.cohorts import Cohort, Cohorts
from lockstep.tracking.held import NOTHING, Held, LogId, MutationId, all_of, held_of
from lockstep.tracking.intervals import EMPTY, IntervalSet
from lockstep.tracking.limits import BOUND_MARGIN_US, CLOCK_UNCERTAINTY_US, PARTICIPANTS_MAX, WRITE_TIMEOUT_US
from lockstep.tracking.summaries import Floors, Summary, floors_of, summary_of


class Source(enum.Enum):
    COORDINATOR = "coordinator"
    #: Of the reconciler, of a read that pulls, or of a cohort: taken however old it is.
    DELIVERY = "delivery"


class Verdict(enum.Enum):
    TAKEN = "taken"
    KNOWN = "known"
    LATE = "late"


class Kept(msgspec.Struct, frozen=True):
    """What a restart finds. `told`: (node, what it holds); `starts`: (node, its newest start); `ended`:
    (node, start, offsets) of logs that are over."""

    start: int = 0
    summary: Summary = Summary()
    told: tuple[tuple[int, Held], ...] = ()
    starts: tuple[tuple[int, int], ...] = ()
    ended: tuple[tuple[int, int, int], ...] = ()
    cohorts: Cohorts | None = None
    given_us: int = 0
    closed_us: int = 0
    bound_us: int = 0


class Told(msgspec.Struct, frozen=True):
    """What a replica tells others. `ended` has the lengths of its own earlier logs."""

    node: int
    start: int
    ended: tuple[tuple[int, int], ...]
    summary: Summary
    cohorts: Cohorts
    bound_us: int = 0


def bound_for(now_us: int) -> int:
    """What a proposer may ask others to close: no write that is older can still be under way."""
    return now_us - WRITE_TIMEOUT_US - BOUND_MARGIN_US - CLOCK_UNCERTAINTY_US


class RangeLog:
    """`kept` is of the last run; this one's log is a new one, which must be written before it is used."""

    def __init__(self, node: int, participants: tuple[int, ...], kept: Kept) -> None:
        assert node in participants and len(participants) <= PARTICIPANTS_MAX
        self.node = node
        self.participants = tuple(sorted(participants))
        self.start = kept.start + 1
        self.closed_us = kept.closed_us
        self.bound_us = kept.bound_us
        self.cohorts = kept.cohorts or Cohorts(self.participants)
        self._given_us = kept.given_us
        self._floors: Floors = dict(kept.summary.floors)
        self._held = kept.summary.held.by_log()
        self._told = dict(kept.told)
        self._starts = {**dict(kept.starts), node: self.start}
        self._ended: dict[LogId, int] = {(peer, start): count for peer, start, count in kept.ended}
        if kept.start >= self._floors.get(node, 0):
            self._ended[node, kept.start] = self._held.get((node, kept.start), EMPTY).end
        self._summary: Summary | None = None

    # -- what is held -------------------------------------------------------------------------------

    @property
    def summary(self) -> Summary:
        if self._summary is None:
            self._summary = summary_of(self._floors, held_of(self._held))
        return self._summary

    @property
    def held(self) -> Held:
        return self.summary.held

    def give(self, now_us: int) -> MutationId:
        """The id of a mutation that is stored in the same step."""
        self._given_us = max(now_us, self._given_us + 1, self.closed_us + 1)
        own = self._held.get((self.node, self.start), EMPTY)
        given = MutationId(self.node, self.start, own.end, self._given_us)
        self._hold(given.log, IntervalSet((own.end, own.end)))
        return given

    def take(self, offered: MutationId, source: Source) -> Verdict:
        """Whether to store it: KNOWN and LATE are not stored."""
        if offered in self.summary:
            return Verdict.KNOWN
        if source is Source.COORDINATOR and offered.given_us <= self.closed_us:
            return Verdict.LATE
        self._hold(offered.log, IntervalSet((offered.offset, offered.offset)))
        return Verdict.TAKEN

    def take_all(self, ids: Held) -> None:
        """The data of a cohort was taken in whole."""
        for log, offsets in ids.items():
            self._hold(log, offsets)

    def _hold(self, log: LogId, offsets: IntervalSet) -> None:
        self._held[log] = self._held.get(log, EMPTY).union(offsets)
        self._summary = None

    # -- what others hold ---------------------------------------------------------------------------

    def tell(self) -> Told:
        own = tuple((start, count) for (node, start), count in self._ended.items() if node == self.node)
        return Told(self.node, self.start, tuple(sorted(own)), self.summary, self.cohorts, self.bound_us)

    def hear(self, told: Told) -> None:
        """What a peer told. Older news than what is known changes nothing: all of it only grows."""
        assert told.node in self.participants and told.node != self.node, told.node
        # A peer's floor says that every replica, this one too, holds all that is below.
        self._raise_floors(dict(told.summary.floors))
        self._told[told.node] = self._live(self.told_of(told.node).union(told.summary.held))
        self._starts[told.node] = max(told.start, self._starts.get(told.node, 0))
        for start, count in told.ended:
            if start >= self._floors.get(told.node, 0):
                self._ended[told.node, start] = count
        self.cohorts, whole = self.cohorts.merged(told.cohorts)
        self._learn(self.participants, whole)
        for group in self.cohorts.groups:
            self._learn(group.holders, group.ids)
        for node in (told.node, self.node):
            self.cohorts, whole = self.cohorts.taken(node, self._claims(node))
            self._learn(self.participants, whole)
        self._drop_reconciled()
        self._retire()

    def _learn(self, holders: tuple[int, ...], ids: Held) -> None:
        for node in holders:
            if node != self.node and ids:
                self._told[node] = self.told_of(node).union(ids)

    def told_of(self, peer: int) -> Held:
        return self._told.get(peer, NOTHING)

    def _claims(self, node: int) -> Held:
        return self.held if node == self.node else self.told_of(node)

    @property
    def reconciled(self) -> Held:
        """What every replica holds, of logs that are not over."""
        found = self.held
        for peer in self.participants:
            if peer != self.node:
                found = found.intersection(self.told_of(peer))
        return found

    @property
    def unreconciled(self) -> Held:
        return self.held.difference(self.reconciled)

    def lacking(self) -> Held:
        """What some peer has told that it holds, and this replica does not."""
        return self.summary.lacking(Summary((), all_of(self._told.values())))

    def _drop_reconciled(self) -> None:
        whole = self.reconciled
        rest = [(one.holders, self._live(one.ids).difference(whole)) for one in self.cohorts.groups]
        groups = tuple(Cohort(holders, ids) for holders, ids in rest if ids)
        self.cohorts = Cohorts(self.participants, groups)

    def _live(self, ids: Held) -> Held:
        return summary_of(self._floors, ids).held

    def _retire(self) -> None:
        self._raise_floors(floors_of(self._floors, self.reconciled, self._ended, self._starts))

    def _raise_floors(self, floors: Floors) -> None:
        raised = {node: floor for node, floor in floors.items() if floor > self._floors.get(node, 0)}
        if not raised:
            return
        self._floors = {**self._floors, **raised}
        self._held = {log: one for log, one in self._held.items() if log[1] >= self._floors.get(log[0], 0)}
        self._ended = {log: one for log, one in self._ended.items() if log[1] >= self._floors.get(log[0], 0)}
        self._told = {node: self._live(held) for node, held in self._told.items()}
        self._summary = None

    # -- an outage ----------------------------------------------------------------------------------

    def collapse(self, live: frozenset[int]) -> Held:
        """Ids that all of `live` hold go to cohorts; the result are those that did."""
        before = self.cohorts.ids
        told = {peer: self._claims(peer).difference(self.reconciled) for peer in self.participants}
        self.cohorts, _ = self.cohorts.collapse(live, told)
        return self.cohorts.ids.difference(before)

    # -- the bound of time --------------------------------------------------------------------------

    def close(self, until_us: int, now_us: int) -> bool:
        """Neither gives nor takes what is older from now on; refused to a proposer whose clock is ahead."""
        if until_us > now_us - WRITE_TIMEOUT_US - BOUND_MARGIN_US:
            return False
        self.closed_us = max(self.closed_us, until_us)
        return True

    def raise_bound(self, until_us: int) -> None:
        """All replicas hold all ids from before."""
        assert until_us <= self.closed_us, "a bound is raised over what was closed"
        self.bound_us = max(self.bound_us, until_us)

    # -- what is kept -------------------------------------------------------------------------------

    @property
    def kept(self) -> Kept:
        return Kept(
            self.start,
            self.summary,
            tuple(sorted(self._told.items())),
            tuple(sorted(self._starts.items())),
            tuple(sorted((*log, count) for log, count in self._ended.items())),
            self.cohorts,
            self._given_us,
            self.closed_us,
            self.bound_us,
        )

    def validate(self) -> None:
        self.summary.validate()
        self.cohorts.validate()
        own = self._held.get((self.node, self.start), EMPTY)
        assert own.runs in ((), (0, own.end - 1)), f"the own log has holes: {own.runs[:8]}"
        assert self.bound_us <= self.closed_us, "the bound is above what was closed"
        assert self._given_us >= 0 and self._starts[self.node] == self.start
        assert set(self._told) <= set(self.participants) - {self.node}, self._told.keys()
        for group in self.cohorts.groups:
            if self.node in group.holders:
                assert self.held.covers(group.ids), f"{group.title()} is not held here"
