"""The difference of two large sets, by a stream of symbols of which any long enough beginning is enough.

For an audit of what ids cannot tell: whether two replicas hold the same content under the same ids. Each
item is an id with a hash of its content. Symbol 0 is of all items, later ones of fewer and fewer: each item
is in a sequence of symbols that its checksum draws. The symbols of one set less those of the other are those
of the difference, and are read by peeling. Nobody needs to guess how large the difference is: about 1.35
symbols an item are enough for a large one.

Invariant: equal sets give equal symbols; what `SymbolDecoder` returns is exactly the difference, but where
64 bits of a checksum collide.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

import msgspec

from lockstep.tracking.held import MutationId
from lockstep.tracking.limits import SYMBOLS_MAX

#: Bits of a node and of a start, of an offset, and of the hash of a content.
_NODE_BITS: Final = 32
_OFFSET_BITS: Final = 64
CONTENT_BITS: Final = 64
_ITEM_BYTES: Final = (2 * _NODE_BITS + _OFFSET_BITS + CONTENT_BITS) // 8
_MASK: Final = (1 << 64) - 1
#: The multiplier of a generator of 64 bits whose steps are well mixed.
_MULTIPLIER: Final = 0xDA942042E4DD58B5


class Item(msgspec.Struct, frozen=True, order=True):
    """`content` is a hash of what lies under the id."""

    node: int
    start: int
    offset: int
    content: int

    def packed(self) -> int:
        assert self.node >> _NODE_BITS == self.start >> _NODE_BITS == self.offset >> _OFFSET_BITS == 0
        assert self.content >> CONTENT_BITS == 0
        upper = (self.node << _NODE_BITS | self.start) << _OFFSET_BITS | self.offset
        return upper << CONTENT_BITS | self.content


class Symbol(msgspec.Struct, frozen=True, array_like=True):
    """`total` and `check` are of the items by exclusive or, `count` how many there are."""

    total: bytes
    check: int
    count: int


def item_of(given: MutationId, content: bytes) -> Item:
    hashed = int.from_bytes(blake2b(content, digest_size=CONTENT_BITS // 8).digest(), "big")
    return Item(given.node, given.start, given.offset, hashed)


def _unpacked(value: int) -> Item:
    assert value >> 8 * _ITEM_BYTES == 0, "an item has so many bytes"
    upper, content = value >> CONTENT_BITS, value & ((1 << CONTENT_BITS) - 1)
    log, offset = upper >> _OFFSET_BITS, upper & ((1 << _OFFSET_BITS) - 1)
    return Item(log >> _NODE_BITS, log & ((1 << _NODE_BITS) - 1), offset, content)


def _check(value: int) -> int:
    return int.from_bytes(blake2b(value.to_bytes(_ITEM_BYTES, "big"), digest_size=8).digest(), "big")


def _next(state: int, index: int) -> tuple[int, int]:
    """The generator's next state, and the next symbol after `index` that the item is in."""
    state = state * _MULTIPLIER & _MASK
    gap = math.ceil((index + 1.5) * ((1 << 32) / math.sqrt(state + 1) - 1))
    assert 0 <= state <= _MASK and index >= 0, "a generator of 64 bits draws for a symbol"
    return state, index + max(gap, 1)


class _Window:
    """Items by the next symbol that they are in."""

    __slots__ = ("_due",)

    def __init__(self) -> None:
        #: (symbol, item, its checksum, state of its generator, +1 or -1).
        self._due: list[tuple[int, int, int, int, int]] = []

    def add(self, symbol: int, value: int, check: int, state: int, sign: int) -> None:
        heapq.heappush(self._due, (symbol, value, check, state, sign))

    def apply(self, symbol: int, total: int, check: int, count: int) -> tuple[int, int, int]:
        """With the items that are in this symbol, which is the lowest that is due."""
        due = self._due
        while due and due[0][0] == symbol:
            _, value, checked, state, sign = due[0]
            total ^= value
            check ^= checked
            count += sign
            state, later = _next(state, symbol)
            heapq.heapreplace(due, (later, value, checked, state, sign))
        assert not due or due[0][0] > symbol, "symbols are asked for in order"
        return total, check, count


class SymbolEncoder:
    """The stream of one set."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._window = _Window()
        self._made = 0
        for item in items:
            value = item.packed()
            check = _check(value)
            self._window.add(0, value, check, check, 1)

    def next(self) -> Symbol:
        total, check, count = self._window.apply(self._made, 0, 0, 0)
        self._made += 1
        return Symbol(total.to_bytes(_ITEM_BYTES, "big"), check, count)


class SymbolDecoder:
    """Takes the other set's symbols in order, until `done`."""

    def __init__(self, items: Iterable[Item]) -> None:
        self._own = SymbolEncoder(items)
        #: Items that were found, which later symbols are freed of as they come.
        self._found = _Window()
        self._symbols: list[tuple[int, int, int]] = []
        self._theirs: list[int] = []
        self._ours: list[int] = []
        self._open = 0

    @property
    def count(self) -> int:
        return len(self._symbols)

    @property
    def done(self) -> bool:
        """Symbol 0 has every item of the difference: when it is empty, all are found."""
        return bool(self._symbols) and self._symbols[0] == (0, 0, 0)

    def add(self, symbol: Symbol) -> None:
        assert not self.done and self.count < SYMBOLS_MAX
        own = self._own.next()
        total = int.from_bytes(symbol.total, "big") ^ int.from_bytes(own.total, "big")
        fresh = (total, symbol.check ^ own.check, symbol.count - own.count)
        self._symbols.append(self._found.apply(self.count, *fresh))
        self._peel([self.count - 1])

    def _peel(self, changed: list[int]) -> None:
        while changed:
            total, check, count = self._symbols[changed.pop()]
            if count not in (1, -1) or _check(total) != check:
                continue
            (self._theirs if count == 1 else self._ours).append(total)
            state, at = check, 0
            while at < len(self._symbols):
                before = self._symbols[at]
                self._symbols[at] = (before[0] ^ total, before[1] ^ check, before[2] - count)
                changed.append(at)
                state, at = _next(state, at)
            self._found.add(at, total, check, state, -count)

    def difference(self) -> tuple[list[Item], list[Item]]:
        """Items that only the other set has, and those that only this one has."""
        assert self.done, "more symbols are needed"
        assert not set(self._theirs) & set(self._ours), "an item is of one side"
        return sorted(map(_unpacked, self._theirs)), sorted(map(_unpacked, self._ours))
