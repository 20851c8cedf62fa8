"""`tablets/1`, the tables that spread by tablets; `tablet-map/1`, where the tablets of one of them lie;
`tablet-move/1`, a move of one that has begun, or would; `tablet-resize/1`, a split or merge by hand."""

from __future__ import annotations

import msgspec


class HeldTablets(msgspec.Struct, frozen=True):
    """How many tablet replicas a node holds, and how many it is to take in and to give up."""

    node: int
    dc: str = ""
    rack: str = ""
    tablets: int = 0
    coming: int = 0
    leaving: int = 0


class TabletTable(msgspec.Struct, frozen=True):
    """`with_it`: the tables that lie with it, tablet by tablet. `group`: its placement group.

    `resize`: split or merge, where one is decided; `resize_number`: of the last decision; `resize_phase`:
    none, preparing, closing or settling; `is_by_hand`: somebody asked for it. `kept`: the number of tablets
    that it got so, below which it does not merge by itself; 0 where there is none."""

    keyspace: str
    table: str
    group: int = 0
    tablets: int = 0
    moving: int = 0
    is_balanced: bool = True
    with_it: tuple[str, ...] = ()
    nodes: tuple[HeldTablets, ...] = ()
    resize: str = "none"
    resize_number: int = 0
    resize_phase: str = "none"
    is_by_hand: bool = False
    kept: int = 0


class TabletTables(msgspec.Struct, frozen=True):
    """`nodes`: of all tables together."""

    schema: str = "tablets/1"
    epoch: int = 0
    is_balanced: bool = True
    tables: tuple[TabletTable, ...] = ()
    nodes: tuple[HeldTablets, ...] = ()


class Replica(msgspec.Struct, frozen=True):
    node: int
    shard: int = 0


class Tablet(msgspec.Struct, frozen=True):
    """Tokens above `start` up to `end`. `kind`, `stage`, `next`: of its transition, if it has one. `bytes`:
    what its largest replica holds; null when no node said so."""

    number: int
    start: int
    end: int
    replicas: tuple[Replica, ...] = ()
    epoch: int = 0
    bytes: int | None = None
    kind: str = ""
    stage: str = ""
    next: tuple[Replica, ...] = ()


class TabletMap(msgspec.Struct, frozen=True):
    schema: str = "tablet-map/1"
    epoch: int = 0
    keyspace: str = ""
    table: str = ""
    nodes: tuple[HeldTablets, ...] = ()
    tablets: tuple[Tablet, ...] = ()


class TabletMoved(msgspec.Struct, frozen=True):
    """`epoch`: of the entry that began it; of a dry run, that of the metadata it is about."""

    schema: str = "tablet-move/1"
    keyspace: str = ""
    table: str = ""
    tablet: int = 0
    start: int = 0
    end: int = 0
    kind: str = ""
    replicas: tuple[Replica, ...] = ()
    next: tuple[Replica, ...] = ()
    epoch: int = 0
    dry_run: bool = False


class TabletsResized(msgspec.Struct, frozen=True):
    """`kind`: split, merge, or none where a decision was taken back. `number`: of the decision. `tablets`:
    how many there are, `after`: how many there will be; `apart`: pairs that are brought together before.
    `epoch`: of the entry; of a dry run, that of the metadata it is about."""

    schema: str = "tablet-resize/1"
    keyspace: str = ""
    table: str = ""
    kind: str = ""
    tablet: int | None = None
    number: int = 0
    tablets: int = 0
    after: int = 0
    apart: int = 0
    epoch: int = 0
    dry_run: bool = False


class PlannedMove(msgspec.Struct, frozen=True):
    """`end`: the last token of the tablet. `why`: drain, balance, shards or merge."""

    table: str
    end: int
    kind: str = ""
    why: str = ""
    source: int = 0
    target: int = 0
    bytes: int = 0


class PlannedDrain(msgspec.Struct, frozen=True):
    """What a node that is to be gone still holds, and about how long that takes to move."""

    request: int
    node: int
    tablets: int = 0
    bytes: int = 0
    seconds: float = 0.0


class WaitingResize(msgspec.Struct, frozen=True):
    """A split or merge of a table that waits, why, and for which nodes."""

    table: str
    reason: str
    nodes: tuple[int, ...] = ()


class TabletPlan(msgspec.Struct, frozen=True):
    """`tablet-plan/1`: what the balancer moves now and later, its bytes, and about how long all of it takes.
    `round` counts how often nodes were asked; `waits`: what is not planned, and why; `explained`: lines about
    the tablet that was asked for; `resizes`: what splits and merges wait for."""

    schema: str = "tablet-plan/1"
    epoch: int = 0
    is_balanced: bool = True
    round: int = 0
    running: int = 0
    now: tuple[PlannedMove, ...] = ()
    later: tuple[PlannedMove, ...] = ()
    now_count: int = 0
    later_count: int = 0
    bytes: int = 0
    seconds: float = 0.0
    waits: tuple[str, ...] = ()
    drains: tuple[PlannedDrain, ...] = ()
    explained: tuple[str, ...] = ()
    resizes: tuple[WaitingResize, ...] = ()


class TabletMigration(msgspec.Struct, frozen=True):
    """`tablet-migration/1`: where a keyspace is between the ring and tablets. `state`: ring, on its way, or
    tablets. `apart`: how many of its tablets do not lie where the ring has them: none may on the way back."""

    schema: str = "tablet-migration/1"
    epoch: int = 0
    keyspace: str = ""
    state: str = "ring"
    tables: int = 0
    tablets: int = 0
    apart: int = 0
