"""Whether so many nodes vanished at once that the rest may be one part of a cluster that was cut in two.

While it may, the metadata is not changed: the other part could be repaired and go on without this one, and
two histories would have begun. One node after the other may go; only a sudden drop counts.

Invariant: pure; what was found holds until every node that vanished is back, has left, or somebody accepts
that it is gone. Source: topology validators of Apache Ignite, IEP-128.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec


class VanishPolicy(msgspec.Struct, frozen=True):
    """At `percent` of the nodes that were there, this one among them, within `window_ms`; 0: never."""

    percent: int
    window_ms: int


class Watched(msgspec.Struct, frozen=True):
    """`seen`: other nodes that were alive since this one began to look. `gone`: since when those of them that
    are not are so. `missing`: for whom the metadata is not changed; empty: it is."""

    seen: frozenset[int] = frozenset()
    gone: Mapping[int, int] = {}
    missing: tuple[int, ...] = ()


NOTHING_WATCHED: Final = Watched()


def look(
    watched: Watched, alive: frozenset[int], present: frozenset[int], now_ms: int, policy: VanishPolicy
) -> Watched:
    """What is known now. `present`: the other nodes that have not left; `alive`: those that seem so."""
    seen = (watched.seen | alive) & present
    gone = {node: watched.gone.get(node, now_ms) for node in sorted(seen - alive)}
    missing = tuple(node for node in watched.missing if node in present and node not in alive)
    recent = tuple(node for node, at_ms in gone.items() if now_ms - at_ms <= policy.window_ms)
    there = len(seen) + 1
    assert len(recent) < there, "this node itself is there"
    is_sudden = policy.percent > 0 and bool(recent) and 100 * len(recent) >= policy.percent * there
    if missing or is_sudden:
        # Each node is convicted at a time of its own: who follows within the time vanished with the others.
        missing = tuple(sorted({*missing, *recent}))
    return Watched(seen, gone, missing)


def accepted(watched: Watched) -> Watched:
    """Those that are missing are gone, and count again once they were seen."""
    lost = {*watched.missing}
    gone = {node: at_ms for node, at_ms in watched.gone.items() if node not in lost}
    return Watched(watched.seen - lost, gone)
