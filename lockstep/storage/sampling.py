"""How many partitions ranges of a table hold, and how large those are: told from their first fragments.

What is counted is what is stored: fragments that are not merged yet, and tombstones that are not purged.

Invariant: exact where all is read within the effort. Elsewhere partitions are scaled by the tokens through
which they were seen, as they spread evenly, and partitions are read until the effort is spent: one that is
not read to its end by then counts with what was read, if none was before. No step is large.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence

import msgspec

from lockstep.runtime.ports import Clock
from lockstep.storage.cooperative_yield import CooperativeYield
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair, Store
from lockstep.values.limits import SAMPLE_PAIRS_PER_RANGE_MAX, SAMPLE_SEEKS_MAX, SAMPLE_STEP_PAIRS
from lockstep.values.tokens import Range

#: Of each range at least, however many there are.
_PAIRS_MIN = 8
_SEEKS_MIN = 2
#: To find a partition costs about as much as to read so many pairs; so much of a value, as one more.
_SEEK_COSTS = 8
_VALUE_BYTES = 1024

#: The work of one step, as a number of pairs.
Steps = Generator[int, None, None]


class Sample(msgspec.Struct, frozen=True):
    """`partitions` are those of each range asked about, `mean_bytes` is of all of them: keys and values,
    uncompressed; 0 when there are none."""

    partitions: tuple[int, ...]
    mean_bytes: int


async def sample(
    store: Store, clock: Clock, table_id: int, ranges: Sequence[Range], pairs_max: int
) -> Sample:
    """Taken beside requests; what is written meanwhile may count or not. CorruptFile."""
    pace = CooperativeYield(clock, rest=1.0)  # Somebody waits for it.
    steps = Sampling(store, table_id, ranges, pairs_max).steps()
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            found: Sample = ended.value
            return found
        await pace.turn()


class Sampling:
    """Of ranges of one table. `pairs_max`: what may be read in all, beside some of each range."""

    def __init__(self, store: Store, table_id: int, ranges: Sequence[Range], pairs_max: int) -> None:
        self._store = store
        self._table_id = table_id
        self._ranges = ranges
        count = max(1, len(ranges))
        self._pairs = min(SAMPLE_PAIRS_PER_RANGE_MAX, max(_PAIRS_MIN, pairs_max // 2 // count))
        self._seeks = max(_SEEKS_MIN, SAMPLE_SEEKS_MAX // count)
        #: For partitions that are begun when a range's part is spent.
        self._spare = pairs_max - self._pairs * count
        self._read = self._size = 0
        #: Size of the partition that could not be read to its end.
        self._unread = 0

    def steps(self) -> Generator[None, None, Sample]:
        """Work between two of which others may; nothing is held meanwhile. CorruptFile."""
        found = []
        done = 0
        for tokens in self._ranges:
            seen = _Seen(tokens)
            for pairs in self._walk(seen):
                done += pairs
                if done >= SAMPLE_STEP_PAIRS:
                    done = 0
                    yield
            found.append(seen.partitions())
        mean = self._size // self._read if self._read else self._unread
        return Sample(tuple(found), mean)

    def _walk(self, seen: _Seen) -> Steps:
        """Read the first partitions of a range, then look up more where those are few."""
        lower, upper = keys.token_bounds(self._table_id, seen.tokens)
        left, size, prefix = self._pairs, 0, b""
        for key, value in self._pairs_of(lower, upper):
            cost = _cost(value)
            if not prefix or not key.startswith(prefix):
                self._is_read(prefix, size)
                token, _, prefix = keys.split_partition(key)
                seen.add(token)
                size = 0
                if left <= 0:
                    break
            elif left <= 0:
                if self._spare <= 0:
                    self._unread = max(self._unread, size)
                    break
                self._spare -= cost
            left -= cost
            size += len(key) + len(value)
            yield cost
        else:
            self._is_read(prefix, size)
            seen.ended = True
        yield from self._look_up(seen, keys.partition_end(prefix), upper)

    def _is_read(self, prefix: bytes, size: int) -> None:
        # Behind the first that was too large for what is left, small ones would count too much.
        if prefix and not self._unread:
            self._read += 1
            self._size += size

    def _look_up(self, seen: _Seen, lower: bytes, upper: bytes) -> Steps:
        while not seen.ended and seen.count < self._seeks:
            found = next(iter(self._store.scan(lower, upper)), None)
            if found is None:
                seen.ended = True
                return
            token, _, prefix = keys.split_partition(found[0])
            seen.add(token)
            lower = keys.partition_end(prefix)
            yield _SEEK_COSTS

    def _pairs_of(self, lower: bytes, upper: bytes) -> Iterator[Pair]:
        """Those of a range, some at a time: no scan is open between two steps."""
        first, more = self._pairs + 1, True
        while more:
            room = first if first > 0 else max(1, self._spare)
            some, more = self._some(lower, upper, min(room, SAMPLE_STEP_PAIRS))
            yield from some
            first -= SAMPLE_STEP_PAIRS
            lower = some[-1][0] + b"\x00" if some else upper

    def _some(self, lower: bytes, upper: bytes, room: int) -> tuple[list[Pair], bool]:
        """The first pairs, and whether there may be more."""
        some: list[Pair] = []
        for pair in self._store.scan(lower, upper):
            some.append(pair)
            room -= _cost(pair[1])
            if room <= 0:
                return some, True
        return some, False


def _cost(value: bytes) -> int:
    return 1 + len(value) // _VALUE_BYTES


class _Seen:
    """Partitions at the beginning of a range. `ended`: there are no others."""

    def __init__(self, tokens: Range) -> None:
        self.tokens = tokens
        self.count = 0
        self.ended = False
        self._reached = tokens.left

    def add(self, token: int) -> None:
        self.count += 1
        self._reached = token

    def partitions(self) -> int:
        if self.ended:
            return self.count
        # The last one is where it is because it is the last: it tells how far the others reach.
        width, passed = self.tokens.right - self.tokens.left, self._reached - self.tokens.left
        return max(self.count, (self.count - 1) * width // max(1, passed))
