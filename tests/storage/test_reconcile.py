"""Reconciliation against a slow twin that judges every fact of every place on its own."""

from __future__ import annotations

import itertools
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lockstep.storage.rows import reconcile
from lockstep.storage.rows.difference import difference, repair_mutation
from lockstep.storage.rows.reconcile import merge_partitions, merge_rows, normal_ranges
from lockstep.storage.rows.visible import live_view
from lockstep.values.ids import mutation_id
from lockstep.values.rows import (
    Cell,
    ColumnDeletion,
    Deletion,
    Liveness,
    Partition,
    RangeDeletion,
    Row,
)

CLUSTERINGS = [b"a", b"b", b"c", b"d"]
BOUNDS = [b"", b"a", b"b", b"c", b"d"]
stamps = st.integers(1, 6)
deletions = st.builds(Deletion, stamps, st.integers(1, 3))
lifetimes = st.sampled_from([(0, 0), (5, 50), (7, 150)])


@st.composite
def cells(draw: Any) -> tuple[Cell, ...]:
    made: dict[tuple[int, bytes | None], Cell] = {}
    for column, path in draw(
        st.lists(st.sampled_from([(1, None), (2, None), (3, b"x"), (3, b"y")]), max_size=3)
    ):
        ttl, expires = draw(lifetimes)
        value = draw(st.sampled_from([None, b"", b"1", b"2"]))
        if value is None:
            ttl, expires = 0, draw(st.integers(1, 3))
        made[column, path] = Cell(column, value, draw(stamps), ttl, expires, path)
    return tuple(made[place] for place in sorted(made, key=lambda p: (p[0], p[1] or b"")))


@st.composite
def rows(draw: Any, clustering: bytes) -> Row:
    ttl, expires = draw(lifetimes)
    liveness = draw(st.none() | st.just(Liveness(draw(stamps), ttl, expires)))
    columns = draw(st.sampled_from([(), (3,)]))
    return Row(
        clustering,
        liveness,
        draw(st.none() | deletions),
        draw(cells()),
        tuple(ColumnDeletion(column, draw(deletions)) for column in columns),
    )


@st.composite
def partitions(draw: Any) -> Partition:
    ranges = st.builds(RangeDeletion, st.sampled_from(BOUNDS), st.sampled_from(BOUNDS), deletions)
    chosen = draw(st.lists(st.sampled_from(CLUSTERINGS), max_size=3, unique=True))
    return Partition(
        5,
        b"k",
        draw(st.none() | deletions),
        tuple(draw(st.lists(ranges, max_size=3))),
        draw(st.none() | rows(b"")),
        tuple(draw(rows(clustering)) for clustering in sorted(chosen)),
    )


def twin(sources: list[Partition], now_s: int) -> dict[Any, Any]:
    """Every visible fact, each found by looking at everything that could speak about it."""
    visible: dict[Any, Any] = {}
    whole = [s.deletion for s in sources if s.deletion]
    for clustering in [None, *CLUSTERINGS]:
        if clustering is None:
            states = [s.static for s in sources if s.static]
            over = list(whole)
        else:
            states = [r for s in sources for r in s.rows if r.clustering == clustering]
            over = whole + [
                r.deletion
                for s in sources
                for r in s.range_deletions
                if r.start <= clustering and (not r.end or clustering < r.end)
            ]
        over = over + [r.deletion for r in states if r.deletion]
        floor = max((d.timestamp_us for d in over), default=0)
        markers = [r.liveness for r in states if r.liveness and r.liveness.timestamp_us > floor]
        if markers:
            best = max(markers, key=lambda m: (m.timestamp_us, m.ttl_s > 0, m.expires_at_s, m.ttl_s))
            if not best.ttl_s or best.expires_at_s > now_s:
                visible[clustering, "marker"] = best
        for column, path in [(1, None), (2, None), (3, b"x"), (3, b"y")]:
            dropped = [e.deletion for r in states for e in r.column_deletions if e.column == column]
            lowest = max([floor, *(d.timestamp_us for d in dropped)])
            rivals = [
                c
                for r in states
                for c in r.cells
                if (c.column, c.path) == (column, path) and c.timestamp_us > lowest
            ]
            if not rivals:
                continue
            newest = [c for c in rivals if c.timestamp_us == max(r.timestamp_us for r in rivals)]
            if any(c.value is None for c in newest):
                continue
            expiring = [c for c in newest if c.ttl_s]
            final = max(expiring or newest, key=lambda c: (c.expires_at_s, c.value, c.ttl_s))
            if not final.ttl_s or final.expires_at_s > now_s:
                visible[clustering, column, path] = final
    return visible


def facts(partition: Partition) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for row in [*partition.rows, *([partition.static] if partition.static else [])]:
        clustering = None if row is partition.static else row.clustering
        if row.liveness:
            found[clustering, "marker"] = row.liveness
        for cell in row.cells:
            found[clustering, cell.column, cell.path] = cell
    return found


several = st.lists(partitions(), min_size=1, max_size=4)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(several, st.sampled_from([10, 100, 1000]))
def test_the_live_view_of_a_merge_is_what_the_slow_twin_sees(sources: list[Partition], now_s: int) -> None:
    assert facts(live_view(merge_partitions(sources), now_s)) == twin(sources, now_s)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(several, st.randoms(use_true_random=False))
def test_merging_does_not_depend_on_order_grouping_or_repetition(sources: list[Partition], dice: Any) -> None:
    whole = merge_partitions(sources)
    shuffled = [*sources, dice.choice(sources)]
    dice.shuffle(shuffled)
    assert merge_partitions(shuffled) == whole
    cut = dice.randrange(1, len(shuffled))
    halves = [merge_partitions(shuffled[:cut]), merge_partitions(shuffled[cut:])]
    assert merge_partitions(halves) == whole
    assert merge_partitions([whole, *sources]) == whole


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(several)
def test_reversing_only_reverses_the_rows(sources: list[Partition]) -> None:
    assert merge_partitions(sources, reverse=True).rows == merge_partitions(sources).rows[::-1]


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(several)
def test_sending_a_source_its_difference_makes_it_whole(sources: list[Partition]) -> None:
    merged = merge_partitions(sources)
    assert difference(merged, merged) is None
    for source in sources:
        canonical = merge_partitions([source])
        lacking = difference(merged, canonical)
        if lacking is None:
            assert canonical == merged
            continue
        assert merge_partitions([canonical, lacking]) == merged
        sent = repair_mutation(1, lacking, mutation_id(1, 1, 1))
        assert sent.rows == lacking.rows and sent.timestamp_us >= 1
    lacking = difference(merged, None)
    assert merge_partitions([lacking or Partition(5, b"k")]) == merged


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    st.lists(
        st.builds(RangeDeletion, st.sampled_from(BOUNDS), st.sampled_from(BOUNDS), deletions), max_size=6
    )
)
def test_normal_ranges_are_sorted_disjoint_and_delete_the_same(ranges: list[RangeDeletion]) -> None:
    normal = normal_ranges(ranges, None)
    for left, right in itertools.pairwise(normal):
        assert left.end and left.end <= right.start
        assert left.end < right.start or left.deletion != right.deletion
    for clustering in [b"", b"0", *CLUSTERINGS, b"cc", b"z"]:

        def covers(r: RangeDeletion, at: bytes = clustering) -> bool:
            return r.start <= at and (not r.end or at < r.end)

        before = [(r.deletion.timestamp_us, r.deletion.deleted_at_s) for r in ranges if covers(r)]
        after = [(r.deletion.timestamp_us, r.deletion.deleted_at_s) for r in normal if covers(r)]
        assert after == ([max(before)] if before else [])


def test_rows_that_the_newest_overwrites_merge_as_all_rows_do(monkeypatch: pytest.MonkeyPatch) -> None:
    dice, short = Random(3), 0
    overwrites = reconcile._overwrites
    for _ in range(4_000):
        places = dice.choice([((1, None), (2, None)), ((1, None), (3, b"x"), (3, b"y"))])
        states = []
        for _ in range(dice.randrange(2, 5)):
            at = dice.randrange(1, 6)
            held = tuple(
                Cell(column, dice.choice([None, b"1"]), at if dice.random() < 0.9 else 3, 0, 0, path)
                for column, path in (places if dice.random() < 0.8 else places[1:])
            )
            deletion = Deletion(at, 1) if dice.random() < 0.1 else None
            gone = (ColumnDeletion(3, Deletion(at, 1)),) if dice.random() < 0.1 else ()
            marker = Liveness(at, *dice.choice([(0, 0), (5, 50)])) if dice.random() < 0.7 else None
            states.append(Row(b"a", marker, deletion, held, gone))
        over = Deletion(2, 1) if dice.random() < 0.3 else None
        short += overwrites(states[0], states)
        found = merge_rows(states, over)
        with monkeypatch.context() as patch:
            patch.setattr(reconcile, "_overwrites", lambda first, rows: False)
            assert found == merge_rows(states, over), states
    assert short > 100, "some are overwritten"


def test_ties_go_to_the_tombstone_then_the_expiring_then_the_larger_value() -> None:
    tombstone, expiring = Cell(1, None, 5, 0, 1), Cell(1, b"a", 5, 9, 50)
    small, large = Cell(1, b"a", 5), Cell(1, b"b", 5)
    order = [small, large, expiring, tombstone]
    for at, weaker in enumerate(order):
        for stronger in order[at:]:
            assert reconcile.stronger_cell(weaker, stronger) == stronger
            assert reconcile.stronger_cell(stronger, weaker) == stronger


def test_a_row_without_marker_exists_while_any_cell_lives_even_one_not_asked_for() -> None:
    row = Row(b"a", None, None, (Cell(1, b"x", 5), Cell(2, None, 5, 0, 1)))
    view = live_view(Partition(5, b"k", rows=(row,)), 10, columns=(2,))
    assert view.rows == (Row(b"a"),)
    gone = Row(b"a", None, None, (Cell(2, None, 5, 0, 1),))
    assert live_view(Partition(5, b"k", rows=(gone,)), 10).rows == ()


def test_an_expired_marker_and_cells_are_not_seen_from_their_second_on() -> None:
    row = Row(b"a", Liveness(5, 10, 20), None, (Cell(1, b"x", 5, 10, 20),))
    partition = Partition(5, b"k", rows=(row,))
    assert live_view(partition, 19).rows == (row,)
    assert live_view(partition, 20).rows == ()


def test_the_twin_catches_a_merge_that_ignores_the_tombstone_tie(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "_rank", lambda cell: (cell.value or b"",))
    sources = [
        Partition(5, b"k", rows=(Row(b"a", cells=(Cell(1, None, 3, 0, 1),)),)),
        Partition(5, b"k", rows=(Row(b"a", cells=(Cell(1, b"1", 3),)),)),
    ]
    assert facts(live_view(merge_partitions(sources), 10)) != twin(sources, 10)
