"""`request-plan/1`, `force-remove/1` and `metadata-diff/1`: what would change, and what has changed."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


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
