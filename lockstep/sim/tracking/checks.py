"""What must hold of tracked replicas at each step, of every answer, and once all came to rest.

Invariant: the checks look at every disk, also of replicas that are down or cut off.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations

from lockstep.sim.checkers.violation import Violation
from lockstep.sim.tracking.store import ROWS, Cell, Key, Mutation, Rows, Store, key_of, merged
from lockstep.tracking.held import all_of
from lockstep.tracking.range_log import RangeLog
from lockstep.tracking.summaries import Summary
from lockstep.tracking.symbols import SymbolDecoder, SymbolEncoder, item_of


class TrackingChecks:
    """TRK-1: ids claimed == data held. REP-1: what was acknowledged is seen. REP-2a: no answer goes back.
    REP-2b: a mutation is seen whole or not at all. REP-3: what was deleted does not return. QUORUM: one
    holds all of an answer. ID: no id is
    given twice. BOUND: below a raised bound nothing is given, and all is held by all. AUDIT: one content an
    id. COHORTS: as many as there are sets of replicas. LIVENESS: all that is held anywhere comes to be
    reconciled."""

    def __init__(self, stores: Mapping[int, Store]) -> None:
        self._stores = stores
        self.given: dict[Key, Mutation] = {}
        self._bound_us = 0
        #: (partition, row) -> the newest cell that an answer or an acknowledgement told of.
        self._seen: dict[tuple[str, str], Cell] = {}

    def gave(self, node: int, mutation: Mutation) -> None:
        """Once it is on the giver's disk."""
        other = self.given.setdefault(key_of(mutation.given), mutation)
        if other != mutation:
            raise Violation("ID", f"node {node} gave {mutation.given} twice")
        if mutation.given.given_us <= self._bound_us:
            raise Violation("BOUND", f"node {node} gave {mutation.given}, below {self._bound_us}")

    def wrote(self, node: int, log: RangeLog) -> None:
        log.validate()
        store = self._stores[node]
        if log.held != store.stored_ids():
            more, less = log.held.difference(store.stored_ids()), store.stored_ids().difference(log.held)
            raise Violation("TRK-1", f"node {node} claims {more} that it lacks, and not {less} that it has")
        apart = all_of(bulk.ids for bulk in store.bulks)
        lost = log.unreconciled.difference(apart).difference(store.journal_ids())
        if lost:
            raise Violation("TRK-1", f"node {node} cannot bring {lost}, which others lack")
        if len(log.cohorts.groups) >= 1 << len(log.participants):
            raise Violation("COHORTS", f"node {node} has {len(log.cohorts.groups)}")

    def raised(self, until_us: int) -> None:
        self._bound_us = max(self._bound_us, until_us)
        for key, mutation in self.given.items():
            if mutation.given.given_us <= until_us:
                self._everywhere(key, "BOUND", f"the bound {until_us} is above it")

    def _everywhere(self, key: Key, invariant: str, why: str) -> None:
        for node, store in self._stores.items():
            if key[2] not in store.stored.get((key[0], key[1]), ()):
                raise Violation(invariant, f"node {node} lacks {key}: {why}")

    def acknowledged(self, mutation: Mutation) -> None:
        self._saw(mutation.rows())

    def floor(self, partition: str) -> Rows:
        """What an answer to a read that begins now must not be older than."""
        return {place: cell for place, cell in self._seen.items() if place[0] == partition}

    def answered(self, partition: str, floor: Rows, rows: Rows, by: str) -> None:
        for place, least in floor.items():
            cell = rows.get(place)
            if cell is None and not least.deleted:
                self._gone(place, least, by)
            if cell is not None and cell < least:
                invariant = "REP-3" if least.deleted else "REP-2a"
                raise Violation(invariant, f"{by}: {place} shows {cell}, and {least} was seen before")
        seen = {rows.get((partition, row)) for row in ROWS}
        if len(seen) > 1:
            raise Violation("REP-2b", f"{by}: {partition} is torn: {seen}")
        self._saw(rows)

    def held(self, ids: Summary, by: str) -> None:
        """An answer stands on the disks of a quorum."""
        holders = [node for node, store in self._stores.items() if store.kept.summary.covers(ids)]
        if len(holders) <= len(self._stores) // 2:
            raise Violation("QUORUM", f"{by}: only {holders} hold all of the answer")

    def _gone(self, place: tuple[str, str], least: Cell, by: str) -> None:
        """A row that was seen is away; some deletion of its partition must be newer."""
        for mutation in self.given.values():
            if mutation.deleted and mutation.partition == place[0] and mutation.cell > least:
                return
        raise Violation("REP-1", f"{by}: {place} is gone, and {least} was there")

    def _saw(self, rows: Rows) -> None:
        self._seen = merged((self._seen, rows))

    def audit(self) -> int:
        """Contents of ids that two journals have, told apart by symbols; with how many symbols it took."""
        used = 0
        for one, other in combinations(self._stores.values(), 2):
            items = [
                {item_of(found.given, repr(found).encode()) for found in store.journal.values()}
                for store in (one, other)
            ]
            stream, decoder = SymbolEncoder(items[0]), SymbolDecoder(items[1])
            while not decoder.done:
                decoder.add(stream.next())
            used += decoder.count
            theirs, ours = decoder.difference()
            both = {(item.node, item.start, item.offset) for item in theirs} & {
                (item.node, item.start, item.offset) for item in ours
            }
            if both:
                raise Violation("AUDIT", f"different contents under {min(both)}")
        return used

    def rested(self, logs: Mapping[int, RangeLog]) -> None:
        stored = {key for store in self._stores.values() for key in _keys(store)}
        for key in sorted(stored):
            self._everywhere(key, "LIVENESS", "others have it, and all had time")
        for node, log in logs.items():
            if log.unreconciled or log.cohorts.groups:
                raise Violation("LIVENESS", f"node {node} does not know that all hold {log.unreconciled}")
            if len(log.held.logs) > 2 * len(log.participants):
                raise Violation("LIVENESS", f"node {node} lists {len(log.held.logs)} logs")
            if self._stores[node].journal:
                raise Violation("LIVENESS", f"the journal of node {node} keeps what all hold")
        expected = merged(self.given[key].rows() for key in sorted(stored))
        alive = {place: cell for place, cell in expected.items() if not cell.deleted}
        for node, store in self._stores.items():
            if store.full:
                rows = {place: cell for place, cell in store.rows.items() if not cell.deleted}
                if rows != alive:
                    raise Violation("REP-3", f"node {node} has {rows}, and the newest are {alive}")


def _keys(store: Store) -> list[Key]:
    return [(*log, offset) for log, offsets in store.stored.items() for offset in offsets]
