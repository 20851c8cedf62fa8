"""Which replicas of a range keep its data, and which are witnesses: they journal, and keep no tables.

Invariant: a pure function of the setting and of the replicas in ring order, so all nodes agree without being
told. In each data centre the first ones keep the data, as many as the factor has beside its witnesses; those
behind them are witnesses. So with fewer nodes than replicas it is a witness that is missing, and a node that
joins in front turns the last full replica into a witness, never the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId


def full_of(
    replication: Replication, replicas: Sequence[NodeId], dc_of: Callable[[NodeId], str]
) -> tuple[NodeId, ...]:
    """Those that keep the data of a range, in ring order; all of them under a setting without witnesses."""
    witnesses = replication.witnesses
    if not witnesses:
        return tuple(replicas)
    left = {dc: factor - witnesses.get(dc, 0) for dc, factor in replication.factors}
    found: list[NodeId] = []
    for node in replicas:
        dc = dc_of(node)
        if left.get(dc, 0) > 0:
            left[dc] -= 1
            found.append(node)
    assert all(count >= 0 for count in left.values()), "no more keep data than the setting says"
    return tuple(found)
