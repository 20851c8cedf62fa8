"""The schema as a part of the metadata."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lockstep.metadata.log.comparison import Difference, compare, compare_things, sides
from lockstep.metadata.part import Item, Part
from lockstep.schema.model import Schema, SchemaBuilder, SchemaImage, Table
from lockstep.values.hash_tree import changed

#: Tables of one item: some 20 KiB.
_BUNDLED_TABLES: Final = 32


class _Builder:
    """A piece costs what it holds, so that a large schema is never held twice."""

    def __init__(self) -> None:
        self._schema = SchemaBuilder()
        self._has_pieces = False

    def add(self, kind: int, value: Any) -> None:
        self._has_pieces = True
        self._schema.add(value)

    def finish(self) -> Schema:
        assert self._has_pieces, "the schema is missing"
        return self._schema.schema()


def _items(schema: Schema) -> Iterator[Item]:
    for image in schema.image_pieces(_BUNDLED_TABLES):
        yield 0, image


def _compare(path: str, before: Schema, after: Schema) -> Iterator[Difference]:
    """Keyspaces first, without their tables, then tables by keyspace and id; costs what changed."""
    heads = [
        (old.head if old is not None else None, new.head if new is not None else None)
        for _, old, new in changed(before.keyspace_tree, after.keyspace_tree)
    ]
    heads.sort(key=lambda pair: next(head.name for head in pair if head is not None))
    yield from compare_things(f"{path}.keyspaces", *sides(heads))
    tables: dict[str, list[tuple[Table | None, Table | None]]] = {}
    for _, was, now in changed(before.table_tree, after.table_tree):
        for keyspace in sorted({table.keyspace for table in (was, now) if table is not None}):
            tables.setdefault(keyspace, []).append((was, now))
    for keyspace in sorted(tables):
        yield from compare_things(f"{path}.keyspaces[{keyspace}].tables", *sides(tables[keyspace]))
    yield from compare(f"{path}.next_table_id", before.next_table_id, after.next_table_id)


SCHEMA: Final[Part[Schema]] = Part(
    name="schema",
    number=3,
    empty=Schema(),
    items=_items,
    kinds=(SchemaImage,),
    builder=_Builder,
    digest=lambda schema: schema.digest,
    compare=_compare,
)
