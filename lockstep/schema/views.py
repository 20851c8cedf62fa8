"""What a view is to those who read it and to those who keep it up to date.

Invariant: all of it follows from the schema alone.
"""

from __future__ import annotations

from lockstep.schema.model import Schema, Table


def views_of(schema: Schema, base: Table) -> tuple[Table, ...]:
    """The views of a table, by name; costs as many as there are."""
    found = (schema.table(base.keyspace, name) for name in base.views)
    return tuple(view for view in found if view is not None)


def unmarking(table: Table) -> tuple[int, ...]:
    """Ids of the columns whose cells make no row exist, ascending: those that were dropped, and all of a view
    whose rows have a marker."""
    ids = list(table.gone)
    if table.view is not None and table.view.added:
        ids += [column.id for column in table.regular]
    return tuple(sorted(ids))
