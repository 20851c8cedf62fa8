"""Samples of damaged table files, and of what a node lacks since it lost some."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.server.samples import Sample

if TYPE_CHECKING:
    from lockstep.node.node import Node


def damage_samples(node: Node) -> Iterator[Sample]:
    damaged = node.store.damaged
    yield Sample("lockstep_storage_damaged_files", len(damaged.known))
    yield Sample("lockstep_storage_damage_met_total", damaged.count)
    yield Sample("lockstep_storage_lacking_stretches", len(node.lacking.current))
