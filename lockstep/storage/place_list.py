"""Ids of one range by the partition that they are of: what a read of that is told of.

Each id is a number here: which of the range's logs, and the offset in it. Most partitions have one id, and
numbers cost no collection of garbage, so a list costs some 150 bytes an id. Invariant: an id is listed once.
Ids come one by one, and are filed when somebody asks: most are let go of before. They leave many at a time,
by a list that is made anew.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from lockstep.tracking.held import Held, LogId
from lockstep.tracking.intervals import EMPTY, IntervalSet, of

#: Table and token of a partition. Keys that share a token are listed as one.
Place = tuple[int, int]
#: More mutations than one start of a node can give: a million a second for eight years.
_OFFSET_BITS: Final = 48
_OFFSETS: Final = (1 << _OFFSET_BITS) - 1


class PlaceList:
    __slots__ = ("_by_table", "_fresh", "_logs", "_numbers", "count")

    def __init__(self) -> None:
        #: How many ids are listed.
        self.count = 0
        #: Table -> token -> the id, or several.
        self._by_table: dict[int, dict[int, int | list[int]]] = {}
        #: Those that are not filed yet: the id, the table and the token of each in turn.
        self._fresh: list[int] = []
        self._numbers: dict[LogId, int] = {}
        self._logs: list[LogId] = []

    def _base(self, log: LogId) -> int:
        """The id of a log's first offset."""
        number = self._numbers.get(log)
        if number is None:
            number = self._numbers[log] = len(self._logs)
            self._logs.append(log)
        return number << _OFFSET_BITS

    def add(self, log: LogId, offset: int, place: Place) -> None:
        number = self._numbers.get(log)
        base = number << _OFFSET_BITS if number is not None else self._base(log)
        self._fresh += (base + offset, *place)
        self.count += 1

    def _file(self) -> None:
        if not self._fresh:
            return
        fresh, self._fresh = self._fresh, []
        for id_, table, token in _threes(fresh):
            _put(self._by_table.setdefault(table, {}), token, id_)

    def add_run(self, log: LogId, offsets: Sequence[int], table: int, tokens: Sequence[int]) -> None:
        """As `add` of each of the offsets, which ascend."""
        by_token, base = self._by_table.setdefault(table, {}), self._base(log)
        ids: Sequence[int] = [base + offset for offset in offsets]
        once = dict(zip(tokens, ids, strict=True))
        if len(once) == len(ids) and by_token.keys().isdisjoint(once):
            by_token.update(once)
        else:
            for token, id_ in zip(tokens, ids, strict=True):
                _put(by_token, token, id_)
        self.count += len(ids)

    def at(self, place: Place) -> list[tuple[LogId, int]]:
        self._file()
        by_token = self._by_table.get(place[0])
        found = by_token.get(place[1]) if by_token is not None else None
        return [] if found is None else self._ids_of(found)

    def _ids_of(self, found: int | list[int]) -> list[tuple[LogId, int]]:
        return list(map(self._id_of, found)) if isinstance(found, list) else [self._id_of(found)]

    def _id_of(self, id_: int) -> tuple[LogId, int]:
        return self._logs[id_ >> _OFFSET_BITS], id_ & _OFFSETS

    def items(self) -> Iterator[tuple[tuple[LogId, int], Place]]:
        """(log, offset) and place of each id."""
        for table, by_token in self._by_table.items():
            for token, found in by_token.items():
                for id_ in self._ids_of(found):
                    yield id_, (table, token)
        for number, table, token in _threes(self._fresh):
            yield self._id_of(number), (table, token)

    def only(self, wanted: Held) -> PlaceList:
        """The same list with no other ids than these."""
        found, by_log = PlaceList(), wanted.by_log()
        for (log, offset), place in self.items():
            if by_log.get(log, EMPTY).contains(offset):
                found.add(log, offset, place)
        return found

    def validate(self) -> None:
        listed = [id_ for id_, _ in self.items()]
        assert len(listed) == len(set(listed)) == self.count, "ids that are listed are miscounted"


def _threes(fresh: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    assert len(fresh) % 3 == 0, "each id has a place"
    return zip(fresh[::3], fresh[1::3], fresh[2::3], strict=True)


def _put(by_token: dict[int, int | list[int]], token: int, id_: int) -> None:
    known = by_token.get(token)
    if known is None:
        by_token[token] = id_
    elif isinstance(known, list):
        known.append(id_)
    else:
        by_token[token] = [known, id_]


def run_of(offsets: Sequence[int]) -> IntervalSet:
    """As `of`, of offsets that ascend."""
    first, last = offsets[0], offsets[-1]
    return IntervalSet((first, last)) if last - first + 1 == len(offsets) else of(offsets)
