"""Rows that are packed for the protocol as they are read: the same pages as those made of records."""

from __future__ import annotations

from random import Random

import pytest

from lockstep.cql.bind import results
from lockstep.cql.bind.page_positions import decode
from lockstep.cql.bind.results import PageBuilder
from lockstep.cql.compile.select import plan_select
from lockstep.cql.wire.responses import encode_rows
from lockstep.values.errors import InvalidRequest
from tests.cql.twin import Session

TABLES = (
    "k int, c int, a int, b text, s text static, primary key (k, c)",
    "k int, c int, a int, b text, s text static, primary key (k, c)) with clustering order by (c desc",
    "k int, c text, d bigint, a int, b text, s text static, primary key (k, c, d)",
    "k int, c text, d int, a int, b text, s text static, primary key ((k, c), d)",
    "k int, c int, a int, b text, s text static, m map<int, int>, primary key (k, c)",
)
SELECTS = (
    "SELECT * FROM t",
    "SELECT b, s, k, a FROM t WHERE k = 1 ALLOW FILTERING",
    "SELECT a FROM t WHERE k IN (2, 1) ALLOW FILTERING",
    "SELECT b, a, b FROM t LIMIT 23",
    "SELECT k, a FROM t PER PARTITION LIMIT 9",
    "SELECT * FROM t WHERE a > 3 ALLOW FILTERING",
    "SELECT count(*), max(a) FROM t",
    "SELECT writetime(a), b FROM t",
    "SELECT DISTINCT {key}, s FROM t",
)


def _session(dice: Random, table: str) -> Session:
    session = Session(f"CREATE TABLE t ({table})")
    wide = "d" in table.split()
    for k in range(3):
        for c in range(dice.choice([0, 3, 9, 40])):
            clustering = f"'{c % 5}', {c}" if wide else str(c)
            names = "k, c, d" if wide else "k, c"
            session.run(f"INSERT INTO t ({names}) VALUES ({k}, {clustering})")
            where = f"k = {k} AND c = '{c % 5}' AND d = {c}" if wide else f"k = {k} AND c = {c}"
            if dice.random() < 0.8:
                session.run(f"UPDATE t SET a = {dice.randrange(9)} WHERE {where}")
            if dice.random() < 0.7:
                session.run(f"UPDATE t SET b = '{'x' * dice.randrange(40)}' WHERE {where}")
            if " map<" in table and dice.random() < 0.5:
                session.run(f"UPDATE t SET m[1] = 2 WHERE {where}")
            if dice.random() < 0.1:
                session.run(f"DELETE FROM t WHERE {where}")
        if dice.random() < 0.5 and "(k, c)," not in table:
            session.run(f"UPDATE t SET s = 'static' WHERE k = {k}")
    return session


def _pages(session: Session, text: str, page_size: int, *, packs: bool) -> list[object]:
    """(rows, bytes, paging state) of each page, or the refusal."""
    prepared, state = session.prepare(text), None
    found: list[object] = []
    while True:
        start = decode(state, prepared.plan.shape.table.uuid) if state is not None else None
        builder = PageBuilder(plan_select(prepared, [], session.context(), start, page_size), packs=packs)
        try:
            while commands := builder.commands():
                builder.add([session.store.read(command) for command in commands])
        except InvalidRequest as error:
            return [*found, error.message]
        page = builder.page()
        state = page.paging_state
        data = b"".join([*page.packed, encode_rows(page.rows)])
        found.append((page.packed_rows + len(page.rows), data, state))
        if state is None:
            return found


@pytest.mark.parametrize("seed", range(25))
def test_packed_pages_are_those_of_records(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dice = Random(seed)
    table = TABLES[seed % len(TABLES)]
    session = _session(dice, table)
    monkeypatch.setattr(results, "PAGE_BYTES_MAX", dice.choice([100, 700, 1 << 20]))
    monkeypatch.setattr(results, "UNPAGED_ROWS_MAX", dice.choice([20, 10_000]))
    monkeypatch.setattr(results, "ROWS_A_TURN", dice.choice([1, 7, 2000]))
    key = "k, c" if "((k, c)" in table else "k"
    for text in SELECTS:
        for page_size in (-1, 1, 10, 5000):
            asked = text.format(key=key)
            if "IN (" in asked and key != "k":
                continue
            packed = _pages(session, asked, page_size, packs=True)
            assert packed == _pages(session, asked, page_size, packs=False), (asked, page_size)


def test_rows_of_plain_columns_are_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    session = Session(f"CREATE TABLE t ({TABLES[0]})")
    for c in range(30):
        session.run(f"INSERT INTO t (k, c, a) VALUES (1, {c}, {c})")
    packed = []
    original = results.RowPacker.packed
    monkeypatch.setattr(
        results.RowPacker, "packed", lambda self, rows: packed.append(len(rows)) or original(self, rows)
    )
    _pages(session, "SELECT * FROM t WHERE k = 1", 5000, packs=True)
    assert packed == [30]
