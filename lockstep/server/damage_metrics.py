"""Samples of damaged table files, and of what a node lacks since it lost some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.server.samples import Sample

if TYPE_CHECKING:
    from lockstep.node.node import Node


def damage_samples(node: Node) -> Iterator[Sample]:
    damaged = node.store.damaged
    yield Sample(
        "lockstep_storage_damaged_files",
        "Table files found damaged since the start",
        "gauge",
        len(damaged.known),
    )
    yield Sample(
        "lockstep_storage_damage_met_total",
        "Reads, merges, streams and checks that met a damaged table file",
        "counter",
        damaged.count,
    )
    yield Sample(
        "lockstep_storage_lacking_stretches",
        "Stretches of the store that were lost and are not filled again",
        "gauge",
        len(node.lacking.current),
    )
