"""The entry that makes streams of changes fit the ring again, after moves, departures and cancelled joins.

Invariant: it makes a generation for the ring as it is, and nobody's ranges change; it is published as it is
made, and counts once the news of it had twice the time that they may take. Nothing is made where the newest
generation fits, and none while a join has one that is not published.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lockstep.metadata.cdc import GENERATIONS, Generation, generation_id, packed
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.metadata.log.registry import EntryKind
from lockstep.metadata.transformations import refuse_before_initialize
from lockstep.topology.transformations import AHEAD_MS, kept_generations
from lockstep.values.errors import Rejected
from lockstep.values.limits import CDC_GENERATIONS_KEPT_MAX


class RepairStreams(msgspec.Struct, frozen=True, array_like=True):
    """`at_ms` is the wall clock of who asks."""

    at_ms: int

    def apply(self, cluster: ClusterMetadata, epoch: int) -> ClusterMetadata:
        refuse_before_initialize(cluster)
        tokens = packed(cluster.directory.circle.tokens)
        kept = kept_generations(cluster, self.at_ms)
        if any(not one.is_published for one in kept):
            raise Rejected(
                "a node that joins makes streams for the ring as it will be",
                hint="wait for its end (`lockstep topology requests`)",
            )
        if kept and kept[-1].tokens == tokens:
            raise Rejected("the streams fit the ring already", hint="see system_views.cdc_timestamps")
        if len(kept) >= CDC_GENERATIONS_KEPT_MAX:
            raise Rejected(
                f"{len(kept)} generations of streams are kept, and all of them count now, or will",
                hint="wait until the newest of them counts",
            )
        timestamp_ms = max(self.at_ms + AHEAD_MS, kept[-1].timestamp_ms + 1 if kept else 0)
        id_ = generation_id(cluster.identity.cluster_id, 0, epoch, timestamp_ms)
        made = Generation(timestamp_ms, id_, 0, epoch, tokens, epoch)
        assert made.is_published and made.count, "it counts, and has streams"
        changed: ClusterMetadata = cluster.changed(GENERATIONS.set((*kept, made)))
        return changed


KINDS: Final[Mapping[int, type[Any]]] = {EntryKind.REPAIR_STREAMS: RepairStreams}
