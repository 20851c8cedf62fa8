"""The entries that begin and end a repair, and who repairs what with whom.

Invariant: ranges on their way to other replicas are not repaired, and what changed hands while it was
repaired is not recorded. A range stops being degraded in the same entry that records the last of its tables.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import Held, Wanted, refuse_during
from lockstep.metadata.degraded import Degraded
from lockstep.metadata.directory import NodeState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.repairs import (
    REPAIRS,
    Repair,
    Repaired,
    RepairPart,
    Repairs,
    RepairState,
    is_equal_since,
    joined_ranges,
    oldest,
)
from lockstep.metadata.schema_part import SCHEMA
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.placement.placements import RingPlacement
from lockstep.schema.model import Schema
from lockstep.schema.tracking import is_tracked
from lockstep.topology.force_remove import MarkRepaired
from lockstep.topology.planning import holder_of
from lockstep.topology.roles import keepers
from lockstep.values.errors import Rejected
from lockstep.values.ids import NodeId
from lockstep.values.limits import REPAIRS_RUNNING_MAX, SERVICE_TEXT_CHARACTERS_MAX
from lockstep.values.tokens import Range

#: What holds ranges as repairs do, beside them: nothing of them moves or is purged meanwhile.
BACKUP: Final = "backup"
RESTORE: Final = "restore"
PURPOSES: Final = (BACKUP, RESTORE)

_WAIT = "wait for its end (`lockstep topology watch`)"


class BeginRepair(msgspec.Struct, frozen=True, array_like=True):
    """`nodes` empty: every replica takes part. `began_s`: the driver's clock in seconds. `purpose`: see
    Repair."""

    driver: NodeId
    parts: tuple[RepairPart, ...]
    began_s: int
    nodes: tuple[NodeId, ...] = ()
    incremental: bool = False
    run: int = 0
    purpose: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        repairs = without_lost(cluster, epoch)
        self._refuse(cluster, repairs)
        repair = Repair(
            repairs.next_id,
            self.driver,
            self.parts,
            self.nodes,
            self.incremental,
            self.began_s,
            self.run,
            epoch,
            purpose=self.purpose,
        )
        changes = [REPAIRS.set(repairs.begun(repair))]
        if self.purpose == RESTORE:
            schema = untold(cluster, self.parts, epoch)
            changes += [SCHEMA.set(schema)] if schema is not cluster.schema else []
        return cluster.changed(*changes)

    def _refuse(self, cluster: ClusterMetadata, repairs: Repairs) -> None:
        driver = cluster.node(self.driver)
        if driver is None or driver.state is NodeState.LEFT:
            raise Rejected(f"there is no node {self.driver} to drive a repair")
        for id_ in self.nodes:
            info = cluster.node(id_)
            if info is None or info.state is NodeState.LEFT:
                raise Rejected(f"there is no node {id_} to take part in a repair")
        if not any(part.tables and part.ranges for part in self.parts):
            raise Rejected("there is nothing to repair")
        if self.purpose not in ("", *PURPOSES):
            raise Rejected(f"nothing holds ranges for {self.purpose!r}")
        refuse_during(cluster, Wanted.REPAIR, Held.FREEZE, "nothing is repaired", "`lockstep cms thaw`")
        if len(repairs.running) >= REPAIRS_RUNNING_MAX:
            raise Rejected(f"{len(repairs.running)} repairs are running, which are as many as may")
        for part in self.parts:
            _refuse_part(cluster, repairs, part)


def untold(cluster: ClusterMetadata, parts: Sequence[RepairPart], epoch: int) -> Schema:
    """The schema while rows without ids are brought to these tables: those of which ids told everything are
    read by comparing data. Rejected where ids tell of some ranges, or rows could be compared with nobody."""
    schema = cluster.schema
    for part in parts:
        for table_id in part.tables:
            tells, table = _ids_tell(cluster, table_id), cluster.table(table_id)
            if tells is None or table is None:
                continue
            name = f"{table.keyspace}.{table.name}"
            ring = cluster.placements.ring(part.group)
            if ring.replication.has_witnesses:
                raise Rejected(
                    f"table {name} has witnesses, which would have nothing of what is restored",
                    hint="take the witnesses away first (ALTER KEYSPACE), and restore then",
                )
            told = [tells(placed.range) for range_ in part.ranges for placed in ring.overlapping(range_)]
            if any(told) and not all(told):
                raise Rejected(
                    f"table {name} is on its way to being tracked: ids tell of a part of its ranges",
                    hint=f"make that whole first: `lockstep repair {name}`",
                )
            if any(told):
                schema = schema.with_table(msgspec.structs.replace(table, tracked_since=epoch))
    return schema


def told_again(schema: Schema, repair: Repair) -> Schema:
    """The schema once a restore is done: all replicas have all rows that it brought, so ids tell of
    everything as before, also of tables that were emptied for it."""
    for name in sorted({part.keyspace for part in repair.parts}):
        keyspace = schema.by_name.get(name)
        for table in keyspace.tables if keyspace is not None else ():
            if table.tracked_since == repair.began_epoch:
                schema = schema.with_table(msgspec.structs.replace(table, tracked_since=0))
    return schema


class EndRepair(msgspec.Struct, frozen=True, array_like=True):
    """`ranges`, by part: what was made equal, on all participants and in all tables of the part.

    `before_s`: everything written before this second, on the clock that was furthest behind, had reached its
    replicas or was on the way to none; 0: that is not known. `unchanged_since`: refused when something held
    got other replicas after this epoch; 0: whatever they are.
    """

    repair: int
    state: RepairState
    ranges: tuple[tuple[Range, ...], ...] = ()
    before_s: int = 0
    reason: str = ""
    ended_s: int = 0
    unchanged_since: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        repair = next((one for one in cluster.repairs.running if one.id == self.repair), None)
        if repair is None:
            raise Rejected(f"repair {self.repair} is not running")
        if self.state is RepairState.RUNNING or len(self.reason) > SERVICE_TEXT_CHARACTERS_MAX:
            raise Rejected("this is no end of a repair")
        if self.unchanged_since and not is_unchanged(cluster, repair, self.unchanged_since):
            raise Rejected(f"ranges of {repair.title()} got other replicas meanwhile")
        ended = msgspec.structs.replace(
            repair, state=self.state, reason=self.reason, ended_epoch=epoch, ended_s=self.ended_s
        )
        found = self._found(cluster, repair)
        known = (table.id for keyspace in cluster.schema.keyspaces for table in keyspace.tables)
        repairs = cluster.repairs.without(ended).with_repaired(found, known)
        after = cluster.changed(REPAIRS.set(repairs))
        if repair.purpose == RESTORE and self.state is RepairState.DONE:
            schema = told_again(cluster.schema, repair)
            after = after.changed(SCHEMA.set(schema)) if schema is not cluster.schema else after
        for group, range_ in mended(after):
            after = MarkRepaired(group, range_).apply(after, epoch)
        return after

    def _found(self, cluster: ClusterMetadata, repair: Repair) -> dict[int, list[Repaired]]:
        found: dict[int, list[Repaired]] = {}
        if repair.nodes or repair.purpose:
            return found
        for part, ranges in zip(repair.parts, self.ranges, strict=False):
            for range_ in _unchanged(cluster, repair, part, ranges):
                for table in part.tables:
                    if cluster.table(table) is not None:
                        entry = Repaired(range_, repair.began_s, self.before_s, repair.began_epoch)
                        found.setdefault(table, []).append(entry)
        return found


def without_lost(cluster: ClusterMetadata, epoch: int) -> Repairs:
    """The repairs, those ended whose driver has left."""
    repairs = cluster.repairs
    for repair in repairs.running:
        info = cluster.node(repair.driver)
        if info is None or info.state is NodeState.LEFT:
            reason = f"node {repair.driver}, which drove it, has left"
            repairs = repairs.without(
                msgspec.structs.replace(repair, state=RepairState.FAILED, reason=reason, ended_epoch=epoch)
            )
    return repairs


def _refuse_part(cluster: ClusterMetadata, repairs: Repairs, part: RepairPart) -> None:
    keyspace = cluster.schema.by_name.get(part.keyspace)
    if keyspace is None or part.group not in keyspace.groups:
        raise Rejected(f"keyspace {part.keyspace} is replicated otherwise by now")
    there = {table.id for table in keyspace.groups[part.group]}
    gone = [table for table in part.tables if table not in there]
    if gone:
        raise Rejected(f"keyspace {part.keyspace} has no table of id {gone[0]}, which was to be repaired")
    for operation in cluster.operations:
        if operation.about.keyspace == part.keyspace:
            raise Rejected(f"keyspace {part.keyspace} is not repaired during {operation.title()}", hint=_WAIT)
    ring = cluster.placements.ring(part.group)
    held = (one for range_ in part.ranges for one in cluster.transitions.held(ring, range_))
    first = min(held, key=lambda transition: transition.operation_id, default=None)
    if first is not None:
        where = f"({first.range.left}, {first.range.right}]"
        holder = holder_of(cluster, first)
        raise Rejected(f"{holder} moves {where} of keyspace {part.keyspace}", hint=_WAIT)
    for other in repairs.running:
        shared = other.overlap(part)
        if shared is not None:
            raise Rejected(
                f"{other.title()} holds ({shared.left}, {shared.right}] of keyspace {part.keyspace}",
                hint=f"wait for it, or end it: `lockstep repair --cancel {other.id}`",
            )


def refuse_emptied(cluster: ClusterMetadata, parts: Sequence[RepairPart]) -> None:
    """Rejected when a restore that has emptied tables of these keyspaces goes on. Entries do not tell: it
    holds the tables under the ids that they had before."""
    keyspaces = {part.keyspace for part in parts}
    for other in cluster.repairs.running:
        for held in other.parts if other.purpose == RESTORE else ():
            if held.keyspace in keyspaces and any(cluster.table(table) is None for table in held.tables):
                raise Rejected(
                    f"{other.title()} has emptied tables of keyspace {held.keyspace}, and goes on",
                    hint=f"wait for it, or end it: `lockstep repair --cancel {other.id}`",
                )


def _unchanged(
    cluster: ClusterMetadata, repair: Repair, part: RepairPart, ranges: Sequence[Range]
) -> tuple[Range, ...]:
    """What of the ranges has the replicas that it had when the repair began."""
    keyspace = cluster.schema.by_name.get(part.keyspace)
    if keyspace is None or part.group not in keyspace.groups or keyspace.epoch > repair.began_epoch:
        return ()
    ring = cluster.placements.ring(part.group)
    kept = (
        shared
        for range_ in ranges
        for placed in ring.overlapping(range_)
        if placed.group.epoch <= repair.began_epoch
        and (shared := placed.range.intersection(range_)) is not None
    )
    return joined_ranges(kept)


def is_unchanged(cluster: ClusterMetadata, repair: Repair, since_epoch: int) -> bool:
    """Whether all that is held still has the replicas that it had at an epoch."""
    held = msgspec.structs.replace(repair, began_epoch=since_epoch)
    return all(
        _unchanged(cluster, held, part, part.ranges) == joined_ranges(part.ranges) for part in repair.parts
    )


def mended(cluster: ClusterMetadata) -> Iterator[tuple[int, Range]]:
    """Degraded ranges of which every table was repaired since."""
    cuts = {
        bound
        for ranges in cluster.repairs.by_table.values()
        for one in ranges
        for bound in (one.range.left, one.range.right)
    }
    for line in cluster.degraded:
        here = cluster.schema.tables_in(line.group)
        tables = [table.id for table in here if line.is_about(table.keyspace)]
        inside = sorted(cut for cut in cuts if line.range.left < cut < line.range.right)
        bounds = [line.range.left, *inside, line.range.right]
        whole = (Range(a, b) for a, b in itertools.pairwise(bounds))
        mended_ = joined_ranges(piece for piece in whole if _is_mended(cluster, line, tables, piece))
        for piece in mended_:
            yield line.group, piece


def _is_mended(cluster: ClusterMetadata, line: Degraded, tables: Sequence[int], piece: Range) -> bool:
    if any(
        other.group == line.group and other.range.intersects(piece) and other.since_epoch > line.since_epoch
        for other in cluster.degraded
    ):
        # The entry that mends does not tell two lines of one range apart.
        return False
    found = [oldest(cluster.repairs.by_table.get(table, ()), piece) for table in tables]
    return bool(found) and all(one is not None and one.epoch > line.since_epoch for one in found)


class Way(enum.IntEnum):
    """How ranges are repaired."""

    #: The data of all participants is compared, and each is sent what it lacks.
    DATA = 0
    #: Ids tell of everything: wait until all participants hold what any of them holds. Of all tables of the
    #: part that ids tell of; the unit names the first.
    IDS = 1
    #: Once that is done: compare data with ids.
    DATA_AGAINST_IDS = 2


class RepairUnit(msgspec.Struct, frozen=True):
    """Ranges of one table that have the same replicas, repaired in one go."""

    part: int
    table: int
    nodes: tuple[NodeId, ...]
    ranges: tuple[Range, ...]
    way: Way = Way.DATA


def units(
    cluster: ClusterMetadata, repair: Repair, ranges_max: int, *, full: bool = False
) -> tuple[RepairUnit, ...]:
    """The repair's work, by table and replicas. `full`: where ids tell of everything data is compared too;
    that comes last."""
    found: list[RepairUnit] = []
    last: list[RepairUnit] = []
    for number, part in enumerate(repair.parts):
        ring = cluster.placements.ring(part.group)
        placed = [one for range_ in part.ranges for one in _placed(ring, range_, repair.nodes)]
        waited: set[tuple[tuple[NodeId, ...], Range]] = set()
        for table in part.tables:
            compared = placed
            tells = _ids_tell(cluster, table)
            if tells is not None:
                compared = [one for one in placed if not tells(one[1])]
                by_ids = [one for one in placed if tells(one[1])]
                wait = [one for one in by_ids if one not in waited]
                waited.update(wait)
                found += _units(number, table, wait, ranges_max, Way.IDS)
                if full:
                    keeping = [(_keeping(cluster, ring, nodes, piece), piece) for nodes, piece in by_ids]
                    last += _units(number, table, keeping, ranges_max, Way.DATA_AGAINST_IDS)
            found += _units(number, table, compared, ranges_max, Way.DATA)
    return (*found, *last)


def _units(
    part: int,
    table: int,
    placed: Sequence[tuple[tuple[NodeId, ...], Range]],
    ranges_max: int,
    way: Way,
) -> Iterator[RepairUnit]:
    by_nodes: dict[tuple[NodeId, ...], list[Range]] = {}
    for nodes, piece in placed:
        by_nodes.setdefault(nodes, []).append(piece)
    for nodes, pieces in by_nodes.items():
        for at in range(0, len(pieces), ranges_max):
            yield RepairUnit(part, table, nodes, tuple(pieces[at : at + ranges_max]), way)


def _ids_tell(cluster: ClusterMetadata, table_id: int) -> Callable[[Range], bool] | None:
    """Of a tracked table, whether ids tell of everything in a range; None of other tables."""
    table = cluster.table(table_id)
    if table is None or not is_tracked(cluster.schema.by_name[table.keyspace], table):
        return None
    since, known = table.tracked_since, cluster.repairs.by_table.get(table_id, ())
    return lambda piece: not since or is_equal_since(known, piece, since)


def _keeping(
    cluster: ClusterMetadata, ring: RingPlacement, nodes: Sequence[NodeId], piece: Range
) -> tuple[NodeId, ...]:
    """Those of them that are no witnesses of the range."""
    if not ring.replication.has_witnesses:
        return tuple(nodes)
    keeping = keepers(cluster, ring, ring.range_at(piece.right))
    return tuple(node for node in nodes if node in keeping)


def _placed(
    ring: RingPlacement, wanted: Range, only: Sequence[NodeId]
) -> Iterator[tuple[tuple[NodeId, ...], Range]]:
    for placed in ring.overlapping(wanted):
        piece = placed.range.intersection(wanted)
        if piece is not None:
            nodes = sorted(node for node in placed.group.writes if not only or node in only)
            yield tuple(nodes), piece


KINDS: dict[int, type] = {
    EntryKind.BEGIN_REPAIR: BeginRepair,
    EntryKind.END_REPAIR: EndRepair,
}
