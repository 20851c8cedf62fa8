"""What a node did when groups were repaired: records that follow each other by their hashes.

Invariant: a record is never changed nor taken out unseen, for each has the hash of the one before it in its
own.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from typing import Final

import msgspec

from lockstep.values import codec

#: What the first record follows.
BEGINNING: Final = b""
_HASH_BYTES: Final = 32


class Step(enum.StrEnum):
    PLANNED = "planned"
    PREPARED = "prepared"
    REFUSED = "refused"
    WITHDRAWN = "withdrawn"
    DECIDED = "decided"
    ACTIVATED = "activated"
    APPLIED = "applied"
    MIGRATING = "migrating"
    MIGRATED = "migrated"
    RESTARTING = "restarting"
    DIVERGED = "diverged"
    INJECTED = "injected"


class Told(msgspec.Struct, frozen=True):
    """What is to be recorded. `actor`: who asked for it. `attempt` and `cluster_id`: of the repair that it
    belongs to, empty where there is none. `text`: the rest, for people."""

    step: Step
    actor: str
    text: str
    attempt: str = ""
    cluster_id: str = ""


class Recorded(msgspec.Struct, frozen=True, array_like=True):
    """`number` counts from 1. `step` is text, so that a version reads what a newer one recorded."""

    number: int
    at_us: int
    step: str
    actor: str
    text: str
    attempt: str
    cluster_id: str
    previous: bytes
    hash: bytes


def follow(last: Recorded | None, told: Told, at_us: int) -> Recorded:
    """The record of `told` after the last one; None: it is the first."""
    number, previous = (last.number + 1, last.hash) if last is not None else (1, BEGINNING)
    made = Recorded(
        number, at_us, told.step.value, told.actor, told.text, told.attempt, told.cluster_id, previous, b""
    )
    assert not made.hash, "a hash does not cover itself"
    return msgspec.structs.replace(made, hash=hash_of(made))


def hash_of(record: Recorded) -> bytes:
    bare = msgspec.structs.replace(record, hash=b"")
    return hashlib.blake2b(codec.encode(bare), digest_size=_HASH_BYTES).digest()


def problem_in(records: Sequence[Recorded]) -> str | None:
    """What shows that records are missing or changed, for people; None: nothing does."""
    number, previous = 1, BEGINNING
    for record in records:
        if record.number != number:
            return f"record {record.number} is where {number} belongs"
        if record.previous != previous:
            return f"record {number} follows another one than that before it"
        if record.hash != hash_of(record):
            return f"record {number} does not have the hash that it states"
        number, previous = number + 1, record.hash
    return None
