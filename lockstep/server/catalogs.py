"""The catalog that statements are planned against, one for each schema value.

Invariant: as long as the schema is the same object the catalog is too, so identity tells whether a plan is
current. A virtual keyspace gives way to a stored one of its name.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.cql.catalog import Catalog
from lockstep.schema.model import Schema


class Catalogs:
    """`schema` gives the newest schema; `virtual` holds the system tables."""

    def __init__(self, schema: Callable[[], Schema], virtual: Schema) -> None:
        self._schema = schema
        self._virtual = virtual
        self._catalog = self._of(schema())

    def current(self) -> Catalog:
        schema = self._schema()
        if self._catalog.schema is not schema:
            self._catalog = self._of(schema)
        return self._catalog

    def _of(self, schema: Schema) -> Catalog:
        virtual = self._virtual
        for keyspace in virtual.keyspaces:
            if keyspace.name in schema.by_name:
                virtual = virtual.without_keyspace(keyspace.name)
        return Catalog(schema, virtual)
