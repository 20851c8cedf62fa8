"""How evenly each table lies on shards once a target is reached, over many random clusters.

`make spread` looks at ten thousand of them, the tests at the first few hundred.
"""

from __future__ import annotations

import random
import sys

from lockstep.placement.tablets.load import GIB, TabletLoad
from lockstep.placement.tablets.target import BalancedTable, Cluster, goal_of
from lockstep.schema.tablet_options import power_at_least

from .clusters import after, hosts_of, measured, scattered, setting

#: What a shard has of a table at the most and, inverted, at the least, as a share of what it should have.
WORST = 1.4
CASES = 10_000


def worst_share(seed: int) -> float:
    """The largest factor between what a shard has of a table and its share of it, at the target of one
    cluster of nodes with different shards and capacity by shards, whose replicas lay anywhere."""
    rng = random.Random(seed)
    racks = rng.randint(1, 3)
    places = [
        ("dc1", f"r{rack}", rng.choice((1, 2, 3, 4)))
        for rack in range(racks)
        for _ in range(rng.randint(1, 3))
    ]
    hosts = hosts_of(*places)
    shards_of = {
        rack: sum(host.shards for host in hosts if host.rack == rack)
        for rack in sorted({h.rack for h in hosts})
    }
    factor = rng.choice((1, racks))
    # Ten of each table on each shard, which is what tables begin with.
    count = power_at_least(10 * (max(shards_of.values()) if factor == racks else sum(shards_of.values())))
    maps = [scattered(group, count, setting(dc1=factor), hosts, rng) for group in range(1, rng.randint(2, 4))]
    spread = rng.choice((0.0, 0.1))
    sizes = {
        (one.id, tablet.right): TabletLoad(int(GIB * rng.uniform(1 - spread, 1 + spread)))
        for one in maps
        for tablet in one.tablets()
    }
    capacity = {host.node: host.shards * 1000 * GIB for host in hosts}
    statistics = measured(hosts, maps, sizes, capacity)
    goal = goal_of(Cluster(hosts, [BalancedTable(one) for one in maps], statistics))
    found = after({one.id: one for one in maps}, goal.moves, 2)
    worst = 1.0
    rack_of = {host.node: host.rack for host in hosts}
    for one in found.values():
        held = {(host.node, shard): 0 for host in hosts for shard in range(host.shards)}
        for tablet in one.tablets():
            for replica in tablet.replicas:
                held[replica] += sizes[one.id, tablet.right].bytes
        for rack, shards in shards_of.items():
            scope = [replica for replica in held if factor < racks or rack_of[replica[0]] == rack]
            ideal = sum(held[replica] for replica in scope) / (
                sum(shards_of.values()) if factor < racks else shards
            )
            for replica in scope:
                worst = max(worst, held[replica] / ideal, ideal / max(1, held[replica]))
    return worst


def main(cases: int, first: int = 0) -> int:
    """Tell of `cases` clusters how many were less even than some factor; 1 where one was than WORST."""
    shares = {seed: worst_share(seed) for seed in range(first, first + cases)}
    for factor in (1.1, 1.2, 1.3, WORST):
        print(f"{sum(share >= factor for share in shares.values()):6} of {cases} at {factor} or more")
    failed = [seed for seed, share in shares.items() if share >= WORST]
    print(f"worst: {max(shares.values()):.3f}; failed: {failed or 'none'}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else CASES))
