"""What a schema holds besides tables and types, as values: indexes, views, functions and aggregates.

Invariant: columns are named by their ids, other objects by name and signature; whatever is listed is sorted.
"""

from __future__ import annotations

import msgspec


class Index(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A secondary index of one table. `id` is its storage prefix, given once by the log from the same row of
    numbers as tables; `column` is a column id; `target` is values, keys, entries or full; `epoch` made it.
    `class_` is what USING said ("" for none); `options` are sorted."""

    name: str
    id: int
    column: int
    target: str = "values"
    class_: str = ""
    options: tuple[tuple[str, str], ...] = ()
    epoch: int = 0


class View(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What makes a table a materialized view. `base` is the name of the base table in the same keyspace,
    `where` the WHERE clause as CQL text, `all_columns` whether `*` was selected. `columns` are (column id of
    the view, column id of the base table), sorted; the two are the same. `added` is the id of the column of
    its key that is not in the key of the base, 0 where there is none."""

    base: str
    where: str
    all_columns: bool
    columns: tuple[tuple[int, int], ...]
    added: int = 0


class Function(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A user-defined function; a function is known by its name and `argument_types` (canonical texts)."""

    name: str
    argument_types: tuple[str, ...]
    argument_names: tuple[str, ...]
    returns: str
    language: str
    body: str
    called_on_null: bool = False
    epoch: int = 0

    @property
    def signature(self) -> tuple[str, tuple[str, ...]]:
        return self.name, self.argument_types


class Aggregate(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A user-defined aggregate. `initial` is the CQL text of the initial state, None for null."""

    name: str
    argument_types: tuple[str, ...]
    state_function: str
    state_type: str
    final_function: str | None = None
    initial: str | None = None
    epoch: int = 0

    @property
    def signature(self) -> tuple[str, tuple[str, ...]]:
        return self.name, self.argument_types
