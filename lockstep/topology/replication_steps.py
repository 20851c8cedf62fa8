"""The walk from one replication to another in single steps.

Invariant: a step changes the factor of one data centre by one, or the strategy with the total kept, or
factors that stay above the number of nodes; counts of neighbouring settings then always meet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from lockstep.placement.strategies import NETWORK_TOPOLOGY, SIMPLE
from lockstep.schema.model import Replication

#: Says whether a change of strategy from the first to the second is safe for every range.
Proved = Callable[[Replication, Replication], bool]


def replication_steps(
    before: Replication, after: Replication, eligible: Mapping[str, int], proved: Proved
) -> tuple[Replication, ...]:
    """The settings from `before` to `after`, both included; empty when no change of strategy is safe.

    `eligible`: how many nodes own tokens in each data centre. More replicas first, fewer last.
    """
    before, after = before.settled, after.settled
    if before.strategy == after.strategy:
        return tuple(_walk(before, after, eligible))
    if before.strategy == NETWORK_TOPOLOGY:
        turned = replication_steps(after, before, eligible, lambda one, other: proved(other, one))
        return turned[::-1]
    total = min(before.total, after.total)
    for factors in _parts(after, total):
        at, network = Replication(SIMPLE, (("", total),)), Replication(NETWORK_TOPOLOGY, factors)
        if proved(at, network):
            return (*_walk(before, at, eligible), *_walk(network, after, eligible))
    return ()


def _parts(whole: Replication, total: int) -> Iterator[tuple[tuple[str, int], ...]]:
    """Ways to give `total` replicas to the data centres of `whole`, none more than it is to have: one after
    the other, the largest or the smallest first, or in turns."""
    by_size = sorted(whole.factors, key=lambda named: (-named[1], named[0]))
    for named in (by_size, by_size[::-1]):
        left, given = total, {}
        for dc, factor in named:
            given[dc] = min(left, factor)
            left -= given[dc]
        yield _factors(given)
    wanted, given = dict(whole.factors), dict.fromkeys(dict(whole.factors), 0)
    for _ in range(total):
        least = min((dc for dc in sorted(given) if given[dc] < wanted[dc]), key=lambda dc: given[dc])
        given[least] += 1
    yield _factors(given)


def _factors(given: Mapping[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple((dc, factor) for dc, factor in sorted(given.items()) if factor > 0)


def _walk(before: Replication, after: Replication, eligible: Mapping[str, int]) -> Iterator[Replication]:
    """Settings of one strategy, the first and the last included."""
    yield before
    at, wanted = dict(before.factors), dict(after.factors)
    dcs = sorted({**at, **wanted})
    for growing in (True, False):
        for dc in dcs:
            nodes = eligible.get(dc, 0) if dc else sum(eligible.values())
            while (at.get(dc, 0) < wanted.get(dc, 0)) if growing else (at.get(dc, 0) > wanted.get(dc, 0)):
                at[dc] = _next_factor(at.get(dc, 0), wanted.get(dc, 0), nodes)
                factors = (("", at[""]),) if not dc else _factors(at)
                yield Replication(before.strategy, factors)


def _next_factor(now: int, wanted: int, nodes: int) -> int:
    """One more or less, or in one leap where all nodes are replicas before and after."""
    if wanted > now:
        return wanted if now >= nodes else now + 1
    return max(wanted, nodes) if now > nodes and max(wanted, nodes) < now else now - 1
