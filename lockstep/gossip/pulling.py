"""Who tells whom of a new epoch, who asks whom for a sign of life, whom to ask for missing log entries and
snapshots, and when to ask another.

A step machine: it is told what was heard and what came of each request, and says what to ask next; times are
milliseconds of one monotonic clock and are passed in.

Invariant: one request is under way at a time, whoever knows of the gap, so requests for one gap are merged
and other peers are fallbacks; a peer that does not answer, or answered badly, rests while others are asked; a
snapshot's transfer goes on where it stopped, also with another peer that has the identical one; bytes that
proved wrong while several gave them are next taken from one peer alone, so that it shows whose are wrong.
Nobody sends more than ANNOUNCEMENTS_MAX announcements for one epoch however large the cluster is, and every
member is told by somebody when nothing is lost; what an epoch's announcements look like follows from the
members at that epoch alone, so that nodes agree on it without talking; in each round of pings a node asks at
most PINGED_MAX others, is asked by as many, and over the rounds by every other.
"""

from __future__ import annotations

import operator
from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

import msgspec

from lockstep.values.limits import ANNOUNCEMENTS_MAX, FETCH_SOURCES_MAX, PINGED_MAX

P = TypeVar("P")

#: How long an answer may take before another peer is asked: so many times as long as answers took lately,
#: within bounds, and twice as long after every few failures in a row. A late answer is used all the same.
ANSWER_TOLERANCE: Final = 4
ANSWER_MS_MIN: Final = 200
ANSWER_MS_MAX: Final = 4000
_FAILURES_PER_DOUBLING: Final = 4
#: A peer that speaks of more and answered so many times in a row with nothing may not have it.
_EMPTY_ANSWERS_MAX: Final = 3
#: A peer that failed rests this long; doubles with each failure in a row.
REST_MS_MIN: Final = 50
REST_MS_MAX: Final = 2000
#: A peer whose history contradicts a confirmed one, or whose answers are damaged, is not asked for so long.
REFUSED_MS: Final = 60_000


class Offer(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot that a peer can give: the value that the snapshot entry of `epoch` speaks of.

    `hash` is that entry's hash, `digest` the state digest it states, `size_bytes` the whole of what is to
    be fetched. Equal offers of two peers mean identical bytes.
    """

    epoch: int
    hash: bytes
    digest: bytes
    size_bytes: int


class Request(msgspec.Struct, Generic[P], frozen=True):
    """Ask `peer` for entries after `after`, or, with `offer`, for its bytes from `offset`."""

    number: int
    peer: P
    after: int
    asked_ms: int
    offer: Offer | None = None
    offset: int = 0


class _Source:
    __slots__ = ("empty_answers", "epoch", "failures", "heard", "rests_until_ms")

    def __init__(self) -> None:
        self.epoch = 0
        self.empty_answers = 0
        self.heard = 0
        self.failures = 0
        self.rests_until_ms = 0


class Puller(Generic[P]):
    """What is told of another than the present request only says how long answers take."""

    def __init__(self) -> None:
        self._sources: dict[P, _Source] = {}
        self._refused_until_ms: dict[P, int] = {}
        self._number = 0
        self._heard = 0
        self._failures = 0
        #: What answers took lately, smoothed.
        self._answer_ms = 0
        self._request: Request[P] | None = None
        #: What the source was known to have when it was asked, and when the answer is late.
        self._asked_epoch = 0
        self._late_ms = 0
        self._held = False
        self._offer: Offer | None = None
        self._offset = 0
        self._offered_by: P | None = None
        #: Peers that do not have the snapshot under way, and those that gave parts of it.
        self._without: dict[P, None] = {}
        self._gave: dict[P, None] = {}
        #: Nobody but who offered the snapshot is asked for it.
        self._alone = False

    # -- what happens --------------------------------------------------------------------------------

    def heard(self, peer: P, epoch: int, now_ms: int) -> None:
        """`peer` has applied `epoch`."""
        refused = self._refused_until_ms.get(peer)
        if refused is not None:
            if now_ms < refused:
                return
            del self._refused_until_ms[peer]
        source = self._sources.get(peer)
        if source is None:
            if len(self._sources) >= FETCH_SOURCES_MAX:
                self._drop_one()
            source = self._sources[peer] = _Source()
            assert len(self._sources) <= FETCH_SOURCES_MAX, "who is of least use makes room"
        assert peer not in self._refused_until_ms, "nothing is learned of one whose answers are wrong"
        self._heard += 1
        source.heard = self._heard
        source.epoch = max(source.epoch, epoch)

    def answered(self, request: Request[P], peer_epoch: int, took: bool, now_ms: int) -> None:
        """Entries arrived; `took`: at least one was news and is being applied.

        An answer without news means that the peer has no more than it says, unless it was heard of
        something newer after it was asked.
        """
        self._measure(request, now_ms)
        if not self._finish(request):
            return
        source = self._sources.get(request.peer)
        if source is not None:
            source.failures = 0
            if took:
                source.empty_answers = 0
            elif source.epoch == self._asked_epoch:
                if peer_epoch > request.after:
                    source.empty_answers += 1
                    self._rest(source, now_ms)  # it has more and does not give it: others first
                else:
                    source.epoch = peer_epoch
        if took:
            self._failures = 0

    def began(self, offer: Offer, peer: P) -> None:
        """Fetch this snapshot, which `peer` offered; one that was partly fetched is gone on with."""
        assert offer.size_bytes > 0, "a snapshot has bytes"
        if self._offer != offer:
            self._offer, self._offset, self._gave = offer, 0, {}
        self._offered_by, self._without = peer, {}

    def arrived(self, request: Request[P], size_bytes: int, now_ms: int) -> None:
        """The next bytes of the snapshot are here."""
        self._measure(request, now_ms)
        if not self._finish(request) or self._offer is None or request.offer != self._offer:
            return
        assert request.offset == self._offset, "one chunk is under way at a time"
        self._offset += size_bytes
        assert size_bytes > 0 and self._offset <= self._offer.size_bytes, "within the snapshot"
        self._failures = 0
        self._gave[request.peer] = None
        source = self._sources.get(request.peer)
        if source is not None and not self._alone:
            source.failures = 0

    def lacking(self, request: Request[P]) -> None:
        """The peer asked for a part of the snapshot does not have it (any more)."""
        if self._finish(request):
            self._without[request.peer] = None

    def dropped(self) -> None:
        """The snapshot under way is of no use, or not now."""
        self._drop()

    def installed(self) -> None:
        """The snapshot under way, or what comes after it, is here."""
        self._drop()
        self._alone = False

    def damaged(self, peer: P, now_ms: int) -> None:
        """The bytes here, of which `peer` gave the last, are not those of the snapshot under way."""
        givers = {**self._gave, peer: None}
        self._drop()
        self._alone = self._alone or len(givers) > 1
        for giver in givers:
            self.disappointed(giver, now_ms)

    def failed(self, request: Request[P], now_ms: int) -> None:
        """No answer, or none that helps."""
        if self._finish(request):
            self._failed(request.peer, now_ms)

    def disappointed(self, peer: P, now_ms: int) -> None:
        """What `peer` gave was of no use: others first."""
        source = self._sources.get(peer)
        if source is not None:
            self._rest(source, now_ms)

    def refuse(self, peer: P, now_ms: int) -> None:
        """The peer's answers are wrong: ask it nothing for a good while."""
        if len(self._refused_until_ms) >= FETCH_SOURCES_MAX:
            del self._refused_until_ms[next(iter(self._refused_until_ms))]
        self._refused_until_ms[peer] = now_ms + REFUSED_MS
        self._sources.pop(peer, None)
        if self._request is not None and self._request.peer == peer:
            self._request = None
        assert len(self._refused_until_ms) <= FETCH_SOURCES_MAX, "who was refused first makes room"

    def hold(self, held: bool) -> None:
        """While held nothing is asked: what came last is being judged or installed."""
        self._held = held

    # -- what to do ----------------------------------------------------------------------------------

    @property
    def offer(self) -> Offer | None:
        """The snapshot under way."""
        return self._offer

    @property
    def complete(self) -> bool:
        """All bytes of the snapshot under way are here."""
        return self._offer is not None and self._offset == self._offer.size_bytes

    def wanted(self, have: int) -> int:
        """The newest epoch known to exist; `have` when that is not above it."""
        return max((source.epoch for source in self._sources.values()), default=have)

    def to_be_had(self, have: int) -> int:
        """The same, without what peers speak of and again and again do not give."""
        known = (s.epoch for s in self._sources.values() if s.empty_answers < _EMPTY_ANSWERS_MAX)
        return max(known, default=have)

    def behind(self, have: int) -> bool:
        return any(source.epoch > have for source in self._sources.values())

    def is_current(self, request: Request[P]) -> bool:
        """Whether the answer to this request is waited for; else another was asked meanwhile."""
        return self._request is request

    def next(self, have: int, now_ms: int) -> Request[P] | None:
        """What to ask now, with `have` the newest epoch here (applied or waiting to be)."""
        request = self._request
        if request is not None:
            if now_ms < self._late_ms:
                return None
            self._request = None
            self._failed(request.peer, now_ms)
        if self._held or self.complete:
            return None
        for useless in [peer for peer, source in self._sources.items() if source.epoch <= have]:
            del self._sources[useless]
        if self._offer is not None and self._offer.epoch <= have:
            self.installed()
        peer = self._choose(now_ms)
        if peer is None and self._offer is not None and not self._any_left():
            # Nobody has this snapshot (any more); who offered it may not even have had it.
            offered_by = self._offered_by
            self._drop()
            if offered_by is not None:
                self.disappointed(offered_by, now_ms)
            peer = self._choose(now_ms)
        return None if peer is None else self._ask(peer, have, now_ms)

    def wake_ms(self) -> int | None:
        """When `next` may have something although nothing happens; None: never."""
        if self._request is not None:
            return self._late_ms
        if self._held or self.complete:
            return None
        resting = (source.rests_until_ms for peer, source in self._sources.items() if self._may_ask(peer))
        return min(resting, default=None)

    # -- inside --------------------------------------------------------------------------------------

    def _ask(self, peer: P, have: int, now_ms: int) -> Request[P]:
        assert self._request is None and not self._held, "one request at a time"
        assert self._sources[peer].epoch > have, "who has nothing new is asked for nothing"
        self._number += 1
        self._request = Request(self._number, peer, have, now_ms, self._offer, self._offset)
        self._asked_epoch = self._sources[peer].epoch
        patience_ms = max(ANSWER_MS_MIN, ANSWER_TOLERANCE * self._answer_ms)
        doublings = min(self._failures // _FAILURES_PER_DOUBLING, 8)
        self._late_ms = now_ms + min(ANSWER_MS_MAX, patience_ms << doublings)
        assert ANSWER_MS_MIN <= self._late_ms - now_ms <= ANSWER_MS_MAX, "patience has its bounds"
        return self._request

    def _measure(self, request: Request[P], now_ms: int) -> None:
        assert 0 < request.number <= self._number, "an answer to a question that was never asked"
        took_ms = max(0, now_ms - request.asked_ms)
        self._answer_ms = took_ms if not self._answer_ms else (3 * self._answer_ms + took_ms) // 4

    def _finish(self, request: Request[P]) -> bool:
        if self._request is not request:
            return False
        self._request = None
        return True

    def _failed(self, peer: P, now_ms: int) -> None:
        self._failures += 1
        source = self._sources.get(peer)
        if source is not None:
            self._rest(source, now_ms)
        if self._alone and self._failures >= _FAILURES_PER_DOUBLING:
            self._drop()

    def _rest(self, source: _Source, now_ms: int) -> None:
        source.rests_until_ms = now_ms + min(REST_MS_MAX, REST_MS_MIN << min(source.failures, 8))
        source.failures += 1

    def _any_left(self) -> bool:
        return any(self._may_ask(peer) for peer in self._sources)

    def _may_ask(self, peer: P) -> bool:
        """Whether it could give what is wanted now, once it has rested."""
        if self._offer is None:
            return True
        return peer not in self._without and (not self._alone or peer == self._offered_by)

    def _drop(self) -> None:
        self._offer, self._offset, self._offered_by = None, 0, None
        self._without, self._gave = {}, {}

    def _choose(self, now_ms: int) -> P | None:
        """Who failed least; of those, who was heard last."""
        best: P | None = None
        best_rank: tuple[int, int] | None = None
        for peer, source in self._sources.items():
            if source.rests_until_ms > now_ms or not self._may_ask(peer):
                continue
            rank = (source.failures, -source.heard)
            if best_rank is None or rank < best_rank:
                best, best_rank = peer, rank
        return best

    def _drop_one(self) -> None:
        """Forget who is of least use: who failed most, and of those who was heard longest ago; never who
        offered the snapshot under way."""
        known = self._sources
        assert len(known) > 1, "somebody else can be forgotten"
        others = (peer for peer in known if peer != self._offered_by)
        del known[max(others, key=lambda peer: (known[peer].failures, -known[peer].heard))]

    def validate(self) -> None:
        assert len(self._sources) <= FETCH_SOURCES_MAX and len(self._refused_until_ms) <= FETCH_SOURCES_MAX
        assert not set(self._sources) & set(self._refused_until_ms), "a refused peer is no source"
        if self._offer is None:
            assert self._offset == 0 and not self._without and not self._gave, "progress is of a snapshot"
        else:
            assert 0 <= self._offset <= self._offer.size_bytes, "progress within the snapshot"


#: Members that one member tells; four hops reach 1554 nodes.
FAN_OUT: Final = 6
#: Of the nodes asked for a sign of life in one round, those asked at one moment; the others follow within the
#: round, so that nobody answers with news to so many at once.
PINGED_AT_ONCE: Final = 4


class Tree:
    """The announcement tree of one epoch over `ids` (ascending).

    Members stand in a row that is turned from epoch to epoch, so that those who pass news on differ. The
    first FAN_OUT of the row are the roots; member p tells members FAN_OUT * (p + 1) and following.
    """

    def __init__(self, ids: Sequence[int], epoch: int) -> None:
        assert epoch >= 0, "epochs count from 1, and 0 is the empty value"
        assert all(map(operator.lt, ids, ids[1:])), "all nodes put the members in the same row"
        self._ids = ids
        inner = max(1, (len(ids) - 1) // FAN_OUT)
        self._turn = (epoch * inner) % len(ids) if ids else 0

    def at(self, place: int) -> int:
        """The member at a place of the row."""
        assert 0 <= place < len(self._ids), f"place {place} of {len(self._ids)}"
        return self._ids[(place + self._turn) % len(self._ids)]

    def place_of(self, node: int) -> int | None:
        """None for a node that is no member."""
        index = bisect_left(self._ids, node)
        if index == len(self._ids) or self._ids[index] != node:
            return None
        assert 0 <= self._turn < len(self._ids), "the row is turned by less than its length"
        return (index - self._turn) % len(self._ids)

    def roots(self) -> range:
        """Places of those whom the node that made the epoch tells first."""
        return range(min(FAN_OUT, len(self._ids)))

    def below(self, place: int) -> range:
        """Places of those whom the member at `place` tells."""
        first = FAN_OUT * (place + 1)
        assert first > place, "news goes down the tree, so that it ends"
        return range(min(first, len(self._ids)), min(first + FAN_OUT, len(self._ids)))


def receivers(tree: Tree, own: int, *, leads: bool, alive: Callable[[int], bool]) -> tuple[int, ...]:
    """Whom `own` tells of the tree's epoch once it has applied it: no one twice, never itself.

    The leader tells the roots. Everyone tells those below. One that seems dead is told all the same, and
    those below it are told in its stead.
    """
    places = list(tree.roots()) if leads else []
    place = tree.place_of(own)
    if place is not None:
        places.extend(tree.below(place))
    chosen: dict[int, None] = {}
    for place in places:  # grows: those below the silent are looked at after all that come first
        node = tree.at(place)
        if node == own or node in chosen:
            continue
        chosen[node] = None
        if len(chosen) == ANNOUNCEMENTS_MAX:
            break
        if not alive(node):
            places.extend(tree.below(place))
    assert own not in chosen and len(chosen) <= ANNOUNCEMENTS_MAX, "nobody tells itself, or too many"
    return tuple(chosen)


def ping_rounds(members: int) -> int:
    """Rounds until a node has asked every other one of a cluster with so many members."""
    assert members >= 0, "members are counted"
    return max(1, -(-(members - 1) // PINGED_MAX))


def pinged(ids: Sequence[int], own: int, round_number: int) -> tuple[int, ...]:
    """Whom `own` asks for a sign of life in this round: the next ones after it in the row of all ids.

    `ids` ascending. A node without a place in the row asks as if it stood where its id belongs.
    """
    others = bisect_left(ids, own)
    known = others < len(ids) and ids[others] == own
    count = len(ids) - 1 if known else len(ids)
    if count <= 0:
        return ()
    first = (round_number * PINGED_MAX) % count if count > PINGED_MAX else 0
    start = others + 1 if known else others
    chosen = []
    for step in range(min(count, PINGED_MAX)):
        chosen.append(ids[(start + (first + step) % count) % len(ids)])
    assert own not in chosen, "nobody asks itself"
    assert len(set(chosen)) == len(chosen) <= PINGED_MAX, "in one round a node is asked once"
    return tuple(chosen)
