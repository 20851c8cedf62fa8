"""Tells the storage engine which secondary indexes its tables have.

Invariant: in the step in which an entry is applied here, the engine keeps the indexes of the schema after it;
so a write that is accepted under the epoch of an index, or a later one, makes entries in it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.node.log.metadata_state import MetadataState
from lockstep.schema.model import Schema, Table
from lockstep.storage.engine import StorageEngine
from lockstep.storage.index.index_entries import IndexDefinition, definition_of
from lockstep.values.hash_tree import changed


class IndexUpkeep:
    def __init__(self, state: MetadataState, engine: StorageEngine) -> None:
        self._engine = engine
        schema = state.current.schema
        for keyspace in schema.keyspaces:
            for table in keyspace.tables:
                if table.indexes:
                    engine.indexes.define(table.id, definitions(schema, table))
        state.listen(self._applied, parts_only=True)

    def _applied(self, before: ClusterMetadata, after: ClusterMetadata, _entry: object) -> None:
        if before.schema is after.schema:
            return
        for table_id, was, now in changed(before.schema.table_tree, after.schema.table_tree):
            had = was.indexes if was is not None else ()
            has = now.indexes if now is not None else ()
            if had or has:
                found = definitions(after.schema, now) if now is not None else ()
                self._engine.indexes.define(table_id, found)


def definitions(schema: Schema, table: Table) -> Sequence[IndexDefinition]:
    space = schema.by_name[table.keyspace]
    return [definition_of(space, table, index) for index in table.indexes]
