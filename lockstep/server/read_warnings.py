"""What clients are told of reads that scanned or returned much: warnings, and failures in their words.

Invariant: a request has at most one warning of each kind, whatever the number of its replicas and rounds.
"""

from __future__ import annotations

from lockstep.node.configuration import ReadsSection
from lockstep.replication.failure_codes import is_inet
from lockstep.replication.notes import Notes
from lockstep.values.errors import ReadFailure
from lockstep.values.failures import READ_SIZE
from lockstep.values.ids import Consistency
from lockstep.values.limits import WARNED_QUERY_CHARACTERS_MAX


def tombstone_warning(notes: Notes, query: str) -> str:
    """Empty when no replica is to be warned of."""
    scanned = notes.dead_by_node
    if not scanned:
        return ""
    return (
        f"{len(scanned)} nodes scanned up to {max(scanned.values())} tombstones and issued "
        f"tombstone warnings for query {_shown(query)}  (see tombstone_warn_threshold)"
    )


def worded(failure: ReadFailure, notes: Notes, query: str) -> ReadFailure:
    """The failure in words that name the query, when it is one of too many tombstones."""
    scanned = notes.overwhelmed
    if scanned:
        failure.message = (
            f"{len(scanned)} nodes scanned over {max(scanned.values())} tombstones and aborted the query "
            f"{_shown(query)} (see tombstone_failure_threshold)"
        )
    return failure


def size_warning(
    settings: ReadsSection, table: str, size_bytes: int, consistency: Consistency, address: str
) -> str:
    """Empty when a page is small enough. ReadFailure when it is larger than the node sends."""
    fail_bytes, warn_bytes = (
        settings.coordinator_read_size_fail_bytes,
        settings.coordinator_read_size_warn_bytes,
    )
    said = f"Read on table {table} has exceeded the size"
    if size_bytes > fail_bytes > 0:
        reasons = ((address, READ_SIZE),) if is_inet(address) else ()
        failure = ReadFailure(consistency, 0, 0, 1, True, reasons)
        failure.message = f"{said} failure threshold of {fail_bytes:,} bytes"
        raise failure
    if size_bytes > warn_bytes > 0:
        return f"{said} warning threshold of {warn_bytes:,} bytes"
    return ""


def _shown(query: str) -> str:
    return query[:WARNED_QUERY_CHARACTERS_MAX]
