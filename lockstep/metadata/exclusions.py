"""One line of the exclude list, as a value inside the metadata."""

from __future__ import annotations

from typing import Final

import msgspec

from lockstep.metadata.part import Part, Parts, tuple_part
from lockstep.values.ids import NodeId


class Exclusion(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`epoch` is that of the entry that excluded the node: it is taken back once it has applied it."""

    node: NodeId
    epoch: int
    reason: str


def _validate(now: Parts, before: Parts | None) -> None:
    nodes = [exclusion.node for exclusion in now[EXCLUDED]]
    assert nodes == sorted(set(nodes)), "the exclude list is sorted by node"


#: Nodes that are shut out, by id.
EXCLUDED: Final[Part[tuple[Exclusion, ...]]] = tuple_part("excluded", 9, Exclusion, _validate)
