"""The catalog that statements are planned against, one for each schema value.

Invariant: as long as the schema is the same object the catalog is too, so identity tells whether a plan is
current.
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
        self._catalog = Catalog(schema(), virtual)

    def current(self) -> Catalog:
        schema = self._schema()
        if self._catalog.schema is not schema:
            self._catalog = Catalog(schema, self._virtual)
        return self._catalog
