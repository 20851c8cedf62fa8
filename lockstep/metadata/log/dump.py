"""Dumps: a metadata value, and entries that follow it, in one self-describing file.

A dump of one epoch alone holds that value; one with entries begins at an older snapshot (or at nothing) and
holds every entry since, so it can be proved to its end and can seed a directory. Invariant: what `load_file`
returns was verified: every record, the value's digest, the hash chain, and that each entry applies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.apply import apply_entry
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import EntryKind, Registry
from lockstep.metadata.log.snapshot_file import SnapshotContent, file_records, header_of, read_file


class Dump(msgspec.Struct, frozen=True):
    """`base` is the value that the file holds, `value` the one after all `entries`. `snapshot` is the newest
    snapshot entry in it with the value before that; None when there is none."""

    base: ClusterMetadata
    entries: tuple[LogEntry, ...]
    value: ClusterMetadata
    snapshot: tuple[ClusterMetadata, LogEntry] | None


def dump_file(value: ClusterMetadata, entries: Sequence[LogEntry] = ()) -> Iterator[bytes]:
    """The parts of the file, in order; `entries` follow the value without a gap."""
    return file_records(value, entries, header=header_of(value))


def load_file(pieces: Iterable[bytes], registry: Registry, path: str = "dump") -> Dump:
    """Also reads the file of a snapshot. CorruptFile when it is damaged, not whole or contradicts itself;
    CannotApply when an entry in it cannot be applied by this version."""
    return proved(read_file(pieces, path, registry.parts), registry)


def proved(content: SnapshotContent, registry: Registry) -> Dump:
    """Apply the entries of a file; CannotApply when that is not possible."""
    entries = content.entries
    if content.header.entry is not None:
        entries = (content.header.entry, *entries)
    value, snapshot = content.value, None
    for entry in entries:
        if entry.kind == EntryKind.SNAPSHOT:
            snapshot = (value, entry)
        value = apply_entry(value, entry, registry)
    return Dump(content.value, entries, value, snapshot)
