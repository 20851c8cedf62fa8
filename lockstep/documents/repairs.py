"""`repair/1`, `repairs/1` and `repair-plan/1`: repairs that run or ended lately, and what one would do."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from lockstep.documents.plans import Change


class RepairProgress(msgspec.Struct, frozen=True):
    """What the repair's driver has counted."""

    ranges: int = 0
    ranges_done: int = 0
    ranges_failed: int = 0
    leaves: int = 0
    leaves_different: int = 0
    changes_sent: int = 0
    bytes_sent: int = 0


class RepairedPart(msgspec.Struct, frozen=True):
    keyspace: str
    tables: tuple[str, ...] = ()
    ranges: tuple[tuple[int, int], ...] = ()


class Repair(msgspec.Struct, frozen=True):
    schema: str | UnsetType = UNSET
    id: int = 0
    purpose: str = "repair"
    state: str = ""
    incremental: bool = False
    driver: int = 0
    hosts: tuple[int, ...] = ()
    keyspaces: tuple[RepairedPart, ...] = ()
    began_epoch: int = 0
    ended_epoch: int | None = None
    began_s: int = 0
    ended_s: int | None = None
    reason: str | None = None
    progress: RepairProgress | None = None


class Repairs(msgspec.Struct, frozen=True):
    schema: str = "repairs/1"
    repairs: tuple[Repair, ...] = ()


class PlannedPart(msgspec.Struct, frozen=True):
    keyspace: str
    tables: tuple[str, ...] = ()
    ranges: int = 0


class Participant(msgspec.Struct, frozen=True):
    """A replica and what it compares; null where it did not say."""

    node: int
    bytes: int | None = None


class RepairPlan(msgspec.Struct, frozen=True):
    schema: str = "repair-plan/1"
    refused: str | None = None
    incremental: bool = False
    driver: int = 0
    keyspaces: tuple[PlannedPart, ...] = ()
    participants: tuple[Participant, ...] = ()
    steps: tuple[str, ...] = ()
    way_back: str = ""
    records: str = ""
    changes: tuple[Change, ...] = ()
