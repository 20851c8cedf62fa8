"""The transformation that changes the schema, and with it the rings that keyspaces use.

Invariant: a schema change never moves data. A new replication gets its ring at once, because nothing is
stored under it; an existing keyspace keeps its replicas, so that no acknowledged write is lost; and
rings, and which tables lie on which, stay as they are while an operation holds ranges.
"""

from __future__ import annotations

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.degraded import of_replications
from lockstep.metadata.placing import placements_for, refuse_while_locked
from lockstep.metadata.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.placement.deltas import same_placement
from lockstep.placement.placements import Placements
from lockstep.schema.changes import SchemaChange, apply_change
from lockstep.schema.model import Schema
from lockstep.schema.summaries import ChangeSummary
from lockstep.values.errors import Rejected

_REPLICATION_STAYS = "the replication of keyspaces cannot change"


class ChangeSchema(msgspec.Struct, frozen=True, array_like=True):
    """The body of a SCHEMA_CHANGE entry."""

    change: SchemaChange

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        schema, _ = self._applied(cluster, epoch)
        if schema is cluster.schema:
            return cluster
        if cluster.schema.replicates_as(schema):
            return msgspec.structs.replace(cluster, schema=schema)
        replications = tuple(sorted({keyspace.replication for keyspace in schema.keyspaces}))
        placements = placements_for(cluster.placements, replications, cluster.directory.owners, epoch)
        if placements is not cluster.placements:
            refuse_while_locked(cluster, _REPLICATION_STAYS)
        _refuse_moved_data(cluster, schema, placements)
        degraded = of_replications(cluster.degraded, replications)
        return msgspec.structs.replace(cluster, schema=schema, placements=placements, degraded=degraded)

    def summary(self, before: ClusterMetadata, epoch: int) -> ChangeSummary | None:
        """What drivers are told of this change of `before`; None when it found nothing to do."""
        return self._applied(before, epoch)[1]

    def _applied(self, before: ClusterMetadata, epoch: int) -> tuple[Schema, ChangeSummary | None]:
        return apply_change(before.schema, self.change, epoch, before.directory.data_centers)


def _refuse_moved_data(cluster: ClusterMetadata, schema: Schema, placements: Placements) -> None:
    """Raises Rejected when a keyspace with tables would get other replicas by its new replication."""
    for before, after in cluster.schema.keyspaces_changed_in(schema):
        if before is None or after is None or before.replication == after.replication or not before.by_name:
            continue
        # Nodes list the tables of each ring at different times while they fill a new replica: a table
        # that changes rings in between would be in none of the lists.
        refuse_while_locked(cluster, _REPLICATION_STAYS)
        held, wanted = cluster.placements.ring(before.replication), placements.ring(after.replication)
        if not same_placement(held, wanted):
            raise Rejected(
                f"keyspace {before.name} has tables, and the new replication would move their data",
                cql_code=0x2300,
                keyspace=before.name,
                hint="create a keyspace with the wanted replication and copy the tables",
            )


KINDS: dict[int, type] = {EntryKind.SCHEMA_CHANGE: ChangeSchema}
