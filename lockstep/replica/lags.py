"""What replicas of tracked ranges lack of each other, as one node has been told: figures for people.

Invariant: nothing is decided by them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from lockstep.replica.shard_roles import ShardRoles
from lockstep.storage.journal import Journal
from lockstep.storage.shard_logs import Shard
from lockstep.tracking.held import NOTHING, Held
from lockstep.values.node_limits import RECONCILE_RATE_ROUNDS


class Lag(msgspec.Struct, frozen=True):
    """What one replica of a range is not known to hold of what this node holds, or this node of that."""

    shard: Shard
    node: int
    lacks: int
    is_lacked: int
    heard: bool
    #: When the oldest mutation that it lacks was written, where that was asked for.
    oldest_us: int | None = None
    #: Whether that replica has the range in its tables; else it is a witness.
    keeps: bool = True


class Lagging:
    """Since when a node lacks what was written before, and what that is; and how fast it gets it."""

    def __init__(self) -> None:
        self.since_s: dict[int, float] = {}
        self._lacking: dict[tuple[int, Shard], Held] = {}
        #: (moment, mutations that it lacked) of the last rounds, by node.
        self._lacked: dict[int, deque[tuple[float, int]]] = {}

    def note_now(
        self,
        roles: Callable[[Shard], ShardRoles],
        journal: Journal,
        is_heard: Callable[[int], bool],
        now_s: float,
    ) -> None:
        """Note how much each node lacks, and whether it has got what it lacked when that was noted first."""
        lagging, lacks = _lacking_now(roles, journal, is_heard)
        for node in [node for node in self._lacked if node not in lacks]:
            del self._lacked[node]
        for node, count in lacks.items():
            self._lacked.setdefault(node, deque(maxlen=RECONCILE_RATE_ROUNDS)).append((now_s, count))
        self.note(lagging, now_s)

    def note(self, lagging: Mapping[tuple[int, Shard], Held], now_s: float) -> None:
        """What each node lacks now, of each range of which it lacks something."""
        nodes = {node for node, _ in lagging}
        for node in sorted(nodes | self.since_s.keys()):
            old = [key for key in self._lacking if key[0] == node]
            still = [key for key in old if key in lagging and lagging[key].intersection(self._lacking[key])]
            if still and node in self.since_s:
                continue
            for key in old:
                del self._lacking[key]
            self.since_s.pop(node, None)
            if node in nodes:
                self.since_s[node] = now_s
                self._lacking.update({key: lacking for key, lacking in lagging.items() if key[0] == node})

    def left_s(self, node: int) -> int | None:
        """When a replica will have all that this node holds, as it went lately; None: nothing says so."""
        return _left_s(self._lacked.get(node, ()))


def lags_of(
    roles: Callable[[Shard], ShardRoles],
    journal: Journal,
    is_heard: Callable[[int], bool],
    complete_us: Mapping[Shard, int] | None = None,
) -> Iterator[Lag]:
    """Of each range and other replica, in order, one by one. `is_heard`: whether a node has told lately what
    it holds. `complete_us`: the moments up to which ranges are reconciled, where ages are asked for."""
    for shard in sorted({*journal.shards, *journal.told}):
        held, told, of = journal.held(shard), journal.told.get(shard, {}), roles(shard)
        for node in of.others:
            lacking = _lacking(journal, shard, told.get(node), of, node, is_heard)
            lacked = told.get(node, NOTHING).difference(held).count
            oldest_us = None if complete_us is None else _oldest_us(journal, shard, lacking, complete_us)
            yield Lag(shard, node, lacking.count, lacked, node in told, oldest_us, node in of.keeping)


def _oldest_us(journal: Journal, shard: Shard, lacking: Held, complete_us: Mapping[Shard, int]) -> int | None:
    """When the oldest of these was written, or a little before; None: it is not known. What is apart has no
    entries, and is younger than what is reconciled."""
    if not lacking:
        return None
    if not lacking.intersection(journal.apart(shard)):
        return journal.oldest_us(shard, lacking)
    return complete_us.get(shard)


def _lacking_now(
    roles: Callable[[Shard], ShardRoles], journal: Journal, is_heard: Callable[[int], bool]
) -> tuple[dict[tuple[int, Shard], Held], dict[int, int]]:
    """What each node lacks of each range of which it lacks something, and how much each one lacks."""
    lagging: dict[tuple[int, Shard], Held] = {}
    lacks: dict[int, int] = {}
    for shard in journal.shards:
        told, of = journal.told.get(shard, {}), roles(shard)
        for node in of.others:
            lacking = _lacking(journal, shard, told.get(node), of, node, is_heard)
            lacks[node] = lacks.get(node, 0) + lacking.count
            if lacking:
                lagging[node, shard] = lacking
    return lagging, lacks


def _lacking(
    journal: Journal,
    shard: Shard,
    told: Held | None,
    of: ShardRoles,
    node: int,
    is_heard: Callable[[int], bool],
) -> Held:
    """What another replica, which told that it holds so much, lacks of what is held here. What is reconciled
    is held by all that are read, unless they have told since that they do not; a witness needs nothing of
    it."""
    held, is_read = journal.held(shard), of.placed is not None and node in of.placed.group.reads
    if node not in of.keeping or (is_read and (told is None or not is_heard(node))):
        held = held.difference(journal.reconciled(shard))
    return held.difference(told) if told is not None else held


def _left_s(noted: Sequence[tuple[float, int]]) -> int | None:
    """When nothing lacks any more, by moments and what lacked then."""
    if len(noted) < 2:
        return None
    (then_s, before), (now_s, lacks) = noted[0], noted[-1]
    if lacks >= before or now_s <= then_s:
        return None
    return int(lacks * (now_s - then_s) / (before - lacks))
