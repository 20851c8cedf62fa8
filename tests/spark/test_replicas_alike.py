"""Rows of several replicas of which one tells rows and the others digests, as if one had stored all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow")

from lockstep.scans import stored_digests
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.table_reader import TableReader
from lockstep.spark import snapshot_reading
from lockstep.storage.store import Pair
from tests.scans.support import NOW_S, Writer, small_parts, table_of

from .replicas import GIVEN, Replicas

NAMES = ("p0", "c0", "s0", "r0", "r1")
POOLS = {
    "p0": [number.to_bytes(4, "big") for number in range(40)],
    "c0": [b"", b"a", b"b\x00c", *(b"%03d" % number for number in range(40))],
    "s0": [b"here", b""],
    "r0": [bytes(4), b"\xff\xff\xff\xff", b"\0\0\0\7"],
    "r1": [b"", b"text", b"x" * 300],
}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of few rows, and answers of few batches."""
    small_parts(monkeypatch)
    monkeypatch.setattr(snapshot_reading, "_TOLD_BYTES", 6000)


def _table() -> ScanTable:
    return table_of(["int"], [("text", False)], ["text"], ["int", "text"])


def _expected(table: ScanTable, stored: Sequence[Sequence[Pair]]) -> list[dict[str, Any]]:
    reader = TableReader(table, NAMES, NOW_S, GIVEN.decimal_scale, together=False)
    batches = [*reader.feed(sorted({pair for pairs in stored for pair in pairs})), *reader.finish()]
    return [row for batch in batches for row in batch.to_pylist()]


def _contents() -> Iterator[tuple[Random, ScanTable, list[Pair]]]:
    for seed in range(14):
        dice, table = Random(seed), _table()
        writer = Writer(table, dice, POOLS, gaps=dice.random() < 0.5)
        writer.fill(dice.choice([3, 30]), dice.choice([1, 5, 60]), dice.choice([0.0, 0.02, 0.5]))
        yield dice, table, writer.pairs


@pytest.mark.parametrize("wanted", [2, 3])
def test_rows_are_those_of_all_replicas_together(monkeypatch: pytest.MonkeyPatch, wanted: int) -> None:
    """Replicas lack nothing, little, one stretch, or much of what there is."""
    merged = alike = 0
    for dice, table, pairs in _contents():
        for missing in (0.0, 0.002, 0.3, -1.0):
            stored = {node: _lacking(pairs, missing, dice) for node in range(wanted)}
            replicas = Replicas(table, stored, fails=dice.choice([0, 0, 29]))
            monkeypatch.setattr(snapshot_reading, "answer_of", replicas.answer_of)
            assert replicas.rows(table, NAMES, wanted) == _expected(table, list(stored.values()))
            some = any(one.fragments for _, one in replicas.asked)
            merged, alike = merged + some, alike + (not some)
            assert missing or not some, "nothing is merged where nothing differs"
    assert merged > 15 and alike > 15


def _lacking(pairs: list[Pair], missing: float, dice: Random) -> list[Pair]:
    if missing < 0:
        at, end = sorted((dice.randrange(len(pairs) + 1), dice.randrange(len(pairs) + 1)))
        return [*pairs[:at], *pairs[end:]]
    return [pair for pair in pairs if dice.random() >= missing]


def test_replicas_of_an_earlier_release_are_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    for dice, table, pairs in _contents():
        stored = {node: _lacking(pairs, 0.1, dice) for node in range(2)}
        replicas = Replicas(table, stored, tells=False)
        monkeypatch.setattr(snapshot_reading, "answer_of", replicas.answer_of)
        assert replicas.rows(table, NAMES, 2) == _expected(table, list(stored.values()))


def test_a_difference_costs_what_is_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """One fragment of many is missing: most rows are told by one replica alone."""
    table = _table()
    writer = Writer(table, Random(1), POOLS, gaps=False)
    writer.fill(40, 60, 0.0)
    pairs = writer.pairs
    at = len(pairs) // 2
    replicas = Replicas(table, {0: pairs, 1: [*pairs[:at], *pairs[at + 1 :]]})
    monkeypatch.setattr(snapshot_reading, "answer_of", replicas.answer_of)
    monkeypatch.setattr(snapshot_reading, "_ANSWER_BYTES", 2000)
    assert replicas.rows(table, NAMES, 2) == _expected(table, [pairs])
    assert 0 < sum(one.fragments for _, one in replicas.asked) <= 6


def test_digests_that_are_not_compared_lose_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the tests: with digests that are always the same, rows are missing."""
    monkeypatch.setattr(stored_digests.StoredDigests, "told", lambda _self: bytes(16))
    lost = 0
    for dice, table, pairs in _contents():
        stored = {node: _lacking(pairs, 0.3, dice) for node in range(2)}
        replicas = Replicas(table, stored)
        monkeypatch.setattr(snapshot_reading, "answer_of", replicas.answer_of)
        lost += replicas.rows(table, NAMES, 2) != _expected(table, list(stored.values()))
    assert lost > 7
