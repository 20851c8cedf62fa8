"""Samples of clocks: of this node's, and of what it knows of the others'.

Invariant: what is shown is what conditions and warnings go by.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from lockstep.server.samples import Sample

if TYPE_CHECKING:
    from lockstep.node.node import Node


def clock_samples(node: Node) -> Iterator[Sample]:
    yield Sample("lockstep_clock_skew_seconds", node.clocks.skew().offset_us / 1e6)
    yield Sample("lockstep_clock_stamps_ahead_seconds", node.stamps.ahead_us / 1e6)
    for other, offset in node.clocks.offsets().items():
        labels = (("node", str(other)),)
        yield Sample("lockstep_clock_offset_seconds", offset.offset_us / 1e6, labels)
        yield Sample("lockstep_clock_offset_error_seconds", offset.error_us / 1e6, labels)
