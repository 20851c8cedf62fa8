"""What simulated replicas send each other.

Invariant: values; what a message says was true of the sender's disk when it left.
"""

from __future__ import annotations

import msgspec

from lockstep.sim.tracking.store import Bulk, Mutation, Rows
from lockstep.tracking.held import Held, MutationId
from lockstep.tracking.range_log import Told, Verdict
from lockstep.tracking.summaries import Summary


class Write(msgspec.Struct, frozen=True):
    op: int
    mutation: Mutation


class Written(msgspec.Struct, frozen=True):
    op: int
    given: MutationId
    verdict: Verdict


class Tell(msgspec.Struct, frozen=True):
    number: int
    told: Told


class Heard(msgspec.Struct, frozen=True):
    number: int
    start: int


class Pull(msgspec.Struct, frozen=True):
    """`op` of the read that waits for it, 0 for the background."""

    op: int
    ids: Held


class Pulled(msgspec.Struct, frozen=True):
    op: int
    mutations: tuple[Mutation, ...]
    bulks: tuple[Bulk, ...]


class Ask(msgspec.Struct, frozen=True):
    op: int
    partition: str
    data: bool


class Answer(msgspec.Struct, frozen=True):
    op: int
    told: Summary
    rows: Rows | None


class Fetch(msgspec.Struct, frozen=True):
    """A read asks a replica to bring what it lacks."""

    op: int
    source: int
    ids: Held


class CloseBound(msgspec.Struct, frozen=True):
    until_us: int


class Closed(msgspec.Struct, frozen=True):
    until_us: int
    accepted: bool
    told: Summary


class Raised(msgspec.Struct, frozen=True):
    until_us: int


Message = Write | Written | Tell | Heard | Pull | Pulled | Ask | Answer | Fetch | CloseBound | Closed | Raised
