"""Digests of what each replica of a snapshot holds, made by its readers: for audits.

Invariant: a replica is asked for itself alone, and what it tells is of the content that it fixed. Of ranges
that it does not tell of, for whatever reason, nothing is made up: they are missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from lockstep.scans.content_reading import DIGESTS_SCHEMA
from lockstep.scans.messages import BatchHead, DigestsWanted, RowsWanted
from lockstep.spark.options import Options
from lockstep.spark.snapshot_reading import answer_of
from lockstep.spark.snapshots import Locations, Snapshot, close_snapshot, open_snapshot
from lockstep.values.errors import InvalidRequest, LockstepError
from lockstep.values.ids import Consistency

#: A range of tokens with the number of its parts, and digest and rows of each.
Wanted: TypeAlias = tuple[int, int, int]
Told: TypeAlias = list[tuple[str, int]]
#: Digests are small; an answer is not to end before its last range.
_ANSWER_BYTES: Final = 1 << 40
#: Replicas that one task asks at a time.
_ASKED_AT_ONCE_MAX: Final = 16


class FixedReplicas(msgspec.Struct, frozen=True):
    """A table's content at its replicas as of about one moment. Travels to tasks."""

    options: Options
    snapshot: Snapshot

    def digests(self, asked: dict[int, list[Wanted]], now_s: int) -> dict[tuple[int, Wanted], Told]:
        """By node and range, of those that answer. All nodes work at the same time."""
        locations = Locations(self.options, self.snapshot)
        places: dict[int, tuple[str, int]] = {}
        for node, ranges in asked.items():
            try:
                if ranges and self._has(node):
                    places[node] = locations.of(node)
            except LockstepError:
                continue
        found: dict[tuple[int, Wanted], Told] = {}
        if places:
            with ThreadPoolExecutor(min(len(places), _ASKED_AT_ONCE_MAX)) as threads:
                for node, told in zip(
                    places,
                    threads.map(lambda node: self._of(places[node], asked[node], now_s), places),
                    strict=True,
                ):
                    found |= {(node, one): digests for one, digests in zip(asked[node], told, strict=False)}
        return found

    def _has(self, node: int) -> bool:
        return any(node in part.nodes for part in self.snapshot.ranges)

    def _of(self, place: tuple[str, int], ranges: Sequence[Wanted], now_s: int) -> list[Told]:
        """Of the first of the ranges, as far as the node told before it failed."""
        told: list[Told] = []
        wanted = RowsWanted(
            self.snapshot.session,
            self.snapshot.secret,
            (),
            _ANSWER_BYTES,
            digests=DigestsWanted(tuple(ranges), now_s),
        )
        try:
            for head, body in answer_of(self.options, place, wanted):
                if isinstance(head, BatchHead) and head.size:
                    batch = pa.ipc.read_record_batch(pa.py_buffer(body), DIGESTS_SCHEMA)
                    digests = [one.hex() for one in batch.column(0).to_pylist()]
                    told.append(list(zip(digests, batch.column(1).to_pylist(), strict=True)))
        except LockstepError:
            return told
        return told

    def close(self) -> None:
        close_snapshot(self.options, self.snapshot)


def fix_replicas(options: Options) -> FixedReplicas | None:
    """None where nodes fix no content of the table, as of counters."""
    options = msgspec.structs.replace(options, consistency=Consistency.ONE)
    try:
        return FixedReplicas(options, open_snapshot(options))
    except InvalidRequest:
        return None
