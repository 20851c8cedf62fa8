"""Microseconds that CQL work costs: parse, prepare, plan a bound statement, build result rows.

Run: python bench/cql_plan.py
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lockstep.cql.bind.modify import plan_modification
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile.context import Context
from lockstep.cql.compile.prepare import prepare
from lockstep.cql.compile.prepared import Catalog
from lockstep.cql.compile.select import plan_select
from lockstep.cql.parse.parser import parse
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn, apply_change
from lockstep.schema.model import ColumnKind, Schema
from lockstep.values.rows import Partition, ReadResult, Row

INSERT = "INSERT INTO ks.t (k, c, a, b, d) VALUES (?, ?, ?, ?, ?)"
UPDATE = "UPDATE ks.t SET a = ?, m[?] = ? WHERE k = ? AND c = ?"
SELECT = "SELECT k, c, a, b FROM ks.t WHERE k = ?"
ROUNDS = 20_000


def catalog() -> Catalog:
    """One table with five plain columns and a map."""
    key = (
        NewColumn("k", "text", ColumnKind.PARTITION_KEY, 0),
        NewColumn("c", "bigint", ColumnKind.CLUSTERING, 0),
    )
    plain = (
        NewColumn("a", "int"),
        NewColumn("b", "text"),
        NewColumn("d", "double"),
        NewColumn("m", "map<text, int>"),
    )
    options = (("class", "SimpleStrategy"), ("replication_factor", "3"))
    schema, _ = apply_change(Schema(), CreateKeyspace("ks", options), 1)
    schema, _ = apply_change(schema, CreateTable("ks", "t", "u", key + plain), 2)
    return Catalog(schema)


def measure(name: str, work: Callable[[], object], rounds: int = ROUNDS) -> None:
    """Print the best of three runs."""
    best = float("inf")
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(rounds):
            work()
        best = min(best, time.perf_counter() - start)
    print(f"{name:<34} {best / rounds * 1e6:9.2f} us")


def main() -> None:
    found = catalog()
    start = time.perf_counter()
    parse(INSERT)
    print(f"{'load the tables and parse once':<34} {(time.perf_counter() - start) * 1e6:9.2f} us")
    now_us = 1_700_000_000_000_000
    context = Context(now_us, now_us // 1_000_000, now_us, now_us, bytes(14), lambda: bytes(16))
    insert, update, select = (prepare(text, None, found) for text in (INSERT, UPDATE, SELECT))
    number, text, double = bytes(4), b"some text", bytes(8)
    row_values = [b"key", bytes(8), number, text, double]
    mutation = plan_modification(insert, row_values, context)[0]
    cells = mutation.rows[0].cells
    rows = tuple(Row(b"\x02" + at.to_bytes(8, "big"), None, None, cells) for at in range(100))
    result = ReadResult((Partition(mutation.token, mutation.key, rows=rows),))

    def page() -> object:
        builder = PageBuilder(plan_select(select, [b"key"], context, None, 5000))
        builder.commands()
        builder.add([result])
        return builder.page()

    measure("parse an INSERT", lambda: parse(INSERT), ROUNDS // 10)
    measure("prepare an INSERT", lambda: prepare(INSERT, None, found), ROUNDS // 10)
    measure("prepare a SELECT", lambda: prepare(SELECT, None, found), ROUNDS // 10)
    measure("plan a prepared 5-column INSERT", lambda: plan_modification(insert, row_values, context))
    update_values = [number, b"x", number, b"key", bytes(8)]
    measure("plan a prepared UPDATE with a map", lambda: plan_modification(update, update_values, context))
    measure(
        "plan a prepared point SELECT", lambda: PageBuilder(plan_select(select, [b"key"], context)).commands()
    )
    measure("plan and build a page of 100 rows", page, ROUNDS // 100)


if __name__ == "__main__":
    main()
