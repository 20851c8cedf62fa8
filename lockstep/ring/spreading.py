"""How an agreed change reaches everybody: told to seeds at once, and compared in rounds of push-pull gossip.

In a round a node sends the sequence and fingerprint of its ring to one other member, and to a seed besides
with the chance of seeds among members, or always while a proposal is pending. Whoever is ahead brings the
other up; whoever is behind answers with its own summary, and is brought up.

Invariant: what is sent takes a ring of the chain to a later one, the changes one after another, or the ring
whole; so rings on the way are rings that were agreed on. A round is one or two messages, however large the
ring is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from lockstep.ring.limits import (
    RING_DELTAS_KEPT,
    RING_ENTRIES_MAX,
    RING_GOSSIP_MS,
    RING_GOSSIP_PENDING_MS,
    RING_SEED_ASKED_PER_S_MAX,
    RING_SEEDS_TOLD_MAX,
)
from lockstep.ring.messages import Deltas, Summary, Whole
from lockstep.ring.ring import Delta, Ring

#: Two numbers of a round, each 0 <= draw < 1: which member, and whether and which seed.
Draws = tuple[float, float]


class Spreader:
    """Of one node; it is told of rings and answers, and says whom to tell what."""

    def __init__(self, node: str, seeds: Sequence[str], now_ms: int) -> None:
        self._node = node
        self._seeds = tuple(seeds)
        #: base of each change kept -> the change; the oldest first.
        self._kept: dict[bytes, Delta] = {}
        #: What other members said they have.
        self._heard: dict[str, Summary] = {}
        self._last_ms = now_ms

    def validate(self) -> None:
        assert len(self._kept) <= RING_DELTAS_KEPT, "older changes are part of the ring"
        assert len(self._heard) <= RING_ENTRIES_MAX, "members are heard of"
        assert all(base == delta.base for base, delta in self._kept.items()), "each by its ring"

    def known(self, base: bytes) -> Delta | None:
        """The change of that ring, if it is one of the newest."""
        return self._kept.get(base)

    def moved(self, ring: Ring, delta: Delta | None) -> None:
        """The node has another ring, by one change (or by several at once)."""
        assert delta is None or delta.target == ring.fingerprint, "the change makes the ring"
        if delta is None:
            self._kept.clear()
        else:
            self._kept[delta.base] = delta
            if len(self._kept) > RING_DELTAS_KEPT:
                del self._kept[next(iter(self._kept))]
        gone = [node for node in self._heard if node not in ring.by_name]
        for node in gone:
            del self._heard[node]

    def heard(self, peer: str, summary: Summary, ring: Ring) -> None:
        if peer in ring.by_name:
            self._heard[peer] = summary

    # -- whom to tell ----------------------------------------------------------------------------------

    def told_first(self, ring: Ring) -> tuple[str, ...]:
        """Seeds that a member which decided a change tells at once."""
        seeds = [seed for seed in self._seeds if seed in ring.by_name and seed != self._node]
        return tuple(seeds[:RING_SEEDS_TOLD_MAX])

    def round(self, ring: Ring, now_ms: int, pending: bool, draws: Draws) -> tuple[str, ...]:
        """Whom to send a summary now."""
        assert all(0 <= draw < 1 for draw in draws), "draws are below one"
        pause_ms = RING_GOSSIP_PENDING_MS if pending else RING_GOSSIP_MS
        if now_ms < self._last_ms + pause_ms:
            return ()
        self._last_ms = now_ms
        first = self._other(ring, draws[0])
        if first is None:
            return ()
        seeds = tuple(seed for seed in self._seeds if seed in ring.by_name and seed != self._node)
        if not seeds or first in seeds:
            return (first,)
        # One draw says both: below the chance a seed is asked, and which one follows from how far below.
        chance = len(seeds) / len(ring.present)
        if pending:
            chance = min(max(chance * RING_SEED_ASKED_PER_S_MAX * pause_ms / 1000, chance), 1.0)
        if draws[1] >= chance:
            return (first,)
        return (first, seeds[min(int(draws[1] / chance * len(seeds)), len(seeds) - 1)])

    def _other(self, ring: Ring, draw: float) -> str | None:
        """One of the members but this node itself."""
        present = ring.present
        own = bisect_left(present, self._node)
        inside = own < len(present) and present[own] == self._node
        count = len(present) - inside
        if count == 0:
            return None
        at = int(draw * count)
        other = present[at + (inside and at >= own)]
        assert other != self._node, "nobody gossips with itself"
        return other

    # -- what to tell ----------------------------------------------------------------------------------

    def summary(self, ring: Ring, *, answer: bool = False) -> Summary:
        return Summary(ring.sequence, ring.fingerprint, answer)

    def answer(self, ring: Ring, summary: Summary) -> Deltas | Whole | Summary | None:
        """To who sent the summary; None when both have one ring."""
        if summary.fingerprint == ring.fingerprint:
            return None if summary.answer else self.summary(ring, answer=True)
        if summary.sequence > ring.sequence:
            return None if summary.answer else self.summary(ring, answer=True)
        return self.since(ring, summary.fingerprint)

    def since(self, ring: Ring, fingerprint: bytes) -> Deltas | Whole:
        """What takes who has the ring of that fingerprint to this one."""
        found: list[Delta] = []
        while fingerprint != ring.fingerprint:
            delta = self._kept.get(fingerprint)
            if delta is None or len(found) >= RING_DELTAS_KEPT:
                return Whole(ring)
            found.append(delta)
            fingerprint = delta.target
        assert found, "there is something to tell"
        return Deltas(tuple(found))

    def newest(self, ring: Ring) -> Deltas | Whole:
        """The change that made this ring, or the ring where it is not known any more."""
        last = next(reversed(self._kept.values()), None)
        return Deltas((last,)) if last is not None and last.target == ring.fingerprint else Whole(ring)

    def laggards(self, ring: Ring) -> tuple[str, ...]:
        """Members that have not said that they have this ring or a later one."""
        return tuple(
            node
            for node in ring.present
            if node != self._node
            and ((heard := self._heard.get(node)) is None or heard.sequence < ring.sequence)
        )
