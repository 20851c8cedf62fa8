"""Tracked tables beside untracked ones: what reads, writes, summaries, reconciliation and starts cost.

Counts, bytes and delays are of whole nodes in a simulated cluster, where nothing else runs and time is
virtual, so that they do not depend on the machine; CPU is of three node processes, both kinds by turns in one
cluster. Goals that are missed are said. Usage: python bench/tracked_reads.py [counts] [summaries] [starts]
[cpu]; nothing is all of them.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

from measuring import SCRATCH, CpuMeter, percentile, save, table
from quorum_path import Driver, pids_of, running_cluster

from lockstep.replica.messages import Known
from lockstep.replica.tracked import Pulled, TrackedReplica
from lockstep.runtime.ports import Runtime
from lockstep.runtime.real.tasks import NoProbes, RealTasks
from lockstep.sim.plant import replaced
from lockstep.storage.engine import StorageEngine
from lockstep.storage.journal import Journal
from lockstep.storage.rocks.rocks import open_rocks_store
from lockstep.storage.store import Batch, Family, Pair
from lockstep.testing import SimulatedCluster
from lockstep.tracking.held import NOTHING, Held, MutationId, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.summaries import digest, parted
from lockstep.values.codec import encode
from lockstep.values.ids import NodeId, mutation_id
from lockstep.values.node_limits import RECONCILE_INTERVAL_MS
from lockstep.values.rows import Cell, Liveness, Mutation, ReadCommand, ReadResult, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

KINDS = ("tracked", "untracked")
REPLICATION = "{{'class': 'SimpleStrategy', 'replication_factor': {}}}"
#: Copies, and as many nodes; and where more are counted too.
COPIES, MORE_COPIES = 3, 5
VALUE = "x" * 100
#: Rows that are read and written of each kind in simulated clusters, and those that one replica misses.
READS, MISSED, LAGGING = 300, 500, 300
#: Rows of which one replica lacks one in a hundred.
DIVERGING = 1000
LOSS = 0.01
#: Starts of each node whose logs nothing has retired, and mutations of each.
STARTS, A_START = 100, 1000
INDEXED = 90_000
#: Writes between two syncs.
SYNCED_EVERY = 500
#: Additions in a loop, for how fast a core is just now: 20 million a second and more where nothing else runs.
PLAIN = 5_000_000
#: Name, goal, and whether the figure is to be at most, or at least, that.
Goal = tuple[str, float, bool]
GOALS: tuple[Goal, ...] = (
    ("storage reads a QUORUM read", 1.02, True),
    ("the same with five copies", 1.02, True),
    ("summary bytes a live log", 64.0, True),
    ("summary bytes after 100 starts of each node", 1024.0, True),
    ("the same where a read asks for all logs", 1024.0, True),
    ("bytes shipped / bytes missing", 1.05, True),
    ("the same where one row in a hundred is missing", 1.05, True),
    ("replication lag p99 in intervals", 2.1, True),
    ("hint bytes after an outage", 0.0, True),
    ("CPU of a write / untracked", 1.1, True),
    ("CPU of a read / untracked", 1.1, True),
    ("ids indexed a second at a start", 1e6, False),
    ("the same, read from the disk", 3e5, False),
)


# ---- counts in a simulated cluster


def _made(kind: str, seed: int = 1, copies: int = COPIES) -> SimulatedCluster:
    cluster = SimulatedCluster(copies, seed=seed).start()
    cluster.execute(
        f"CREATE KEYSPACE ks WITH replication = {REPLICATION.format(copies)} AND replication_type = '{kind}'"
    )
    cluster.execute("CREATE TABLE ks.t (k int PRIMARY KEY, v text)")
    return cluster


def _write(cluster: SimulatedCluster, keys: Sequence[int], node: str = "") -> None:
    for key in keys:
        cluster.execute("INSERT INTO ks.t (k, v) VALUES (?, ?)", (key, VALUE), node=node)


@contextmanager
def _counting_reads(found: list[ReadCommand]) -> Iterator[None]:
    """Each partition or range that a store is asked for."""
    now, later = StorageEngine.read_now, StorageEngine.read

    def read_now(self: StorageEngine, command: ReadCommand) -> ReadResult | None:
        result = now(self, command)
        if result is not None:
            found.append(command)
        return result

    async def read(self: StorageEngine, command: ReadCommand) -> ReadResult:
        found.append(command)
        return await later(self, command)

    with replaced((StorageEngine, "read_now", read_now), (StorageEngine, "read", read)):
        yield


def storage_reads(kind: str, copies: int = COPIES) -> float:
    """Of a QUORUM read, each coordinated by another node."""
    found: list[ReadCommand] = []
    cluster = _made(kind, 1, copies)
    try:
        _write(cluster, range(READS))
        cluster.advance(3.0)
        with _counting_reads(found):
            for key in range(READS):
                cluster.execute("SELECT v FROM ks.t WHERE k = ?", (key,), node=cluster.nodes[key % copies])
    finally:
        cluster.close()
    return len(found) / READS


def outage(kind: str, before: int = 10, missed: int = MISSED) -> dict[str, float]:
    """A replica is away while rows are written, after others were, and comes back."""
    shipped: list[int] = []
    take = TrackedReplica._take

    async def counted(self: TrackedReplica, shard: Any, pulled: Pulled, source: Any) -> None:
        shipped.extend(len(encode(entry)) for entry in pulled.entries)
        await take(self, shard, pulled, source)

    cluster = _made(kind, 2)
    try:
        _write(cluster, range(before))
        cluster.advance(3.0)
        cluster.kill("n3")
        cluster.wait_until_seen_down("n3")
        _write(cluster, range(before, before + missed), "n1")
        cluster.advance(1.0)
        nodes = cluster._sim.nodes
        hint_bytes = sum(nodes[name].data.hints.store.bytes for name in ("n1", "n2"))
        each = 0.0
        if kind == "tracked":
            journal = nodes["n1"].data.reconciler.journal
            entries = [
                entry
                for shard, logs in journal.shards.items()
                for entry in journal.entries(shard[0], logs.open, 1 << 30)
            ]
            each = sum(len(encode(entry)) for entry in {entry.id: entry for entry in entries}.values())
        with replaced((TrackedReplica, "_take", counted)):
            cluster.start_node("n3")
            cluster.advance(2.9)
            cluster.advance(2.9)
        found = sum(
            len(cluster.execute("SELECT v FROM ks.t WHERE k = ?", (key,), node="n3", consistency="ONE"))
            for key in range(before, before + missed)
        )
    finally:
        cluster.close()
    return {
        "hint_bytes": hint_bytes,
        "missing_bytes": each,
        "shipped_bytes": sum(shipped),
        "rows_back": found / missed,
    }


def lag() -> dict[str, float]:
    """From the acknowledgement of a write at QUORUM until all three replicas hold it."""
    took_ms = []
    cluster = _made("tracked", 3)
    try:
        cluster.world.network.configure(loss=LOSS)
        journals = [node.data.reconciler.journal for node in cluster._sim.nodes.values()]

        def same() -> bool:
            held = [{shard: logs.held for shard, logs in one.shards.items()} for one in journals]
            return held[0] == held[1] == held[2]

        for key in range(LAGGING):
            _write(cluster, (key,), cluster.nodes[key % 3])
            began_s = cluster.world.now_s()
            cluster._run(30.0, same)
            took_ms.append((cluster.world.now_s() - began_s) * 1000)
    finally:
        cluster.close()
    ordered = sorted(took_ms)
    return {"p50_ms": percentile(ordered, 0.5), "p99_ms": percentile(ordered, 0.99)}


def counts() -> dict[str, Any]:
    reads = {kind: storage_reads(kind) for kind in KINDS}
    more = {kind: storage_reads(kind, MORE_COPIES) for kind in KINDS}
    away = {kind: outage(kind) for kind in KINDS}
    diverged = outage("tracked", DIVERGING, DIVERGING // 100)
    return {
        "storage_reads": reads,
        "storage_reads_of_five": more,
        "outage": away,
        "diverged": diverged,
        "lag": lag(),
    }


# ---- pure structures


def summaries() -> dict[str, Any]:
    """Bytes of what a replica tells with a read, of logs without gaps that all replicas hold; also where it
    lists all of them."""

    def logs(starts: int) -> Held:
        numbers = [(node, start << 24) for node in (1, 2, 3) for start in range(1, starts + 1)]
        return held_of({number: of(range(A_START)) for number in numbers})

    def told(starts: int) -> int:
        held, over = parted(logs(starts), logs(starts))
        return len(encode(Known(held, NOTHING, over=digest(over) if over else b"")))

    empty = len(encode(Known(NOTHING, NOTHING)))
    return {
        "a_log": (told(1) - empty) / 3,
        "after_starts": told(STARTS + 1),
        "listed_after_starts": len(encode(Known(logs(STARTS + 1), NOTHING))),
        "starts": STARTS,
    }


class _Entries:
    """A store that has entries of a journal and nothing else."""

    def __init__(self) -> None:
        self.pairs: list[Pair] = []

    def apply(self, mutation: Mutation, also: Batch = (), *, first_epoch: int | None = 0) -> int:
        return self.write_records(Family.JOURNAL, also)

    def write_records(self, family: Family, batch: Batch, *, is_due: bool = False) -> int:
        self.pairs.extend((operation[1], operation[2]) for operation in batch if len(operation) == 3)
        return 0

    def records(self, lower: bytes, upper: bytes, count: int) -> list[Pair]:
        first = bisect_left(self.pairs, (lower, b""))
        return [pair for pair in self.pairs[first : first + count] if pair[0] < upper]

    def walk(self, lower: bytes, upper: bytes, count: int) -> Iterator[list[Pair]]:
        first, end = bisect_left(self.pairs, (lower, b"")), bisect_left(self.pairs, (upper, b""))
        for at in range(first, end, count):
            yield self.pairs[at : min(at + count, end)]

    def is_synced(self, sequence: int) -> bool:
        return True

    async def synced(self, sequence: int) -> None: ...


def _mutations() -> Iterator[Mutation]:
    value = Row(b"c", Liveness(1), None, (Cell(1, VALUE.encode(), 1),))
    for number in range(INDEXED):
        yield Mutation(9, number, b"%d" % number, mutation_id(1, 1, number), 1, rows=(value,))


async def _stored_starts(directory: str) -> float:
    """As `starts`, of a store on the disk that was closed before; ids a second."""
    everywhere, absent = Range(TOKEN_MIN, TOKEN_MAX), cast(Any, None)
    tasks = RealTasks(lambda name, error: print(name, error, file=sys.stderr))
    runtime = Runtime(absent, absent, absent, absent, tasks, NoProbes())
    found = 0.0
    for start in (1, 2):
        engine = StorageEngine(await open_rocks_store(f"{directory}/db", tasks), runtime)
        began_s = time.process_time()
        journal = Journal(engine, lambda: 7, start, lambda group, token: (everywhere, True))
        found = journal.entry_count / (time.process_time() - began_s)
        for number, made in enumerate(_mutations() if start == 1 else ()):
            journal.take((3, TOKEN_MAX), MutationId(NodeId(7), 1 << 24, number, 1), made)
            if number % SYNCED_EVERY == 0:
                await journal.synced()
        await journal.synced()
        await engine.close()
    return found


def starts() -> dict[str, Any]:
    """Ids of entries that a journal finds at a start, on one core: without the reads of the disk, and with
    those."""
    everywhere = Range(TOKEN_MIN, TOKEN_MAX)
    store = _Entries()
    journal = Journal(store, lambda: 7, 1, lambda group, token: (everywhere, True))
    journal.fit({9: 3})
    for number, made in enumerate(_mutations()):
        journal.take((3, TOKEN_MAX), MutationId(NodeId(7), 1 << 24, number, 1), made)
    store.pairs.sort()
    assert journal.shards[3, TOKEN_MAX].listed_count == INDEXED, "partitions are listed"
    began_s = time.process_time()
    again = Journal(store, lambda: 7, 2, lambda group, token: (everywhere, True))
    took_s = time.process_time() - began_s
    assert again.entry_count == INDEXED, "each entry is found"
    SCRATCH.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=SCRATCH) as directory:
        stored = asyncio.run(_stored_starts(directory))
    began_s, total = time.process_time(), 0
    for number in range(PLAIN):
        total += number
    plain_s = time.process_time() - began_s
    return {
        "ids": INDEXED,
        "ids_per_second": INDEXED / took_s,
        "stored_ids_per_second": stored,
        "plain_per_second": PLAIN / plain_s,
    }


# ---- real nodes


def cpu(seconds: float = 4.0, rounds: int = 3) -> dict[str, Any]:
    """CPU of all three nodes a request, both kinds by turns, in units of the untracked."""
    found: dict[str, dict[str, list[float]]] = {kind: {"write": [], "read": []} for kind in KINDS}
    latency: dict[str, dict[str, list[float]]] = {kind: {"write": [], "read": []} for kind in KINDS}
    with running_cluster("tracked") as cluster:
        meter_of = CpuMeter(pids_of(cluster))
        driver = Driver(cluster.contact_points, cluster.file.cql_port)
        try:
            for kind in KINDS:
                driver.make_space(kind, f" AND replication_type = '{kind}'")
            shared = {"in_flight": 32, "value_bytes": 100, "seconds": seconds, "warm_up_s": 1.0}
            for _ in range(rounds):
                for kind in KINDS:
                    for run in ("write", "read"):
                        done = driver.run(meter_of, run=run, space=kind, **shared)
                        found[kind][run].append(done["cpu_us_each"])
                        latency[kind][run].append(done["p99_ms"])
        finally:
            driver.close()
    ratios = {run: sum(found["tracked"][run]) / sum(found["untracked"][run]) for run in ("write", "read")}
    return {"cpu_us_each": found, "p99_ms": latency, "ratio": ratios}


PARTS: dict[str, Callable[[], dict[str, Any]]] = {
    "counts": counts,
    "summaries": summaries,
    "starts": starts,
    "cpu": cpu,
}


def measure(chosen: Sequence[str] = tuple(PARTS)) -> dict[str, Any]:
    return {part: PARTS[part]() for part in chosen}


def figures_of(found: dict[str, Any]) -> dict[str, tuple[float, float | None]]:
    """Name of a goal -> what was measured of tracked tables, and of untracked ones where there is such."""
    shown: dict[str, tuple[float, float | None]] = {}
    if "counts" in found:
        reads, away = found["counts"]["storage_reads"], found["counts"]["outage"]
        shown["storage reads a QUORUM read"] = reads["tracked"], reads["untracked"]
        more, apart = found["counts"]["storage_reads_of_five"], found["counts"]["diverged"]
        shown["the same with five copies"] = more["tracked"], more["untracked"]
        gone = away["tracked"]
        shown["bytes shipped / bytes missing"] = gone["shipped_bytes"] / gone["missing_bytes"], None
        ratio = apart["shipped_bytes"] / apart["missing_bytes"]
        shown["the same where one row in a hundred is missing"] = ratio, None
        shown["hint bytes after an outage"] = gone["hint_bytes"], away["untracked"]["hint_bytes"]
        lagged = found["counts"]["lag"]["p99_ms"] / RECONCILE_INTERVAL_MS
        shown["replication lag p99 in intervals"] = lagged, None
    if "summaries" in found:
        shown["summary bytes a live log"] = found["summaries"]["a_log"], None
        shown["summary bytes after 100 starts of each node"] = found["summaries"]["after_starts"], None
        shown["the same where a read asks for all logs"] = found["summaries"]["listed_after_starts"], None
    if "cpu" in found:
        for run in ("write", "read"):
            shown[f"CPU of a {run} / untracked"] = found["cpu"]["ratio"][run], 1.0
    if "starts" in found:
        shown["ids indexed a second at a start"] = found["starts"]["ids_per_second"], None
        shown["the same, read from the disk"] = found["starts"]["stored_ids_per_second"], None
    return shown


def show(found: dict[str, Any]) -> None:
    shown = figures_of(found)
    rows: list[list[object]] = [["", "tracked", "untracked", "goal", ""]]
    for name, goal, is_most in GOALS:
        if name in shown:
            value, other = shown[name]
            is_met = value <= goal if is_most else value >= goal
            bound = f"{'<=' if is_most else '>='} {goal:g}"
            rows.append(
                [
                    name,
                    float(value),
                    "" if other is None else f"{other:,.2f}",
                    bound,
                    "" if is_met else "MISSED",
                ]
            )
    print(table("Tracked tables beside untracked ones", rows))
    if "starts" in found:
        millions = found["starts"]["plain_per_second"] / 1e6
        print(f"a core added {millions:,.1f} million numbers a second meanwhile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[[], *PARTS])
    found = measure(tuple(parser.parse_args().parts) or tuple(PARTS))
    save("tracked_reads", found)
    show(found)


if __name__ == "__main__":
    main()
