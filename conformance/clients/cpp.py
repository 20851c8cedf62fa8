"""The C++ driver, as acsylla carries it."""

from __future__ import annotations

import asyncio
import sys
from importlib.metadata import version
from typing import Any

import acsylla  # type: ignore[import-not-found]

ROWS, PAGE = 500, 30
TABLE = (
    "CREATE TABLE cpp.t (k int, c int, v text, l list<int>, m map<text, int>, s set<text>, "
    "u frozen<address>, PRIMARY KEY (k, c))"
)


def held(name: str) -> None:
    print(f"check {name}", flush=True)


async def main(addresses: list[str]) -> None:
    print(f"version acsylla {version('acsylla')}", flush=True)
    session = await acsylla.create_cluster(addresses).create_session()

    async def execute(text: str) -> Any:
        return await session.execute(acsylla.create_statement(text))

    await execute(
        "CREATE KEYSPACE cpp WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 3}"
    )
    await execute("CREATE TYPE cpp.address (street text, zip int)")
    await execute(TABLE)
    held("connect")
    insert = await session.create_prepared("INSERT INTO cpp.t (k, c, v) VALUES (?, ?, ?)")

    def bound(prepared: Any, values: list[Any]) -> Any:
        statement = prepared.bind()
        statement.bind_list(values)
        return statement

    await asyncio.gather(*(session.execute(bound(insert, [1, c, f"v{c}"])) for c in range(ROWS)))
    held("prepare")
    select = acsylla.create_statement("SELECT c FROM cpp.t WHERE k = 1", page_size=PAGE)
    rows = pages = 0
    more = True
    while more:
        result = await session.execute(select)
        rows, pages, more = rows + result.count(), pages + 1, result.has_more_pages()
        if more:
            select.set_page_state(result.page_state())
    assert (rows, pages) == (ROWS, -(-ROWS // PAGE)), (rows, pages)
    held("page")
    batch = acsylla.create_batch_logged()
    for c in range(3):
        batch.add_statement(bound(insert, [2, c, "b"]))
    await session.execute_batch(batch)
    assert (await execute("SELECT c FROM cpp.t WHERE k = 2")).count() == 3
    held("batch")
    filled = await session.create_prepared("INSERT INTO cpp.t (k, c, l, m, s, u) VALUES (?, ?, ?, ?, ?, ?)")
    user_value = {"street": "S", "zip": 9}
    await session.execute(bound(filled, [4, 0, [3, 4], {"b": 2}, {"z"}, user_value]))
    row = (await execute("SELECT l, m, s, u FROM cpp.t WHERE k = 4")).first().as_dict()
    assert (row["l"], row["m"], row["s"]) == ([3, 4], {"b": 2}, {"z"}), row
    held("collections")
    assert row["u"] == user_value, row
    held("user type")
    await session.close()


asyncio.run(main(sys.argv[1:]))
