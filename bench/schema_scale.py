"""What a schema of many tables costs: CREATE TABLE beside few and many others, snapshots, replay.

One client creates tables one after the other through one node of a three-node cluster; the last thousand
must take at most 1.5 times as long as the first. Then many clients change tables at once, a driver reads the
whole schema, and a node that was down follows a long log. Without a cluster: the snapshot of a large schema
in pieces, and the replay of a long log. Usage: python bench/schema_scale.py [tables] [--only PART ...]
"""

from __future__ import annotations

import argparse
import asyncio
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

from measuring import ROOT, CpuMeter, percentile, resident_mb, save, table
from quorum_path import pids_of, running_cluster

sys.path.insert(0, str(ROOT))

from lockstep.cql.wire import client as wire
from lockstep.cql.wire.constants import Opcode
from lockstep.cql.wire.frames import EnvelopeReader, encode_request
from lockstep.cql.wire.messages import QueryParameters
from lockstep.local.clusters import LocalCluster
from lockstep.metadata.cluster import REGISTERED, ClusterMetadata, empty_cluster
from lockstep.metadata.log.apply import apply_entry, state_digest
from lockstep.metadata.log.entries import LogEntry
from lockstep.metadata.log.registry import Registry, Transformation
from lockstep.metadata.log.snapshot import SnapshotDecoder, pieces
from lockstep.metadata.log.tip import Appended, Tip
from lockstep.metadata.schema_change import KINDS as SCHEMA_KINDS
from lockstep.metadata.schema_change import ChangeSchema
from lockstep.metadata.transformations import KINDS, Founder, Initialize, SetExtension
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn
from lockstep.schema.model import ColumnKind
from lockstep.values.ids import Consistency

TABLES = 10_000
#: How many statements at each end are compared.
WINDOW = 1_000
TARGET_RATIO = 1.5
CLIENTS = 50
TABLES_OF_A_CLIENT = 10
SNAPSHOT_TABLES = 30_000
REPLAYED = 100_000
BEHIND = 50_000
_VERSION = 4
#: A driver connects: prints the seconds that took, and how many tables it found.
_CONNECT = """
import sys, time
from cassandra.cluster import Cluster
driver = Cluster([sys.argv[1]], port=int(sys.argv[2]), control_connection_timeout=60.0)
began_s = time.perf_counter()
driver.connect()
print(time.perf_counter() - began_s, len(driver.metadata.keyspaces["many"].tables))
driver.shutdown()
"""
_KEYSPACE = "CREATE KEYSPACE many WITH replication = {'class': 'NetworkTopologyStrategy', 'dc1': 3}"
_COLUMNS = "(k int, c timeuuid, v text, n bigint, tags set<text>, PRIMARY KEY (k, c))"


class Client:
    """One connection, one statement at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._envelopes = EnvelopeReader(responses=True)

    @staticmethod
    async def connect(address: str, port: int) -> Client:
        client = Client(*await asyncio.open_connection(address, port))
        await client._ask(Opcode.STARTUP, wire.startup({"CQL_VERSION": "3.0.0"}))
        return client

    async def _ask(self, opcode: int, body: bytes) -> wire.Body:
        self._writer.write(encode_request(_VERSION, opcode, 0, body, 0))
        while not (found := self._envelopes.feed(await self._reader.read(1 << 16))):
            if self._reader.at_eof():
                raise ConnectionError("the node closed the connection")
        answer = wire.decode_response(found[0].version, found[0].opcode, found[0].flags, found[0].body).body
        if isinstance(answer, wire.ErrorResponse):
            raise RuntimeError(answer)
        return answer

    async def query(self, text: str) -> float:
        """Milliseconds until the answer."""
        began_s = time.perf_counter()
        await self._ask(Opcode.QUERY, wire.query(_VERSION, text, QueryParameters(Consistency.QUORUM, ())))
        return (time.perf_counter() - began_s) * 1_000

    def close(self) -> None:
        self._writer.close()


def _spread(latencies_ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(latencies_ms)
    return {
        "mean_ms": sum(ordered) / len(ordered),
        "p50_ms": percentile(ordered, 0.5),
        "p99_ms": percentile(ordered, 0.99),
        "max_ms": ordered[-1],
    }


async def _create_tables(address: str, port: int, count: int, pids: Sequence[int]) -> dict[str, Any]:
    client = await Client.connect(address, port)
    await client.query(_KEYSPACE)
    window = min(WINDOW, count // 2)
    latencies, cpu_ms = [], []
    meter = CpuMeter(pids)
    meter.start()
    for number in range(count):
        latencies.append(await client.query(f"CREATE TABLE many.t{number:06} {_COLUMNS}"))
        if (number + 1) % window == 0:
            cpu_ms.append(meter.stop()["cpu_s"] * 1_000 / window)
            meter.start()
    first, last = _spread(latencies[:window]), _spread(latencies[-window:])
    one_ms = await client.query(
        f"SELECT * FROM system_schema.columns WHERE keyspace_name = 'many' AND table_name = 't{count - 1:06}'"
    )
    client.close()
    return {
        "tables": count,
        "first": first,
        "last": last,
        "ratio": last["mean_ms"] / first["mean_ms"],
        "ratio_p50": last["p50_ms"] / first["p50_ms"],
        "cpu_ms_each": cpu_ms,
        "columns_of_one_table_ms": one_ms,
    }


async def _many_clients(hosts: Sequence[str], port: int) -> dict[str, Any]:
    async def one(number: int) -> list[float]:
        client = await Client.connect(hosts[number % len(hosts)], port)
        names = range(TABLES_OF_A_CLIENT)
        found = [await client.query(f"CREATE TABLE many.c{number}_{at} {_COLUMNS}") for at in names]
        found += [await client.query(f"ALTER TABLE many.c{number}_{at} ADD extra int") for at in names]
        found += [await client.query(f"DROP TABLE many.c{number}_{at}") for at in names]
        client.close()
        return found

    began_s = time.perf_counter()
    parts = await asyncio.gather(*(one(number) for number in range(CLIENTS)))
    wall_s = time.perf_counter() - began_s
    latencies = [latency for part in parts for latency in part]
    return {
        "clients": CLIENTS,
        "statements": len(latencies),
        "per_second": len(latencies) / wall_s,
        **_spread(latencies),
    }


def _full_read(hosts: Sequence[str], port: int) -> dict[str, Any]:
    """A driver that connects reads the whole schema; meanwhile another connection asks for little."""

    async def asking(stop: asyncio.Event) -> list[float]:
        client, found = await Client.connect(hosts[0], port), []
        while not stop.is_set():
            found.append(await client.query("SELECT key FROM system.local"))
            await asyncio.sleep(0.005)
        client.close()
        return found

    async def body() -> dict[str, Any]:
        stop = asyncio.Event()
        asked = asyncio.create_task(asking(stop))
        command = (sys.executable, "-c", _CONNECT, hosts[0], str(port))
        # In a process of its own: what the driver makes of the rows keeps its interpreter busy.
        driver = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        said, _ = await driver.communicate()
        stop.set()
        found: dict[str, Any] = dict(zip(("connect_s", "tables"), map(float, said.split()), strict=True))
        return found | {f"others_{name}": value for name, value in _spread(await asked).items()}

    return asyncio.run(body())


async def _many_entries(hosts: Sequence[str], port: int, count: int) -> None:
    async def one(number: int) -> None:
        client = await Client.connect(hosts[number % len(hosts)], port)
        for at in range(count // CLIENTS):
            await client.query(f"ALTER TABLE many.t000000 WITH comment = '{number}/{at}'")
        client.close()

    await asyncio.gather(*(one(number) for number in range(CLIENTS)))


def _catch_up(cluster: LocalCluster, entries: int) -> dict[str, Any]:
    """One node is down while the others commit entries; then it is started, and serves when it has them."""
    last = cluster.file.nodes[-1]

    def epoch(name: str) -> int:
        return int(cluster.admin(name).get("/v1/cms")["epoch"])

    cluster.stop([last.name])
    before, began_s = epoch(cluster.file.nodes[0].name), time.perf_counter()
    asyncio.run(_many_entries(cluster.contact_points[:-1], cluster.file.cql_port, entries))
    committing_s, wanted = time.perf_counter() - began_s, epoch(cluster.file.nodes[0].name)
    began_s = time.perf_counter()
    cluster.start([last.name])
    while epoch(last.name) < wanted:
        time.sleep(0.01)
    found_s = time.perf_counter() - began_s
    return {
        "behind": wanted - before,
        "committed_per_second": (wanted - before) / committing_s,
        "seconds": found_s,
    }


def on_cluster(tables: int, chosen: Sequence[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    with running_cluster("schema-scale") as cluster:
        hosts, port = cluster.contact_points, cluster.file.cql_port
        pids = pids_of(cluster)
        if "ddl" in chosen:
            found["ddl"] = asyncio.run(_create_tables(hosts[0], port, tables, pids))
            found["ddl"]["resident_mb"] = [resident_mb(pid) for pid in pids]
        else:
            asyncio.run(_create_tables(hosts[0], port, 2, pids))
        if "driver" in chosen:
            found["driver"] = _full_read(hosts, port)
        if "catch-up" in chosen:
            found["catch-up"] = _catch_up(cluster, BEHIND * tables // TABLES)
        if "clients" in chosen:
            found["clients"] = asyncio.run(_many_clients(hosts, port))
    return found


# Without a cluster


class _Log:
    """A log made through the leader's tip, and the value that applying it gave."""

    def __init__(self) -> None:
        self.registry = Registry(KINDS, SCHEMA_KINDS)
        self.entries: list[LogEntry] = []
        self.value = empty_cluster()
        self._tip = Tip(self.value, self.registry)

    def submit(self, transformation: Transformation) -> None:
        kind, body = self.registry.encode(transformation)
        entry_id = (len(self.entries) + 1).to_bytes(16, "big")
        judged = self._tip.judge(entry_id, kind, body, "bench", 1_000, 1)
        assert isinstance(judged, Appended), judged
        self.entries.append(judged.entry)
        self.value = self._tip.value
        self._tip.applied_now(self.value)


def _changes(tables: int) -> Iterator[Transformation]:
    founders = tuple(
        Founder(f"h{at}", f"10.0.0.{at}", 1, 2, 3, "dc1", "r1", (at * 1_000,), "1") for at in (1, 2, 3)
    )
    yield Initialize("bench", "bench", founders)
    yield ChangeSchema(CreateKeyspace("many", (("class", "SimpleStrategy"), ("replication_factor", "3"))))
    columns = (
        NewColumn("k", "int", ColumnKind.PARTITION_KEY, 0),
        NewColumn("c", "timeuuid", ColumnKind.CLUSTERING, 0),
        *(NewColumn(f"v{at}", "text") for at in range(8)),
    )
    for number in range(tables):
        uuid = f"00000000-0000-4000-8000-{number:012}"
        yield ChangeSchema(CreateTable("many", f"t{number:06}", uuid, columns))


def _log(tables: int, extensions: int) -> _Log:
    log = _Log()
    for change in _changes(tables):
        log.submit(change)
    for number in range(extensions):
        log.submit(SetExtension(f"n{number % 500}", number.to_bytes(4, "big") * 25))
    return log


def snapshot(tables: int) -> dict[str, Any]:
    """A snapshot in pieces: its size, and the longest time from one piece to the next."""
    log = _log(tables, 0)
    longest_s, made = 0.0, []
    began_s = last_s = time.perf_counter()
    for piece in pieces(log.value):
        made.append(piece)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    encode_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    decoder = SnapshotDecoder(REGISTERED)
    for piece in made:
        decoder.feed(piece)
    fed_s = time.perf_counter() - began_s
    value: ClusterMetadata = decoder.finish()
    decode_s = time.perf_counter() - began_s
    digest = state_digest(value)
    assert digest == state_digest(log.value), "a snapshot is not what was stored"
    return {
        "tables": tables,
        "bytes": sum(map(len, made)),
        "pieces": len(made),
        "encode_s": encode_s,
        "longest_block_ms": longest_s * 1_000,
        "decode_s": decode_s,
        "finish_s": decode_s - fed_s,
    }


def replay(entries: int) -> dict[str, Any]:
    """Applying a log of tables and extensions, without and with the digest of every epoch."""
    tables = entries // 3
    log = _log(tables, entries - tables - 2)
    found: dict[str, Any] = {"entries": len(log.entries), "tables": tables}
    for name, digests in (("replay_s", False), ("replay_with_digests_s", True)):
        value = empty_cluster()
        began_s = time.perf_counter()
        for entry in log.entries:
            value = apply_entry(value, entry, log.registry)
            if digests:
                state_digest(value)
        found[name] = time.perf_counter() - began_s
        assert state_digest(value) == state_digest(log.value)
    found["entries_per_second"] = len(log.entries) / found["replay_s"]
    return found


ALL = ("snapshot", "replay", "ddl", "clients", "driver", "catch-up")
_OF_CLUSTER = ("ddl", "clients", "driver", "catch-up")


def measure(tables: int = TABLES, chosen: Sequence[str] = ALL) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "snapshot" in chosen:
        found["snapshot"] = snapshot(SNAPSHOT_TABLES * tables // TABLES)
    if "replay" in chosen:
        found["replay"] = replay(REPLAYED * tables // TABLES)
    if any(name in chosen for name in _OF_CLUSTER):
        found |= on_cluster(tables, chosen)
    return found


def rows_of(figures: dict[str, Any]) -> list[list[object]]:
    rows: list[list[object]] = [["", "mean ms", "p50 ms", "p99 ms", "max ms"]]
    ddl = figures.get("ddl")
    if ddl is not None:
        for name in ("first", "last"):
            rows.append([f"CREATE TABLE, {name} of {ddl['tables']:,}", *ddl[name].values()])
    many = figures.get("clients")
    if many is not None:
        names = ("mean_ms", "p50_ms", "p99_ms", "max_ms")
        rows.append([f"{many['clients']} clients at once", *(many[name] for name in names)])
    return rows


def show(figures: dict[str, Any]) -> None:
    rows = rows_of(figures)
    if len(rows) > 1:
        print(table("Schema changes through one node of three", rows))
    if "ddl" in figures:
        print(f"last to first: {figures['ddl']['ratio']:.2f}; target: at most {TARGET_RATIO:g}")
    for name in ("snapshot", "replay", "driver", "catch-up"):
        if name in figures:
            print(table(name, [list(figures[name]), list(figures[name].values())]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tables", type=int, nargs="?", default=TABLES)
    parser.add_argument("--only", nargs="*", default=ALL, choices=ALL)
    arguments = parser.parse_args()
    figures = measure(arguments.tables, arguments.only)
    show(figures)
    print(save("schema_scale", figures))


if __name__ == "__main__":
    main()
