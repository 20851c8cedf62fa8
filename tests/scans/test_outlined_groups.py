"""Filters by lists, groups, and rows that are given: the same together and one by one, however fragments were
merged and wherever answers end, as reading all rows and doing it by hand gives."""

from __future__ import annotations

import math
import statistics
import struct
from collections.abc import Iterator, Sequence
from itertools import groupby
from random import Random
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from lockstep.cql.functions.aggregates import aggregate
from lockstep.cql.wire.primitives import read_bytes
from lockstep.scans import outline_reading
from lockstep.scans.row_keys import Unescaped
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.telling import OutlineShape, Telling, joined_given
from lockstep.schema.types import CqlType, parse_type
from lockstep.storage.reading import Reading
from lockstep.storage.rows import keys
from lockstep.storage.rows.visible import counts_static, live_view
from lockstep.storage.store import Pair
from lockstep.values import limits
from lockstep.values.node_limits import PAGE_BYTES_MAX
from lockstep.values.outlines import REGULAR, Grouping, Outline, OutlineFilter, ToldGroup
from lockstep.values.rows import ALL_ROWS, Partition, ReadCommand, Row
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN

from .support import View, Writer, table_of
from .test_outline_reading import _value, answer, command_of, merged, outlines

TABLES = (
    (["int"], [("int", False), ("bigint", True)], [], ["int", "double", "text"]),
    (["text", "int"], [("text", True), ("smallint", False)], ["int"], ["float", "boolean", "bigint"]),
    (["blob"], [("timeuuid", False), ("varint", True), ("int", False)], [], ["uuid", "date", "varint"]),
    (["uuid"], [], [], ["text", "int"]),
    (["int"], [("text", False), ("bigint", False)], [], ["int", "bigint"]),
)


def stocked(number: int, seed: int, odd: float, *, gaps: bool) -> tuple[ScanTable, list[Pair]]:
    """Rows of few different keys, so that groups have some of them."""
    partition, clustering, static, regular = TABLES[number]
    table, dice = table_of(partition, clustering, static, regular, again=seed % 4 == 1), Random(seed)
    first, rest = dice.choice([(3, 60), (6, 6), (40, 2)])
    sizes = {"c0": first, **{column.name: rest for column in table.table.clustering[1:]}}
    pools = {
        column.name: [_drawn(column.type, dice) for _ in range(sizes.get(column.name, 9))]
        for column in table.table.columns
    }
    writer = Writer(table, dice, pools, gaps=gaps)
    writer.fill(dice.choice([2, 4]) if clustering else 200, dice.choice([20, 150]), odd)
    return table, writer.pairs


def _drawn(kind: str, dice: Random) -> bytes:
    if kind == "boolean":
        return dice.choice([b"\0", b"\1"])
    if kind in ("float", "double"):
        bits = struct.pack(">f" if kind == "float" else ">d", dice.choice([0.0, -0.0, 1.5, -2.5, math.inf]))
        return dice.choice([bits, b"\xff" * len(bits), b"\x7f" + b"\xff" * (len(bits) - 1)])
    if kind in ("int", "text") and dice.random() < 0.2:
        # Keys of these are not looked at by columns.
        return b"" if kind == "int" else dice.choice([b"a\0", b"a\0b", b"\0"])
    return _value(kind, dice)


_OPERATORS = ("=", "<", "<=", ">", ">=", "IN", "IN")


def filters_of(
    table: ScanTable, outline: Outline, dice: Random, pairs: Sequence[Pair]
) -> list[OutlineFilter]:
    """On values that the table has, and others."""
    found: list[OutlineFilter] = []
    stored = [row for row in _records(OutlineShape(outline), _everything(outline), pairs) if row[2]]
    for _ in range(dice.choice([0, 0, 1, 1, 2])):
        at = dice.randrange(len(outline.packs))
        column, operator = outline.packs[at], dice.choice(_OPERATORS)
        held = [values[at] for _, _, values in dice.sample(stored, min(len(stored), 5))]
        values = [one for one in held if one is not None] + [_drawn(column.type, dice), b""]
        if operator == "IN":
            listed = tuple(dict.fromkeys(dice.sample(values, dice.randrange(len(values) + 1))))
            found.append(OutlineFilter(column, "=", listed=listed))
        else:
            found.append(OutlineFilter(column, operator, values[0]))
    return found


def _everything(outline: Outline) -> ReadCommand:
    return ReadCommand(
        *(256, TOKEN_MIN, TOKEN_MAX, None, ALL_ROWS, ()),
        reads_static=True,
        reverse=False,
        row_limit=0,
        partition_row_limit=0,
        now_s=1_700_000_000,
        outline=outline,
    )


Record = tuple[Partition, Row | None, list[bytes | None]]


def _records(shape: OutlineShape, command: ReadCommand, pairs: Sequence[Pair]) -> Iterator[Record]:
    """All rows that show, with the values that the outline wants."""
    reading = Reading(View(pairs), replace(command, outline=None, row_limit=0), None)
    reading.run()
    for partition in reading.result().partitions:
        live = live_view(partition, command.now_s, (), command.dropped)
        static = () if live.static is None else live.static.cells
        rows: Sequence[Row | None] = live.rows
        if not rows and live.static is not None and counts_static(command, live.key):
            rows = (None,) if any(cell.value is not None for cell in static) else ()
        for row in rows:
            cells = () if row is None else row.cells
            yield live, row, shape.values(live.key, None if row is None else row.clustering, static, cells)


def passing(shape: OutlineShape, values: Sequence[bytes | None]) -> bool:
    for one, value in zip(shape.outline.filters, values[shape.told :], strict=True):
        if value is None:
            return False
        sort_key = parse_type(one.column.type).sort_key
        if one.listed is not None:
            holds = value in one.listed
        else:
            left, right = sort_key(value), sort_key(one.value)
            order = (left > right) - (left < right)
            holds = order in {"=": (0,), "<": (-1,), "<=": (-1, 0), ">": (1,), ">=": (0, 1)}[one.operator]
        if not holds:
            return False
    return True


def by_hand(command: ReadCommand, pairs: Sequence[Pair]) -> list[Any]:
    """Rows that pass, or of each group its first values, the states of its aggregates and its last place."""
    assert command.outline is not None
    shape = OutlineShape(command.outline)
    shown = [found for found in _records(shape, command, pairs) if passing(shape, found[2])]
    if command.outline.gives:
        return [(one.key, one.static, row) for one, row, _ in shown]
    found: list[Any] = []
    for _, some in groupby(
        shown, lambda one: shape.mark(one[0].key, None if one[1] is None else one[1].clustering)
    ):
        rows = list(some)
        folded = [
            _state(command.outline, at, [values for _, _, values in rows])
            for at in range(len(command.outline.folds))
        ]
        last, row, _ = rows[-1]
        first = rows[0][2][shape.folded : shape.told]
        found.append((first, folded, (last.token, last.key, (row.clustering or None) if row else None)))
    return found


def _state(outline: Outline, at: int, rows: Sequence[Sequence[bytes | None]]) -> Any:
    fold = outline.folds[at]
    if fold.column is None:
        return len(rows)
    slot = sum(1 for one in outline.folds[:at] if one.column is not None)
    known = aggregate(fold.name, parse_type(fold.column.type))
    state = known.start
    for row in rows:
        value = row[slot]
        if value is not None:
            state = known.step(state, value)
    return state


def told(command: ReadCommand, pairs: Sequence[Pair]) -> list[Any]:
    """As `by_hand`, of all answers one behind the other."""
    outline = command.outline
    assert outline is not None
    shape, groups, given, closed = OutlineShape(outline), [], [], True
    while True:
        result = answer(pairs, command)
        assert result.told is not None
        given += result.partitions
        for number, one in enumerate(result.told.groups):
            _join(outline, shape, groups, one, closed or number > 0)
        most = outline.grouping.most if outline.grouping is not None else 0
        assert outline.grouping is None or len(result.told.groups) <= most
        assert not result.told.closed or (result.more and len(result.told.groups) == most)
        if not result.more:
            break
        closed = result.told.closed
        assert result.end is not None
        command = replace(command, left=max(command.left, result.end.token - 1), after=result.end)
    if not outline.gives:
        return groups
    return [(one.key, one.static, row) for one in joined_given(given) for row in one.rows or (None,)]


def _join(outline: Outline, shape: OutlineShape, groups: list[Any], one: ToldGroup, begins: bool) -> None:
    assert shape.grouping is not None
    first, at = [], 0
    for _ in shape.grouping.firsts:
        value, at = read_bytes(one.first, at)
        first.append(value)
    place = (one.token, one.key, one.clustering)
    mark = shape.mark(one.key, one.clustering)
    aggregates = [
        aggregate(fold.name, None if fold.column is None else parse_type(fold.column.type))
        for fold in outline.folds
    ]
    if not begins and groups and shape.mark(groups[-1][2][1], groups[-1][2][2]) == mark:
        states = groups[-1][1]
        first = groups.pop()[0]
    else:
        states = [known.start for known in aggregates]
    joins = [known.join for known in aggregates]
    states = [join(state, *fold) for join, state, fold in zip(joins, states, one.folds, strict=True) if join]
    groups.append((first, states, place))


def chosen(table: ScanTable, dice: Random, pairs: Sequence[Pair]) -> Outline:
    packs, folds = outlines(table)
    filters = tuple(filters_of(table, packs, dice, pairs))
    if dice.random() < 0.3:
        return replace(packs, packs=(), gives=True, filters=filters)
    depths = [None, 0, *range(1, len(table.table.clustering) + 1)]
    kept = [one for one in packs.packs if one.kind == REGULAR] if dice.random() < 0.4 else list(packs.packs)
    known = [one for one in folds.folds if one.column is None or one.column in kept]
    firsts = tuple(dice.sample(kept, dice.randrange(len(kept) + 1)))
    some = tuple(dice.sample(known, dice.randrange(min(6, len(known)) + 1)))
    grouping = Grouping(dice.choice(depths), firsts, dice.choice([1, 2, 7, 5_000, 5_000]))
    return replace(folds, folds=some, filters=filters, grouping=grouping)


@given(
    st.sampled_from(range(len(TABLES))),
    st.integers(0, 1 << 32),
    st.sampled_from([0.0, 0.02, 0.4]),
    st.sampled_from([300, 20_000, 1 << 22, 1 << 22]),
)
@settings(max_examples=80, deadline=None)
def test_what_is_told_is_what_is_done_by_hand(number: int, seed: int, odd: float, size: int) -> None:
    dice = Random(seed)
    table, pairs = stocked(number, seed % 64, odd, gaps=seed % 3 == 0)
    if not pairs:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "READ_RESULT_BYTES_MAX", size)
        patch.setattr(outline_reading, "TOLD_BYTES_MAX", size)
        patch.setattr(outline_reading, "PAGE_BYTES_MAX", dice.choice([200, PAGE_BYTES_MAX, PAGE_BYTES_MAX]))
        for _ in range(4):
            command = command_of(table, chosen(table, dice, pairs), pairs, dice)
            result, other = answer(pairs, command), merged(pairs, dice)
            with pytest.MonkeyPatch.context() as whole:
                whole.setattr(limits, "READ_RESULT_BYTES_MAX", 1 << 40)
                expected = by_hand(command, pairs)
            assert told(command, pairs) == expected
            assert answer(other, command) == result, "how fragments were merged shows in what is told"
            with pytest.MonkeyPatch.context() as plain:
                plain.setattr(outline_reading, "_vectorised", lambda: None)
                assert answer(pairs, command) == result


@pytest.mark.parametrize("number", range(len(TABLES)))
def test_coordinators_tell_of_rows_as_replicas_do(number: int) -> None:
    """Where replicas differ their merged rows are told of by who asked."""
    dice = Random(number)
    table, pairs = stocked(number, 3, 0.1, gaps=True)
    for _ in range(20):
        outline = chosen(table, dice, pairs)
        if outline.grouping is not None:
            outline = replace(outline, grouping=replace(outline.grouping, most=1 << 30))
        command = replace(command_of(table, outline, pairs, dice), row_limit=0)
        result = answer(pairs, command)
        telling, plain = Telling(outline), Reading(View(pairs), replace(command, outline=None), None)
        plain.run()
        for partition in plain.result().partitions:
            live = live_view(partition, command.now_s, (), command.dropped)
            telling.live(live, static_counts=counts_static(command, live.key))
        assert result.told is not None and not result.more
        assert (telling.given(), telling.told().groups) == (result.partitions, result.told.groups)


def test_an_answer_ends_with_the_last_row_that_it_has_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where rows end that were looked at together, which is elsewhere on each replica."""
    apart = 0
    for seed in range(12):
        table, found = stocked(4, seed, 0.0, gaps=False)
        # Rows of one fragment each, and of one form: all are looked at together.
        places = groupby(found, key=lambda pair: pair[0][: -keys.WRITE_BYTES])
        pairs = [next(some) for _, some in places]
        if not pairs:
            continue
        usual = statistics.mode(len(value) for _, value in pairs)
        pairs = [pair for pair in pairs if len(pair[1]) == usual]
        packs, _ = outlines(table)
        (column,) = [one for one in packs.packs if one.type == "int" and one.kind == REGULAR]
        held = {
            values[0]
            for _, _, values in _records(
                OutlineShape(replace(packs, packs=(column,))), _everything(packs), pairs
            )
        }
        for value in sorted(one for one in held if one):
            command = _everything(replace(packs, filters=(OutlineFilter(column, "=", value),)))
            everything = answer(pairs, command).told
            assert everything is not None and everything.rows > 0
            command = replace(command, row_limit=everything.rows)
            result = answer(pairs, command)
            with monkeypatch.context() as plain:
                plain.setattr(outline_reading, "_vectorised", lambda: None)
                assert answer(pairs, command) == result
            apart += result.more
    assert apart, "rows that do not pass lie behind some of the last ones that do"


def test_a_planted_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first row of each group is taken for one of the group before it."""
    table, pairs = stocked(0, 4, 0.0, gaps=False)
    packs, folds = outlines(table)
    command = _everything(replace(folds, grouping=Grouping(1, packs.packs, 5_000)))
    assert told(command, pairs) == by_hand(command, pairs)
    right = Unescaped.runs

    def wrong(self: Unescaped, kinds: Sequence[CqlType], descending: Sequence[bool], depth: int) -> Any:
        runs = right(self, kinds, descending, depth)
        return [*runs[:1], *runs[:-1]] if len(runs) > 1 else runs

    monkeypatch.setattr(Unescaped, "runs", lambda *given: numpy.array(wrong(*given)))
    assert told(command, pairs) != by_hand(command, pairs)
