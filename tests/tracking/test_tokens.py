"""Causal tokens: their bytes, what is refused, and what a client remembers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.tracking import tokens
from lockstep.tracking.held import NOTHING, Held, held_of
from lockstep.tracking.intervals import of
from lockstep.tracking.limits import CAUSAL_TOKEN_BYTES_MAX
from lockstep.tracking.tokens import Remembered, Span
from lockstep.values import codec
from lockstep.values.errors import InvalidRequest


def held(*offsets: int, log: int = 1) -> Held:
    return held_of({(1, log): of(offsets)})


def span(right: int, *offsets: int) -> Span:
    return Span(3, right - 10, right, held(*offsets))


spans = st.lists(
    st.builds(
        Span,
        st.integers(1, 9),
        st.integers(-(1 << 63), 0),
        st.integers(1, (1 << 63) - 1),
        st.dictionaries(
            st.tuples(st.integers(1, 4), st.integers(1, 1 << 40)),
            st.sets(st.integers(0, 1 << 40), min_size=1, max_size=5).map(of),
            max_size=3,
        ).map(held_of),
    ),
    max_size=5,
    unique_by=lambda one: one.place,
)


@given(spans)
def test_a_token_tells_what_was_put_into_it(told: list[Span]) -> None:
    assert list(tokens.decode(tokens.encode(told))) == told


def test_what_does_not_fit_is_left_out_from_the_end() -> None:
    many = [span(100 * number, *range(0, 400, 2)) for number in range(1, 100)]
    raw = tokens.encode(many)
    assert len(raw) <= CAUSAL_TOKEN_BYTES_MAX
    kept = tokens.decode(raw)
    assert 1 < len(kept) < 99
    assert list(kept) == many[: len(kept)]


@pytest.mark.parametrize(
    "raw",
    [
        b"x",
        b"\x00" * (CAUSAL_TOKEN_BYTES_MAX + 1),
        codec.encode(((Span(3, 5, 5, NOTHING),),)),
        codec.encode(((Span(3, 0, 5, NOTHING), Span(3, 0, 5, NOTHING)),)),
        codec.encode(((Span(3, 0, 5, Held(((1, 1, (4, 2)),))),),)),
        codec.encode(((Span(3, 0, 5, Held(((1, 1, (1,)),))),),)),
        codec.encode(((Span(3, 0, 5, Held(((1, 1, (1, 2, 3, 4)),))),),)),
        codec.encode(((Span(3, 0, 5, Held(((1, 1, (1, 1)), (1, 1, (2, 2))))),),)),
    ],
)
def test_what_no_node_gave_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="causal token"):
        tokens.decode(raw)


def test_a_client_remembers_what_it_was_told_and_forgets_what_all_hold() -> None:
    client = Remembered()
    client.answered((), [span(10, 1, 2)])
    assert client.spans == (span(10, 1, 2),)
    sent = client.spans
    # Another request was answered meanwhile.
    client.answered(sent, [span(10, 1, 2, 5)])
    client.answered(sent, [span(10, 2)])
    assert client.spans == (span(10, 2, 5),)
    client.answered(client.spans, [Span(3, 0, 10, NOTHING)])
    assert client.spans == ()
    assert client.forgotten == 0


def test_a_client_remembers_the_ranges_that_it_used_last() -> None:
    client = Remembered(2)
    for right in (10, 20, 10, 30):
        client.answered((), [span(right, right)])
    assert [one.right for one in client.spans] == [30, 10]
    assert client.forgotten == 1
