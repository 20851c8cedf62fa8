"""Bugs planted in what tracks mutations, to prove that the checks of its simulation bite.

Invariant: nothing in the product knows of them; each replaces named attributes for the time of one run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from lockstep.sim.plant import Plant, Planted, replaced
from lockstep.sim.tracking import messages as msg
from lockstep.sim.tracking import store as store_module
from lockstep.sim.tracking.replica import Replica, Sent
from lockstep.sim.tracking.store import Bulk, Mutation, Rows, Store, merged
from lockstep.tracking.bounds import BoundRound, Phase
from lockstep.tracking.cohorts import Cohort, Cohorts
from lockstep.tracking.held import NOTHING, Held, MutationId
from lockstep.tracking.intervals import IntervalSet
from lockstep.tracking.range_log import Kept, RangeLog, Source, Verdict
from lockstep.tracking.reading import Action, Stage, TrackedRead
from lockstep.tracking.reconciling import Reconciler
from lockstep.tracking.summaries import Summary

_SCENARIO: Final = "tracking"


def _replacing(owner: Any, name: str, make: Callable[[Any], Any]) -> Plant:
    """`make` gets what was there."""

    @contextlib.contextmanager
    def planted() -> Iterator[None]:
        # A property is replaced as one.
        plain = owner.__dict__[name]
        with replaced((owner, name, make(plain))):
            yield

    return planted


def _again(plain: Any) -> Any:
    """The number of a start goes back, as if handlers ran before recovery had ended."""

    def begin(self: RangeLog, node: int, participants: tuple[int, ...], kept: Kept) -> None:
        plain(self, node, participants, kept)
        if kept.start:
            self.start -= 1
            self._starts[node] = self.start
            self._held.pop((node, self.start), None)
            self._summary = None

    return begin


def _forgetful(plain: Any) -> Any:
    """Ids are persisted after the data, and a crash falls between: they are forgotten."""

    def write(self: Store, kept: Kept, reconciled: Held, in_cohorts: Held) -> None:
        plain(self, kept, reconciled, in_cohorts)
        if len(self.journal) > 40:
            last = max(self.journal)
            offsets = self.kept.summary.held.by_log().get((last[0], last[1]), IntervalSet())
            rest = offsets.difference(IntervalSet((last[2], last[2])))
            logs = tuple(
                (*log, rest.runs if log == (last[0], last[1]) else found.runs)
                for log, found in self.kept.summary.held.items()
            )
            self.kept = msgspec.structs.replace(
                self.kept,
                summary=Summary(self.kept.summary.floors, Held(tuple(one for one in logs if one[2]))),
            )

    return write


def _drops_early(plain: Any) -> Any:
    """The journal drops what a majority holds."""

    def sort(self: Store, floors: Any, reconciled: Held, in_cohorts: Held) -> None:
        told = [held for _, held in self.kept.told]
        most = NOTHING
        for held in told[: len(told) // 2 + 1]:
            most = most.union(held)
        plain(self, floors, reconciled.union(most), in_cohorts)

    return sort


def _never_spreads(plain: Any) -> Any:
    """An answer stands although others of its level lack some of it."""

    def spread(self: TrackedRead[Any]) -> list[Action]:
        self.stage = Stage.DONE
        return []

    return spread


def _never_brings(plain: Any) -> Any:
    """An answer stands although others of its level hold more."""

    def cover(self: TrackedRead[Any]) -> list[Action]:
        assert self._answer is not None
        self.stage = Stage.SPREADING
        return list(self._spread())

    return cover


def _asks_too_few(plain: Any) -> Any:
    """A read of one replica less than a quorum."""

    def begin(self: Any, replicas: Any, full: Any, needed: int, now_ms: int) -> None:
        plain(self, replicas, full, max(needed - 1, 1), now_ms)

    return begin


def _tears(plain: Any) -> Any:
    """What a read fetched is only the rows that it asked for."""

    def merge(several: Any) -> Rows:
        first, *others = [dict(rows) for rows in several]
        torn = [
            {place: cell for place, cell in rows.items() if place[1] != "r3" or cell.offset % 7}
            for rows in others
        ]
        return dict(plain((first, *torn)))

    return merge


def _closes_late(plain: Any) -> Any:
    """A replica that closed still gives ids from before, by its own clock."""

    def give(self: RangeLog, now_us: int) -> MutationId:
        closed, self.closed_us, self._given_us = self.closed_us, 0, 0
        given: MutationId = plain(self, now_us)
        self.closed_us = closed
        return given

    return give


def _raises_early(plain: Any) -> Any:
    """The bound is raised when all closed, before anything is delivered."""

    def judge(self: BoundRound) -> None:
        self.phase = Phase.RAISED

    return judge


def _any_clock(plain: Any) -> Any:
    """A proposer that closes by a majority."""

    def closed(self: BoundRound, replica: int, accepted: bool, told: Summary) -> None:
        plain(self, replica, accepted, told)
        if self.phase is Phase.CLOSING and len(self._closed) > len(self.participants) // 2:
            for one in self.participants:
                self._closed.setdefault(one, Summary())
                self.holds(one, told)
            self.phase = Phase.RAISED

    return closed


def _refuses_deliveries(plain: Any) -> Any:
    """Late ids are refused of everybody: an id that one replica holds never spreads."""

    def take(self: RangeLog, offered: MutationId, source: Source) -> Verdict:
        found: Verdict = plain(self, offered, Source.COORDINATOR)
        return found

    return take


def _stores_twice(plain: Any) -> Any:
    """A cohort's ids are claimed when its data is asked for."""

    def pulled(self: Replica, source: int, message: msg.Pulled) -> Sent:
        for bulk in message.bulks:
            self.log.take_all(bulk.ids)
        return list(plain(self, source, msgspec.structs.replace(message, bulks=())))

    return pulled


def _all_are_live(plain: Any) -> Any:
    """What all but one hold counts as reconciled."""

    def reconciled(self: RangeLog) -> Held:
        found = self.held
        for peer in self.participants[:-1]:
            if peer != self.node:
                found = found.intersection(self.told_of(peer))
        return found

    return property(reconciled)


def _holds_some(plain: Any) -> Any:
    """Who holds some of a cohort is taken for a holder of all of it."""

    def taken(self: Cohorts, node: int, held: Held) -> tuple[Cohorts, Held]:
        groups = tuple(
            Cohort(tuple(sorted({*group.holders, node})), group.ids)
            if held.intersection(group.ids)
            else group
            for group in self.groups
        )
        if len({group.holders for group in groups}) < len(groups):
            return plain(self, node, held)  # type: ignore[no-any-return]
        return self._without_whole({group.holders: group.ids for group in groups})

    return taken


def _overwrites(plain: Any) -> Any:
    """Data of a cohort lies over newer data."""

    def merge(several: Any) -> Rows:
        found: Rows = {}
        for rows in several:
            found.update(rows)
        return found

    return merge


def _purges_apart(plain: Any) -> Any:
    """Tombstones go by age alone."""

    def purge(self: Store, bound_us: int) -> int:
        newest = max((cell.given_us for cell in self.rows.values()), default=0)
        old = [place for place, cell in self.rows.items() if cell.deleted and cell.given_us < newest]
        for place in old:
            del self.rows[place]
        return len(old)

    return purge


def _stops_telling(plain: Any) -> Any:
    """What was sent counts as acknowledged."""

    def news(self: Reconciler, peer: int, held: Held, now_ms: int) -> Any:
        found = plain(self, peer, held, now_ms)
        self._peers[peer].acknowledged = held
        return found

    return news


def _hangs(plain: Any) -> Any:
    """A fetch that was not answered is never asked for again."""

    def fetch(self: Reconciler, lacking: Held, told: Any, alive: Any, now_ms: int) -> dict[int, Held]:
        self._fetching = {one: (now_ms + 1, waiting[1]) for one, waiting in self._fetching.items()}
        found: dict[int, Held] = plain(self, lacking, told, frozenset(told), now_ms)
        return found

    return fetch


def _other_content(plain: Any) -> Any:
    """A disk changes what lies under an id."""

    def stage(self: Store, mutation: Mutation) -> None:
        broken = mutation.given.offset % 11 == 5 and len(self.journal) % 2 == 0
        plain(self, msgspec.structs.replace(mutation, partition="p9") if broken else mutation)

    return stage


def _forgets_bulks(plain: Any) -> Any:
    """A cohort's data is not kept to be sent on."""

    def bulk(self: Store, data: Bulk) -> None:
        self.rows = merged((self.rows, data.rows))
        for log, offsets in data.ids.items():
            self.stored.setdefault(log, set()).update(offsets.offsets(offsets.count))

    return bulk


_BUGS: Final[tuple[tuple[str, str, Any, str, Callable[[Any], Any]], ...]] = (
    ("start-goes-back", "a log's number is used twice", RangeLog, "__init__", _again),
    ("forgets-ids", "data is served whose ids are forgotten", Store, "write", _forgetful),
    ("drops-early", "the journal drops what some lack", Store, "_sort", _drops_early),
    ("never-spreads", "an answer is not at its quorum", TrackedRead, "_spread", _never_spreads),
    ("never-brings", "what others hold is not read", TrackedRead, "_cover", _never_brings),
    ("asks-too-few", "a read meets no quorum", TrackedRead, "__init__", _asks_too_few),
    ("tears", "a mutation is merged in part", store_module, "merged", _tears),
    ("gives-from-before", "an id is given below the bound", RangeLog, "give", _closes_late),
    ("raises-early", "a bound is raised before all hold all", BoundRound, "_judge", _raises_early),
    ("closes-most", "a bound is raised by a majority", BoundRound, "closed", _any_clock),
    ("refuses-deliveries", "late ids never spread", RangeLog, "take", _refuses_deliveries),
    ("claims-early", "ids are claimed before their data is there", Replica, "_on_pulled", _stores_twice),
    ("live-is-all", "what one lacks counts as reconciled", RangeLog, "reconciled", _all_are_live),
    ("some-is-whole", "who holds some of a cohort gets no more", Cohorts, "taken", _holds_some),
    ("old-over-new", "the data of a cohort wins", store_module, "merged", _overwrites),
    ("purges-by-age", "a tombstone goes before all have it", Store, "purge", _purges_apart),
    ("stops-telling", "news that are lost are not told again", Reconciler, "news", _stops_telling),
    ("hangs", "a fetch without an answer is waited for", Reconciler, "fetch", _hangs),
    ("other-content", "a disk changes a content", Store, "stage", _other_content),
    ("forgets-bulks", "a cohort's data cannot be sent on", Store, "stage_bulk", _forgets_bulks),
)
PLANTS: Final[dict[str, Planted]] = {
    name: Planted(name, harm, _SCENARIO, _replacing(owner, attribute, make))
    for name, harm, owner, attribute, make in _BUGS
}
