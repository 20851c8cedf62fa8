"""Log entries and their hash chain.

Invariant: `hash` is BLAKE2b-256 over the canonical bytes of everything but the term and the hash
itself, and `previous_hash` is the hash of the entry one epoch earlier, so equal hashes mean equal
histories. The term is kept beside because a leader change may commit the same entry in a later one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from lockstep.values import codec

ENTRY_ID_BYTES = 16
HASH_BYTES = 32


class LogEntry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`commit_time_us` is information for people; no transformation reads it. `actor` says who asked."""

    epoch: int
    entry_id: bytes
    kind: int
    body: bytes
    actor: str
    commit_time_us: int
    term: int
    previous_hash: bytes
    hash: bytes


ENTRY_DECODER = codec.decoder(LogEntry)


def hash_of(entry: LogEntry) -> bytes:
    """What the entry's hash must be."""
    return _hash(
        entry.epoch,
        entry.entry_id,
        entry.kind,
        entry.body,
        entry.actor,
        entry.commit_time_us,
        entry.previous_hash,
    )


def _hash(
    epoch: int, entry_id: bytes, kind: int, body: bytes, actor: str, commit_time_us: int, previous_hash: bytes
) -> bytes:
    canonical = codec.encode((epoch, entry_id, kind, body, actor, commit_time_us, previous_hash))
    return hashlib.blake2b(canonical, digest_size=HASH_BYTES).digest()


def seal(
    *,
    epoch: int,
    entry_id: bytes,
    kind: int,
    body: bytes,
    actor: str,
    commit_time_us: int,
    term: int,
    previous_hash: bytes,
) -> LogEntry:
    """Build an entry with its hash."""
    assert len(entry_id) == ENTRY_ID_BYTES, "an entry id is 16 bytes"
    assert epoch >= 1, "epochs start at 1"
    assert len(previous_hash) == HASH_BYTES, "an entry follows another one"
    assert term >= 0 and commit_time_us >= 0, "terms and times are counted from 0"
    own = _hash(epoch, entry_id, kind, body, actor, commit_time_us, previous_hash)
    return LogEntry(epoch, entry_id, kind, body, actor, commit_time_us, term, previous_hash, own)


def verify_chain(entries: Sequence[LogEntry], *, epoch: int, previous_hash: bytes) -> str | None:
    """None when the entries directly follow (`epoch`, `previous_hash`); else what is wrong, for people."""
    for entry in entries:
        if entry.epoch != epoch + 1:
            return f"entry {entry.epoch} follows epoch {epoch}"
        if entry.previous_hash != previous_hash:
            return f"entry {entry.epoch} was made after another history"
        if entry.hash != hash_of(entry):
            return f"entry {entry.epoch} does not have the hash it states"
        epoch, previous_hash = entry.epoch, entry.hash
    return None
