"""The parts of an answer that has rows: as they are kept decoded where they are, decoded from what is stored
elsewhere, and kept then.

Invariant: parts follow each other in key order and leave nothing out. What is kept begins and ends between
rows, within one of the bounds that were asked for, where no deletion of a partition bears on it that lies
before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

import pyarrow as pa

from lockstep.scans.column_files import UNCOUNTED, Found, KeptColumns
from lockstep.scans.messages import Bounds, RowsWanted
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.stored_digests import StoredDigests, parted
from lockstep.scans.table_reader import TableReader, partition_of
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair, RangeCursor

#: Pairs that are taken at first and at most, and the bytes of them that are aimed at.
_TAKEN_FIRST, _TAKEN_MAX = 1024, 8192
_TAKEN_BYTES: Final = 4 * 1024 * 1024
#: Nor fewer of them for who wants few rows: some of what is stored may not show.
_TAKEN_LEAST: Final = 16
#: One in so many is weighed.
_WEIGHED: Final = 16
#: Rows of a batch, about: for a reader each has a price of its own.
_BATCH_ROWS: Final = 16_384
#: Portions after which what there is goes out, however few rows it has.
_PORTIONS_MAX: Final = 8
#: Rows from which on a part is kept: finding one costs as much as decoding some hundred of them.
_KEPT_LEAST: Final = 1000
#: Fragments of a range from which on a part ends where it does.
_CUT_LEAST: Final = 2048
#: Fragments after which a reader hears that it goes on, well before it would give up.
_LONG: Final = 256 * 1024


class Content(Protocol):
    """What a session fixed."""

    def cursor(self, lower: bytes, upper: bytes) -> RangeCursor: ...


class Part(NamedTuple):
    """What is sent at once; see `BatchHead`. `body`: a batch as it is sent, nothing without rows."""

    rows: int = 0
    body: Any = b""
    next_key: bytes = b""
    begun_in: bytes = b""
    stored: bytes = b""


#: Nothing, so that a reader hears that it goes on.
GOES_ON: Final = Part()


class Read:
    """How much was read for one answer, and how many rows of it were kept decoded."""

    def __init__(self) -> None:
        self.fragments = self.bytes = self.kept_rows = 0
        self._told = 0

    def is_long(self) -> bool:
        """Whether so much was read that the reader is to hear of it."""
        if self.fragments - self._told < _LONG:
            return False
        self._told = self.fragments
        return True


def takers(
    content: Content, bounds: Bounds, wanted: RowsWanted, read: Read, *, cut: bool = False
) -> Iterator[tuple[list[Pair], bytes]]:
    """All pairs of all bounds, in portions of some megabytes. `cut`: where many of them end with a range of
    tokens, the portion does, and its end is told beside it."""
    count = _few(_TAKEN_FIRST, wanted, read)
    gathered: list[Pair] = []
    for lower, upper in bounds:
        cursor = content.cursor(lower, upper)
        taken = 0
        try:
            while True:
                missing = count - len(gathered)
                pairs = cursor.take(missing)
                taken += len(pairs)
                gathered = [*gathered, *pairs] if gathered else pairs
                if len(pairs) < missing:
                    break
                weighed = gathered[::_WEIGHED]
                size = sum([len(key) + len(value) for key, value in weighed])
                count = max(1, min(4 * count, _TAKEN_MAX, _TAKEN_BYTES * len(weighed) // size))
                read.fragments += len(gathered)
                read.bytes += size * len(gathered) // len(weighed)
                count = _few(count, wanted, read)
                yield gathered, b""
                gathered = []
        finally:
            cursor.close()
        if cut and taken >= _CUT_LEAST and len(upper) <= keys.PLACE_BYTES:
            _count(read, gathered)
            yield gathered, upper
            gathered = []
    if gathered:
        _count(read, gathered)
        yield gathered, b""


def _count(read: Read, pairs: Sequence[Pair]) -> None:
    read.fragments += len(pairs)
    read.bytes += sum([len(key) + len(value) for key, value in pairs])


def _few(count: int, wanted: RowsWanted, read: Read) -> int:
    """How many are taken where few rows are wanted: one more than those, for the last row shows once it is
    known to have ended."""
    if not wanted.rows_max:
        return count
    return min(count, max(wanted.rows_max + 1 - read.fragments, _TAKEN_LEAST))


class RowsReading:
    """One answer. `kept`: what may be used and added to; None where nothing is kept."""

    def __init__(
        self,
        content: Content,
        table: ScanTable,
        wanted: RowsWanted,
        read: Read,
        kept: KeptColumns | None,
    ) -> None:
        self._content = content
        self._table = table
        self._wanted = wanted
        self._read = read
        self._bounds = tuple(_joined_up(wanted.bounds))
        # Who wants few rows neither finds nor leaves a whole batch.
        self._kept = None if wanted.rows_max else kept

    def parts(self) -> Iterator[Part]:
        begun_in = self._wanted.begun_in
        try:
            for run, found in self._runs():
                if run:
                    yield from self._decoded(run, begun_in, ends=found is not None)
                    begun_in = b""
                if found is not None:
                    yield self._as_kept(found)
        finally:
            # Also when the answer ends before it has all: what is there is whole.
            if self._kept is not None:
                self._kept.finish(self._wanted.columns)

    def _runs(self) -> Iterator[tuple[Bounds, Found | None]]:
        """Bounds whose rows are to be decoded, and what is kept behind them."""
        run: list[tuple[bytes, bytes]] = []
        wanted, kept = self._wanted, self._kept
        for lower, upper in self._bounds:
            at = lower
            while at < upper:
                found = None if kept is None else kept.first(at, upper, wanted.columns, told=wanted.told)
                if found is None:
                    run.append((at, upper))
                    break
                if at < found.part.lower:
                    run.append((at, found.part.lower))
                yield tuple(run), found
                run = []
                at = found.part.upper
        if run:
            yield tuple(run), None

    def _as_kept(self, found: Found) -> Part:
        part, columns = found.part, self._wanted.columns
        self._read.kept_rows += part.rows
        body: Any = found.batch
        if part.rows and found.columns != columns:
            schema = self._reader(found.columns, b"").schema
            batch = pa.ipc.read_record_batch(pa.py_buffer(body), schema)
            body = batch.select(list(columns)).serialize()
        return Part(part.rows, body, part.upper, b"", part.stored)

    def _reader(self, columns: Sequence[str], begun_in: bytes) -> TableReader:
        wanted = self._wanted
        return TableReader(
            self._table,
            columns,
            wanted.now_s,
            wanted.decimal_scale,
            lone_statics=wanted.lone_statics,
            begun_in=begun_in,
        )

    # -- what is decoded ------------------------------------------------------------------------------

    def _decoded(self, bounds: Bounds, begun_in: bytes, *, ends: bool) -> Iterator[Part]:
        """`ends`: the next part begins where the last one of these bounds ends."""
        wanted, read = self._wanted, self._read
        reader = self._reader(wanted.columns, begun_in)
        stored = StoredDigests() if wanted.told else None
        keeper = None if self._kept is None else _Keeper(bounds, self._bounds)
        batches: list[pa.RecordBatch] = []
        given, enough = 0, wanted.rows_max or 1 << 62
        end = b""
        portions = takers(self._content, bounds, wanted, read, cut=keeper is not None)
        for portion, (pairs, end) in enumerate(portions):
            if keeper is not None and pairs:
                keeper.begin(pairs[0][0])
            batches += reader.feed(pairs)
            if end:
                batches += reader.finish()
            next_key = end or reader.next_key
            if stored is not None:
                stored.take_before(next_key, pairs)
            rows = sum(batch.num_rows for batch in batches)
            # Where few rows show, a reader is to know how far reading has come.
            if end or rows >= _BATCH_ROWS or not portion % _PORTIONS_MAX or given + rows >= enough:
                part = self._joined(reader, batches, next_key, b"" if stored is None else stored.told())
                if keeper is not None:
                    self._keep(keeper, part, reader)
                yield part
                given += rows
                batches = []
        if end and (end == bounds[-1][1] or not ends):
            return
        batches += reader.finish()
        next_key = bounds[-1][1] if ends else reader.next_key
        part = self._joined(reader, batches, next_key, b"" if stored is None else stored.rest())
        if keeper is not None and ends:
            self._keep(keeper, part, reader)
        yield part

    def _joined(
        self, reader: TableReader, batches: list[pa.RecordBatch], next_key: bytes, stored: bytes
    ) -> Part:
        """Also without rows: reading has come that far."""
        if not batches:
            return Part(0, b"", next_key, reader.begun, stored)
        batch = batches[0] if len(batches) == 1 else pa.concat_batches(batches)
        return Part(batch.num_rows, batch.serialize(), next_key, reader.begun, stored)

    def _keep(self, keeper: _Keeper, part: Part, reader: TableReader) -> None:
        assert self._kept is not None, "it is to be kept"
        lower = keeper.next(part.next_key, is_between=reader.is_between, lasts=reader.take_lasts())
        if lower and part.rows >= _KEPT_LEAST:
            self._kept.keep(lower, part.next_key, part.rows, part.stored, part.body)


class _Keeper:
    """Where parts begin that may be kept. `bounds`: what is decoded, of what was asked for in all."""

    def __init__(self, bounds: Bounds, asked: Bounds) -> None:
        self._bounds = bounds
        self._number = 0
        #: Lower bounds before which nothing of their partition was left out, or is there.
        clear: dict[bytes, None] = {}
        before: tuple[bytes, bytes] | None = None
        for lower, upper in asked:
            prefix = partition_of(lower)
            if not prefix or before == (prefix, min(lower, prefix + keys.KIND_ROW)):
                clear[lower] = None
            before = (lower, upper)
        known = {lower for lower, _ in asked}
        # What begins elsewhere begins behind what was kept.
        self._starts = [lower in clear or lower not in known for lower, _ in bounds]
        self._lower: bytes = bounds[0][0] if self._starts[0] else b""
        #: Whether nothing was read since the last part ended with its bounds.
        self._is_new = True

    def begin(self, key: bytes) -> None:
        """The first thing that is read of a part lies there: bounds before it have nothing."""
        if not self._is_new:
            return
        self._is_new = False
        while self._bounds[self._number][1] <= key:
            self._number += 1
            self._lower = self._bounds[self._number][0] if self._starts[self._number] else b""

    def next(self, next_key: bytes, *, is_between: bool, lasts: bool) -> bytes:
        """Where the part that ends there begins, when it may be kept; else nothing."""
        lower, first = self._lower, self._number
        while self._number < len(self._bounds) and self._bounds[self._number][1] <= next_key:
            self._number += 1
        is_in_one = self._number == first or (
            self._number == first + 1 and self._bounds[first][1] == next_key
        )
        if self._number == len(self._bounds):
            self._lower = b""
        elif self._bounds[self._number][0] >= next_key:
            # The next part may begin with the bounds, which are between partitions or have been looked at.
            self._is_new = True
            self._lower = self._bounds[self._number][0] if self._starts[self._number] and is_between else b""
        else:
            self._lower = next_key if is_between and self._starts[self._number] else b""
        return lower if is_in_one and is_between and lasts else b""


def _joined_up(bounds: Bounds) -> Iterator[tuple[bytes, bytes]]:
    """Ranges of tokens that follow each other as one."""
    held: tuple[bytes, bytes] | None = None
    for lower, upper in bounds:
        if held is not None and held[1] == lower and len(lower) <= keys.PLACE_BYTES:
            held = (held[0], upper)
            continue
        if held is not None:
            yield held
        held = (lower, upper)
    if held is not None:
        yield held


# -- digests of what is stored ------------------------------------------------------------------------


def digests_of_parts(
    portions: Callable[[Bounds], Iterator[Sequence[Pair]]],
    bounds: Bounds,
    cuts: Sequence[bytes],
    kept: KeptColumns | None,
    *,
    counts_rows: bool = False,
) -> Iterator[tuple[bytes, int] | None]:
    """(digest, rows) of what is stored between the bounds before each of the cuts, which ascend, and behind
    the last; None where reading goes on. `portions` reads. `counts_rows`: else there are 0."""
    bounds_of = list(_between(tuple(_joined_up(bounds)), cuts))
    known: list[tuple[bytes, int] | None] = [None] * len(bounds_of)
    if kept is not None:
        known = [kept.digest(*one[0], counted=counts_rows) if len(one) == 1 else None for one in bounds_of]
    at = 0
    while at < len(known):
        found = known[at]
        if found is not None:
            yield found
            at += 1
            continue
        end = at + 1
        while end < len(known) and known[end] is None:
            end += 1
        read = portions(tuple(one for part in bounds_of[at:end] for one in part))
        for part in parted(read, cuts[at : end - 1], counts_rows=counts_rows):
            if part is None:
                yield None
                continue
            yield part
            if kept is not None and len(bounds_of[at]) == 1:
                kept.keep(*bounds_of[at][0], part[1] if counts_rows else UNCOUNTED, part[0])
            at += 1
        assert at == end, "each part has a digest"


def _between(bounds: Bounds, cuts: Sequence[bytes]) -> Iterator[Bounds]:
    """What of the bounds lies before each cut, and behind the last."""
    left = list(bounds)
    for cut in cuts:
        yield tuple((lower, min(upper, cut)) for lower, upper in left if lower < cut)
        left = [(max(lower, cut), upper) for lower, upper in left if upper > cut]
    yield tuple(left)
