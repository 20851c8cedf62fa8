"""What is told of rows: the same together and one by one, however they were merged, and in parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random

import pytest
from msgspec.structs import replace as _replaced

from lockstep.scans import outline_reading, plain_rows
from lockstep.scans.outline_reading import OutlineReading
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.telling import Telling, joined
from lockstep.schema.model import ColumnKind
from lockstep.storage.reading import Reading, partitions_between
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import decode_rows, encode_row, fragments_of, merge_id
from lockstep.storage.rows.reconcile import merge_rows
from lockstep.storage.rows.visible import counts_static, live_view
from lockstep.storage.store import Pair
from lockstep.values import limits
from lockstep.values.ids import mutation_id
from lockstep.values.outlines import (
    CLUSTERING,
    PARTITION_KEY,
    REGULAR,
    STATIC,
    Outline,
    OutlineColumn,
    OutlineFilter,
    OutlineFold,
)
from lockstep.values.rows import ALL_ROWS, Cell, Mutation, ReadCommand, ReadResult, Row, Slice
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import NOW_S, TABLE_ID, View, Writer, table_of

KINDS = {
    ColumnKind.PARTITION_KEY: PARTITION_KEY,
    ColumnKind.CLUSTERING: CLUSTERING,
    ColumnKind.STATIC: STATIC,
    ColumnKind.REGULAR: REGULAR,
}
TABLES = (
    (["int"], [], [], ["text", "int"]),
    (["text", "bigint"], [("int", False)], [], ["text", "int", "bigint", "blob"]),
    (["blob"], [("text", True), ("timeuuid", False)], ["int"], ["double", "date", "smallint"]),
    (["uuid"], [("bigint", True)], [], ["text"] * 3 + ["map<blob, int>"]),
    (["int"], [("varint", False)], ["text"], ["varint", "set<blob>"]),
)


def _value(kind: str, dice: Random) -> bytes:
    width = {"int": 4, "bigint": 8, "smallint": 2, "date": 4, "double": 8, "uuid": 16, "timeuuid": 16}.get(
        kind
    )
    if width is not None:
        data = dice.randbytes(width)
        return data[:6] + b"\x10" + data[7:] if kind == "timeuuid" else data
    if kind == "varint":
        return (dice.randrange(-(1 << 70), 1 << 70) >> dice.randrange(70)).to_bytes(
            10, "big", signed=True
        ).lstrip(b"\0") or b"\0"
    return (
        dice.choice([b"", b"a", b"zz", b"\0", b"x" * dice.randrange(400)])
        if kind != "text"
        else dice.choice([b"", b"a", b"zz", b"q" * dice.randrange(400)])
    )


def filled(number: int, seed: int, odd: float, *, gaps: bool = True) -> tuple[ScanTable, Writer]:
    partition, clustering, static, regular = TABLES[number]
    table, dice = table_of(partition, clustering, static, regular, again=seed % 2 == 1), Random(seed)
    pools = {
        column.name: [
            _value(column.type, dice) for _ in range(6 if column.kind is ColumnKind.PARTITION_KEY else 40)
        ]
        for column in table.table.columns
    }
    writer = Writer(table, dice, pools, gaps=gaps)
    writer.fill(dice.choice([1, 4, 30]), dice.choice([1, 3, 120]), odd)
    return table, writer


def outlines(table: ScanTable) -> Iterator[Outline]:
    """Rows of all columns that have one cell; and aggregates of them."""
    definition = table.table
    columns = [
        OutlineColumn(KINDS[column.kind], column.position, column.id, column.type)
        for column in definition.columns
        if "<" not in column.type
    ]
    shared = (
        tuple(column.type for column in definition.partition_key),
        tuple((column.type, column.descending) for column in definition.clustering),
        tuple(
            (column.id, width)
            for column in definition.columns
            if column.kind is ColumnKind.REGULAR and (width := table.kinds[column.name].fixed_bytes)
        ),
    )
    yield Outline(*shared, packs=tuple(columns))
    folds = [OutlineFold("count")]
    for column in columns:
        folds += [OutlineFold(name, column) for name in ("count", "min", "max")]
        if column.type in ("int", "bigint", "smallint", "varint"):
            folds += [OutlineFold(name, column) for name in ("sum", "avg")]
    yield Outline(*shared, folds=tuple(folds))


def filtered(outline: Outline, dice: Random) -> Outline:
    """One that leaves out rows by one or two columns."""
    columns = outline.packs or tuple({one.column: None for one in outline.folds if one.column is not None})
    chosen = [dice.choice(columns) for _ in range(dice.choice([1, 1, 2]))]
    found = tuple(
        OutlineFilter(one, dice.choice(["=", "<", "<=", ">", ">="]), _value(one.type, dice)) for one in chosen
    )
    return _replaced(outline, filters=found)


def command_of(table: ScanTable, outline: Outline, pairs: Sequence[Pair], dice: Random) -> ReadCommand:
    definition = table.table
    left, right, key, slices = TOKEN_MIN, TOKEN_MAX, None, ALL_ROWS
    if dice.random() < 0.5:
        right, key, _ = keys.split_partition(dice.choice(pairs)[0])
        left = right - 1
        if definition.clustering and dice.random() < 0.5:
            start, end = sorted(dice.choice(pairs)[0][-40:-24] for _ in range(2))
            slices = (Slice(start, end),)
    return ReadCommand(
        TABLE_ID,
        left,
        right,
        key,
        slices,
        (),
        bool(definition.static),
        False,
        dice.choice([0, 1, 7, 100]),
        0,
        NOW_S,
        dropped=tuple(sorted(definition.gone)),
        dead=definition.dead,
        outline=outline,
    )


def answer(pairs: Sequence[Pair], command: ReadCommand) -> ReadResult:
    found = []
    for open_range in (None, View(pairs).cursor):
        reading = OutlineReading(View(pairs), command, None, open_range)
        reading.run()
        found.append(reading.result())
    assert found[0] == found[1], "by scans and by ranges that are opened at once"
    return found[0]


def whole(
    pairs: Sequence[Pair], command: ReadCommand
) -> tuple[int, bytes, tuple[tuple[int, bytes | None], ...]]:
    """(rows, packed rows, aggregates) of all pages."""
    assert command.outline is not None
    parts = []
    while True:
        result = answer(pairs, command)
        assert result.told is not None and not result.partitions
        assert not command.row_limit or result.told.rows <= command.row_limit
        parts.append(result.told)
        if not result.more:
            told = joined(command.outline, parts)
            return told.rows, told.packed, told.folds
        assert result.told.rows == command.row_limit
        command = _behind(command, result)


def _behind(command: ReadCommand, result: ReadResult) -> ReadCommand:
    assert result.end is not None
    left = max(command.left, result.end.token - 1)
    return _replace(command, left=left, after=result.end)


def _replace(command: ReadCommand, **what: object) -> ReadCommand:
    return _replaced(command, **what)


def by_the_rules(
    pairs: Sequence[Pair], command: ReadCommand
) -> tuple[int, bytes, tuple[tuple[int, bytes | None], ...]]:
    """As `whole`, from what reads answer."""
    assert command.outline is not None
    reading = Reading(View(pairs), _replace(command, outline=None, row_limit=0), None)
    reading.run()
    result = reading.result()
    assert not result.more
    telling = Telling(command.outline)
    for partition in result.partitions:
        live = live_view(partition, command.now_s, (), command.dropped)
        telling.live(live, static_counts=counts_static(command, partition.key))
    told = telling.told()
    return told.rows, told.packed, told.folds


def merged(pairs: Sequence[Pair], dice: Random) -> list[Pair]:
    """As a store that has merged the fragments of some rows."""
    found: list[Pair] = []
    for place, some in groupby(pairs, key=lambda pair: pair[0][: -keys.WRITE_BYTES]):
        group = list(some)
        prefix = keys.split_partition(place)[2]
        row = None
        if place[len(prefix)] == keys.KIND_ROW[0] and dice.random() < 0.7:
            row = merge_rows(decode_rows(group, len(prefix) + 1))
        if row is None:
            found += group
            continue
        value = encode_row(row)
        newest = max(keys.timestamp_of(key) for key, _ in group)
        found.append((place + keys.write_suffix(newest, merge_id(value)), value))
    return found


@pytest.mark.parametrize("number", range(len(TABLES)))
@pytest.mark.parametrize("odd", [0.0, 0.02, 0.4])
def test_rows_together_are_rows_one_by_one(number: int, odd: float, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = 0
    for seed in range(6):
        dice = Random(seed)
        table, writer = filled(number, seed, odd, gaps=seed % 3 > 0)
        pairs = writer.pairs
        if not pairs:
            continue
        for told_of in outlines(table):
            for turn in range(6):
                outline = told_of if turn < 3 else filtered(told_of, dice)
                command = command_of(table, outline, pairs, dice)
                result, rules = answer(pairs, command), by_the_rules(pairs, command)
                assert whole(pairs, command) == rules
                other = merged(pairs, dice)
                assert answer(other, command) == result, "how fragments were merged shows in what is told"
                with monkeypatch.context() as patch:
                    patch.setattr(outline_reading, "_vectorised", lambda: None)
                    assert answer(pairs, command) == result
                    assert answer(other, command) == result
                alone += 1
    assert alone


def test_a_row_that_differs_shows_in_the_digest() -> None:
    table, writer = filled(1, 3, 0.1)
    pairs = writer.pairs
    outline = Outline(("text", "bigint"), (("int", False),), folds=(OutlineFold("count"),))
    command = command_of(table, outline, pairs, Random(8))
    command = _replace(command, key=None, left=TOKEN_MIN, right=TOKEN_MAX, row_limit=0, slices=ALL_ROWS)
    told = answer(pairs, command).told
    assert told is not None
    for at in range(0, len(pairs), 7):
        less = [*pairs[:at], *pairs[at + 1 :]]
        other = answer(less, command).told
        if other is not None and other.digest == told.digest:
            # Nothing but what another fragment of the row covers may be missing.
            assert by_the_rules(less, command) == by_the_rules(pairs, command)
        else:
            assert other is not None


def test_an_answer_ends_with_the_row_that_fills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    table, writer = filled(1, 5, 0.1)
    pairs = writer.pairs
    packs, folds = outlines(table)
    expected = {outline: by_the_rules(pairs, _plain(outline)) for outline in (packs, folds)}
    for size in (1, 300, 5_000):
        monkeypatch.setattr(limits, "READ_RESULT_BYTES_MAX", size)
        monkeypatch.setattr(outline_reading, "TOLD_BYTES_MAX", size)
        for outline in (packs, folds):
            parts, command, rounds = [], _plain(outline), 0
            while True:
                result = answer(pairs, command)
                assert result.told is not None
                assert answer(merged(pairs, Random(rounds)), command) == result
                parts.append(result.told)
                rounds += 1
                if not result.more:
                    break
                command = _behind(command, result)
            told = joined(outline, parts)
            assert (told.rows, told.packed, told.folds) == expected[outline]
            assert rounds > (1 if size < 5_000 else 0)


def test_what_follows_a_row_larger_than_an_answer_is_read_too() -> None:
    """Streams, digests, readers of whole tables and counts look at partitions by such a fold."""
    prefix = keys.partition_prefix(TABLE_ID, 0, b"a")
    pairs: list[Pair] = []
    values = {b"c": b"v" * (limits.READ_RESULT_BYTES_MAX + 1), b"d": b"w", b"e": b"x"}
    for number, (clustering, value) in enumerate(values.items(), start=1):
        row = Row(clustering, cells=(Cell(1, value, number),))
        mutation = Mutation(TABLE_ID, 0, b"a", mutation_id(1, 1, number), number, rows=(row,))
        pairs += [(key, data) for _, key, data in fragments_of(mutation, prefix)]
    (found,) = [part for part in partitions_between(View(pairs), prefix, keys.partition_end(prefix)) if part]
    assert {row.clustering: row.cells[0].value for row in found.rows} == values


def _plain(outline: Outline) -> ReadCommand:
    return ReadCommand(
        TABLE_ID,
        TOKEN_MIN,
        TOKEN_MAX,
        None,
        ALL_ROWS,
        (),
        False,
        False,
        0,
        0,
        NOW_S,
        dropped=(90,),
        outline=outline,
    )


def test_a_planted_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin would see rows packed together that are not those of one by one."""
    table, writer = filled(1, 4, 0.0, gaps=False)
    packs, _ = outlines(table)
    right = plain_rows.packed
    monkeypatch.setattr(plain_rows, "packed", lambda columns, count: right(columns, count)[::-1])
    assert whole(writer.pairs, _plain(packs)) != by_the_rules(writer.pairs, _plain(packs))
