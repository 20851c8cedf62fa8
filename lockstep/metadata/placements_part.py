"""The placements as a part of the metadata."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lockstep.metadata.part import Item, Part, Parts, collected
from lockstep.metadata.schema_part import SCHEMA
from lockstep.placement.placements import NO_PLACEMENTS, PlacedRange, Placements, ring_of_ranges
from lockstep.schema.model import Replication
from lockstep.values.hash_tree import blake

#: Ranges of one item: their encoding blocks the loop for well below 1 ms.
_BUNDLED: Final = 512
_RING, _RANGES = 0, 1


def _items(placements: Placements) -> Iterator[Item]:
    for ring in placements.rings:
        yield _RING, ring.replication
        for at in range(0, len(ring.ranges), _BUNDLED):
            yield _RANGES, ring.ranges[at : at + _BUNDLED]


def _of_items(items: Sequence[Item]) -> Placements:
    rings: list[tuple[Replication, list[PlacedRange]]] = []
    for kind, value in items:
        if kind == _RING:
            rings.append((value, []))
        else:
            assert rings, "ranges belong to a ring"
            rings[-1][1].extend(value)
    return Placements(tuple(ring_of_ranges(replication, ranges) for replication, ranges in rings))


def _validate(now: Parts, before: Parts | None) -> None:
    """Every keyspace's replication has its ring; rings that did not change are not walked."""
    placements, schema = now[PLACEMENTS], now[SCHEMA]
    if before is None:
        placements.validate()
    elif now.is_same(before, PLACEMENTS) and before[SCHEMA].replicates_as(schema):
        return
    else:
        known = before[PLACEMENTS].by_replication
        for ring in placements.rings:
            if known.get(ring.replication) is not ring:
                ring.validate()
    assert tuple(ring.replication for ring in placements.rings) == schema.replications


PLACEMENTS: Final[Part[Placements]] = Part(
    name="placements",
    number=4,
    empty=NO_PLACEMENTS,
    items=_items,
    kinds=(Replication, tuple[PlacedRange, ...]),
    builder=collected(_of_items),
    digest=lambda placements: blake(b"".join([ring.digest for ring in placements.rings])),
    validate=_validate,
    needs=(SCHEMA,),
    is_nested=True,
)
