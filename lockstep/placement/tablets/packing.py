"""Pieces of some tables in bins of some capacity, and what makes them lie evenly: working state of a planner.

The bins are the nodes of a rack or data centre, or the shards of a node. Three measures in this order: what
a bin holds of its capacity; the requests that it gets; how evenly each table lies. Invariant: every step
lowers the sum of the three by their weights, and a step for a later measure leaves the earlier ones within
their tolerance, or hardly less even where they are not. So steps end, whichever come first: there are
finitely many ways for the pieces to lie, and none comes twice.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Final

#: Bins whose fullness differs by less than this share of the fuller one are even: 257 tablets and 255 are.
FULLNESS_TOLERANCE: Final = 0.01
#: Requests come and go: what differs by less than this is not worth to move data for.
RATE_TOLERANCE: Final = 0.1
#: What they differ by before data is moved for them at all, as a share of the busier bin's, and a second: a
#: shard serves so many without noticing. Then they are made even within the tolerance.
RATE_TRIGGER: Final = 0.25
RATE_TRIGGER_MIN: Final = 500.0
#: Requests a second are counted in thousandths, so that sums are exact.
RATE_UNITS: Final = 1000
#: A single step takes away at least this share of the difference that it is for: one that turns it round is
#: turned round again when what was estimated of sizes is estimated anew.
STEP_MIN: Final = 0.1
#: An exchange evens out at least this share of the smaller one of its two pieces, for both are moved whole.
EXCHANGE_MIN: Final = 0.125
#: A table has at most so much more, or less, of itself in a bin than its share, unless a piece is larger.
SPREAD_TOLERANCE: Final = 0.04
#: Pieces of one table in one bin that are looked at for a step; more would find a slightly better one.
_LOOKED_AT: Final = 24
#: Tables that are looked at for what comes back in an exchange.
_PARTNERS: Final = 8
#: Bins on either side that are tried before a table is left as it is.
_SIDES: Final = 4
#: Rounds over all tables; the second finds little.
_ROUNDS_MAX: Final = 4
#: Exchanges for fullness alone that are worth it for each node: what is left then is within a small piece.
NODE_EXCHANGES: Final = 16
#: Exchanges for requests, for each bin.
_COOLINGS_MAX: Final = 16
_LESS: Final = 1 - STEP_MIN / 2
#: How much requests and tables count beside fullness where a step is good for one and bad for another.
_RATE_WEIGHT: Final = 0.01
_TABLE_WEIGHT: Final = 0.005
#: How much farther apart the fullest and the emptiest bin may be for that.
_HARDLY: Final = 1.1
#: In squares of shares: less is rounding.
_LEAST_GAIN: Final = 1e-12


class Spot:
    """One tablet among the bins: its pieces."""

    __slots__ = ("pieces", "right", "table")

    def __init__(self, table: int, right: int) -> None:
        self.table = table
        self.right = right
        self.pieces: list[Piece] = []


class Piece:
    """One replica: `size` counts for fullness, `bytes` is what it has, `rate` its requests; `home` is the bin
    where it lies, `bin` where it is to lie. `shard` is that of the bin `home`, `to_shard` that of `bin`."""

    __slots__ = ("bin", "bytes", "home", "rate", "shard", "size", "spot", "table", "to_shard")

    def __init__(self, spot: Spot, size: int, bytes_: int, rate: int, home: int, shard: int) -> None:
        assert size > 0 and bytes_ >= 0 and rate >= 0, "a piece weighs something, or any place would suit it"
        self.spot = spot
        self.table = spot.table
        self.size = size
        self.bytes = bytes_
        self.rate = rate
        self.home = home
        self.bin = home
        self.shard = shard
        self.to_shard = shard


class Packing:
    """`weights`: how much each bin can hold, `rate_weights` how many requests it can take; `may(piece, bin)`:
    whether the piece can lie there; `exchanges` for fullness that are worth it, for each bin."""

    def __init__(
        self,
        weights: Sequence[float],
        may: Callable[[Piece, int], bool],
        rate_weights: Sequence[float] | None = None,
        exchanges: int = 0,
    ) -> None:
        assert all(weight > 0 for weight in weights), "a bin can hold something"
        count = len(weights)
        self.weights = list(weights)
        self._weight = sum(weights)
        self.rate_weights = list(rate_weights or weights)
        self.may = may
        self._exchanges_left = exchanges * count
        self._smallest = 0
        self.load = [0] * count
        self.bytes = [0] * count
        self.rate = [0] * count
        #: By bin and table: the pieces that can be moved, and what all of the table's weigh.
        self.held: list[dict[int, dict[Piece, None]]] = [{} for _ in range(count)]
        self.of_table: list[dict[int, int]] = [{} for _ in range(count)]
        self.totals: dict[int, int] = {}
        #: By bin and shard: what is still at home there. Pieces rather leave the shard that has most.
        self.at_home: list[dict[int, int]] = [{} for _ in range(count)]
        self.steps = 0

    def add(self, piece: Piece, is_movable: bool = True) -> None:
        at, table = piece.bin, piece.table
        self._count(piece, at, 1)
        self.totals[table] = self.totals.get(table, 0) + piece.size
        if is_movable:
            self.held[at].setdefault(table, {})[piece] = None
            self._smallest = min(self._smallest or piece.size, piece.size)

    def move(self, piece: Piece, to: int) -> None:
        at, table = piece.bin, piece.table
        assert at != to, "a piece moves to another bin"
        self.steps += 1
        del self.held[at][table][piece]
        self._count(piece, at, -1)
        piece.bin = to
        self._count(piece, to, 1)
        self.held[to].setdefault(table, {})[piece] = None

    def _count(self, piece: Piece, at: int, sign: int) -> None:
        self.load[at] += sign * piece.size
        self.bytes[at] += sign * piece.bytes
        self.rate[at] += sign * piece.rate
        assert self.load[at] >= 0, "no more is taken from a bin than lies there"
        of_table = self.of_table[at]
        of_table[piece.table] = of_table.get(piece.table, 0) + sign * piece.size
        if at == piece.home:
            at_home = self.at_home[at]
            at_home[piece.shard] = at_home.get(piece.shard, 0) + sign * piece.size

    def remove(self, piece: Piece) -> None:
        """Take out a piece that was placed."""
        self.held[piece.bin].get(piece.table, {}).pop(piece, None)
        self._count(piece, piece.bin, -1)
        self.totals[piece.table] -= piece.size
        assert self.totals[piece.table] >= 0, "no more of a table is taken out than was added"

    def place(self, piece: Piece, bins: Sequence[int], is_movable: bool = True) -> None:
        """Put a piece that lies nowhere yet where it makes least unevenness, of fullness and of its table."""
        table, size = piece.table, piece.size
        load, of_table, weights = self.load, self.of_table, self.weights
        piece.bin = min(
            bins, key=lambda at: ((load[at] + of_table[at].get(table, 0) + size) / weights[at], at)
        )
        self.add(piece, is_movable)

    def settle(self) -> None:
        """All steps that there are: a later measure may open a way for an earlier one."""
        for _ in range(_ROUNDS_MAX if len(self.weights) > 1 else 0):
            before = self.steps
            self._level()
            self._level_rates()
            self._spread()
            if self.steps == before:
                return

    # Fullness

    def fullness(self) -> list[float]:
        return [load / weight for load, weight in zip(self.load, self.weights, strict=True)]

    def _level(self) -> None:
        failed: dict[tuple[int, int], None] = {}
        while (pair := self._widest(failed)) is not None:
            piece = self._fitting(*pair)
            if piece is not None:
                self.move(piece, pair[1])
            elif self._exchanges_left > 0 and self._exchanged(*pair):
                self._exchanges_left -= 1
            else:
                failed[pair] = None
                continue
            if failed:
                failed = {one: None for one in failed if not {one[0], one[1]} & {pair[0], pair[1]}}

    def _widest(self, failed: dict[tuple[int, int], None]) -> tuple[int, int] | None:
        """The two bins whose fullness differs most, of those that are not even and not tried in vain."""
        full = self.fullness()
        if not failed:
            fullest, emptiest = max(full), min(full)
            if fullest - emptiest <= FULLNESS_TOLERANCE * fullest:
                return None
            return full.index(fullest), full.index(emptiest)
        ascending = sorted(range(len(full)), key=full.__getitem__)
        # A single piece goes where it makes bins more even: twice the step is more than the smallest.
        widest, found = 0.0, None
        if not self._exchanges_left:
            widest = self._smallest / max(self.weights)
        for giver in reversed(ascending):
            least = max(widest, FULLNESS_TOLERANCE * full[giver])
            # The giver itself is among them, and ends the search at the latest.
            at = 0
            while full[giver] - full[ascending[at]] > least and (giver, ascending[at]) in failed:
                at += 1
            taker = ascending[at]
            if full[giver] - full[taker] > least:
                assert giver != taker, "what differs is two bins"
                widest, found = full[giver] - full[taker], (giver, taker)
        return found

    def step(self, giver: int, taker: int) -> float:
        """What has to go from one bin to the other to make them even; twice as much makes them as uneven."""
        assert giver != taker, "what goes, goes to another bin"
        one, two = self.weights[giver], self.weights[taker]
        return (self.load[giver] / one - self.load[taker] / two) / (1 / one + 1 / two)

    def _by_surplus(self, giver: int, taker: int) -> list[int]:
        """Tables of which the giver can give, those first of which it has most more than the taker."""
        mine, theirs = self.of_table[giver], self.of_table[taker]
        one, two, totals = self.weights[giver], self.weights[taker], self.totals
        found = [
            (-(mine[table] / one - theirs.get(table, 0) / two) / totals[table], table)
            for table, pieces in self.held[giver].items()
            if pieces
        ]
        found.sort()
        return [table for _, table in found]

    def _fitting(self, giver: int, taker: int) -> Piece | None:
        ideal = self.step(giver, taker)
        limit = 2 * ideal * _LESS
        for table in self._by_surplus(giver, taker):
            found = self._best(table, giver, taker, limit, ideal)
            if found is not None and self._worth(giver, taker, found):
                return found
        return None

    def _best(self, table: int, giver: int, taker: int, limit: float, ideal: float) -> Piece | None:
        """A piece below the limit: rather one that is away from home, for that costs nothing more."""
        may, at_home = self.may, self.at_home[giver]
        looked, best, best_key = 0, None, (False, False, False, 0)
        for piece in self.held[giver].get(table, ()):
            if piece.size >= limit or not may(piece, taker):
                continue
            key = (piece.home == taker, piece.home != giver, piece.size <= ideal, at_home.get(piece.shard, 0))
            if best is None or key > best_key:
                best, best_key = piece, key
            looked += 1
            if looked == _LOOKED_AT:
                break
        assert best is None or best.bin == giver, "a bin gives what lies in it"
        return best

    def _exchanged(self, giver: int, taker: int) -> bool:
        """Exchange two pieces of one table whose difference comes nearest to what is to go."""
        ideal = self.step(giver, taker)
        limit = 2 * ideal * _LESS
        best: tuple[float, Piece, Piece] | None = None
        for table, mine in self.held[giver].items():
            theirs = sorted(self.held[taker].get(table, ()), key=lambda piece: piece.size)
            ascending = sorted(mine, key=lambda piece: piece.size)
            at = 0
            for piece in ascending:
                while at < len(theirs) and theirs[at].size < piece.size - ideal:
                    at += 1
                for other in theirs[max(0, at - 1) : at + 1]:
                    off = abs(piece.size - other.size - ideal)
                    is_worth = piece.size - other.size >= EXCHANGE_MIN * other.size
                    fits = is_worth and piece.size - other.size < limit and (best is None or off < best[0])
                    if fits and self.may(piece, taker) and self.may(other, giver):
                        best = (off, piece, other)
        if best is None or not self._worth(giver, taker, best[1], best[2]):
            return False
        self._exchange(best[1], best[2])
        return True

    def _worth(self, giver: int, taker: int, piece: Piece, other: Piece | None = None) -> bool:
        """Whether all measures together, by their weights, fall when a piece goes and another returns."""
        everything = sum(self.totals.values())
        size = piece.size - (other.size if other is not None else 0)
        found = self._lowered(self.load, self.weights, giver, taker, size) / everything**2
        found += _TABLE_WEIGHT * self._gain(piece, giver, taker) * self.totals[piece.table] / everything
        if other is not None:
            share = self.totals[other.table] / everything
            found += _TABLE_WEIGHT * self._gain(other, taker, giver) * share
        if requests := sum(self.rate):
            rate = piece.rate - (other.rate if other is not None else 0)
            lowered = self._lowered(self.rate, self.rate_weights, giver, taker, rate)
            found += _RATE_WEIGHT * lowered / requests**2
        return found > _LEAST_GAIN

    def _lowered(
        self, load: Sequence[int], weights: Sequence[float], giver: int, taker: int, size: int
    ) -> float:
        """By how much the squares fall, in units of the weights together, when so much goes."""
        one, two, mine, theirs = weights[giver], weights[taker], load[giver], load[taker]
        after = (mine - size) ** 2 / one + (theirs + size) ** 2 / two
        return (mine * mine / one + theirs * theirs / two - after) * sum(weights)

    def _exchange(self, one: Piece, two: Piece) -> None:
        giver, taker = one.bin, two.bin
        assert one.spot is not two.spot, "two replicas of one tablet exchanged is no step"
        self.move(one, taker)
        self.move(two, giver)

    # What no later step may spoil

    def _stays_level(self, giver: int, taker: int, size: int, rate: int) -> bool:
        """Whether bins stay as even when so much more goes one way than the other way."""
        return _stays(self.load, self.weights, giver, taker, size, FULLNESS_TOLERANCE) and _stays(
            self.rate, self.rate_weights, giver, taker, rate, RATE_TOLERANCE
        )

    def _is_worth(self, one: Piece, two: Piece) -> bool:
        """Whether an exchange does more for tables than it costs where bins are not even anyway, and hardly
        more uneven by it."""
        giver, taker, size = one.bin, two.bin, one.size - two.size
        full = self.fullness()
        before = max(full) - min(full)
        full[giver] = (self.load[giver] - size) / self.weights[giver]
        full[taker] = (self.load[taker] + size) / self.weights[taker]
        if max(full) - min(full) > _HARDLY * before or not self._worth(giver, taker, one, two):
            return False
        rate = one.rate - two.rate
        return _stays(self.rate, self.rate_weights, giver, taker, rate, RATE_TOLERANCE)

    # Requests

    def _level_rates(self) -> None:
        if not self.are_rates_apart():
            return
        left = _COOLINGS_MAX * len(self.weights)
        failed: dict[tuple[int, int], None] = {}
        while left > 0:
            left -= 1
            hot = [rate / weight for rate, weight in zip(self.rate, self.rate_weights, strict=True)]
            order = sorted(range(len(hot)), key=hot.__getitem__)
            pairs = (
                (giver, taker)
                for giver in reversed(order[-_SIDES:])
                for taker in order[:_SIDES]
                if hot[giver] - hot[taker] > RATE_TOLERANCE * hot[giver] and (giver, taker) not in failed
            )
            pair = next(pairs, None)
            if pair is None:
                return
            if self._cooled(*pair):
                failed = {one: None for one in failed if not {one[0], one[1]} & {pair[0], pair[1]}}
            else:
                failed[pair] = None

    def are_rates_apart(self) -> bool:
        """Whether requests are so uneven that data is moved for it."""
        if not any(self.rate):
            return False
        hot = [rate / weight for rate, weight in zip(self.rate, self.rate_weights, strict=True)]
        return max(hot) - min(hot) > max(RATE_TRIGGER * max(hot), RATE_TRIGGER_MIN * RATE_UNITS)

    def _cooled(self, giver: int, taker: int) -> bool:
        """Move a hot piece, or exchange it for a cooler one of its table and about its size."""
        one, two = self.rate_weights[giver], self.rate_weights[taker]
        limit = 2 * (self.rate[giver] / one - self.rate[taker] / two) / (1 / one + 1 / two) * _LESS
        assert limit > 0, "heat goes from the hotter to the cooler"
        all_of = (piece for pieces in self.held[giver].values() for piece in pieces)
        for piece in heapq.nlargest(_LOOKED_AT, all_of, key=lambda piece: piece.rate):
            if not piece.rate or not self.may(piece, taker):
                continue
            is_cooler = piece.rate < limit and self._stays_full(giver, taker, piece.size)
            if is_cooler and self._worth(giver, taker, piece):
                self.move(piece, taker)
                return True
            best: tuple[int, Piece] | None = None
            for other in self.held[taker].get(piece.table, ()):
                gain = piece.rate - other.rate
                if not 0 < gain < limit or (best is not None and gain <= best[0]):
                    continue
                if self.may(other, giver) and self._stays_full(giver, taker, piece.size - other.size):
                    best = (gain, other)
            if best is not None and self._worth(giver, taker, piece, best[1]):
                self._exchange(piece, best[1])
                return True
        return False

    def _stays_full(self, giver: int, taker: int, size: int) -> bool:
        return _stays(self.load, self.weights, giver, taker, size, FULLNESS_TOLERANCE)

    # How each table lies

    def shares(self, table: int) -> list[float]:
        """What each bin has of a table, 1.0 where that is its share of the bins' weights."""
        scale = sum(self.weights) / self.totals[table]
        return [
            of.get(table, 0) * scale / weight for of, weight in zip(self.of_table, self.weights, strict=True)
        ]

    def _spread(self) -> None:
        tables = sorted(self.totals, key=lambda table: (-self.totals[table], table))
        tables = [table for table in tables if self.totals[table]]
        for _ in range(_ROUNDS_MAX):
            if not sum([self._spread_table(table) for table in tables]):
                return

    def _spread_table(self, table: int) -> int:
        steps = 0
        while True:
            shares = self.shares(table)
            if max(shares) - 1 <= SPREAD_TOLERANCE and 1 - min(shares) <= SPREAD_TOLERANCE:
                return steps
            order = sorted(range(len(shares)), key=shares.__getitem__)
            if not any(self._evened(table, *pair, shares) for pair in _sides(order)):
                return steps
            steps += 1

    def _evened(self, table: int, giver: int, taker: int, shares: Sequence[float]) -> bool:
        """Bring a piece of a table to where it has less of itself, alone or for a piece of another table."""
        gap = shares[giver] - shares[taker]
        assert gap >= 0, "a table goes from where it has more of itself"
        both = 1 / self.weights[giver] + 1 / self.weights[taker]
        limit = 2 * gap * self.totals[table] / (sum(self.weights) * both) * _LESS
        piece = self._best(table, giver, taker, limit, limit / 2)
        if piece is None:
            return False
        stays = self._stays_level(giver, taker, piece.size, piece.rate)
        if stays and self._worth(giver, taker, piece):
            self.move(piece, taker)
            return True
        partners = [known for known in self._by_surplus(taker, giver) if known != table]
        for partner in partners[:_PARTNERS]:
            pair = self._pair(table, partner, giver, taker, limit)
            if pair is None:
                continue
            gain = self._gain(pair[0], giver, taker) + self._gain(pair[1], taker, giver)
            if gain > _LEAST_GAIN and self._worth(giver, taker, *pair):
                self._exchange(*pair)
                return True
        return False

    def _pair(
        self, table: int, partner: int, giver: int, taker: int, limit: float
    ) -> tuple[Piece, Piece] | None:
        """A piece of a table and one of another that can come back for it: those whose difference comes
        nearest to what makes the bins even."""
        wanted = self.step(giver, taker)
        theirs = sorted(islice(self.held[taker][partner], _LOOKED_AT), key=lambda piece: piece.size)
        sizes = [other.size for other in theirs]
        found: list[tuple[float, int, Piece, Piece]] = []
        for piece in islice(self.held[giver].get(table, ()), _LOOKED_AT):
            if piece.size < limit:
                at = bisect_left(sizes, piece.size - wanted)
                for other in theirs[max(0, at - 1) : at + 1]:
                    off = abs(piece.size - other.size - wanted)
                    found.append((off, len(found), piece, other))
        for _, _, piece, other in heapq.nsmallest(_SIDES, found):
            size, rate = piece.size - other.size, piece.rate - other.rate
            if not (self.may(piece, taker) and self.may(other, giver)):
                continue
            if self._stays_level(giver, taker, size, rate) or self._is_worth(piece, other):
                return piece, other
        return None

    def _gain(self, piece: Piece, giver: int, taker: int) -> float:
        """By how much a table lies more evenly when a piece of it moves, in squares of shares."""
        total, table, size = self.totals[piece.table], piece.table, piece.size
        one, two = self.weights[giver], self.weights[taker]
        mine, theirs = self.of_table[giver].get(table, 0), self.of_table[taker].get(table, 0)
        after = (mine - size) ** 2 / one + (theirs + size) ** 2 / two
        return (mine * mine / one + theirs * theirs / two - after) * self._weight / (total * total)


def _sides(order: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Pairs of one that has much and one that has little, the outermost first."""
    sides = min(_SIDES, len(order) // 2)
    for distance in range(2 * sides - 1):
        for giver in range(min(distance, sides - 1) + 1):
            if distance - giver < sides:
                yield order[-1 - giver], order[distance - giver]


def _stays(
    load: Sequence[int], weights: Sequence[float], giver: int, taker: int, size: int, tolerance: float
) -> bool:
    """Whether two bins do not become less even, or all bins stay within the tolerance."""
    assert giver != taker, "a step is between two bins"
    one, two = load[giver] / weights[giver], load[taker] / weights[taker]
    new_one = (load[giver] - size) / weights[giver]
    new_two = (load[taker] + size) / weights[taker]
    if max(new_one, new_two) <= max(one, two) and min(new_one, new_two) >= min(one, two):
        return True
    full = [held / weight for held, weight in zip(load, weights, strict=True)]
    full[giver], full[taker] = new_one, new_two
    return max(full) - min(full) <= tolerance * max(full)
