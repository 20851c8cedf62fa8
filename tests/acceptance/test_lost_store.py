"""One of three nodes loses its table store: it refuses to start, is recovered in place, and has all again."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lockstep.cli.main import root
from lockstep.local.admin_client import AdminClient
from lockstep.testing.clusters import Cluster
from lockstep.testing.nodes import Node, Session
from lockstep.values.errors import LockstepError

pytestmark = pytest.mark.slow

ROWS = 300
COUNTED = 20
FILLED_S = 60.0


def fill(session: Session) -> None:
    for text in (
        "CREATE KEYSPACE k WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
        "CREATE KEYSPACE one WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}",
        "CREATE TABLE k.t (p int PRIMARY KEY, v text)",
        "CREATE TABLE k.cas (p int PRIMARY KEY, v int)",
        "CREATE TABLE k.counts (p int PRIMARY KEY, v counter)",
        "CREATE TABLE one.t (p int PRIMARY KEY)",
    ):
        session.execute(text)
    for i in range(ROWS):
        session.execute("INSERT INTO k.t (p, v) VALUES (?, ?)", (i, "x" * 80), consistency="QUORUM")
    for i in range(COUNTED):
        session.execute("INSERT INTO k.cas (p, v) VALUES (?, ?) IF NOT EXISTS", (i, 0))
        session.execute("UPDATE k.counts SET v = v + 1 WHERE p = ?", (i,))


def recover(node: Node, *options: str) -> tuple[int, str]:
    config = str(node.log_path.parent / "lockstep.toml")
    done = CliRunner().invoke(root, ["node", "recover", "--config", config, *options])
    return done.exit_code, done.output


def condition_codes(asked: Node) -> list[str]:
    status: dict[str, Any] = AdminClient(asked.address, 7080).get("/v1/status")
    return [one["code"] for one in status["conditions"]]


def store_of(node: Node) -> Path:
    return node.log_path.parent / "data" / "store"


def flip(store: Path) -> None:
    """A bit at a tenth of the largest write-ahead log."""
    log = max(store.glob("*.log"), key=lambda path: path.stat().st_size)
    content = bytearray(log.read_bytes())
    content[len(content) // 10] ^= 1
    log.write_bytes(content)


def all_there(session: Session, turn: int) -> None:
    assert len(session.execute("SELECT p FROM k.t", consistency="QUORUM")) == ROWS
    for i in range(COUNTED):
        applied = session.execute("UPDATE k.cas SET v = ? WHERE p = ? IF v = ?", (turn, i, turn - 1))
        assert applied[0][0], "the last conditional write is seen"
        session.execute("UPDATE k.counts SET v = v + 1 WHERE p = ?", (i,), consistency="QUORUM")
        read = session.execute("SELECT v FROM k.counts WHERE p = ?", (i,), consistency="QUORUM")
        assert read[0].v == turn + 1


def test_a_node_whose_log_was_damaged_is_recovered_in_place() -> None:
    with Cluster(3) as cluster:
        first, second, lost = cluster.nodes
        with first.session() as session:
            fill(session)
        lost.kill()
        flip(store_of(lost))
        with pytest.raises(LockstepError, match="is corrupt at byte"):
            lost.start()

        code, text = recover(lost)
        assert code == 3 and "no other node has all ranges of one" in text
        code, text = recover(lost, "--dry-run")
        assert code == 0 and "lost where no other node has it: one" in text
        code, text = recover(lost, "--accept-data-loss")
        assert code == 0 and "filled from other nodes: k" in text, text
        assert (store_of(lost).parent / "store-damaged" / "CURRENT").exists()
        code, text = recover(first)
        assert code == 3 and "in use by another process" in text

        lost.start()
        with lost.session() as session:
            all_there(session, 1)
        deadline_s = time.monotonic() + FILLED_S
        while "RANGE_LACKING" in condition_codes(lost):
            assert time.monotonic() < deadline_s, "it is filled"
            time.sleep(0.2)
        with lost.session() as session:
            all_there(session, 2)
        second.kill()
        with first.session() as session:
            all_there(session, 3)
        first.kill()
        with lost.session() as session:
            assert len(session.execute("SELECT p FROM k.t", consistency="ONE")) == ROWS
