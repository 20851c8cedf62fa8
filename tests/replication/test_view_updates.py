"""Views derived by replicas, against the definition: a view is a function of the merged base table."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.cql.compile.prepared import shape_of
from lockstep.handoff.view_updates import ViewOf, for_all
from lockstep.schema.changes import CreateKeyspace, CreateTable, NewColumn, apply_change
from lockstep.schema.clustering import decode, encode_prefix, split_key
from lockstep.schema.model import ColumnKind, Schema, Table
from lockstep.schema.view_changes import CreateView, unmarking
from lockstep.storage.rows.fragments import touched
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.storage.rows.visible import live_view, partition_left
from lockstep.values.rows import Cell, Deletion, Liveness, Mutation, Partition, RangeDeletion, Row
from lockstep.values.tokens import token_of

NOW_S = 1000
KEY = (7).to_bytes(4, "big")
TOKEN = token_of(KEY)


def _int(value: int) -> bytes:
    return value.to_bytes(4, "big")


def _schema() -> Schema:
    schema = Schema()
    kinds = ColumnKind
    changes = [
        CreateKeyspace("ks", (("class", "SimpleStrategy"), ("replication_factor", "1"))),
        CreateTable(
            "ks",
            "base",
            "00000000-0000-0000-0000-000000000001",
            (
                NewColumn("k", "int", kinds.PARTITION_KEY, 0),
                NewColumn("c", "int", kinds.CLUSTERING, 0),
                NewColumn("v", "int"),
                NewColumn("w", "int"),
                NewColumn("x", "int"),
            ),
        ),
        _view("by_v", 2, ("k", "c", "v", "w"), ("v",), ("k", "c"), ""),
        _view("by_c", 3, ("k", "c", "w"), ("c",), ("k",), ""),
        _view("some", 4, ("k", "c", "v", "w"), ("k",), ("v", "c"), "v > 1"),
    ]
    for epoch, change in enumerate(changes, start=1):
        schema, _ = apply_change(schema, change, epoch)
    return schema


def _view(
    name: str, number: int, selected: tuple[str, ...], key: tuple[str, ...], rest: tuple[str, ...], where: str
) -> CreateView:
    names = (*key, *rest)
    text = " AND ".join([*(f"{column} IS NOT NULL" for column in names), *([where] if where else [])])
    uuid = f"00000000-0000-0000-0000-00000000000{number}"
    return CreateView(
        "ks", name, uuid, "ks", "base", selected, key, rest, (), names, ("v",) if where else (), text
    )


SCHEMA = _schema()
SPACE = SCHEMA.by_name["ks"]
BASE = SPACE.by_name["base"]
IDS = {column.name: column.id for column in BASE.columns}
VIEWS = [SPACE.by_name[name] for name in ("by_v", "by_c", "some")]


def _clustering(value: int) -> bytes:
    shape = shape_of(BASE, SPACE)
    return encode_prefix(shape.clustering_types, shape.descending, [_int(value)])


# What clients write

_TIMES = st.integers(1, 12)


@st.composite
def _cells(draw: st.DrawFn) -> Cell:
    at = draw(_TIMES)
    column = IDS[draw(st.sampled_from("vvwx"))]
    what = draw(st.sampled_from(("value", "value", "value", "tombstone", "expired", "expiring")))
    if what == "tombstone":
        return Cell(column, None, at, 0, NOW_S)
    value = _int(draw(st.integers(0, 3)))
    if what == "value":
        return Cell(column, value, at)
    return Cell(column, value, at, 5, NOW_S + (5 if what == "expiring" else -1))


@st.composite
def _mutations(draw: st.DrawFn) -> Mutation:
    at = draw(_TIMES)
    what = draw(st.sampled_from(("row", "row", "row", "row", "row deletion", "range", "partition")))
    clustering = _clustering(draw(st.integers(0, 1)))
    deletion = Deletion(at, NOW_S)
    id_ = bytes(14)
    if what == "partition":
        return Mutation(0, TOKEN, KEY, id_, at, deletion)
    if what == "range":
        return Mutation(0, TOKEN, KEY, id_, at, None, (RangeDeletion(clustering, b"", deletion),))
    if what == "row deletion":
        return Mutation(0, TOKEN, KEY, id_, at, rows=(Row(clustering, None, deletion),))
    cells = {cell.column: cell for cell in draw(st.lists(_cells(), max_size=3))}
    liveness = draw(st.sampled_from((None, Liveness(at), Liveness(at, 5, NOW_S - 1))))
    ordered = tuple(cells[column] for column in sorted(cells))
    return Mutation(0, TOKEN, KEY, id_, at, rows=(Row(clustering, liveness, None, ordered),))


# Replicas, and the definition


class Replica:
    """A replica of the base table that derives as the engine does: from the rows that a write touches."""

    def __init__(self, view: ViewOf) -> None:
        self.view = view
        self.state = Partition(TOKEN, KEY)
        self.sent: list[Mutation] = []

    def apply(self, mutation: Mutation) -> None:
        slices = touched(mutation)
        seen = tuple(row for row in self.state.rows if any(one.contains(row.clustering) for one in slices))
        before = Partition(TOKEN, KEY, self.state.deletion, self.state.range_deletions, None, seen)
        self.sent += self.view.derived(before, mutation, NOW_S)
        self.state = _merged(self.state, mutation)

    def build(self) -> None:
        self.sent += self.view.whole(self.state)


def _merged(state: Partition, mutation: Mutation) -> Partition:
    change = Partition(
        mutation.token, mutation.key, mutation.deletion, mutation.range_deletions, None, mutation.rows
    )
    return merge_partitions([state, change])


Visible = dict[tuple[bytes, ...], dict[str, bytes | None]]


def _defined(view: Table, base: Partition) -> Visible:
    """The rows of a view as its definition has them, out of the merged base."""
    found: Visible = {}
    for row in live_view(base, NOW_S, (), ()).rows:
        values: dict[str, bytes | None] = {"k": KEY}
        (values["c"],) = decode(shape_of(BASE, SPACE).clustering_types, (False,), row.clustering)
        for cell in row.cells:
            values[BASE.by_id[cell.column].name] = cell.value
        key = [values.get(column.name) for column in (*view.partition_key, *view.clustering)]
        if None in key or (view.name == "some" and (values["v"] or b"") <= _int(1)):
            continue
        found[tuple(part for part in key if part is not None)] = {
            column.name: values.get(column.name) for column in view.regular
        }
    return found


def _visible(view: Table, sent: Iterable[Mutation]) -> Visible:
    """What a read of the view gives, once all that was sent has arrived."""
    shape = shape_of(view, SPACE)
    by_key: dict[bytes, list[Partition]] = {}
    for one in sent:
        part = Partition(one.token, one.key, one.deletion, one.range_deletions, None, one.rows)
        by_key.setdefault(one.key, []).append(part)
    found: Visible = {}
    for key, parts in by_key.items():
        for row in live_view(merge_partitions(parts), NOW_S, (), unmarking(view)).rows:
            clustering = decode(shape.clustering_types, shape.descending, row.clustering)
            cells = {cell.column: cell.value for cell in row.cells}
            values = {column.name: cells.get(column.id) for column in view.regular}
            found[(*split_key(key, len(view.partition_key)), *clustering)] = values
    return found


def _check(view: Table, orders: Sequence[Sequence[Mutation]], derive: type[ViewOf] = ViewOf) -> None:
    replicas = [Replica(derive(view, BASE, SPACE)) for _ in orders]
    for replica, order in zip(replicas, orders, strict=True):
        for mutation in order:
            replica.apply(mutation)
    base = merge_partitions([replica.state for replica in replicas])
    sent = [one for replica in replicas for one in replica.sent]
    assert _visible(view, sent) == _defined(view, base)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
@given(st.lists(_mutations(), min_size=1, max_size=10), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_a_view_is_a_function_of_its_base_whatever_the_order(
    view: Table, writes: list[Mutation], draw: random.Random
) -> None:
    """Three replicas get the writes in orders of their own, and some of them twice."""
    orders = []
    for _ in range(3):
        order = [*writes, *draw.sample(writes, draw.randint(0, len(writes)))]
        draw.shuffle(order)
        orders.append(order)
    _check(view, orders)


@pytest.mark.slow
@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
@given(
    st.lists(_mutations(), min_size=1, max_size=10),
    st.lists(st.booleans(), min_size=3, max_size=3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60, deadline=None)
def test_each_replica_of_a_view_is_right_by_its_pair_and_dead_markers(
    view: Table, writes: list[Mutation], spreads: list[bool], draw: random.Random
) -> None:
    """Some replicas of the base send to all, as they do while replicas change. Who got all writes has told
    its pair enough, whatever others told it beside."""
    replicas = [Replica(ViewOf(view, BASE, SPACE)) for _ in spreads]
    for replica in replicas:
        for mutation in draw.sample(writes, len(writes)):
            replica.apply(mutation)
    for own in replicas:
        arrived = list(own.sent)
        for other, spread in zip(replicas, spreads, strict=True):
            arrived += [one for one in other.sent if spread or for_all(one)]
        assert _visible(view, arrived) == _defined(view, own.state)


def test_markers_that_are_dead_go_to_all_replicas_by_themselves() -> None:
    replica = Replica(ViewOf(SPACE.by_name["by_v"], BASE, SPACE))
    replica.apply(_insert(1, v=1, w=9))
    replica.apply(_insert(2, v=2))
    assert [for_all(one) for one in replica.sent] == [False, True, False]


@pytest.mark.parametrize("view", VIEWS, ids=lambda view: view.name)
@given(st.lists(_mutations(), min_size=1, max_size=10), st.integers(0, 10), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_a_view_that_is_built_later_is_the_same(
    view: Table, writes: list[Mutation], known: int, draw: random.Random
) -> None:
    """Some writes are there before the view is: the build brings them, at any time among later writes."""
    replicas = [Replica(ViewOf(view, BASE, SPACE)) for _ in range(2)]
    for replica in replicas:
        order = list(writes)
        draw.shuffle(order)
        for mutation in order[:known]:
            replica.state = _merged(replica.state, mutation)
        later = order[known:]
        built_at = draw.randint(0, len(later))
        for number, mutation in enumerate(later):
            if number == built_at:
                replica.build()
            replica.apply(mutation)
        if built_at == len(later):
            replica.build()
    base = merge_partitions([replica.state for replica in replicas])
    sent = [one for replica in replicas for one in replica.sent]
    assert _visible(view, sent) == _defined(view, base)


def _insert(at: int, **values: int) -> Mutation:
    cells = tuple(sorted((Cell(IDS[name], _int(value), at) for name, value in values.items()), key=_column))
    return Mutation(0, TOKEN, KEY, bytes(14), at, rows=(Row(_clustering(1), Liveness(at), None, cells),))


def _column(cell: Cell) -> int:
    return cell.column


def test_a_row_comes_back_with_its_older_cells() -> None:
    view = SPACE.by_name["by_v"]
    writes = [_insert(1, v=1, w=9), _insert(2, v=2), _insert(3, v=1)]
    replica = Replica(ViewOf(view, BASE, SPACE))
    for mutation in writes:
        replica.apply(mutation)
    assert _visible(view, replica.sent) == {(_int(1), KEY, _int(1)): {"w": _int(9)}}


def tell_of_a_value_that_comes_late() -> None:
    """One replica has told the view of a value; another hears of it only when it has lost."""
    view = SPACE.by_name["by_v"]
    one, other = Replica(ViewOf(view, BASE, SPACE)), Replica(ViewOf(view, BASE, SPACE))
    first, second = _insert(1, v=1), _insert(2, v=2)
    one.apply(first)
    for mutation in (second, first):
        other.apply(mutation)
    assert list(_visible(view, [*one.sent, *other.sent])) == [(_int(2), KEY, _int(1))]


def test_a_value_that_comes_late_is_told_dead() -> None:
    tell_of_a_value_that_comes_late()


def test_a_dead_marker_takes_its_row_along_when_it_is_purged() -> None:
    dead = Row(b"", None, None, (Cell(0, None, 5, 0, 10), Cell(4, _int(1), 7)))
    left = partition_left(Partition(TOKEN, KEY, rows=(dead,)), 11)
    assert left.rows == ()
    assert partition_left(Partition(TOKEN, KEY, rows=(dead,)), 10).rows == (dead,)


class _KillsNothing(ViewOf):
    """Forgets where rows were before."""

    def derived(self, before: Partition, mutation: Mutation, now_s: int) -> list[Mutation]:
        return super().derived(Partition(TOKEN, KEY), mutation, now_s)


class _TellsTheChangeOnly(ViewOf):
    """Sends what was written, never the whole row that comes to a new key."""

    def _row(self, keys, clustering, old, told, new, over, now_s):  # type: ignore[no-untyped-def]
        return super()._row(keys, clustering, old, told, told[0] if told and new else new, over, now_s)


@pytest.mark.parametrize("planted", [_KillsNothing, _TellsTheChangeOnly])
def test_the_property_finds_planted_bugs(planted: type[ViewOf]) -> None:
    view = SPACE.by_name["by_v"]
    writes = [_insert(1, v=1, w=9), _insert(2, v=2)]
    _check(view, [writes])
    with pytest.raises(AssertionError):
        _check(view, [writes], planted)
