"""`lockstep backup` with real processes: a dropped table comes back, here and in a smaller cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cassandra import ConsistencyLevel
from cassandra.query import SimpleStatement

from lockstep.local.clusters import LocalCluster
from tests.acceptance.parts import ADMIN_PORT, PORTS, connect, lockstep

pytestmark = pytest.mark.slow

FIRST = "127.0.116.1"
POINTS = [f"127.0.116.{number}" for number in (1, 2, 3)]
HOST = f"{FIRST}:{ADMIN_PORT}"
SMALL = "127.0.116.21"
KEYS = 200
SCHEMA = (
    "CREATE KEYSPACE b WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 2}",
    "CREATE TYPE b.place (x int, y int)",
    'CREATE TABLE b."T" (k int, c int, v text, s int static, m map<text, int>, p frozen<place>, '
    "PRIMARY KEY (k, c)) WITH CLUSTERING ORDER BY (c DESC)",
    "CREATE TABLE b.n (k int PRIMARY KEY, hits counter)",
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster.create("backup", 3, first_address=FIRST, ports=PORTS, home=tmp_path / "clusters")
    with made:
        made.start()
        yield made


def fill(session: Any) -> None:
    for text in SCHEMA:
        session.execute(text)
    insert = session.prepare('INSERT INTO b."T" (k, c, v, s, m, p) VALUES (?, ?, ?, ?, ?, {x: 1, y: 2})')
    count = session.prepare("UPDATE b.n SET hits = hits + ? WHERE k = ?")
    for key in range(KEYS):
        for place in range(3):
            session.execute(insert, (key, place, f"v{key}", key, {"a": place}))
        session.execute(count, (key, key % 10))
    session.execute('DELETE FROM b."T" WHERE k = 5')
    session.execute('ALTER TABLE b."T" ADD w int')
    session.execute('UPDATE b."T" SET w = 7 WHERE k = 1 AND c = 1')
    session.execute('ALTER TABLE b."T" DROP w')
    session.execute('ALTER TABLE b."T" ADD w int')
    session.execute('UPDATE b."T" SET w = 8 WHERE k = 2 AND c = 1')


def content(session: Any) -> tuple[list[Any], list[Any]]:
    def rows(text: str) -> list[Any]:
        statement = SimpleStatement(text, consistency_level=ConsistencyLevel.ALL)
        return sorted(tuple(row) for row in session.execute(statement))

    texts = (
        'SELECT k, c, v, s, m, p.x AS x, w, writetime(v) AS at FROM b."T"',
        "SELECT k, hits FROM b.n",
    )
    return rows(texts[0]), rows(texts[1])


def told(*arguments: str, home: Path | None = None) -> Any:
    ended = lockstep(*arguments, "-o", "json", home=home)
    assert ended.code == 0, ended.err
    return json.loads(ended.out)


def flip(cluster: LocalCluster) -> Path:
    """Flip a bit of a file of the last node's part."""
    node = cluster.file.nodes[-1].name
    path = max(cluster.paths.data(node).glob("backups/one/*/*-00000"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    return path


def test_tables_come_back_here_and_in_another_cluster(cluster: LocalCluster, tmp_path: Path) -> None:
    driver = connect(POINTS)
    session = driver.connect()
    fill(session)
    before = content(session)

    plan = lockstep("backup", "create", "one", "--dry-run", "--host", HOST)
    assert plan.code == 0 and "would be refused" not in plan.out, plan.err
    copied = ("--to", str(tmp_path / "copies"))
    assert told("backup", "create", "one", *copied, "--host", HOST, home=tmp_path)["state"] == "done"
    again = lockstep("backup", "create", "one", "--host", HOST)
    assert again.code == 3 and "there is a backup one" in again.err
    (listed,) = told("backup", "list", "--host", f"{POINTS[1]}:{ADMIN_PORT}")["backups"]
    assert listed["complete"] and len(listed["parts"]) == 3

    refused = lockstep("backup", "restore", "one", "--host", HOST)
    assert refused.code == 3 and "--truncate" in refused.err
    session.execute("UPDATE b.n SET hits = hits + 1000 WHERE k = 1")
    session.execute('DELETE FROM b."T" WHERE k = 9')
    present, torn = content(session), flip(cluster)
    refused = lockstep("backup", "restore", "one", "--truncate", "--host", HOST)
    assert refused.code == 1 and torn.name in refused.out + refused.err
    assert "nothing was changed" in refused.out + refused.err and content(session) == present
    flip(cluster)
    session.execute('DROP TABLE b."T"')
    dry = lockstep("backup", "restore", "one", "--truncate", "--dry-run", "--host", HOST)
    assert dry.code == 0 and "create" in dry.out and "truncate" in dry.out, dry.err
    assert told("backup", "restore", "one", "--truncate", "--host", HOST)["state"] == "done"
    assert content(session) == before
    session.execute("UPDATE b.n SET hits = hits + 1 WHERE k = 3")
    session.execute('ALTER TABLE b."T" DROP w')
    session.execute('ALTER TABLE b."T" ADD w int')
    refused = lockstep("backup", "restore", "one", "--truncate", "--host", HOST)
    assert refused.code == 3 and "column w of table b.T was dropped since" in refused.err
    driver.shutdown()

    small = LocalCluster.create("small", 1, first_address=SMALL, ports=PORTS, home=tmp_path / "clusters")
    with small:
        small.start()
        from_copy = ("--from", str(tmp_path / "copies"), "--host", f"{SMALL}:{ADMIN_PORT}")
        dry = lockstep("backup", "restore", "one", "--dry-run", *from_copy, home=tmp_path)
        assert dry.code == 0 and "node 1 serves 3 parts" in dry.out, dry.err
        assert not told("backup", "list", "--host", f"{SMALL}:{ADMIN_PORT}")["backups"], "nothing was brought"
        alone = connect([SMALL])
        session = alone.connect()
        session.execute(SCHEMA[0].replace("2", "1"))
        found = told("backup", "restore", "one", *from_copy, home=tmp_path)
        assert found["state"] == "done"
        assert content(session) == before
        session.execute("UPDATE b.n SET hits = hits + 5 WHERE k = 3")
        assert session.execute("SELECT hits FROM b.n WHERE k = 3").one().hits == dict(before[1])[3] + 5
        alone.shutdown()

    removed = lockstep("backup", "remove", "one", "--host", HOST)
    assert removed.code == 0 and "3 parts" in removed.out
