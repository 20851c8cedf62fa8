"""One line of the exclude list, as a value inside the metadata."""

from __future__ import annotations

import msgspec

from lockstep.values.ids import NodeId


class Exclusion(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """`epoch` is that of the entry that excluded the node: it is taken back once it has applied it."""

    node: NodeId
    epoch: int
    reason: str
