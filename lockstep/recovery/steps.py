"""What a node has recorded of a repair of the groups, and what may follow what.

A prepared plan changes nothing: it is a promise to carry the plan out once anyone has decided it, and another
attempt may take its place. From ACTIVATED on it only goes forward; what is APPLIED is never applied again, so
what was wiped for a cluster id is wiped once.

Invariant: the records of a node make one of the states of the table.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from lockstep.recovery.plan import ResetPlan, require_sound
from lockstep.values.codec import Decoder, decoder
from lockstep.values.errors import CannotApply, Rejected


class Prepared(msgspec.Struct, frozen=True, array_like=True, tag=1):
    plan: ResetPlan


class Activated(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """`attempt` of the plan that was prepared last."""

    attempt: str


class Applied(msgspec.Struct, frozen=True, array_like=True, tag=3):
    cluster_id: str


class Withdrawn(msgspec.Struct, frozen=True, array_like=True, tag=4):
    attempt: str


class Migrating(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """This node was away during repairs, and goes to the repaired cluster as a follower of its log.
    `addresses`: where that cluster's nodes are. `actor`: who asked for it. `epoch`: what it has
    applied; what its journals know beyond that is dropped."""

    cluster_id: str
    addresses: tuple[tuple[str, int], ...]
    actor: str = ""
    epoch: int = -1


class Diverged(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """This node has another history than the repaired cluster `cluster_id`, from `epoch` on, where the hashes
    are these as far as they are known: from here on it is only read from."""

    cluster_id: str
    epoch: int
    own_hash: bytes = b""
    other_hash: bytes = b""
    reason: str = ""
    actor: str = ""


Record = Prepared | Activated | Applied | Withdrawn | Migrating | Diverged

_DECODER: Decoder[Record] = decoder(Record)  # type: ignore[arg-type]


def decode_record(body: bytes) -> Record:
    """One of codec.UNREADABLE when the bytes are no record."""
    return _DECODER.decode(body)


class Phase(enum.StrEnum):
    IDLE = "idle"
    PREPARED = "prepared"
    ACTIVATED = "activated"
    MIGRATING = "migrating"


class Standing(msgspec.Struct, frozen=True):
    """Where the node is. `plan` belongs to PREPARED and ACTIVATED. `move`: the last migration, carried out or
    not, until a repair follows it."""

    phase: Phase = Phase.IDLE
    plan: ResetPlan | None = None
    move: Migrating | None = None
    #: It is a zombie: it has no voice and serves nobody until it goes elsewhere, or is emptied.
    diverged: Diverged | None = None

    @property
    def attempt(self) -> str:
        return self.plan.attempt if self.plan is not None else ""


#: (phase, record) -> the next phase; what is not here may not follow.
_NEXT: Final[Mapping[tuple[Phase, type[Record]], Phase]] = {
    (Phase.IDLE, Prepared): Phase.PREPARED,
    (Phase.PREPARED, Prepared): Phase.PREPARED,
    (Phase.PREPARED, Activated): Phase.ACTIVATED,
    (Phase.PREPARED, Withdrawn): Phase.IDLE,
    (Phase.ACTIVATED, Applied): Phase.IDLE,
    (Phase.IDLE, Migrating): Phase.MIGRATING,
    (Phase.PREPARED, Migrating): Phase.MIGRATING,
    (Phase.MIGRATING, Applied): Phase.IDLE,
    (Phase.IDLE, Diverged): Phase.IDLE,
    (Phase.PREPARED, Diverged): Phase.IDLE,
}


def follow(standing: Standing, record: Record) -> Standing:
    """Where the node is after the record; Rejected when it may not come now."""
    is_planned = standing.phase in (Phase.PREPARED, Phase.ACTIVATED)
    assert (standing.plan is not None) is is_planned, "a plan is of a repair under way"
    assert standing.move is not None or standing.phase is not Phase.MIGRATING, "who goes, goes somewhere"
    phase = _NEXT.get((standing.phase, type(record)))
    if phase is None:
        raise Rejected(f"a node whose repair is {standing.phase} takes no {type(record).__name__.lower()}")
    if isinstance(record, Prepared):
        require_sound(record.plan)
        return Standing(phase, record.plan, standing.move, standing.diverged)
    if isinstance(record, Diverged):
        return Standing(phase, diverged=record)
    if isinstance(record, Activated | Withdrawn) and record.attempt != standing.attempt:
        raise Rejected(f"attempt {record.attempt} is not the one that was prepared, {standing.attempt}")
    if isinstance(record, Migrating):
        return Standing(phase, move=record)
    move = standing.move if standing.phase is not Phase.ACTIVATED else None
    diverged = standing.diverged if not isinstance(record, Applied) else None
    return Standing(phase, standing.plan if phase is Phase.ACTIVATED else None, move, diverged)


def standing_of(records: Iterable[Record]) -> Standing:
    """What the records of a node come to. CannotApply when they contradict each other."""
    standing = Standing()
    for record in records:
        try:
            standing = follow(standing, record)
        except Rejected as error:
            raise CannotApply(f"the records of a repair contradict each other: {error.message}") from error
    return standing
