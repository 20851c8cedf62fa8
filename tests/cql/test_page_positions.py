"""Paging states come back from clients, who may have changed them."""

from __future__ import annotations

import pytest

from lockstep.cql.bind.page_positions import PagePosition, decode, encode
from lockstep.values.errors import ProtocolViolation
from lockstep.values.rows import Position

HERE = PagePosition("t", Position(5, b"k"), -1, 0)


def test_a_state_comes_back_as_it_was() -> None:
    for state in (HERE, PagePosition("t", Position(-(1 << 63), b"k", b"c"), 7, 1 << 40)):
        assert decode(encode(state), "t") == state


@pytest.mark.parametrize(
    "changed",
    [
        PagePosition("other", Position(5, b"k"), -1, 0),
        PagePosition("t", Position((1 << 64) - 1, b"k"), -1, 0),
        PagePosition("t", Position(5, b"k"), (1 << 64) - 1, 0),
        PagePosition("t", Position(5, b"k"), -2, 0),
        PagePosition("t", Position(5, b"k"), -1, (1 << 64) - 1),
        PagePosition("t", Position(5, b"k"), -1, -1),
    ],
)
def test_what_no_node_made_is_refused(changed: PagePosition) -> None:
    with pytest.raises(ProtocolViolation, match="Invalid value for the paging state"):
        decode(encode(changed), "t")
