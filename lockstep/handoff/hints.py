"""Hints: a coordinator keeps, durably, what a replica did not acknowledge, until that replica has it.

Invariants. Whoever did not acknowledge a write of a plan has a hint here, or its range is marked as lacking
writes, or who asked is told that the store took neither. Nothing is sent that is older than the table's
gc_grace_seconds, or than what a recorded repair lets go of, so a hint never brings back what a purged
tombstone deleted. Limits refuse a hint; they never take one back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from lockstep.coordination.hinting import Left
from lockstep.handoff.hint_store import DroppedHints, Hint, HintStore
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.purging import decided_by_repairs, purge_before_s
from lockstep.metadata.repairs import oldest
from lockstep.quorum.plans import PlanBook
from lockstep.quorum.round import Target
from lockstep.runtime.ports import Runtime
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.ids import Consistency, NodeId
from lockstep.values.limits import PURGE_AGE_S_MIN
from lockstep.values.rows import Mutation
from lockstep.values.tokens import Range

GC_GRACE_S_DEFAULT = 864_000
#: What is owed is given up so long before its grace time is over: the write is older than its hint, and is
#: under way for a while, and what deleted it in between goes after its own grace time.
GIVEN_UP_EARLY_S = 10
#: Why hints were not kept, or given up.
DISABLED = "hints are disabled"
WINDOW = "the node was away for longer than the hint window"
FULL_FOR_NODE = "as many bytes of hints as one node may have"
FULL = "as many bytes of hints as are allowed"
REFUSED = "the disk took no hint"
INVALID = "the node does not take such a write"
EXPIRED = "older than gc_grace_seconds"
OUTLIVED = "older than what a repair lets go of"
REASONS = (DISABLED, WINDOW, FULL_FOR_NODE, FULL, REFUSED, INVALID, EXPIRED, OUTLIVED)


class HintPolicy(msgspec.Struct, frozen=True):
    """As the settings of [hints]."""

    enabled: bool = True
    window_ms: int = 10_800_000
    bytes_per_node_max: int = 1 << 30
    bytes_max: int = 1 << 32
    throttle_bytes_s: int = 1 << 20


class Hints:
    """`silent_s(node)`: how long nothing was heard of it; None when nothing ever was."""

    def __init__(
        self,
        runtime: Runtime,
        store: HintStore,
        plans: PlanBook,
        silent_s: Callable[[int], float | None],
        policy: HintPolicy,
    ) -> None:
        self._runtime = runtime
        self.store = store
        self.plans = plans
        self._silent_s = silent_s
        self.policy = policy
        self.left = 0
        #: The newest sequence that is to be made durable, and whether that is under way.
        self._sequence = 0
        self._syncing = False
        #: Reason -> hints that were not kept or given up.
        self.dropped = dict.fromkeys(REASONS, 0)
        #: Called when hints were left.
        self.on_left: Callable[[], None] = lambda: None

    def leave(
        self,
        mutation: Mutation,
        epoch: int,
        targets: Sequence[Target],
        *,
        forced: bool = False,
        made_us: int = 0,
    ) -> Left:
        """Keep hints for replicas of a plan made at `epoch`. `forced`: whatever the settings and the window.
        `made_us`: of a write that was made before; the hint is as old, for what deleted it may go by then.

        What is not kept is marked. Nothing is owed to replicas of a table that is gone.
        """
        gc_grace_s = self.gc_grace_s(mutation.table_id)
        if gc_grace_s is None:
            return Left(0, 0, True)
        now_us = self._runtime.clock.wall_us()
        hint = Hint(min(made_us or now_us, now_us), epoch, gc_grace_s, mutation)
        size = sum(len(cell.value or b"") for row in mutation.rows for cell in row.cells)
        kept: list[NodeId] = []
        dropped: list[tuple[str, NodeId]] = []
        for target in targets:
            reason = self._refusal(target.node, now_us, size, forced) if gc_grace_s else EXPIRED
            if reason is None:
                kept.append(target.node)
            else:
                dropped.append((reason, target.node))
        sequence = 0
        if kept:
            try:
                # What is owed may be owed twice: of two changes that mean the same for a view.
                is_fresh = not (forced or made_us)
                sequence = self.store.put([(node, hint) for node in kept], fresh=is_fresh, left_us=now_us)
            except LockstepError:
                dropped += [(REFUSED, node) for node in kept]
                kept = []
        unmarked: list[NodeId] = []
        for reason, node in dropped:
            marked = self._drop(reason, node, mutation, now_us)
            if marked is None:
                unmarked.append(node)
            else:
                sequence = max(sequence, marked)
        if kept:
            self.left += len(kept)
            self._runtime.probes.reach("hints.left")
            self.on_left()
        if sequence:
            self._sync_later(sequence)
        return Left(sequence, len(kept), not dropped, tuple(unmarked))

    def _sync_later(self, sequence: int) -> None:
        """Have it made durable although nobody waits for it."""
        self._sequence = max(self._sequence, sequence)
        if not self._syncing:
            self._syncing = True
            self._runtime.tasks.spawn(self._sync(), "hints.sync")

    async def _sync(self) -> None:
        synced = 0
        try:
            while synced < self._sequence:
                synced = self._sequence
                await self.store.synced(synced)
        except LockstepError:
            # The store says itself that it died.
            self._runtime.probes.reach("hints.sync_failed")
        finally:
            self._syncing = False

    def gc_grace_s(self, table_id: int) -> int | None:
        """For how long a hint of the table may be kept; None when the table is gone."""
        table = self.plans.cluster.table(table_id)
        if table is None:
            return None
        return int(table.option("gc_grace_seconds", str(GC_GRACE_S_DEFAULT)))

    def is_late(self, gc_grace_s: int, made_us: int) -> bool:
        """Whether what deleted a write that was made, or left as a hint, then may soon be purged by its grace
        time. Nothing younger than PURGE_AGE_S_MIN is."""
        life_s = min(gc_grace_s, max(gc_grace_s, PURGE_AGE_S_MIN) - GIVEN_UP_EARLY_S)
        return self._runtime.clock.wall_us() - made_us > life_s * 1_000_000

    def outlived(self, mutation: Mutation, created_us: int) -> bool:
        """Whether what deleted a write may be purged since a recorded repair. Repairs ask who keeps what; but
        what is handed over may be with neither node when each is asked."""
        cluster = self.plans.cluster
        table = cluster.table(mutation.table_id)
        if table is None or not decided_by_repairs(table):
            return False
        now_s = self._runtime.clock.wall_us() // 1_000_000
        before_s = purge_before_s(cluster, table, Range(mutation.token - 1, mutation.token), now_s)
        return created_us // 1_000_000 < before_s

    def oldest_us(self) -> int | None:
        """When the oldest hint that is still to be delivered was left; None without hints.

        Its write may be older by the write timeout, and what it wrote by any timestamp that a client gave.
        """
        return self.store.oldest_us()

    def forget_marks(self, cluster: ClusterMetadata) -> None:
        """Forget marks of tables that are gone, and of ranges that repairs of all replicas which began later
        made equal, each a part of it."""

        def done(mark: DroppedHints) -> bool:
            if cluster.table(mark.table_id) is None:
                return True
            known = cluster.repairs.by_table.get(mark.table_id, ())
            found = oldest(known, Range(mark.left, mark.right))
            return found is not None and mark.newest_us < found.at_s * 1_000_000

        try:
            sequence = self.store.forget_marks(done)
        except LockstepError:
            # The store is busy or dying: after a start they are there again, for the next repair.
            self._runtime.probes.reach("hints.mark_refused")
        else:
            self._sync_later(sequence)

    def _refusal(self, node: NodeId, now_us: int, size: int, forced: bool) -> str | None:
        policy, pending = self.policy, self.store.pending.get(node)
        if self.store.bytes + size > policy.bytes_max:
            return FULL
        if pending is not None and pending.bytes + size > policy.bytes_per_node_max:
            return FULL_FOR_NODE
        if forced:
            return None
        if not policy.enabled:
            return DISABLED
        silent_s = self._silent_s(node)
        if silent_s is not None and silent_s * 1000 > policy.window_ms:
            return WINDOW
        if pending is not None and now_us - pending.since_us > policy.window_ms * 1000:
            return WINDOW
        return None

    def _drop(self, reason: str, node: NodeId, mutation: Mutation, now_us: int) -> int | None:
        """Mark what is not kept: the sequence to await, or None when the store takes no mark either."""
        self.dropped[reason] += 1
        self._runtime.probes.reach("hints.dropped")
        try:
            return self.store.mark(self.marks_of(reason, node, mutation, now_us))
        except LockstepError:
            # The store is busy, the disk has no more room than its reserve, or it died and says so itself.
            self._runtime.probes.reach("hints.mark_refused")
            return None

    def marks_of(self, reason: str, node: NodeId, mutation: Mutation, newest_us: int) -> list[DroppedHints]:
        """The marks of the range that a write is in, and of that of the log which it adds to."""
        both = [one for one in (mutation, mutation.captured) if one is not None]
        return [self._mark_of(reason, node, one, newest_us) for one in both]

    def _mark_of(self, reason: str, node: NodeId, mutation: Mutation, newest_us: int) -> DroppedHints:
        try:
            found = self.plans.write_plan(mutation.table_id, mutation.token, Consistency.ONE).range
            left, right = found.left, found.right
        except InvalidRequest:
            left, right = mutation.token - 1, mutation.token
        return DroppedHints(mutation.table_id, node, left, right, reason, newest_us, newest_us, 1)

    def expired(self, node: NodeId, hint: Hint) -> list[DroppedHints]:
        """Count a hint that is too old to be sent; the marks to write as it is deleted."""
        reason = OUTLIVED if self.outlived(hint.mutation, hint.created_us) else EXPIRED
        self._runtime.probes.reach("hints.expired")
        return self.given_up(reason, node, hint)

    def given_up(self, reason: str, node: NodeId, hint: Hint) -> list[DroppedHints]:
        """Count a hint that is not sent any more; the marks to write as it is deleted."""
        self.dropped[reason] += 1
        return self.marks_of(reason, node, hint.mutation, hint.created_us)
