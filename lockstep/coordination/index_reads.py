"""Reads by a secondary index: what replicas found made what the cluster holds.

Each replica answers rows that its own state says to match. A row that matches in truth, by a cell that was
acknowledged at a level that meets this read's, does so on some replica that was asked: the one that holds
the newest write of the cell. So the answers together name every row asked for. A row that is not in all of
them may be outdated where it is: these answers say nothing of what the other replicas know of the row.

Invariant: what is returned of a place is what all asked replicas agree upon, or what a plain read of the
place at the same level returns.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from lockstep.replica.merging import earlier
from lockstep.values.rows import Partition, Place, Position, ReadCommand, ReadResult, Slice

Found = tuple[tuple[Partition, ...], Position | None]


def agreed(results: Sequence[ReadResult]) -> Found | None:
    """What all answers say, and where it ends; None when they differ."""
    first = results[0]
    if any(result != first for result in results[1:]):
        return None
    return first.partitions, first.end if first.more else None


def places_named(command: ReadCommand, results: Sequence[ReadResult]) -> tuple[ReadCommand, Position | None]:
    """A command that reads the places which any answer names, up to where all of them looked; and there."""
    end: Position | None = None
    for result in results:
        if result.more:
            end = earlier(end, result.end, reverse=False)
    assert command.index is not None
    named: dict[tuple[int, bytes], dict[bytes, None]] = {}
    for result in results:
        for partition in result.partitions:
            if end is not None and (partition.token, partition.key) > (end.token, end.key):
                continue
            rows = named.setdefault((partition.token, partition.key), {})
            rows.update(dict.fromkeys(row.clustering for row in partition.rows))
    places = [
        Place(token, key, command.slices if command.index.whole else _exactly(sorted(named[token, key])))
        for token, key in sorted(named)
    ]
    return replace(command, index=None, places=tuple(places), row_limit=0, partition_row_limit=0), end


def _exactly(rows: Sequence[bytes]) -> tuple[Slice, ...]:
    # Above a clustering nothing comes before itself and a zero byte.
    return tuple(Slice(clustering, clustering + b"\x00") for clustering in rows)


def ended(result: ReadResult, command: ReadCommand, end: Position | None) -> ReadResult:
    """An answer to a command of places that is known only up to `end`, where that lies before its own."""
    if end is not None and end.token > command.right:
        end = None
    found = earlier(end, result.end if result.more else None, reverse=False)
    return result if found is None else ReadResult(result.partitions, True, found)
