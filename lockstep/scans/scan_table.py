"""What a reader of many rows knows of a table: its definition at one epoch, with the types of its columns."""

from __future__ import annotations

from functools import cached_property

import msgspec

from lockstep.schema.model import Column, Keyspace, Replication, Table, UserType
from lockstep.schema.types import CqlType
from lockstep.schema.user_types import type_in
from lockstep.values.errors import ConfigurationError


class ScanTable(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`types` are the user-defined types of the table's keyspace."""

    table: Table
    types: tuple[UserType, ...] = ()

    @cached_property
    def kinds(self) -> dict[str, CqlType]:
        """Types of all columns by their names."""
        space = Keyspace(self.table.keyspace, Replication("", ()), types=self.types)
        return {column.name: type_in(space, column.type) for column in self.table.columns}

    @property
    def in_order(self) -> tuple[Column, ...]:
        """As `SELECT *` has them: partition key, clustering, then the others by name."""
        table = self.table
        others = sorted((*table.static, *table.regular), key=lambda column: column.name)
        return (*table.partition_key, *table.clustering, *others)

    def column(self, name: str) -> Column:
        """ConfigurationError when there is none of that name."""
        found = self.table.by_name.get(name)
        if found is None:
            raise ConfigurationError(f"table {self.table.keyspace}.{self.table.name} has no column {name}")
        return found
