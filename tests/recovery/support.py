"""A cluster of three nodes to repair, made of entries."""

from __future__ import annotations

from typing import Final

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.lineage import KINDS as RESET_KINDS
from lockstep.metadata.load_entries import KINDS as LOAD_KINDS
from lockstep.metadata.transformations import Initialize, SetExtension
from tests.metadata.histories import History, founder, registry

REGISTRY: Final = registry(RESET_KINDS, LOAD_KINDS)


def history(nodes: int = 3, more: int = 0) -> History:
    """Of which the first node votes; `more` entries follow the first two."""
    made = History(REGISTRY)
    found = tuple(founder(number, (number * 10,)) for number in range(1, nodes + 1))
    made.submit(Initialize("cluster-1", "test", found, voters=(1,)))  # type: ignore[arg-type]
    made.submit(SetExtension("a", b"1"))
    for number in range(more):
        made.submit(SetExtension(f"more-{number}", b"1"))
    return made


def founded(nodes: int = 3, more: int = 0) -> ClusterMetadata:
    return history(nodes, more).now
