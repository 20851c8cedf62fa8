"""What placements cost: the whole of a large ring, one node's join entry by entry, and one lookup.

The cluster is 1,000 nodes with 256 tokens each in three data centres of three racks, replication 3 in each;
one node with 256 tokens joins. `prepare` splits and locks the ranges, `advance` is the slowest of the entries
that follow, up to the one that ends the join. The best of several runs counts: the machine is shared. Digests
and snapshots are not part of an entry; `digest` is what the first and a later one cost.
Usage: python bench/topology.py [--quick]
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from measuring import resident_mb, save, table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lockstep.metadata.cluster import ClusterMetadata, empty_cluster
from lockstep.metadata.log.apply import state_digest
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import Founder, Initialize, Register
from lockstep.placement.deltas import computed_ring
from lockstep.placement.placements import RingPlacement
from lockstep.schema.changes import CreateKeyspace
from lockstep.topology.kinds.bootstrap import Bootstrap
from lockstep.topology.transformations import AdvanceOperation, PrepareOperation
from lockstep.values.ids import NodeId
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

NODES = 1000
TOKENS = 256
DCS, RACKS, FACTOR = 3, 3, 3
LOOKUPS = 200_000
#: Whole ring in milliseconds, one entry in milliseconds, one lookup in microseconds.
FULL_MAX_MS, ENTRY_MAX_MS, LOOKUP_MAX_US = 1000.0, 50.0, 1.0

T = TypeVar("T")


def timed(rounds: int, run: Callable[[], T]) -> tuple[float, T]:
    """(best milliseconds, what the last run gave)."""
    best = float("inf")
    for _ in range(rounds):
        began = time.perf_counter()
        found = run()
        best = min(best, (time.perf_counter() - began) * 1000)
    return best, found


def cluster_of(nodes: int, tokens: int) -> ClusterMetadata:
    """All nodes are normal, one more waits to join, and one keyspace has its placements."""
    draw = random.Random(1)
    span = TOKEN_MAX - TOKEN_MIN
    founders = tuple(
        Founder(
            f"host-{at}", f"10.{at // 62500}.{at // 250 % 250}.{at % 250}", 7000, 9042, 7080,
            f"dc{at % DCS + 1}", f"r{at // DCS % RACKS}",
            tuple(sorted(TOKEN_MIN + 1 + draw.randrange(span - 1) for _ in range(tokens))),
        )
        for at in range(nodes)
    )  # fmt: skip
    options = (("class", "NetworkTopologyStrategy"), *((f"dc{dc + 1}", str(FACTOR)) for dc in range(DCS)))
    register = Register("joins", "10.9.9.9", 7000, 9042, 7080, "dc1", "r1", may_vote=False)
    cluster = empty_cluster()
    for body in (
        Initialize("bench", "bench", founders, (NodeId(1),)),
        ChangeSchema(CreateKeyspace("ks", options)),
        register,
    ):
        cluster = after(cluster, body)
    return cluster


def after(cluster: ClusterMetadata, body: Any) -> ClusterMetadata:
    applied: ClusterMetadata = body.apply(cluster, cluster.epoch + 1)
    return msgspec.structs.replace(applied, epoch=cluster.epoch + 1)


def join(cluster: ClusterMetadata, tokens: int, rounds: int) -> tuple[dict[str, float], float]:
    """Milliseconds of each entry by the stage it enters, and of the digest after one of them."""
    draw = random.Random(2)
    wanted = tuple(sorted(TOKEN_MIN + 1 + draw.randrange(TOKEN_MAX - TOKEN_MIN - 1) for _ in range(tokens)))
    node = cluster.directory.nodes[-1].id
    body: Any = PrepareOperation(Bootstrap(node, wanted))
    found: dict[str, float] = {}
    digest_ms = 0.0
    state_digest(cluster)
    while True:
        best, value = timed(rounds, lambda body=body, before=cluster: after(before, body))
        cluster = value
        digest_ms = max(digest_ms, timed(1, lambda cluster=cluster: state_digest(cluster))[0])
        if not cluster.operations:
            found["normal"] = best
            return found, digest_ms
        operation = cluster.operations[-1]
        found[operation.stage.value] = best
        body = AdvanceOperation(operation.id, operation.stage)


def lookup_us(ring: RingPlacement) -> float:
    """Microseconds of one lookup of a random token, the loop's own cost taken off."""
    draw = random.Random(3)
    tokens = [draw.randrange(TOKEN_MIN + 1, TOKEN_MAX) for _ in range(LOOKUPS)]
    find = ring.group_for

    def look() -> None:
        for token in tokens:
            find(token)

    def loop() -> None:
        for _token in tokens:
            pass

    find(0)
    return (timed(3, look)[0] - timed(3, loop)[0]) * 1000 / LOOKUPS


def measure(quick: bool = False) -> dict[str, Any]:
    import os

    nodes, rounds = (NODES // 10, 2) if quick else (NODES, 5)
    cluster = cluster_of(nodes, TOKENS)
    (ring,) = cluster.placements.rings
    full_ms, _ = timed(rounds, lambda: computed_ring(ring.replication, cluster.directory.owners, 1))
    digest_first_ms, _ = timed(1, lambda: state_digest(cluster))
    entries, digest_ms = join(cluster, TOKENS, rounds)
    return {
        "nodes": nodes,
        "tokens": TOKENS,
        "ranges": len(ring.ranges),
        "placement_full_ms": full_ms,
        "entries_ms": entries,
        "join_prepare_ms": next(iter(entries.values())),
        "join_advance_ms": max(list(entries.values())[1:]),
        "lookup_us": lookup_us(ring),
        "digest_first_ms": digest_first_ms,
        "digest_later_ms": digest_ms,
        "resident_mb": resident_mb(os.getpid()),
    }


def rows_of(figures: dict[str, Any]) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = [("what", "measured", "allowed", "unit")]
    rows.append(("placement of the whole ring", figures["placement_full_ms"], FULL_MAX_MS, "ms"))
    rows.append(("prepare a join", figures["join_prepare_ms"], ENTRY_MAX_MS, "ms"))
    rows.append(("slowest later entry of the join", figures["join_advance_ms"], ENTRY_MAX_MS, "ms"))
    rows.append(("token to replicas", figures["lookup_us"], LOOKUP_MAX_US, "us"))
    return rows


def passed(figures: dict[str, Any]) -> bool:
    return all(float(str(row[1])) <= float(str(row[2])) for row in rows_of(figures)[1:])


def show(figures: dict[str, Any]) -> None:
    nodes, ranges = f"{figures['nodes']:,} nodes", f"{figures['ranges']:,} ranges"
    title = f"Placements of {nodes} with {figures['tokens']} tokens, {ranges}"
    print(table(title, rows_of(figures)))
    entries = ", ".join(f"{stage} {ms:.1f}" for stage, ms in figures["entries_ms"].items())
    print(f"entries of the join, ms: {entries}")
    print(
        f"digest, ms: {figures['digest_first_ms']:.1f} at first, {figures['digest_later_ms']:.1f} after an "
        f"entry; {figures['resident_mb']:,.0f} MB resident"
    )
    print("all within bounds" if passed(figures) else "NOT all within bounds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the nodes")
    figures = measure(parser.parse_args().quick)
    show(figures)
    save("topology", figures)
    return 0 if passed(figures) else 1


if __name__ == "__main__":
    sys.exit(main())
