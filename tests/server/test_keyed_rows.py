"""Virtual tables read by key against the same tables read whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.server.views.virtual import EVERYTHING, Between, KeyedRows, VirtualTables, define
from tests.server.test_virtual import number, select

COLUMNS = "p text; e bigint; v int"
BIG = st.one_of(st.integers(-300, 300), st.integers(-(1 << 63), (1 << 63) - 1))


class Source:
    """Rows by partition, remembering how many each read made."""

    def __init__(self, rows: dict[str, list[int]]) -> None:
        self.rows = rows
        self.made = 0

    def every(self) -> Iterator[dict[str, Any]]:
        for name in self.rows:
            yield from self.of(name, EVERYTHING)

    def of(self, name: Any, between: Between) -> Iterator[dict[str, Any]]:
        for e in self.rows.get(name, []):
            if between.low <= e <= between.high:
                self.made += 1
                yield {"p": name, "e": e, "v": 1}


def tables(source: Source) -> VirtualTables:
    keyed = KeyedRows(source.every, source.of)
    return VirtualTables([define("seen", "t", COLUMNS, ("p",), ("e",), keyed)])


def listed(found: list[tuple[bytes | None, ...]]) -> list[int]:
    return [number(row[0]) for row in found]


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(BIG, unique=True, max_size=20),
    low=BIG,
    high=BIG,
    size=st.integers(1, 7),
    signs=st.sampled_from([(">", "<"), (">=", "<="), (">", "<="), (">=", "<")]),
    order=st.sampled_from(["ASC", "DESC"]),
)
def test_slices_of_a_partition_equal_brute_force(
    values: list[int], low: int, high: int, size: int, signs: tuple[str, str], order: str
) -> None:
    virtual = tables(Source({"a": values, "b": [1, 2, 3]}))
    above, below = signs
    text = f"SELECT e FROM seen.t WHERE p = 'a' AND e {above} {low} AND e {below} {high} ORDER BY e {order}"
    wanted = [
        e
        for e in sorted(values, reverse=order == "DESC")
        if (e > low or (e == low and "=" in above)) and (e < high or (e == high and "=" in below))
    ]
    assert listed(select(virtual, text, size)) == wanted
    one = f"SELECT e FROM seen.t WHERE p = 'a' AND e IN ({low}, {high})"
    assert listed(select(virtual, one)) == sorted({low, high} & set(values))
    assert listed(select(virtual, "SELECT e FROM seen.t WHERE p = 'a'", size)) == sorted(values)


def test_a_read_of_one_row_makes_little_more_than_that_row() -> None:
    source = Source({"a": list(range(1000)), "b": list(range(1000))})
    virtual = tables(source)
    assert listed(select(virtual, "SELECT e FROM seen.t WHERE p = 'a' AND e = 500")) == [500]
    assert source.made <= 3
    assert select(virtual, "SELECT e FROM seen.t WHERE p = 'none'") == []
    assert source.made <= 3


def test_rows_of_all_partitions_are_read_without_a_key() -> None:
    virtual = tables(Source({"a": [3, 1], "b": [2]}))
    assert sorted(listed(select(virtual, "SELECT e FROM seen.t"))) == [1, 2, 3]
    assert listed(select(virtual, "SELECT e FROM seen.t WHERE e = 2")) == [2]
