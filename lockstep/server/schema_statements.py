"""Schema statements and TRUNCATE: through the metadata log, and their answers; DESCRIBE.

Invariant: an answer SCHEMA_CHANGE means that the change is in the log and applied here; VOID that the
statement found nothing to change, or that every live node has emptied the table.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.cql.catalog import Catalog
from lockstep.cql.context import Context
from lockstep.cql.ddl import schema_change
from lockstep.cql.describe import ClusterFacts, describe
from lockstep.cql.prepared import Prepared
from lockstep.cql.wire import responses
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.schema.summaries import EMPTIED
from lockstep.server.schema_watch import SchemaWatch
from lockstep.values.errors import OutcomeUnknown, ServerFault, TruncateError

if TYPE_CHECKING:
    from lockstep.node.node import Node


class SchemaStatements:
    def __init__(self, node: Node, watch: SchemaWatch) -> None:
        self._node = node
        self._watch = watch

    async def run(self, prepared: Prepared, context: Context) -> bytes:
        """Body of the result. Rejected or RequestError; ServerFault when the outcome is unknown."""
        change = schema_change(prepared, context)
        try:
            epoch = await self._node.submit(ChangeSchema(change))
        except OutcomeUnknown as error:
            raise ServerFault(
                f"The outcome of this schema change is unknown: {error.message}", hint=error.hint
            ) from error
        found = self._watch.summary_at(epoch)
        if found is None:
            return responses.VOID
        agreed = await self._watch.agreed(epoch)
        if found.change == EMPTIED:
            if not agreed:
                raise TruncateError("Some live nodes have not emptied the table yet, but will")
            return responses.VOID
        return responses.schema_change(found.change, found.target, found.keyspace, found.name)

    def describe(self, version: int, prepared: Prepared, catalog: Catalog) -> bytes:
        """Body of the rows that answer a DESCRIBE."""
        found = describe(prepared, catalog, ClusterFacts(self._node.configuration.cluster.name))
        return responses.rows(responses.encode_rows_metadata(version, found.columns), found.rows)
