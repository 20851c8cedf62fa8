"""Fragment keys keep the order of what they are made of and never collide."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from lockstep.storage.rows import keys
from lockstep.values.ids import mutation_id
from lockstep.values.rows import Slice
from lockstep.values.tokens import TOKEN_MAX, TOKEN_MIN, Range

awkward = st.lists(st.sampled_from([b"\x00", b"\x01", b"\xfe", b"\xff", b"a"]), max_size=5).map(b"".join)
tokens = st.sampled_from([TOKEN_MIN + 1, -1, 0, 1, TOKEN_MAX])
stamps = st.sampled_from([-(1 << 63), -1, 0, 1, (1 << 63) - 1])
places = st.tuples(
    st.sampled_from([1, 2, 255]), tokens, awkward, awkward, stamps, st.integers(0, 3).map(lambda n: n)
)


def row_key(place: tuple[int, int, bytes, bytes, int, int]) -> bytes:
    table, token, key, clustering, stamp, sequence = place
    prefix = keys.partition_prefix(table, token, key)
    return keys.row_prefix(prefix, clustering) + keys.write_suffix(stamp, mutation_id(1, 1, sequence))


@pytest.mark.slow
@settings(max_examples=300)
@given(places, places)
def test_keys_order_by_table_token_key_clustering_and_newest_first(left, right) -> None:  # type: ignore[no-untyped-def]
    def natural(place):  # type: ignore[no-untyped-def]
        table, token, key, clustering, stamp, sequence = place
        return table, token, key, clustering, -stamp, sequence

    assert (row_key(left) < row_key(right)) == (natural(left) < natural(right))
    assert (row_key(left) == row_key(right)) == (left == right)


@settings(max_examples=200)
@given(places)
def test_a_key_gives_back_what_it_was_made_of(place) -> None:  # type: ignore[no-untyped-def]
    table, token, key, clustering, stamp, _ = place
    made = row_key(place)
    prefix = keys.partition_prefix(table, token, key)
    assert keys.split_partition(made) == (token, key, prefix)
    assert keys.clustering_of(made, prefix) == clustering
    assert keys.timestamp_of(made) == stamp
    lower, upper = keys.table_bounds(table)
    assert lower < made < upper
    assert prefix < made < keys.partition_end(prefix)
    assert keys.row_prefix(prefix, clustering) < made < keys.place_end(keys.row_prefix(prefix, clustering))


@pytest.mark.slow
@settings(max_examples=300)
@given(places, awkward, awkward)
def test_slice_bounds_hold_exactly_the_rows_of_the_slice(place, start, end) -> None:  # type: ignore[no-untyped-def]
    table, token, key, clustering, _, _ = place
    lower, upper = keys.slice_bounds(keys.partition_prefix(table, token, key), Slice(start, end))
    assert (lower <= row_key(place) < upper) == Slice(start, end).contains(clustering)


@pytest.mark.slow
@settings(max_examples=200)
@given(places, tokens, tokens)
def test_token_bounds_hold_exactly_the_tokens_of_the_range(place, left, right) -> None:  # type: ignore[no-untyped-def]
    if left >= right:
        return
    lower, upper = keys.token_bounds(place[0], Range(left, right))
    assert (lower <= row_key(place) < upper) == Range(left, right).contains(place[1])


def test_one_rows_fragments_are_not_in_another_rows_place() -> None:
    prefix = keys.partition_prefix(1, 5, b"k")
    short, long = keys.row_prefix(prefix, b"a"), keys.row_prefix(prefix, b"a\x00")
    newest = keys.write_suffix(-(1 << 63), b"\xff" * 14)
    assert short + newest < keys.place_end(short) < long


def test_stored_ids_in_order_are_those_of_tables_and_then_their_companions() -> None:
    for table_ids in ((), (5,), (9, 3, 7)):
        assert keys.all_stored_ids(table_ids) == sorted(keys.with_ballots(table_ids))
