"""Shards of counters: what a replica makes of changes, and that replicas agree whatever they hear first."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.coordination.counters import asks, counted, shard_path
from lockstep.schema.assembling import counter_sum
from lockstep.storage.rows.reconcile import merge_partitions
from lockstep.values.rows import Cell, Deletion, Mutation, Partition, Row, Slice

COLUMN = 3


def change(amount: int, at_us: int, clustering: bytes = b"r") -> Mutation:
    cell = Cell(COLUMN, amount.to_bytes(8, "big", signed=True), at_us)
    return Mutation(1, 5, b"k", b"i" * 14, at_us, None, (), None, (Row(clustering, cells=(cell,)),))


def state(mutation: Mutation) -> Partition:
    return Partition(5, b"k", None, (), mutation.static, mutation.rows)


def shown(partition: Partition | None) -> int:
    if partition is None or not partition.rows:
        return 0
    cells = [cell.value or b"" for cell in partition.rows[0].cells]
    return int.from_bytes(counter_sum(cells), "big", signed=True)


def test_a_change_is_added_to_the_own_shard_alone() -> None:
    one, other = shard_path(1, 1), shard_path(2, 1)
    first = counted(change(5, 100), (), one)
    assert first.rows[0].cells == (Cell(COLUMN, (5).to_bytes(8, "big"), 100, path=one),)
    # Another node starts from nothing of its own, and the clock of a shard never stands still.
    second = counted(change(2, 100), (state(first),), other)
    third = counted(change(-1, 50), (state(first),), one)
    assert third.timestamp_us == 101
    assert shown(merge_partitions([state(first), state(second), state(third)])) == 6


def test_static_counters_and_those_of_rows_are_counted_apart() -> None:
    path = shard_path(1, 1)
    static = Row(b"", cells=change(7, 100).rows[0].cells)
    both = Mutation(1, 5, b"k", b"i" * 14, 100, None, (), static, change(5, 100, b"").rows)
    first = counted(both, (), path)
    second = counted(both, (state(first),), path)
    assert second.static is not None
    values = [row.cells[0].value for row in (second.static, *second.rows)]
    assert values == [(14).to_bytes(8, "big"), (10).to_bytes(8, "big")]


def test_what_is_asked_is_what_is_changed() -> None:
    command = asks(change(1, 1), 7)
    assert (command.slices, command.columns, command.reads_static) == (
        (Slice(b"r", b"r\x00"),),
        (COLUMN,),
        False,
    )
    static = Mutation(1, 5, b"k", b"i" * 14, 1, None, (), Row(b"", cells=change(1, 1).rows[0].cells), ())
    assert asks(static, 7).reads_static
    assert asks(static, 7).slices == (Slice(b"", b"\x00"),)


def test_a_deletion_in_the_same_request_stays() -> None:
    deletion = Deletion(9, 1)
    row = Row(b"r", None, deletion, change(4, 10).rows[0].cells)
    summed = counted(Mutation(1, 5, b"k", b"i" * 14, 10, None, (), None, (row,)), (), shard_path(1, 1))
    assert summed.rows[0].deletion == deletion


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 3), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=8))
def test_replicas_agree_on_the_sum_in_whatever_order_they_hear(changes: list[tuple[int, int]]) -> None:
    known: dict[int, Partition] = {}
    written: list[Partition] = []
    for at_us, (node, amount) in enumerate(changes, start=1):
        present = (known[node],) if node in known else ()
        made = state(counted(change(amount, at_us), present, shard_path(node, 1)))
        written.append(made)
        merged = merge_partitions([*present, made])
        assert merged is not None
        known[node] = merged
    total = (sum(amount for _, amount in changes) + 2**63) % 2**64 - 2**63
    for order in list(permutations(written))[:24]:
        assert shown(merge_partitions(list(order))) == total
    assert shown(merge_partitions([*written, *written])) == total
