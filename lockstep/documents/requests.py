"""`requests/1` and `request/1`: topology operations that were asked for, and how far they are."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What work has counted; what nobody reported is left out. `left_s` is -1 when nobody can tell."""

    bytes: int = 0
    fragments: int = 0
    total_bytes: int = 0
    rate_bytes_s: int = 0
    left_s: int = -1
    files_done: int = 0
    files_total: int = 0
    ranges_done: int = 0
    ranges_total: int = 0
    tables_done: int = 0
    tables_total: int = 0

    def done_of_all(self) -> list[str]:
        """`12 of 49 ranges` and `2 of 5 tables`, where they are counted."""
        counted = (
            (self.ranges_done, self.ranges_total, "ranges"),
            (self.tables_done, self.tables_total, "tables"),
        )
        return [f"{done} of {total} {what}" for done, total, what in counted if total]


class Waiting(msgspec.Struct, frozen=True):
    """For whom or what a request or a change of the voters waits. `operation` and `rule` are told of queued
    requests, `since_s` of nodes that are waited for."""

    node: int | None = None
    operation: int | UnsetType | None = UNSET
    rule: str | UnsetType = UNSET
    reason: str = ""
    since_s: float | UnsetType = UNSET


class Past(msgspec.Struct, frozen=True):
    """A stage that an operation entered, and the epoch."""

    stage: str
    epoch: int


class Place(msgspec.Struct, frozen=True):
    """A stage of an operation's path; `state` is done, current or to come."""

    stage: str
    state: str
    epoch: int | None = None


class Unseen(msgspec.Struct, frozen=True):
    """A node that has not seen what a barrier waits for, with the newest epoch that it has seen."""

    node: int
    epoch: int = 0


class Barrier(msgspec.Struct, frozen=True):
    epoch: int
    seen: tuple[int, ...] = ()
    unseen: tuple[Unseen, ...] = ()


class Work(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node's part of a stage, as it reported it last; its numbers are those of Counts."""

    node: int
    kind: str
    state: str
    text: str
    bytes: int = 0
    fragments: int = 0
    total_bytes: int = 0
    rate_bytes_s: int = 0
    left_s: int = -1
    files_done: int = 0
    files_total: int = 0
    ranges_done: int = 0
    ranges_total: int = 0
    tables_done: int = 0
    tables_total: int = 0

    def counts(self) -> Counts:
        return msgspec.convert(self, Counts, from_attributes=True)


class Request(msgspec.Struct, frozen=True):
    """`headline` and `cancellable` are told of requests that have not ended."""

    schema: str | UnsetType = UNSET
    id: str = ""
    kind: str = ""
    node: int | None = None
    keyspace: str | None = None
    replication: dict[str, str] | None = None
    replaced: int | None = None
    state: str = "unknown"
    policy: str = ""
    actor: str = ""
    operation: int | None = None
    stage: str | None = None
    stage_epoch: int | None = None
    ranges: int = 0
    history: tuple[Past, ...] = ()
    progress: Counts = Counts()
    waiting: tuple[Waiting, ...] = ()
    requested_epoch: int | None = None
    path: tuple[Place, ...] = ()
    barrier: Barrier | None = None
    work: tuple[Work, ...] = ()
    began_epoch: int | None = None
    ended_epoch: int | None = None
    reason: str | None = None
    headline: str | UnsetType = UNSET
    cancellable: bool | UnsetType = UNSET


class Requests(msgspec.Struct, frozen=True):
    schema: str = "requests/1"
    requests: tuple[Request, ...] = ()
