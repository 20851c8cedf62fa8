"""The entries of bulk loads: one begins or renews a load, one makes its files part of the table, one ends it
without.

Invariant: what is committed was staged for the table as it is, under the placements as they are: whatever
changed either since makes the entry refused, so no replica takes in what it should not, and none lacks what
it was counted for. Each entry given again does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.loads import LOADS, Load, LoadState
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.schema_part import SCHEMA
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.placement.placements import RingPlacement
from lockstep.schema.changes import SYSTEM_KEYSPACES, EmptyTable
from lockstep.schema.log_tables import capture_options, is_log
from lockstep.schema.model import Table
from lockstep.values.errors import Rejected
from lockstep.values.node_limits import (
    LOAD_JOB_CHARACTERS_MAX,
    LOAD_LEASE_MS_MAX,
    LOADS_RUNNING_MAX,
)

_STATEMENTS: Final = "write with writeMode=statements, which keeps them true"


def why_not(table: Table) -> str:
    """Why rows of a table cannot be loaded in bulk; empty when they can."""
    name = f"{table.keyspace}.{table.name}"
    if table.keyspace in SYSTEM_KEYSPACES:
        return f"{table.keyspace} keyspace is not user-modifiable"
    if table.view is not None:
        return f"{name} is a materialized view: load its base table"
    if table.is_counter:
        return f"{name} counts: counters have no values that could be loaded"
    if table.views:
        return f"{name} has materialized views ({', '.join(table.views)}), which a load would not change"
    if is_log(table):
        return f"{name} is a log of changes, which is written with what it tells of"
    if capture_options(table) is not None:
        return f"changes of {name} are captured, and a load would not be"
    return ""


def _why_not_there(cluster: ClusterMetadata, table: Table) -> str:
    if ring_of(cluster, table).replication.has_witnesses:
        return f"{table.keyspace}.{table.name} has witnesses, which keep mutations and take no files"
    return ""


def ring_of(cluster: ClusterMetadata, table: Table) -> RingPlacement:
    """Where a table lies."""
    return cluster.placements.ring(cluster.schema.by_name[table.keyspace].group_of(table))


class BeginLoad(msgspec.Struct, frozen=True, array_like=True):
    """Begin the load of a job, or renew the one that runs; one that has ended stays as it is.

    `at_ms` is the wall clock of who asks. `timestamp_us` 0: now, by that clock.
    """

    job: str
    keyspace: str
    table: str
    at_ms: int
    lease_ms: int
    timestamp_us: int = 0
    overwrite: bool = False

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        if not self.job or len(self.job) > LOAD_JOB_CHARACTERS_MAX:
            raise Rejected(f"the name of a load has 1 to {LOAD_JOB_CHARACTERS_MAX} characters")
        if not 0 < self.lease_ms <= LOAD_LEASE_MS_MAX:
            raise Rejected(f"the lease of a load is 1 to {LOAD_LEASE_MS_MAX} milliseconds")
        known = cluster.loads.by_job.get(self.job)
        if known is not None:
            return self._again(cluster, known)
        table = cluster.schema.table(self.keyspace, self.table)
        if table is None:
            raise Rejected(f"there is no table {self.keyspace}.{self.table}")
        reason = why_not(table) or _why_not_there(cluster, table)
        if reason:
            raise Rejected(reason, hint=_STATEMENTS)
        if len(cluster.loads.running) >= LOADS_RUNNING_MAX:
            raise Rejected(
                f"{LOADS_RUNNING_MAX} loads are under way", hint="wait for one of them, or cancel one"
            )
        schema, stored_id = cluster.schema, table.id
        if self.overwrite:
            # The id is given now, for the rows are stored under it, and never again.
            stored_id = schema.next_table_id
            schema = replace(schema, next_table_id=stored_id + 1)
        load = Load(
            self.job,
            table.keyspace,
            table.name,
            table.id,
            table.epoch,
            stored_id,
            self.timestamp_us or self.at_ms * 1000,
            epoch,
            self.at_ms + self.lease_ms,
            self.overwrite,
            began_ms=self.at_ms,
        )
        return cluster.changed(LOADS.set(cluster.loads.begun(load)), SCHEMA.set(schema))

    def _again(self, cluster: ClusterMetadata, known: Load) -> ClusterMetadata:
        if (known.keyspace, known.table, known.overwrite) != (self.keyspace, self.table, self.overwrite):
            raise Rejected(f"{self.job} is the name of another load, of {known.keyspace}.{known.table}")
        until_ms = self.at_ms + self.lease_ms
        if known.state is not LoadState.RUNNING or until_ms <= known.lease_until_ms:
            return cluster
        return cluster.changed(LOADS.set(cluster.loads.renewed(replace(known, lease_until_ms=until_ms))))


class CommitLoad(msgspec.Struct, frozen=True, array_like=True):
    """Make the files of a load part of its table. `digest` is that of their list, which enough replicas
    hold, by the placements of `placed_epoch`, with all its files that are theirs."""

    job: str
    digest: bytes
    placed_epoch: int
    rows: int = 0
    size_bytes: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        load = cluster.loads.by_job.get(self.job)
        if load is None:
            raise Rejected(f"there is no load {self.job}", hint="it ended long ago, or never began")
        if load.state is LoadState.COMMITTED:
            if load.digest != self.digest:
                raise Rejected(f"load {self.job} was committed at epoch {load.ended_epoch}, with other files")
            return cluster
        if load.state is not LoadState.RUNNING:
            raise Rejected(f"load {self.job} was {load.state}: {load.reason}")
        table = table_of(cluster, load)
        self._refuse_moved(cluster, table)
        ended = replace(
            load,
            state=LoadState.COMMITTED,
            digest=self.digest,
            rows=self.rows,
            size_bytes=self.size_bytes,
            ended_epoch=epoch,
        )
        if load.overwrite:
            cluster = replaced(cluster, load, epoch)
        return cluster.changed(LOADS.set(cluster.loads.without(ended)))

    def _refuse_moved(self, cluster: ClusterMetadata, table: Table) -> None:
        if ring_of(cluster, table).id in cluster.recounting:
            raise Rejected(
                f"the replication of keyspace {table.keyspace} changes", hint="commit the load when it has"
            )
        newest = max(placed.group.epoch for placed in ring_of(cluster, table).ranges)
        if newest > self.placed_epoch:
            raise Rejected(
                f"load {self.job} was staged for the placements of epoch {self.placed_epoch}, and ranges of "
                f"{table.keyspace}.{table.name} went to other replicas at epoch {newest}",
                hint="its files are staged again where the ranges are now",
            )


def table_of(cluster: ClusterMetadata, load: Load) -> Table:
    """The table of a load that runs. Rejected when it is not the one that the load began with."""
    name = f"{load.keyspace}.{load.table}"
    table = cluster.table(load.table_id)
    if table is None:
        raise Rejected(f"{name} was dropped or emptied since load {load.job} began", hint="load it anew")
    if table.epoch != load.table_epoch:
        raise Rejected(f"{name} was altered since load {load.job} began", hint="load it anew")
    reason = why_not(table)
    if reason:
        raise Rejected(reason, hint=_STATEMENTS)
    return table


def replaced(cluster: ClusterMetadata, load: Load, epoch: int) -> ClusterMetadata:
    """With the table emptied: it has the id that the load's rows are stored under."""
    next_id = cluster.schema.next_table_id
    assert load.stored_id < next_id, "the id was given to the load"
    assert cluster.table(load.stored_id) is None, "and to nobody else"
    given = cluster.changed(SCHEMA.set(replace(cluster.schema, next_table_id=load.stored_id)))
    emptied = ChangeSchema(EmptyTable(load.keyspace, load.table)).apply(given, epoch)
    assert emptied.table(load.stored_id) is not None, "the table has the id of its rows"
    return emptied.changed(SCHEMA.set(replace(emptied.schema, next_table_id=next_id)))


class EndLoad(msgspec.Struct, frozen=True, array_like=True):
    """Give a load up: nothing of it becomes part of the table. One that has ended stays as it is. `at_ms`
    0: whoever it belongs to, or an operator, wants it; otherwise nobody renewed it until then."""

    job: str
    reason: str
    at_ms: int = 0

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        load = cluster.loads.by_job.get(self.job)
        if load is None:
            raise Rejected(f"there is no load {self.job}", hint="it ended long ago, or never began")
        if load.state is not LoadState.RUNNING:
            return cluster
        if self.at_ms and self.at_ms < load.lease_until_ms:
            raise Rejected(f"load {self.job} was renewed")
        state = LoadState.EXPIRED if self.at_ms else LoadState.ABORTED
        ended = replace(load, state=state, reason=self.reason, ended_epoch=epoch)
        return cluster.changed(LOADS.set(cluster.loads.without(ended)))


KINDS: Final[Mapping[int, type[Any]]] = {
    EntryKind.BEGIN_LOAD: BeginLoad,
    EntryKind.COMMIT_LOAD: CommitLoad,
    EntryKind.END_LOAD: EndLoad,
}
