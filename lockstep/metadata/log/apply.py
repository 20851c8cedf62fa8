"""Functions of whole values: applying one entry to the value before it, the digest that equal values alone
share, and what differs between two.

A digest is a hash over the digests of the parts. What can be large keeps the digest of each of its elements,
in a hash tree or in the element itself, so that an entry costs only what it changed.

Invariant: epochs are dense and every entry continues the hash chain; parts that the transformation did not
change stay the identical objects, so listeners and caches compare them by identity. Equal values give no
lines; the head comes first, then the parts by number.
"""

from __future__ import annotations

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.comparison import Difference, compare
from lockstep.metadata.log.entries import LogEntry, verify_chain
from lockstep.metadata.log.recent_ids import RECENT_IDS
from lockstep.metadata.log.registry import Registry
from lockstep.values import codec
from lockstep.values.errors import CannotApply, Rejected
from lockstep.values.hash_tree import blake


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


def diff(before: ClusterMetadata, after: ClusterMetadata) -> tuple[Difference, ...]:
    """Differences of the head and of every part that both values have."""
    head = (
        *compare("epoch", before.epoch, after.epoch),
        *compare("hash", before.hash, after.hash),
    )
    return head + tuple(
        difference
        for part in after.parts.listed()
        if not before.parts.is_same(after.parts, part) and before.parts[part] != after.parts[part]
        for difference in part.compare(part.name, before.parts[part], after.parts[part])
    )


def part_digests(cluster: ClusterMetadata) -> tuple[tuple[str, bytes], ...]:
    """(part name, digest), in a fixed order: where two nodes differ is visible at once."""
    return cluster.parts.digests()


def state_digest(cluster: ClusterMetadata) -> bytes:
    """32 bytes over the epoch, the log's hash and every part."""
    parts = b"".join(digest for _, digest in part_digests(cluster))
    return blake(codec.encode((cluster.epoch, cluster.hash, parts)))
