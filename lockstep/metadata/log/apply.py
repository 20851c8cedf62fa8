"""Applying one entry to the value before it.

Invariant: epochs are dense and every entry continues the hash chain; parts that the transformation
did not change stay the identical objects, so listeners and caches compare them by identity.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.metadata.log.recent_ids import RECENT_IDS
from lockstep.metadata.log.registry import Registry
from lockstep.values.errors import CannotApply, Rejected


def apply_entry(cluster: ClusterMetadata, entry: LogEntry, registry: Registry) -> ClusterMetadata:
    """The value of epoch `entry.epoch`.

    Raises CannotApply when the entry does not continue this history, is of an unknown kind, or is
    refused here although it is in the log: the node must then stop serving, never skip.
    """
    problem = verify_chain((entry,), epoch=cluster.epoch, previous_hash=cluster.hash)
    if problem is not None:
        raise CannotApply(problem, hint="compare `lockstep metadata verify` on this node and its peers")
    transformation = registry.decode(entry.kind, entry.body)
    try:
        changed = transformation.apply(cluster, entry.epoch)
    except Rejected as refusal:
        raise CannotApply(f"entry {entry.epoch} is in the log but refused here: {refusal}") from refusal
    return completed(cluster, changed, entry)


def completed(before: ClusterMetadata, changed: ClusterMetadata, entry: LogEntry) -> ClusterMetadata:
    """The transformation's result with the entry's epoch, hash and id set and the new parts checked."""
    assert entry.epoch == before.epoch + 1 and entry.previous_hash == before.hash, "entries are a chain"
    assert changed.epoch == before.epoch, "what an entry says has no epoch of its own"
    recent_ids = before.recent_ids.with_entry(entry.epoch, entry.entry_id)
    after = ClusterMetadata(entry.epoch, entry.hash, changed.parts.changed([RECENT_IDS.set(recent_ids)]))
    after.validate(before)
    return after
