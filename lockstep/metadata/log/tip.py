"""The leader's tip: what the metadata will be once every appended entry is committed.

Invariant: the pending entries are a dense chain that starts at the applied value, and each was valid
at the value before it, so every entry that reaches the log is valid by construction. Values of
entries that are truncated are dropped with them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import cast

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.groups.membership import refuse_while_frozen
from lockstep.metadata.groups.ring_entries import refuse_lacking_a_log, refuse_needing_a_log
from lockstep.metadata.log.apply import apply_entry, completed
from lockstep.metadata.log.entries import LogEntry, seal
from lockstep.metadata.log.registry import EntryKind, Prepared, Registry, refuse_newer_kind
from lockstep.values.errors import CannotApply, Rejected
from lockstep.values.limits import ENTRY_BODY_BYTES_MAX


class Appended(msgspec.Struct, frozen=True):
    """The entry to append; the tip already counts on it."""

    entry: LogEntry


class Duplicate(msgspec.Struct, frozen=True):
    """The id was appended before, at `epoch`; its result is known once `committed`."""

    epoch: int
    committed: bool


class Refused(msgspec.Struct, frozen=True):
    """Not valid at `judged_epoch`, which may itself be uncommitted: answer only once it is committed
    and leadership in the same term is confirmed."""

    rejection: Rejected
    judged_epoch: int


class Expired(msgspec.Struct, frozen=True):
    """The submission is older than the kept ids: whether it was applied cannot be told any more."""

    oldest_epoch: int


Judgement = Appended | Duplicate | Refused | Expired


class Tip:
    """Applied value plus appended entries, each with its speculative value."""

    def __init__(self, applied: ClusterMetadata, registry: Registry) -> None:
        self._registry = registry
        self._applied = applied
        self._pending: deque[tuple[LogEntry, ClusterMetadata]] = deque()

    @property
    def applied(self) -> ClusterMetadata:
        return self._applied

    @property
    def value(self) -> ClusterMetadata:
        """The newest speculative value."""
        return self._pending[-1][1] if self._pending else self._applied

    @property
    def epoch(self) -> int:
        return self.value.epoch

    def judge(
        self,
        entry_id: bytes,
        kind: int,
        body: bytes,
        actor: str,
        commit_time_us: int,
        term: int,
        *,
        base_epoch: int | None = None,
    ) -> Judgement:
        """Decide one submission against the tip; the id is looked at first.

        `base_epoch` is the epoch the submitter had when it first sent this id. Without it the caller
        vouches that the id is fresh.
        """
        tip = self.value
        known = tip.recent_ids.epoch_of(entry_id)
        if known is not None:
            return Duplicate(known, known <= self._applied.epoch)
        if base_epoch is not None and base_epoch + 1 < tip.recent_ids.first_epoch:
            return Expired(tip.recent_ids.first_epoch)
        try:
            body, changed = self._transformed(tip, kind, body)
        except Rejected as refusal:
            refusal.epoch = tip.epoch
            return Refused(refusal, tip.epoch)
        entry = seal(
            epoch=tip.epoch + 1,
            entry_id=entry_id,
            kind=kind,
            body=body,
            actor=actor,
            commit_time_us=commit_time_us,
            term=term,
            previous_hash=tip.hash,
        )
        value = completed(tip, changed, entry)
        assert (value.epoch, value.hash) == (tip.epoch + 1, entry.hash), "the tip is a chain"
        self._pending.append((entry, value))
        return Appended(entry)

    def _transformed(self, tip: ClusterMetadata, kind: int, body: bytes) -> tuple[bytes, ClusterMetadata]:
        """The body as it goes into the log, and the value it makes."""
        if len(body) > ENTRY_BODY_BYTES_MAX:
            raise Rejected(
                f"the change is {len(body)} bytes long; at most {ENTRY_BODY_BYTES_MAX} are allowed"
            )
        refuse_while_frozen(tip, kind)
        if tip.is_on_ring:
            refuse_needing_a_log(kind)
        if kind == EntryKind.RESET_CLUSTER:
            raise Rejected("a group that has a majority is not repaired")
        bound = self._applied.identity.cluster_id
        if self._pending and bound and tip.identity.cluster_id != bound:
            # What came behind would belong to no cluster id.
            raise Rejected("the cluster is about to go on under another id", hint="try again in a second")
        try:
            transformation = self._registry.decode(kind, body)
        except CannotApply as problem:
            raise Rejected(problem.message, hint=problem.hint) from problem
        refuse_newer_kind(tip.directory, kind, self._registry.since(kind))
        if self._registry.is_prepared(kind):
            transformation = cast(Prepared, transformation).prepared(tip)
            _, body = self._registry.encode(transformation)
        changed = transformation.apply(tip, tip.epoch + 1)
        if tip.is_on_ring and kind == EntryKind.SCHEMA_CHANGE:
            refuse_lacking_a_log(tip, changed)
        return body, changed

    def applied_now(self, cluster: ClusterMetadata) -> None:
        """The committed entries up to `cluster.epoch` were applied; forget their speculative values."""
        assert cluster.epoch >= self._applied.epoch, "the applied epoch never goes back"
        pending = self._pending
        while pending and pending[0][0].epoch <= cluster.epoch:
            entry, _ = pending.popleft()
            assert entry.epoch < cluster.epoch or entry.hash == cluster.hash, (
                f"epoch {entry.epoch} was committed with another entry"
            )
        self._applied = cluster
        if pending:
            entry, _ = pending[0]
            assert entry.epoch == cluster.epoch + 1 and entry.previous_hash == cluster.hash, (
                "the tip is a chain"
            )

    def forked_at(self, cluster: ClusterMetadata) -> bool:
        """Whether a committed value is not what was appended here for its epoch: a later leader's entry
        was learned from a peer before this leader learned that its term had ended."""
        position = cluster.epoch - self._applied.epoch - 1
        if not 0 <= position < len(self._pending):
            return False
        return self._pending[position][0].hash != cluster.hash

    def value_at(self, entry: LogEntry, before: ClusterMetadata) -> ClusterMetadata | None:
        """What `entry` makes of `before`, when it is a pending one that was judged at that very value."""
        position = entry.epoch - self._applied.epoch - 1
        pending = self._pending
        if not 0 <= position < len(pending) or pending[position][0].hash != entry.hash:
            return None
        base = pending[position - 1][1] if position else self._applied
        return pending[position][1] if base is before else None

    def truncate_from(self, epoch: int) -> None:
        """Entries from `epoch` on are gone from the log; drop what was built on them."""
        assert epoch > self._applied.epoch, "applied entries are committed and never truncated"
        while self._pending and self._pending[-1][0].epoch >= epoch:
            self._pending.pop()
        assert self.epoch < epoch, "what was truncated is gone"

    def rebuild(self, applied: ClusterMetadata, entries: Sequence[LogEntry]) -> None:
        """Start over, as a new leader does: `entries` are all log entries after the applied epoch."""
        assert not entries or entries[0].epoch == applied.epoch + 1, "entries follow what is applied"
        pending: deque[tuple[LogEntry, ClusterMetadata]] = deque()
        value = applied
        for entry in entries:
            value = apply_entry(value, entry, self._registry)
            pending.append((entry, value))
        assert value.epoch == applied.epoch + len(entries), "each entry makes one epoch"
        self._applied, self._pending = applied, pending

    def validate(self) -> None:
        epoch, previous_hash = self._applied.epoch, self._applied.hash
        for entry, value in self._pending:
            assert entry.epoch == epoch + 1 and entry.previous_hash == previous_hash, "the tip is a chain"
            assert value.epoch == entry.epoch and value.hash == entry.hash
            epoch, previous_hash = entry.epoch, entry.hash
