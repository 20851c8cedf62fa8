"""Symbols tell exactly the difference of two sets, as Python's own sets do, and not many more are needed."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.tracking.held import MutationId
from lockstep.tracking.symbols import Item, SymbolDecoder, SymbolEncoder, item_of

ITEMS = st.sets(
    st.builds(Item, st.integers(1, 3), st.integers(1, 2), st.integers(0, 30), st.integers(0, 2)), max_size=40
)


def compared(theirs: set[Item], ours: set[Item]) -> SymbolDecoder:
    stream, found = SymbolEncoder(theirs), SymbolDecoder(ours)
    while not found.done:
        found.add(stream.next())
    return found


@settings(max_examples=150)
@given(ITEMS, ITEMS)
def test_the_difference_is_that_of_sets(theirs: set[Item], ours: set[Item]) -> None:
    assert compared(theirs, ours).difference() == (sorted(theirs - ours), sorted(ours - theirs))


def test_equal_sets_take_one_symbol() -> None:
    same = {Item(1, 1, offset, 7) for offset in range(500)}
    assert compared(same, set(same)).count == 1


def test_another_content_under_an_id_is_found_on_both_sides() -> None:
    same = {item_of(MutationId(1, 1, offset), b"value") for offset in range(200)}
    bad = item_of(MutationId(1, 1, 3), b"valuf")
    good = item_of(MutationId(1, 1, 3), b"value")
    assert compared(same, same - {good} | {bad}).difference() == ([good], [bad])


@pytest.mark.parametrize(("count", "most"), [(10, 4.0), (100, 1.9), (1000, 1.6)])
def test_a_difference_takes_few_symbols(count: int, most: float) -> None:
    """1.74, 1.45 and 1.38 symbols an item were measured of the reference."""
    draw = random.Random(count)
    rest = {Item(1, 1, offset, 0) for offset in range(2000)}
    used = []
    for _ in range(5 if count > 100 else 20):
        fresh = {Item(2, 1, draw.getrandbits(40), draw.getrandbits(64)) for _ in range(count)}
        used.append(compared(rest | fresh, rest).count / count)
    assert 1.2 < sum(used) / len(used) < most, used
