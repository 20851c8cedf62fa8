"""The transformation that changes the schema, and with it the rings that keyspaces use.

Invariant: a schema change never moves data. A new replication gets its ring at once, because nothing is
stored under it; a keyspace with tables keeps its replicas, so that no acknowledged write is lost; and rings,
and which tables lie on which, stay as they are while an operation holds ranges. Each keyspace has a group
with its replication, which it shares with those that are replicated alike and at rest; a group's ring is
computed from the token owners when it comes into use, and afterwards only topology operations change it.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.access import role_changes
from lockstep.metadata.access.roles import ACCESS, Access
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.conflicts import Held, Wanted, refuse_during
from lockstep.metadata.degraded import DEGRADED, Degraded, carried, of_groups
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.requests import keyspace_busy
from lockstep.metadata.schema_part import PLACEMENTS, SCHEMA
from lockstep.metadata.table_streams import STREAMS, streams_after
from lockstep.metadata.tablet_groups import lies_by, refuse_lists, transitions_after, with_tablet_groups
from lockstep.metadata.tablets import TABLETS
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.metadata.transitions import TRANSITIONS
from lockstep.placement.deltas import Passage, computed_ring, paired, plan_of, refilled
from lockstep.placement.placements import Placements, RingPlacement
from lockstep.schema.changes import (
    AlterKeyspace,
    AlterOptions,
    CreateTable,
    DropKeyspace,
    EmptyTable,
    SchemaChange,
    apply_change,
)
from lockstep.schema.model import Replication, Schema
from lockstep.schema.summaries import ChangeSummary
from lockstep.schema.tracking import newly_tracked
from lockstep.values.errors import OperationRunning, Rejected


def shared_group(
    cluster: ClusterMetadata, placements: Placements, replication: Replication
) -> RingPlacement | None:
    """The group that keyspaces with this replication share, none of a table alone nor of those whose
    replication changes; None when there is none yet."""
    alike = (ring for ring in placements.rings if ring.replication == replication)
    apart = (*cluster.recounting, *cluster.tablets.by_group)
    return next((ring for ring in alike if ring.id not in apart), None)


def placed(cluster: ClusterMetadata, schema: Schema, epoch: int) -> tuple[Schema, Placements]:
    """The schema in which each keyspace on a ring has its group, and the placements with exactly those groups
    and those of tablets; they are the same object when none comes or goes."""
    placements = cluster.placements
    for before, keyspace in cluster.schema.keyspaces_changed_in(schema):
        if keyspace is None or (before is not None and before.replication == keyspace.replication):
            continue
        if keyspace.tablets is not None:
            continue
        ring = shared_group(cluster, placements, keyspace.replication)
        if ring is None:
            ring = computed_ring(placements.next_id, keyspace.replication, cluster.directory.circle, epoch)
            placements = placements.with_rings((ring,))
        schema = schema.with_keyspace(msgspec.structs.replace(keyspace, group=ring.id))
    used = {keyspace.group for keyspace in schema.keyspaces if keyspace.group}
    assert used <= placements.by_id.keys(), "each keyspace on a ring has its group"
    gone = set(placements.by_id) - used - set(cluster.tablets.by_group)
    return schema, placements.without(sorted(gone))


def refuse_while_locked(cluster: ClusterMetadata, what: str) -> None:
    """Raises Rejected when any operation is running: its plan covers only the rings it knew."""
    hint = "wait for it to finish (`lockstep topology watch`) or cancel it"
    refuse_during(cluster, Wanted.SCHEMA_MOVING, Held.RING, what, hint)


def moves_data(cluster: ClusterMetadata, before: Replication, after: Replication) -> bool:
    """Whether tables need an operation to get from one replication to the other: it gives a range other
    replicas, or makes witnesses of them, or asks for more copies of what was written than are sure to be
    there."""
    if before.witnesses != after.witnesses:
        return True
    circle, dc_of = cluster.directory.circle, cluster.directory.dc_by_id.__getitem__
    return any(
        delta.old != delta.new or refilled(Passage(delta.old, delta.new, before, after), dc_of)
        for delta in paired(plan_of(before, circle), plan_of(after, circle))
    )


_REPLICATION_STAYS = "the replication of keyspaces cannot change"


class ChangeSchema(msgspec.Struct, frozen=True, array_like=True):
    """The body of a SCHEMA_CHANGE entry. `creator`: the role that may do everything with what the change
    creates; empty for nobody."""

    change: SchemaChange
    creator: str = ""

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return self.applied_at(cluster, epoch, None)

    def applied_at(self, cluster: ClusterMetadata, epoch: int, at_ms: int | None) -> ClusterMetadata:
        """`at_ms`: when it was asked for, where it is known."""
        refuse_before_initialize(cluster)
        self._refuse_while_changing(cluster)
        schema, _ = self._applied(cluster, epoch)
        if schema is cluster.schema:
            return cluster
        _refuse_tracked_while_filled(cluster, schema)
        if cluster.schema.replicates_as(schema):
            placements, degraded = cluster.placements, cluster.degraded
        else:
            schema, placements = placed(cluster, schema, epoch)
            if placements is not cluster.placements:
                refuse_while_locked(cluster, _REPLICATION_STAYS)
            _refuse_unlisted(cluster, schema)
            _refuse_moved_data(cluster, schema)
            degraded = _carried(cluster, schema)
        schema, placements, tablets = with_tablet_groups(cluster, schema, placements, epoch)
        if tablets is not cluster.tablets:
            _refuse_other_groups(cluster, schema)
        degraded = of_groups(degraded, placements.by_id)
        streams = streams_after(
            cluster.parts[STREAMS], cluster.schema, schema, placements, tablets, at_ms, epoch
        )
        assert schema.next_table_id >= cluster.schema.next_table_id, "table ids are never given twice"
        assert placements.next_id >= cluster.placements.next_id, "ids of groups are never given twice"
        return cluster.changed(
            SCHEMA.set(schema),
            PLACEMENTS.set(placements),
            TABLETS.set(tablets),
            STREAMS.set(streams),
            DEGRADED.set(degraded),
            TRANSITIONS.set(transitions_after(cluster, schema, placements, epoch)),
            ACCESS.set(self._access(cluster, schema)),
        )

    def _access(self, cluster: ClusterMetadata, schema: Schema) -> Access:
        return role_changes.followed(cluster.access, cluster.schema, schema, self.change, self.creator)

    def _refuse_while_changing(self, cluster: ClusterMetadata) -> None:
        """Raises Rejected when a request is about the replication that this would change or drop."""
        request = cluster.requests.by_keyspace.get(self.change.keyspace)
        alters = isinstance(self.change, AlterKeyspace) and self.change.replication is not None
        if request is not None and (alters or isinstance(self.change, DropKeyspace)):
            raise keyspace_busy(request)

    def summary(self, before: ClusterMetadata, epoch: int) -> ChangeSummary | None:
        """What drivers are told of this change of `before`; None when it found nothing to do."""
        return self._applied(before, epoch)[1]

    def _applied(self, before: ClusterMetadata, epoch: int) -> tuple[Schema, ChangeSummary | None]:
        schema, summary = apply_change(before.schema, self.change, epoch, before.directory.data_centers)
        if isinstance(self.change, EmptyTable):
            schema = _still_restored(before, schema, self.change)
        return schema, summary


def _still_restored(cluster: ClusterMetadata, schema: Schema, change: EmptyTable) -> Schema:
    """With the emptied table still read by comparing data, where a restore goes on that brings it rows
    without ids."""
    before = cluster.schema.table(change.keyspace, change.name)
    after = schema.table(change.keyspace, change.name)
    if before is None or after is None or not before.tracked_since:
        return schema
    if all(repair.began_epoch != before.tracked_since for repair in cluster.repairs.running):
        return schema
    return schema.with_table(msgspec.structs.replace(after, tracked_since=before.tracked_since))


def _refuse_other_groups(cluster: ClusterMetadata, schema: Schema) -> None:
    """Raises OperationRunning when tablets would come or go of a keyspace whose replication changes: all of
    them take each step together."""
    for operation in cluster.operations:
        name = operation.about.keyspace
        before, after = cluster.schema.by_name.get(name), schema.by_name.get(name)
        if before is not None and after is not None and before.groups.keys() != after.groups.keys():
            raise OperationRunning(
                f"no table with tablets of its own comes to keyspace {name}, or goes, while "
                f"{operation.title()} runs",
                hint="wait for it to finish (`lockstep topology watch`) or cancel it",
            )


def _refuse_tracked_while_filled(cluster: ClusterMetadata, schema: Schema) -> None:
    """Raises Rejected where a table would become tracked while replicas are filled with it, or are about to
    be, or it is loaded in bulk: what comes like this has no ids, and no claim that it is there."""
    loading = {(load.keyspace, load.table) for load in cluster.loads.running}
    moving = bool(cluster.requests.live or cluster.operations)
    if not moving and not loading and not cluster.transitions.count:
        return
    begins = newly_tracked(cluster.schema, schema)
    alone = {one.group for _, one in cluster.transitions.tree.items()} if begins else set[int]()
    for table in begins:
        name, has_moves = f"{table.keyspace}.{table.name}", schema.group_of(table) in alone
        if moving or has_moves:
            raise Rejected(
                f"table {name} does not become tracked while replicas move",
                keyspace=table.keyspace,
                hint=f"wait for its tablets (`lockstep tablets list {name}`); `lockstep tablets balance off "
                f"{name}` lets no others begin"
                if has_moves
                else "wait for the requests of `lockstep topology requests` to end",
            )
        if (table.keyspace, table.name) in loading:
            raise Rejected(
                f"table {name} is loaded in bulk: what that brings has no ids",
                keyspace=table.keyspace,
                hint="wait for the load to end, or cancel it",
            )


def _refuse_unlisted(cluster: ClusterMetadata, schema: Schema) -> None:
    """Raises Rejected where a keyspace is to lie in racks without nodes."""
    for before, after in cluster.schema.keyspaces_changed_in(schema):
        is_same = before is not None and after is not None and before.replication == after.replication
        if after is not None and not is_same:
            refuse_lists(cluster, after.name, after.replication)


def _refuse_moved_data(cluster: ClusterMetadata, schema: Schema) -> None:
    """Raises Rejected when a keyspace with tables would get other replicas by its new replication."""
    for before, after in cluster.schema.keyspaces_changed_in(schema):
        if before is None or after is None or before.replication == after.replication or not before.by_name:
            continue
        # Nodes list the tables of each ring at different times while they fill a new replica: a table
        # that changes rings in between would be in none of the lists.
        refuse_while_locked(cluster, _REPLICATION_STAYS)
        if before.tablets is not None and lies_by(cluster, before, after.replication):
            continue
        if before.tablets is not None or moves_data(cluster, before.replication, after.replication):
            raise Rejected(
                f"keyspace {before.name} has tables, and the new replication would move their data",
                cql_code=0x2300,
                keyspace=before.name,
                hint=f"`lockstep topology rf {before.name}` moves it in safe steps, as ALTER KEYSPACE does",
            )


def _carried(cluster: ClusterMetadata, schema: Schema) -> tuple[Degraded, ...]:
    """The degraded ranges, said also of the group that a keyspace with tables has from now on."""
    lines = dict.fromkeys(cluster.degraded)
    for before, after in cluster.schema.keyspaces_changed_in(schema):
        if before is None or after is None or before.replication == after.replication or not before.by_name:
            continue
        left = (line for line in cluster.degraded if line.group == before.group)
        lines.update(dict.fromkeys(carried(left, before.name, after.group)))
    return tuple(lines)


def may_open_streams(schema: Schema, change: SchemaChange) -> bool:
    """Whether a change may begin to capture changes of a table with tablets."""
    if not isinstance(change, CreateTable | AlterOptions) or not any(
        name == "cdc" for name, _ in change.options
    ):
        return False
    keyspace = schema.by_name.get(change.keyspace)
    return keyspace is not None and keyspace.tablets is not None


class ChangeCaptured(msgspec.Struct, frozen=True, array_like=True):
    """A change by which changes of a table with tablets may begin to be captured. `at_ms` is the wall clock
    of who asks: the table's first streams count from then on."""

    wanted: ChangeSchema
    at_ms: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return self.wanted.applied_at(cluster, epoch, self.at_ms)


KINDS: dict[int, type] = {
    EntryKind.SCHEMA_CHANGE: ChangeSchema,
    EntryKind.CHANGE_CAPTURED: ChangeCaptured,
}
