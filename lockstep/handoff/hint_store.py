"""The hints that this node keeps, as they are stored: how many for whom, how large, since when, and which
ranges lack theirs.

Invariant: Counts here are those of the store, which is read once at the start. A hint is deleted only by its
key, so one that is left meanwhile stays; a hint that is given up leaves its mark in the same batch. A key is
(target, when the write was hinted, digest of the mutation), so that the same write left twice for one node is
one hint, and a target's hints lie in the order in which they were left. The mutation in a hint is the one
that its coordinator sent, to the byte.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

from lockstep.storage.store import Batch, Family, Operation, Pair
from lockstep.values import codec
from lockstep.values.codec import encode
from lockstep.values.errors import CorruptFile
from lockstep.values.ids import NodeId
from lockstep.values.limits import DROPPED_HINT_RANGES_MAX, HINTS_PAGE
from lockstep.values.rows import Mutation
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

_KEY = struct.Struct(">ccIQ8s")
_TARGET = struct.Struct(">ccI")
_FAMILY = Family.HINTS.value
_HINT = b"\x01"
_MARK = b"\x02"
_MARK_KEY = struct.Struct(">ccIIqq")


class Hint(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`epoch`: of the plan that the replica was in. `gc_grace_s`: of the table when the hint was left."""

    created_us: int
    epoch: int
    gc_grace_s: int
    mutation: Mutation


class DroppedHints(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Writes of a range that a node lacks and will not get from here; until the range is repaired.

    `newest_us`: when the newest of them was left; `count` is since this node started to count."""

    table_id: int
    node: NodeId
    left: int
    right: int
    reason: str
    since_us: int
    newest_us: int
    count: int


_DECODER = codec.decoder(Hint)
_MARK_DECODER = codec.decoder(DroppedHints)


def hint_key(target: int, created_us: int, body: bytes) -> bytes:
    return _KEY.pack(_FAMILY, _HINT, target, created_us, hashlib.blake2b(body, digest_size=8).digest())


def target_of(key: bytes) -> tuple[NodeId, int]:
    """(target, created_us) of a hint's key."""
    _, _, target, created_us, _ = _KEY.unpack(key)
    return NodeId(target), created_us


def bounds_of(target: int) -> tuple[bytes, bytes]:
    """Lower and upper bound of the keys of a node's hints."""
    return _TARGET.pack(_FAMILY, _HINT, target), _TARGET.pack(_FAMILY, _HINT, target + 1)


def all_hints() -> tuple[bytes, bytes]:
    return _FAMILY + _HINT, _FAMILY + _MARK


def all_marks() -> tuple[bytes, bytes]:
    return _FAMILY + _MARK, _FAMILY + b"\x03"


def mark_key(mark: DroppedHints) -> bytes:
    return _MARK_KEY.pack(_FAMILY, _MARK, mark.table_id, mark.node, mark.left, mark.right)


def body_of(hint: Hint) -> bytes:
    """What identifies the write in a hint's key: the mutation alone."""
    return codec.encode(hint.mutation)


def decode_hint(key: bytes, value: bytes) -> Hint:
    try:
        return _DECODER.decode(value)
    except codec.UNREADABLE as error:
        raise CorruptFile(key.hex(), 0, f"not a hint: {error}") from error


def decode_mark(key: bytes, value: bytes) -> DroppedHints:
    try:
        return _MARK_DECODER.decode(value)
    except codec.UNREADABLE as error:
        raise CorruptFile(key.hex(), 0, f"not a mark of dropped hints: {error}") from error


class RecordStore(Protocol):
    """What hints and the batch log need of one node's storage."""

    def write_records(self, family: Family, batch: Batch) -> int: ...

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]: ...

    async def synced(self, sequence: int) -> None: ...


class Stored:
    """A hint with its key, and its size in the store."""

    __slots__ = ("hint", "key", "size")

    def __init__(self, key: bytes, size: int, hint: Hint) -> None:
        self.key = key
        self.size = size
        self.hint = hint


class Pending:
    """What one node is to get. `since_us`: since when there has been something, as far as that is known.
    `low`: no key is below, so that nobody looks through all that the store has not yet cleared away."""

    __slots__ = ("bytes", "count", "low", "newest_us", "oldest_us", "since_us")

    def __init__(self, low: bytes) -> None:
        self.low = low
        self.count = 0
        self.bytes = 0
        self.oldest_us = self.since_us = 0
        self.newest_us = 0


class HintStore:
    def __init__(self, store: RecordStore) -> None:
        self._store = store
        self.pending: dict[NodeId, Pending] = {}
        self.bytes = 0
        #: Key -> size of hints that were written once more: who has read one may know another size.
        self._rewritten: dict[bytes, int] = {}
        self._marks: dict[tuple[int, int], dict[tuple[int, int], DroppedHints]] = {}
        #: Keys of marks that the store refused, and the sequence of the newest that it took.
        self._unwritten: dict[bytes, None] = {}
        self._marked = 0

    async def load(self, now_us: int) -> None:
        """Count what the store has; the loop gets its turn between pages."""
        lower, upper = all_hints()
        while pairs := self._store.records(lower, upper, HINTS_PAGE):
            for key, value in pairs:
                self._counted(key, len(key) + len(value))
            lower = pairs[-1][0] + b"\0"
            await asyncio.sleep(0)
        lower, upper = all_marks()
        while pairs := self._store.records(lower, upper, HINTS_PAGE):
            for key, value in pairs:
                self._loaded(decode_mark(key, value), now_us)
            lower = pairs[-1][0] + b"\0"
            await asyncio.sleep(0)

    async def synced(self, sequence: int) -> None:
        await self._store.synced(sequence)

    # -- hints ------------------------------------------------------------------------------------

    def put(
        self,
        hints: Sequence[tuple[NodeId, Hint]],
        instead_of: Stored | None = None,
        *,
        fresh: bool = False,
        left_us: int = 0,
    ) -> int:
        """Keep hints, in place of another one if that is given: the sequence to await. `fresh`: none of them
        can be there already. `left_us`: now; 0: as they say."""
        batch: list[Operation] = [("delete", instead_of.key)] if instead_of is not None else []
        written: list[tuple[bytes, int]] = []
        rewritten: list[tuple[bytes, int, int]] = []
        value = body = b""
        last: Hint | None = None
        for target, hint in hints:
            if hint is not last:
                value, body, last = encode(hint), body_of(hint), hint
            key = hint_key(target, hint.created_us, body)
            is_replaced = instead_of is not None and key == instead_of.key
            known = [] if fresh or is_replaced else self._store.records(key, key + b"\0", 1)
            # A known one is written again, so that the sequence covers it.
            batch.append(("put", key, value))
            size = len(key) + len(value)
            if known:
                rewritten.append((key, size, len(value) - len(known[0][1])))
            else:
                written.append((key, size))
        if not batch:
            return 0
        sequence = self._store.write_records(Family.HINTS, batch)
        if instead_of is not None:
            self._uncounted((instead_of,))
        for key, size in written:
            self._counted(key, size, left_us)
            if instead_of is not None and key == instead_of.key:
                self._rewritten[key] = size
        for key, size, grown in rewritten:
            self._rewritten[key] = size
            self.pending[target_of(key)[0]].bytes += grown
            self.bytes += grown
        return sequence

    def page(self, target: int, after: bytes = b"", count: int = HINTS_PAGE) -> list[Stored]:
        """The next hints of a node in the order in which they were left, behind a key."""
        pending = self.pending.get(NodeId(target))
        if pending is None:
            return []
        _, upper = bounds_of(target)
        pairs = self._store.records(max(pending.low, after + b"\0"), upper, count)
        return [Stored(key, len(key) + len(value), decode_hint(key, value)) for key, value in pairs]

    def delete(self, hints: Sequence[Stored], marks: Sequence[DroppedHints] = ()) -> int:
        """Forget hints that were delivered, or given up with the marks of their ranges."""
        batch: list[Operation] = [("delete", one.key) for one in hints]
        batch.extend(self._mark_batch(marks))
        if not batch:
            return 0
        sequence = self._write_marks(batch)
        self._uncounted(hints)
        return sequence

    def count(self) -> int:
        return sum(pending.count for pending in self.pending.values())

    def oldest_us(self) -> int | None:
        """When the oldest hint was left; None without hints."""
        return min((pending.oldest_us for pending in self.pending.values()), default=None)

    def _counted(self, key: bytes, size: int, left_us: int = 0) -> None:
        target, created_us = target_of(key)
        pending = self.pending.get(target)
        if pending is None:
            pending = self.pending[target] = Pending(key)
            pending.oldest_us = created_us
            pending.since_us = left_us or created_us
        pending.low = min(pending.low, key)
        pending.count += 1
        pending.bytes += size
        self.bytes += size
        pending.oldest_us = min(pending.oldest_us, created_us)
        pending.newest_us = max(pending.newest_us, created_us)

    def _uncounted(self, hints: Sequence[Stored]) -> None:
        targets: dict[NodeId, None] = {}
        for one in hints:
            target, _ = target_of(one.key)
            pending = self.pending[target]
            size = self._rewritten.pop(one.key, one.size)
            pending.count -= 1
            pending.bytes -= size
            self.bytes -= size
            targets[target] = None
            if not pending.count:
                del self.pending[target]
        for target in targets:
            if target in self.pending:
                pending = self.pending[target]
                [(pending.low, _)] = self._store.records(pending.low, bounds_of(target)[1], 1)
                pending.oldest_us = target_of(pending.low)[1]
                pending.since_us = max(pending.since_us, pending.oldest_us)

    def validate(self) -> None:
        assert self.bytes == sum(pending.bytes for pending in self.pending.values()), "bytes are miscounted"
        for target, pending in self.pending.items():
            assert pending.count > 0 and pending.bytes > 0, f"nothing waits for node {target}"
            assert pending.oldest_us <= pending.newest_us, f"hints of node {target} are out of order"
            assert target_of(pending.low)[0] == target, f"the lowest key of node {target} is another's"

    # -- marks ------------------------------------------------------------------------------------

    def marks(self) -> Iterator[DroppedHints]:
        for ranges in self._marks.values():
            yield from ranges.values()

    def mark(self, marks: Sequence[DroppedHints]) -> int:
        """Remember ranges that lack writes: the sequence to await."""
        batch = self._mark_batch(marks)
        if batch:
            self._write_marks(batch)
        return self._marked

    def forget_marks(self, done: Callable[[DroppedHints], bool]) -> int:
        """Forget marks that stand for nothing any more: the sequence to await."""
        batch: list[Operation] = []
        for place, ranges in list(self._marks.items()):
            for bounds, mark in list(ranges.items()):
                if done(mark):
                    batch.append(("delete", mark_key(mark)))
                    self._unwritten.pop(mark_key(mark), None)
                    del ranges[bounds]
            if not ranges:
                del self._marks[place]
        return self._store.write_records(Family.HINTS, batch) if batch else 0

    def _mark_batch(self, marks: Sequence[DroppedHints]) -> list[Operation]:
        """What to write for marks: new ranges, and known ones now and then."""
        batch: list[Operation] = []
        for mark in marks:
            ranges = self._marks.setdefault((mark.table_id, mark.node), {})
            known = ranges.get((mark.left, mark.right)) or ranges.get((TOKEN_MIN, TOKEN_MAX))
            if known is not None:
                added = _merged(known, mark)
                # Many writes are given up while a node is away: the store hears of them now and then.
                is_written = _is_power_of_two(added.count) or mark_key(added) in self._unwritten
            else:
                added, is_written = mark, True
                if len(ranges) >= DROPPED_HINT_RANGES_MAX:
                    batch.extend(("delete", mark_key(old)) for old in ranges.values())
                    added = functools.reduce(_merged, ranges.values(), _of_all_tokens(mark))
                    ranges.clear()
            ranges[added.left, added.right] = added
            if is_written:
                batch.append(("put", mark_key(added), encode(added)))
        return batch

    def _write_marks(self, batch: Sequence[Operation]) -> int:
        """Write a batch that puts nothing but marks: they count as written only when the store took them."""
        keys = [operation[1] for operation in batch if operation[0] == "put"]
        self._unwritten.update(dict.fromkeys(keys))
        sequence = self._store.write_records(Family.HINTS, batch)
        for key in keys:
            self._unwritten.pop(key, None)
        if keys:
            self._marked = sequence
        return sequence

    def _loaded(self, mark: DroppedHints, now_us: int) -> None:
        # The newest writes that were given up before the start may not have been written down.
        mark = msgspec.structs.replace(mark, newest_us=max(now_us, mark.newest_us))
        self._marks.setdefault((mark.table_id, mark.node), {})[mark.left, mark.right] = mark


def _is_power_of_two(count: int) -> bool:
    return count & (count - 1) == 0


def _of_all_tokens(mark: DroppedHints) -> DroppedHints:
    return msgspec.structs.replace(mark, left=TOKEN_MIN, right=TOKEN_MAX)


def _merged(known: DroppedHints, mark: DroppedHints) -> DroppedHints:
    return msgspec.structs.replace(
        known,
        reason=mark.reason,
        since_us=min(known.since_us, mark.since_us),
        newest_us=max(known.newest_us, mark.newest_us),
        count=known.count + mark.count,
    )
