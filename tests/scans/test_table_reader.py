"""Many rows at once are what they are one by one: types, forms, deletions, and where reading goes on."""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow as pa

from lockstep.scans import table_reader
from lockstep.scans.arrow_columns import arrow_type, decode_cells, decode_raw
from lockstep.scans.gather import Fixed, Raw
from lockstep.scans.scan_table import ScanTable
from lockstep.scans.table_reader import TableReader
from lockstep.schema.assembling import assembled
from lockstep.schema.clustering import decode, split_key
from lockstep.schema.model import ColumnKind
from lockstep.schema.types import CqlType, parse_type
from lockstep.storage.reading import partitions_between
from lockstep.storage.rows import keys
from lockstep.storage.rows.fragments import fragments_of
from lockstep.storage.rows.visible import live_view, without_dead
from lockstep.storage.store import Pair
from lockstep.values.errors import InvalidRequest
from lockstep.values.ids import mutation_id
from lockstep.values.rows import Cell, Liveness, Mutation, Partition, Row
from lockstep.values.tokens import token_of
from tests.schema.kinds import KINDS, SCALARS, Kind

from .support import MICROS, NOW_S, TABLE_ID, Writer, table_of

SCALE = 18
_ALL = 1 << 20
MULTICELL = ("map<blob, int>", "set<blob>", "list<int>")


class _View:
    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._pairs = pairs

    def scan(self, lower: bytes, upper: bytes, reverse: bool = False) -> Iterator[Pair]:
        return iter([pair for pair in self._pairs if lower <= pair[0] < upper])

    def close(self) -> None: ...


def _by_the_rules(table: ScanTable, names: Sequence[str], pairs: Sequence[Pair]) -> list[str]:
    """Every row as one statement for all of them would show it, made without the reader."""
    definition = table.table
    rows: list[list[bytes | None]] = []

    def show(key: bytes, clustering: bytes | None, cells: Sequence[Cell]) -> None:
        parts = split_key(key, len(definition.partition_key))
        kinds = [table.kinds[column.name] for column in definition.clustering]
        descending = [column.descending for column in definition.clustering]
        rest = decode(kinds, descending, clustering) if clustering is not None else None
        row: list[bytes | None] = []
        for name in names:
            column = definition.by_name[name]
            if column.kind is ColumnKind.PARTITION_KEY:
                row.append(parts[column.position])
            elif column.kind is ColumnKind.CLUSTERING:
                row.append(rest[column.position] if rest is not None else None)
            else:
                own = [cell for cell in cells if cell.column == column.id]
                several = bool(own) and own[0].path is not None
                row.append(assembled(table.kinds[name], own) if several else own[0].value if own else None)
        rows.append(row)

    for partition in partitions_between(_View(pairs), b"", b"\xff"):
        if partition is None:
            continue
        left = Partition(
            partition.token,
            partition.key,
            partition.deletion,
            partition.range_deletions,
            partition.static and without_dead(partition.static, dict(definition.dead)),
            tuple(row for one in partition.rows if (row := without_dead(one, dict(definition.dead)))),
        )
        live = live_view(left, NOW_S, (), definition.gone)
        static = live.static.cells if live.static is not None else ()
        for row in live.rows:
            show(live.key, row.clustering, (*static, *row.cells))
        if not live.rows and static:
            show(live.key, None, static)
    arrays = [
        decode_cells(table.kinds[name], [row[slot] for row in rows], SCALE) for slot, name in enumerate(names)
    ]
    return _shown([pa.RecordBatch.from_arrays(arrays, names=list(names))], names)


def _read(reader: TableReader, pairs: Sequence[Pair], portion: int) -> list[pa.RecordBatch]:
    batches = []
    for at in range(0, len(pairs), portion):
        batches += reader.feed(pairs[at : at + portion])
    batches += reader.finish()
    for batch in batches:
        batch.validate(full=True)
        assert batch.schema == reader.schema
        assert batch.num_rows
    return batches


def _shown(batches: Sequence[pa.RecordBatch], names: Sequence[str]) -> list[str]:
    """The columns in full, as texts: a date of any year, and what is no number, equals itself there."""
    texts = []
    for slot, name in enumerate(names):
        chunks = [batch.column(slot) for batch in batches]
        whole = pa.concat_arrays(chunks) if chunks else pa.array([])
        texts.append(f"{name}: {whole.to_string(window=_ALL, container_window=_ALL)}" if len(whole) else "")
    return texts


@st.composite
def _tables(draw: st.DrawFn) -> tuple[ScanTable, dict[str, list[bytes]]]:
    pools: dict[str, list[bytes]] = {}
    simple = st.sampled_from(SCALARS)

    def column(name: str, kind: Kind) -> str:
        values = draw(st.lists(kind.values, min_size=1, max_size=4))
        pools[name] = [parse_type(kind.text).serialize(value) for value in values]
        return kind.text

    partition_key = [column(f"p{at}", draw(simple)) for at in range(draw(st.integers(1, 2)))]
    clustering: list[tuple[str, bool]] = []
    for at in range(draw(st.integers(0, 2))):
        descending = draw(st.booleans())
        clustering.append((column(f"c{at}", draw(KINDS)), descending))
    is_static = draw(st.booleans())
    static = [column("s0", draw(KINDS))] if clustering and is_static else []
    regular = [
        draw(st.sampled_from(MULTICELL)) if draw(st.integers(0, 5)) == 0 else column(f"r{at}", draw(KINDS))
        for at in range(draw(st.integers(0, 3)))
    ]
    table = table_of(partition_key, clustering, static, regular, again=draw(st.integers(0, 4)) == 0)
    for name, values in pools.items():
        if table.table.by_name[name].kind in (ColumnKind.REGULAR, ColumnKind.STATIC) and draw(st.booleans()):
            values.append(b"" if table.kinds[name].empty_allowed else values[0])
    return table, pools


@given(_tables(), st.integers(0, 1 << 32), st.sampled_from([0.0, 0.05, 0.5]), st.data())
@settings(max_examples=100, deadline=None, suppress_health_check=list(HealthCheck))
def test_rows_together_are_what_they_are_alone(
    made: tuple[ScanTable, dict[str, list[bytes]]], seed: int, odd: float, data: st.DataObject
) -> None:
    table, pools = made
    dice = Random(seed)
    writer = Writer(table, dice, pools)
    writer.fill(dice.randrange(1, 8), dice.randrange(1, 20), odd)
    names = [column.name for column in table.in_order if dice.random() < 0.8] or [table.in_order[0].name]
    pairs = writer.pairs
    try:
        expected = _by_the_rules(table, names, pairs)
    except InvalidRequest:
        # A number that Spark cannot hold: no way may round it.
        with pytest.raises(InvalidRequest):
            _read(TableReader(table, names, NOW_S, SCALE), pairs, 1 << 20)
        return
    portion = data.draw(st.sampled_from([1, 2, 7, 100, 1 << 20]))
    reader = TableReader(table, names, NOW_S, SCALE)
    assert _shown(_read(reader, pairs, portion), names) == expected
    alone = TableReader(table, names, NOW_S, SCALE, together=False)
    assert _shown(_read(alone, pairs, portion), names) == expected
    if pairs:
        assert reader.next_key > pairs[-1][0]


TYPES = [kind.text for kind in SCALARS]


def _plain(count: int, static: Sequence[str] = ()) -> tuple[ScanTable, Writer]:
    table = table_of(["int"], [("int", True), ("text", False)], static, ["int", "text", "bigint"])
    pools = {
        "s0": [bytes(4)],
        "p0": [number.to_bytes(4, "big") for number in range(40)],
        "c0": [number.to_bytes(4, "big") for number in range(count)],
        "c1": [b"a", b"bc"],
        "r0": [number.to_bytes(4, "big") for number in range(50)],
        "r1": [b"", b"short", b"longer than a view holds", b"x" * 300, b"y" * 70_000],
        "r2": [number.to_bytes(8, "big") for number in range(50)],
    }
    return table, Writer(table, Random(7), pools, gaps=False)


def test_plain_rows_are_read_together() -> None:
    table, writer = _plain(1000)
    writer.fill(40, 50, 0.0)
    names = [column.name for column in table.in_order]
    reader = TableReader(table, names, NOW_S, SCALE)
    found = _read(reader, writer.pairs, 500)
    assert _shown(found, names) == _by_the_rules(table, names, writer.pairs)
    assert reader.merged_rows < sum(batch.num_rows for batch in found) / 8, "those written twice"


@pytest.mark.parametrize("static", [[], ["int"]])
def test_reading_goes_on_from_every_place(static: list[str]) -> None:
    table, writer = _plain(20, static)
    writer.fill(6, 10, 0.5)
    names = [column.name for column in table.in_order]
    pairs = writer.pairs
    whole = _by_the_rules(table, names, pairs)
    for portion in range(1, 40, 3):
        reader = TableReader(table, names, NOW_S, SCALE)
        seen: list[pa.RecordBatch] = []
        for at in range(0, len(pairs), portion):
            seen += reader.feed(pairs[at : at + portion])
            key = reader.next_key
            behind = bisect.bisect_left(pairs, (key, b""))
            head = [pair for pair in pairs[:behind] if table_reader.is_head_of(pair[0], key)]
            again = TableReader(table, names, NOW_S, SCALE, begun_in=reader.begun)
            rest = _read(again, [*head, *pairs[behind:]], 1000)
            assert _shown([*seen, *rest], names) == whole


def test_a_planted_difference_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The twin would see a form that takes a value for another."""
    table, writer = _plain(100)
    writer.fill(10, 50, 0.0)
    names = ["p0", "r0"]
    expected = _by_the_rules(table, names, writer.pairs)

    def turned(kind: CqlType, raw: Raw, scale: int) -> pa.Array:
        return decode_raw(kind, Fixed(raw.table[::-1]) if isinstance(raw, Fixed) else raw, scale)

    monkeypatch.setattr(table_reader, "decode_raw", turned)
    found = _read(TableReader(table, names, NOW_S, SCALE), writer.pairs, 1000)
    assert _shown(found, names) != expected


def test_arrow_types_are_those_of_the_columns() -> None:
    table = table_of(["int"], [], [], [*TYPES, "list<int>", "frozen<tuple<int, text>>"])
    names = [column.name for column in table.in_order]
    reader = TableReader(table, names, NOW_S, SCALE)
    assert [field.type for field in reader.schema] == [arrow_type(table.kinds[name]) for name in names]


def test_rows_that_expire_later_are_looked_at_together() -> None:
    """Those that have expired are not shown, whether they are the first ones or not."""
    table = table_of(["int"], [("int", False)], [], ["int", "text"])
    columns = {column.name: column.id for column in table.table.columns}
    pairs: list[Pair] = []
    for number in range(2000):
        ends_s = NOW_S if number % 100 < 3 else NOW_S + 1 + number
        kept = {"timestamp_us": MICROS + number, "ttl_s": 86_400 + number, "expires_at_s": ends_s}
        cells = tuple(
            Cell(columns[name], value, **kept)
            for name, value in (("r0", number.to_bytes(4, "big")), ("r1", b"x" * (number % 7)))
        )
        key = (number // 50).to_bytes(4, "big")
        row = Row((number % 50).to_bytes(4, "big").join([b"\x02", b""]), Liveness(**kept), None, cells)
        token = token_of(key)
        made = Mutation(TABLE_ID, token, key, mutation_id(1, 1, number + 1), MICROS + number, rows=(row,))
        found = fragments_of(made, keys.partition_prefix(TABLE_ID, token, key))
        pairs += [(store_key, value) for _, store_key, value in found]
    pairs.sort()
    told = []
    for together in (True, False):
        reader = TableReader(table, ["p0", "c0", "r0", "r1"], NOW_S, SCALE, together=together)
        batches = [*reader.feed(pairs), *reader.finish()]
        told.append(pa.Table.from_batches(batches).combine_chunks())
        assert (reader.merged_rows < 200) == together
    assert told[0].equals(told[1])
    assert told[0].num_rows == 2000 - 60
