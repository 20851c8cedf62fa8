"""The Rust driver, as scyllapy carries it."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version

from scyllapy import Batch, Scylla  # type: ignore[import-not-found]

ROWS = 500
TABLE = (
    "CREATE TABLE t (k int, c int, v text, l list<int>, m map<text, int>, s set<text>, u frozen<address>, "
    "PRIMARY KEY (k, c))"
)


def held(name: str) -> None:
    print(f"check {name}", flush=True)


async def main(addresses: list[str]) -> None:
    print(f"version scyllapy {version('scyllapy')}", flush=True)
    session = Scylla(addresses)
    await session.startup()
    await session.execute(
        "CREATE KEYSPACE rust WITH replication = "
        "{'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
    )
    await session.use_keyspace("rust")
    await session.execute("CREATE TYPE address (street text, zip int)")
    await session.execute(TABLE)
    held("connect")
    insert = await session.prepare("INSERT INTO t (k, c, v) VALUES (?, ?, ?)")
    await asyncio.gather(*(session.execute(insert, [1, c, f"v{c}"]) for c in range(ROWS)))
    held("prepare")
    pages = await session.execute("SELECT c FROM t WHERE k = 1", paged=True)
    assert [row["c"] async for row in pages] == list(range(ROWS))
    held("page")
    batch = Batch()
    for _ in range(3):
        batch.add_query(insert)
    await session.batch(batch, [[2, c, "b"] for c in range(3)])
    assert len((await session.execute("SELECT c FROM t WHERE k = 2")).all()) == 3
    held("batch")
    filled = await session.prepare("INSERT INTO t (k, c, l, m, s) VALUES (?, ?, ?, ?, ?)")
    await session.execute(filled, [4, 0, [3, 4], {"b": 2}, {"z"}])
    [row] = (await session.execute("SELECT l, m, s FROM t WHERE k = 4")).all()
    assert row == {"l": [3, 4], "m": {"b": 2}, "s": {"z"}}, row
    held("collections")
    await session.execute("INSERT INTO t (k, c, u) VALUES (5, 0, {street: 'S', zip: 9})")
    [row] = (await session.execute("SELECT u FROM t WHERE k = 5")).all()
    assert row == {"u": {"street": "S", "zip": 9}}, row
    held("user type")
    await session.shutdown()


asyncio.run(main(sys.argv[1:]))
