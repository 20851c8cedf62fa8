"""CPU of SELECTs that look at 10,000 rows of a partition: told by columns, and by giving all rows.

Two replicas of a quorum read the same stored rows, their answers are encoded, decoded and compared, and a
coordinator makes pages of 5,000 rows of them; all in this process, one way and the other in turns. Sockets
and the storage library are not in it. Usage: python bench/filtered_rows.py [turns].
"""

from __future__ import annotations

import bisect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import msgspec
from measuring import save, table

from lockstep.coordination.page import Page
from lockstep.cql.bind.page_positions import decode as position
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog, Prepared
from lockstep.cql.compile.select import plan_select
from lockstep.cql.wire.responses import encode_rows
from lockstep.scans.outline_reading import OutlineReading
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn, apply_change
from lockstep.schema.clustering import encode_prefix
from lockstep.schema.model import ColumnKind, Schema
from lockstep.schema.types import parse_type
from lockstep.storage.reading import Reading
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.storage.store import Pair
from lockstep.values.ids import mutation_id
from lockstep.values.rows import Cell, Liveness, Mutation, ReadCommand, ReadResult, Row
from lockstep.values.tokens import token_of

_DECODER = msgspec.msgpack.Decoder(ReadResult)
ROWS, PAGE_ROWS, REPLICAS = 10_000, 5_000, 2
NOW_US = 1_700_000_000_000_000
STATEMENTS = {
    "1 % pass": "SELECT c, b FROM ks.t WHERE k = 'p' AND a < 1 ALLOW FILTERING",
    "half pass": "SELECT c, b FROM ks.t WHERE k = 'p' AND a < 50 ALLOW FILTERING",
    "1 % pass, by IN": "SELECT c, b FROM ks.t WHERE k = 'p' AND a IN (7) ALLOW FILTERING",
    "1 % pass, JSON": "SELECT JSON c, b FROM ks.t WHERE k = 'p' AND a < 1 ALLOW FILTERING",
    "half pass, JSON": "SELECT JSON c, b FROM ks.t WHERE k = 'p' AND a < 50 ALLOW FILTERING",
    "all ranges, 1 % pass": "SELECT c, b FROM ks.t WHERE c >= 0 AND a = 3 ALLOW FILTERING",
    "100 groups": "SELECT c, count(*), sum(d), max(a), min(a) FROM ks.u WHERE k = 'p' GROUP BY c",
    "100 groups of half": "SELECT c, sum(d) FROM ks.u WHERE k = 'p' AND a < 50 GROUP BY c ALLOW FILTERING",
    "half pass, writetime": "SELECT c, writetime(b) FROM ks.t WHERE k = 'p' AND a < 50 ALLOW FILTERING",
}


def catalog() -> Catalog:
    """Two tables, of one clustering column and of two."""
    plain = (NewColumn("a", "int"), NewColumn("b", "text"), NewColumn("d", "bigint"))
    options = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    schema, _ = apply_change(Schema(), CreateKeyspace("ks", options), 1)
    for number, (name, clustering) in enumerate((("t", "c"), ("u", "ce")), start=2):
        key = [NewColumn("k", "text", ColumnKind.PARTITION_KEY, 0)]
        key += [NewColumn(one, "bigint", ColumnKind.CLUSTERING, at) for at, one in enumerate(clustering)]
        schema, _ = apply_change(schema, CreateTable("ks", name, f"u{number}", (*key, *plain)), number)
    return Catalog(schema)


class Snapshot:
    """Stored pairs in order."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs
        self._keys = [key for key, _ in pairs]

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        first, end = (bisect.bisect_left(self._keys, bound) for bound in (lower, upper))
        found = self._pairs[first:end]
        return reversed(found) if reverse else iter(found)

    def close(self) -> None: ...


def context() -> Context:
    return Context(NOW_US, NOW_US // 1_000_000, NOW_US, NOW_US, bytes(14), bytes)


def stored(prepared: Prepared) -> list[Pair]:
    """Rows of one partition, each written by itself."""
    found = prepared.plan.shape.table  # type: ignore[union-attr]
    columns, key = {column.name: column for column in found.columns}, b"p"
    kinds = [parse_type(column.type) for column in found.clustering]
    prefix = keys.partition_prefix(found.id, token_of(key), key)
    pairs: dict[bytes, bytes] = {}
    for number in range(ROWS):
        values = (number,) if len(kinds) == 1 else divmod(number, 100)
        clustering = encode_prefix(kinds, [False] * len(kinds), [one.to_bytes(8, "big") for one in values])
        cells = {
            columns["a"].id: (number * 37 % 100).to_bytes(4, "big"),
            columns["b"].id: b"row number %06d" % number,
            columns["d"].id: number.to_bytes(8, "big"),
        }
        stamp = NOW_US - ROWS + number
        row = Row(
            clustering, Liveness(stamp), None, tuple(Cell(*one, stamp) for one in sorted(cells.items()))
        )
        mutation = Mutation(found.id, token_of(key), key, mutation_id(1, 1, number + 1), stamp, rows=(row,))
        pairs.update((store_key, value) for _, store_key, value in fragments_of(mutation, prefix))
    return sorted(pairs.items())


def answered(snapshot: Snapshot, command: ReadCommand) -> ReadResult:
    """What a coordinator makes of the answers of a quorum that agrees."""
    results = []
    for _ in range(REPLICAS):
        reading = (Reading if command.outline is None else OutlineReading)(snapshot, command, None)
        reading.run()
        results.append(_DECODER.decode(msgspec.msgpack.encode(reading.result())))
    assert all(result == results[0] for result in results), "replicas of the same rows agree"
    if results[0].told is not None:
        return results[0]
    page = Page(command)
    merged, end = results[0].partitions, results[0].end if results[0].more else None
    page.add(merged, end)
    return page.result(end)


def pages(prepared: Prepared, snapshot: Snapshot, *, tells: bool) -> list[bytes]:
    """Rows as the protocol writes them."""
    found, state = [], None
    while True:
        start = position(state, prepared.plan.shape.table.uuid) if state else None  # type: ignore[union-attr]
        builder = PageBuilder(plan_select(prepared, [], context(), start, PAGE_ROWS), packs=tells)
        while commands := builder.commands():
            builder.add([answered(snapshot, command) for command in commands])
        page = builder.page()
        state = page.paging_state
        found.append(b"".join([*page.packed, encode_rows(page.rows)]))
        if state is None:
            return found


def _timed(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return (time.process_time() - began) * 1000


def measure(turns: int = 5) -> dict[str, Any]:
    """CPU milliseconds of each statement, both ways."""
    known = catalog()
    figures: dict[str, Any] = {}
    snapshots: dict[int, Snapshot] = {}
    for name, text in STATEMENTS.items():
        prepared = prepare(text, None, known)
        snapshot = snapshots.get(prepared.plan.shape.table.id)  # type: ignore[union-attr]
        if snapshot is None:
            snapshot = snapshots[prepared.plan.shape.table.id] = Snapshot(stored(prepared))  # type: ignore[union-attr]
        same = pages(prepared, snapshot, tells=True), pages(prepared, snapshot, tells=False)
        assert same[0] == same[1], "both ways give the same pages"
        spent: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * turns):
            way = turn % 2 == 0
            spent[way].append(_timed(lambda: pages(prepared, snapshot, tells=way)))  # noqa: B023
        figures[name] = {"rows_ms": median(spent[False]), "told_ms": median(spent[True])}
    return {"statements": figures, "rows": ROWS, "replicas": REPLICAS}


def show(figures: dict[str, Any]) -> None:
    rows: list[list[object]] = [["statement", "all rows given, ms", "told, ms", "times cheaper"]]
    for name, one in figures["statements"].items():
        rows.append([name, one["rows_ms"], one["told_ms"], one["rows_ms"] / max(one["told_ms"], 1e-9)])
    print(table(f"CPU of {figures['replicas']} replicas and a coordinator, {figures['rows']:,} rows", rows))


if __name__ == "__main__":
    found = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
    show(found)
    print(f"wrote {save('filtered_rows', found)}")
