"""Applying one entry to the value before it.

Invariant: epochs are dense and every entry continues the hash chain; parts that the transformation
did not change stay the identical objects, so listeners and caches compare them by identity.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata import cdc
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.entries import LogEntry, verify_chain
from lockstep.metadata.registry import Registry
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
    after: ClusterMetadata = msgspec.structs.replace(
        changed,
        epoch=entry.epoch,
        hash=entry.hash,
        recent_ids=before.recent_ids.with_entry(entry.epoch, entry.entry_id),
    )
    _validate_changed(before, after)
    return after


def _validate_changed(before: ClusterMetadata, after: ClusterMetadata) -> None:
    """`ClusterMetadata.validate`, without walking parts that did not change."""
    if after.directory is not before.directory:
        after.directory.validate()
    if after.service is not before.service:
        after.service.validate()
    if after.placements is not before.placements or not (
        after.schema is before.schema or before.schema.replicates_as(after.schema)
    ):
        known = before.placements.by_replication
        for ring in after.placements.rings:
            if known.get(ring.replication) is not ring:
                ring.validate()
        assert tuple(ring.replication for ring in after.placements.rings) == after.replications
    if after.generations is not before.generations:
        cdc.validate(after.generations)
    changed = (
        after.operations is not before.operations
        or after.locks is not before.locks
        or after.requests is not before.requests
    )
    if changed:
        after.validate_operations()
    assert after.sessions is before.sessions or after.operations is not before.operations
    assert after.recent_ids.last_epoch == after.epoch, "recent ids end at the epoch"
