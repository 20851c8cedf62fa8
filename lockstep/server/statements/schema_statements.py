"""Schema statements and TRUNCATE: through the metadata log, and their answers; DESCRIBE.

Invariant: an answer SCHEMA_CHANGE means that the change is in the log and applied here; VOID that the
statement found nothing to change, or that every live node has emptied the table.

ALTER KEYSPACE that moves data: as a request for a topology operation, followed for a while.

Invariant: an answer without a warning means that the keyspace has the replication; one with a warning, that
the request is in the log and goes on without the client.

What a client is told of a replication that the cluster accepts and cannot satisfy now.
"""

from __future__ import annotations

import asyncio
from typing import Final

from msgspec import structs

from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepared import Catalog, Prepared
from lockstep.cql.ddl.changes import schema_change
from lockstep.cql.ddl.describe import ClusterFacts, describe
from lockstep.cql.parse import tree
from lockstep.cql.wire import responses
from lockstep.metadata.directory import Directory
from lockstep.metadata.log.registry import Transformation
from lockstep.metadata.requests import Request, RequestState
from lockstep.metadata.schema_change import ChangeCaptured, ChangeSchema, may_open_streams
from lockstep.metadata.tablet_groups import spread
from lockstep.node.log.journal import METADATA_GROUP
from lockstep.node.services import NodeServices
from lockstep.placement.quorums import dc_factors
from lockstep.schema.changes import SYSTEM_KEYSPACES, AlterKeyspace, CreateKeyspace
from lockstep.schema.model import Replication
from lockstep.schema.statements import meant
from lockstep.schema.summaries import EMPTIED, UPDATED
from lockstep.server.cql.schema_watch import SchemaWatch
from lockstep.server.statements.user_functions import UserFunctions
from lockstep.topology.kinds.replication import ReplicationChange, target_in, target_of, under_way
from lockstep.topology.requests import EnqueueRequest
from lockstep.values.errors import (
    LockstepError,
    OperationRunning,
    OutcomeUnknown,
    PeerUnreachable,
    Rejected,
    TruncateError,
    Unavailable,
    WriteTimeout,
)
from lockstep.values.ids import Consistency
from lockstep.values.limits import REPLICATION_WAIT_MS


def too_high(keyspace: str, replication: Replication, directory: Directory) -> tuple[str, ...]:
    """One sentence, in Cassandra's words, for each factor above the number of nodes that own tokens."""
    owners: dict[str, int] = {}
    for owner in directory.owners:
        owners[owner.dc] = owners.get(owner.dc, 0) + 1
    begin = f"Your replication factor {{}} for keyspace {keyspace} is higher than the number of nodes {{}}"
    per_dc = dc_factors(replication)
    if not per_dc:
        nodes = sum(owners.values())
        return (begin.format(replication.total, nodes),) if replication.total > nodes else ()
    return tuple(
        f"{begin.format(factor, owners.get(dc, 0))} for datacenter {dc}"
        for dc, factor in per_dc
        if factor > owners.get(dc, 0)
    )


class ReplicationChanges:
    def __init__(self, node: NodeServices) -> None:
        self._node = node

    def target_of(self, change: AlterKeyspace) -> Replication | None:
        """The replication that needs an operation; None when the statement is an ordinary schema change."""
        return target_of(self._node.log.cluster, change)

    async def run(self, change: AlterKeyspace, target: Replication) -> tuple[int, str]:
        """(the newest epoch of the change, a warning or ""). Rejected when it was refused, failed or was
        cancelled."""
        node = self._node
        if (change.durable_writes, change.tablets, change.replication_type) != (None, None, None):
            await node.log.submit(ChangeSchema(structs.replace(change, replication=None)))
        known = under_way(node.log.cluster, change.keyspace, target)
        request_id = known.id if known is not None else await self._asked(change.keyspace, target)
        ended = await self._ended(request_id)
        if ended is None:
            return node.log.cluster.epoch, (
                f"The replication of keyspace {change.keyspace} is being changed by request {request_id}, "
                f"which goes on: `lockstep topology watch {request_id}` follows it"
            )
        if ended.state is not RequestState.DONE:
            why = f": {ended.outcome}" if ended.outcome else ""
            raise Rejected(
                f"{ended.title()} has {ended.state}{why}", cql_code=0x2300, keyspace=change.keyspace
            )
        return ended.ended_epoch, ""

    async def _asked(self, keyspace: str, target: Replication) -> int:
        node = self._node
        actor = f"ALTER KEYSPACE, through node {node.context.own_id()}"
        wanted = EnqueueRequest(ReplicationChange(keyspace, target), actor=actor)
        try:
            epoch = await node.log.submit(wanted)
        except Rejected:
            # Another client may have asked for the same at the same time.
            other = under_way(node.log.cluster, keyspace, target)
            if other is None:
                raise
            return other.id
        for request in (*node.log.cluster.requests.live, *reversed(node.log.cluster.requests.ended)):
            if request.requested_epoch == epoch and request.about.keyspace == keyspace:
                return request.id
        raise LockstepError(f"the request of epoch {epoch} is not in the metadata of this node")

    async def _ended(self, request_id: int) -> Request | None:
        """The request once it has ended; None when it has not after REPLICATION_WAIT_MS."""
        try:
            async with asyncio.timeout(REPLICATION_WAIT_MS / 1000):
                while True:
                    cluster = self._node.log.cluster
                    request = cluster.requests.by_id[request_id]
                    if not request.is_live:
                        return request
                    await self._node.log.state.wait_for(cluster.epoch + 1)
        except TimeoutError:
            return None


#: What tools of Cassandra give another replication before anything else, and why nothing comes of it here.
_KEPT_OTHERWISE: Final = {
    "system_auth": "Roles are on every node, whatever the replication of system_auth: nothing was changed",
    "system_distributed": "system_distributed is told by every node from the metadata: nothing was changed",
    "system_traces": "Traces are kept by the node that was asked, whatever the replication of system_traces: "
    "nothing was changed",
}


class SchemaStatements:
    def __init__(self, node: NodeServices, watch: SchemaWatch) -> None:
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
        change = meant(self._node.log.cluster.schema, schema_change(prepared, context))
        self._functions.check(change)
        if isinstance(change, AlterKeyspace) and (why := _KEPT_OTHERWISE.get(change.keyspace)):
            return responses.VOID, (why,)
        try:
            if isinstance(change, AlterKeyspace):
                body, warnings = await self._alter_keyspace(change)
                return body, (*warnings, *self._too_high(change.keyspace))
            if isinstance(change, CreateKeyspace):
                change = spread(change, self._node.context.configuration.tablets.mode_for_new_keyspaces)
                body = await self._answer(await self._submitted(ChangeSchema(change, creator)))
                return body, self._too_high(change.keyspace)
            wanted: ChangeSchema | ChangeCaptured = ChangeSchema(change, creator)
            if may_open_streams(self._node.log.cluster.schema, change):
                at_ms = self._node.context.runtime.clock.wall_us() // 1000
                wanted = ChangeCaptured(ChangeSchema(change, creator), at_ms)
            return await self._answer(await self._submitted(wanted)), ()
        except OutcomeUnknown as error:
            raise self._undecided(error) from error
        except PeerUnreachable as error:
            raise self._not_done(error) from error

    async def submitted(self, transformation: Transformation) -> None:
        """Have an entry of another kind in the log, and applied by the live nodes. Raises as `run` does."""
        try:
            epoch = await self._node.log.submit(transformation)
        except OutcomeUnknown as error:
            raise self._undecided(error) from error
        except PeerUnreachable as error:
            raise self._not_done(error) from error
        await self._watch.agreed(epoch)

    async def _submitted(self, wanted: ChangeSchema | ChangeCaptured) -> int:
        """The epoch of the entry. What a running operation excludes is asked for again when that has ended;
        OperationRunning when it runs on for REPLICATION_WAIT_MS."""
        clock, log = self._node.context.runtime.clock, self._node.log
        deadline_s = clock.monotonic_s() + REPLICATION_WAIT_MS / 1000
        while True:
            try:
                return await log.submit(wanted)
            except OperationRunning:
                left_s = deadline_s - clock.monotonic_s()
                try:
                    async with asyncio.timeout(left_s):
                        while log.cluster.operations:
                            await log.state.wait_for(log.cluster.epoch + 1)
                except TimeoutError:
                    pass
                else:
                    continue
                raise

    def _too_high(self, keyspace: str) -> tuple[str, ...]:
        space = self._node.log.cluster.schema.by_name.get(keyspace)
        return (
            too_high(keyspace, space.replication, self._node.log.cluster.directory)
            if space is not None
            else ()
        )

    async def _alter_keyspace(self, change: AlterKeyspace) -> tuple[bytes, tuple[str, ...]]:
        """In one entry where no data moves, else by an operation."""
        target = self._changes.target_of(change)
        if target is None:
            try:
                return await self._answer(await self._submitted(ChangeSchema(change))), ()
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
        voters, _ = node.membership.groups.configuration(METADATA_GROUP)
        return len(voters) // 2 + 1, node.membership.groups.peers(METADATA_GROUP).count

    def _ownership(self, keyspace: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """(last token, who reads as /address:port) of every range of a keyspace with replicas."""
        cluster = self._node.log.cluster
        space = cluster.schema.by_name.get(keyspace)
        if space is None or keyspace in SYSTEM_KEYSPACES or space.tablets is not None:
            return ()  # Each table with tablets has ranges of its own.
        addresses = {info.id: f"/{info.address}:{info.internode_port}" for info in cluster.directory.nodes}
        return tuple(
            (
                str(placed.range.right),
                tuple(addresses[node] for node in placed.group.reads if node in addresses),
            )
            for placed in cluster.placements.ring(space.group).ranges
        )

    def _notes(self) -> dict[str, str]:
        """Where the replication of keyspaces is on its way to."""
        requests = self._node.log.cluster.requests.by_keyspace
        targets = ((name, request, target_in(request.body)) for name, request in requests.items())
        return {
            name: f"on its way to {target.text()}: request {request.id} is {request.state.value}"
            for name, request, target in targets
            if target is not None
        }

    def describe(self, version: int, prepared: Prepared, catalog: Catalog) -> bytes:
        """Body of the rows that answer a DESCRIBE."""
        name = self._node.context.configuration.cluster.name
        statement, keyspace = prepared.statement, prepared.session_keyspace
        asks_cluster = isinstance(statement, tree.Describe) and statement.what == "cluster"
        ownership = self._ownership(keyspace) if asks_cluster and keyspace is not None else ()
        facts = ClusterFacts(name, ownership=ownership, notes=self._notes())
        found = describe(prepared, catalog, facts)
        return responses.rows(responses.encode_rows_metadata(version, found.columns), found.rows)
