"""Rows that are read many at a time give what they give one by one."""

from __future__ import annotations

from random import Random

import pytest

from lockstep.storage import reading
from lockstep.storage.model import OrderedMap
from lockstep.storage.reading import Reading
from lockstep.storage.rows import keys
from lockstep.storage.rows.folding import PartitionFold
from lockstep.storage.rows.fragments import fragments_of
from lockstep.values import limits
from lockstep.values.ids import mutation_id
from lockstep.values.node_limits import MERGED_BYTES_INLINE
from lockstep.values.rows import (
    ALL_ROWS,
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Mutation,
    RangeDeletion,
    ReadCommand,
    ReadResult,
    Row,
    Slice,
)

TABLE, TOKEN, KEY, NOW_S = 7, 5, b"k\x00", 100


class _View:
    """A snapshot of the ordered map."""

    def __init__(self, content: OrderedMap) -> None:
        self.scan = content.view().scan

    def close(self) -> None: ...


def _row(dice: Random, clustering: bytes, odd: float) -> Row:
    """A plain one; with the chance `odd` one that is deleted, expires or has next to nothing."""
    stamp = dice.randrange(1, 9)
    if dice.random() >= odd:
        return Row(clustering, Liveness(stamp), None, (Cell(1, dice.randbytes(3), stamp),))
    cells = []
    for column in (1, 2, 3):
        if dice.random() < 0.5:
            dead = dice.random() < 0.3
            ttl, expires = (0, 1) if dead else dice.choice([(0, 0), (5, 50), (5, 200)])
            path = b"x" if column == 3 else None
            cells.append(Cell(column, None if dead else b"v", dice.randrange(1, 9), ttl, expires, path))
    return Row(
        clustering,
        dice.choice([None, Liveness(stamp), Liveness(stamp, 5, 50), Liveness(stamp, 5, 200)]),
        Deletion(dice.randrange(1, 9), 1) if dice.random() < 0.3 else None,
        tuple(cells),
        (ColumnDeletion(3, Deletion(dice.randrange(1, 9), 1)),) if dice.random() < 0.3 else (),
    )


def _content(dice: Random) -> OrderedMap:
    content = OrderedMap()
    number, odd = 0, dice.choice([0.0, 0.02, 0.5])

    def write(mutation: Mutation) -> None:
        for _, key, value in fragments_of(mutation, keys.partition_prefix(TABLE, TOKEN, KEY)):
            content.put(key, value)

    for at in range(dice.choice([3, 60, 400])):
        clustering = b"" if at == 0 and dice.random() < 0.2 else at.to_bytes(2, "big")
        for _ in range(2 if dice.random() < odd / 4 else 1):
            number += 1
            row = _row(dice, clustering, odd)
            write(Mutation(TABLE, TOKEN, KEY, mutation_id(1, 1, number), dice.randrange(1, 9), rows=(row,)))
    if dice.random() < 0.2:
        ranges = (RangeDeletion(b"\x00\x03", b"\x00\x09", Deletion(4, 2)),)
        write(Mutation(TABLE, TOKEN, KEY, mutation_id(1, 2, 1), 4, None, ranges))
    if dice.random() < 0.2:
        write(Mutation(TABLE, TOKEN, KEY, mutation_id(1, 2, 2), 2, Deletion(2, 2)))
    return content


def _command(dice: Random) -> ReadCommand:
    slices = dice.choice([ALL_ROWS, (Slice(b"\x00\x02", b"\x00\x20"), Slice(b"\x00\x21"))])
    return ReadCommand(
        TABLE,
        TOKEN - 1,
        TOKEN,
        KEY,
        slices,
        (),
        dice.random() < 0.5,
        dice.random() < 0.5,
        dice.choice([0, 1, 7, 17, 100, 5000]),
        dice.choice([0, 0, 11]),
        NOW_S,
        dropped=dice.choice([(), (1,)]),
        dead=dice.choice([(), (), ((1, 3),)]),
    )


def _read(content: OrderedMap, command: ReadCommand) -> tuple[ReadResult, list[bytes]]:
    asked: list[bytes] = []
    found = Reading(_View(content), command, lambda prefix, place: asked.append(place))
    found.run()
    return found.result(), asked


def test_rows_together_are_what_they_are_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    together: list[bool] = []
    add_run = PartitionFold.add_run

    def noted(self: PartitionFold, pairs: list[tuple[bytes, bytes]]) -> bool:
        together.append(add_run(self, pairs))
        return together[-1]

    for seed in range(600):
        dice = Random(seed)
        content, command = _content(dice), _command(dice)
        with monkeypatch.context() as patch:
            patch.setattr(limits, "READ_RESULT_BYTES_MAX", dice.choice([700, 4_000, 1 << 22]))
            patch.setattr(PartitionFold, "add_run", noted)
            found = _read(content, command)
            patch.setattr(PartitionFold, "add_run", lambda self, pairs: False)
            patch.setattr(reading, "_TOGETHER_MAX", 1)
            assert found == _read(content, command), seed
    assert 40 < sum(together) < len(together), "runs are taken, and refused"


def _turns(content: OrderedMap, slices: tuple[Slice, ...] = ALL_ROWS) -> tuple[int, list[bytes]]:
    """How often a read gives way, and the rows that it finds."""
    command = ReadCommand(TABLE, TOKEN - 1, TOKEN, KEY, slices, (), False, False, 0, 0, NOW_S)
    found = Reading(_View(content), command, None)
    turns = sum(work is None for work in found.steps())
    return turns, [row.clustering for part in found.result().partitions for row in part.rows]


def _plain(rows: int, size: int) -> OrderedMap:
    content = OrderedMap()
    for at in range(rows):
        row = Row(at.to_bytes(2, "big"), Liveness(1), None, (Cell(1, bytes(size), 1),))
        change = Mutation(TABLE, TOKEN, KEY, mutation_id(1, 1, at), 1, rows=(row,))
        for _, key, value in fragments_of(change, keys.partition_prefix(TABLE, TOKEN, KEY)):
            content.put(key, value)
    return content


def test_a_read_of_few_large_rows_gives_way_for_their_bytes() -> None:
    rows = [at.to_bytes(2, "big") for at in range(12)]
    assert _turns(_plain(12, 100)) == (0, rows)
    assert _turns(_plain(12, MERGED_BYTES_INLINE // 5)) == (2, rows), "after each five"
    assert _turns(_plain(12, reading._SMALL_BYTES // 2)) == (0, rows)


def test_a_read_of_many_short_slices_gives_way_for_their_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = tuple(Slice(at.to_bytes(2, "big"), (at + 1).to_bytes(2, "big")) for at in range(0, 20, 2))
    rows = [one.start for one in slices]
    content = _plain(20, 10)
    assert _turns(content, slices) == (0, rows)
    monkeypatch.setattr(limits, "FRAGMENTS_PER_TURN_MAX", 4)
    assert _turns(content, slices) == (2, rows), "ten rows, after each four"


def test_many_plain_rows_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    content = OrderedMap()
    for at in range(1000):
        row = Row(at.to_bytes(2, "big"), Liveness(3), None, (Cell(1, b"v", 3),))
        written = Mutation(TABLE, TOKEN, KEY, mutation_id(1, 1, at), 3, rows=(row,))
        for _, key, value in fragments_of(written, keys.partition_prefix(TABLE, TOKEN, KEY)):
            content.put(key, value)
    alone = []
    add = PartitionFold.add
    monkeypatch.setattr(PartitionFold, "add", lambda self, pair: alone.append(pair) or add(self, pair))
    command = ReadCommand(TABLE, TOKEN - 1, TOKEN, KEY, ALL_ROWS, (), False, False, 5000, 0, NOW_S)
    assert len(_read(content, command)[0].partitions[0].rows) == 1000
    assert len(alone) < 20
