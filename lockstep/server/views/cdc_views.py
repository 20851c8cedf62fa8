"""Views of the generations and streams of change data capture.

Invariant: computed from one metadata value when read. There is no log of changes yet: they say when which
streams would take them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from lockstep.metadata.cdc import Generation, current
from lockstep.metadata.cluster import ClusterMetadata
from lockstep.schema.types import parse_uuid
from lockstep.server.views.keyed_rows import EVERYTHING, Between, KeyedRows
from lockstep.server.views.virtual import VirtualTable, define
from lockstep.server.views.virtual_rows import VirtualRow

#: The one partition of system.cdc_generations_v3.
KEY: Final = "cdc_generations"
#: The one partition of system_views.cdc_timestamps.
TIMESTAMPS_KEY: Final = "timestamps"


def pair(generation: Generation) -> tuple[int, bytes]:
    """As system.topology shows it: (timestamp, id)."""
    return generation.timestamp_ms, parse_uuid(generation.id)


class CdcTables:
    """`now_us` is this node's wall clock: it says which generation is the present one."""

    def __init__(self, cluster: Callable[[], ClusterMetadata], now_us: Callable[[], int]) -> None:
        self._cluster = cluster
        self._now_us = now_us

    def tables(self) -> list[VirtualTable]:
        return [
            define(
                "system",
                "cdc_generations_v3",
                "key text; id timeuuid; range_end bigint; streams frozen<set<blob>>; ignore_msb tinyint",
                ("key",),
                ("id", "range_end"),
                self._generations,
                comment="Every generation of change data capture, also those that are not published yet",
            ),
            define(
                "system_views",
                "cdc_timestamps",
                "key text; time timestamp; id timeuuid; expired timestamp; is_current boolean; streams int; "
                "published_epoch bigint",
                ("key",),
                ("time",),
                self._times,
                comment="Published generations of change data capture, and until when they take changes",
            ),
            define(
                "system_views",
                "cdc_streams",
                "time timestamp; range_end bigint; streams frozen<set<blob>>",
                ("time",),
                ("range_end",),
                KeyedRows(self._streams, self._streams_of),
                comment="The streams of published generations, by the ends of their ranges",
            ),
        ]

    def _generations(self) -> Iterator[VirtualRow]:
        for generation in self._cluster().generations:
            id_ = parse_uuid(generation.id)
            for token, stream in generation.streams():
                yield {"key": KEY, "id": id_, "range_end": token, "streams": [stream], "ignore_msb": 0}

    def _published(self) -> list[Generation]:
        return [one for one in self._cluster().generations if one.is_published]

    def _times(self) -> Iterator[VirtualRow]:
        known = self._published()
        present = current(known, self._now_us())
        for at, generation in enumerate(known):
            yield {
                "key": TIMESTAMPS_KEY,
                "time": generation.timestamp_ms,
                "id": parse_uuid(generation.id),
                "expired": known[at + 1].timestamp_ms if at + 1 < len(known) else None,
                "is_current": generation is present,
                "streams": generation.count,
                "published_epoch": generation.published_epoch,
            }

    def _streams(self) -> Iterator[VirtualRow]:
        for generation in self._published():
            yield from self._streams_of(generation.timestamp_ms, EVERYTHING)

    def _streams_of(self, time_ms: Any, wanted: Between) -> Iterator[VirtualRow]:
        for generation in self._published():
            if generation.timestamp_ms == time_ms:
                for token, stream in generation.streams(wanted.low, wanted.high):
                    yield {"time": generation.timestamp_ms, "range_end": token, "streams": [stream]}
