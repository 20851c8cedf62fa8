"""The placements as a part of the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rpds import HashTrieMap

from lockstep.metadata.log.comparison import Difference, compare, compare_things
from lockstep.metadata.part import Item, Part, Parts, collected
from lockstep.metadata.schema_part import SCHEMA
from lockstep.placement.placements import NO_PLACEMENTS, PlacedRange, Placements, ring_of_ranges
from lockstep.schema.model import Replication

#: Ranges of one item: their encoding blocks the loop for well below 1 ms.
_BUNDLED: Final = 512
_RING, _RANGES, _NEXT = 0, 1, 2


def _items(placements: Placements) -> Iterator[Item]:
    for ring in placements.rings:
        yield _RING, (ring.id, ring.replication)
        for at in range(0, len(ring.ranges), _BUNDLED):
            yield _RANGES, ring.ranges[at : at + _BUNDLED]
    yield _NEXT, placements.next_id


def _of_items(items: Sequence[Item]) -> Placements:
    rings: list[tuple[int, Replication, list[PlacedRange]]] = []
    next_id = 0
    for kind, value in items:
        assert not next_id, "the next id comes last"
        if kind == _RING:
            rings.append((*value, []))
        elif kind == _RANGES:
            assert rings, "ranges belong to a ring"
            rings[-1][2].extend(value)
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
    used = {keyspace.group: keyspace.replication for keyspace in schema.keyspaces}
    assert used.keys() == set(placements.by_id), "exactly the groups in use are there"
    for keyspace in schema.keyspaces:
        counted = placements.ring(keyspace.group).replication
        assert counted == keyspace.replication, f"the group of keyspace {keyspace.name} has its replication"


def _compare(path: str, before: Placements, after: Placements) -> Iterator[Difference]:
    yield from compare_things(f"{path}.rings", before.rings, after.rings)
    yield from compare(f"{path}.next_id", before.next_id, after.next_id)


PLACEMENTS: Final[Part[Placements]] = Part(
    name="placements",
    number=4,
    empty=NO_PLACEMENTS,
    items=_items,
    kinds=(tuple[int, Replication], tuple[PlacedRange, ...], int),
    builder=collected(_of_items),
    digest=lambda placements: placements.digest,
    validate=_validate,
    needs=(SCHEMA,),
    is_nested=True,
    compare=_compare,
)
