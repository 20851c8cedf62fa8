"""What tablet maps and their balancer cost, and how evenly tables lie: without a cluster, in one process.

`maps`: memory, building, digest, look-up and a change of one tablet, up to 327,680 tablets; less than
100 MiB, 5 s and 1 ms. `plan`: from 10 to 16 nodes of 88 shards in two racks, 70 tables of 256 tablets; less
than 10 s of CPU for the whole and 0.1 s for one plan after the target. `rolling`: nodes come and go in turns;
no node has more than 1.05 times its share of a table. Usage: python bench/tablets.py [maps] [plan] [rolling]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import tracemalloc
from typing import Any

from measuring import ROOT, save, table

sys.path.insert(0, str(ROOT))

from lockstep.placement.tablets.balancer import Target, plan
from lockstep.placement.tablets.load import GIB, Drain, Host, TabletLoad
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.moves import Move, Why
from lockstep.placement.tablets.target import BalancedTable, Cluster, goal_of
from lockstep.schema.model import Replication
from lockstep.values.ids import NodeId
from tests.placement.tablets.clusters import after, hosts_of, measured, new_table, setting

COUNTS = (256, 8_192, 327_680)
#: (cycles, shards of a node, tablets of each table) of the rolling part.
CYCLES, SHARDS, TABLETS = 8, 30, (512, 128)


def maps() -> list[dict[str, Any]]:
    found = []
    replication = Replication("NetworkTopologyStrategy", (("dc1", 3),))
    for count in COUNTS:
        placed = [
            (right, tuple([(NodeId(100 * k + at * k % 97), at * k % 88) for k in (1, 2, 3)]))
            for at, right in enumerate(even_rights(count))
        ]
        began_s = time.process_time()
        one = map_of(1, replication, placed, 1)
        assert one.digest
        built_s = time.process_time() - began_s
        tracemalloc.start()
        kept = map_of(2, replication, placed, 1)
        assert kept.digest
        mib = tracemalloc.get_traced_memory()[0] / (1 << 20)
        tracemalloc.stop()
        change_ms, lookup_us = _changed_ms(one), _found_us(one)
        row = {"tablets": count, "MiB": mib, "build_s": built_s}
        found.append({**row, "change_ms": change_ms, "lookup_us": lookup_us})
    return found


def _changed_ms(one: TabletMap, times: int = 200) -> float:
    rng = random.Random(1)
    tokens = [rng.randrange(-(1 << 63) + 1, 1 << 63) for _ in range(times)]
    began_s = time.process_time()
    for epoch, token in enumerate(tokens, 2):
        replicas = ((NodeId(1), epoch % 80), (NodeId(2), 3), (NodeId(3), 0))
        one = one.with_replicas({one.ring.range_at(token).range.right: replicas}, epoch)
        assert one.digest
    return (time.process_time() - began_s) * 1000 / times


def _found_us(one: TabletMap, times: int = 50_000) -> float:
    rng = random.Random(1)
    tokens = [rng.randrange(-(1 << 63) + 1, 1 << 63) for _ in range(times)]
    began_s = time.process_time()
    for token in tokens:
        one.ring.range_at(token)
    return (time.process_time() - began_s) * 1e6 / times


def scale_out() -> dict[str, Any]:
    hosts = hosts_of(*[("dc1", rack, 88) for rack in "ab" for _ in range(5)])
    empty, on = measured(hosts), dict[NodeId, dict[int, int]]()
    placed = [new_table(group, 256, setting(dc1=2), hosts, empty, on) for group in range(1, 71)]
    hosts += [Host(NodeId(11 + at), "dc1", "ab"[at // 3], 88) for at in range(6)]
    tables = [BalancedTable(one) for one in placed]
    cluster = Cluster(hosts, tables, measured(hosts, placed, each=5 * GIB))
    began_s = time.process_time()
    first, target = plan(cluster)
    target_s = time.process_time() - began_s
    moves: list[Move] = list(first.moves)
    spent, known = [], target
    while known.left:
        # Moves of the plan before have been done: their slots are free, and the maps are not looked at.
        began_s = time.process_time()
        following, known = plan(cluster, Target(target.basis, target.maps, known.left, (), ()))
        spent.append(time.process_time() - began_s)
        moves += following.moves
        assert following.moves, "a plan starts something"
    return {
        "target_s": target_s,
        "plans": 1 + len(spent),
        "largest_plan_s": max(spent, default=0.0),
        "whole_s": target_s + sum(spent),
        "between_nodes": sum(move.why is Why.BALANCE for move in moves),
        "within_nodes": sum(move.why is Why.SHARDS for move in moves),
    }


def rolling() -> dict[str, Any]:
    """A node comes, the oldest one goes, again and again; tablets have half to one and a half times a GiB."""
    rng = random.Random(1)
    hosts = hosts_of(*[("dc1", "a", SHARDS)] * 3)
    placed = {
        group: new_table(group, count, setting(dc1=3), hosts, measured(hosts))
        for group, count in enumerate(TABLETS, 1)
    }
    sizes = {
        (group, tablet.right): TabletLoad(int(GIB * rng.uniform(0.5, 1.5)))
        for group, one in placed.items()
        for tablet in one.tablets()
    }
    worst_node, worst_shard = [0.0, 0.0], [0.0, 0.0]
    spent, number, moved = [], 1, 0
    for cycle in range(CYCLES):
        hosts = [*hosts, Host(NodeId(4 + cycle), "dc1", "a", SHARDS)]
        for leaves in (False, True):
            if leaves:
                hosts = [Host(hosts[0].node, "dc1", "a", SHARDS, Drain.LEAVE), *hosts[1:]]
            number += 1
            statistics = measured(hosts, list(placed.values()), sizes, number=number)
            began_s = time.process_time()
            goal = goal_of(Cluster(hosts, [BalancedTable(one) for one in placed.values()], statistics))
            spent.append(time.process_time() - began_s)
            assert not goal.failures and not goal.waits
            placed = after(placed, goal.moves, number)
            moved += sum(move.bytes for move in goal.moves if move.why is not Why.SHARDS)
            if leaves:
                hosts = hosts[1:]
            for at, group in enumerate(placed):
                node, shard = _overcommit(placed[group], hosts, sizes)
                worst_node[at], worst_shard[at] = max(worst_node[at], node), max(worst_shard[at], shard)
    return {
        "steps": 2 * CYCLES,
        "table_node": worst_node,
        "table_shard": worst_shard,
        "largest_target_s": max(spent),
        "moved_TiB": moved / (1 << 40),
    }


def _overcommit(
    one: TabletMap, hosts: list[Host], sizes: dict[tuple[int, int], TabletLoad]
) -> tuple[float, float]:
    """What the node, and the shard, that has most of a table has of it, in shares."""
    on_node: dict[NodeId, int] = {}
    on_shard: dict[tuple[NodeId, int], int] = {}
    for tablet in one.tablets():
        for node, shard in tablet.replicas:
            size = sizes[one.id, tablet.right].bytes
            on_node[node] = on_node.get(node, 0) + size
            on_shard[node, shard] = on_shard.get((node, shard), 0) + size
    total = sum(on_node.values())
    shards = sum(host.shards for host in hosts)
    return max(on_node.values()) * len(hosts) / total, max(on_shard.values()) * shards / total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], "maps", "plan", "rolling"])
    chosen = parser.parse_args().parts or ["maps", "plan", "rolling"]
    figures: dict[str, Any] = {}
    if "maps" in chosen:
        figures["maps"] = rows = maps()
        print(table("tablet maps, CPU", [list(rows[0]), *[list(row.values()) for row in rows]]))
    for part, made in (("plan", scale_out), ("rolling", rolling)):
        if part in chosen:
            figures[part] = found = made()
            shown = [
                (name, " ".join(f"{one:.3f}" for one in value) if isinstance(value, list) else value)
                for name, value in found.items()
            ]
            print(table(part, [("figure", "value"), *[(name, f"{value}") for name, value in shown]]))
    print(save("tablets", figures))


if __name__ == "__main__":
    main()
