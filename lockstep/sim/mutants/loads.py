"""Planted bugs of bulk loads: what is counted, when files are taken in, and what time their rows have."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.load_entries import BeginLoad
from lockstep.node.work import bulk_loads
from lockstep.node.work.bulk_loads import BulkLoads, Placed
from lockstep.sim.plant import Planted, replaced
from lockstep.storage.index.indexes import Indexes
from lockstep.streaming.load_target import LoadTarget

_Context = contextlib.AbstractContextManager[None]
_placed_by = bulk_loads.placed_by
_begin = BeginLoad.apply
_FUTURE_US = 1 << 60


def _not_counted() -> _Context:
    """A load is committed when one replica holds its files, and done when it was committed."""

    def placed_by(*args: Any) -> Placed:
        placed = _placed_by(*args)
        first = min(placed.by_node, default=None)
        by_node = {node: files for node, files in placed.by_node.items() if node == first}
        return msgspec.structs.replace(placed, by_node=by_node)

    return replaced((bulk_loads, "placed_by", placed_by), (Placed, "lacking", lambda self, held: None))


def _tracked_by_quorum() -> _Context:
    """A load into a tracked table is committed when as many replicas hold its files as its level needs."""
    return replaced((BulkLoads, "_staged_at", lambda self, table, level: level))


def _from_the_future() -> _Context:
    """Rows of loads have a time that nothing is newer than."""

    def apply(self: BeginLoad, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        return _begin(msgspec.structs.replace(self, timestamp_us=_FUTURE_US), cluster, epoch)

    return replaced((BeginLoad, "apply", apply))


def _not_taken_in_at_once() -> _Context:
    """What was committed is taken in when a node starts, and not before."""
    return replaced((LoadTarget, "applied", lambda self, before, after, entry: None))


def _not_indexed() -> _Context:
    """Rows come without entries in indexes, and nothing says so."""
    return replaced((Indexes, "lack", lambda self, table_id, tokens: []))


LOADS = (
    Planted("load_not_counted", "a load is done that replicas do not hold", "loads", _not_counted),
    Planted("load_tracked_by_quorum", "a load is read without its rows", "tracked_loads", _tracked_by_quorum),
    Planted("load_hides_newer", "what is newer than a load is not seen", "loads", _from_the_future),
    Planted("load_not_taken_in", "a committed load is nowhere", "loads", _not_taken_in_at_once),
    Planted("load_not_indexed", "an index does not find what was loaded", "loads", _not_indexed),
)
