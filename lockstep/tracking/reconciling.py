"""What the background does for one range: tell peers what is new here, fetch what is known to lack, in time.

Holdings only grow, so the news for a peer are what is held and was not when the peer last acknowledged news;
news that come twice or late change nothing. A peer that started again has forgotten nothing that it wrote,
and is told everything once. What lacks is fetched from the owner of its log if that is there, else from any
holder, those before others that have it as a single mutation. Nothing is asked for twice while an answer may
still come; who does not answer is asked less and less often.

Invariant: news for a peer cover what it did not acknowledge; an id is on its way from one source at most.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from lockstep.tracking.held import NOTHING, Held, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.limits import (
    BACKOFF_MS,
    BACKOFF_MS_MAX,
    PULL_IDS_MAX,
    RECONCILE_BURST_BYTES,
    RECONCILE_BYTES_PER_S,
)


class Urgency(enum.Enum):
    #: Somebody waits for the answer of a read.
    READ = "read"
    BACKGROUND = "background"


class TokenBucket:
    """Bytes that may leave now. Reads never wait, and what they took the background pays for."""

    def __init__(
        self, now_ms: int, per_s: int = RECONCILE_BYTES_PER_S, burst: int = RECONCILE_BURST_BYTES
    ) -> None:
        self._per_s = per_s
        self._burst = burst
        self._left = float(burst)
        self._at_ms = now_ms

    def take(self, now_ms: int, size_bytes: int, urgency: Urgency) -> bool:
        """A message larger than the burst leaves when the bucket is full, and is paid for afterwards."""
        if now_ms > self._at_ms:
            self._left = min(self._burst, self._left + (now_ms - self._at_ms) * self._per_s / 1000)
            self._at_ms = now_ms
        if urgency is Urgency.BACKGROUND and self._left < min(size_bytes, self._burst):
            return False
        self._left = max(self._left - size_bytes, -self._burst)
        return True


class News(msgspec.Struct, frozen=True):
    """`number` is what the peer acknowledges; `whole`: everything, not what is new since."""

    number: int
    added: Held
    whole: bool


class _Peer:
    __slots__ = ("acknowledged", "attempts", "next_ms", "number", "sent", "start")

    def __init__(self) -> None:
        self.start = 0
        self.number = 0
        self.acknowledged = NOTHING
        #: What was held when the newest news left.
        self.sent = NOTHING
        self.attempts = 0
        self.next_ms = 0


class Reconciler:
    """Of one replica of one range."""

    def __init__(self, node: int, peers: tuple[int, ...]) -> None:
        assert node not in peers
        self._node = node
        self._peers = {peer: _Peer() for peer in peers}
        #: Ids on their way: source -> (until when an answer may come, which).
        self._fetching: dict[int, tuple[int, Held]] = {}

    # -- telling ------------------------------------------------------------------------------------

    def news(self, peer: int, held: Held, now_ms: int) -> News | None:
        """None while nothing is new, or while the peer is not to be asked again yet."""
        one = self._peers[peer]
        added = held.difference(one.acknowledged)
        if now_ms < one.next_ms or not added:
            return None
        whole = not one.acknowledged
        one.number += 1
        one.sent = held
        self._wait(one, now_ms)
        return News(one.number, added, whole)

    def acknowledged(self, peer: int, number: int) -> None:
        one = self._peers[peer]
        if number == one.number:
            one.acknowledged = one.sent
        one.attempts = one.next_ms = 0

    def met(self, peer: int, start: int) -> None:
        """A message came of this start of the peer; of a later one than known, it is told everything."""
        one = self._peers[peer]
        if start > one.start:
            one.start, one.acknowledged, one.attempts, one.next_ms = start, NOTHING, 0, 0
            self._fetching.pop(peer, None)

    # -- fetching -----------------------------------------------------------------------------------

    def fetch(
        self, lacking: Held, told: Mapping[int, Held], alive: frozenset[int], now_ms: int
    ) -> dict[int, Held]:
        """Source -> ids to ask it for now, of those that `lacking` names. `told` are holders of single
        mutations."""
        self._fetching = {
            source: waiting
            for source, waiting in self._fetching.items()
            if now_ms < waiting[0] and source in alive
        }
        rest = lacking
        for _, ids in self._fetching.values():
            rest = rest.difference(ids)
        found: dict[int, Held] = {}
        free = [peer for peer in sorted(alive & set(self._peers)) if peer not in self._fetching]
        owned = {peer: Held(tuple(log for log in rest.logs if log[0] == peer)) for peer in free}
        for wanted in (owned, dict.fromkeys(free, rest)):
            for peer in free:
                has = wanted[peer].intersection(told.get(peer, NOTHING)).intersection(rest)
                room = PULL_IDS_MAX - found.get(peer, NOTHING).count
                ids = _first(has, room)
                if ids:
                    found[peer] = found.get(peer, NOTHING).union(ids)
                    rest = rest.difference(ids)
        for peer, ids in found.items():
            one = self._peers[peer]
            self._wait(one, now_ms)
            self._fetching[peer] = (now_ms + _backoff(one.attempts), ids)
        return found

    def fetched(self, peer: int) -> None:
        """An answer came, with all of it or not: what still lacks is asked for anew."""
        self._fetching.pop(peer, None)
        self._peers[peer].attempts = 0

    def _wait(self, one: _Peer, now_ms: int) -> None:
        one.attempts += 1
        one.next_ms = now_ms + _backoff(one.attempts)

    def validate(self) -> None:
        seen = NOTHING
        for _, ids in self._fetching.values():
            assert not seen.intersection(ids), "an id is on its way twice"
            assert ids.count <= PULL_IDS_MAX, ids.count
            seen = seen.union(ids)
        assert all(one.number or not one.acknowledged for one in self._peers.values())


def _backoff(attempts: int) -> int:
    return min(BACKOFF_MS << min(max(attempts - 1, 0), 16), BACKOFF_MS_MAX)


def _first(held: Held, count: int) -> Held:
    """The first `count` ids."""
    found = {}
    for log, offsets in held.items():
        if count <= 0:
            break
        some = of(offsets.offsets(count))
        found[log] = some
        count -= some.count
    return held_of(found)
