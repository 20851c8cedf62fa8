"""The schema and the placements as parts of the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from rpds import HashTrieMap

from lockstep.metadata.log.comparison import Difference, compare, compare_things, sides
from lockstep.metadata.part import Item, Part, Parts, collected
from lockstep.placement.placements import (
    NO_PLACEMENTS,
    PlacedRange,
    Placements,
    ReplicaGroup,
    ring_of_ranges,
    shared,
)
from lockstep.schema.model import Replication, Schema, SchemaBuilder, SchemaImage, Table
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


#: Ranges of one item: their encoding blocks the loop for well below 1 ms.
_BUNDLED: Final = 512
_RING, _RANGES, _NEXT = 0, 1, 2


def _placement_items(placements: Placements) -> Iterator[Item]:
    for ring in placements.rings:
        yield _RING, (ring.id, ring.replication)
        for at in range(0, len(ring.ranges), _BUNDLED):
            yield _RANGES, ring.ranges[at : at + _BUNDLED]
    yield _NEXT, placements.next_id


def _of_items(items: Sequence[Item]) -> Placements:
    rings: list[tuple[int, Replication, list[PlacedRange]]] = []
    groups: dict[ReplicaGroup, ReplicaGroup] = {}
    next_id = 0
    for kind, value in items:
        assert not next_id, "the next id comes last"
        if kind == _RING:
            rings.append((*value, []))
        elif kind == _RANGES:
            assert rings, "ranges belong to a ring"
            rings[-1][2].extend(shared(value, groups))
        else:
            next_id = value
    return Placements(
        HashTrieMap({one[0]: ring_of_ranges(*one) for one in rings}), next_id or NO_PLACEMENTS.next_id
    )


def _validate(now: Parts, before: Parts | None) -> None:
    """Every keyspace has a placement group with its replication, and no group is without one; rings that did
    not change are not walked."""
    placements, schema = now[PLACEMENTS], now[SCHEMA]
    if before is None:
        placements.validate()
    elif now.is_same(before, PLACEMENTS) and before[SCHEMA].replicates_as(schema):
        return
    else:
        known = before[PLACEMENTS].by_id
        for ring in placements.rings:
            if known.get(ring.id) is not ring:
                ring.validate()
    used = {group: keyspace for keyspace in schema.keyspaces for group in keyspace.groups}
    assert used.keys() == set(placements.by_id), "exactly the groups in use are there"
    for keyspace in schema.keyspaces:
        for group in keyspace.groups:
            counted = placements.ring(group).replication
            assert counted == keyspace.replication, f"the groups of {keyspace.name} have its replication"


def _placement_compare(path: str, before: Placements, after: Placements) -> Iterator[Difference]:
    yield from compare_things(f"{path}.rings", before.rings, after.rings)
    yield from compare(f"{path}.next_id", before.next_id, after.next_id)


PLACEMENTS: Final[Part[Placements]] = Part(
    name="placements",
    number=4,
    empty=NO_PLACEMENTS,
    items=_placement_items,
    kinds=(tuple[int, Replication], tuple[PlacedRange, ...], int),
    builder=collected(_of_items),
    digest=lambda placements: placements.digest,
    validate=_validate,
    needs=(SCHEMA,),
    is_nested=True,
    compare=_placement_compare,
)
