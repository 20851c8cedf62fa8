"""Planted bugs of what is known of ranges that a removal by force left without some of their writes."""

from __future__ import annotations

import contextlib
from typing import Any

from lockstep.metadata import degraded as degraded_part
from lockstep.metadata.log import snapshot
from lockstep.metadata.repairs import oldest
from lockstep.sim.plant import Planted
from lockstep.sim.replaced import replaced
from lockstep.topology import force_remove, repairs

_Context = contextlib.AbstractContextManager[None]
_HARM = "lost writes count as mended"


def _snapshot_forgets_degraded() -> _Context:
    """Whoever begins from a snapshot takes every range for whole."""
    original = snapshot.SnapshotDecoder.finish

    def finish(self: Any) -> Any:
        return original(self).changed(degraded_part.DEGRADED.set(()))

    return replaced((snapshot.SnapshotDecoder, "finish", finish))


def _marked_beyond_the_repair() -> _Context:
    """What was repaired in part is taken for repaired as a whole."""

    def without(degraded: Any, replication: Any, repaired: Any) -> Any:
        return tuple(
            one for one in degraded if one.replication != replication or not one.range.intersects(repaired)
        )

    return replaced((force_remove, "without_range", without))


def _marked_by_an_older_repair() -> _Context:
    """A repair from before the removal counts."""

    def mended(cluster: Any, _line: Any, tables: Any, piece: Any) -> bool:
        known = cluster.repairs.by_table
        return bool(tables) and all(oldest(known.get(table, ()), piece) is not None for table in tables)

    return replaced((repairs, "_is_mended", mended))


DEGRADED = (
    Planted("snapshot_forgets_degraded", "nodes disagree", "forced", _snapshot_forgets_degraded),
    Planted("marked_beyond_the_repair", _HARM, "forced", _marked_beyond_the_repair),
    Planted("marked_by_an_older_repair", _HARM, "forced", _marked_by_an_older_repair),
)
