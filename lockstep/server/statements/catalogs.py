"""The catalog that statements are planned against, one for each schema value.

Invariant: as long as the schema is the same object the catalog is too, so identity tells whether a plan is
current. A virtual keyspace gives way to a stored one of its name, once that has all its tables.
"""

from __future__ import annotations

from collections.abc import Callable

from lockstep.cql.compile.catalog import Catalog
from lockstep.schema.model import Schema


def shown(stored: Schema, virtual: Schema) -> tuple[Schema, Schema]:
    """What clients see of both: of each keyspace that is in both, one."""
    for keyspace in virtual.keyspaces:
        made = stored.by_name.get(keyspace.name)
        if made is None:
            continue
        if all(name in made.by_name for name in keyspace.by_name):
            virtual = virtual.without_keyspace(keyspace.name)
        else:
            stored = stored.without_keyspace(keyspace.name)
    return stored, virtual


class Catalogs:
    """`schema` gives the newest schema; `virtual` holds the system tables."""

    def __init__(self, schema: Callable[[], Schema], virtual: Schema) -> None:
        self._schema = schema
        self._virtual = virtual
        self._of = schema()
        self._catalog = Catalog(*shown(self._of, virtual))

    def current(self) -> Catalog:
        schema = self._schema()
        if self._of is not schema:
            self._of = schema
            self._catalog = Catalog(*shown(schema, self._virtual))
        return self._catalog
