"""Planted bugs of what tables hold: several columns (ties, and what expires), counters, indexes, views, and
what conditional writes decide.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import msgspec
from msgspec import structs

from lockstep.consensus import paxos
from lockstep.consensus.paxos import NO_BALLOT, Acceptor, Ballot, Fate, Proposal
from lockstep.coordination import ballot_rounds as rounds_module
from lockstep.coordination import counters as counters_module
from lockstep.coordination import page as page_module
from lockstep.coordination import read_round as read_round_module
from lockstep.coordination import reads
from lockstep.coordination.conditional import _Read
from lockstep.coordination.counters import CounterLeader, CounterReply
from lockstep.cql.compile.context import Context
from lockstep.handoff import view_log, view_updates
from lockstep.handoff.view_log import Updates, ViewLog
from lockstep.handoff.view_updates import ViewOf
from lockstep.internode import verbs
from lockstep.node.recovery import store as recovering_module
from lockstep.node.work import worker as work_module
from lockstep.node.work.view_builds import Build, ViewBuilds, joined
from lockstep.quorum.round import COUNTER
from lockstep.replica import merging as digests_module
from lockstep.replica.ballot_states import ReservedTimes
from lockstep.replica.ballots import BallotService
from lockstep.replica.messages import PrepareRequest
from lockstep.schema.clustering import routing_key
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.index import indexes as indexes_module
from lockstep.storage.index.indexes import Indexes
from lockstep.storage.rows import difference as difference_module
from lockstep.storage.rows import reconcile
from lockstep.storage.rows import visible as visible_module
from lockstep.storage.store_position import generation_record
from lockstep.values.errors import PeerTimeout, RangeLacking
from lockstep.values.ids import Consistency
from lockstep.values.rows import Cell, Partition, ReadResult, Row
from lockstep.values.tokens import TOKEN_MAX

_Context = contextlib.AbstractContextManager[None]


def _digest_of_first_cells() -> _Context:
    """Digests tell rows apart by the first of their cells only."""
    original = digests_module.digest_of

    def cut(row: Row) -> Row:
        return msgspec.structs.replace(row, cells=row.cells[:1])

    def digest(result: ReadResult) -> bytes:
        partitions = tuple(
            msgspec.structs.replace(part, rows=tuple(cut(row) for row in part.rows))
            for part in result.partitions
        )
        return original(msgspec.structs.replace(result, partitions=partitions))

    return replaced((digests_module, "digest_of", digest), (read_round_module, "digest_of", digest))


def _first_cell_repaired() -> _Context:
    """Of the cells that a replica lacks of a row it is sent the first."""
    original = difference_module._lacking_row

    def lacking(merged: Row, known: Row | None) -> Row | None:
        found = original(merged, known)
        if found is None or known is None:
            return found
        return msgspec.structs.replace(found, cells=found.cells[:1])

    return replaced((difference_module, "_lacking_row", lacking))


def _marker_not_repaired() -> _Context:
    """A replica that has a row's cells is not sent its marker."""
    original = difference_module._lacking_row

    def lacking(merged: Row, known: Row | None) -> Row | None:
        found = original(merged, known)
        if found is None or known is None:
            return found
        left = msgspec.structs.replace(found, liveness=None)
        return left if left != Row(merged.clustering) else None

    return replaced((difference_module, "_lacking_row", lacking))


def _map_deletion_not_repaired() -> _Context:
    """A replica that has a row is not sent that a collection of it was deleted."""
    original = difference_module._lacking_row

    def lacking(merged: Row, known: Row | None) -> Row | None:
        found = original(merged, known)
        if found is None or known is None:
            return found
        left = msgspec.structs.replace(found, column_deletions=())
        return left if left != Row(merged.clustering) else None

    return replaced((difference_module, "_lacking_row", lacking))


def _value_beats_deletion() -> _Context:
    """Of a value and a deletion with one timestamp the value wins."""

    def rank(cell: Cell) -> tuple[int, int, bytes, int]:
        if cell.value is None:
            return (-1, cell.expires_at_s, b"", cell.ttl_s)
        return (1 if cell.ttl_s else 0, cell.expires_at_s, cell.value, cell.ttl_s)

    return replaced((reconcile, "_rank", rank))


def _larger_value_beats_expiring() -> _Context:
    """Of two values with one timestamp the larger wins, whether one of them expires or not."""

    def rank(cell: Cell) -> tuple[int, int, bytes, int]:
        return (2 if cell.value is None else 0, 0, cell.value or b"", cell.ttl_s)

    return replaced((reconcile, "_rank", rank))


def _deletion_covers_older_only() -> _Context:
    """A deleted row's cells stay when they have the deletion's own timestamp."""
    original = reconcile._surviving

    def surviving(cells: Any, columns: Any, covered_us: int) -> tuple[Cell, ...]:
        return original(cells, columns, covered_us - 1)

    return replaced((reconcile, "_surviving", surviving))


def _expires_a_second_late() -> _Context:
    """A value is shown for a second longer than it lives."""
    original = visible_module.live_view

    def late(partition: Partition, now_s: int, *rest: Any) -> Partition:
        return original(partition, now_s - 1, *rest)

    return replaced((page_module, "live_view", late))


COLUMNS = (
    Planted("digest_of_first_cells", "replicas that differ go unseen", "columns", _digest_of_first_cells),
    Planted("first_cell_repaired", "columns go back", "columns", _first_cell_repaired),
    Planted("marker_not_repaired", "rows without values go back", "columns", _marker_not_repaired),
    Planted("map_deletion_not_repaired", "elements return", "columns", _map_deletion_not_repaired),
    Planted("value_beats_deletion", "what was deleted stays", "columns", _value_beats_deletion),
    Planted("larger_beats_expiring", "what expires is ignored", "columns", _larger_value_beats_expiring),
    Planted("deletion_covers_older_only", "what was deleted stays", "columns", _deletion_covers_older_only),
    Planted("expires_a_second_late", "what expired is read", "columns", _expires_a_second_late),
)


def _count_what_comes_again() -> contextlib.AbstractContextManager[None]:
    """A change that is delivered twice is added twice, also by the next process."""

    async def receive(self: Any, peer: Any, request: Any) -> CounterReply:
        await self._count(request)
        return CounterReply(True, self.incarnation)

    return replaced((CounterLeader, "_receive", receive))


def _count_side_by_side() -> contextlib.AbstractContextManager[None]:
    """Changes of one counter do not wait for each other."""

    def enter(self: CounterLeader, place: Any) -> asyncio.Lock:
        return asyncio.Lock()

    def leave(self: CounterLeader, place: Any) -> None:
        return None

    return replaced((CounterLeader, "_enter", enter), (CounterLeader, "_leave", leave))


def _count_again_after_a_timeout() -> contextlib.AbstractContextManager[None]:
    """A change is given to another replica when the first one does not answer."""
    failures = tuple(row for row in COUNTER.failures if PeerTimeout not in row[0])
    eager = msgspec.structs.replace(COUNTER, failures=failures)
    return replaced((counters_module, "COUNTER", eager))


def _count_on_when_wiped() -> contextlib.AbstractContextManager[None]:
    """Who lost its store counts on from nothing, in the shards that others still have."""
    original = CounterLeader._check

    def check(self: Any, request: Any) -> None:
        with contextlib.suppress(RangeLacking):
            original(self, request)

    return replaced(
        (recovering_module, "generation_record", lambda _: generation_record(1)),
        (CounterLeader, "_check", check),
    )


COUNTERS = (
    Planted("count_again", "a change counts twice", "counts", _count_what_comes_again),
    Planted("count_side_by_side", "one change hides another", "counts", _count_side_by_side),
    Planted("count_on_when_wiped", "a wiped replica hides what it counted", "stores", _count_on_when_wiped),
    Planted("count_after_timeout", "two replicas count one change", "counts", _count_again_after_a_timeout),
)


def _not_built() -> contextlib.AbstractContextManager[None]:
    """A new index counts as built at once."""
    original = Indexes._ask

    def ask(self: Any, job: Any) -> None:
        if job.index_id is None:
            original(self, job)

    return replaced((Indexes, "_ask", ask))


def _streamed_not_indexed() -> contextlib.AbstractContextManager[None]:
    """Rows that come in files get no entries."""
    original = Indexes._ask

    def ask(self: Any, job: Any) -> None:
        if job.index_id is not None:
            original(self, job)

    return replaced((Indexes, "_ask", ask))


def _answers_believed() -> contextlib.AbstractContextManager[None]:
    """What the first replica says to match is answered."""

    def agreed(results: Any) -> Any:
        return results[0].partitions, results[0].end if results[0].more else None

    return replaced((reads, "agreed", agreed))


def _step_ends_its_partition() -> contextlib.AbstractContextManager[None]:
    """A partition counts as indexed with the first step of a build that ends in it."""
    original = indexes_module.noted

    def noted(table_id: int, index_id: int, token: int | None) -> Any:
        return original(table_id, index_id, token if token is None else token + 1)

    return replaced((indexes_module, "noted", noted))


INDEXES = (
    Planted("index_not_built", "an index lacks rows that are older than it", "indexes", _not_built),
    Planted("index_answers_believed", "one replica's word is answered", "indexes", _answers_believed),
    Planted("index_streamed_not_indexed", "an index lacks rows that moved", "indexes", _streamed_not_indexed),
    Planted("index_step_ends_its_partition", "an index lacks rows", "builds", _step_ends_its_partition),
)


def _not_logged() -> contextlib.AbstractContextManager[None]:
    """View updates are sent, but kept nowhere."""
    original = Updates.__init__

    def init(self: Any, *rest: Any) -> None:
        original(self, *rest)
        self.batch = []

    return replaced((Updates, "__init__", init))


def _old_row_kept() -> contextlib.AbstractContextManager[None]:
    """Nobody looks where a row was before."""
    original = ViewOf.derived

    def derived(self: Any, before: Any, mutation: Any, now_s: int) -> Any:
        return original(self, Partition(before.token, before.key), mutation, now_s)

    return replaced((ViewOf, "derived", derived))


def _late_value_ignored() -> contextlib.AbstractContextManager[None]:
    """A value that comes late, and has lost already, is taken for nothing to tell."""
    original = ViewOf._row

    def row(self: Any, keys: Any, clustering: Any, old: Any, told: Any, new: Any, *rest: Any) -> Any:
        return original(self, keys, clustering, old, [] if old == new else told, new, *rest)

    return replaced((ViewOf, "_row", row))


def _one_pair_for_all() -> contextlib.AbstractContextManager[None]:
    """All replicas of a base bring what they derive to the same replica of a view."""
    return replaced((view_updates, "paired_with", lambda _base, view, _dc_of, _own: view[0]))


def _dead_for_pairs() -> contextlib.AbstractContextManager[None]:
    """That a value has lost is told to the paired replica alone."""
    return replaced((view_log, "for_all", lambda _mutation: False))


def _not_completed() -> contextlib.AbstractContextManager[None]:
    """A write whose coordinator died counts as one that every replica has."""
    original = ViewLog._expect

    def expect(self: Any, mutation_id: Any, record: Any) -> None:
        original(self, mutation_id, record)
        self.settled([mutation_id])

    return replaced((ViewLog, "_expect", expect))


def _view_not_built() -> contextlib.AbstractContextManager[None]:
    """A new view counts as built at once."""
    return replaced((ViewBuilds, "_next", lambda self, table_id: None))


def _page_ends_its_partition() -> contextlib.AbstractContextManager[None]:
    """A partition counts as gone through with the first page that ends in it."""
    original = ViewBuilds._keep

    async def keep(self: Any, table_id: int, build: Build) -> None:
        whole = tuple((left, right + (right + 1 < TOKEN_MAX)) for left, right in build.covered)
        await original(self, table_id, structs.replace(build, covered=joined(whole)))

    return replaced((ViewBuilds, "_keep", keep))


def _empty_keys_skipped() -> contextlib.AbstractContextManager[None]:
    """A view has no rows whose key no request can name."""
    return replaced((view_updates, "derived_key", routing_key))


VIEWS = (
    Planted("view_empty_key", "a view lacks rows whose key is empty", "views", _empty_keys_skipped),
    Planted("view_old_row_kept", "a row is at two keys of a view", "views", _old_row_kept),
    Planted("view_one_pair", "a replica of a view lacks rows", "views", _one_pair_for_all),
    Planted("view_page_ends_its_partition", "a view lacks rows", "builds", _page_ends_its_partition),
    Planted("view_not_built", "a view lacks rows that are older than it", "views", _view_not_built),
)
#: What a test brings about.
DIRECTED = (
    Planted("view_write_not_completed", "a replica of a base lacks a write for good", "", _not_completed),
    Planted("view_not_logged", "a view lacks a row after all nodes lost power", "", _not_logged),
    Planted(
        "view_dead_for_pairs",
        "a row stays where it was while a replica of its base is away",
        "",
        _dead_for_pairs,
    ),
    Planted("view_late_value_ignored", "a row is at two keys of a view", "", _late_value_ignored),
)


def _promise_forgotten() -> contextlib.AbstractContextManager[None]:
    """An acceptor takes whatever is proposed, also under a ballot older than its promise."""

    def accept(state: Acceptor, proposal: Proposal) -> tuple[Acceptor, bool]:
        return msgspec.structs.replace(state, accepted=proposal), True

    return replaced((paxos, "accept", accept))


def _vote_not_judged() -> contextlib.AbstractContextManager[None]:
    """An acceptor applies whatever it is told to be decided by its vote, also under an older ballot."""

    def decide(state: Acceptor, proposal: Proposal) -> tuple[Acceptor, bool]:
        return msgspec.structs.replace(state, committed=proposal), True

    return replaced((paxos, "decide", decide))


def _accepted_ignored() -> contextlib.AbstractContextManager[None]:
    """A proposer does not finish what others had accepted before it."""
    original = paxos.judge

    def judge(states: Any) -> Any:
        return msgspec.structs.replace(original(states), in_progress=None)

    return replaced((paxos, "judge", judge))


def _ballots_not_durable() -> contextlib.AbstractContextManager[None]:
    """An acceptor answers before the disk has its ballots."""
    original = BallotService._keep

    def keep(self: Any, place: Any, before: Any, after: Any) -> int:
        original(self, place, before, after)
        return 0

    return replaced((BallotService, "_keep", keep))


def _reserved_forgotten() -> contextlib.AbstractContextManager[None]:
    """After a restart an acceptor takes ballots of times in which it gave promises that its disk lacks."""
    return replaced((ReservedTimes, "above", lambda self, state: state))


def _ballots_not_moved() -> contextlib.AbstractContextManager[None]:
    """A replica that gains a range gets its rows, and not its ballots."""
    return replaced((work_module, "ballots_of", lambda table_id: table_id))


def _fate_unheard() -> contextlib.AbstractContextManager[None]:
    """A proposer that lost sight of its proposal takes it for one that never takes effect."""
    return replaced((paxos, "fate", lambda own, committed: Fate.LOST))


def _past_finished() -> contextlib.AbstractContextManager[None]:
    """What was left in progress is finished as it is, however old."""

    async def finished(self: Any, plan: Any, left: Proposal) -> Proposal:
        return left

    return replaced((rounds_module.Rounds, "_finished", finished))


def _past_voided() -> contextlib.AbstractContextManager[None]:
    """An old proposal is ended without effect whoever knows it as decided."""

    async def ended(rounds: Any, plan: Any, left: Proposal, now_s: int) -> Proposal:
        return left.voided()

    return replaced((rounds_module, "ended", ended))


def _one_voter() -> contextlib.AbstractContextManager[None]:
    """One replica decides."""
    counted = {Consistency.SERIAL: Consistency.ONE, Consistency.LOCAL_SERIAL: Consistency.ONE}
    return replaced((rounds_module, "COUNTED_AS", counted))


def _read_looks_only() -> contextlib.AbstractContextManager[None]:
    """A serial read does not finish what a quorum has accepted and nobody that it asked knows as decided."""

    async def looked(self: Any, plan: Any, command: Any) -> Any:
        request = PrepareRequest(plan.epoch, plan.needs_epoch, self.place, NO_BALLOT, command)
        paxos_round = self.paxos_round(plan, verbs.CAS_PREPARE, request, rounds_module.promises)
        if not await self.won(plan, paxos_round) or self.changed(plan):
            return None
        found = paxos.judge({node: reply.state for node, reply in paxos_round.granted.items()})
        return None if found.lacking else [reply.result for reply in paxos_round.granted.values()]

    return replaced((_Read, "_looked", looked))


def _ballots_not_drawn() -> contextlib.AbstractContextManager[None]:
    """Two requests that choose one microsecond have one ballot."""
    original = rounds_module.ConditionalsShared.next_ballot

    def next_ballot(self: Any, floor_us: int) -> Ballot:
        return Ballot(original(self, floor_us).time_us, 1)

    return replaced((rounds_module.ConditionalsShared, "next_ballot", next_ballot))


def _lists_by_clock() -> contextlib.AbstractContextManager[None]:
    """Elements are ordered by the clock of the coordinator that a client happened to ask."""

    def decided_at(self: Context, time_us: int) -> Context:
        return msgspec.structs.replace(self, timestamp_us=time_us)

    return replaced((Context, "decided_at", decided_at))


def _one_local_voter() -> contextlib.AbstractContextManager[None]:
    """One replica of a data centre decides for it."""
    counted = {**rounds_module.COUNTED_AS, Consistency.LOCAL_SERIAL: Consistency.LOCAL_ONE}
    return replaced((rounds_module, "COUNTED_AS", counted))


DECISIONS = (
    Planted("promise_forgotten", "two proposals are decided at once", "lwt", _promise_forgotten),
    Planted("vote_not_judged", "what was refused is applied", "lwt", _vote_not_judged),
    Planted("accepted_ignored", "what was decided is decided again", "lwt", _accepted_ignored),
    Planted("ballots_not_durable", "a power loss takes promises back", "lwt", _ballots_not_durable),
    Planted("fate_unheard", "not applied is said of what was applied", "lwt", _fate_unheard),
    Planted("one_voter", "two coordinators decide apart", "lwt", _one_voter),
    Planted("read_looks_only", "a serial read misses what was applied", "lwt", _read_looks_only),
    Planted("ballots_not_drawn", "two values are decided by one ballot", "lwt", _ballots_not_drawn),
    Planted("lists_by_clock", "a later append stands before an earlier one", "lwt", _lists_by_clock),
    Planted("one_local_voter", "a data centre decides against itself", "lwt_dcs", _one_local_voter),
)
#: Brought about by tests: they take proposals that are left open, and replicas that are down or gone.
DECISION_DIRECTED = (
    Planted("reserved_forgotten", "a restart takes promises back", "lwt", _reserved_forgotten),
    Planted("ballots_not_moved", "new replicas do not know of ballots", "lwt", _ballots_not_moved),
    Planted("past_finished", "what was deleted and purged returns", "lwt", _past_finished),
    Planted("past_voided", "one lock is granted twice", "lwt", _past_voided),
)
