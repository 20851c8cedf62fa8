"""Records of the mutation journal: their keys, what is in them, and reading them in order.

    entries: family 1 | kind 1 | node 8 | number of its log 8 | offset 8
    notes:   family 1 | kind 1 | placement group 8 | last token of the range 8 | node 8 | number of its log 8

Invariant: entries of a log are in order of their offsets, notes of a range side by side.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

import msgspec

from lockstep.storage.place_list import Place
from lockstep.storage.shard_logs import Shard, ShardLogs
from lockstep.storage.store import Family, Operation, Pair
from lockstep.tracking.held import LogId, MutationId
from lockstep.tracking.intervals import IntervalSet
from lockstep.values.codec import decoder, encode
from lockstep.values.node_limits import JOURNAL_RECORDS_A_BATCH
from lockstep.values.rows import Mutation, without_log

_SHARD = struct.Struct(">ccQQ")
_LOG = struct.Struct(">ccQQQQ")
_ENTRY = struct.Struct(">ccQQQ")
_OFFSET_BYTES: Final = 8
_IDS = struct.Struct(">2xQQQ")
_BIAS: Final = 1 << 63
_FAMILY: Final = Family.JOURNAL.value
#: Above the first byte of any node's number.
BEHIND: Final = b"\xff"
RECORD: Final = b"e"
RECONCILED: Final = b"r"
APART: Final = b"c"
#: Of ranges whose data this node is getting.
TAKING: Final = b"k"
#: Where each range begins of which something is noted, and the tables by placement group.
BOUNDS: Final = b"s"
TABLES: Final = b"t"
TABLES_KEY: Final = _FAMILY + TABLES


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`mutation` None: of a table that was gone when it came. `group`: the placement group at that time. The
    log of changes that the mutation adds to, and its token there: 0 for none, and where that is an entry of
    its own, in another range. Either of two such entries has the whole mutation, and its own part's place."""

    given_us: int
    mutation: Mutation | None
    group: int
    table_id: int
    token: int
    log_table_id: int = 0
    log_token: int = 0

    @property
    def place(self) -> Place:
        return self.table_id, self.token

    @property
    def captured(self) -> Place | None:
        return (self.log_table_id, self.log_token) if self.log_table_id else None

    @property
    def own_part(self) -> Mutation | None:
        """What of the mutation the entry stands for."""
        mutation = self.mutation
        if mutation is None or mutation.captured is None or self.log_table_id:
            return mutation
        return mutation.captured if self.table_id == mutation.captured.table_id else without_log(mutation)


class Named(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry with its id."""

    id: MutationId
    mutation: Mutation | None
    table_id: int
    token: int


class Fitted(msgspec.Struct, frozen=True, array_like=True):
    """Tracked tables, with the placement group of each."""

    tables: tuple[tuple[int, int], ...]


ENTRIES = decoder(Entry)


def entry_value(
    given_us: int, mutation: Mutation | None, group: int, place: Place, captured: Place | None = None
) -> bytes:
    """An `Entry` as it is stored; one that adds to no log is as short as ever."""
    return encode((given_us, mutation, group, *place, *(captured or ())))


def captured_place(mutation: Mutation | None) -> Place | None:
    """The partition of a log of changes that a mutation adds to."""
    captured = mutation.captured if mutation is not None else None
    return (captured.table_id, captured.token) if captured is not None else None


def shard_key(kind: bytes, shard: Shard) -> bytes:
    return _SHARD.pack(_FAMILY, kind, shard[0], shard[1] + _BIAS)


def shard_of(key: bytes) -> Shard:
    """Of a key of a range, or of a log in one."""
    _, _, group, right = _SHARD.unpack_from(key)
    return group, right - _BIAS


def log_of(key: bytes) -> LogId:
    """Of a key of a log in a range."""
    node, number = _LOG.unpack(key)[-2:]
    return node, number


def log_key(kind: bytes, shard: Shard, log: LogId) -> bytes:
    return _LOG.pack(_FAMILY, kind, shard[0], shard[1] + _BIAS, *log)


def entry_key(log: LogId, offset: int) -> bytes:
    return _ENTRY.pack(_FAMILY, RECORD, *log, offset)


def deletions(log: LogId, offsets: IntervalSet) -> list[Operation]:
    """What deletes the entries of these."""
    before = entry_key(log, 0)[:-_OFFSET_BYTES]
    assert len(before) + _OFFSET_BYTES == _ENTRY.size, "an offset ends a key"
    return [
        ("delete", before + offset.to_bytes(_OFFSET_BYTES, "big"))
        for first, last in offsets.pairs()
        for offset in range(first, last + 1)
    ]


def entry_of(key: bytes) -> tuple[LogId, int]:
    """The log and the offset of an entry's key."""
    _, _, node, number, offset = _ENTRY.unpack(key)
    return (node, number), offset


def log_and_offset_of(keys: Sequence[bytes]) -> list[tuple[int, int, int]]:
    """As `entry_of` of many: node, number of its log, and offset."""
    return list(_IDS.iter_unpack(b"".join(keys)))


def notes(shard: Shard, logs: ShardLogs, log: LogId) -> list[Operation]:
    """What is noted of a log, as it is now, whatever was noted before."""
    return [_noted(kind, shard, log, runs) for kind, runs in _kinds(logs, log)]


def changed_notes(shard: Shard, logs: ShardLogs, log: LogId) -> list[Operation]:
    """As `notes`, of a range that is as it was at the last notes: nothing is said of what is apart where
    nothing was."""
    if logs.was_apart(log):
        return notes(shard, logs, log)
    return [_noted(RECONCILED, shard, log, logs.runs_of(log)[0])]


def _kinds(logs: ShardLogs, log: LogId) -> Iterator[tuple[bytes, IntervalSet]]:
    return zip((RECONCILED, APART), logs.runs_of(log), strict=True)


def _noted(kind: bytes, shard: Shard, log: LogId, runs: IntervalSet) -> Operation:
    return ("put", log_key(kind, shard, log), encode(runs)) if runs else ("delete", log_key(kind, shard, log))


class Source(Protocol):
    """Where records are."""

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]: ...


def bounds_of(kind: bytes) -> tuple[bytes, bytes]:
    """All keys of a kind lie between these."""
    return _FAMILY + kind, _FAMILY + bytes((kind[0] + 1,))


def pairs_of(source: Source, kind: bytes) -> Iterator[Pair]:
    """All records of a kind."""
    lower, upper = bounds_of(kind)
    while pairs := source.records(lower, upper, JOURNAL_RECORDS_A_BATCH):
        yield from pairs
        lower = pairs[-1][0] + b"\x00"


def values_of(source: Source, log: LogId, offsets: IntervalSet) -> Iterator[tuple[int, bytes]]:
    """(offset, value) of the entries that there are."""
    for first, last in offsets.pairs():
        upper, at = entry_key(log, last + 1), first
        while at <= last:
            pairs = source.records(entry_key(log, at), upper, JOURNAL_RECORDS_A_BATCH)
            for key, value in pairs:
                at = entry_of(key)[1]
                yield at, value
            if len(pairs) < JOURNAL_RECORDS_A_BATCH:
                break
            at += 1
