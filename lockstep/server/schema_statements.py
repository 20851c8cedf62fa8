"""Schema statements and TRUNCATE: through the metadata log, and their answers; DESCRIBE.

Invariant: an answer SCHEMA_CHANGE means that the change is in the log and applied here; VOID that the
statement found nothing to change, or that every live node has emptied the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from lockstep.cql import tree
from lockstep.cql.catalog import Catalog
from lockstep.cql.context import Context
from lockstep.cql.ddl import schema_change
from lockstep.cql.describe import ClusterFacts, describe
from lockstep.cql.prepared import Prepared
from lockstep.cql.wire import responses
from lockstep.metadata.registry import Transformation
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.node.raft_transport import METADATA_GROUP
from lockstep.schema.changes import SYSTEM_KEYSPACES, AlterKeyspace, CreateKeyspace
from lockstep.schema.statements import meant
from lockstep.schema.summaries import EMPTIED, UPDATED
from lockstep.server.replication_changes import ReplicationChanges
from lockstep.server.replication_warnings import too_high
from lockstep.server.schema_watch import SchemaWatch
from lockstep.server.user_functions import UserFunctions
from lockstep.values.errors import (
    OutcomeUnknown,
    PeerUnreachable,
    Rejected,
    TruncateError,
    Unavailable,
    WriteTimeout,
)
from lockstep.values.ids import Consistency

if TYPE_CHECKING:
    from lockstep.node.node import Node


_ROLES_KEYSPACE: Final = "system_auth"
_ROLES_EVERYWHERE: Final = (
    "Roles are on every node, whatever the replication of system_auth: nothing was changed"
)


class SchemaStatements:
    def __init__(self, node: Node, watch: SchemaWatch) -> None:
        self._node = node
        self._watch = watch
        self._changes = ReplicationChanges(node)
        self._functions = UserFunctions(node)

    async def run(
        self, prepared: Prepared, context: Context, creator: str = ""
    ) -> tuple[bytes, tuple[str, ...]]:
        """Body of the result, and warnings. Rejected or RequestError: Unavailable when nothing was done for
        want of a leader, WriteTimeout when the outcome is unknown, which drivers do not send again by
        themselves. `creator`: the role that may do everything with what is created."""
        change = meant(self._node.cluster.schema, schema_change(prepared, context))
        self._functions.check(change)
        if isinstance(change, AlterKeyspace) and change.keyspace == _ROLES_KEYSPACE:
            # The first thing that tools do to a cluster whose clients log in.
            return responses.VOID, (_ROLES_EVERYWHERE,)
        try:
            if isinstance(change, AlterKeyspace):
                body, warnings = await self._alter_keyspace(change)
                return body, (*warnings, *self._too_high(change.keyspace))
            if isinstance(change, CreateKeyspace):
                body = await self._answer(await self._node.submit(ChangeSchema(change, creator)))
                return body, self._too_high(change.keyspace)
            return await self._answer(await self._node.submit(ChangeSchema(change, creator))), ()
        except OutcomeUnknown as error:
            raise self._undecided(error) from error
        except PeerUnreachable as error:
            raise self._not_done(error) from error

    async def submitted(self, transformation: Transformation) -> None:
        """Have an entry of another kind in the log, and applied by the live nodes. Raises as `run` does."""
        try:
            epoch = await self._node.submit(transformation)
        except OutcomeUnknown as error:
            raise self._undecided(error) from error
        except PeerUnreachable as error:
            raise self._not_done(error) from error
        await self._watch.agreed(epoch)

    def _too_high(self, keyspace: str) -> tuple[str, ...]:
        space = self._node.cluster.schema.by_name.get(keyspace)
        return (
            too_high(keyspace, space.replication, self._node.cluster.directory) if space is not None else ()
        )

    async def _alter_keyspace(self, change: AlterKeyspace) -> tuple[bytes, tuple[str, ...]]:
        """In one entry where no data moves, else by an operation."""
        target = self._changes.target_of(change)
        if target is None:
            try:
                return await self._answer(await self._node.submit(ChangeSchema(change))), ()
            except Rejected:
                # The leader may know of the keyspace's first table, and this node has heard of it by now.
                target = self._changes.target_of(change)
                if target is None:
                    raise
        epoch, warning = await self._changes.run(change, target)
        await self._watch.agreed(epoch)
        body = responses.schema_change(UPDATED, "KEYSPACE", change.keyspace, "")
        return body, (warning,) if warning else ()

    async def _answer(self, epoch: int) -> bytes:
        """What became of the entry of this epoch, once the live nodes have applied it."""
        found = self._watch.summary_at(epoch)
        if found is None:
            if self._watch.jumped_over(epoch):
                await self._watch.agreed(epoch)
            return responses.VOID
        agreed = await self._watch.agreed(epoch)
        if found.change == EMPTIED:
            if not agreed:
                raise TruncateError("Some live nodes have not emptied the table yet, but will")
            return responses.VOID
        return responses.schema_change(
            found.change, found.target, found.keyspace, found.name, found.arguments
        )

    def _undecided(self, error: OutcomeUnknown) -> WriteTimeout:
        required, _ = self._voters()
        told = WriteTimeout(Consistency.QUORUM, 0, required, "SIMPLE")
        told.message = f"The outcome of this schema change is unknown: {error.message}"
        return told

    def _not_done(self, error: PeerUnreachable) -> Unavailable:
        told = Unavailable(Consistency.QUORUM, *self._voters())
        told.message = error.message
        return told

    def _voters(self) -> tuple[int, int]:
        """How many voters of the metadata group decide, and how many seem alive."""
        node = self._node
        voters, _ = node.groups.configuration(METADATA_GROUP)
        return len(voters) // 2 + 1, node.groups.peers(METADATA_GROUP).count

    def _ownership(self, keyspace: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(last token, who reads as /address:port) of every range of a keyspace with replicas."""
        cluster = self._node.cluster
        space = cluster.schema.by_name.get(keyspace)
        if space is None or keyspace in SYSTEM_KEYSPACES:
            return ()
        addresses = {info.id: f"/{info.address}:{info.internode_port}" for info in cluster.directory.nodes}
        return tuple(
            (
                str(placed.range.right),
                tuple(addresses[node] for node in placed.group.reads if node in addresses),
            )
            for placed in cluster.placements.ring(space.replication).ranges
        )

    def describe(self, version: int, prepared: Prepared, catalog: Catalog) -> bytes:
        """Body of the rows that answer a DESCRIBE."""
        name = self._node.configuration.cluster.name
        statement, keyspace = prepared.statement, prepared.session_keyspace
        asks_cluster = isinstance(statement, tree.Describe) and statement.what == "cluster"
        ownership = self._ownership(keyspace) if asks_cluster and keyspace is not None else ()
        found = describe(prepared, catalog, ClusterFacts(name, ownership=ownership))
        return responses.rows(responses.encode_rows_metadata(version, found.columns), found.rows)
