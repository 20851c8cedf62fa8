"""Which replicas that stay must be filled when a replication changes.

Invariant: once the gained replicas and these were filled, each write that was acknowledged at QUORUM or
LOCAL_QUORUM under the old setting is on as many replicas as a quorum of the new one has, so that whatever
follows (a read, a replacement of a dead node, another step) finds it. Where the quorum shrinks together with
the replicas that is so by itself; where a replica goes and the quorum stays, it may have been one of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from lockstep.placement.quorums import DcOf, dc_factors, majority, sure_copies
from lockstep.placement.strategies import NETWORK_TOPOLOGY
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId


class Passage(msgspec.Struct, frozen=True):
    """One range that goes from the replicas `old` under `before` to `new` under `after`."""

    old: Sequence[NodeId]
    new: Sequence[NodeId]
    before: Replication
    after: Replication


def refilled(passage: Passage, dc_of: DcOf) -> tuple[NodeId, ...]:
    """Replicas that stay and must be filled before the new counts hold, in ring order."""
    staying = [node for node in passage.new if node in passage.old]
    gained = [node for node in passage.new if node not in passage.old]
    chosen: dict[NodeId, None] = {}
    counted = dc_factors(passage.after)
    for dc, factor in (*(counted if len(counted) > 1 else ()), ("", passage.after.total)):
        local = [node for node in staying if dc in ("", dc_of(node))]
        full = sum(dc in ("", dc_of(node)) for node in gained)
        needed = sure_copies(len(local) + full, factor)
        if _promised(passage, dc, dc_of) + full >= needed:
            continue
        held = sum(node in chosen for node in local)
        others = [node for node in local if node not in chosen]
        chosen.update(dict.fromkeys(others[: max(0, needed - full - held)]))
    assert chosen.keys().isdisjoint(gained), "who is gained is filled anyway"
    return tuple(node for node in passage.new if node in chosen)


def _promised(passage: Passage, dc: str, dc_of: DcOf) -> int:
    """On how many staying replicas (of the data centre) an acknowledged write is for sure."""
    old = [node for node in passage.old if dc in ("", dc_of(node))]
    lost = sum(node not in passage.new for node in old)
    counted = dict(dc_factors(passage.before))
    if not dc:
        after = dict(dc_factors(passage.after))
        if len(counted) > 1 and any(name not in after for name in counted):
            # What LOCAL_QUORUM promised there is nowhere else for sure.
            return 0
        return sure_copies(len(old), passage.before.total) - lost
    factor = counted.get(dc, 0)
    if passage.before.strategy != NETWORK_TOPOLOGY and len(old) >= majority(passage.before.total):
        factor = passage.before.total
    # Without a factor nobody was promised anything here.
    return sure_copies(len(old), factor) - lost if factor else len(old)
