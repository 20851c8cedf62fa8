"""The coordinator of reads: ask enough replicas, merge, repair, go on where answers fell short; and reads by
an index: several ranges are asked at once, the more the less they bring, and what replicas found is made what
the cluster holds.

Each replica answers rows that its own state says to match. A row that matches in truth, by a cell that was
acknowledged at a level that meets this read's, does so on some replica that was asked: the one that holds the
newest write of the cell. So the answers together name every row asked for. A row that is not in all of them
may be outdated where it is: these answers say nothing of what the other replicas know of the row.

Invariant: Every answer used was given under a plan that still held, at the replica and here, when all answers
were in. What is returned at a level above ONE is held by enough replicas for the next read of the level. Rows
that one replica's limit hid are asked for, never skipped. What is returned of a place is what all asked
replicas agree upon, or what a plain read of the place at the same level returns. The answer is that of asking
one range after the other: results are taken in token order, and what lies behind the place where the answer
is full is thrown away.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from msgspec.structs import replace

from lockstep.coordination.context import CoordinationContext
from lockstep.coordination.outlined import told_of
from lockstep.coordination.page import Page
from lockstep.coordination.read_round import Additional, Answer, ReadRound, ReadsShared, repair
from lockstep.coordination.tracked_reads import TrackedReads
from lockstep.coordination.writes import Writes
from lockstep.internode.handshake import Address
from lockstep.quorum.causal import CAUSAL
from lockstep.quorum.plans import Plan
from lockstep.quorum.request_trace import REQUEST_TRACE
from lockstep.quorum.round import Target
from lockstep.quorum.speculation import NEVER, Latencies
from lockstep.replica.merging import earlier, merge_answers
from lockstep.replica.messages import ReadRequest, Tracking
from lockstep.replica.scanned import Scanned, Thresholds
from lockstep.runtime.ports import Tasks
from lockstep.values.errors import (
    LockstepError,
    NotReplica,
    Overloaded,
    ReadFailure,
    ReadTimeout,
    RequestError,
    StaleEpoch,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import (
    INDEX_RANGES_AT_ONCE_MAX,
    PAGE_ROWS_MAX,
    READS_IN_FLIGHT_MAX,
    REPLICA_RETRY_MS,
    REQUEST_PLANS_MAX,
    SHORT_READ_ROUNDS_MAX,
)
from lockstep.values.node_limits import ROWS_A_TURN
from lockstep.values.rows import Partition, Place, Position, ReadCommand, ReadResult, Slice, has_large_row
from lockstep.values.tokens import Range

Read = Callable[[ReadCommand], Awaitable[ReadResult]]


async def scan(
    command: ReadCommand, read: Read, end_of_range: Callable[[int], int], tasks: Tasks
) -> ReadResult:
    """`read` answers a command within one range; `end_of_range(token)` is the last token of its range."""
    page = Page(command)
    left, at_once = command.left, 1
    if command.after is not None:
        left = max(left, command.after.token - 1)
    while True:
        parts, held = _parts(command, left, end_of_range, at_once), page.count()
        results = await _together([read(part) for part in parts], tasks)
        for result in results:
            page.add(result.partitions, result.end)
            if result.more or page.full():
                return page.result(result.end or page.behind_last())
        left = parts[-1].right
        if left >= command.right:
            return page.result(None)
        at_once = _next_width(page, command, at_once, page.count() - held)


def _parts(
    command: ReadCommand, left: int, end_of_range: Callable[[int], int], count: int
) -> list[ReadCommand]:
    """The next ranges, each as a command of its own."""
    found: list[ReadCommand] = []
    while left < command.right and len(found) < count:
        right = min(command.right, end_of_range(left + 1))
        after = command.after if _is_in(command, left, right) else None
        found.append(replace(command, left=left, right=right, after=after))
        left = right
    return found


def _is_in(command: ReadCommand, left: int, right: int) -> bool:
    return command.after is not None and left < command.after.token <= right


def _next_width(page: Page, command: ReadCommand, at_once: int, found: int) -> int:
    """As many ranges as may fill the rest; twice as many as before at most."""
    widest = min(2 * at_once, INDEX_RANGES_AT_ONCE_MAX)
    if not found or not command.row_limit:
        return widest
    return max(1, min(widest, page.room() * at_once // found))


async def _together(works: list[Awaitable[ReadResult]], tasks: Tasks) -> list[ReadResult]:
    """Results in order; the first error, once all have ended."""
    if len(works) == 1:
        return [await works[0]]

    async def safe(work: Awaitable[ReadResult]) -> ReadResult | LockstepError:
        try:
            return await work
        except LockstepError as error:
            return error

    outcomes = await asyncio.gather(*(tasks.spawn(safe(work), "read-by-index") for work in works))
    found: list[ReadResult] = []
    for outcome in outcomes:
        if isinstance(outcome, LockstepError):
            raise outcome
        found.append(outcome)
    return found


Asked = tuple[list[Answer], ReadCommand, Plan]
Found = tuple[tuple[Partition, ...], Position | None]


def agreed(results: Sequence[ReadResult]) -> Found | None:
    """What all answers say, and where it ends; None when they differ."""
    first = results[0]
    if any(result != first for result in results[1:]):
        return None
    return first.partitions, first.end if first.more else None


def places_named(command: ReadCommand, results: Sequence[ReadResult]) -> tuple[ReadCommand, Position | None]:
    """A command that reads the places which any answer names, up to where all of them looked; and there."""
    end: Position | None = None
    for result in results:
        if result.more:
            end = earlier(end, result.end, reverse=False)
    assert command.index is not None
    named: dict[tuple[int, bytes], dict[bytes, None]] = {}
    for result in results:
        for partition in result.partitions:
            if end is not None and (partition.token, partition.key) > (end.token, end.key):
                continue
            rows = named.setdefault((partition.token, partition.key), {})
            rows.update(dict.fromkeys(row.clustering for row in partition.rows))
    places: list[Place] = []
    for token, key in sorted(named):
        slices = command.slices if command.index.whole else _exactly(sorted(named[token, key]))
        if end is not None and end.clustering is not None and (token, key) == (end.token, end.key):
            slices = _up_to(end.clustering, slices)
        if slices or not command.slices:
            places.append(Place(token, key, slices))
    return replace(command, index=None, places=tuple(places), row_limit=0, partition_row_limit=0), end


def _exactly(rows: Sequence[bytes]) -> tuple[Slice, ...]:
    # Above a clustering nothing comes before itself and a zero byte.
    return tuple(Slice(clustering, clustering + b"\x00") for clustering in rows)


def _up_to(last: bytes, slices: tuple[Slice, ...]) -> tuple[Slice, ...]:
    """What of the slices is not behind `last`: who goes on there reads the rest."""
    bound = last + b"\x00"
    return tuple(
        Slice(one.start, one.end if one.end and one.end <= bound else bound)
        for one in slices
        if one.start < bound
    )


def ended(result: ReadResult, command: ReadCommand, end: Position | None) -> ReadResult:
    """An answer to a command of places that is known only up to `end`, where that lies before its own."""
    if end is not None and end.token > command.right:
        end = None
    found = earlier(end, result.end if result.more else None, reverse=False)
    return result if found is None else ReadResult(result.partitions, True, found)


class Reads:
    """What all reads of one node share."""

    def __init__(self, context: CoordinationContext, writes: Writes, thresholds: Thresholds) -> None:
        self.context = context
        self.runtime = context.runtime
        self.shared = ReadsShared(context)
        self.plans = context.plans
        self.replica = context.replica
        self._writes = writes
        self._thresholds = thresholds
        self._tracked = TrackedReads(context) if context.tracked is not None else None
        self.reach = context.runtime.probes.reach
        #: Questions asked anew because something that matters had changed when the answers were in.
        self.replans = 0
        #: Refusals that made this node learn a newer epoch first.
        self.catch_ups = 0
        #: How long repairs took of what replicas lacked.
        self.repair_latencies = Latencies()

    def stop(self) -> None:
        self.shared.in_flight.stop()
        self.shared.slow.stop()

    async def read(self, command: ReadCommand, consistency: Consistency, timeout_ms: float) -> ReadResult:
        """Live content only, at most `row_limit` rows; `end` is where to go on when there is `more`.

        Unavailable, ReadTimeout, ReadFailure, Overloaded or InvalidRequest.
        """
        if len(self.shared.in_flight) >= READS_IN_FLIGHT_MAX:
            raise Overloaded("too many reads in flight on this node")
        deadline_s = self.runtime.clock.monotonic_s() + timeout_ms / 1000
        if command.outline is not None:
            return await told_of(
                command,
                lambda piece: self._told(piece, consistency, deadline_s),
                lambda piece: self._read(piece, consistency, deadline_s),
            )
        if command.index is None or command.key is not None:
            return await self._read(command, consistency, deadline_s)
        return await scan(
            command,
            lambda part: self._read(part, consistency, deadline_s),
            lambda token: self._plan(replace(command, left=token - 1), consistency, wide=True).range.right,
            self.runtime.tasks,
        )

    async def _read(
        self, command: ReadCommand, consistency: Consistency, deadline_s: float, begun: Asked | None = None
    ) -> ReadResult:
        """`begun`: what the first piece was answered already."""
        page = Page(command)
        scanned: Scanned | None = None
        left, after = command.left, command.after
        #: Short rounds in a row of one data range, and those of them that gave no row.
        short = barren = 0
        while True:
            if after is not None and command.key is None:
                left = max(left, after.token - 1)
            piece = _piece(command, left, after, page.room() << min(short, SHORT_READ_ROUNDS_MAX))
            answers, asked, plan = begun or await self._ask(piece, consistency, deadline_s)
            begun = None
            if any(reply.dead for _, reply in answers):
                scanned = scanned or Scanned(self._thresholds)
                scanned.add(plan, answers)
            if asked.index is None:
                partitions, end = await self._reconcile(asked, plan, answers, deadline_s)
            else:
                asked, (partitions, end) = await self._confirmed(asked, answers, consistency, deadline_s)
            held = page.count()
            if has_large_row(reply.result for _, reply in answers):
                await self.runtime.tasks.run_blocking(partial(page.add, partitions, end))
            else:
                await _add(page, partitions, end)
            if end is None:
                after, short, barren = None, 0, 0
                if asked.right >= command.right:
                    return page.result(None)
                left = asked.right
                resume = None
            else:
                resume = after = page.skip_full(end)
                short += 1
                barren = 0 if page.count() > held else barren + 1
            if page.full():
                return page.result(resume or page.behind_last())
            if barren > SHORT_READ_ROUNDS_MAX:
                raise ReadFailure(consistency, len(answers), plan.required, 0, True)

    async def _told(
        self, piece: ReadCommand, consistency: Consistency, deadline_s: float
    ) -> tuple[ReadResult | None, ReadCommand]:
        """What all that were asked tell of a piece, or its rows; None when they do not agree."""
        answers, asked, plan = await self._ask(piece, consistency, deadline_s)
        first = answers[0][1].result
        if all(reply.result.told is None for _, reply in answers):
            rows = replace(asked, outline=None)
            return await self._read(rows, consistency, deadline_s, (answers, rows, plan)), asked
        assert piece.outline is not None, "what is told has an outline"
        # Who does not know all of the outline tells of something else.
        knows = first.told is not None and first.told.edition >= piece.outline.edition
        if not knows or any(reply.result != first for _, reply in answers):
            self.reach("read.told_apart")
            return None, asked
        if any(reply.dead for _, reply in answers):
            Scanned(self._thresholds).add(plan, answers)
        notes = REQUEST_TRACE.get()
        if notes is not None:
            responders = [(target.node, reply.accepted_epoch) for target, reply in answers]
            notes.read(plan, asked, responders, repaired=False)
        return first, asked

    async def _reconcile(
        self, command: ReadCommand, plan: Plan, answers: list[Answer], deadline_s: float
    ) -> tuple[tuple[Partition, ...], Position | None]:
        results = [reply.result for _, reply in answers]
        first = results[0]
        differ = not all(result == first for result in results[1:])
        notes = REQUEST_TRACE.get()
        if not differ:
            found = first.partitions, first.end if first.more else None
        elif has_large_row(results):
            found = await self.runtime.tasks.run_blocking(partial(merge_answers, results, command.reverse))
        else:
            found = merge_answers(results, command.reverse)
        placement = self.plans.placement(command.table_id) if differ else None
        repaired = False
        if placement is not None and placement.repairs:
            repaired = True
            await repair(
                self._writes,
                self.context.new_mutation_id,
                command.table_id,
                found[0],
                answers,
                plan.consistency,
                deadline_s,
                Additional(placement.additional_write, self.repair_latencies, self.shared.counters),
            )
        if notes is not None:
            responders = [(target.node, reply.accepted_epoch) for target, reply in answers]
            notes.read(plan, command, responders, repaired=repaired)
        return found

    async def _confirmed(
        self, command: ReadCommand, answers: list[Answer], consistency: Consistency, deadline_s: float
    ) -> tuple[ReadCommand, Found]:
        """What is true of the rows that an index named, and the command as far as that covers it."""
        results = [reply.result for _, reply in answers]
        found = agreed(results)
        if found is not None:
            return command, found
        self.reach("index.confirmed")
        places, end = places_named(command, results)
        if not places.places:
            return command, ((), end)
        answers, asked, plan = await self._ask(places, consistency, deadline_s)
        told = [(target, replace(reply, result=ended(reply.result, asked, end))) for target, reply in answers]
        covered = replace(command, right=asked.right)
        return covered, await self._reconcile(asked, plan, told, deadline_s)

    # -- one piece --------------------------------------------------------------------------------

    async def _ask(
        self, piece: ReadCommand, consistency: Consistency, deadline_s: float
    ) -> tuple[list[Answer], ReadCommand, Plan]:
        """(answers that satisfy the newest plan, the command they answer, that plan).

        The command is `piece` cut at the end of the data range in which it begins, or of those behind it that
        have the same replicas. When too many of these fail, they may hold one range well that others lack.
        """
        changes, wide = 0, piece.key is None
        while True:
            plan = self._plan(piece, consistency, wide=wide)
            if changes >= REQUEST_PLANS_MAX:
                await self._pause(plan, deadline_s)
            causal = CAUSAL.get() if plan.reads_ids and piece.key is not None else None
            follows_all = causal is not None and causal.is_cut_otherwise(plan)
            if follows_all:
                # What was seen may be of tokens beside the range: all replicas together know what is of it.
                self.reach("read.follows_all")
                plan = self._plan(piece, Consistency.ALL, wide=False)
            if self.runtime.clock.monotonic_s() > plan.alive_until_s:
                plan.require_alive(self.context.opinions)
                plan.note_alive(self.context.opinions)
            command = piece
            if plan.range.right < piece.right or (plan.required > 1 and piece.partition_row_limit):
                right = min(piece.right, plan.range.right)
                limit = piece.partition_row_limit if plan.required == 1 else 0
                command = replace(piece, right=right, partition_row_limit=limit)
            is_compared = plan.required > 1 or causal is not None
            tracked = self._tracked if plan.reads_ids and is_compared else None
            tracking = Tracking.NONE if tracked is None else Tracking.DATA
            request = ReadRequest(
                plan.epoch,
                plan.needs_epoch,
                command,
                tracking=tracking,
                lists_all=changes > 0,
                names_held=follows_all,
            )
            try:
                answers = await self._answers(plan, request, deadline_s, changes if tracked else 0)
                if tracked is not None and answers is not None:
                    answers = await tracked.settled(plan, request, answers, deadline_s)
            except ReadFailure:
                narrow = self._plan(piece, consistency, wide=False)
                if not wide or narrow.range.right >= command.right:
                    raise
                self.reach("read.narrowed")
                wide = False
                continue
            tokens = Range(command.left, command.right)
            if answers is not None:
                if not self.plans.changed_since(piece.table_id, tokens, plan.epoch):
                    return answers, command, plan
                self.replans += 1
                self.reach("read.plan_changed")
            changes += 1

    def _plan(self, piece: ReadCommand, consistency: Consistency, *, wide: bool) -> Plan:
        """`wide`: of as many ranges as have the same replicas. InvalidRequest when the table is gone."""
        find = self.plans.scan_plan if wide else self.plans.read_plan
        try:
            return find(piece.table_id, piece.left + 1, consistency)
        except RequestError:
            self.reach("read.table_gone")
            raise

    async def _pause(self, plan: Plan, deadline_s: float) -> None:
        """Before one more plan of a question that has had many. ReadTimeout when its time is over."""
        self.reach("read.replans_paced")
        await asyncio.sleep(REPLICA_RETRY_MS / 1000)
        if self.runtime.clock.monotonic_s() >= deadline_s:
            raise ReadTimeout(plan.consistency, 0, plan.required, False)

    async def _answers(
        self, plan: Plan, request: ReadRequest, deadline_s: float, turn: int = 0
    ) -> list[Answer] | None:
        """Enough answers, or None when the plan turned out stale and this node has caught up. `turn`: how
        often others were asked in vain; each time those alive are asked in another order."""
        opinions = self.context.opinions
        ordered = self.plans.read_order(plan, opinions.prefers, opinions.alive)
        if turn:
            alive = [target for target in ordered if opinions.alive(target.node)]
            first = turn % len(alive) if alive else 0
            rest = (target for target in ordered if target not in alive)
            ordered = (*alive[first:], *alive[:first], *rest)
        if plan.reads_ids and plan.group.write_only:
            # The first one is asked for data, and a replica that is being filled has not all.
            ordered = tuple(sorted(ordered, key=lambda target: target.node not in plan.group.reads))
        ordered = plan.data_first(ordered)
        own = plan.local
        if plan.required == 1 and own is not None and ordered[0] is own:
            answer = await self._answer_here(plan, own, request, deadline_s)
            if answer is not None:
                return [answer]
        placement = self.plans.placement(request.command.table_id)
        policy = placement.speculation if placement is not None else NEVER
        round_ = ReadRound(self.shared, plan, ordered, request, deadline_s, policy)
        round_.start()
        answers = await round_.future
        if answers is None:
            assert round_.round.source is not None, "a stale answer has a source"
            epoch, source = round_.round.source
            await self._learn(epoch, source.address, plan, deadline_s)
        return answers

    async def _answer_here(
        self, plan: Plan, own: Target, request: ReadRequest, deadline_s: float
    ) -> Answer | None:
        """This node's answer where one suffices; None when it cannot, so that others are asked."""
        left_s = deadline_s - self.runtime.clock.monotonic_s()
        try:
            reply = self.replica.read_now(request)
            if reply is not None:
                return own, reply
            async with asyncio.timeout(max(left_s, 0.0)):
                return own, await self.replica.read(request)
        except TimeoutError:
            raise ReadTimeout(plan.consistency, 0, plan.required, False) from None
        except (StaleEpoch, NotReplica):
            self.reach("read.refused_here")
            return None
        except RequestError:
            raise
        except LockstepError as error:
            self.runtime.probes.observe("read.local_failure", code=error.code)
            return None

    async def _learn(self, epoch: int, source: Address, plan: Plan, deadline_s: float) -> None:
        """Catch up with a replica that is ahead; a source that does not deliver costs a pause."""
        self.catch_ups += 1
        self.reach("read.behind")
        left_s = deadline_s - self.runtime.clock.monotonic_s()
        if left_s <= 0:
            raise ReadTimeout(plan.consistency, 0, plan.required, False)
        try:
            async with asyncio.timeout(left_s):
                await self.context.catch_up(epoch, source)
        except TimeoutError:
            raise ReadTimeout(plan.consistency, 0, plan.required, False) from None
        except RequestError:
            raise
        except LockstepError:
            # Nothing was learned: the next attempt asks again, perhaps another replica.
            self.reach("read.catch_up_failed")
            await asyncio.sleep(REPLICA_RETRY_MS / 1000)


async def _add(page: Page, partitions: Sequence[Partition], end: Position | None) -> None:
    """In parts, with turns for others between them."""
    page.add(partitions[:ROWS_A_TURN], end)
    for at in range(ROWS_A_TURN, len(partitions), ROWS_A_TURN):
        await asyncio.sleep(0)
        page.add(partitions[at : at + ROWS_A_TURN], end)


def _piece(command: ReadCommand, left: int, after: Position | None, row_limit: int) -> ReadCommand:
    limit = min(row_limit, max(PAGE_ROWS_MAX, command.row_limit))
    if left == command.left and after is command.after and limit == command.row_limit:
        return command
    return replace(command, left=left, after=after, row_limit=limit)
