"""Numbers of the messages between nodes, and errors on the wire: a handler's error is raised again at the
requester as the same class.

Invariant: a number is never given a second meaning. Every class of the error tree survives the trip with its
attributes; a code this node does not know becomes a LockstepError with the sender's message.
"""

from __future__ import annotations

import inspect
from typing import Any, Final

import msgspec

from lockstep.values import errors
from lockstep.values.codec import UNREADABLE, decoder, encode
from lockstep.values.errors import FrameCorrupt, LockstepError

HELLO: Final = 0
WRITE: Final = 1
READ: Final = 2
READ_REPAIR: Final = 3
HINT: Final = 4
HINTS_HANDOVER: Final = 5
BATCH_KEEP: Final = 6
BATCH_FORGET: Final = 7
FORWARD: Final = 8
FORWARDED: Final = 9
RAFT: Final = 10
SUBMIT: Final = 20
FETCH_LOG: Final = 21
ANNOUNCE: Final = 22
EPOCH_QUERY: Final = 23
HASH_AT: Final = 24
FETCH_SNAPSHOT: Final = 25
MEMBERS: Final = 26
STREAM_OPEN: Final = 30
STREAM_FILE: Final = 31
STREAM_CLOSE: Final = 32
STREAM_PART: Final = 33
STREAM_SURVEY: Final = 34
RUN_WORK: Final = 40
PING: Final = 50
DESCRIBE_SELF: Final = 51
GOSSIP: Final = 52
GOSSIP_ACK: Final = 53
JOIN_ASK: Final = 54
JOIN_PRESENT: Final = 55
ASK_FOR_ME: Final = 56
MANAGE: Final = 60
GROUP_REPORT: Final = 61
RANGE_SIZES: Final = 62
LIVE_VIEW: Final = 63
TABLET_LOADS: Final = 64
TABLET_PLAN: Final = 65
TABLET_READY: Final = 66
COUNTER: Final = 84
BASE_SETTLED: Final = 87
CAS_PREPARE: Final = 70
CAS_PROPOSE: Final = 71
CAS_COMMIT: Final = 72
LOAD_STAGE: Final = 73
LOAD_FETCH: Final = 74
REPAIR_TREE: Final = 76
REPAIR_READ: Final = 77
REPAIR_WRITE: Final = 78
REPAIR_NOTE: Final = 79
REPAIR_IDS: Final = 130
BACKUP_WORK: Final = 80
BACKUP_FILES: Final = 81
RECOVERY_SURVEY: Final = 100
RECOVERY_TAIL: Final = 101
RECOVERY_PREPARE: Final = 102
RECOVERY_DECIDE: Final = 103
RECOVERY_MIGRATE: Final = 104
RECOVERY_RESTART: Final = 105
RECOVERY_MANAGEMENT: Final = 124
RING_MAIL: Final = 94
UPGRADE_SURVEY: Final = 128
TRACKED_WRITE: Final = 117
TRACKED_BRING: Final = 118
TRACKED_PULL: Final = 119
TRACKED_COMPARE: Final = 120
TRACKED_SURVEY: Final = 121
TRACKED_COHORT: Final = 122
TRACKED_COHORT_ROWS: Final = 123
TRACKED_AUDIT: Final = 125

#: What an excluded node may still say and be told: that it is there, and what it lacks of the log. Without a
#: log it keeps its voice on the ring until it is removed, or nobody could take it back where few are left.
CATCH_UP: Final = frozenset(
    (FETCH_LOG, FETCH_SNAPSHOT, ANNOUNCE, EPOCH_QUERY, HASH_AT, MEMBERS, PING, RING_MAIL)
)

#: What is planned with the sender's metadata, so that it says on the ring of which ring that is.
PLANNED: Final = frozenset(
    (
        *(WRITE, READ, READ_REPAIR, HINT, BATCH_KEEP, COUNTER, CAS_PREPARE, CAS_PROPOSE, CAS_COMMIT),
        *(TRACKED_WRITE, TRACKED_BRING, TRACKED_PULL, TRACKED_COHORT, TRACKED_COHORT_ROWS),
        *(REPAIR_READ, REPAIR_WRITE),
    )
)

NAMES: Final = {
    HELLO: "hello",
    WRITE: "write",
    READ: "read",
    READ_REPAIR: "read-repair",
    HINT: "hint",
    HINTS_HANDOVER: "hints-handover",
    BATCH_KEEP: "batch-keep",
    BATCH_FORGET: "batch-forget",
    FORWARD: "forward",
    FORWARDED: "forwarded",
    RAFT: "raft",
    SUBMIT: "submit",
    FETCH_LOG: "fetch-log",
    ANNOUNCE: "announce",
    EPOCH_QUERY: "epoch-query",
    HASH_AT: "hash-at",
    FETCH_SNAPSHOT: "fetch-snapshot",
    MEMBERS: "members",
    STREAM_OPEN: "stream-open",
    STREAM_FILE: "stream-file",
    STREAM_CLOSE: "stream-close",
    STREAM_PART: "stream-part",
    STREAM_SURVEY: "stream-survey",
    RUN_WORK: "run-work",
    PING: "ping",
    DESCRIBE_SELF: "describe-self",
    GOSSIP: "gossip",
    GOSSIP_ACK: "gossip-ack",
    JOIN_ASK: "join-ask",
    JOIN_PRESENT: "join-present",
    ASK_FOR_ME: "ask-for-me",
    MANAGE: "manage",
    GROUP_REPORT: "group-report",
    RANGE_SIZES: "range-sizes",
    LIVE_VIEW: "live-view",
    TABLET_LOADS: "tablet-loads",
    TABLET_PLAN: "tablet-plan",
    TABLET_READY: "tablet-ready",
    COUNTER: "counter",
    BASE_SETTLED: "base-settled",
    CAS_PREPARE: "cas-prepare",
    CAS_PROPOSE: "cas-propose",
    CAS_COMMIT: "cas-commit",
    REPAIR_TREE: "repair-tree",
    REPAIR_READ: "repair-read",
    REPAIR_WRITE: "repair-write",
    REPAIR_NOTE: "repair-note",
    REPAIR_IDS: "repair-ids",
    BACKUP_WORK: "backup-work",
    BACKUP_FILES: "backup-files",
    LOAD_STAGE: "load-stage",
    LOAD_FETCH: "load-fetch",
    RECOVERY_SURVEY: "recovery-survey",
    RECOVERY_TAIL: "recovery-tail",
    RECOVERY_PREPARE: "recovery-prepare",
    RECOVERY_DECIDE: "recovery-decide",
    RECOVERY_MIGRATE: "recovery-migrate",
    RECOVERY_RESTART: "recovery-restart",
    RECOVERY_MANAGEMENT: "recovery-management",
    RING_MAIL: "ring-mail",
    UPGRADE_SURVEY: "upgrade-survey",
    TRACKED_WRITE: "tracked-write",
    TRACKED_BRING: "tracked-bring",
    TRACKED_PULL: "tracked-pull",
    TRACKED_COMPARE: "tracked-compare",
    TRACKED_SURVEY: "tracked-survey",
    TRACKED_COHORT: "tracked-cohort",
    TRACKED_COHORT_ROWS: "tracked-cohort-rows",
    TRACKED_AUDIT: "tracked-audit",
}


_CLASSES: dict[str, type[LockstepError]] = {
    kind.code: kind
    for _, kind in sorted(inspect.getmembers(errors, inspect.isclass))
    if issubclass(kind, LockstepError)
}


class ErrorBody(msgspec.Struct, frozen=True, array_like=True):
    """`facts` are the error's attributes as sorted (name, plain value) pairs."""

    code: str
    message: str
    facts: tuple[tuple[str, Any], ...] = ()


_BODY = decoder(ErrorBody)


def encode_error(error: LockstepError) -> bytes:
    facts = tuple(sorted(vars(error).items()))
    return encode(ErrorBody(error.code, error.message, facts))


def decode_error(body: bytes) -> LockstepError:
    """The error itself, to be raised. FrameCorrupt when the bytes are no error body."""
    try:
        decoded = _BODY.decode(body)
    except UNREADABLE as problem:
        raise FrameCorrupt(f"error body does not decode: {problem}") from problem
    kind = _CLASSES.get(decoded.code, LockstepError)
    error = kind.__new__(kind, decoded.message)
    vars(error).update(decoded.facts)
    return error
