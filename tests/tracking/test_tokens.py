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
    return Span(3, 0, right - 10, right, held(*offsets))


spans = st.lists(
    st.builds(
        Span,
        st.integers(1, 9),
        st.integers(0, 9),
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
        codec.encode(((Span(3, 0, 0, 5, 5, NOTHING),),)),
        codec.encode(((Span(3, 0, 0, 5, NOTHING), Span(3, 0, 0, 5, NOTHING)),)),
        codec.encode(((Span(3, 0, 0, 5, Held(((1, 1, (4, 2)),))),),)),
        codec.encode(((Span(3, 0, 0, 5, NOTHING, ((-1, 2),)),),)),
        codec.encode(((Span(3, 0, 0, 5, NOTHING, ((2, 6),)),),)),
        codec.encode(((Span(3, 0, 0, 5, NOTHING, ((2, 2),)),),)),
        codec.encode(((Span(3, 0, 0, 5, NOTHING, ((0, 2), (2, 4))),),)),
        codec.encode(((Span(3, 0, 0, 5, Held(((1, 1, (1,)),))),),)),
        codec.encode(((Span(3, 0, 0, 5, Held(((1, 1, (1, 2, 3, 4)),))),),)),
        codec.encode(((Span(3, 0, 0, 5, Held(((1, 1, (1, 1)), (1, 1, (2, 2))))),),)),
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
    client.answered(client.spans, [Span(3, 0, 0, 10, NOTHING)])
    assert client.spans == ()
    assert client.forgotten == 0


def test_a_client_remembers_the_ranges_that_it_used_last() -> None:
    client = Remembered(2)
    for right in (10, 20, 10, 30):
        client.answered((), [span(right, right)])
    assert [one.right for one in client.spans] == [30, 10]
    assert client.forgotten == 1


def test_what_was_asked_for_of_another_cut_is_asked_for_no_more() -> None:
    whole = span(10, 1, 2, 3)
    assert whole.is_open_in(-5, 1) and not whole.is_open_in(10, 20)
    first = whole.without(held(1), 4, 20)
    assert first == Span(3, 0, 0, 10, held(2, 3), ((4, 10),))
    assert not first.is_open_in(4, 20) and not first.is_open_in(5, 7) and first.is_open_in(3, 7)
    apart = first.without(NOTHING, 1, 2)
    assert apart.asked == ((1, 2), (4, 10))
    assert tokens.decode(tokens.encode([apart])) == (apart,)
    # Of what was asked for everywhere nothing is left: nobody holds the rest.
    assert apart.without(held(2), 2, 4).asked == ((1, 10),)
    assert first.without(held(2), -7, 4) == Span(3, 0, 0, 10, NOTHING)
    assert first.without(held(2, 3), 1, 2) == Span(3, 0, 0, 10, NOTHING)


def test_what_comes_while_a_range_was_asked_for_is_asked_for_again() -> None:
    client = Remembered()
    client.answered((), [span(10, 1, 2)])
    sent = client.spans
    told = span(10, 1, 2).without(held(1), 4, 10)
    client.answered(sent, [told])
    assert client.spans == (told,)
    client.answered((), [span(10, 7)])
    assert client.spans == (span(10, 2, 7),)
    client.answered(sent, [told])
    assert client.spans == (span(10, 2, 7),)


def test_a_client_counts_what_it_is_made_to_forget() -> None:
    client = Remembered()
    client.answered((), [span(10, 1), span(20, 1).without(NOTHING, 10, 12), span(30, 1)])
    client.forget(1)
    assert client.spans == (span(10, 1),)
    assert client.forgotten == 2
