"""Several replicas' answers to one read command, made one, and digests in their place: replicas that are
asked only whether they agree say so in a few bytes.

Invariant: nothing is said about rows behind the earliest place where a limited answer stopped, for there one
source's silence is no knowledge; up to that place the result is what one replica with all the data of all
sources would answer. Two digests are equal exactly when the answers are (but for chance, one in 2^128): an
answer is canonical, so equal content gives equal bytes however its fragments were written and merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mmh3

from lockstep.replica.messages import Known, ReadReply, ReadRequest
from lockstep.storage.rows.difference import difference
from lockstep.storage.rows.reconcile import is_empty, merge_partitions
from lockstep.storage.rows.visible import weigh
from lockstep.values.codec import encode
from lockstep.values.limits import MUTATION_BYTES_MAX, REPAIR_ROWS_MAX
from lockstep.values.rows import Partition, Position, ReadResult, Row

Place = tuple[int, bytes]
#: In the place of a digest: which mutations are held is told, and not what they make.
SUMMARY: Final = b"summary"
#: Of the keys in one part; the rows themselves are pages of some replicas.
_KEYS_BYTES_MAX: Final = MUTATION_BYTES_MAX // 8


def earlier(left: Position | None, right: Position | None, reverse: bool) -> Position | None:
    """The one reached first in reading order; None is the end of everything asked."""
    if left is None or right is None:
        return right if left is None else left
    here, there = (left.token, left.key), (right.token, right.key)
    if here != there:
        return left if here < there else right
    if left.clustering is None or right.clustering is None:
        return right if left.clustering is None else left
    if reverse:
        return left if left.clustering >= right.clustering else right
    return left if left.clustering <= right.clustering else right


def covered(row: Row, end: Position, reverse: bool) -> bool:
    """Whether a row of the partition in which reading stopped lies at or before the stop."""
    if end.clustering is None:
        return True
    return row.clustering >= end.clustering if reverse else row.clustering <= end.clustering


def merge_answers(
    results: Sequence[ReadResult], reverse: bool
) -> tuple[tuple[Partition, ...], Position | None]:
    """(canonical partitions in (token, key) order with tombstones, where knowledge ends or None)."""
    end: Position | None = None
    by_place: dict[Place, list[Partition]] = {}
    for result in results:
        if result.more:
            assert result.end is not None, "an answer that stopped says where"
            end = earlier(end, result.end, reverse)
        for partition in result.partitions:
            by_place.setdefault((partition.token, partition.key), []).append(partition)
    merged: list[Partition] = []
    for place in sorted(by_place):
        if end is not None and place > (end.token, end.key):
            break
        partition = merge_partitions(by_place[place], reverse=reverse)
        if end is not None and place == (end.token, end.key):
            partition = _cut(partition, end, reverse)
        if not is_empty(partition):
            merged.append(partition)
    return tuple(merged), end


def _cut(partition: Partition, end: Position, reverse: bool) -> Partition:
    rows = tuple(row for row in partition.rows if covered(row, end, reverse))
    if len(rows) == len(partition.rows):
        return partition
    return Partition(
        partition.token,
        partition.key,
        partition.deletion,
        partition.range_deletions,
        partition.static,
        rows,
    )


def pieces(partition: Partition) -> list[Partition]:
    """The partition in parts of at most REPAIR_ROWS_MAX rows, fewer where its key is large, for it is stored
    with each; the first holds everything but rows."""
    rows = partition.rows
    count = min(REPAIR_ROWS_MAX, _KEYS_BYTES_MAX // (2 * len(partition.key) + 1))
    first = Partition(
        partition.token,
        partition.key,
        partition.deletion,
        partition.range_deletions,
        partition.static,
        rows[:count],
    )
    rest = range(count, len(rows), count)
    return [
        first,
        *(Partition(partition.token, partition.key, rows=rows[start : start + count]) for start in rest),
    ]


def lacking(
    merged: Sequence[Partition], results: Sequence[ReadResult]
) -> list[tuple[Partition, list[Partition | None]]]:
    """For each merged part that some source lacks: the part, and per source what it lacks of it."""
    known = [{(p.token, p.key): p for p in result.partitions} for result in results]
    found: list[tuple[Partition, list[Partition | None]]] = []
    for partition in merged:
        place = (partition.token, partition.key)
        for part in pieces(partition):
            missing = [difference(part, source.get(place)) for source in known]
            if any(one is not None for one in missing):
                found.append((part, missing))
    return found


_NOTHING = ReadResult(())


def digest_of(result: ReadResult) -> bytes:
    """16 bytes. Not a cryptographic hash: who could forge one may write what is compared as well."""
    return mmh3.hash_bytes(encode(result))


def reply_to(request: ReadRequest, accepted_epoch: int, result: ReadResult) -> ReadReply:
    """The answer itself, or its digest where the request wants that of an answer so large."""
    told = result.told
    if told is not None:
        size_bytes = weigh(result.partitions, request.command.now_s)[1] if result.partitions else 0
        if 0 < request.digest_over_bytes < len(told.packed) + size_bytes:
            return ReadReply(accepted_epoch, _NOTHING, digest_of(result), told.dead)
        return ReadReply(accepted_epoch, result, b"", told.dead)
    if not result.partitions:
        return ReadReply(accepted_epoch, result)
    dead, size_bytes = weigh(result.partitions, request.command.now_s)
    if 0 < request.digest_over_bytes < size_bytes:
        return ReadReply(accepted_epoch, _NOTHING, digest_of(result), dead)
    return ReadReply(accepted_epoch, result, b"", dead)


def with_known(reply: ReadReply, known: Known | None) -> ReadReply:
    """The answer, and which mutations of a tracked table are in it."""
    if known is None:
        return reply
    return ReadReply(reply.accepted_epoch, reply.result, reply.digest, reply.dead, known)


def filled_in(reply: ReadReply, by_digest: dict[bytes, ReadResult]) -> ReadReply | None:
    """A digest's reply with the answer that it stands for; None when nobody gave that answer."""
    result = by_digest.get(reply.digest)
    return None if result is None else ReadReply(reply.accepted_epoch, result, b"", reply.dead)
