"""`requests/1` and `request/1`, topology operations that were asked for and how far they are;
`request-plan/1`, `force-remove/1` and `metadata-diff/1`, what would change and what has changed; `story/1`,
what the metadata log did to a thing.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Counts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What work has counted; what nobody reported is left out. `left_s` is -1 when nobody can tell.

    `tablets_left`: replicas of tablets that are still to be made or given up, of `tablets_total` where those
    were counted; `left_bytes` are still to be copied for them. Both are -1 when nobody can tell."""

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
    tablets_left: int = -1
    tablets_total: int = 0
    left_bytes: int = -1

    def done_of_all(self) -> list[str]:
        """`12 of 49 ranges` and `2 of 5 tables`, where they are counted; tablets stand for their ranges."""
        counted = (
            (self.ranges_done, self.ranges_total if self.tablets_left < 0 else 0, "ranges"),
            (self.tablets_total - self.tablets_left, self.tablets_total, "tablet replicas"),
            (self.tables_done, self.tables_total, "tables"),
        )
        found = [f"{done} of {total} {what}" for done, total, what in counted if total]
        if self.tablets_left >= 0 and not self.tablets_total:
            found.append(f"{self.tablets_left} tablet replicas left")
        return found


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


class Change(msgspec.Struct, frozen=True):
    """A difference of the metadata; null for what is not there."""

    path: str
    before: Any = None
    after: Any = None


class PlannedStep(msgspec.Struct, frozen=True):
    """A row of a stage table; `asked` have to see it, `workers` do its work. What comes before the table has
    a stage and its work only."""

    stage: str
    writes: str | UnsetType = UNSET
    reads: str | UnsetType = UNSET
    drain: str | UnsetType = UNSET
    work: str = "none"
    asked: tuple[int, ...] | UnsetType = UNSET
    workers: tuple[int, ...] | UnsetType = UNSET
    replication: str | UnsetType = UNSET


class Received(msgspec.Struct, frozen=True):
    node: int
    ranges: int


class Move(msgspec.Struct, frozen=True):
    """Ranges that one node sends another; `bytes` is null where nobody knows."""

    source: int
    target: int
    ranges: int
    bytes: int | None = None


class Estimate(msgspec.Struct, frozen=True):
    """How long it takes, of what parts, and where the rate comes from."""

    seconds: float
    bytes: int
    unknown_ranges: int
    rate_bytes_s: int
    rate_from: str
    stream_s: float
    streams: int
    streams_s: float
    barriers: int
    barriers_s: float


class RequestPlan(msgspec.Struct, frozen=True):
    """`base` is what the plan was made against."""

    schema: str = "request-plan/1"
    kind: str = ""
    node: int | None = None
    keyspace: str | None = None
    replication: dict[str, str] | None = None
    replaced: int | None = None
    epoch: int = 0
    ranges: int = 0
    way_back: str = ""
    point_of_no_return: str | None = None
    steps: tuple[PlannedStep, ...] = ()
    receives: tuple[Received, ...] = ()
    moves: tuple[Move, ...] = ()
    estimate: Estimate | None = None
    starved: int = 0
    changes: tuple[Change, ...] = ()
    afterwards: tuple[Change, ...] = ()
    base: dict[str, Any] | UnsetType = UNSET
    waits_for: str | UnsetType | None = UNSET


class LackingRange(msgspec.Struct, frozen=True):
    """A range that is degraded; `missing` may lack writes, nobody is sure to have all where it is empty."""

    replication: str
    left: int
    right: int
    missing: tuple[int, ...] = ()


class ForceRemove(msgspec.Struct, frozen=True):
    """A node that was given up without moving its data, or would be."""

    schema: str = "force-remove/1"
    node: int = 0
    epoch: int = 0
    dry_run: bool = False
    way_back: str = ""
    degraded: tuple[LackingRange, ...] = ()
    changes: tuple[Change, ...] = ()
    base: dict[str, Any] | UnsetType = UNSET
    waits_for: str | UnsetType | None = UNSET


class MetadataDiff(msgspec.Struct, frozen=True, rename={"first": "from", "last": "to"}):
    """`metadata-diff/1`: what two epochs differ in."""

    schema: str = "metadata-diff/1"
    first: int = 0
    last: int = 0
    changes: tuple[Change, ...] = ()


class Event(msgspec.Struct, frozen=True):
    epoch: int
    at_us: int = 0
    entry: str = ""
    actor: str = ""
    text: str = ""


class Story(msgspec.Struct, frozen=True):
    """`from_epoch`: what was before it is not kept at the asked node."""

    schema: str = "story/1"
    thing: str = ""
    from_epoch: int | None = None
    left_out: int = 0
    events: tuple[Event, ...] = ()


class StreamGeneration(msgspec.Struct, frozen=True):
    """One generation of streams of changes; they are told oldest first."""

    id: str = ""
    begins_ms: int = 0
    streams: int = 0
    published: bool = False
    current: bool = False


class Streams(msgspec.Struct, frozen=True):
    """`streams/1`."""

    schema: str = "streams/1"
    epoch: int = 0
    generations: tuple[StreamGeneration, ...] = ()
