"""What tablet maps and their balancer cost, and how evenly tables lie: without a cluster, in one process.

`maps`: memory, building, digest, look-up and a change of one tablet, up to 327,680 tablets; less than
100 MiB, 5 s and 1 ms. `entry`: 327,680 tablets that come with one entry, as a keyspace of 20 tables goes from
a ring of 16,400 ranges to tablets, then the same made anew from a snapshot, which shares nothing; less than
5 s and 100 MiB. `plan`: from 10 to 16 nodes of 88 shards in two racks, 70 tables of 256 tablets, each plan
carried out before the next; less than 10 s of CPU for the whole and 0.1 s for one plan after the target.
`rolling`: nodes come and go in turns; no node has more than 1.05 times its share of a table.
Usage: python bench/tablets.py [maps] [entry] [plan] [rolling]
"""

from __future__ import annotations

import argparse
import gc
import random
import sys
import time
import tracemalloc
from collections.abc import Callable
from typing import Any, TypeVar

from measuring import ROOT, save, table

sys.path.insert(0, str(ROOT))

from lockstep.metadata.cluster import REGISTERED, ClusterMetadata, empty_cluster
from lockstep.metadata.log.apply import apply_entry, state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Transformation
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.log.tip import Appended, Tip
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.tablet_migration import MigrateKeyspace, Step
from lockstep.metadata.transformations import Founder, Initialize
from lockstep.node.kinds import every_kind
from lockstep.placement.tablets.balancer import plan
from lockstep.placement.tablets.load import GIB, Drain, Host, TabletLoad
from lockstep.placement.tablets.map import TabletMap, even_rights, map_of
from lockstep.placement.tablets.moves import Move, Why
from lockstep.placement.tablets.target import BalancedTable, Cluster, goal_of
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind, Replication
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN
from tests.placement.tablets.clusters import after, hosts_of, measured, new_table, setting

T = TypeVar("T")
REGISTRY = every_kind()

COUNTS = (256, 8_192, 327_680)
#: Nodes and tokens of the ring that tables leave, and how many tables: together some 327,680 tablets.
ENTRY_NODES, ENTRY_TOKENS, ENTRY_TABLES = 65, 256, 20
#: Goals: seconds and MiB of all tablets, milliseconds of a change of one, seconds of all plans and of the
#: longest after the target, shares of a table on one node.
APPLY_S, MEMORY_MIB, CHANGE_MS, WHOLE_S, PLAN_S, SHARE = 5.0, 100.0, 1.0, 10.0, 0.1, 1.05
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


def entry() -> dict[str, Any]:
    """All tablets by one entry: CPU of applying it with the digest, then memory of a value that was read from
    a snapshot, whose tables share no ranges."""
    before, log = _large_ring()
    migrated, applied_s = _cpu_of(lambda: _with_digest(apply_entry(before, log, REGISTRY)))
    tablets = sum(group.map(migrated.placements).count for group in migrated.tablets.groups)
    entry_mib = _memory_of(lambda: _with_digest(apply_entry(before, log, REGISTRY)))
    sent, encoded_s = _cpu_of(lambda: list(pieces(migrated)))
    copied, read_s = _cpu_of(lambda: _with_digest(_read(sent)))
    assert state_digest(copied) == state_digest(migrated), "a snapshot is the same value"
    del copied
    return {
        "tablets": tablets,
        "apply_s": applied_s,
        "apply_MiB": entry_mib,
        "snapshot_encode_s": encoded_s,
        "snapshot_read_s": read_s,
        "snapshot_MiB": _memory_of(lambda: _with_digest(_read(sent))),
        "snapshot_bytes": sum(map(len, sent)),
    }


def _large_ring() -> tuple[ClusterMetadata, LogEntry]:
    """A keyspace on the ring, and the entry with which its tables go to tablets."""
    rng = random.Random(1)
    founders = tuple(
        Founder(
            f"host-{at}", f"10.0.0.{at + 1}", 7000, 9042, 7080, "dc1", f"r{at % 3}",
            tuple(sorted(rng.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(ENTRY_TOKENS))),
        )
        for at in range(ENTRY_NODES)
    )  # fmt: skip
    columns = (NewColumn("a", "int", ColumnKind.PARTITION_KEY, 0), NewColumn("b", "int"))
    options = (("class", "NetworkTopologyStrategy"), ("dc1", "3"))
    value, tip = empty_cluster(), Tip(empty_cluster(), REGISTRY)
    changes: list[Transformation] = [Initialize("bench", "bench", founders, (NodeId(1),))]
    changes.append(ChangeSchema(CreateKeyspace("k", options)))
    for number in range(ENTRY_TABLES):
        uuid = f"00000000-0000-0000-0000-{number:012d}"
        changes.append(ChangeSchema(CreateTable("k", f"t{number}", uuid, columns)))
    entries: list[LogEntry] = []
    for number, change in enumerate([*changes, MigrateKeyspace("k", Step.START)], 1):
        before = value
        judged = tip.judge(number.to_bytes(16, "big"), *REGISTRY.encode(change), "bench", 1_000, 1)
        assert isinstance(judged, Appended), judged
        entries.append(judged.entry)
        value = tip.value
        tip.applied_now(value)
    return _with_digest(before), entries[-1]


def _cpu_of(made: Callable[[], T]) -> tuple[T, float]:
    began_s = time.process_time()
    value = made()
    return value, time.process_time() - began_s


def _with_digest(cluster: ClusterMetadata) -> ClusterMetadata:
    state_digest(cluster)
    return cluster


def _read(sent: list[bytes]) -> ClusterMetadata:
    decoder = SnapshotDecoder(REGISTERED)
    for piece in sent:
        decoder.feed(piece)
    return decoder.finish()


def _memory_of(made: Callable[[], ClusterMetadata]) -> float:
    """MiB that a value takes beside what was there before."""
    gc.collect()
    tracemalloc.start()
    value = made()
    gc.collect()
    mib = tracemalloc.get_traced_memory()[0] / (1 << 20)
    tracemalloc.stop()
    assert value.epoch > 0, "the value is there while it is weighed"
    return mib


def scale_out() -> dict[str, Any]:
    hosts = hosts_of(*[("dc1", rack, 88) for rack in "ab" for _ in range(5)])
    empty, on = measured(hosts), dict[NodeId, dict[int, int]]()
    placed = {group: new_table(group, 256, setting(dc1=2), hosts, empty, on) for group in range(1, 71)}
    hosts += [Host(NodeId(11 + at), "dc1", "ab"[at // 3], 88) for at in range(6)]
    statistics = measured(hosts, list(placed.values()), each=5 * GIB)
    moves: list[Move] = []
    spent: list[float] = []
    known = None
    while known is None or known.left:
        # Moves of the plan before are done: their slots are free, maps and loads are as they left them.
        cluster = Cluster(hosts, [BalancedTable(one) for one in placed.values()], statistics)
        began_s = time.process_time()
        following, known = plan(cluster, known)
        spent.append(time.process_time() - began_s)
        assert following.moves, "a plan starts something"
        moves += following.moves
        placed = after(placed, following.moves, len(spent) + 1)
        for move in following.moves:
            if move.source[0] != move.target[0]:
                statistics = statistics.moved(move.group, move.right, move.source[0], move.target[0])
    return {
        "target_s": spent[0],
        "plans": len(spent),
        "largest_plan_s": max(spent[1:], default=0.0),
        "whole_s": sum(spent),
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


PARTS: dict[str, Callable[[], Any]] = {"maps": maps, "entry": entry, "plan": scale_out, "rolling": rolling}


def measure(chosen: tuple[str, ...] = tuple(PARTS)) -> dict[str, Any]:
    return {part: PARTS[part]() for part in chosen}


def goals(figures: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(what, measured, allowed) of the parts that were run."""
    found: list[tuple[str, float, float]] = []
    if "maps" in figures:
        last = figures["maps"][-1]
        found.append(("build the maps of 327,680 tablets, s", last["build_s"], APPLY_S))
        found.append(("their memory, MiB", last["MiB"], MEMORY_MIB))
        found.append(("change one of them, ms", last["change_ms"], CHANGE_MS))
    if "entry" in figures:
        entry = figures["entry"]
        found.append(("apply 327,680 tablets as one entry, s", entry["apply_s"], APPLY_S))
        found.append(("memory that the entry adds, MiB", entry["apply_MiB"], MEMORY_MIB))
        found.append(("read them from a snapshot, s", entry["snapshot_read_s"], APPLY_S))
        found.append(("memory of a value that shares none, MiB", entry["snapshot_MiB"], MEMORY_MIB))
    if "plan" in figures:
        found.append(("all plans from 10 to 16 nodes, s", figures["plan"]["whole_s"], WHOLE_S))
        found.append(("the longest plan after the target, s", figures["plan"]["largest_plan_s"], PLAN_S))
    if "rolling" in figures:
        worst = max(figures["rolling"]["table_node"])
        found.append(("most of a table on a node while nodes come and go, shares", worst, SHARE))
    return found


def show(figures: dict[str, Any]) -> None:
    if "maps" in figures:
        rows = figures["maps"]
        print(table("tablet maps, CPU", [list(rows[0]), *[list(row.values()) for row in rows]]))
    for part in ("entry", "plan", "rolling"):
        if part in figures:
            print(table(part, [("figure", "value"), *_texts(figures[part])]))
    rows_of_goals = [(*one, "yes" if one[1] <= one[2] else "NO") for one in goals(figures)]
    print(table("goals, CPU time", [("what", "measured", "allowed", "met"), *rows_of_goals]))


def _texts(found: dict[str, Any]) -> list[tuple[str, str]]:
    """Names and values; lists are of the two tables."""
    return [
        (name, " ".join(f"{one:.3f}" for one in value) if isinstance(value, list) else _text(value))
        for name, value in found.items()
    ]


def _text(value: float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else f"{value:,}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    figures = measure(tuple(parser.parse_args().parts) or tuple(PARTS))
    show(figures)
    print(save("tablets", figures))
    return 0 if all(measured <= allowed for _, measured, allowed in goals(figures)) else 1


if __name__ == "__main__":
    sys.exit(main())
