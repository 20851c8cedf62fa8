"""Replicas compared by what they store, and by what is left of rows where that differs."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

pytest.importorskip("pyarrow")

from lockstep.scans.bucket_digests import parts
from lockstep.scans.scan_table import ScanTable
from lockstep.spark import replica_digests
from lockstep.spark.replica_digests import FixedReplicas, Part, Wanted
from lockstep.storage.rocks.rocks_files import FilesTold
from lockstep.storage.rows import keys
from lockstep.storage.store import Pair
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range
from tests.scans.support import Writer, table_of
from tests.scans.test_bucket_digests import POOLS, merged, table

from .replicas import GIVEN, Replicas

BUCKETS = 5
NODES = (0, 1, 2)


class _Locations:
    def __init__(self, *_: object) -> None: ...

    def of(self, node: int) -> int:
        return node


def _parts(count: int) -> list[Part]:
    whole = parts(Range(TOKEN_MIN, TOKEN_MAX), count)
    return [((one.left, one.right, BUCKETS), NODES) for one in whole]


def _fixed(monkeypatch: pytest.MonkeyPatch, stored: dict[int, list[Pair]]) -> tuple[FixedReplicas, Replicas]:
    replicas = Replicas(table(), stored)
    return _of(monkeypatch, replicas, table()), replicas


def _of(monkeypatch: pytest.MonkeyPatch, replicas: Replicas, of: ScanTable) -> FixedReplicas:
    monkeypatch.setattr(replica_digests, "answer_of", replicas.answer_of)
    monkeypatch.setattr(replica_digests, "Locations", _Locations)
    return FixedReplicas(GIVEN, replicas.snapshot(of, 1))


def _filled(dice: Random, odd: float = 0.0) -> list[Pair]:
    """`odd`: the chance of whatever is not a plain row; without it rows have all their values."""
    writer = Writer(table(), dice, POOLS, gaps=bool(odd))
    writer.fill(dice.choice([3, 30]), dice.choice([1, 5, 60]), odd)
    return writer.pairs


def test_buckets_differ_where_what_is_left_of_their_rows_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """However the replicas store it: as it came, with some rows merged, or with some fragments missing."""
    unlike = alike = 0
    for seed in range(40):
        dice = Random(seed)
        odd = dice.choice([0.0, 0.02, 0.5])
        pairs = _filled(dice, odd)
        missing = dice.choice([0.0, 0.003, 0.05, 0.3])
        stored = {node: [pair for pair in pairs if dice.random() >= missing] for node in NODES}
        if dice.random() < 0.5:
            stored[1] = merged(stored[1], dice, 0)
        fixed, _ = _fixed(monkeypatch, stored)
        asked = _parts(dice.choice([1, 4, 17]))
        found = fixed.compared(asked, 0)
        alone = fixed.digests({node: [wanted for wanted, _ in asked] for node in NODES}, 0)
        assert found.keys() == alone.keys()
        for wanted, nodes in asked:
            for bucket in range(BUCKETS):
                mine, theirs = ([told[node, wanted][bucket][0] for node in nodes] for told in (found, alone))
                # Which of them are equal, not what their digests are.
                assert [mine.index(one) for one in mine] == [theirs.index(one) for one in theirs], seed
                is_unlike = len(set(mine)) > 1
                unlike, alike = unlike + is_unlike, alike + (not is_unlike)
            for node in nodes:
                rows, expected = (sum(count for _, count in told[node, wanted]) for told in (found, alone))
                # Rows below a deletion, and rows of nothing, are stored until they are merged.
                assert rows == expected if not odd else rows >= expected, seed
    assert unlike > 60 and alike > 300


def test_rows_are_looked_at_only_where_something_is_stored_differently(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writer = Writer(table(), Random(1), POOLS, gaps=False)
    writer.fill(400, 3, 0.0)
    pairs, asked = writer.pairs, _parts(16)

    def looked_at(stored: dict[int, list[Pair]]) -> tuple[int, int]:
        """Ranges of which each kind of digest was wanted."""
        fixed, replicas = _fixed(monkeypatch, stored)
        fixed.compared(asked, 0)
        wanted = [one.digests for _, one in replicas.asked if one.digests and not one.digests.files]
        of_rows, of_stored = (
            sum(len(one.ranges) for one in wanted if one.stored is stored) for stored in (False, True)
        )
        return of_rows, of_stored

    assert looked_at(dict.fromkeys(NODES, pairs)) == (0, 48)
    at = len(pairs) // 2
    assert looked_at({0: pairs, 1: pairs, 2: [*pairs[:at], *pairs[at + 1 :]]}) == (3, 48)
    # Where all differ, that is seen with the first parts.
    assert looked_at({0: pairs, 1: pairs, 2: []}) == (48, 6)


def test_ranges_of_the_same_files_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of one replica is another one in one range, and nothing can be told of another range."""
    plain = table_of(["int"], [("text", False)], [], ["int", "text"])
    writer = Writer(plain, Random(3), POOLS, gaps=False)
    writer.fill(100, 3, 0.0)
    asked = _parts(4)
    bounds = [keys.token_bounds(plain.table.id, Range(*wanted[:2]))[0] for wanted, _ in asked]

    def files(node: int, lower: bytes, _upper: bytes) -> Iterator[FilesTold | None]:
        at = bounds.index(lower)
        yield None
        if at < 3:
            yield FilesTold(b"%15d" % at + (b"x" if (node, at) == (2, 1) else b"y"), 70 + at)

    stored = dict.fromkeys(NODES, writer.pairs)
    replicas = Replicas(plain, stored, files=files)
    fixed = _of(monkeypatch, replicas, plain)
    found = fixed.compared(asked, 0)
    of_stored = [one.digests for _, one in replicas.asked if one.digests and one.digests.stored]
    read = {left for one in of_stored for left, _, _ in one.ranges}
    assert read == {asked[1][0][0], asked[3][0][0]}
    for at, (wanted, nodes) in enumerate(asked):
        told = [found[node, wanted] for node in nodes]
        assert told[0] == told[1] == told[2] and len(told[0]) == BUCKETS
        if at in (0, 2):
            assert sum(rows for _, rows in told[0]) == 70 + at


def test_who_is_not_asked_is_not_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed, _ = _fixed(monkeypatch, dict.fromkeys(NODES, _filled(Random(2))))
    two: list[Part] = [(wanted, (0, 7)) for wanted, _ in _parts(3)]
    found = fixed.compared(two, 0)
    expected: dict[tuple[int, Wanted], object] = dict(fixed.digests({0: [wanted for wanted, _ in two]}, 0))
    assert found == expected
