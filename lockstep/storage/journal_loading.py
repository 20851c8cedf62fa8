"""The journal as a start reads it: notes one by one, entries many at once, and of each only where it belongs.

Invariant: each entry is of the range that has its token, or to be deleted. One that adds to a log of changes
in another range is not of any yet: a crash came before it was made two. Entries of a log are read in order.
What is in a mutation is not looked at.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, Protocol

import msgspec

from lockstep.storage.journal_records import (
    APART,
    BOUNDS,
    RECONCILED,
    RECORD,
    TABLES,
    TAKING,
    Fitted,
    bounds_of,
    entry_key,
    entry_of,
    log_and_offset_of,
    log_of,
    pairs_of,
    shard_of,
)
from lockstep.storage.shard_logs import Shard, ShardLogs, Taking, bounded
from lockstep.storage.store import Operation, Pair
from lockstep.tracking.held import LogId, all_of, held_of
from lockstep.tracking.intervals import IntervalSet, of
from lockstep.values.codec import decoder
from lockstep.values.node_limits import JOURNAL_RECORDS_A_BATCH

#: Of a MessagePack array: the count follows in four bytes.
_ARRAY: Final = b"\xdd"


class _Placed(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """As `Entry`, its mutation left as it is."""

    given_us: int
    mutation: msgspec.Raw
    group: int
    table_id: int
    token: int
    log_table_id: int = 0
    log_token: int = 0


_PLACED = decoder(list[_Placed])
_RUNS = decoder(IntervalSet)
_LEFTS = decoder(int)
_FITTED = decoder(Fitted)
_TAKINGS = decoder(Taking)


class Records(Protocol):
    """Where the records are."""

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]: ...

    def walk(self, lower: bytes, upper: bytes, count: int) -> Iterator[Sequence[Pair]]: ...


class _Side(msgspec.Struct, frozen=True, gc=False):
    """Entries of one log that lie side by side; all of one placement group at the time of each, and of one
    table, and with tokens of the log of changes of that where they add to it."""

    log: LogId
    group: int
    table_id: int
    offsets: list[int]
    tokens: list[int]
    log_table_id: int = 0
    log_tokens: Sequence[int] = ()


def _entries(source: Records) -> Iterator[tuple[_Side, int]]:
    """All entries, with their bytes."""
    for pairs in source.walk(*bounds_of(RECORD), JOURNAL_RECORDS_A_BATCH):
        values = [value for _, value in pairs]
        found = _PLACED.decode(b"".join((_ARRAY, len(values).to_bytes(4, "big"), *values)))
        ids = log_and_offset_of([key for key, _ in pairs])
        size = sum(map(len, values)) // len(values)
        (node, number, _), last, one = ids[0], ids[-1], found[0]
        is_one_log = (node, number) == last[:2]
        if is_one_log and len({(each.group, each.table_id, each.log_table_id) for each in found}) == 1:
            offsets, tokens = [id_[2] for id_ in ids], [each.token for each in found]
            logged = [each.log_token for each in found] if one.log_table_id else ()
            side = _Side((node, number), one.group, one.table_id, offsets, tokens, one.log_table_id, logged)
            yield side, size * len(offsets)
            continue
        rows = [
            (*id_[:2], each.group, each.table_id, each.log_table_id, id_[2], each.token, each.log_token)
            for id_, each in zip(ids, found, strict=True)
        ]
        for (node, number, group, table_id, log_id), run in groupby(rows, key=itemgetter(0, 1, 2, 3, 4)):
            *_, some, tokens_of, logged_of = map(list, zip(*run, strict=True))
            side = _Side(
                (node, number), group, table_id, some, tokens_of, log_id, logged_of if log_id else ()
            )
            yield side, size * len(some)


class Loading:
    """What a journal knows at its start; `places_max`: ids that are listed at most."""

    def __init__(self, source: Records, places_max: int) -> None:
        self._source = source
        self._places_max = places_max
        self.tables: dict[int, int] = {}
        self.shards: dict[Shard, ShardLogs] = {}
        #: Ids that are listed.
        self.listed = 0
        #: Entries, and their bytes.
        self.count, self.bytes = 0, 0
        #: What deletes entries of ranges that this node has no more.
        self.orphans: list[Operation] = []
        #: (log, offset, range of the mutation, range of what it adds to a log of changes) of those to be made
        #: two; None: this node has not that range.
        self.cut: list[tuple[LogId, int, ShardLogs | None, ShardLogs | None]] = []
        self._rights: dict[int, list[int]] = {}

    def run(self) -> None:
        source, shards = self._source, self.shards
        for _, value in pairs_of(source, TABLES):
            self.tables = dict(_FITTED.decode(value).tables)
        for key, value in pairs_of(source, BOUNDS):
            shards[shard_of(key)] = ShardLogs(_LEFTS.decode(value))
        for key, value in pairs_of(source, RECONCILED):
            shards[shard_of(key)].settle(log_of(key), _RUNS.decode(value))
        for key, value in pairs_of(source, APART):
            shards[shard_of(key)].set_apart(log_of(key), _RUNS.decode(value))
        for key, value in pairs_of(source, TAKING):
            shards[shard_of(key)].taking = _TAKINGS.decode(value)
        for group, right in sorted(shards):
            self._rights.setdefault(group, []).append(right)
        for side, size in _entries(source):
            self.count, self.bytes = self.count + len(side.offsets), self.bytes + size
            self._file(side)

    def _file(self, side: _Side) -> None:
        """Put ids where they belong."""
        group = self.tables.get(side.table_id, side.group)
        first, tokens = self._holding(group, side.tokens[0]), (*side.tokens, *side.log_tokens)
        if first is not None and all(first is self._holding(group, one(tokens)) for one in (min, max)):
            self._add(first, side, side.offsets, side.tokens, side.log_tokens)
            return
        logged: Sequence[int | None] = side.log_tokens or [None] * len(side.offsets)
        for offset, token, log_token in zip(side.offsets, side.tokens, logged, strict=True):
            logs = self._holding(group, token)
            there = logs if log_token is None else self._holding(group, log_token)
            if there is not logs:
                self.cut.append((side.log, offset, logs, there))
            elif logs is None:
                self.orphans.append(("delete", entry_key(side.log, offset)))
            else:
                self._add(logs, side, (offset,), (token,), () if log_token is None else (log_token,))

    def _add(
        self,
        logs: ShardLogs,
        side: _Side,
        offsets: Sequence[int],
        tokens: Sequence[int],
        log_tokens: Sequence[int],
    ) -> None:
        listed = self.listed + logs.add_run(side.log, offsets, side.table_id, tokens)
        if log_tokens:
            listed += logs.add_captured(side.log, offsets, side.log_table_id, log_tokens)
        self.listed = bounded(self.shards, listed, self._places_max)

    def _holding(self, group: int, token: int) -> ShardLogs | None:
        rights = self._rights.get(group, [])
        at = bisect_left(rights, token)
        logs = self.shards[group, rights[at]] if at < len(rights) else None
        return logs if logs is not None and logs.left < token else None


def validate_stored(source: Records, shards: Mapping[Shard, ShardLogs]) -> None:
    """What ranges claim is what there are entries of."""
    stored: dict[LogId, list[int]] = {}
    for key, _ in pairs_of(source, RECORD):
        log, offset = entry_of(key)
        stored.setdefault(log, []).append(offset)
    claimed = 0
    for shard, logs in shards.items():
        logs.validate()
        assert logs.left < shard[1], "a range has tokens"
        claimed += logs.open.count
    found = held_of({log: of(offsets) for log, offsets in stored.items()})
    assert found == all_of(logs.open for _, logs in sorted(shards.items())), (
        "ids that are claimed have entries, and others have none"
    )
    assert claimed == found.count, "an id is in one range"
