"""Planted bugs of tracked tables: ids without data, data without ids, and answers that do not stand."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.coordination import ballot_rounds
from lockstep.coordination import tracked_reads as reads_module
from lockstep.coordination.once import Once
from lockstep.coordination.tracked_reads import TrackedReads
from lockstep.node.work.reconciling import Reconciler
from lockstep.quorum import plans as plans_module
from lockstep.quorum.causal import Causal
from lockstep.replica.tracked import TrackedReplica
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.journal import Journal
from lockstep.storage.journal_records import Entry, entry_key
from lockstep.storage.shard_logs import Shard, ShardLogs
from lockstep.storage.store import Family
from lockstep.tracking.held import NOTHING, Held, MutationId, held_of
from lockstep.tracking.intervals import of
from lockstep.values.codec import encode
from lockstep.values.ids import NodeId
from lockstep.values.rows import Mutation

_Context = contextlib.AbstractContextManager[None]


def _what_others_hold_ignored() -> _Context:
    """The replica with the data does not get what another one holds."""
    return replaced((reads_module, "all_of", lambda several: NOTHING))


def _shown_not_brought() -> _Context:
    """Who lacks what an answer holds does not get it before the client has the answer."""

    async def brought(
        self: Any,
        plan: Any,
        target: Any,
        request: Any,
        wanted: Held,
        sources: Any,
        deadline_s: float,
        everywhere: Held = NOTHING,
    ) -> None: ...

    return replaced((TrackedReads, "_bring", brought))


def _first_row_brought() -> _Context:
    """Of a mutation that a replica lacks it gets one row."""
    original = TrackedReplica._take

    async def take(self: Any, shard: Shard, pulled: Any, source: Any) -> None:
        entries = tuple(
            msgspec.structs.replace(
                one, mutation=msgspec.structs.replace(one.mutation, rows=one.mutation.rows[:1])
            )
            if one.mutation is not None
            else one
            for one in pulled.entries
        )
        await original(self, shard, msgspec.structs.replace(pulled, entries=entries), source)

    return replaced((TrackedReplica, "_take", take))


def _brought_as_nothing() -> _Context:
    """What a replica brings is held by id, and not stored."""
    original = Journal.take

    def take(
        self: Journal,
        shard: Shard,
        given: MutationId,
        mutation: Mutation | None,
        table_id: int = 0,
        token: int = 0,
        *,
        first_epoch: int | None = 0,
    ) -> None:
        held = self.held(shard)
        is_late = any(log == given.log and runs.end > given.offset + 1 for log, runs in held.items())
        if is_late and mutation is not None:
            table_id, token, mutation = mutation.table_id, mutation.token, None
        original(self, shard, given, mutation, table_id, token, first_epoch=first_epoch)

    return replaced((Journal, "take", take))


def _id_before_data() -> _Context:
    """The entry of a mutation is written in a batch of its own, and so late that a crash can be between."""

    def store(
        self: Any,
        shard: Shard,
        given: MutationId,
        mutation: Mutation | None,
        table_id: int,
        token: int,
        first_epoch: int | None,
    ) -> None:
        entry = Entry(given.given_us, mutation, shard[0], table_id, token)
        key = entry_key(given.log, given.offset)
        if mutation is not None:
            self._engine.apply(mutation, (), first_epoch=first_epoch)
        if given.offset % 5:
            self._sequence = self._engine.write_records(Family.JOURNAL, [("put", key, encode(entry))])
        self._add(self._logs(shard), given.log, given.offset, entry.place)

    return replaced((Journal, "_store", store))


def _start_not_told_apart() -> _Context:
    """Every start of a node gives its ids in the same log."""

    def give(
        self: Any, shard: Shard, mutation: Mutation, now_us: int, *, first_epoch: int | None = 0
    ) -> MutationId:
        logs = self._logs(shard)
        # What was given before this start is not looked at.
        given = MutationId(NodeId(self._own_id()), 1, logs.own, now_us)
        if not logs.contains(given.log, given.offset):
            self._store(shard, given, mutation, mutation.table_id, mutation.token, first_epoch)
        logs.own += 1
        return given

    return replaced((Journal, "give", give))


def _one_replica_not_awaited() -> _Context:
    """What all but one replica hold counts as held by all."""
    original = Reconciler._others

    def others(self: Any, cluster: Any, shard: Shard) -> list[int]:
        return original(self, cluster, shard)[:1]

    return replaced((Reconciler, "_others", others))


def _gap_filled() -> _Context:
    """Who holds an offset is taken to hold all before it."""

    def held(self: Any) -> Held:
        self._settle_ends()
        return held_of({log: of(range(runs.end)) for log, runs in self._held.items()})

    return replaced((ShardLogs, "held", property(held)))


def _shown_by_data() -> _Context:
    """What a serial read shows is not brought to who lacks it."""

    async def made_even(context: Any, plan: Any, command: Any, known: Any, left_ms: float) -> None: ...

    return replaced((ballot_rounds, "made_even", made_even))


def _named_by_each() -> _Context:
    """Each replica gives what was decided an id of its own."""

    async def named(self: Any, plan: Any, decided: Any) -> MutationId | None:
        return None

    return replaced((ballot_rounds.Rounds, "named", named))


def _given_up_kept() -> _Context:
    """What a replica told before its range moved away counts when it comes back."""
    original = Reconciler._fitted

    def fitted(self: Any, cluster: Any, changed: Any) -> None:
        told = {shard: dict(known) for shard, known in self._told.items()}
        original(self, cluster, changed)
        self._told = told

    return replaced((Reconciler, "_fitted", fitted))


def _given_up_claimed() -> _Context:
    """A range that this node gave up keeps its ids, and has them when it comes back."""
    original = Journal._is_fit

    def is_fit(self: Any, shard: Shard, groups: set[int], moved: Any) -> bool:
        at = self._range_at(*shard) if shard[0] in groups else None
        return original(self, shard, groups, moved) or (at is not None and not at[1])

    return replaced((Journal, "_is_fit", is_fit))


def _cut_forgotten() -> _Context:
    """When a range is cut all its ids go to the side that keeps its last token."""
    original = Journal._refiled

    def refiled(self: Any, shard: Shard, logs: ShardLogs) -> Any:
        target = self.shards.get(shard)
        if target is None:
            yield from original(self, shard, logs)
            return
        places = logs.places()
        self._listed -= logs.stop_listing()
        for (log, offset), place in places.items():
            if not target.contains(log, offset):
                self._add(target, log, offset, place)

    return replaced((Journal, "_refiled", refiled))


TRACKED = (
    Planted("tracked_others_ignored", "a write is missed", "tracked", _what_others_hold_ignored),
    Planted("tracked_not_brought", "reads go back", "tracked", _shown_not_brought),
    Planted("tracked_first_row", "a mutation is torn", "tracked", _first_row_brought),
    Planted("tracked_brought_as_nothing", "an id without data", "tracked", _brought_as_nothing),
    Planted("tracked_data_without_id", "ids and data are two sets", "tracked", _id_before_data),
    Planted("tracked_start_forgotten", "an id is given twice", "tracked", _start_not_told_apart),
    Planted("tracked_one_not_awaited", "a mutation is let go of", "tracked", _one_replica_not_awaited),
    Planted("tracked_gap_filled", "an id is claimed that is not held", "tracked", _gap_filled),
    Planted("tracked_old_news", "what was told before a move counts", "tracked_moves", _given_up_kept),
    Planted("tracked_given_up", "ids of wiped data are claimed", "tracked_moves", _given_up_claimed),
    Planted("tracked_cut_forgotten", "ids stay where they were cut off", "tracked_moves", _cut_forgotten),
)


def _ids_tell_at_once() -> _Context:
    """Reads go by ids as soon as a table is tracked, whatever was in it."""
    return replaced((plans_module, "is_equal_since", lambda known, wanted, epoch: True))


def _journal_let_go_at_the_end() -> _Context:
    """What is open when tracking ends is forgotten with the rest."""
    return replaced((Reconciler, "_is_open", lambda self, cluster, shard: False))


def _token_ignored() -> _Context:
    """What a client has seen binds nobody."""
    return replaced((Causal, "wanted", lambda self, plan: NOTHING))


def _led_again() -> _Context:
    """A replica leads a write each time that it comes, whatever became of it before."""
    return replaced((Once, "take", lambda self, host_id, attempt: True))


#: Those that a test brings about.
DIRECTED = (
    Planted("tracked_led_again", "what was refused is done", "tracked_witness_capture", _led_again),
    Planted("tracked_ids_at_once", "a write of before is missed", "tracked_altered", _ids_tell_at_once),
    Planted("tracked_end_forgets", "a write stays away", "tracked_altered", _journal_let_go_at_the_end),
    Planted("tracked_shown_by_data", "a serial read tears", "tracked_lwt", _shown_by_data),
    Planted("tracked_token_ignored", "a client misses its own write", "tracked", _token_ignored),
    Planted("tracked_named_by_each", "a decision has many ids", "tracked_lwt", _named_by_each),
)
