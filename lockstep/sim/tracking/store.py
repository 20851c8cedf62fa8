"""The disk of one simulated replica: journal, rows, and the data of cohorts apart from both.

Invariant: what a step stages reaches the disk at once with what its log keeps, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lockstep.tracking.held import Held, LogId, MutationId, all_of, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.range_log import Kept

ROWS: Final = ("r1", "r2", "r3")


class Cell(msgspec.Struct, frozen=True, order=True):
    """The newest wins. `deleted` cells stay until they are purged."""

    given_us: int
    node: int
    start: int
    offset: int
    deleted: bool = False


Rows = dict[tuple[str, str], Cell]


class Mutation(msgspec.Struct, frozen=True):
    """Writes or deletes all rows of a partition."""

    given: MutationId
    partition: str
    deleted: bool = False

    @property
    def cell(self) -> Cell:
        return Cell(self.given.given_us, *self.given.log, self.given.offset, self.deleted)

    def rows(self) -> Rows:
        return {(self.partition, row): self.cell for row in ROWS}


class Bulk(msgspec.Struct, frozen=True):
    """Data of a cohort: rows of which single mutations cannot be told apart."""

    ids: Held
    rows: Rows


def merged(several: Iterable[Mapping[tuple[str, str], Cell]]) -> Rows:
    found: Rows = {}
    for rows in several:
        for place, cell in rows.items():
            if place not in found or found[place] < cell:
                found[place] = cell
    return found


Key = tuple[int, int, int]


def key_of(given: MutationId) -> Key:
    return *given.log, given.offset


class Store:
    """`full`: rows are kept too; a witness has its journal alone."""

    def __init__(self, *, full: bool) -> None:
        self.full = full
        self.kept = Kept()
        self.journal: dict[Key, Mutation] = {}
        self.rows: Rows = {}
        self.bulks: tuple[Bulk, ...] = ()
        #: What was stored at any time, by log: the twin of what the log claims.
        self.stored: dict[LogId, set[int]] = {}
        self._mutations: list[Mutation] = []
        self._bulks: list[Bulk] = []

    def stage(self, mutation: Mutation) -> None:
        self._mutations.append(mutation)

    def stage_bulk(self, bulk: Bulk) -> None:
        self._bulks.append(bulk)

    def drop(self) -> None:
        """A crash before the write."""
        self._mutations, self._bulks = [], []

    def write(self, kept: Kept, reconciled: Held, in_cohorts: Held) -> None:
        for mutation in self._mutations:
            self.journal[key_of(mutation.given)] = mutation
            self.stored.setdefault(mutation.given.log, set()).add(mutation.given.offset)
            if self.full:
                self.rows = merged((self.rows, mutation.rows()))
        for bulk in self._bulks:
            self.bulks = (*self.bulks, bulk)
            for log, offsets in bulk.ids.items():
                self.stored.setdefault(log, set()).update(offsets.offsets(offsets.count))
        self.kept = kept
        self.drop()
        self._sort(dict(kept.summary.floors), reconciled, in_cohorts)

    def _sort(self, floors: Mapping[int, int], reconciled: Held, in_cohorts: Held) -> None:
        """Reconciled mutations leave the journal, and those of cohorts go to where their data lies."""
        gone: list[Mutation] = []
        for key, mutation in list(self.journal.items()):
            if key[1] < floors.get(key[0], 0) or reconciled.contains(mutation.given):
                del self.journal[key]
            elif self.full and in_cohorts.contains(mutation.given):
                gone.append(self.journal.pop(key))
        if gone:
            offsets: dict[LogId, set[int]] = {}
            for mutation in gone:
                offsets.setdefault(mutation.given.log, set()).add(mutation.given.offset)
            ids = held_of({log: of(found) for log, found in offsets.items()})
            self.bulks = (*self.bulks, Bulk(ids, merged(one.rows() for one in gone)))
        whole = [bulk for bulk in self.bulks if not _above(bulk.ids, floors).difference(reconciled)]
        if whole:
            self.rows = merged((self.rows, *(bulk.rows for bulk in whole)))
            self.bulks = tuple(bulk for bulk in self.bulks if bulk not in whole)

    def purge(self, bound_us: int) -> int:
        """Deleted cells from before the bound, unless an older cell lies apart."""
        apart = {place for bulk in self.bulks for place in bulk.rows}
        old = [
            place
            for place, cell in self.rows.items()
            if cell.deleted and cell.given_us <= bound_us and place not in apart
        ]
        for place in old:
            del self.rows[place]
        return len(old)

    def read(self, partition: str) -> Rows:
        assert self.full, "witnesses are not asked for data"
        seen = merged((self.rows, *(bulk.rows for bulk in self.bulks)))
        return {place: cell for place, cell in seen.items() if place[0] == partition and not cell.deleted}

    def journal_ids(self) -> Held:
        found: dict[LogId, set[int]] = {}
        for node, start, offset in self.journal:
            found.setdefault((node, start), set()).add(offset)
        return all_of([held_of({log: of(offsets) for log, offsets in found.items()})])

    def stored_ids(self) -> Held:
        """Of logs that the summary still lists."""
        floors = dict(self.kept.summary.floors)
        return held_of(
            {log: of(found) for log, found in self.stored.items() if log[1] >= floors.get(log[0], 0)}
        )


def _above(ids: Held, floors: Mapping[int, int]) -> Held:
    return Held(tuple(log for log in ids.logs if log[1] >= floors.get(log[0], 0)))
